//! `punctual reload`: an instance reads its configuration again.

use clap::Args;
use reqwest::Method;
use serde_json::Value;

use super::{
    client::{CallError, Session},
    failure::Failure,
    output,
};

#[derive(Args)]
pub struct ReloadArguments {}

/// The kind of the problem when the configuration has mistakes.
const INVALID: &str = "invalid-configuration";

pub async fn run(session: &Session<'_>, _: ReloadArguments) -> Result<(), Failure> {
    let reloaded = match session.client.call(Method::POST, "/v1/reload", Some(b"{}".to_vec())).await {
        Ok(reloaded) => reloaded,
        Err(CallError::Refused(refusal)) if refusal.kind == INVALID => {
            let lines: Vec<&str> = refusal.fields.iter().map(|(_, line)| &**line).collect();
            return Err(Failure::Configuration(lines.join("\n")));
        }
        Err(error) => return Err(error.into()),
    };
    let text = text(&reloaded);
    output::result(session.global, reloaded, text)
}

fn text(reloaded: &Value) -> String {
    let parts =
        |key: &str| reloaded[key].as_array().into_iter().flatten().filter_map(Value::as_str).collect::<Vec<_>>();
    let lines = [
        ("added", "added"),
        ("replaced", "replaced"),
        ("removed", "removed"),
        ("restart", "takes effect at the next start:"),
        ("warnings", "warning:"),
    ];
    let mut text = String::new();
    for (key, word) in lines {
        for part in parts(key) {
            text = format!("{text}{word} {part}\n");
        }
    }
    if text.is_empty() {
        "nothing changed\n".clone_into(&mut text);
    }
    format!("{text}digest {}", reloaded["digest"].as_str().unwrap_or_default())
}
