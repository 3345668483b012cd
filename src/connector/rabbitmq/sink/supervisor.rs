//! Keeps a connection: opens it at the first batch, and again with backoff when it is lost. While it is down, batches fail
//! at once with the reason.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{
    sync::watch,
    task::JoinHandle,
    time::{Instant, sleep, timeout_at},
};

use super::connection::SinkConnection;
use crate::{
    connector::rabbitmq::{Broker, ReconnectDelay},
    source::unless_stopped,
};

/// Maximum time of an attempt to connect, for any timeout of the sink.
const MAX_CONNECT: Duration = Duration::from_secs(10);

/// Maximum time of an attempt to connect for a sink with this timeout. It is shorter than the timeout, so that a
/// waiting batch gets the result.
pub fn connect_limit(timeout: Duration) -> Duration {
    timeout.mul_f64(0.9).min(MAX_CONNECT)
}

#[test]
fn an_attempt_to_connect_ends_before_the_timeout_of_the_sink() {
    for (timeout, limit) in [(1000, 900), (11_000, 9900), (60_000, 10_000)] {
        assert_eq!(connect_limit(Duration::from_millis(timeout)), Duration::from_millis(limit));
    }
}

pub struct Supervisor {
    broker: Broker,
    limit: Duration,
    state: watch::Sender<ConnectionState>,
    stop: watch::Sender<bool>,
    task: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Clone)]
enum ConnectionState {
    /// The first attempt has not ended.
    Connecting,
    Up(Arc<SinkConnection>),
    /// The reason.
    Down(String),
}

impl Supervisor {
    /// `limit`: maximum time of an attempt to connect.
    pub fn new(broker: Broker, limit: Duration) -> Self {
        let (state, stop) = (watch::Sender::new(ConnectionState::Connecting), watch::Sender::new(false));
        Self { broker, limit, state, stop, task: Mutex::default() }
    }

    /// The live connection. Waits for the first attempt only. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// Why the connection is down.
    pub async fn connection(&self, deadline: Instant) -> Result<Arc<SinkConnection>, String> {
        self.start();
        let mut state = self.state.subscribe();
        let known = timeout_at(deadline, state.wait_for(|state| !matches!(state, ConnectionState::Connecting))).await;
        match known.map(|state| state.map(|state| state.clone())) {
            Ok(Ok(ConnectionState::Up(connection))) if connection.is_connected() => Ok(connection),
            Ok(Ok(ConnectionState::Up(_))) => Err(format!("{}: the connection was lost", self.broker.address())),
            Ok(Ok(ConnectionState::Down(error))) => Err(error),
            _ => Err(format!("{}: not connected yet", self.broker.address())),
        }
    }

    /// Closes the connection and ends the task that keeps it.
    pub async fn close(&self) {
        self.stop.send_replace(true);
        let task = self.task.lock().take();
        if let Some(task) = task {
            // The panic hook has reported a panic.
            let _ = task.await;
        }
    }

    fn start(&self) {
        let mut task = self.task.lock();
        if task.is_none() && !*self.stop.borrow() {
            let (broker, limit) = (self.broker.clone(), self.limit);
            *task = Some(tokio::spawn(keep(broker, limit, self.state.clone(), self.stop.subscribe())));
        }
    }
}

async fn keep(broker: Broker, limit: Duration, state: watch::Sender<ConnectionState>, mut stop: watch::Receiver<bool>) {
    let mut reconnect_delay = ReconnectDelay::default();
    loop {
        let Some(attempt) = unless_stopped(&mut stop, broker.connect(limit)).await else { return };
        let error = match attempt {
            Ok(connection) => {
                reconnect_delay = ReconnectDelay::default();
                let connection = Arc::new(SinkConnection::new(connection));
                tracing::info!(broker = broker.address(), "connected");
                state.send_replace(ConnectionState::Up(Arc::clone(&connection)));
                let Some(error) = unless_stopped(&mut stop, connection.until_closed()).await else {
                    connection.close().await;
                    state.send_replace(ConnectionState::Down("closed".into()));
                    return;
                };
                format!("{}: {error}", broker.address())
            }
            Err(error) => error,
        };
        if !matches!(&*state.borrow(), ConnectionState::Down(before) if *before == error) {
            tracing::warn!(broker = broker.address(), error, "not connected; trying again");
        }
        state.send_replace(ConnectionState::Down(error));
        if unless_stopped(&mut stop, sleep(reconnect_delay.next_delay())).await.is_none() {
            return;
        }
    }
}
