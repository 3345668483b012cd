use std::net::{Ipv4Addr, SocketAddr};

use tokio::net::{TcpListener, TcpSocket};

/// Connections that wait to be accepted.
const BACKLOG: u32 = 1024;

/// A port of 127.0.0.1 that stays reserved while nothing listens on it.
///
/// A bound socket that never listens holds it: connecting is refused, no other process is given the port, and a
/// server that sets `SO_REUSEADDR` (tokio, redis-server) may still listen on it, again and again.
pub struct Port {
    holder: TcpSocket,
}

impl Port {
    pub fn reserve() -> Self {
        Self { holder: bound(0) }
    }

    pub fn number(&self) -> u16 {
        self.holder.local_addr().expect("a bound socket has an address").port()
    }

    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.number()).into()
    }

    /// Ends with the listener: then connecting is refused again.
    pub fn listen(&self) -> TcpListener {
        bound(self.number()).listen(BACKLOG).expect("the port is ours")
    }
}

fn bound(port: u16) -> TcpSocket {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.set_reuseaddr(true).expect("an option of every socket");
    socket.bind((Ipv4Addr::LOCALHOST, port).into()).expect("the port is free or ours");
    socket
}
