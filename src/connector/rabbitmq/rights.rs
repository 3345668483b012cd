//! Checks the type of a queue and the permissions of a user, without a lasting effect. A passive declare does not check
//! permissions: RabbitMQ before 4.3 answers it for users without any right.

use lapin::{
    BasicProperties, Channel, ErrorKind,
    options::{BasicCancelOptions, BasicConsumeOptions, BasicPublishOptions, ConfirmSelectOptions},
    protocol::{AMQPError, AMQPSoftError},
    types::{AMQPValue, FieldTable, ShortString},
};

use super::text;

/// A consumer argument that classic and quorum queues know and streams refuse.
const PRIORITY: &str = "x-priority";

/// A part of RabbitMQ's refusal of an argument by a stream.
const STREAM: &str = "of queue type rabbit_stream_queue";

/// Consumer arguments that a stream refuses. A source on a stream would miss messages that were published while it had no
/// consumer.
pub fn no_stream() -> FieldTable {
    with_priority(AMQPValue::LongInt(0))
}

/// Checks that `queue` exists, is not a stream, and can be read. Requests a consumer with an invalid argument: RabbitMQ
/// refuses it after these checks, so no message is delivered. The refusal closes `channel`.
///
/// # Errors
/// The check that failed, or the error of the connection.
pub async fn check_readable(channel: &Channel, queue: &str) -> lapin::Result<()> {
    let arguments = with_priority(AMQPValue::LongString("none".into()));
    match channel.basic_consume(queue.into(), "".into(), BasicConsumeOptions::default(), arguments).await {
        // A broker other than RabbitMQ.
        Ok(consumer) => channel.basic_cancel(consumer.tag(), BasicCancelOptions::default()).await,
        Err(error) if is_precondition(&error) && !is_of(&error, STREAM) => Ok(()),
        Err(error) => Err(explained(error, queue)),
    }
}

/// Whether the readable `queue` is a quorum queue; `false` also if that is unknown. Requests a consumer with an invalid
/// argument of streams. The refusal, which names the queue's type, closes `channel`.
pub async fn is_quorum(channel: &Channel, queue: &str) -> bool {
    let mut arguments = FieldTable::default();
    arguments.insert("x-stream-offset".into(), AMQPValue::LongString("none".into()));
    match channel.basic_consume(queue.into(), "".into(), BasicConsumeOptions::default(), arguments).await {
        Ok(consumer) => {
            // A broker other than RabbitMQ. The close of the channel requeues delivered messages.
            let _ = channel.basic_cancel(consumer.tag(), BasicCancelOptions::default()).await;
            false
        }
        Err(error) => is_of(&error, "of queue type rabbit_quorum_queue"),
    }
}

/// Checks that the user can write to `exchange`, which must exist; for the default exchange, to `amq.default`.
/// Publishes a message with an invalid property: RabbitMQ refuses it after these checks, so nothing is routed. The
/// refusal closes `channel`.
///
/// # Errors
/// The check that failed, or the error of the connection.
pub async fn check_writable(channel: &Channel, exchange: &str) -> lapin::Result<()> {
    channel.confirm_select(ConfirmSelectOptions::default()).await?;
    let properties = BasicProperties::default().with_expiration("none".into());
    let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
    let published = channel.basic_publish(exchange.into(), "".into(), options, b"", properties).await?.await;
    match published {
        Err(error) if !is_precondition(&error) => Err(error),
        _ => Ok(()),
    }
}

/// Explains the refusal of a stream. Returns any other error unchanged.
pub fn explained(error: lapin::Error, queue: &str) -> lapin::Error {
    let text = format!("queue '{queue}' is a stream: a source reads classic and quorum queues");
    match ShortString::try_new(text) {
        Ok(text) if is_of(&error, STREAM) => {
            ErrorKind::ProtocolError(AMQPError::new(AMQPSoftError::PRECONDITIONFAILED.into(), text)).into()
        }
        _ => error,
    }
}

/// Whether a queue of type `kind`, by RabbitMQ's name, has refused an argument.
fn is_of(error: &lapin::Error, kind: &str) -> bool {
    is_precondition(error) && text(error).contains(kind)
}

fn is_precondition(error: &lapin::Error) -> bool {
    matches!(error.kind(), ErrorKind::ProtocolError(refusal) if *refusal.kind() == AMQPSoftError::PRECONDITIONFAILED.into())
}

fn with_priority(value: AMQPValue) -> FieldTable {
    let mut arguments = FieldTable::default();
    arguments.insert(PRIORITY.into(), value);
    arguments
}
