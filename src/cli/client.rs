//! A client of the HTTP API for operator commands.

use std::{env, path::PathBuf, time::Duration};

use clap::Args;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use reqwest::{
    Method, Response,
    header::{self, HeaderValue},
};
use serde_json::Value;

use super::{
    failure::{Failure, Refusal},
    global::Global,
};
use crate::{
    config::{Listen, ServerAddress},
    tls,
};

/// Maximum time of a connect.
const CONNECT: Duration = Duration::from_secs(5);
/// Maximum time for the next part of a reply: the server's own limit is at most 60 s.
const READ: Duration = Duration::from_secs(65);

/// Maximum length of an unexpected reply in an error, in characters.
const MAX_SHOWN: usize = 100;

/// The variables that `--url` and `--token` override.
const URL_VARIABLE: &str = "PUNCTUAL_URL";
const TOKEN_VARIABLE: &str = "PUNCTUAL_TOKEN";

/// Prefix of the path of a Unix socket.
const UNIX: &str = "unix:";

#[derive(Args)]
pub struct ApiArguments {
    /// URL of the API: `http://HOST:PORT`, `https://...`, or `unix:` and the path of a socket; overrides
    /// `PUNCTUAL_URL`. By default it follows from `server.listen` of the configuration
    #[arg(long, global = true, value_name = "URL", help_heading = "API")]
    url: Option<String>,
    /// Overrides `PUNCTUAL_TOKEN`; every user of this machine can read the argument
    #[arg(long, global = true, value_name = "TOKEN", help_heading = "API", conflicts_with = "token_file")]
    token: Option<String>,
    /// A file with the token
    #[arg(long, global = true, value_name = "FILE", help_heading = "API")]
    token_file: Option<PathBuf>,
}

/// A command that calls the API.
#[derive(Args)]
pub struct Operator<A: Args> {
    #[command(flatten)]
    pub own: A,
    #[command(flatten)]
    pub api: ApiArguments,
}

/// The options and the client of an operator command.
pub struct Session<'a> {
    pub global: &'a Global,
    pub client: Client,
}

impl<A: Args> Operator<A> {
    pub fn open(self, global: &Global) -> Result<(Session<'_>, A), Failure> {
        let client = Client::new(global, &self.api)?;
        Ok((Session { global, client }, self.own))
    }
}

impl ApiArguments {
    fn token(&self) -> Result<Option<String>, Failure> {
        let token = match (&self.token, &self.token_file) {
            (Some(token), _) => Some(token.clone()),
            (None, Some(file)) => {
                let failed = |error| Failure::Usage(format!("--token-file: {}: {error}", file.display()));
                Some(std::fs::read_to_string(file).map_err(failed)?)
            }
            (None, None) => env::var(TOKEN_VARIABLE).ok(),
        };
        Ok(token.map(|token| token.trim().to_owned()).filter(|token| !token.is_empty()))
    }

    /// `health`: prefers `server.health_listen`.
    fn url(&self, global: &Global, health: bool) -> Result<String, Failure> {
        if let Some(url) = self.url.clone().or_else(|| env::var(URL_VARIABLE).ok()).filter(|url| !url.is_empty()) {
            return Ok(url);
        }
        let address = global.server_address()?;
        Ok(match address.health_listen.filter(|_| health) {
            Some(listen) => url_of(&ServerAddress { listen: Listen::Tcp(listen), is_tls: false, health_listen: None }),
            None => url_of(&address),
        })
    }
}

/// URL of a listener. If it listens on all addresses, the loopback address.
fn url_of(address: &ServerAddress) -> String {
    match &address.listen {
        Listen::Unix(path) => format!("{UNIX}{}", path.display()),
        Listen::Tcp(listen) => {
            let mut listen = *listen;
            match listen.ip() {
                std::net::IpAddr::V4(ip) if ip.is_unspecified() => listen.set_ip([127, 0, 0, 1].into()),
                std::net::IpAddr::V6(ip) if ip.is_unspecified() => listen.set_ip(std::net::Ipv6Addr::LOCALHOST.into()),
                _ => {}
            }
            format!("{}://{listen}", if address.is_tls { "https" } else { "http" })
        }
    }
}

pub struct Client {
    http: reqwest::Client,
    /// The URL as the user wrote it.
    shown: String,
    /// The URL without a slash at the end.
    base: String,
    /// The value of `Authorization`.
    token: Option<HeaderValue>,
}

