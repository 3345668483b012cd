//! Names of attributes: the messaging conventions of OpenTelemetry, and those of punctual.

pub const SYSTEM: &str = "messaging.system";
/// The route.
pub const DESTINATION: &str = "messaging.destination.name";
pub const OPERATION: &str = "messaging.operation.name";
pub const OPERATION_TYPE: &str = "messaging.operation.type";
/// The id that consumers see.
pub const MESSAGE_ID: &str = "messaging.message.id";
/// Size of the payload.
pub const BODY_SIZE: &str = "messaging.message.body.size";
/// The outcome of an attempt that was not confirmed.
pub const ERROR_TYPE: &str = "error.type";

/// `api`, or the name of a source.
pub const VIA: &str = "punctual.via";
/// From 1.
pub const ATTEMPT: &str = "punctual.attempt";
/// The status of the API's reply, or the `outcome` label of `punctual_sink_attempts_total`.
pub const OUTCOME: &str = "punctual.outcome";
/// Milliseconds from the due time to the outcome of the attempt.
pub const LATENESS: &str = "punctual.lateness_ms";
