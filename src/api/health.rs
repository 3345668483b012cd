//! Whether the process lives, and whether it can take messages.

use std::sync::Arc;

use axum::{Json, extract::State, http::StatusCode};
use serde::Serialize;

use super::{Api, problem::Problem};

#[derive(Serialize)]
pub struct Health {
    status: &'static str,
}

const OK: Json<Health> = Json(Health { status: "ok" });

pub async fn livez() -> Json<Health> {
    OK
}

/// Depends on Redis alone: a sink that is down keeps no message from being accepted.
pub async fn readyz(State(api): State<Arc<Api>>) -> Result<Json<Health>, Problem> {
    match api.queue.ready().await {
        Ok(()) => Ok(OK),
        Err(text) => Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, "not-ready", text)),
    }
}
