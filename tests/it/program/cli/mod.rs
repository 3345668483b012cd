//! The commands of operators, against a running instance.

mod access;
mod broken_off;
mod bulk;
mod dead;
mod demo;
mod edit;
mod flows;
mod health;
mod ids;
mod import;
mod messages;
mod pause;
mod schedules;
mod status;
mod terminal;
mod windows;

use std::{ops::Range, time::Duration};

use serde_json::Value;
use tokio::time::sleep;

use crate::support::{
    RedisServer,
    command::Ended,
    punctual::Punctual,
    receiver::{Receiver, wall_clock},
};

/// An instance with the route `web` to a receiver.
pub struct Scene {
    pub redis: RedisServer,
    pub receiver: Receiver,
    pub punctual: Punctual,
    pub configuration: String,
}

impl Scene {
    pub async fn start() -> Self {
        Self::with("").await
    }

    /// `more`: lines of YAML.
    pub async fn with(more: &str) -> Self {
        Self::with_environment(more, &[]).await
    }

    pub async fn with_environment(more: &str, environment: &[(&str, &str)]) -> Self {
        let (redis, receiver) = (RedisServer::start().await, Receiver::start());
        let configuration = format!(
            "redis: {{ url: '{}', timeout: 1s }}\nsinks: {{ hook: {{ type: http, url: '{}' }} }}\n\
             routes: {{ web: {{ sink: hook }} }}\n{more}",
            redis.url(),
            receiver.url()
        );
        let punctual = Punctual::start_with(&configuration, environment).await;
        Self { redis, receiver, punctual, configuration }
    }

    pub async fn run(&self, arguments: &[&str]) -> Ended {
        self.run_with_input(arguments, b"").await
    }

    pub async fn run_with_input(&self, arguments: &[&str], input: &[u8]) -> Ended {
        let arguments = [arguments, &["-c", "punctual.yaml"]].concat();
        self.punctual.command_with_input(&arguments, input).await
    }

    /// Standard output of a command that ends with 0.
    pub async fn done(&self, arguments: &[&str]) -> String {
        let ended = self.run(arguments).await;
        assert_eq!(ended.code, Some(0), "{arguments:?}: {ended:?}");
        ended.out
    }

    pub async fn json(&self, arguments: &[&str]) -> Value {
        let out = self.done(&[arguments, &["--json"]].concat()).await;
        serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}"))
    }

    /// Imports messages that expire while the route is paused. They are claimed after the pause.
    pub async fn expired(&self, route: &str, ids: &[impl AsRef<str>]) {
        /// Longer than the import.
        const PAUSE: Duration = Duration::from_secs(1);
        self.done(&["pause", route, "--yes"]).await;
        let end = wall_clock() + u64::try_from(PAUSE.as_millis()).expect("short");
        let line = |id: &str| format!("{{\"id\":\"{id}\",\"payload\":\"{id}\",\"expires_at\":{end}}}\n");
        let input: String = ids.iter().map(|id| line(id.as_ref())).collect();
        let ended = self.run_with_input(&["import", route], input.as_bytes()).await;
        assert_eq!(ended.out, format!("{} scheduled\n", ids.len()), "{ended:?}");
        while wall_clock() <= end {
            sleep(PAUSE / 100).await;
        }
        self.done(&["resume", route]).await;
    }

    /// A command that ends with this code, and this text on standard error.
    pub async fn refused(&self, arguments: &[&str], code: i32, text: &str) {
        let ended = self.run(arguments).await;
        assert_eq!(ended.code, Some(code), "{arguments:?}: {ended:?}");
        assert!(ended.error.contains(text), "{arguments:?}: {ended:?}");
    }
}

/// Standard input of many lines.
fn lines(numbers: Range<u32>, line: impl Fn(u32) -> String) -> String {
    numbers.map(line).collect::<Vec<_>>().concat()
}
