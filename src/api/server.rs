//! Connections: how many, how long they may be silent, and how they end.

use std::{sync::Arc, time::Duration};

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    server::graceful::GracefulShutdown,
    service::TowerToHyperService,
};
use socket2::SockRef;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    task::JoinSet,
    time::sleep,
};

/// Most connections at once, where the process may open files enough: some 16 KiB each while idle. Further ones
/// wait in the kernel's queue until one ends.
const MAX_CONNECTIONS: usize = 4096;

/// Files that a process may open when its limit cannot be read: the usual one.
const USUAL_OPEN_FILES: usize = 1024;

/// Time for the head of a request, the wait for it on an idle connection included: longer than a scrape interval's
/// half, short enough that silent connections make room.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);

/// The same while less than a quarter of the places is free: silent connections then come and go quickly, and
/// whoever has something to say gets a turn.
const CROWDED_HEAD_TIMEOUT: Duration = Duration::from_secs(2);

/// Time for a peer to take what was sent to it: a reader that stands still does not hold its answer for ever.
const UNREAD_TIMEOUT: Duration = Duration::from_secs(30);

/// Largest head of a request in bytes: the largest metadata of a message as `/raw` headers, plus the usual ones.
const MAX_HEAD_BYTES: usize = 96 * 1024;

/// Pause after a failed accept, which mostly means that files have run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves until `shutdown` is ready, then accepts nothing more, closes idle connections and finishes the requests
/// under way. The caller bounds that time by dropping the future: connections end with it.
pub async fn serve(listener: TcpListener, router: Router, shutdown: impl Future<Output = ()>) {
    serve_within(max_connections(), listener, router, shutdown).await;
}

async fn serve_within(
    max_connections: usize,
    listener: TcpListener,
    router: Router,
    shutdown: impl Future<Output = ()>,
) {
    let places = Arc::new(Semaphore::new(max_connections));
    let graceful = GracefulShutdown::new();
    let mut connections = JoinSet::new();
    let service = TowerToHyperService::new(router);
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).max_buf_size(MAX_HEAD_BYTES);
    tokio::pin!(shutdown);
    loop {
        let (place, stream) = tokio::select! {
            () = &mut shutdown => break,
            accepted = accept(&listener, &places) => accepted,
            Some(_) = connections.join_next() => continue,
        };
        let crowded = places.available_permits() < max_connections / 4;
        http.header_read_timeout(if crowded { CROWDED_HEAD_TIMEOUT } else { HEAD_TIMEOUT });
        let connection = graceful.watch(http.serve_connection(TokioIo::new(stream), service.clone()));
        connections.spawn(async move {
            let _place = place;
            // A peer that went away or does not speak HTTP is no event here.
            if let Err(error) = connection.await {
                tracing::debug!(%error, "connection ended");
            }
        });
    }
    drop(listener);
    graceful.shutdown().await;
    while connections.join_next().await.is_some() {}
}

/// Cancel-safe.
async fn accept(listener: &TcpListener, places: &Arc<Semaphore>) -> (OwnedSemaphorePermit, TcpStream) {
    loop {
        let place = Arc::clone(places).acquire_owned().await.expect("the semaphore is never closed");
        match listener.accept().await {
            Ok((stream, _)) => {
                // A connection that is reset already refuses both; whoever reads from it learns that.
                let _ = stream.set_nodelay(true);
                let _ = SockRef::from(&stream).set_tcp_user_timeout(Some(UNREAD_TIMEOUT));
                return (place, stream);
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Half of the files that this process may open: the other half is for Redis, the sinks and their surprises.
fn max_connections() -> usize {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    (open_files(&limits).unwrap_or(USUAL_OPEN_FILES) / 2).clamp(1, MAX_CONNECTIONS)
}

/// The soft limit in the text of `/proc/self/limits`; `unlimited` reads as unknown.
fn open_files(limits: &str) -> Option<usize> {
    limits.lines().find_map(|line| line.strip_prefix("Max open files")?.split_whitespace().next()?.parse().ok())
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        time::timeout,
    };

    use super::*;

    #[tokio::test]
    async fn silent_connections_on_every_place_do_not_keep_others_out() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Router::new().route("/", get(async || "hello"));
        let serving = tokio::spawn(serve_within(8, listener, router, std::future::pending()));
        let mut silent = Vec::new();
        for _ in 0..8 {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
        let mut late = TcpStream::connect(address).await.unwrap();
        late.write_all(b"GET / HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").await.unwrap();
        let mut reply = String::new();
        timeout(HEAD_TIMEOUT / 2, late.read_to_string(&mut reply)).await.expect("a place came free").unwrap();
        assert!(reply.ends_with("hello"), "{reply}");
        serving.abort();
    }

    #[test]
    fn the_limit_of_open_files_is_the_soft_one() {
        let limits = "Limit                     Soft Limit           Hard Limit           Units\n\
                      Max processes             15000                15000                processes\n\
                      Max open files            1024                 524288               files\n";
        assert_eq!(open_files(limits), Some(1024));
        assert_eq!(open_files(""), None);
        assert!(open_files(&std::fs::read_to_string("/proc/self/limits").unwrap()).is_some());
    }
}
