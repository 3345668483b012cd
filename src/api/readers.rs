//! Bounds on replies that contain messages: their number, their memory, and the time of a reader.
//!
//! A page is fetched in parts, as its reader takes it, over a connection of its own. So a page holds one part and a few
//! pieces of JSON in memory, whatever its size.

use std::{sync::Arc, time::Duration};

use axum::{
    body::{Body, Bytes},
    http::header,
    response::{IntoResponse, Response},
};
use futures::stream;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    time::{Instant, timeout_at},
};

use super::problem::Problem;
use crate::queue::QueueError;

/// Memory of all parts that readers hold, in KiB: 64 MiB, some 50 readers of routes with the default `max_payload`.
/// Each reader has, in addition, three pieces of at most 100 KiB and the buffers of its connection.
pub const MEMORY_KIB: u64 = 64 * 1024;

/// If several tokens can read, memory and fetches are divided into equal shares, at most this many: a smaller share of
/// memory would not hold two parts of a page.
const MAX_SHARES: usize = 4;

/// Maximum number of concurrent fetches: Redis blocks during one, and the replies of the others wait in its output
/// buffers.
const FETCHES: usize = 4;

/// Maximum time for a reader to take a reply: a page of 8 MiB over 1.2 Mbit/s.
const READ_TIME: Duration = Duration::from_mins(1);

/// Minimum size in bytes of a piece of JSON, except the last.
const PIECE_BYTES: usize = 16 * 1024;

/// The reader disconnected or is too slow, or Redis failed: the reply breaks off.
#[derive(Debug, thiserror::Error)]
#[error("the answer broke off")]
pub struct Broken;

/// The bounds of all readers together.
pub struct Readers(Share);

/// The bounds of the readers of one token.
#[derive(Debug)]
pub struct Share {
    memory_kib: u64,
    memory: Arc<Semaphore>,
    fetches: Semaphore,
}

impl Share {
    /// The share of one of `tokens` tokens that can read.
    pub fn new(tokens: usize) -> Self {
        Self::of(MEMORY_KIB, tokens)
    }

    fn of(memory_kib: u64, tokens: usize) -> Self {
        let shares = tokens.clamp(1, MAX_SHARES);
        let (memory_kib, fetches) = (memory_kib / shares as u64, FETCHES / shares);
        let permits = usize::try_from(memory_kib).expect("64 MiB");
        Self { memory_kib, memory: Arc::new(Semaphore::new(permits)), fetches: Semaphore::new(fetches) }
    }
}

/// The permit to hold messages, from the token's share and from the total.
pub type Permit = [OwnedSemaphorePermit; 2];

impl Default for Readers {
    fn default() -> Self {
        Self(Share::new(1))
    }
}

impl Readers {
    /// The permit to hold `bytes` of messages, until it is dropped.
    ///
    /// # Errors
    /// 503 when the memory is not free before `deadline`.
    pub async fn enter(&self, share: &Share, bytes: u64, deadline: Instant) -> Result<Permit, Problem> {
        let kib = u32::try_from(bytes.div_ceil(1024).min(share.memory_kib)).expect("at most 64 Ki");
        // The token's share first: waiting for it takes nothing from other tokens.
        let both = async {
            let own = Arc::clone(&share.memory).acquire_many_owned(kib).await.expect("never closed");
            let all = Arc::clone(&self.0.memory).acquire_many_owned(kib).await.expect("never closed");
            [own, all]
        };
        let refused = |_| Problem::unavailable("too many messages are being read at once; come back in a moment");
        timeout_at(deadline, both).await.map_err(refused)
    }

    /// Makes a call that fetches messages, as soon as a fetch permit is free.
    ///
    /// # Errors
    /// Those of the call.
    pub async fn fetch<T>(
        &self,
        share: &Share,
        call: impl Future<Output = Result<T, QueueError>>,
    ) -> Result<T, QueueError> {
        let _own_turn = share.fetches.acquire().await.expect("the semaphore is never closed");
        let _turn = self.0.fetches.acquire().await.expect("the semaphore is never closed");
        call.await
    }
}

enum Piece {
    Some(Bytes),
    /// Completes the reply.
    End,
}

/// Writes the JSON of one reply.
pub struct Writer {
    pieces: mpsc::Sender<Piece>,
    deadline: Instant,
    gathered: Vec<u8>,
    written: u64,
}

impl Writer {
    /// Waits until the reader has taken earlier pieces.
    pub async fn write(&mut self, json: &[u8]) -> Result<(), Broken> {
        self.written += json.len() as u64;
        self.gathered.extend_from_slice(json);
        if self.gathered.len() < PIECE_BYTES {
            return Ok(());
        }
        self.flush().await
    }

    /// Bytes written so far.
    pub fn written(&self) -> u64 {
        self.written
    }

