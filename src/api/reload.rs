//! `POST /v1/reload`: reads the configuration again. The instance does the work.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Request, State},
    http::StatusCode,
};
use serde::Serialize;
use tokio::sync::{mpsc, oneshot};

use super::{
    audit::{Caller, Of},
    body, message_body,
    problem::{FieldError, Problem},
    state::Api,
};

/// Maximum size of the body in bytes, which has no fields.
const MAX_BODY_BYTES: usize = 1024;

/// Calls that read the configuration again, one at a time.
pub type Reloads = mpsc::Sender<ReloadRequest>;

/// One call.
pub struct ReloadRequest {
    pub answer: oneshot::Sender<Result<Reloaded, Vec<Mistake>>>,
}

/// The differences of the new configuration, each with its path.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Reloaded {
    /// The digest of the new configuration.
    pub digest: String,
    pub added: Vec<String>,
    pub replaced: Vec<String>,
    pub removed: Vec<String>,
    /// Take effect at the next start.
    pub restart: Vec<String>,
    pub warnings: Vec<String>,
}

impl Reloaded {
    /// Number of parts that were changed.
    pub fn count(&self) -> usize {
        self.added.len() + self.replaced.len() + self.removed.len()
    }
}

/// A mistake in the configuration: nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// Keys from the root; empty if it concerns a file as a whole.
    pub path: Vec<String>,
    /// The line that `punctual check` prints.
    pub text: String,
}

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
