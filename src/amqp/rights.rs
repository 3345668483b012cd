//! What a user may do with a queue, asked without doing it. Passive declares do not tell: before 4.3 RabbitMQ answers
//! them for users without any right.

use lapin::{
    Channel, ErrorKind,
    options::{BasicCancelOptions, BasicConsumeOptions},
    protocol::{AMQPError, AMQPSoftError},
    types::{AMQPValue, FieldTable, ShortString},
};

/// A consumer's argument that classic and quorum queues heed and streams do not know, so that they refuse it.
const PRIORITY: &str = "x-priority";

/// The arguments of a consumer that a stream refuses: it would skip what was published while nobody consumed.
pub fn no_stream() -> FieldTable {
    with_priority(AMQPValue::LongInt(0))
}

/// Whether `queue` exists, is no stream, and may be read: asks for a consumer that RabbitMQ refuses after it has
/// looked at all of that. No message is taken. The refusal closes `channel`.
///
/// # Errors
/// What is wrong, or that there is no answer.
pub async fn check_readable(channel: &Channel, queue: &str) -> lapin::Result<()> {
    let arguments = with_priority(AMQPValue::LongString("none".into()));
    match channel.basic_consume(queue.into(), "".into(), BasicConsumeOptions::default(), arguments).await {
        // Another broker than RabbitMQ.
        Ok(consumer) => channel.basic_cancel(consumer.tag(), BasicCancelOptions::default()).await,
        Err(error) => match error.kind() {
            ErrorKind::ProtocolError(refusal) if is_of_arguments(refusal) && !is_of_stream(refusal) => Ok(()),
            _ => Err(explained(error, queue)),
        },
    }
}

/// The refusal of a stream in words that tell it; any other error as it is.
pub fn explained(error: lapin::Error, queue: &str) -> lapin::Error {
    let ErrorKind::ProtocolError(refusal) = error.kind() else { return error };
    let text = format!("queue '{queue}' is a stream: a source reads classic and quorum queues");
    match ShortString::try_new(text) {
        Ok(text) if is_of_stream(refusal) => {
            ErrorKind::ProtocolError(AMQPError::new(refusal.kind().clone(), text)).into()
        }
        _ => error,
    }
}

fn is_of_arguments(refusal: &AMQPError) -> bool {
    *refusal.kind() == AMQPSoftError::PRECONDITIONFAILED.into()
}

fn is_of_stream(refusal: &AMQPError) -> bool {
    is_of_arguments(refusal) && refusal.get_message().as_str().contains("rabbit_stream_queue")
}

fn with_priority(value: AMQPValue) -> FieldTable {
    let mut arguments = FieldTable::default();
    arguments.insert(PRIORITY.into(), value);
    arguments
}
