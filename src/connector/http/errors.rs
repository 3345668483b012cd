//! How a request ends without a reply, and what a connection holds.

use http::StatusCode;
use tokio::sync::OwnedSemaphorePermit;

/// Why a request has no reply that can be read.
pub enum SendError {
    /// Nothing of it was sent, or the server has not processed it: it can be sent over another connection.
    NotSent(String),
    /// No stream of the connection became free in time: nothing was sent.
    NoStream,
    /// HTTP cannot carry it.
    Unsendable(String),
    /// The reply has this status. The rest of its head is not valid, or is cut.
    Unreadable(StatusCode),
    Lost(LostReply),
}

/// The request may have been processed.
pub struct LostReply {
    pub text: String,
    /// The reply is not valid HTTP.
    pub is_invalid: bool,
    /// The connection was lost, rather than one request.
    pub is_of_connection: bool,
}

/// Permits of the sink and of the process for one connection.
pub struct ConnectionPermit {
    pub _sink: OwnedSemaphorePermit,
    pub _process: OwnedSemaphorePermit,
}
