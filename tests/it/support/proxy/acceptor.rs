use std::{
    future, io,
    sync::{Arc, atomic::Ordering},
};

use tokio::{
    net::{TcpListener, TcpStream},
    sync::{mpsc, oneshot},
    task::JoinSet,
};

use super::{
    super::port::Port,
    Mode,
    link::{self, Shared},
};

pub struct Command {
    pub mode: Mode,
    /// Answered once the mode holds for every connection.
    pub done: oneshot::Sender<()>,
}

/// Owns the listener and every connection: they end with it.
pub struct Acceptor {
    port: Port,
    shared: Arc<Shared>,
    /// `None` while connecting is refused.
    listener: Option<TcpListener>,
    connections: JoinSet<()>,
}

impl Acceptor {
    pub fn new(port: Port, shared: Arc<Shared>) -> Self {
        let listener = Some(port.listen());
        Self { port, shared, listener, connections: JoinSet::new() }
    }

    pub async fn run(mut self, mut commands: mpsc::Receiver<Command>) {
        loop {
            tokio::select! {
                command = commands.recv() => match command {
                    Some(command) => self.obey(command).await,
                    None => return,
                },
                accepted = accept(self.listener.as_ref()) => {
                    // A connection that was reset before it was accepted does not stop the proxy.
                    if let Ok(client) = accepted {
                        self.shared.accepted.fetch_add(1, Ordering::SeqCst);
                        self.connections.spawn(link::carry(client, Arc::clone(&self.shared)));
                    }
                }
                Some(_) = self.connections.join_next() => {}
            }
        }
    }

    async fn obey(&mut self, Command { mode, done }: Command) {
        self.shared.mode.send_replace(mode);
        if mode == Mode::Cut {
            self.listener = None;
            self.connections.shutdown().await;
        } else if self.listener.is_none() {
            self.listener = Some(self.port.listen());
        }
        // The caller may have stopped waiting for the answer.
        let _ = done.send(());
    }
}

async fn accept(listener: Option<&TcpListener>) -> io::Result<TcpStream> {
    match listener {
        Some(listener) => listener.accept().await.map(|(client, _)| client),
        None => future::pending().await,
    }
}
