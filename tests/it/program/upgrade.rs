//! Between versions: the data of 0.1.0 is read and delivered, and a build writes no form that 0.1.0 does not read.
//!
//! `PUNCTUAL_WRITE_UPGRADE=1` writes `tests/data/upgrade/` anew. Once 0.1.0 is released, that is wrong: a new form is a
//! decision about docs/upgrade.md, and a later version adds files of its own. `PUNCTUAL_TEST_0_1_0` is the program of that
//! version, for the way back.

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    path::{Path, PathBuf},
    time::Duration,
};

use lapin::{
    BasicProperties,
    options::BasicPublishOptions,
    types::{AMQPValue, FieldTable},
};
use redis::{AsyncCommands, aio::MultiplexedConnection};
use serde_json::{Value, json};

use super::{client::Client, eventually};
use crate::{
    sources::kafka::console_producer,
    support::{
        RabbitMq, RedisServer, kafka,
        punctual::Punctual,
        rabbitmq::durable,
        receiver::{Behaviour, Receiver, Request, wall_clock},
    },
};

const WRITE: &str = "PUNCTUAL_WRITE_UPGRADE";
const FIRST: &str = "PUNCTUAL_TEST_0_1_0";
/// Delay of messages that the fixture has as pending.
const LATER: &str = "20s";
/// Delivery of all of them, after that delay.
const MAX_WAIT: Duration = Duration::from_mins(1);
/// The history of the fixture is evicted after that.
const HISTORY_MS: u64 = 366 * 24 * 3600 * 1000;
/// Bytes of a checked-in dump.
const MAX_DUMP: u64 = 300 * 1024;

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/upgrade").join(name)
}

fn configuration(redis: &RedisServer, receiver: &Receiver, sources: &Value) -> String {
    let mut all = json!({
        "members": { "type": "sorted_set", "key": "members", "route": "taken" },
        "hashes": { "type": "sorted_set", "key": "hashes", "payload": "hash", "hash_prefix": "h:", "route": "taken" },
        "go": { "type": "delayqueue", "name": "go", "route": "taken" },
    });
    all.as_object_mut().expect("an object").extend(sources.as_object().expect("an object").clone());
    json!({
        "redis": { "url": redis.url() },
        "sinks": {
            "hook": { "type": "http", "url": receiver.url(), "timeout": "10s" },
            "list": { "type": "redis_list", "key": "delivered" },
        },
        "routes": {
            "web": {
                "sink": "hook", "lease": "15s", "partitions": 2,
                "retry": { "initial": LATER, "jitter": 0, "max_attempts": 3 },
                "remember": { "for": "30days" }, "history": { "for": "366days" }, "dead": { "forward": "buried" },
                "limits": { "messages": 1000, "bytes": "64MiB", "delay": "100years" },
            },
            "buried": { "sink": "hook", "lease": "15s", "limits": { "messages": 1 } },
            "tenants": { "sink": "hook", "lease": "15s", "flow": { "key": "{header:X-Tenant}", "rate": "1/s", "parallel": 3 } },
            "orders": { "sink": "hook", "lease": "15s", "flow": { "key": "{key}", "ordered": true } },
            "closed": { "sink": "hook", "lease": "15s", "remember": { "for": "30days" } },
            "taken": { "sink": "hook", "lease": "15s" },
            "listed": { "sink": "list", "window": { "from": "00:00", "to": "24:00" } },
        },
        "sources": all,
        "schedules": {
            "nightly": { "route": "listed", "cron": "0 3 * * *", "time_zone": "Europe/Berlin", "payload": { "kind": "daily" } },
        },
    })
    .to_string()
}

/// Ids that are delivered after `write`, over HTTP.
fn expected() -> BTreeSet<String> {
    let mut ids: BTreeSet<String> =
        ["kept", "long", "binary", "limited", "typed", "grouped", "retried", "flying", "p1", "p2", "held"]
            .map(str::to_owned)
            .into();
    ids.extend((0..6).map(|n| format!("tenant{n}")));
    ids.extend((0..3).map(|n| format!("order{n}")));
    ids.extend(["m1", "go-1"].map(str::to_owned));
    ids
}

