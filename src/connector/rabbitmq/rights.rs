//! What a queue is, and what a user may do with queues and exchanges, asked without doing it. Passive declares do not
//! tell: before 4.3 RabbitMQ answers them for users without any right.

use lapin::{
    BasicProperties, Channel, ErrorKind,
    options::{BasicCancelOptions, BasicConsumeOptions, BasicPublishOptions, ConfirmSelectOptions},
    protocol::{AMQPError, AMQPSoftError},
    types::{AMQPValue, FieldTable, ShortString},
};

use super::text;

/// A consumer's argument that classic and quorum queues heed and streams do not know, so that they refuse it.
const PRIORITY: &str = "x-priority";

const STREAM: &str = "of queue type rabbit_stream_queue";

/// The arguments of a consumer that a stream refuses: it would skip what was published while it had no consumer.
pub fn no_stream() -> FieldTable {
    with_priority(AMQPValue::LongInt(0))
}

/// Whether `queue` exists, is no stream, and may be read: asks for a consumer that RabbitMQ refuses after it has
/// looked at all of that. No message is taken. The refusal closes `channel`.
///
/// # Errors
/// What is wrong; a missing answer too.
pub async fn check_readable(channel: &Channel, queue: &str) -> lapin::Result<()> {
    let arguments = with_priority(AMQPValue::LongString("none".into()));
    match channel.basic_consume(queue.into(), "".into(), BasicConsumeOptions::default(), arguments).await {
        // Another broker than RabbitMQ.
        Ok(consumer) => channel.basic_cancel(consumer.tag(), BasicCancelOptions::default()).await,
        Err(error) if is_precondition(&error) && !is_of(&error, STREAM) => Ok(()),
        Err(error) => Err(explained(error, queue)),
    }
}

/// Whether `queue`, which can be read, is a quorum queue; `false` also where the broker does not tell. The same way,
/// with an argument that only streams know. The refusal closes `channel`.
pub async fn is_quorum(channel: &Channel, queue: &str) -> bool {
    let mut arguments = FieldTable::default();
    arguments.insert("x-stream-offset".into(), AMQPValue::LongString("none".into()));
    match channel.basic_consume(queue.into(), "".into(), BasicConsumeOptions::default(), arguments).await {
        Ok(consumer) => {
            // Another broker than RabbitMQ. What it has given out returns with the channel at the latest.
            let _ = channel.basic_cancel(consumer.tag(), BasicCancelOptions::default()).await;
            false
        }
        Err(error) => is_of(&error, "of queue type rabbit_quorum_queue"),
    }
}

/// Whether `exchange` exists and may be written to, the default one by a right to `amq.default`: publishes what RabbitMQ
/// refuses after it has looked at both. Nothing is routed. The refusal closes `channel`.
///
/// # Errors
/// What is wrong; a missing answer too.
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

/// The refusal of a stream in words that tell it; any other error as it is.
pub fn explained(error: lapin::Error, queue: &str) -> lapin::Error {
    let text = format!("queue '{queue}' is a stream: a source reads classic and quorum queues");
    match ShortString::try_new(text) {
        Ok(text) if is_of(&error, STREAM) => {
            ErrorKind::ProtocolError(AMQPError::new(AMQPSoftError::PRECONDITIONFAILED.into(), text)).into()
        }
        _ => error,
    }
}

/// Whether it is the refusal of an argument by a queue of this type, as RabbitMQ names it.
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
