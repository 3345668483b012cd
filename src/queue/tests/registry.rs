//! Routes are registered on a Redis that is safe, and again after it lost them.

use parking_lot::Mutex;
use punctual_model::Reply;
use tokio::time::{advance, sleep};

use super::*;
use crate::{
    log_lines::LogLines,
    store::redis::{
        RedisStore, SafetyError, UNREGISTERED,
        connection::{Servers, peers::Members},
    },
};

/// A server as it describes itself, and the commands that it got.
#[derive(Clone)]
struct Described {
    facts: Arc<Mutex<BTreeMap<&'static str, &'static str>>>,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Described {
    fn new(bench: &Bench) -> Self {
        let facts = [
            ("version", "7.0.15"),
            ("mode", "standalone"),
            ("role", "master"),
            ("maxmemory_policy", "noeviction"),
            ("used_memory", "1000"),
            ("maxmemory", "4000"),
        ];
        let server = Self { facts: Arc::new(Mutex::new(facts.into())), asked: Arc::default() };
        let replies = server.clone();
        bench.redis.server.reply_with(move |command| replies.reply(command));
        server
    }

    fn reply(&self, command: &[String]) -> Option<Reply> {
        self.asked.lock().push(command[0].clone());
        let facts = self.facts.lock();
        let denied = |name: &str| Reply::error(format!("NOPERM no permissions to run the '{name}' command"));
        match &*command[0] {
            "SCRIPT" if facts.contains_key("no SCRIPT") => Some(denied("script|load")),
            "PUBLISH" if facts.contains_key("no PUBLISH") => Some(denied("publish")),
            "HELLO" if facts.contains_key("no HELLO") => Some(denied("hello")),
            "INFO" if facts.contains_key("no INFO") => Some(denied("info")),
            "HELLO" => {
                let all = ["version", "mode", "role"].map(|name| [name, facts[name]].map(Reply::bulk));
                Some(Reply::Array(all.into_iter().flatten().collect()))
            }
            "INFO" => {
                let lines = facts.iter().map(|(name, value)| format!("{name}:{value}\r\n"));
                let others = [("redis_version", "version"), ("role", "role")]
                    .map(|(name, fact)| format!("{name}:{}\r\n", facts[fact]));
                let is_cluster = u8::from(facts["mode"] == "cluster");
                let cluster = format!("cluster_enabled:{is_cluster}\r\n");
                Some(Reply::bulk(lines.chain(others).chain([cluster]).collect::<String>()))
            }
            "EXISTS" if facts.contains_key("slots") => {
                Some(Reply::error("CROSSSLOT Keys in request don't hash to the same slot"))
            }
            _ => facts.get("state").map(|state| Reply::error(*state)),
        }
    }

    fn set(&self, name: &'static str, value: &'static str) {
        self.facts.lock().insert(name, value);
    }

    fn unset(&self, name: &str) {
        self.facts.lock().remove(name);
    }

    /// The commands since the last call.
    fn asked(&self) -> Vec<String> {
        std::mem::take(&mut self.asked.lock())
    }
}

impl Bench {
    /// As after FLUSHALL.
    fn flush(&self) {
        self.redis.server.keys(punctual_model::Keyspace::clear);
    }

