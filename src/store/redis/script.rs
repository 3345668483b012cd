//! The Lua files, and calls of them.

use std::sync::{
    LazyLock,
    atomic::{AtomicBool, Ordering},
};

use redis::{Cmd, FromRedisValue, ToRedisArgs};
use tokio::time::Instant;

use crate::{
    metrics,
    store::{
        StoreError,
        redis::connection::{Connection, OnLink, Servers},
    },
};

/// A script, loaded by its first call on a server.
pub struct Script {
    name: &'static str,
    body: &'static str,
    code: String,
    sha: String,
}

macro_rules! scripts {
    ($($constant:ident $name:literal)*) => {
        $(pub static $constant: LazyLock<Script> = LazyLock::new(|| {
            Script::new($name, text($name, include_str!(concat!("../../../lua/", $name, ".lua"))))
        });)*

        /// Every script but produce.lua, to be loaded before the first call.
        pub fn all() -> impl Iterator<Item = &'static Script> {
            let others: [&'static Script; 7] =
                [&CLAIMS, &SETTLEMENTS, &TRANSFERS, &PLAIN_CLAIM, &PLAIN_SCHEDULE, &PLAIN_SETTLE, &PLAIN_TRANSFER];
            [$(&*$constant),*].into_iter().chain(others)
        }
    };
}

/// Several claims in one call; `SETTLEMENTS` and `TRANSFERS` likewise.
pub static CLAIMS: LazyLock<Script> = LazyLock::new(|| CLAIM.bundle());
pub static SETTLEMENTS: LazyLock<Script> = LazyLock::new(|| SETTLE.bundle());
pub static TRANSFERS: LazyLock<Script> = LazyLock::new(|| TRANSFER.bundle());

/// `CLAIM` for routes without features: calls have neither their keys nor messages of schedules. A call spends time on
/// each function of the includes, also on those that it does not need. The others likewise.
pub static PLAIN_CLAIM: LazyLock<Script> = LazyLock::new(|| CLAIM.plain());
pub static PLAIN_SCHEDULE: LazyLock<Script> = LazyLock::new(|| SCHEDULE.plain());
pub static PLAIN_SETTLE: LazyLock<Script> = LazyLock::new(|| SETTLE.plain());
pub static PLAIN_TRANSFER: LazyLock<Script> = LazyLock::new(|| TRANSFER.plain());

scripts! {
    CANCEL "cancel"
    CLAIM "claim"
    CUT "cut"
    DEFINE "define"
    DUE "due"
    EDIT "edit"
    ENDED "ended"
    EVICT "evict"
    FENCE "fence"
    FLOWS "flows"
    FORECAST "forecast"
    FORWARD "forward"
    FORWARDED "forwarded"
    GET "get"
    GROUP "group"
    BURY "bury"
    LIST "list"
    MOVE "move"
    PAUSE "pause"
    PERSIST "persist"
    POST "post"
    PURGE "purge"
    PURGE_PENDING "purge_pending"
    RECOVER "recover"
    REDRIVE "redrive"
    REGISTER "register"
    REGISTERED "registered"
    REPARTITION "repartition"
    RESCHEDULE "reschedule"
    RESTORE "restore"
    RIGHTS "rights"
    RULE "rule"
    SCHEDULE "schedule"
    SCHEDULES "schedules"
    SETTLE "settle"
    STATS "stats"
    SUMMARY "summary"
    TAKE_DELAYQUEUE "take_delayqueue"
    TAKE_HASH "take_hash"
    TAKE_MEMBER "take_member"
    TIDY "tidy"
    TRANSFER "transfer"
    TRIM "trim"
    UNPARK "unpark"
}

macro_rules! includes {
    ($($name:literal)*) => {
        /// The files that scripts share, by name.
        const INCLUDES: [(&str, &str); [$($name),*].len()] =
            [$(($name, include_str!(concat!("../../../lua/include/", $name, ".lua")))),*];
    };
}

includes! {
    "attempts" "bodies" "bundle" "bytes" "cancelled" "claiming" "clock" "commit" "completion" "ending" "expiry" "external" "failures" "fields"
    "debounce" "filter" "flow" "flow_value" "groups" "history" "json" "label" "layout" "leases" "limits" "members" "optional" "outbox" "passing" "places" "rates" "records"
    "recurring" "remembered" "revival" "scores" "seconds"
    "selection" "sizes" "taking" "turns" "utf8" "wake" "weight"
}