impl Client {
    /// # Errors
    /// A wrong URL, an unreadable file with a token, or a wrong `server.listen`.
    pub fn new(global: &Global, arguments: &ApiArguments) -> Result<Self, Failure> {
        Self::of(arguments.url(global, false)?, arguments.token()?)
    }

    /// A client for probes: prefers `server.health_listen`, and has no token.
    ///
    /// # Errors
    /// Those of `new`.
    pub fn of_probes(global: &Global, arguments: &ApiArguments) -> Result<Self, Failure> {
        Self::of(arguments.url(global, true)?, None)
    }

    /// # Errors
    /// Those of `new`.
    pub fn of(shown: String, token: Option<String>) -> Result<Self, Failure> {
        // A user name or password would be shown with the URL, in errors and by `status`.
        let url = url::Url::parse(&shown);
        let has_user = |url: &url::Url| !url.username().is_empty() || url.password().is_some();
        if url.as_ref().map_or_else(|_| shown.contains('@'), has_user) {
            return Err(Failure::Usage(
                "the URL has a user or a password: the API takes a token, see --token-file".into(),
            ));
        }
        let wrong = |text: &str| Failure::Usage(format!("the URL `{shown}`: {text}"));
        let token = token.map(|token| header_of(&token).ok_or_else(unusable_token)).transpose()?;
        // A proxy of the environment must not see the tokens of operators.
        let http = reqwest::Client::builder().connect_timeout(CONNECT).read_timeout(READ).no_proxy();
        let http = http.redirect(reqwest::redirect::Policy::none());
        let (http, base) = if shown.starts_with(UNIX) {
            let Ok(Listen::Unix(path)) = shown.parse() else {
                return Err(wrong("a socket needs its whole path: unix:/run/punctual.sock"));
            };
            (http.unix_socket(path).tls_backend_preconfigured(tls::unused()), "http://localhost".to_owned())
        } else {
            let url = url.map_err(|error| wrong(&error.to_string()))?;
            if url.query().is_some() || url.fragment().is_some() {
                return Err(wrong("has only a scheme, a host and a path"));
            }
            let tls = match url.scheme() {
                "http" => tls::unused(),
                "https" => tls::client_config(&tls::TlsFiles::default()).map_err(|error| wrong(&error))?,
                _ => return Err(wrong("begins with http://, https:// or unix:")),
            };
            (http.tls_backend_preconfigured(tls), url.as_str().trim_end_matches('/').to_owned())
        };
        let http = http.build().map_err(|error| wrong(&error.to_string()))?;
        Ok(Self { http, shown, base, token })
    }

    /// The URL as the user wrote it.
    pub fn shown(&self) -> &str {
        &self.shown
    }

    /// # Errors
    /// Those of `call`.
    pub async fn get(&self, path: &str) -> Result<Value, Failure> {
        Ok(self.call(Method::GET, path, None).await?)
    }

    /// # Errors
    /// Those of `call`.
    pub async fn post(&self, path: &str, body: &Value) -> Result<Value, Failure> {
        Ok(self.call(Method::POST, path, Some(serde_json::to_vec(body).expect("a value"))).await?)
    }

