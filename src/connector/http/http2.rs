//! An HTTP/2 connection that the workers of a sink share.
//!
//! A request waits for one of the streams that the server allows before it is given to the library. So requests do not
//! queue up in the library.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use h2::{
    Ping, PingPong, Reason,
    client::{Builder, Connection, SendRequest},
};
use http::{Request, Response};
use parking_lot::Mutex;
use tokio::{
    sync::Notify,
    time::{sleep, timeout},
};

use super::{
    body::ReplyBody,
    errors::{LostReply, SendError},
    frames::{FrameObserver, Frames},
    permits::ConnectionPermit,
    wire::{Stream, Wire},
};

/// Interval of pings while requests are in flight. They detect a peer that was lost.
const PING_INTERVAL: Duration = Duration::from_secs(10);
const PING_TIMEOUT: Duration = Duration::from_secs(5);
/// Bytes of a reply that are buffered for each request: as many as `reply` reads.
const STREAM_WINDOW: u32 = 64 * 1024;
/// Maximum bytes in the head of a reply, with 32 more for each header. Over HTTP/1 hyper allows about 400 KiB.
const MAX_HEAD: u32 = 128 * 1024;
/// Maximum requests at once, if the server allows more: common servers allow 100 to 256.
pub const MAX_STREAMS: usize = 256;

/// A handle of the connection. The connection ends with its last handle.
#[derive(Clone)]
pub struct Shared {
    sender: SendRequest<Bytes>,
    state: Arc<State>,
    /// The stream of the last request of this handle.
    latest: Option<u32>,
}

struct State {
    frames: Arc<Frames>,
    streams: Mutex<usize>,
    /// Streams that the server allows at once. It can allow none for a while.
    allowed: AtomicUsize,
    /// Notified when a stream ends, and when `allowed` changes.
    freed: Notify,
    answered: AtomicBool,
    ended: AtomicBool,
    /// The server breaks HTTP/2, or asks for HTTP/1.1.
    unusable: AtomicBool,
}

impl State {
    /// Notes how many streams the server allows at once.
    fn allow(&self, streams: usize) {
        if self.allowed.swap(streams, Ordering::AcqRel) != streams {
            self.freed.notify_waiters();
        }
    }
}

/// A stream in use, until it is dropped.
struct StreamSlot(Arc<State>);

impl Drop for StreamSlot {
    fn drop(&mut self) {
        *self.0.streams.lock() -= 1;
        self.0.freed.notify_one();
    }
}

/// A request with an expected reply, until it is dropped.
struct Expected<'a> {
    frames: &'a Frames,
    stream: u32,
}

impl Drop for Expected<'_> {
    fn drop(&mut self) {
        self.frames.forget(self.stream);
    }
}