/// Messages in every state, of every producer, then `kill -9`. Sources that need a broker are those with one here.
async fn write(redis: &RedisServer) -> BTreeSet<String> {
    let receiver = Receiver::start();
    let (sources, mut ids) = (brokers().await, expected());
    let mut punctual = Punctual::start(&configuration(redis, &receiver, &sources)).await;
    let client = Client::of(&punctual);
    let call = async |method: &str, path: &str, body: Value| {
        let answer = client.call(method, path, &if body.is_null() { String::new() } else { body.to_string() }).await;
        assert!(answer.status < 300, "{method} {path}: {} {}", answer.status, answer.text);
    };
    let pause = json!({ "note": "for the upgrade" });
    // One dead letter waits on the other route, the others in the outbox.
    for route in ["closed", "buried"] {
        call("POST", &format!("/v1/routes/{route}/pause"), pause.clone()).await;
    }

    // Ended, cancelled, failed, dead.
    client
        .schedule(
            "web",
            &json!([{ "id": "ended", "payload": 1 }, { "id": "cancelled", "delay": "1h", "payload": 1 }]).to_string(),
        )
        .await;
    call("DELETE", "/v1/routes/web/messages/cancelled", Value::Null).await;
    receiver.wait_for(1, MAX_WAIT).await;
    for (status, id) in [(400, "rejected"), (422, "rejected-too"), (410, "rejected-last"), (500, "retried")] {
        receiver.behave(Behaviour::Status(status));
        client.schedule("web", &json!({ "id": id, "payload": { "n": 1 }, "key": "k" }).to_string()).await;
        let state = if status == 500 { "retrying" } else { "dead" };
        eventually(id, MAX_WAIT, async || is(&client, "web", id, state).await.then_some(())).await;
    }

    // Waiting, with everything that a message can have.
    receiver.behave(Behaviour::HangFirst);
    produce(redis).await;
    let far = "2099-01-01T00:00:00Z";
    let headers = json!({ "X-Trace": "é/\"", "X-Tenant": "a" });
    client.schedule("web", &json!([
        { "id": "kept", "delay": LATER, "payload": { "n": 1 }, "headers": headers, "key": "k", "max_attempts": 7 },
        { "id": "long", "delay": LATER, "payload": "x".repeat(4000), "expires_at": far },
        { "id": "binary", "delay": LATER, "payload_base64": "AP/+gA==", "content_type": "application/x-own" },
        { "id": "limited", "delay": LATER, "payload": 1, "expires_at": far, "group": "g" },
        { "id": "typed", "delay": LATER, "payload": null, "properties": { "priority": 3 } },
        { "id": "grouped", "delay": LATER, "payload": "text", "group": "g" },
    ]).to_string()).await;
    client.schedule("closed", &json!({ "id": "held", "payload": 1 }).to_string()).await;
    call("PUT", "/v1/schedules/hourly", json!({ "route": "listed", "every": "1h", "payload": 1 })).await;
    call("PUT", "/v1/schedules/paused", json!({ "route": "listed", "every": "1h", "payload": 1 })).await;
    call("POST", "/v1/schedules/paused/pause", Value::Null).await;
    call("POST", "/v1/schedules/hourly/run", Value::Null).await;
    eventually("an occurrence", MAX_WAIT, async || {
        let delivered: u64 = redis.connection().await.llen("delivered").await.expect("a list");
        (delivered > 0).then_some(())
    })
    .await;
    ids.insert("amqp".into());
    let brokers = sources.as_object().map_or(0, serde_json::Map::len) as u64;
    eventually("brokers are read", MAX_WAIT, async || {
        (count(&client, "closed", "pending").await == 1 + brokers).then_some(())
    })
    .await;
    eventually("the sets are read", MAX_WAIT, async || (count(&client, "taken", "unack").await == 3).then_some(()))
        .await;

    // In flight, and parked behind limits.
    client.schedule("web", &json!({ "id": "flying", "payload": 1 }).to_string()).await;
    let tenants: Vec<Value> = (0..6).map(|n| json!({ "id": format!("tenant{n}"), "payload": n, "headers": { "X-Tenant": if n == 5 { "b" } else { "a" } } })).collect();
    call("PATCH", "/v1/routes/tenants/flows/b", json!({ "rate": "1/m", "parallel": 1 })).await;
    call("POST", "/v1/routes/tenants/flows/c/pause", pause).await;
    client.schedule("tenants", &Value::from(tenants).to_string()).await;
    let orders: Vec<Value> = (0..3).map(|n| json!({ "id": format!("order{n}"), "payload": n, "key": "o" })).collect();
    client.schedule("orders", &Value::from(orders).to_string()).await;
    eventually("they are in flight", MAX_WAIT, async || {
        let open: BTreeSet<String> = receiver.requests().iter().map(|request| request.id().to_owned()).collect();
        ["flying", "tenant0", "order0"].iter().all(|id| open.contains(*id)).then_some(())
    })
    .await;
    punctual.kill().await;
    ids
}

