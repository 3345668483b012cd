//! Whether the process lives, and whether it can take messages.

use std::{sync::Arc, time::Duration};

use axum::{Json, extract::State, http::StatusCode};
use serde::Serialize;
use tokio::{sync::Mutex, time::Instant};

use super::{Api, problem::Problem};
use crate::queue::Queue;

/// For how long a probe is answered as the one before: it needs no token, and each check is five commands of Redis.
const READY_FRESH: Duration = Duration::from_secs(1);
/// The same while it is not ready, so that a start is noticed soon.
const UNREADY_FRESH: Duration = Duration::from_millis(100);

#[derive(Serialize)]
pub struct Health {
    status: &'static str,
}

const OK: Json<Health> = Json(Health { status: "ok" });

/// The last check, and when it ended. Probes that come meanwhile wait for it.
#[derive(Default)]
pub struct Readiness(Mutex<Option<(Instant, Result<(), String>)>>);

impl Readiness {
    async fn check(&self, queue: &Queue) -> Result<(), String> {
        let mut last = self.0.lock().await;
        if let Some((at, answer)) = &*last
            && at.elapsed() < if answer.is_ok() { READY_FRESH } else { UNREADY_FRESH }
        {
            return answer.clone();
        }
        let answer = queue.ready().await;
        *last = Some((Instant::now(), answer.clone()));
        answer
    }
}

pub async fn livez() -> Json<Health> {
    OK
}

/// Depends on Redis alone: a sink that is down keeps no message from being accepted.
pub async fn readyz(State(api): State<Arc<Api>>) -> Result<Json<Health>, Problem> {
    match api.readiness.check(&api.queue).await {
        Ok(()) => Ok(OK),
        Err(text) => Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, "not-ready", text)),
    }
}