    async fn flush(&mut self) -> Result<(), Broken> {
        let piece = std::mem::take(&mut self.gathered);
        self.send(Piece::Some(piece.into())).await
    }

    async fn send(&mut self, piece: Piece) -> Result<(), Broken> {
        timeout_at(self.deadline, self.pieces.send(piece)).await.map_err(|_| Broken)?.map_err(|_| Broken)
    }
}

/// 200 with the JSON that `produce` writes in its own task. The task ends when it is done, when the reader disconnects,
/// or at the reader's timeout. Must be called within a tokio runtime.
pub fn json<F>(produce: impl FnOnce(Writer) -> F) -> Response
where
    F: Future<Output = Result<Writer, Broken>> + Send + 'static,
{
    let (pieces, taken) = mpsc::channel(1);
    let deadline = Instant::now() + READ_TIME;
    let produced = produce(Writer { pieces, deadline, gathered: Vec::new(), written: 0 });
    tokio::spawn(async move {
        // Without this, only the next piece detects a disconnect.
        if let Ok(Ok(mut writer)) = timeout_at(deadline, produced).await
            && writer.flush().await.is_ok()
        {
            // An error means that the reader disconnected.
            let _ = writer.send(Piece::End).await;
        }
    });
    let pieces = stream::unfold(Some(taken), async |taken| {
        let mut taken: mpsc::Receiver<Piece> = taken?;
        match taken.recv().await {
            Some(Piece::Some(bytes)) => Some((Ok(bytes), Some(taken))),
            Some(Piece::End) => None,
            None => Some((Err(Broken), None)),
        }
    });
    ([(header::CONTENT_TYPE, "application/json")], Body::from_stream(pieces)).into_response()
}

/// 200 with complete JSON.
pub fn whole(pieces: impl Iterator<Item = Vec<u8>>) -> Response {
    let json: Vec<u8> = pieces.flatten().collect();
    ([(header::CONTENT_TYPE, "application/json")], json).into_response()
}

#[cfg(test)]
mod tests {
    use axum::body::to_bytes;
    use tokio::{sync::oneshot, time::advance};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn readers_beyond_the_memory_wait_and_are_refused_in_the_end() {
        let (readers, share) = (Readers(Share::of(4, 1)), Share::of(4, 1));
        let first = readers.enter(&share, 3 * 1024, Instant::now()).await.expect("there is room");
        let began = Instant::now();
        let second = readers.enter(&share, 1025, began + Duration::from_secs(1)).await;
        let Err(refused) = second else { panic!("there is none") };
        assert_eq!(began.elapsed().as_secs(), 1);
        assert_eq!(refused.into_response().headers()[header::RETRY_AFTER], "1");
        drop(first);
        assert!(readers.enter(&share, 4 * 1024, Instant::now()).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_token_among_others_holds_half_and_fetches_two_parts_at_once() {
        let readers = Readers(Share::of(4, 1));
        let [greedy, other] = [Share::of(4, 2), Share::of(4, 2)];
        let _held = readers.enter(&greedy, 9 * 1024, Instant::now()).await.expect("cut to its share");
        assert!(readers.enter(&greedy, 1, Instant::now()).await.is_err());
        assert!(readers.enter(&other, 2 * 1024, Instant::now()).await.is_ok());

        let for_ever = || readers.fetch(&greedy, std::future::pending::<Result<(), QueueError>>());
        let stuck = async { tokio::join!(for_ever(), for_ever(), for_ever()) };
        let quick = readers.fetch(&other, async { Ok(()) });
        tokio::select! {
            biased;
            _ = stuck => unreachable!(),
            done = quick => done.expect("it has its turn"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_takes_nothing_holds_nothing_when_its_time_is_over() {
        let (held, dropped) = oneshot::channel::<()>();
        let answer = json(|mut writer| async move {
            let _held = held;
            loop {
                writer.write(&[b' '; PIECE_BYTES]).await?;
            }
        });
        let began = Instant::now();
        assert!(dropped.await.is_err(), "it was ended");
        assert_eq!(began.elapsed(), READ_TIME);
        advance(Duration::from_secs(1)).await;
        assert!(to_bytes(answer.into_body(), usize::MAX).await.is_err(), "what is left does not pass for the whole");
    }

    #[tokio::test]
    async fn what_was_written_arrives_and_an_answer_that_failed_breaks_off() {
        let text = "x".repeat(3 * PIECE_BYTES + 1);
        let sent = text.clone();
        let answer = json(|mut writer| async move {
            writer.write(sent.as_bytes()).await?;
            writer.write(b"y").await?;
            Ok(writer)
        });
        assert_eq!(to_bytes(answer.into_body(), usize::MAX).await.unwrap(), format!("{text}y"));
        let failed = json(|mut writer| async move {
            writer.write(b"[").await?;
            Err(Broken)
        });
        assert!(to_bytes(failed.into_body(), usize::MAX).await.is_err());
    }
}