    fn emptied(&self) -> u64 {
        let page = self.metrics.render();
        let line = page.lines().find_map(|line| line.strip_prefix("punctual_redis_errors_total{kind=\"emptied\"} "));
        line.map_or(0, |value| value.parse().unwrap())
    }
}

#[tokio::test(start_paused = true)]
async fn a_prepared_server_costs_two_commands_and_its_rights_are_asked_for_each_ten_seconds() {
    let bench = Bench::plain().await;
    let server = Described::new(&bench);
    bench.queue.prepare().await.unwrap();
    let first = server.asked();
    assert!(["HELLO", "INFO"].iter().all(|name| first.iter().any(|asked| asked == name)), "{first:?}");
    bench.queue.prepare().await.unwrap();
    assert_eq!(server.asked(), ["EVALSHA"]);
    sleep(Duration::from_secs(10)).await;
    bench.queue.prepare().await.unwrap();
    assert_eq!(server.asked(), ["EVALSHA", "EVALSHA"], "rights, too");
    bench.queue.distrust().await;
    bench.queue.prepare().await.unwrap();
    assert_eq!(server.asked(), ["EVALSHA", "EVALSHA"]);
    assert_eq!(bench.queue.ready().await, Ok(()));
    assert_eq!(server.asked(), ["HELLO", "INFO", "EVALSHA"]);
    // Another server may answer on a new link.
    bench.redis.links.end_all();
    sleep(Duration::from_secs(1)).await;
    bench.queue.prepare().await.unwrap();
    assert!(server.asked().contains(&"SCRIPT".to_owned()));
    bench.queue.prepare().await.unwrap();
    assert_eq!(server.asked(), ["EVALSHA"]);
}

#[tokio::test(start_paused = true)]
async fn routes_that_are_lost_are_registered_again_and_the_loss_is_counted() {
    let bench = Bench::plain().await;
    Described::new(&bench);
    let mut registered = bench.queue.registered();
    bench.queue.prepare().await.unwrap();
    registered.mark_unchanged();
    assert_eq!((bench.emptied(), bench.queue.has_route("r")), (0, true));
    bench.flush();
    bench.schedule([message("a")]).await;
    assert_eq!((bench.emptied(), registered.has_changed().unwrap()), (1, true));
    registered.mark_unchanged();
    // One partition that is gone is a loss, too.
    bench.redis.execute(&["DEL", "{p:r:2/6}:route"]);
    bench.queue.prepare().await.unwrap();
    assert_eq!((bench.emptied(), registered.has_changed().unwrap()), (2, true));
    registered.mark_unchanged();
    // On purpose it is none.
    bench.flush();
    bench.queue.prepare_again().await.unwrap();
    assert_eq!((bench.emptied(), registered.has_changed().unwrap()), (2, true));
    // A route that is new is none, either.
    let added = bench.redis.store.serving([route(), RouteSettings::plain("new", 10)]);
    bench.queue.replace(Arc::new(added), &BTreeMap::new(), |_| false);
    bench.queue.prepare().await.unwrap();
    assert_eq!((bench.emptied(), bench.queue.routes().len()), (2, 2));
    let answers = bench.queue.schedule("new", "api", vec![message("a")]).await.unwrap();
    assert_eq!(answers[0].status, ScheduleStatus::Scheduled);
}

#[tokio::test(start_paused = true)]
async fn a_call_fails_if_its_partition_cannot_be_opened() {
    let bench = Bench::plain().await;
    let server = Described::new(&bench);
    bench.queue.prepare().await.unwrap();
    bench.flush();
    server.set("role", "slave");
    let error = bench.queue.cancel("r", &id("a").into()).await.unwrap_err();
    assert!(matches!(error, QueueError::Store(StoreError::Unavailable { kind: UNREGISTERED, .. })), "{error}");
    assert!(error.to_string().contains("read-only replica"), "{error}");
    server.set("role", "master");
    assert!(bench.queue.cancel("r", &id("a").into()).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_server_that_could_lose_messages_is_refused() {
    let bench = Bench::plain().await;
    let server = Described::new(&bench);
    let lenient = Queue::new(bench.redis.store.clone(), &BTreeMap::new(), true);
    let refused = [
        ("version", "6.0.20", true, "redis 6.0.20 is too old: punctual needs 6.2 or later"),
        (
            "mode",
            "cluster",
            true,
            "redis is a cluster: give its servers as `redis.cluster: { urls: [...] }` instead of `redis.url`",
        ),
        ("role", "slave", false, "redis is a read-only replica"),
        (
            "maxmemory_policy",
            "allkeys-lru",
            true,
            "redis may evict messages: maxmemory-policy is `allkeys-lru`; set it to noeviction (or accept the loss with \
             `redis.allow_eviction: true`)",
        ),
    ];
    for (fact, value, is_definite, text) in refused {
        for no_hello in [false, true] {
            if no_hello {
                server.set("no HELLO", "");
            }
            let before = server.facts.lock()[fact];
            server.set(fact, value);
            let error = bench.queue.prepare().await.unwrap_err();
            assert_eq!(
                (error.to_string(), error.is_definite(), error.is_loading()),
                (text.to_owned(), is_definite, false)
            );
            assert_eq!(bench.queue.ready().await, Err(text.to_owned()));
            assert_eq!(lenient.prepare().await.is_ok(), fact == "maxmemory_policy");
            server.set(fact, before);
            server.unset("no HELLO");
        }
    }
    assert_eq!(bench.queue.ready().await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn facts_that_the_user_has_no_right_to_are_listed() {
    let bench = Bench::plain().await;
    let (server, store) = (Described::new(&bench), bench.redis.store.clone());
    let safety = async || store.check_safety(false).await.unwrap();
    let known = safety().await;
    assert_eq!((known.evicting, known.unchecked, known.memory.unwrap().max), (None, vec![], Some(4000)));
    server.set("maxmemory_policy", "volatile-lru");
    assert_eq!(safety().await.evicting.as_deref(), Some("volatile-lru"));
    server.set("no INFO", "");
    let known = safety().await;
    assert_eq!((known.evicting, known.unchecked, known.memory), (None, vec!["eviction policy"], None));
    server.set("no HELLO", "");
    assert_eq!(safety().await.unchecked, ["version", "role", "eviction policy"]);
    // Its error shows a cluster.
    server.set("slots", "");
    assert_eq!(store.check_safety(false).await, Err(SafetyError::Cluster));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_is_loading_will_be_ready() {
    let bench = Bench::plain().await;
    let server = Described::new(&bench);
    server.set("state", "LOADING Redis is loading the dataset in memory");
    let error = bench.queue.prepare().await.unwrap_err();
    assert_eq!((error.is_loading(), error.is_definite()), (true, false));
    server.unset("state");
    advance(Duration::from_secs(1)).await;
    bench.queue.prepare().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn rights_that_are_missing_are_logged_once_and_unsafe_settings_at_the_start() {
    let bench = Bench::plain().await;
    let server = Described::new(&bench);
    let (log, _collecting) = LogLines::collect();
    let denied = |lines: &[String]| ["SCRIPT LOAD", "PUBLISH"].map(|name| lines.iter().any(|line| line.contains(name)));
    let queue = Queue::new(bench.redis.store.clone(), &BTreeMap::new(), true);
    queue.prepare().await.unwrap();
    let lines = log.take();
    assert!(lines.iter().all(|line| line.starts_with("INFO ")), "{lines:?}");
    for (name, expected) in [("no SCRIPT", [true, false]), ("no PUBLISH", [false, true])] {
        server.set(name, "");
        for expected in [expected, [false; 2]] {
            bench.flush();
            queue.prepare_again().await.unwrap();
            assert_eq!(denied(&log.take()), expected, "{name}");
        }
    }
    let page = bench.metrics.render();
    assert!(page.contains("punctual_wakeups_denied_total 2"), "{page}");

    server.set("maxmemory_policy", "volatile-lru");
    Queue::new(bench.redis.store.clone(), &BTreeMap::new(), true).prepare().await.unwrap();
    let lines = log.take();
    assert!(lines.iter().any(|line| line.contains("redis evicts keys") && line.contains("volatile-lru")), "{lines:?}");
    assert!(!lines.iter().any(|line| line.contains("unchecked")), "{lines:?}");
    server.set("no INFO", "");
    Queue::new(bench.redis.store.clone(), &BTreeMap::new(), true).prepare().await.unwrap();
    let lines = log.take();
    assert!(lines.iter().any(|line| line.contains("unchecked=\"eviction policy\"")), "{lines:?}");
}

#[tokio::test]
async fn only_a_cluster_can_be_served_in_part() {
    let members = Members::start::<3>().await;
    members.spread();
    let servers = Servers::of_cluster(members.cluster(), Duration::from_secs(5));
    let store = Arc::new(RedisStore::new(servers, "p", [route()]));
    store.register().await.unwrap();
    assert!(Queue::new(store, &BTreeMap::new(), false).may_serve_a_part().await);
    assert!(!Bench::plain().await.queue.may_serve_a_part().await);
}
