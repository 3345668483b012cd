//! How much of a reply's body is looked at: little, and not for long. The status is what counts.

use std::time::Duration;

use reqwest::Response;
use tokio::time::{Instant, timeout_at};

/// Bytes read of a refusal, for its text.
const EXCERPT_BYTES: usize = 1024;
/// Characters of it that are shown.
const EXCERPT_CHARS: usize = 200;
/// Bytes that are read to the end of a body so that its connection can be used again; beyond, a new
/// connection is cheaper.
const DRAIN_BYTES: usize = 64 * 1024;
/// Longest time for each of both: a body that does not follow its head at once is not waited for.
const PATIENCE: Duration = Duration::from_millis(250);
/// Bytes of the payload that betray an echo.
const ECHO_BYTES: usize = 32;

/// The beginning of the body in printable characters; empty when there is none, or when it echoes `payload`,
/// which must not get into logs.
pub async fn excerpt(response: &mut Response, payload: &[u8], deadline: Instant) -> String {
    let deadline = deadline.min(Instant::now() + PATIENCE);
    let mut body = Vec::new();
    while body.len() < EXCERPT_BYTES
        && let Ok(Ok(Some(chunk))) = timeout_at(deadline, response.chunk()).await
    {
        body.extend_from_slice(&chunk[..chunk.len().min(EXCERPT_BYTES - body.len())]);
    }
    if echoes(&body, payload) { String::new() } else { printable(&body) }
}

/// Reads what is left, within bounds. Dropping a response that has not ended closes its connection.
pub async fn drain(mut response: Response, deadline: Instant) {
    let deadline = deadline.min(Instant::now() + PATIENCE);
    let mut read = 0;
    while read <= DRAIN_BYTES
        && let Ok(Ok(Some(chunk))) = timeout_at(deadline, response.chunk()).await
    {
        read += chunk.len();
    }
}

fn echoes(body: &[u8], payload: &[u8]) -> bool {
    let beginning = &payload[..payload.len().min(ECHO_BYTES)];
    !beginning.is_empty() && body.windows(beginning.len()).any(|window| window == beginning)
}

fn printable(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let words = text.split(|c: char| c.is_whitespace() || c.is_control()).filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join(" ").chars().take(EXCERPT_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_printable_characters_are_shown_and_not_many() {
        assert_eq!(printable(b" no\r\n\x1b[31m such\0 thing \t"), "no [31m such thing");
        assert_eq!(printable("é".repeat(300).as_bytes()).chars().count(), 200);
    }

    #[test]
    fn an_echo_of_the_payload_is_noticed() {
        assert!(echoes(b"cannot parse: {\"card\": 4111}", b"{\"card\": 4111}"));
        assert!(!echoes(b"cannot parse", b"{\"card\": 4111}"));
        assert!(!echoes(b"cannot parse", b""));
    }
}
