//! Liveness and readiness.

use std::{sync::Arc, time::Duration};

use axum::{Json, extract::State, http::StatusCode};
use serde_json::{Value, json};
use tokio::{sync::Mutex, time::Instant};

use super::problem::Problem;
use crate::queue::Queue;

/// How long a reply is reused: a probe needs no token, and each check costs five Redis commands.
const READY_FRESH: Duration = Duration::from_secs(1);
/// Time for which "not ready" is reused: short, so that readiness shows soon.
const UNREADY_FRESH: Duration = Duration::from_millis(100);

/// The time of a check, and its result.
type Checked = (Instant, Result<(), String>);

/// The latest check. Probes during a check wait for its result.
#[derive(Clone)]
pub struct Readiness {
    queue: Arc<Queue>,
    last: Arc<Mutex<Option<Checked>>>,
}

impl Readiness {
    pub fn new(queue: Arc<Queue>) -> Self {
        Self { queue, last: Arc::default() }
    }

    pub async fn check(&self) -> Result<(), String> {
        let mut last = self.last.lock().await;
        if let Some((at, answer)) = &*last
            && at.elapsed() < if answer.is_ok() { READY_FRESH } else { UNREADY_FRESH }
        {
            return answer.clone();
        }
        let answer = self.queue.ready().await;
        *last = Some((Instant::now(), answer.clone()));
        answer
    }
}

pub async fn livez() -> Json<Value> {
    Json(json!({ "status": "ok" }))
}

/// Checks Redis alone: messages are accepted while a sink is down.
pub async fn readyz(State(readiness): State<Readiness>) -> Result<Json<Value>, Problem> {
    match readiness.check().await {
        Ok(()) => Ok(livez().await),
        Err(text) => Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, "not-ready", text)),
    }
}
