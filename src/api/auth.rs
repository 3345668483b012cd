//! Authentication and authorisation: bearer tokens with rights and routes.
//!
//! Rights do not include each other: `schedule` is POST, PATCH and DELETE of messages, `read` every GET, `admin`
//! redrive, purge, pause and resume. Only SHA-256 digests of the tokens are stored and compared, so the duration of a
//! comparison reveals nothing about a token.

use std::{sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use parking_lot::Mutex;

use super::{
    connections::Peer,
    console, origin,
    problem::Problem,
    rate::{Rate, TooFast},
    readers::Share,
};
use crate::{
    config::{AuthConfig, Right, TokenConfig, TokenDigest},
    metrics,
    queue::Queue,
};
use axum::{
    extract::{RawPathParams, Request, State},
    http::{HeaderMap, StatusCode, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use serde_json::{Value, json};
use tokio::time::Instant;

/// Interval of log lines about refused calls.
const REFUSED_LOG_INTERVAL: Duration = Duration::from_secs(1);

/// The right that a call requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// No right, and no token.
    Open,
    /// `read`, unless the configuration opens the page.
    Metrics,
    AnyToken,
    Needs(Right),
}

/// The rights of a caller; a request extension.
#[derive(Debug)]
pub struct Grant {
    /// Name of the token, for the log; `None` without a token.
    name: Option<String>,
    rights: Vec<Right>,
    /// `None`: all routes.
    routes: Option<Vec<String>>,
    /// `None`: unlimited.
    rate: Option<Arc<Rate>>,
    /// The bound on all readers of the token.
    pub share: Share,
}

impl Grant {
    fn all() -> Self {
        Self {
            name: None,
            rights: vec![Right::Schedule, Right::Read, Right::Admin],
            routes: None,
            rate: None,
            share: Share::new(1),
        }
    }

    /// The name of the token, or its place in the configuration; empty if no tokens are configured.
    pub fn name(&self) -> &str {
        self.name.as_deref().unwrap_or_default()
    }

    /// Counts messages before they are scheduled.
    ///
    /// # Errors
    /// 429 when the token's rate is exceeded.
    pub fn admit(&self, messages: usize) -> Result<(), Problem> {
        let Some(rate) = &self.rate else { return Ok(()) };
        rate.admit(messages, Instant::now()).map_err(|TooFast { per_second, wait }| Problem::too_fast(per_second, wait))
    }

    /// The token's name, rights and routes, for its holder.
    pub fn shown(&self) -> Value {
        json!({ "name": self.name, "rights": self.rights, "routes": self.routes })
    }

    pub fn has(&self, right: Right) -> bool {
        self.rights.contains(&right)
    }

    pub fn covers_all(&self) -> bool {
        self.routes.is_none()
    }

    pub fn covers(&self, route: &str) -> bool {
        self.routes.as_ref().is_none_or(|routes| routes.iter().any(|name| name == route))
    }
}

/// The tokens of the configuration.
pub struct Guard {
    /// `None`: every caller has all rights.
    tokens: Option<Vec<(TokenConfig, Arc<Grant>)>>,
    open_metrics: bool,
    has_console: bool,
    /// Whether every program of this host can connect.
    open: bool,
    everything: Arc<Grant>,
    refused: Refused,
}

/// Calls without a known token. All are counted; they are logged at most once a second.
#[derive(Default)]
struct Refused(Mutex<Option<(Instant, u64)>>);

impl Refused {
    fn record(&self, request: &Request) {
        metrics::auth_failure();
        let (mut last, now) = (self.0.lock(), Instant::now());
        match &mut *last {
            Some((at, unlogged)) if now - *at < REFUSED_LOG_INTERVAL => *unlogged += 1,
            other => {
                let more = other.map_or(0, |(_, unlogged)| unlogged);
                let peer = request.extensions().get::<Peer>().map(|peer| tracing::field::display(peer.0));
                let (method, path) = (request.method(), request.uri().path());
                tracing::warn!(peer, %method, path, more, "a call without a known token was refused");
                *other = Some((now, 0));
            }
        }
    }
}

/// The guard of the present configuration.
pub type CurrentGuard = Arc<ArcSwap<Guard>>;

impl Guard {
    /// `open`: every program of this host can connect. The mode of a Unix socket prevents that.
    pub fn new(config: Option<&AuthConfig>, open: bool, has_console: bool) -> Self {
        Self::with_rates(config, open, has_console, |_| None)
    }

    /// A guard for other tokens. The rate of a token that stays the same goes on.
    #[must_use]
    pub fn replaced(&self, config: Option<&AuthConfig>) -> Self {
        Self::with_rates(config, self.open, self.has_console, |token| {
            let known = self.tokens.iter().flatten().find(|(known, _)| known == token);
            known.and_then(|(_, grant)| grant.rate.clone())
        })
    }

    /// `rate`: the rate of a token that is known.
    fn with_rates(
        config: Option<&AuthConfig>,
        open: bool,
        has_console: bool,
        rate: impl Fn(&TokenConfig) -> Option<Arc<Rate>>,
    ) -> Self {
        if config.is_none() && open {
            tracing::warn!("the API asks for no token: every program on this host may do everything");
        }
        let tokens = config.map(|auth| {
            let readers = auth.tokens.iter().filter(|entry| entry.rights.contains(&Right::Read)).count();
            let grant = |token: &TokenConfig| {
                let TokenConfig { name, rights, routes, messages_per_second, .. } = token;
                Grant {
                    name: Some(name.clone()),
                    rights: rights.clone(),
                    routes: (!routes.iter().any(|name| name == "*")).then(|| routes.clone()),
                    rate: rate(token).or_else(|| messages_per_second.map(|rate| Arc::new(Rate::new(rate)))),
                    share: Share::new(readers),
                }
            };
            auth.tokens.iter().map(|token| (token.clone(), Arc::new(grant(token)))).collect()
        });
        Self {
            tokens,
            open_metrics: config.is_some_and(|auth| auth.open_metrics),
            has_console,
            open,
            everything: Arc::new(Grant::all()),
            refused: Refused::default(),
        }
    }

    /// `None` for a missing or wrong token.
    fn grant(&self, headers: &HeaderMap) -> Option<&Arc<Grant>> {
        let Some(tokens) = &self.tokens else { return Some(&self.everything) };
        let (scheme, token) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
        let presented = TokenDigest::of(token.trim());
        let known = tokens.iter().find(|(token, _)| token.digest == presented);
        known.filter(|_| scheme.eq_ignore_ascii_case("bearer")).map(|(_, grant)| grant)
    }

    /// Whether calls need a token.
    pub fn asks(&self) -> bool {
        self.tokens.is_some()
    }

    fn is_open(&self, path: &str) -> bool {
        is_probe(path) || (path == "/metrics" && self.open_metrics) || (self.has_console && console::is_open(path))
    }
}

/// Whether the path is one of an orchestrator's probes.
pub fn is_probe(path: &str) -> bool {
    matches!(path, "/livez" | "/readyz")
}

/// 401 without a known token, for unknown paths too: a caller without a token learns nothing about the paths. Without
/// configured tokens, requests of web pages are refused.
pub async fn authenticate(State(guard): State<CurrentGuard>, mut request: Request, next: Next) -> Response {
    let guard = guard.load_full();
    let path = request.uri().path();
    let is_open = guard.is_open(path);
    if guard.tokens.is_none()
        && !is_open
        && let Err(problem) = origin::check(request.method(), request.headers())
    {
        return problem.into_response();
    }
    let grant = match guard.grant(request.headers()) {
        Some(grant) => Arc::clone(grant),
        None if is_open => Arc::clone(&guard.everything),
        None => {
            guard.refused.record(&request);
            let text = "send `Authorization: Bearer <token>` with a token of the configuration";
            return Problem::new(StatusCode::UNAUTHORIZED, "unauthorized", text).into_response();
        }
    };
    request.extensions_mut().insert(grant);
    next.run(request).await
}

/// The objects that a call is checked against.
#[derive(Clone)]
pub struct Authority {
    pub guard: CurrentGuard,
    pub queue: Arc<Queue>,
    pub access: Access,
}

/// 403 when the token lacks the right or the route, then 404 for an unknown route.
pub async fn authorise(
    State(Authority { guard, queue, access }): State<Authority>,
    params: RawPathParams,
    request: Request,
    next: Next,
) -> Response {
    let grant = request.extensions().get::<Arc<Grant>>().expect("set by `authenticate`");
    let right = match access {
        Access::Needs(right) => Some(right),
        Access::Metrics if !guard.load().open_metrics => Some(Right::Read),
        Access::Metrics | Access::Open | Access::AnyToken => None,
    };
    if let Some(right) = right.filter(|right| !grant.rights.contains(right)) {
        let text = format!("the token lacks the right `{}`", format!("{right:?}").to_lowercase());
        return Problem::new(StatusCode::FORBIDDEN, "forbidden", text).into_response();
    }
    if let Some((_, route)) = params.iter().find(|(name, _)| *name == "route") {
        if !grant.covers(route) {
            let text = "the token is for other routes";
            return Problem::new(StatusCode::FORBIDDEN, "forbidden", text).into_response();
        }
        if !queue.has_route(route) {
            return Problem::unknown_route(route).into_response();
        }
    }
    next.run(request).await
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn guard() -> Guard {
        let token = |token: &str, rights: &[Right], routes: &[&str]| TokenConfig {
            name: token.to_owned(),
            digest: TokenDigest::of(token),
            rights: rights.to_vec(),
            routes: routes.iter().map(ToString::to_string).collect(),
            messages_per_second: None,
        };
        let tokens = vec![token("s3cret", &[Right::Read], &["*"]), token("other", &[Right::Admin], &["a", "b"])];
        Guard::new(Some(&AuthConfig { tokens, open_metrics: false }), true, false)
    }

    fn grant_for(value: &'static str) -> Option<Arc<Grant>> {
        let headers = HeaderMap::from_iter([(header::AUTHORIZATION, HeaderValue::from_static(value))]);
        guard().grant(&headers).cloned()
    }

    #[test]
    fn only_a_whole_token_opens() {
        assert!(grant_for("Bearer s3cret").is_some());
        assert!(grant_for("bearer s3cret").is_some(), "the scheme has no case: RFC 9110, section 11.1");
        for wrong in ["Bearer s3cre", "Bearer s3cret1", "Bearer ", "Bearer", "Basic s3cret", "s3cret", "", "Bearer a b"]
        {
            assert!(grant_for(wrong).is_none(), "{wrong}");
        }
        assert!(guard().grant(&HeaderMap::new()).is_none());
    }

    #[test]
    fn a_token_has_its_own_rights_and_routes() {
        let reader = grant_for("Bearer s3cret").unwrap();
        assert_eq!(reader.rights, [Right::Read]);
        assert!(reader.covers("anything"));
        let admin = grant_for("Bearer other").unwrap();
        assert_eq!(admin.rights, [Right::Admin]);
        assert!(admin.covers("a") && admin.covers("b") && !admin.covers("c"));
    }

    #[test]
    fn without_tokens_everything_is_allowed() {
        assert!(Guard::new(None, true, false).grant(&HeaderMap::new()).unwrap().covers("a"));
    }
}
