//! Keeps a connection: makes it when the first batch comes, and again, with backoff, whenever it is lost. Whoever
//! sends meanwhile is told at once why there is none.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{Instant, sleep, timeout_at},
};

use super::link::Link;
use crate::connector::rabbitmq::{Broker, ReconnectDelay};

/// Longest attempt to connect, whatever the sink's timeout is.
const MAX_CONNECT: Duration = Duration::from_secs(10);

/// Longest attempt to connect for a sink with this timeout: shorter than it, so that the sender learns the result.
pub fn connect_limit(timeout: Duration) -> Duration {
    timeout.mul_f64(0.9).min(MAX_CONNECT)
}

pub struct Supervisor {
    broker: Broker,
    limit: Duration,
    state: watch::Sender<State>,
    stop: watch::Sender<bool>,
    task: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Clone)]
enum State {
    /// The first attempt is under way, or has yet to begin.
    Connecting,
    Up(Arc<Link>),
    Down(String),
}

impl Supervisor {
    /// `limit`: longest attempt to connect.
    pub fn new(broker: Broker, limit: Duration) -> Self {
        let (state, stop) = (watch::Sender::new(State::Connecting), watch::Sender::new(false));
        Self { broker, limit, state, stop, task: Mutex::default() }
    }

    /// The connection. Waits only for the very first attempt. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// Why there is none at present.
    pub async fn link(&self, deadline: Instant) -> Result<Arc<Link>, String> {
        self.start();
        let mut state = self.state.subscribe();
        let known = timeout_at(deadline, state.wait_for(|state| !matches!(state, State::Connecting))).await;
        match known.map(|state| state.map(|state| state.clone())) {
            Ok(Ok(State::Up(link))) if link.is_connected() => Ok(link),
            Ok(Ok(State::Up(_))) => Err(format!("{}: the connection was lost", self.broker.address())),
            Ok(Ok(State::Down(error))) => Err(error),
            _ => Err(format!("{}: not connected yet", self.broker.address())),
        }
    }

    /// Closes the connection and ends.
    pub async fn close(&self) {
        self.stop.send_replace(true);
        let task = self.task.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(task) = task {
            // It cannot fail but by a panic, which has been shown already.
            let _ = task.await;
        }
    }

    fn start(&self) {
        let mut task = self.task.lock().unwrap_or_else(PoisonError::into_inner);
        if task.is_none() && !*self.stop.borrow() {
            let (broker, limit) = (self.broker.clone(), self.limit);
            *task = Some(tokio::spawn(keep(broker, limit, self.state.clone(), self.stop.subscribe())));
        }
    }
}

async fn keep(broker: Broker, limit: Duration, state: watch::Sender<State>, mut stop: watch::Receiver<bool>) {
    let mut reconnect_delay = ReconnectDelay::default();
    loop {
        let attempt = tokio::select! {
            attempt = broker.connect(limit) => attempt,
            () = asked(&mut stop) => return,
        };
        let error = match attempt {
            Ok(connected) => {
                reconnect_delay = ReconnectDelay::default();
                let (link, over) = Link::new(connected);
                let link = Arc::new(link);
                tracing::info!(broker = broker.address(), "connected");
                state.send_replace(State::Up(Arc::clone(&link)));
                tokio::select! {
                    error = link.watch(over) => format!("{}: {error}", broker.address()),
                    () = asked(&mut stop) => {
                        link.close().await;
                        state.send_replace(State::Down("closed".into()));
                        return;
                    }
                }
            }
            Err(error) => error,
        };
        if !matches!(&*state.borrow(), State::Down(before) if *before == error) {
            tracing::warn!(broker = broker.address(), error, "not connected; trying again");
        }
        state.send_replace(State::Down(error));
        tokio::select! {
            () = sleep(reconnect_delay.next_delay()) => {}
            () = asked(&mut stop) => return,
        }
    }
}

async fn asked(stop: &mut watch::Receiver<bool>) {
    // A sender that is gone asks, too.
    let _ = stop.wait_for(|stop| *stop).await;
}
