//! Reads a request body within bounds: size, time, and the memory of all bodies together.

use std::sync::Arc;

use axum::{body::HttpBody, extract::Request, http::StatusCode};
use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout_at,
};

use super::{deadline::Deadline, problem::Problem};

/// Memory of all request bodies in progress, in KiB: 128 MiB. It holds eight of the largest bodies, or thousands of usual
/// ones. Further bodies wait, up to the request timeout.
pub const BODY_MEMORY_KIB: usize = 128 * 1024;

/// The memory budget of request bodies.
pub struct BodyMemory {
    kib: Arc<Semaphore>,
    /// The holder continues without budget. So half-read bodies that fill the budget do not deadlock: the holder
    /// completes and frees memory, then the next one holds it.
    overdraft: Arc<Semaphore>,
}

impl Default for BodyMemory {
    fn default() -> Self {
        Self::of(BODY_MEMORY_KIB)
    }
}

impl BodyMemory {
    fn of(kib: usize) -> Self {
        Self { kib: Arc::new(Semaphore::new(kib)), overdraft: Arc::new(Semaphore::new(1)) }
    }
}

/// The share of one body in the budget. It grows with the received bytes, so a large `Content-Length` alone takes no
/// memory from other bodies.
#[derive(Default)]
struct BodyShare {
    permits: Option<OwnedSemaphorePermit>,
    overdraft: Option<OwnedSemaphorePermit>,
}

impl BodyShare {
    /// Waits until the share covers `bytes`.
    async fn cover(&mut self, memory: &BodyMemory, bytes: usize) {
        let held = self.permits.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let missing = bytes.div_ceil(1024).saturating_sub(held);
        if missing == 0 || self.overdraft.is_some() {
            return;
        }
        let missing = u32::try_from(missing).expect("a body is far below 2^32 KiB");
        tokio::select! {
            biased;
            permits = Arc::clone(&memory.kib).acquire_many_owned(missing) => {
                let permits = permits.expect("the semaphore is never closed");
                match &mut self.permits {
                    Some(held) => held.merge(permits),
                    None => self.permits = Some(permits),
                }
            }
            overdraft = Arc::clone(&memory.overdraft).acquire_owned() => {
                self.overdraft = Some(overdraft.expect("the semaphore is never closed"));
            }
        }
    }
}

/// A body and its share of the budget, which is freed with it.
pub struct ReadBody {
    pub bytes: Bytes,
    _share: BodyShare,
}

/// Reads at most `limit` bytes.
///
/// # Errors
/// 413 above `limit`, 408 when the body is incomplete at the request timeout, 400 when it breaks off, 503 when no
/// memory becomes free in time. Nothing was changed in all of these cases.
pub async fn read(memory: &BodyMemory, request: Request, limit: usize) -> Result<ReadBody, Problem> {
    let Deadline(deadline) = *request.extensions().get().expect("set by the middleware around every endpoint");
    // The `Content-Length`, or 0.
    let announced = request.body().size_hint().lower();
    let mut stream = request.into_body().into_data_stream();
    let refused = || Problem::too_large(format!("the body is larger than {limit} bytes"));
    if announced > limit as u64 {
        return Err(refused());
    }
    let late = |_| {
        let text = "the body did not arrive within the request timeout; nothing was changed";
        Problem::new(StatusCode::REQUEST_TIMEOUT, "body-timeout", text)
    };
    let mut share = BodyShare::default();
    let mut bytes = BytesMut::new();
    while let Some(chunk) = timeout_at(deadline, stream.next()).await.map_err(late)? {
        let chunk = chunk.map_err(|_| Problem::bad_request("the body broke off, or its framing is wrong"))?;
        if bytes.len() + chunk.len() > limit {
            return Err(refused());
        }
        let covered = timeout_at(deadline, share.cover(memory, bytes.len() + chunk.len())).await;
        covered.map_err(|_| Problem::unavailable("too many large requests at once; nothing was changed"))?;
        bytes.extend_from_slice(&chunk);
    }
    Ok(ReadBody { bytes: bytes.freeze(), _share: share })
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn a_share_is_what_came_and_returns_with_its_body() {
        let memory = BodyMemory::of(4);
        let mut share = BodyShare::default();
        for (bytes, left) in [(1, 3), (1024, 3), (1025, 2), (4096, 0)] {
            share.cover(&memory, bytes).await;
            assert_eq!(memory.kib.available_permits(), left, "{bytes} bytes");
        }
        drop(share);
        assert_eq!(memory.kib.available_permits(), 4);
    }

    #[tokio::test]
    async fn half_read_bodies_that_fill_the_memory_end_one_after_the_other() {
        let memory = BodyMemory::of(4);
        let mut shares = [BodyShare::default(), BodyShare::default(), BodyShare::default()];
        shares[0].cover(&memory, 2048).await;
        shares[1].cover(&memory, 2048).await;
        let [first, second, third] = shares.each_mut();
        assert!(first.cover(&memory, 4096).now_or_never().is_some(), "one may go on");
        assert!(first.cover(&memory, 8192).now_or_never().is_some(), "to its end");
        assert!(second.cover(&memory, 4096).now_or_never().is_none(), "the others wait");
        assert!(third.cover(&memory, 1).now_or_never().is_none());
        shares[0] = BodyShare::default();
        let [_, second, third] = shares.each_mut();
        assert!(second.cover(&memory, 4096).now_or_never().is_some(), "until it is done");
        assert!(third.cover(&memory, 1).now_or_never().is_some());
    }
}
