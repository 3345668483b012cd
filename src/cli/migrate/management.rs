//! Reads the definitions of a running broker from the management plugin's HTTP API. AMQP itself does not list bindings.

use std::{collections::BTreeMap, time::Duration};

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};

use crate::tls;
use punctual_migrate::definitions::Definitions;

/// Maximum time for one reply.
const ANSWER: Duration = Duration::from_secs(15);
/// The environment variable with the password. Not an argument, because every user of the machine can see arguments.
pub const PASSWORD: &str = "PUNCTUAL_MANAGEMENT_PASSWORD";

/// Requests the definitions of the given virtual hosts, which need a user with the tag `monitoring` and any right in
/// each of them, and the permissions of all users, which need the tag `administrator`. Without `administrator` the
/// result has no permissions.
///
/// # Errors
/// The failing URL and its error.
pub async fn definitions(
    url: &str,
    user: &str,
    password: &str,
    vhosts: impl IntoIterator<Item = &String>,
) -> Result<Definitions, String> {
    let base = url.trim_end_matches('/');
    let tls = if base.starts_with("https:") { tls::client_config(&tls::TlsFiles::default())? } else { tls::unused() };
    let client = reqwest::Client::builder().timeout(ANSWER).tls_backend_preconfigured(tls).build();
    let client = client.map_err(|error| format!("{base}: {error}"))?;
    let get = async |path: String| -> Result<Result<Vec<Value>, u16>, String> {
        let url = format!("{base}/api/{path}");
        let failed = |error: reqwest::Error| format!("{url}: {}", error.without_url());
        let answer = client.get(&url).basic_auth(user, Some(password)).send().await.map_err(failed)?;
        if [401, 403, 404].contains(&answer.status().as_u16()) {
            return Ok(Err(answer.status().as_u16()));
        }
        let answer = answer.error_for_status().map_err(failed)?.bytes().await.map_err(failed)?;
        serde_json::from_slice(&answer).map(Ok).map_err(|error| format!("{url}: no list in JSON: {error}"))
    };
    let mut all: BTreeMap<_, Vec<Value>> = BTreeMap::new();
    for vhost in vhosts {
        for name in ["exchanges", "queues", "bindings", "policies"] {
            let path = format!("{name}/{}", utf8_percent_encode(vhost, NON_ALPHANUMERIC));
            match get(path).await? {
                Ok(list) => all.entry(name).or_default().extend(list),
                Err(status) => {
                    let text = format!("virtual host `{vhost}` is not there, or user `{user}` may not see its {name}");
                    return Err(format!("{base}: {text} ({status})"));
                }
            }
        }
    }
    if let Ok(list) = get("permissions".into()).await? {
        all.insert("permissions", list);
    }
    Definitions::parse(json!(all).to_string().as_bytes()).map_err(|error| format!("{base}: {error}"))
}