impl Shared {
    /// Returns once the server has sent its settings.
    ///
    /// # Errors
    /// Why the endpoint cannot be used over HTTP/2.
    pub async fn open(stream: Box<dyn Stream>, permit: ConnectionPermit) -> Result<Self, h2::Error> {
        let (observer, frames) = FrameObserver::new();
        let mut builder = Builder::new();
        builder.enable_push(false).initial_window_size(STREAM_WINDOW).max_header_list_size(MAX_HEAD);
        // So that `Frames` can read the status of a reply without the replies before it.
        builder.header_table_size(0);
        let (sender, mut connection) = builder.handshake(Wire::new(stream, observer)).await?;
        let state = Arc::new(State {
            frames,
            streams: Mutex::new(0),
            allowed: AtomicUsize::new(connection.max_concurrent_send_streams()),
            freed: Notify::new(),
            answered: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            unusable: AtomicBool::new(false),
        });
        let pings = connection.ping_pong().expect("the first call");
        let (driven, begun) = (Arc::clone(&state), Arc::clone(&state));
        let mut driving = tokio::spawn(async move {
            let result = drive(connection, pings, &driven).await;
            driven.ended.store(true, Ordering::Release);
            driven.freed.notify_waiters();
            drop(permit);
            result
        });
        tokio::select! {
            () = begun.frames.settings() => Ok(Self { sender, state, latest: None }),
            ended = &mut driving => Err(ended.ok().and_then(Result::err).unwrap_or_else(|| Reason::NO_ERROR.into())),
        }
    }

    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.state, &other.state)
    }

    /// Whether the connection accepts no more requests.
    pub fn is_ending(&self) -> bool {
        self.state.ended.load(Ordering::Acquire) || self.state.frames.is_ending()
    }

    /// Whether the next connection should speak HTTP/1.1.
    pub fn is_unusable(&self) -> bool {
        self.state.unusable.load(Ordering::Relaxed)
    }

    /// Whether a request was answered over this connection.
    pub fn has_answered(&self) -> bool {
        self.state.answered.load(Ordering::Relaxed)
    }

    /// Workers of the connection: one for each request that the server allows at once. If it allows none, one worker
    /// waits for a stream.
    pub fn workers(&self) -> usize {
        self.limit().max(1)
    }

    fn limit(&self) -> usize {
        self.state.allowed.load(Ordering::Acquire).min(MAX_STREAMS)
    }

    /// Whether the server allows no stream at present.
    pub fn allows_none(&self) -> bool {
        self.limit() == 0
    }

    /// Whether nothing of the last request was sent, or the server has not processed it.
    pub fn is_unsent(&self) -> bool {
        self.latest.is_none_or(|stream| self.state.frames.is_unprocessed(stream))
    }

    /// Waits for a stream. `None` when the connection accepts no more requests.
    async fn slot(&mut self) -> Option<StreamSlot> {
        // An earlier request of this handle can still wait in the library.
        poll_fn(|context| self.sender.poll_ready(context)).await.ok()?;
        loop {
            let freed = self.state.freed.notified();
            tokio::pin!(freed);
            freed.as_mut().enable();
            if self.is_ending() {
                return None;
            }
            {
                let mut streams = self.state.streams.lock();
                if *streams < self.limit() {
                    *streams += 1;
                    break;
                }
            }
            freed.await;
        }
        Some(StreamSlot(Arc::clone(&self.state)))
    }

    /// Sends a request over a stream that becomes free within `max_wait`, and returns the head of the reply.
    pub async fn send(
        &mut self,
        request: Request<Bytes>,
        max_wait: Duration,
    ) -> Result<Response<ReplyBody>, SendError> {
        self.latest = None;
        let slot = match timeout(max_wait, self.slot()).await {
            Ok(Some(slot)) => slot,
            Ok(None) => return Err(SendError::NotSent("the connection ends".into())),
            Err(_) => return Err(SendError::NoStream),
        };
        let (head, body) = request.into_parts();
        // The end of a request is a frame of its own, even if the body is empty. If the server takes back the stream
        // before the request is written, and the request is given up, the library still sends the head, with a reset.
        let sent = self.sender.send_request(Request::from_parts(head, ()), false);
        // The headers were checked before. So an error is about the state of the connection, not about the message.
        let (reply, mut out) = sent.map_err(|error| SendError::NotSent(error.to_string()))?;
        let stream = out.stream_id().as_u32();
        self.latest = Some(stream);
        let frames = Arc::clone(&self.state.frames);
        frames.expect(stream);
        let expected = Expected { frames: &frames, stream };
        // The reply has the same error.
        let _ = out.send_data(body, true);
        match reply.await {
            Ok(response) => {
                self.state.answered.store(true, Ordering::Relaxed);
                Ok(response.map(|body| ReplyBody::Http2 { body, _slot: Box::new(slot) }))
            }
            Err(error) => Err(self.failed(&error, &expected)),
        }
    }

    fn failed(&self, error: &h2::Error, Expected { frames, stream }: &Expected<'_>) -> SendError {
        let needs_http1 = error.is_remote() && error.reason() == Some(Reason::HTTP_1_1_REQUIRED);
        let status = frames.forget(*stream);
        // After an invalid reply the library ends the stream, or the connection with all its requests.
        if needs_http1 || error.is_library() && (error.is_go_away() || status.is_none()) {
            self.state.unusable.store(true, Ordering::Relaxed);
        }
        if let Some(status) = status {
            return SendError::Unreadable(status);
        }
        let is_refused = error.is_reset() && error.is_remote() && error.reason() == Some(Reason::REFUSED_STREAM);
        if needs_http1 || is_refused || frames.is_unprocessed(*stream) {
            return SendError::NotSent(error.to_string());
        }
        SendError::Lost(LostReply {
            text: error.to_string(),
            is_invalid: error.is_library(),
            is_of_connection: !error.is_reset(),
        })
    }
}

/// Drives the connection. Returns when it is closed, when its last handle is dropped, or when the peer does not answer.
async fn drive(
    mut connection: Connection<Wire<FrameObserver>, Bytes>,
    mut pings: PingPong,
    state: &State,
) -> Result<(), h2::Error> {
    let lost = async {
        loop {
            sleep(PING_INTERVAL).await;
            let is_idle = *state.streams.lock() == 0;
            if !is_idle && !matches!(timeout(PING_TIMEOUT, pings.ping(Ping::opaque())).await, Ok(Ok(_))) {
                return;
            }
        }
    };
    let driven = poll_fn(|context| {
        let result = Pin::new(&mut connection).poll(context);
        state.allow(connection.max_concurrent_send_streams());
        result
    });
    tokio::select! {
        result = driven => result,
        () = lost => Ok(()),
    }
}