/// The text of a script. Tests read it from the directory `PUNCTUAL_TEST_LUA` if that is set: `tests/mutants/`.
fn text(name: &str, compiled: &'static str) -> &'static str {
    let is_testing = cfg!(any(test, feature = "testing"));
    let Some(directory) = is_testing.then(|| std::env::var_os("PUNCTUAL_TEST_LUA")).flatten() else { return compiled };
    let path = std::path::Path::new(&directory).join(format!("{name}.lua"));
    std::fs::read_to_string(path).expect("PUNCTUAL_TEST_LUA has all files of lua/").leak()
}

/// How the line of a Lua file begins that names its includes, and the line of those that plain calls do not need.
const INCLUDE: &str = "-- include ";
const FEATURES: &str = "-- features ";

/// The clock of `punctual dev`, in place of the include.
const DEVELOPMENT_CLOCK: &str = include_str!("../../../lua/development/clock.lua");

/// Whether scripts get the development clock.
static USES_DEVELOPMENT_CLOCK: AtomicBool = AtomicBool::new(false);

/// Finds the next time for the development clock.
pub static NEXT: LazyLock<Script> =
    LazyLock::new(|| Script::new("next", include_str!("../../../lua/development/next.lua")));

/// Gives the development clock to all scripts of this process. To be called before the first script is used.
pub fn use_development_clock() {
    USES_DEVELOPMENT_CLOCK.store(true, Ordering::Relaxed);
}

impl Script {
    fn new(name: &'static str, body: &'static str) -> Self {
        Self::of(name, body, with_includes(body))
    }

    /// The script without the includes in its line `-- features <name>...`.
    fn plain(&self) -> Self {
        let features: Vec<_> = names(self.body, FEATURES).collect();
        let needed = names(self.body, INCLUDE).filter(|name| !features.contains(name));
        Self::of(self.name, self.body, includes_of(needed) + self.body)
    }

    fn bundle(&self) -> Self {
        let includes = includes_of(names(self.body, INCLUDE).chain(["bundle"]));
        let code = format!("{includes}{}return bundle(transition)\n", function("transition", self.body));
        Self::of(self.name, self.body, code)
    }

    fn of(name: &'static str, body: &'static str, code: String) -> Self {
        let sha = redis::Script::new(&code).get_hash().to_owned();
        Self { name, body, code, sha }
    }

    /// Begins a call with its keys.
    pub fn keys(&'static self, keys: &[&str]) -> Call {
        self.keys_and(keys, &[])
    }

    /// Begins a call with its keys and others that need not be text.
    pub fn keys_and(&'static self, keys: &[&str], others: &[Vec<u8>]) -> Call {
        let mut command = redis::cmd("EVALSHA");
        command.arg(&self.sha).arg(keys.len() + others.len());
        for key in keys {
            command.arg(key);
        }
        for key in others {
            command.arg(key);
        }
        // All keys of a script are of one partition, except lists and keys of other programs.
        let place = keys.first().map_or("", |key| key.split_inclusive('}').next().unwrap_or(key)).to_owned();
        Call { script: self, command, keys: keys.len() + others.len(), place }
    }

    /// Bundles `calls` into one; `self` is the bundle of their script.
    pub fn together<'a>(&'static self, calls: impl Iterator<Item = &'a Call> + Clone) -> Call {
        let mut command = redis::cmd("EVALSHA");
        let keys = calls.clone().map(|call| call.keys).sum();
        command.arg(&self.sha).arg(keys);
        for key in calls.clone().flat_map(|call| call.arguments().take(call.keys)) {
            command.arg(key);
        }
        for call in calls {
            command.arg(call.keys).arg(call.arguments().count() - call.keys);
            for argument in call.arguments().skip(call.keys) {
                command.arg(argument);
            }
        }
        Call { script: self, command, keys, place: String::new() }
    }

    /// Loads the script. Returns whether this user has the right to do so; otherwise calls carry the script's text.
    pub async fn load(&self, connection: &Connection) -> Result<bool, StoreError> {
        let loaded: Option<String> =
            connection.run_if_permitted(redis::cmd("SCRIPT").arg("LOAD").arg(&self.code)).await?;
        Ok(loaded.is_some())
    }
}

fn with_includes(body: &'static str) -> String {
    includes_of(names(body, INCLUDE)) + body
}

/// The includes with these names, each once and after its own includes. Panics if one is missing.
fn includes_of(names: impl Iterator<Item = &'static str>) -> String {
    let mut includes = Vec::new();
    resolve(names, &mut includes);
    let text = |(name, text)| match name {
        "clock" if USES_DEVELOPMENT_CLOCK.load(Ordering::Relaxed) => DEVELOPMENT_CLOCK,
        _ => text,
    };
    includes.into_iter().map(text).collect()
}

fn function(name: &str, body: &str) -> String {
    format!("local function {name}(KEYS, ARGV)\n{body}end\n")
}

