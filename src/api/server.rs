//! Serves connections: their timeouts and their end. `connections` bounds their number.

use std::{convert::Infallible, pin::pin, sync::Arc, time::Duration};

use axum::{
    Router,
    body::Body,
    http::{HeaderValue, header},
    response::{IntoResponse, Response},
};
use http_body_util::BodyExt;
use hyper::{
    body::Incoming,
    server::conn::http1,
    service::{Service, service_fn},
};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{
    sync::Semaphore,
    task::JoinSet,
    time::{Instant, sleep, sleep_until, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    auth::is_probe,
    connections::{ConnectionLimits, Peer, Slot, Slots},
    lingering::{Lingering, Unread},
    listener::{Accepted, Listener},
    problem::Problem,
    spare::SpareFiles,
};

/// Time for the head of a request, including the idle time before it: longer than half a scrape interval, short enough
/// to free the slots of idle connections.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);

/// Head timeout on a reserved slot, and while less than a quarter of the slots is free, so that idle connections close
/// quickly.
const CROWDED_HEAD_TIMEOUT: Duration = Duration::from_secs(2);

/// Minimum age at which a connection is closed for another one: by then its first request has been sent or read. While
/// all connections are younger, new ones wait in the queue of the kernel.
const FIRST_REQUEST: Duration = Duration::from_millis(100);

/// Time for a closing connection to take the rest of a reply.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(1);

/// Maximum size of the head of a request in bytes: the largest metadata of a message as `/raw` headers, plus the usual
/// headers.
const MAX_HEAD_BYTES: usize = 96 * 1024;

/// Pause after a failed accept, usually for lack of open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Files that each listener keeps open. They are closed to accept a probe when the process cannot open more files.
const SPARE_FILES: usize = 2;

/// Serves until `shutdown` is ready, then accepts nothing, closes idle connections and completes the requests in
/// progress. The caller bounds that time by dropping the future, which closes all connections.
pub async fn serve(
    listener: impl Into<Listener>,
    router: Router,
    limits: ConnectionLimits,
    shutdown: impl Future<Output = ()>,
) {
    let listener = listener.into();
    let slots = Slots::new(limits);
    // Bounds closing connections too.
    let open = Arc::new(Semaphore::new(slots.most()));
    let stop = CancellationToken::new();
    let mut connections = JoinSet::new();
    let mut spare = SpareFiles::new(SPARE_FILES);
    let service = TowerToHyperService::new(router);
    tokio::pin!(shutdown);
    loop {
        let accepted = async {
            let permit = Arc::clone(&open).acquire_owned().await.expect("the semaphore is never closed");
            (accept(&listener, &slots, &mut spare).await, permit)
        };
        let ((stream, place), permit) = tokio::select! {
            () = &mut shutdown => break,
            accepted = accepted => accepted,
            Some(_) = connections.join_next() => continue,
        };
        let crowded = place.reserved || slots.is_crowded();
        let head_timeout = if crowded { CROWDED_HEAD_TIMEOUT } else { HEAD_TIMEOUT };
        let (service, stop) = (service.clone(), stop.clone());
        connections.spawn(async move {
            let _permit = permit;
            talk(stream, &place, service, head_timeout, &stop).await;
        });
    }
    drop(listener);
    stop.cancel();
    while connections.join_next().await.is_some() {}
}

/// Cancel-safe. A connection without a slot is closed. A connection that needed a spare file serves a probe only.
async fn accept(listener: &Listener, slots: &Arc<Slots>, spare: &mut SpareFiles) -> (Accepted, Slot) {
    loop {
        match listener.accept().await {
            Ok((accepted, peer)) => {
                if !spare.fill() {
                    return (accepted, slots.enter_reserved(peer));
                }
                if let Some(place) = slots.enter(peer) {
                    return (accepted, place);
                }
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                if !spare.release() {
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
}

/// Serves one connection to its end.
async fn talk(
    accepted: Accepted,
    place: &Slot,
    service: TowerToHyperService<Router>,
    head_timeout: Duration,
    stop: &CancellationToken,
) {
    let since = Instant::now();
    let mut evicted = pin!(async {
        place.evicted.cancelled().await;
        sleep_until(since + FIRST_REQUEST).await;
    });
    let opened = tokio::select! {
        opened = timeout(head_timeout, accepted.open()) => opened,
        () = evicted.as_mut() => return,
        () = stop.cancelled() => return,
    };
    let stream = match opened {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => return tracing::debug!(%error, "no TLS"),
        Err(_) => return,
    };
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).max_buf_size(MAX_HEAD_BYTES).header_read_timeout(head_timeout);
    let unread = Unread::default();
    let answer = service_fn(|request: hyper::Request<Incoming>| {
        let busy = place.activity.begin();
        let mut request = request.map(|body| unread.watch(body));
        if let Some(address) = place.peer {
            request.extensions_mut().insert(Peer(address));
        }
        let service = service.clone();
        async move {
            let mut response = if place.reserved {
                on_reserved_place(&service, request).await?
            } else {
                service.call(request).await?
            };
            if place.ends_with_reply() {
                response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            // The body owns `busy`: the connection is busy until the last piece was sent.
            let end_with = |body: Body| {
                body.map_err(move |error| {
                    let _ = &busy;
                    error
                })
            };
            Ok::<_, Infallible>(response.map(end_with))
        }
    });
    let mut connection = pin!(http.serve_connection(TokioIo::new(Lingering::new(stream, unread.clone())), answer));
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
        () = evicted => {
            connection.as_mut().graceful_shutdown();
            match timeout(LEAVE_TIMEOUT, connection.as_mut()).await {
                Ok(ended) => ended,
                // A request arrived just before the eviction; it has its own timeouts.
                Err(_) if place.activity.is_busy() => connection.await,
                Err(_) => Ok(()),
            }
        }
    };
    // Disconnects and protocol errors of peers are not logged.
    if let Err(error) = ended {
        tracing::debug!(%error, "connection ended");
    }
}

/// Serves one request, which must be a probe.
async fn on_reserved_place(
    service: &TowerToHyperService<Router>,
    request: hyper::Request<Body>,
) -> Result<Response, Infallible> {
    if is_probe(request.uri().path()) {
        return service.call(request).await;
    }
    let refused = Problem::unavailable("too many connections, in all or from this address; nothing was changed");
    Ok(refused.into_response())
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use axum::routing::get;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::{TcpListener, TcpStream},
        sync::Notify,
    };

    use super::*;

    async fn start(limits: ConnectionLimits) -> (SocketAddr, Arc<Notify>) {
        start_on(TcpListener::bind(("127.0.0.1", 0)).await.unwrap(), limits)
    }

    /// Serves `/` at once, `/slow` when notified, and probes.
    fn start_on(listener: TcpListener, limits: ConnectionLimits) -> (SocketAddr, Arc<Notify>) {
        let address = listener.local_addr().unwrap();
        let notified = Arc::new(Notify::new());
        let slow = notified.clone();
        let router = Router::new()
            .route("/", get(async || "hello"))
            .route("/livez", get(async || "alive"))
            .route("/slow", get(async move || slow.notified().await));
        // The task ends with the runtime of the test.
        tokio::spawn(serve(listener, router, limits, std::future::pending()));
        (address, notified)
    }

    async fn ask(address: SocketAddr, path: &str) -> TcpStream {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: h\r\n\r\n").as_bytes()).await.unwrap();
        stream
    }

    async fn reply(stream: &mut TcpStream) -> String {
        let mut reply = [0; 1024];
        let length = timeout(HEAD_TIMEOUT / 2, stream.read(&mut reply)).await.expect("in time").unwrap();
        String::from_utf8_lossy(&reply[..length]).into_owned()
    }

    #[tokio::test]
    async fn silent_connections_on_every_place_do_not_keep_others_out() {
        let (address, _) = start(ConnectionLimits { connections: 8, per_address: 8, reserved: 1 }).await;
        let mut silent = Vec::new();
        for _ in 0..8 {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
        let reply = reply(&mut ask(address, "/").await).await;
        assert!(reply.ends_with("hello"), "{reply}");
    }

    #[tokio::test]
    async fn more_requests_than_places_that_arrive_at_once_are_answered() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut arrived = Vec::new();
        for _ in 0..16 {
            arrived.push(ask(address, "/").await);
        }
        let _serving = start_on(listener, ConnectionLimits { connections: 2, per_address: 2, reserved: 1 });
        for stream in &mut arrived {
            let reply = reply(stream).await;
            assert!(reply.ends_with("hello"), "{reply}");
        }
    }

    #[tokio::test]
    async fn a_connection_that_was_answered_makes_room_at_once_and_one_that_waits_for_its_answer_stays() {
        let (address, notified) = start(ConnectionLimits { connections: 2, per_address: 2, reserved: 1 }).await;
        let mut slow = ask(address, "/slow").await;
        let mut idle = ask(address, "/").await;
        assert!(reply(&mut idle).await.ends_with("hello"));
        assert!(reply(&mut ask(address, "/").await).await.ends_with("hello"));
        assert_eq!(reply(&mut idle).await, "", "the idle one is closed");
        notified.notify_one();
        assert!(reply(&mut slow).await.starts_with("HTTP/1.1 200"), "the busy one has its answer");
    }

    #[tokio::test]
    async fn with_all_places_busy_probes_are_answered_and_others_told_so() {
        let (address, notified) = start(ConnectionLimits { connections: 2, per_address: 2, reserved: 2 }).await;
        let mut busy = [ask(address, "/slow").await, ask(address, "/slow").await];
        let mut silent = Vec::new();
        for _ in 0..5 {
            silent.push(TcpStream::connect(address).await.unwrap());
            let answer = reply(&mut ask(address, "/livez").await).await;
            assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("connection: close"), "{answer}");
        }
        let refused = reply(&mut ask(address, "/").await).await;
        assert!(refused.starts_with("HTTP/1.1 503") && refused.contains("retry-after: 1"), "{refused}");
        notified.notify_waiters();
        for busy in &mut busy {
            assert!(reply(busy).await.starts_with("HTTP/1.1 200"));
        }
    }
}
