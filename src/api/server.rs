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

/// Time for a peer to take what was sent to it: a reader that stands still does not hold its answer for ever.
const UNREAD_TIMEOUT: Duration = Duration::from_secs(30);

/// Largest head of a request in bytes: the largest metadata of a message as `/raw` headers, plus the usual ones.
const MAX_HEAD_BYTES: usize = 96 * 1024;

/// Pause after a failed accept, which mostly means that files have run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves until `shutdown` is ready, then accepts nothing more, closes idle connections and finishes the requests
/// under way. The caller bounds that time by dropping the future: connections end with it.
pub async fn serve(listener: TcpListener, router: Router, shutdown: impl Future<Output = ()>) {
    let places = Arc::new(Semaphore::new(max_connections()));
    let graceful = GracefulShutdown::new();
    let mut connections = JoinSet::new();
    let service = TowerToHyperService::new(router);
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT).max_buf_size(MAX_HEAD_BYTES);
    tokio::pin!(shutdown);
    loop {
        let (place, stream) = tokio::select! {
            () = &mut shutdown => break,
            accepted = accept(&listener, &places) => accepted,
            Some(_) = connections.join_next() => continue,
        };
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
    use super::*;

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
