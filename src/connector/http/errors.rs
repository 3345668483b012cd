//! Errors of requests without a readable reply.

use http::StatusCode;

/// Why a request has no readable reply.
pub enum SendError {
    /// Nothing of the request was sent, or the server has not processed it: it can be sent over another connection.
    NotSent(String),
    /// No stream of the connection became free in time: nothing was sent.
    NoStream,
    /// The status of the reply. The rest of its head is invalid or incomplete.
    Unreadable(StatusCode),
    Lost(LostReply),
}

/// A request without a reply. It was possibly processed.
pub struct LostReply {
    pub text: String,
    /// The reply is not valid HTTP.
    pub is_invalid: bool,
    /// The connection was lost, rather than one request.
    pub is_of_connection: bool,
}
