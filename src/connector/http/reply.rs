//! What is done with a reply's body: it is read, within bounds, so that its connection can be used again, and
//! nothing of it is kept. An endpoint may echo the payload, a header or a credential, in any encoding: whatever a
//! body says would end up in logs and dead letters.

use std::time::Duration;

use reqwest::Response;
use tokio::time::{Instant, timeout_at};

/// Bytes that are read to the end of a body; beyond, a new connection is cheaper.
const DRAIN_BYTES: usize = 64 * 1024;
/// Longest time for it: a body that does not follow its head at once is not waited for.
const PATIENCE: Duration = Duration::from_millis(250);

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
