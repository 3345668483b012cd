//! The servers of a script, and what it may ask for: a line `stage WORDS` of its output, answered by a line.

use std::{env, fs, path::Path, process::Stdio};

use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    process::Command,
    time::timeout,
};

use super::MAX_WAIT;
use crate::support::{
    RedisServer,
    port::Port,
    punctual::Punctual,
    receiver::{Behaviour, Receiver},
};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");
/// Where `tests/run.sh` installs the packages of `tests/console/package.json`.
const PACKAGES: &str = "target/console/node_modules";
const BROWSER: &str = "/usr/bin/chromium";

/// The tokens of an instance: of all rights, by name.
const FIRST: &str = "ops";
const SECOND: &str = "day-shift";

pub struct Stage {
    redis: RedisServer,
    receiver: Receiver,
    /// The port of a sink that is down.
    closed: Port,
    punctual: Punctual,
    /// Another instance on the same Redis.
    second: Option<Punctual>,
}

impl Stage {
    pub async fn start() -> Self {
        Self::start_with(0).await
    }

    /// With `more` routes to lists, `queue-00` and so on.
    pub async fn start_with(more: usize) -> Self {
        let (redis, receiver, closed) = (RedisServer::start().await, Receiver::start(), Port::reserve());
        let punctual = Punctual::start(&(configuration(&redis, &receiver, &closed, FIRST) + &queues(more))).await;
        Self { redis, receiver, closed, punctual, second: None }
    }

    /// Runs a script of `tests/console/` to its end. Without its browser it is skipped, except in CI.
    pub async fn play(mut self, script: &str) {
        let packages = Path::new(ROOT).join(PACKAGES);
        for needed in [&*packages, Path::new(BROWSER)] {
            if !needed.exists() {
                let missing = format!("no {}: tests/run.sh installs it", needed.display());
                assert!(env::var("CI").as_deref() != Ok("true"), "{missing}");
                eprintln!("skipped: {missing}");
                return;
            }
        }
        let mut node = Command::new("node")
            .arg(Path::new(ROOT).join("tests/console").join(script))
            .env("NODE_PATH", packages)
            .env("PUNCTUAL", self.punctual.url(""))
            .env("BROWSER", BROWSER)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("node is installed");
        let mut answers = node.stdin.take().expect("piped");
        let mut lines = BufReader::new(node.stdout.take().expect("piped")).lines();
        let run = async {
            while let Some(line) = lines.next_line().await.expect("text") {
                let Some(wish) = line.strip_prefix("stage ") else {
                    println!("{script}: {line}");
                    continue;
                };
                let answer = self.grant(&wish.split(' ').collect::<Vec<_>>()).await;
                // A script that has ended reads no answer; its exit status counts.
                let _ = answers.write_all(format!("{answer}\n").as_bytes()).await;
            }
            node.wait().await.expect("it can be waited for")
        };
        let status =
            timeout(MAX_WAIT, run).await.unwrap_or_else(|_| panic!("{script} did not end within {MAX_WAIT:?}"));
        assert!(status.success(), "{script}: {status}");
    }

    async fn grant(&mut self, wish: &[&str]) -> String {
        match wish {
            ["sink", "answers", status] => self.receiver.behave(Behaviour::Echo(status.parse().expect("a status"))),
            ["sink", "hangs"] => self.receiver.behave(Behaviour::Hang),
            ["sink", "refuses"] => self.receiver.refuse(),
            ["sink", "listens"] => self.receiver.listen(),
            ["sink", "count"] => return self.receiver.count().to_string(),
            ["redis", "kill"] => self.redis.kill(),
            ["redis", "restart"] => self.redis.restart().await,
            ["punctual", "kill"] => self.punctual.kill().await,
            ["punctual", "restart"] => self.punctual.restart().await,
            ["punctual", "second", tokens @ ..] => {
                let mut text = configuration(&self.redis, &self.receiver, &self.closed, SECOND);
                if *tokens == ["without", "tokens"] {
                    let (head, rest) = text.split_once("server:").expect("a section");
                    let (_, tail) = rest.split_once("sinks:").expect("a section");
                    text = format!("{head}sinks:{tail}");
                }
                let second = self.second.insert(Punctual::start(&text).await);
                return second.url("");
            }
            ["punctual", "dev"] => {
                let orders = "sinks: { shop: { type: http, url: 'http://127.0.0.1:9/due' } }\nroutes: { orders: { sink: shop } }\n";
                return self.second.insert(Punctual::start_dev(orders, &[]).await).url("");
            }
            ["token", "rotate"] => {
                let text = configuration(&self.redis, &self.receiver, &self.closed, SECOND);
                fs::write(self.punctual.path("punctual.yaml"), text).expect("it is written");
                self.punctual.terminate().await;
                self.punctual.restart().await;
            }
            other => panic!("no such wish: {other:?}"),
        }
        "done".to_owned()
    }
}

/// Routes at the end of a configuration.
fn queues(number: usize) -> String {
    let lines: Vec<String> = (0..number).map(|n| format!("  queue-{n:02}: {{ sink: jobs }}\n")).collect();
    lines.concat()
}

/// `operator`: the name of the token of all rights, and a part of it.
fn configuration(redis: &RedisServer, receiver: &Receiver, closed: &Port, operator: &str) -> String {
    format!(
        "redis: {{ url: '{redis}' }}
server:
  auth:
    tokens:
      - {{ token: {operator}-0123456789abcdef, name: {operator}, rights: [schedule, read, admin] }}
      - {{ token: reader-0123456789abcdef, name: reader, rights: [read] }}
      - {{ token: clerk-0123456789abcdef, name: clerk, rights: [schedule, read] }}
      - {{ token: shop-0123456789abcdef, name: shop, rights: [read, admin], routes: [invoices] }}
      - {{ token: producer-0123456789abcdef, name: producer, rights: [schedule] }}
sinks:
  shop: {{ type: http, url: '{shop}', timeout: 2s }}
  jobs: {{ type: redis_list, key: jobs }}
  warehouse: {{ type: http, url: 'http://{closed}/' }}
sources:
  legacy: {{ type: sorted_set, key: reminders, route: invoices }}
routes:
  order-timeout: {{ sink: shop, retry: {{ initial: 500ms, max: 2s }} }}
  invoices: {{ sink: jobs }}
  stock: {{ sink: warehouse }}
  hooks: {{ sink: jobs, flow: {{ rate: 1/d }} }}
",
        redis = redis.url(),
        shop = receiver.url(),
        closed = closed.address(),
    )
}