async fn count(client: &Client, route: &str, state: &str) -> u64 {
    client.stats(route).await[state].as_u64().unwrap_or_default()
}

async fn is(client: &Client, route: &str, id: &str, state: &str) -> bool {
    let answer = client.call("GET", &format!("/v1/routes/{route}/messages/{id}"), "").await;
    answer.json["state"] == state || state == "retrying" && answer.json["attempts"] == 1
}

/// `lua/produce.lua`, and the keys of programs with a source.
async fn produce(redis: &RedisServer) {
    let mut connection = redis.connection().await;
    for (id, metadata) in [("p1", r#"{"key":"k"}"#), ("p2", r#"{"expires_at":4070908800000}"#)] {
        let script = redis::Script::new(include_str!("../../../lua/produce.lua"));
        let partition = crc32fast::hash(id.as_bytes()) % 2;
        let result: Value = script
            .key(format!("{{punctual:web:{partition}/2}}:pending"))
            .arg(1)
            .arg(id)
            .arg("+20000")
            .arg("payload")
            .arg(metadata)
            .invoke_async::<Vec<String>>(&mut connection)
            .await
            .expect("accepted")
            .into();
        assert_eq!(result[0], "scheduled", "{result}");
    }
    let now = wall_clock() / 1000;
    let () = redis::pipe()
        .zadd("members", "m1", now)
        .hset("h:1", "to", "customer")
        .zadd("hashes", "h:1", now)
        .set("dp:go:msg:go-1", "body")
        .hset("dp:go:retry:cnt", "go-1", 3)
        .zadd("dp:go:pending", "go-1", now)
        // These are not due: they stay in the keys of their producers.
        .zadd("members", "m2", now + 3600)
        .query_async(&mut connection)
        .await
        .expect("written");
}

/// Settings of sources with a record and a message each.
async fn brokers() -> Value {
    let server = RabbitMq::shared().await;
    let queue = format!("upgrade-{}", wall_clock());
    let channel = server.channel().await;
    server.declare_exchange(&queue).await;
    server.declare_queue(&queue, &queue, "k", durable()).await;
    let headers = FieldTable::from(BTreeMap::from([("x-delay".into(), AMQPValue::LongInt(1))]));
    let properties = BasicProperties::default().with_headers(headers).with_message_id("amqp".into()).with_priority(3);
    channel
        .basic_publish(queue.as_str().into(), "k".into(), BasicPublishOptions::default(), b"body", properties)
        .await
        .expect("sent")
        .await
        .expect("confirmed");
    let url = format!("amqp://127.0.0.1:{}/%2f", server.port());
    let mut sources =
        json!({ "mq": { "type": "rabbitmq", "url": url, "queue": queue, "id_from": "message_id", "route": "closed" } });
    if let Some(broker) = kafka::shared().await.filter(|_| kafka::installed()) {
        let topic = kafka::topic_name();
        kafka::create_topic(&broker, &topic, 1, &[]).await;
        console_producer(&broker, &topic, "punctual-delay:1\tkey\tbody\n").await;
        sources["log"] = json!({
            "type": "kafka", "brokers": [broker], "topics": [topic], "group_id": topic, "start": "earliest", "route": "closed",
        });
    }
    sources
}

/// Starts on the data, and delivers it.
async fn delivers(redis: &RedisServer, expected: &BTreeSet<String>, written: u64, program: Option<PathBuf>) {
    let receiver = Receiver::start();
    let configuration = configuration(redis, &receiver, &json!({}));
    let mut punctual = match program {
        Some(program) => Punctual::start_program(program, &configuration).await,
        None => Punctual::start(&configuration).await,
    };
    let client = Client::of(&punctual);
    let paused = client.stats("closed").await;
    assert_eq!(paused["paused"], true, "{paused}");
    let groups = client.call("GET", "/v1/routes/web/groups/g", "").await;
    assert_eq!(groups.status, 200, "{}", groups.text);
    for route in ["closed", "buried"] {
        assert!(client.call("POST", &format!("/v1/routes/{route}/resume"), "").await.status < 300, "{route}");
    }
    let arrived =
        || -> BTreeSet<String> { receiver.requests().iter().map(|request| request.id().to_owned()).collect() };
    eventually("everything is delivered", MAX_WAIT * 2, async || expected.is_subset(&arrived()).then_some(())).await;
    for route in ["web", "tenants", "orders", "closed", "taken"] {
        client.drained(route, MAX_WAIT).await;
    }
    eventually("dead letters are forwarded", MAX_WAIT, async || {
        (arrived().iter().filter(|id| id.contains("rejected")).count() == 3).then_some(())
    })
    .await;
    check(&client, &receiver.requests(), written).await;
    let loud: Vec<String> = punctual.log().lines().filter(|line| line.contains(" ERROR ")).map(str::to_owned).collect();
    assert!(loud.is_empty(), "{loud:#?}");
    assert_eq!(punctual.terminate().await.code, Some(0), "{}", punctual.log());
}

async fn check(client: &Client, requests: &[Request], written: u64) {
    let find = |id: &str| requests.iter().find(|request| request.id() == id).unwrap_or_else(|| panic!("no {id}"));
    assert_eq!(find("binary").body.as_ref(), b"\0\xff\xfe\x80");
    assert_eq!((find("long").body.len(), find("retried").attempt()), (4000, 2));
    assert_eq!(find("kept").header("X-Tenant"), "a");
    let orders: Vec<&str> = requests.iter().map(Request::id).filter(|id| id.starts_with("order")).collect();
    assert_eq!(orders, ["order0", "order1", "order2"]);
    assert_eq!(count(client, "web", "dead").await, 3);
    let schedules = client.call("GET", "/v1/schedules", "").await;
    for name in ["nightly", "hourly", "paused"] {
        assert!(schedules.text.contains(&format!("\"{name}\"")), "{}", schedules.text);
    }
    if wall_clock() < written + HISTORY_MS {
        let ended = client.call("GET", "/v1/routes/web/messages/ended", "").await;
        assert!(ended.status == 200 && ended.text.contains("delivered"), "{} {}", ended.status, ended.text);
    }
}

/// Each kind of key with its type, and each form of its values, without ids, numbers and times.
async fn forms(redis: &RedisServer) -> BTreeSet<String> {
    let mut connection = redis.connection().await;
    let keys: Vec<String> = connection.keys("*").await.expect("keys");
    let mut forms = BTreeSet::new();
    for key in keys.into_iter().filter(|key| key.contains("punctual")) {
        let kind: String = redis::cmd("TYPE").arg(&key).query_async(&mut connection).await.expect("a type");
        let name = key.rsplit(':').next().expect("a part").to_owned();
        forms.insert(format!("{kind} {name}"));
        forms.extend(
            values(&mut connection, &key, &kind, &name).await.into_iter().map(|form| format!("{kind} {name} {form}")),
        );
    }
    forms
}

async fn values(connection: &mut MultiplexedConnection, key: &str, kind: &str, name: &str) -> BTreeSet<String> {
    let read: Vec<Vec<u8>> = match (kind, name) {
        ("hash", "messages") => {
            let bodies: Vec<Vec<u8>> = connection.hvals(key).await.expect("values");
            // Version and, from version 2 on, the bits of the form.
            return bodies
                .iter()
                .map(|body| match body[..] {
                    [1, ..] => "1".to_owned(),
                    [version, ..] => format!("{version} {:04b}", body.get(17).copied().unwrap_or_default()),
                    [] => "empty".to_owned(),
                })
                .collect();
        }
        ("hash", "attempts" | "records" | "rules") => connection.hvals(key).await.expect("values"),
        ("string", "route" | "bytes") => vec![connection.get(key).await.expect("a value")],
        _ => return BTreeSet::new(),
    };
    read.iter()
        .map(|value| digits(&String::from_utf8_lossy(value)).split(" punctual-").next().unwrap_or_default().to_owned())
        .collect()
}

/// Each number as 9.
fn digits(text: &str) -> String {
    let mut shown = String::new();
    for letter in text.chars().filter(|letter| !letter.is_control()) {
        if !letter.is_ascii_digit() && letter != '.' {
            shown.push(letter);
        } else if !shown.ends_with('9') {
            shown.push('9');
        }
    }
    shown
}

#[tokio::test(flavor = "multi_thread")]
async fn a_build_writes_no_form_that_0_1_0_does_not_read() {
    let redis = RedisServer::start().await;
    let ids = write(&redis).await;
    let found = forms(&redis).await;
    if env::var_os(WRITE).is_some() {
        save(&redis, &ids, &found).await;
    }
    let known = fs::read_to_string(file("0.1.0.forms")).expect("readable");
    let known: BTreeSet<&str> = known.lines().collect();
    let new: Vec<&String> = found.iter().filter(|form| !known.contains(form.as_str())).collect();
    assert!(new.is_empty(), "a rolled-back 0.1.0 finds these new forms, see docs/upgrade.md: {new:#?}");
    if let Some(program) = env::var_os(FIRST) {
        delivers(&redis, &ids, wall_clock(), Some(program.into())).await;
    }
}

async fn save(redis: &RedisServer, ids: &BTreeSet<String>, forms: &BTreeSet<String>) {
    let lines = |lines: &BTreeSet<String>| lines.iter().flat_map(|line| [line.as_str(), "\n"]).collect::<String>();
    let mut connection = redis.connection().await;
    redis::cmd("SAVE").exec_async(&mut connection).await.expect("saved");
    let directory: Vec<String> =
        redis::cmd("CONFIG").arg("GET").arg("dir").query_async(&mut connection).await.expect("a directory");
    fs::copy(Path::new(&directory[1]).join("dump.rdb"), file("0.1.0.rdb")).expect("copied");
    fs::write(file("0.1.0.forms"), lines(forms)).expect("written");
    fs::write(file("0.1.0.ids"), format!("{}\n{}", wall_clock(), lines(ids))).expect("written");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_data_of_0_1_0_is_read_and_delivered() {
    let directory = tempfile::tempdir().expect("a directory");
    assert!(fs::metadata(file("0.1.0.rdb")).expect("a dump").len() < MAX_DUMP);
    fs::copy(file("0.1.0.rdb"), directory.path().join("dump.rdb")).expect("copied");
    // Redis reads a dump only without an append-only file.
    let place = directory.path().display().to_string();
    let redis = RedisServer::start_with(&["--dir", &place, "--appendonly", "no"]).await;
    let text = fs::read_to_string(file("0.1.0.ids")).expect("readable");
    let (written, ids) = text.split_once('\n').expect("a time, then ids");
    let ids = ids.lines().map(str::to_owned).collect();
    delivers(&redis, &ids, written.parse().expect("a time"), None).await;
}