/// The names in the line of `text` that begins with `start`.
fn names(text: &'static str, start: &str) -> impl Iterator<Item = &'static str> {
    let line = text.lines().take(2).find_map(|line| line.strip_prefix(start)).unwrap_or_default();
    line.split_whitespace()
}

fn resolve(names: impl Iterator<Item = &'static str>, includes: &mut Vec<(&'static str, &'static str)>) {
    for name in names {
        if includes.iter().all(|(included, _)| *included != name) {
            let include = INCLUDES.into_iter().find(|(known, _)| *known == name);
            let (name, compiled) = include.unwrap_or_else(|| panic!("lua/include/{name}.lua is missing"));
            let include = text(&format!("include/{name}"), compiled);
            resolve(self::names(include, INCLUDE), includes);
            includes.push((name, include));
        }
    }
}

/// A call of a script, to which arguments are added.
pub struct Call {
    script: &'static Script,
    command: Cmd,
    keys: usize,
    /// The hash tag of its keys, or its first key.
    place: String,
}

impl Call {
    pub fn arg(mut self, argument: impl ToRedisArgs) -> Self {
        self.command.arg(argument);
        self
    }

    /// Runs the call. A server that does not know the script gets its text.
    pub async fn run<T: FromRedisValue>(&self, servers: &Servers) -> Result<T, StoreError> {
        self.run_on_link(servers).await.map(|(reply, _)| reply)
    }

    /// Like `run`, but also returns the link on which the call was answered.
    pub async fn run_on_link<T: FromRedisValue>(&self, servers: &Servers) -> Result<(T, OnLink), StoreError> {
        let started = Instant::now();
        let result = match servers.run_on_link(&self.place, &self.command).await {
            Err(StoreError::Refused { slug, .. }) if slug == "noscript" => {
                servers.run_on_link(&self.place, &self.with_text()).await
            }
            result => result,
        };
        self.ended(started, result)
    }

    /// Runs the call on this server, whether it has the keys or not. Also returns the link's generation.
    pub async fn run_over<T: FromRedisValue>(&self, connection: &Connection) -> Result<(T, u64), StoreError> {
        let started = Instant::now();
        let result = match connection.run_on_link(&self.command).await {
            Err(StoreError::Refused { slug, .. }) if slug == "noscript" => {
                connection.run_on_link(&self.with_text()).await
            }
            result => result,
        };
        self.ended(started, result)
    }

    fn ended<T>(&self, started: Instant, result: Result<T, StoreError>) -> Result<T, StoreError> {
        metrics::redis_script(self.script.name, started.elapsed());
        result.map_err(|error| self.located(error))
    }

    /// Adds the place of the keys to an error about their type.
    pub fn located(&self, error: StoreError) -> StoreError {
        match error {
            StoreError::WrongType { text } => {
                StoreError::WrongType { text: format!("a key of {}: {text}", self.place) }
            }
            other => other,
        }
    }

    /// Keys, then arguments.
    fn arguments(&self) -> impl Iterator<Item = &[u8]> {
        // After EVALSHA, the hash and the number of keys.
        self.command.args_iter().skip(3).filter_map(|argument| match argument {
            redis::Arg::Simple(bytes) => Some(bytes),
            _ => None,
        })
    }

    fn with_text(&self) -> Cmd {
        let mut command = redis::cmd("EVAL");
        command.arg(&self.script.code).arg(self.keys);
        for argument in self.arguments() {
            command.arg(argument);
        }
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHILD: &str = "PUNCTUAL_TEST_DEVELOPMENT_CLOCK";

    #[test]
    fn a_process_that_chooses_the_development_clock_has_it_in_all_scripts_with_a_clock() {
        let is_child = std::env::var_os(CHILD).is_some();
        if is_child {
            use_development_clock();
        }
        let with_clock: Vec<_> = all().filter(|script| script.code.contains("local function clock()")).collect();
        assert!(with_clock.len() > 30, "{}", with_clock.len());
        for script in with_clock {
            assert_eq!(script.code.contains(DEVELOPMENT_CLOCK), is_child, "{}", script.name);
        }
        if !is_child {
            // The choice is for a whole process.
            let name = "a_process_that_chooses_the_development_clock_has_it_in_all_scripts_with_a_clock";
            let name = format!("{}::{name}", module_path!().split_once("::").expect("a module").1);
            let program = std::env::current_exe().expect("this program");
            let child = std::process::Command::new(program).args(["--exact", &name]).env(CHILD, "1").output();
            let child = child.expect("it runs");
            assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stdout));
            assert!(String::from_utf8_lossy(&child.stdout).contains("1 passed"), "{name}");
        }
    }
}
