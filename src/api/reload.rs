//! `POST /v1/reload`: reads the configuration again. The instance does the work.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Request, State},
    http::StatusCode,
};
use tokio::sync::oneshot;

use super::{
    audit::{Caller, Of},
    body, message_body,
    problem::{FieldError, Problem},
    reloads::{Mistake, ReloadRequest, Reloaded},
    state::Api,
};

/// Maximum size of the body in bytes, which has no fields.
const MAX_BODY_BYTES: usize = 1024;

pub async fn reload(State(api): State<Arc<Api>>, caller: Caller, request: Request) -> Result<Json<Reloaded>, Problem> {
    let body = body::read(&api.body_memory, request, MAX_BODY_BYTES).await?;
    message_body::parse_nothing(&body.bytes)?;
    if !caller.grant.covers_all() {
        let text = "the configuration has all routes, and the token is for some";
        return Err(Problem::new(StatusCode::FORBIDDEN, "forbidden", text));
    }
    let stopping = || Problem::unavailable("the instance starts or stops; the configuration was not read");
    let (answer, answered) = oneshot::channel();
    let reloads = api.reloads.as_ref().ok_or_else(stopping)?;
    reloads.send(ReloadRequest { answer }).await.map_err(|_| stopping())?;
    match answered.await.map_err(|_| stopping())? {
        Ok(reloaded) => {
            caller.record("reload", "", &Of::Note(&format!("digest: {}", reloaded.digest)), reloaded.count() as u64);
            Ok(Json(reloaded))
        }
        Err(mistakes) => Err(invalid(&mistakes)),
    }
}

fn invalid(mistakes: &[Mistake]) -> Problem {
    let error = |Mistake { path, text }: &Mistake| {
        let mut pointer = String::new();
        for key in path {
            pointer = format!("{pointer}/{}", key.replace('~', "~0").replace('/', "~1"));
        }
        FieldError::new(pointer, text)
    };
    Problem::configuration(mistakes.iter().map(error).collect())
}