    /// The JSON of a 2xx reply; `null` if its body is empty.
    ///
    /// # Errors
    /// No reply, or a refusal.
    pub async fn call(&self, method: Method, path: &str, body: Option<Vec<u8>>) -> Result<Value, CallError> {
        let answer = self.answer(method, path, body).await?;
        let status = answer.status();
        let retry_after = answer.headers().get(header::RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
        let bytes = answer.bytes().await.map_err(|error| self.failed(error))?;
        let stranger = || self.stranger(&format!("{status}"), &bytes);
        if !status.is_success() {
            let refusal = Refusal::parse(status.as_u16(), &bytes, retry_after);
            return Err(refusal.map_or_else(|| CallError::NoAnswer(stranger()), CallError::Refused));
        }
        if bytes.is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_slice(&bytes).map_err(|_| CallError::NoAnswer(stranger()))
    }

    /// The error about a reply that does not come from punctual.
    pub fn stranger(&self, status: &str, body: &[u8]) -> String {
        let mut text = String::from_utf8_lossy(body).into_owned();
        // The reply may repeat the token of the request.
        if let Some(token) = self.token.as_ref().and_then(|value| value.to_str().ok()?.split_once(' ')) {
            text = text.replace(token.1, "(the token)");
        }
        let text: String = text.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(MAX_SHOWN).collect();
        format!("{} answered {status}, but is no punctual: it answered `{text}`", self.shown)
    }

    async fn answer(&self, method: Method, path: &str, body: Option<Vec<u8>>) -> Result<Response, CallError> {
        let mut request = self.http.request(method, format!("{}{path}", self.base));
        if let Some(token) = &self.token {
            request = request.header(header::AUTHORIZATION, token);
        }
        if let Some(body) = body {
            request = request.header(header::CONTENT_TYPE, "application/json").body(body);
        }
        request.send().await.map_err(|error| self.failed(error))
    }

    fn failed(&self, error: reqwest::Error) -> CallError {
        let error = error.without_url();
        let mut text = format!("no answer from {}: {error}", self.shown);
        let mut source = std::error::Error::source(&error);
        while let Some(cause) = source {
            text = format!("{text}: {cause}");
            source = cause.source();
        }
        if error.is_connect() { CallError::NoConnection(text) } else { CallError::NoAnswer(text) }
    }
}

/// `None` for characters other than visible ASCII, which the API refuses in tokens.
fn header_of(token: &str) -> Option<HeaderValue> {
    HeaderValue::from_str(&format!("Bearer {token}")).ok().filter(|value| value.to_str().is_ok())
}

fn unusable_token() -> Failure {
    let options = format!("--token, --token-file or {TOKEN_VARIABLE}");
    Failure::Usage(format!("the token ({options}) has characters other than visible ASCII"))
}

/// The reason why a call has no result.
#[derive(Debug)]
pub enum CallError {
    /// The call had no effect.
    NoConnection(String),
    /// It is unknown whether the call took effect.
    NoAnswer(String),
    Refused(Refusal),
}

impl From<CallError> for Failure {
    fn from(error: CallError) -> Self {
        match error {
            CallError::NoConnection(text) | CallError::NoAnswer(text) => Failure::Failed(text),
            CallError::Refused(refusal) => refusal.into(),
        }
    }
}

/// The path of a route. `tail` is appended: it is empty or begins with a slash.
///
/// # Errors
/// When the name cannot be a part of a URL.
pub fn of_route(route: &str, tail: &str) -> Result<String, Failure> {
    Ok(format!("/v1/routes/{}{tail}", part(route)?))
}

/// The path of a message.
///
/// # Errors
/// Those of `of_route`.
pub fn of_message(route: &str, id: &str, tail: &str) -> Result<String, Failure> {
    of_route(route, &format!("/messages/{}{tail}", part(id)?))
}

/// The path of a flow.
///
/// # Errors
/// Those of `of_route`.
pub fn of_flow(route: &str, key: &str, tail: &str) -> Result<String, Failure> {
    of_route(route, &format!("/flows/{}{tail}", part(key)?))
}

/// The path of a group.
///
/// # Errors
/// Those of `of_route`.
pub fn of_group(route: &str, group: &str, tail: &str) -> Result<String, Failure> {
    of_route(route, &format!("/groups/{}{tail}", part(group)?))
}

/// The path of a schedule.
///
/// # Errors
/// Those of `of_route`.
pub fn of_schedule(name: &str, tail: &str) -> Result<String, Failure> {
    Ok(format!("/v1/schedules/{}{tail}", part(name)?))
}

fn part(name: &str) -> Result<String, Failure> {
    // URL parsers resolve these segments, encoded or not.
    if matches!(name, "" | "." | "..") {
        return Err(Failure::Usage(format!("`{name}` cannot be a part of a URL")));
    }
    Ok(utf8_percent_encode(name, NON_ALPHANUMERIC).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_url_follows_from_where_the_server_listens() {
        let url = |listen: &str, is_tls| {
            url_of(&ServerAddress { listen: listen.parse().unwrap(), is_tls, health_listen: None })
        };
        assert_eq!(url("127.0.0.1:8080", false), "http://127.0.0.1:8080");
        assert_eq!(url("0.0.0.0:8080", false), "http://127.0.0.1:8080");
        assert_eq!(url("[::]:443", true), "https://[::1]:443");
        assert_eq!(url("10.0.0.7:80", false), "http://10.0.0.7:80");
        assert_eq!(url("unix:/run/punctual.sock", false), "unix:/run/punctual.sock");
    }

    #[test]
    fn a_name_stays_one_part_of_the_path() {
        assert_eq!(of_message("a/b", "x?y", "/deliver").unwrap(), "/v1/routes/a%2Fb/messages/x%3Fy/deliver");
        assert!(of_route("..", "").is_err());
    }
}
