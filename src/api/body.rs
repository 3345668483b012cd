//! Reading a request body within its bounds: size, time, and the memory that all bodies take together.

use std::sync::Arc;

use axum::{
    body::BodyDataStream,
    extract::Request,
    http::{StatusCode, header},
};
use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, timeout_at},
};

use super::{Api, deadline::Deadline, problem::Problem};

/// Memory of all request bodies under way, in KiB: 256 MiB. Sixteen of the largest, or thousands of usual ones;
/// the others wait for their turn, up to the request timeout.
const BODY_MEMORY_KIB: usize = 256 * 1024;

/// How much of a refused body is read and thrown away, in bytes, so that an honest client gets to read its 413
/// instead of a reset connection. An endless one is cut.
const MAX_DISCARDED_BYTES: usize = 1024 * 1024;

/// The budget that bodies are read under.
pub struct BodyMemory(Arc<Semaphore>);

impl Default for BodyMemory {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(BODY_MEMORY_KIB)))
    }
}

/// A body, and its share of the budget for as long as it is held.
pub struct ReadBody {
    pub bytes: Bytes,
    _share: OwnedSemaphorePermit,
}

/// At most `limit` bytes.
///
/// # Errors
/// 413 above `limit`, 408 when it is not there within the request timeout, 400 when it breaks off, 503 when no
/// memory comes free in time. In none of these cases has anything been done.
pub async fn read(api: &Api, request: Request, limit: usize) -> Result<ReadBody, Problem> {
    let Deadline(deadline) = *request.extensions().get().expect("set by the middleware around every endpoint");
    let announced = request.headers().get(header::CONTENT_LENGTH);
    let announced = announced.and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
    let mut stream = request.into_body().into_data_stream();
    let expected = announced.unwrap_or(limit);
    if expected > limit {
        return Err(refuse(stream, deadline, limit).await);
    }
    let share = share(api, expected, deadline).await?;
    // Grows as bytes come: announcing much and sending nothing costs no memory.
    let mut bytes = BytesMut::new();
    loop {
        match timeout_at(deadline, stream.next()).await {
            Ok(Some(Ok(chunk))) if bytes.len() + chunk.len() > limit => {
                return Err(refuse(stream, deadline, limit).await);
            }
            Ok(Some(Ok(chunk))) => bytes.extend_from_slice(&chunk),
            Ok(Some(Err(_))) => return Err(Problem::bad_request("the body broke off, or its framing is wrong")),
            Ok(None) => return Ok(ReadBody { bytes: bytes.freeze(), _share: share }),
            Err(_) => {
                let text = "the body did not arrive within the request timeout; nothing was changed";
                return Err(Problem::new(StatusCode::REQUEST_TIMEOUT, "body-timeout", text));
            }
        }
    }
}

async fn share(api: &Api, bytes: usize, deadline: Instant) -> Result<OwnedSemaphorePermit, Problem> {
    let kib = u32::try_from(bytes.div_ceil(1024).min(BODY_MEMORY_KIB)).expect("far below 2^32");
    match timeout_at(deadline, Arc::clone(&api.body_memory.0).acquire_many_owned(kib)).await {
        Ok(share) => Ok(share.expect("the semaphore is never closed")),
        Err(_) => Err(Problem::unavailable("too many large requests at once; nothing was changed")),
    }
}

async fn refuse(mut stream: BodyDataStream, deadline: Instant, limit: usize) -> Problem {
    let mut discarded = 0;
    while discarded < MAX_DISCARDED_BYTES {
        match timeout_at(deadline, stream.next()).await {
            Ok(Some(Ok(chunk))) => discarded += chunk.len(),
            _ => break,
        }
    }
    Problem::too_large(format!("the body is larger than {limit} bytes"))
}
