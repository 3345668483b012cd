//! Faults between a client and a real server: a TCP proxy with a mode that can change while connections are open.
//!
//! `Proxy` is the handle, `acceptor` owns the listener and every connection, `link` carries the bytes of one
//! connection. A handle's call returns once the change holds, so tests need no pause after it.

mod acceptor;
mod link;

use std::{
    net::SocketAddr,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tokio::{
    sync::{mpsc, oneshot},
    task::JoinHandle,
};

use super::port::Port;
use acceptor::{Acceptor, Command};
use link::{Loss, Shared};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Pass,
    /// Closes every connection, and connecting is refused.
    Cut,
    /// Half-open: connections open and stay open, but what either side sends is swallowed. A connection that
    /// lost bytes this way stays silent for good; one that was idle goes on when the mode changes back.
    BlackHole,
    /// Each direction is late by this time; the throughput is not limited.
    Delay(Duration),
    /// All packets of these directions are lost, and are repeated once the mode changes: what was sent comes late, also to a
    /// server that the client has left.
    Hold(Direction),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    ToServer,
    ToClient,
    Both,
}

impl Mode {
    fn holds(self, direction: Direction) -> bool {
        matches!(self, Self::Hold(held) if held == Direction::Both || held == direction)
    }
}

/// The effect of a dropped reply on the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DroppedReply {
    /// The connection closes.
    Closes,
    /// The connection stays open and silent.
    NeverComes,
}

/// Stops with the handle, connections included.
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    commands: mpsc::Sender<Command>,
    acceptor: JoinHandle<()>,
}

impl Proxy {
    /// To a server on `port` of 127.0.0.1, which need not run yet.
    pub fn start(port: u16) -> Self {
        let front = Port::reserve();
        let address = front.address();
        let shared = Arc::new(Shared::new(local(port)));
        let (commands, inbox) = mpsc::channel(1);
        let acceptor = tokio::spawn(Acceptor::new(front, Arc::clone(&shared)).run(inbox));
        Self { address, shared, commands, acceptor }
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }

    pub fn redis_url(&self) -> String {
        format!("redis://{}/0", self.address)
    }

    /// New connections lead to `port` of 127.0.0.1; those that exist stay where they are, as behind an address that
    /// follows a master.
    pub fn lead_to(&self, port: u16) {
        *self.shared.server.lock().expect("no panic under this lock") = local(port);
    }

    pub async fn set(&self, mode: Mode) {
        let (done, is_done) = oneshot::channel();
        self.commands.send(Command { mode, done }).await.expect("the proxy runs");
        is_done.await.expect("the proxy runs");
    }

    /// Arms one fault: the next request that contains `pattern` (any, when empty) reaches the server, which
    /// executes it to the end, but its reply and all later ones on that connection do not come back.
    ///
    /// The receiver hears when that has happened. Arming again replaces what was armed.
    pub fn drop_next_reply(&self, pattern: &[u8], then: DroppedReply) -> oneshot::Receiver<()> {
        let (done, is_done) = oneshot::channel();
        self.shared.arm(Loss { pattern: pattern.to_vec(), then, done });
        is_done
    }

    /// Connections accepted so far.
    pub fn accepted(&self) -> usize {
        self.shared.accepted.load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.acceptor.abort();
    }
}

fn local(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}
