//! Overhears the calls that the store makes: with which keys and arguments.

use std::collections::HashMap;

use futures::{Stream, StreamExt};

use super::{
    bench::Bench,
    include::{includes, plain_includes},
};

/// A script call as it went over the wire.
#[derive(Clone, Debug)]
pub struct Recorded {
    pub keys: Vec<String>,
    pub arguments: Vec<Vec<u8>>,
    pub code: String,
}

/// Every script by the name of its file, as it is sent to Redis.
pub fn scripts() -> HashMap<String, String> {
    let directory = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/lua")).expect("lua/");
    directory
        .map(|file| file.expect("readable").file_name().into_string().expect("a plain name"))
        .filter_map(|file| file.strip_suffix(".lua").map(str::to_owned))
        .map(|name| {
            let text = super::lua(&name);
            // It contains them.
            let includes = if name == "produce" { Vec::new() } else { includes(&text) };
            (name, code(includes, text))
        })
        .collect()
}

/// Name and code of every script, in each form in which it is sent.
fn forms() -> impl Iterator<Item = (String, String)> {
    let plain = |name: &String| {
        let text = super::lua(name);
        Some((name.clone(), code(plain_includes(&text)?, text)))
    };
    let scripts = scripts();
    let plain: Vec<_> = scripts.keys().filter_map(plain).collect();
    scripts.into_iter().chain(plain)
}

fn code(includes: Vec<(String, String)>, text: String) -> String {
    includes.into_iter().map(|(_, include)| include).chain([text]).collect()
}

impl Bench {
    /// Acts `scene` out, and returns its last call of `script`.
    pub async fn record(&mut self, scene: &str, script: &str) -> Recorded {
        let mut lines = self.monitor().await;
        self.act(scene).await.unwrap_or_else(|error| panic!("{scene}: {error}"));
        self.last_call(&mut lines, script).await
    }

    /// Every command from now on, a line each.
    pub async fn monitor(&self) -> impl Stream<Item = String> + Unpin + use<> {
        let client = redis::Client::open(self.server.url()).expect("a valid URL");
        client.get_async_monitor().await.expect("MONITOR").into_on_message::<String>()
    }

    /// The last call of `script` among `lines` up to now.
    pub async fn last_call(&mut self, lines: &mut (impl Stream<Item = String> + Unpin), script: &str) -> Recorded {
        const END: &str = "the scene ends";
        let forms: HashMap<String, (String, String)> =
            forms().map(|form| (redis::Script::new(&form.1).get_hash().to_owned(), form)).collect();
        let _: String = redis::cmd("ECHO").arg(END).query_async(&mut self.raw).await.expect("the server answers");
        let mut found = None;
        while let Some(line) = lines.next().await {
            let words = words(&line);
            if words.last().is_some_and(|word| word == END.as_bytes()) {
                break;
            }
            let text = |n: usize| String::from_utf8_lossy(words.get(n).map_or(&[][..], Vec::as_slice)).into_owned();
            if text(0) == "EVALSHA"
                && let Some((_, code)) = forms.get(&text(1)).filter(|(name, _)| name == script)
            {
                let count: usize = text(2).parse().expect("a number of keys");
                let keys = (3..3 + count).map(text).collect();
                found = Some(Recorded { keys, arguments: words[3 + count..].to_vec(), code: code.clone() });
            }
        }
        found.unwrap_or_else(|| panic!("no scene calls {script}.lua"))
    }
}

/// The quoted words of a line of MONITOR. Valkey 8.1 does not escape quotes: one that ends a word is followed by the
/// next word, or by nothing.
fn words(line: &str) -> Vec<Vec<u8>> {
    let mut words = Vec::new();
    let Some((_, mut rest)) = line.split_once('"') else { return words };
    let mut word = Vec::new();
    loop {
        let mut bytes = rest.bytes();
        match bytes.next() {
            None => return words,
            Some(b'"') if rest == "\"" || rest.starts_with("\" \"") => {
                words.push(std::mem::take(&mut word));
                bytes = rest.get(3..).unwrap_or_default().bytes();
            }
            Some(b'\\') => word.push(match bytes.next().expect("an escape has a letter") {
                b'n' => b'\n',
                b'r' => b'\r',
                b't' => b'\t',
                b'a' => 7,
                b'b' => 8,
                b'x' => {
                    let mut digit = || char::from(bytes.next().expect("two digits")).to_digit(16).expect("hex");
                    u8::try_from(16 * digit() + digit()).expect("two digits")
                }
                other => other,
            }),
            Some(other) => word.push(other),
        }
        rest = &rest[rest.len() - bytes.len()..];
    }
}
