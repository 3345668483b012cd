//! Connections to servers of the model.

mod cluster;
mod endpoints;
mod links;
mod replacing;
mod sentinels;
mod servers;

use std::{future::Future, sync::Arc, time::Duration};

use futures::FutureExt;
use parking_lot::Mutex;
use punctual_model::{LinkFaults, Reply};
use tokio::{net::TcpListener, task::JoinHandle, time::Instant};

use super::{
    peers::{Members, Peer, SOON, map, until},
    *,
};
use crate::tls::TlsFiles;

/// Whether it is over already.
fn is_over(end: impl Future<Output = ()>) -> bool {
    end.now_or_never().is_some()
}

async fn get(servers: &Servers) -> Result<Option<String>, StoreError> {
    servers.run("k", redis::cmd("GET").arg("k")).await
}

/// Such a call in a task of its own.
fn getting(servers: &Servers) -> JoinHandle<Result<Option<String>, StoreError>> {
    let servers = servers.clone();
    tokio::spawn(async move { get(&servers).await })
}

/// The kind and the text of an error.
fn unavailable<T: std::fmt::Debug>(result: Result<T, StoreError>) -> (&'static str, String) {
    match result {
        Err(StoreError::Unavailable { kind, text }) => (kind, text),
        other => panic!("{other:?}"),
    }
}
