//! Refusals of `serve`: with which exit code and text, and with nothing changed.

use std::{collections::BTreeMap, path::Path};

use tokio::net::TcpListener;

use super::{client::Client, eventually};
use crate::support::{
    Authority, RedisServer,
    command::{Ended, Workplace},
    punctual::Punctual,
};

/// Every key with its serialized value.
pub async fn content(redis: &RedisServer) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut connection = redis.connection().await;
    let keys: Vec<Vec<u8>> = redis::cmd("KEYS").arg("*").query_async(&mut connection).await.unwrap();
    let mut content = BTreeMap::new();
    for key in keys {
        let value = redis::cmd("DUMP").arg(&key).query_async(&mut connection).await.unwrap();
        content.insert(key, value);
    }
    content
}

fn configuration(redis: &RedisServer, partitions: u16) -> String {
    format!(
        "redis: {{ url: '{}' }}\nserver: {{ listen: '127.0.0.1:0' }}\n\
         sinks: {{ jobs: {{ type: redis_list, key: jobs }} }}\n\
         routes: {{ list: {{ sink: jobs, partitions: {partitions} }} }}\n",
        redis.url()
    )
}

fn assert_refused(ended: &Ended, code: i32, texts: &[&str]) {
    assert_eq!(ended.code, Some(code), "{ended:?}");
    for text in texts {
        assert!(ended.error.contains(text), "`{text}` in: {}", ended.error);
    }
}

#[tokio::test]
async fn a_wrong_configuration_is_refused_with_every_mistake_and_its_place() {
    let redis = RedisServer::start().await;
    let workplace = Workplace::with(&format!(
        "redis:\n  url: '{}'\n  timeot: 1s\nsinks:\n  hook: {{ type: http, url: 'http://127.0.0.1:1', timeout: 10s }}\n\
         routes:\n  a: {{ sink: hok }}\n  b: {{ sink: hook, lease: 10s }}\nmax_sleep: soon\n",
        redis.url()
    ));
    let mistakes = [
        "punctual: the configuration is invalid",
        "punctual.yaml:3:3: redis.timeot: `timeot` is unknown: did you mean `timeout`?",
        "punctual.yaml:7:8: routes.a.sink:",
        "`hok`",
        "punctual.yaml:8:20: routes.b.lease:",
        "punctual.yaml:9:1: max_sleep: `soon`",
    ];
    for command in [&["serve"][..], &["check"], &["check", "--connect"]] {
        let ended = workplace.run(command).await;
        assert_refused(&ended, 2, &mistakes);
        assert_eq!(ended.out, "");
    }
    let missing = Workplace::with("").run(&["serve", "-c", "missing.yaml"]).await;
    assert_refused(&missing, 2, &["missing.yaml"]);
    assert!(content(&redis).await.is_empty(), "nothing was written");
}

#[tokio::test]
async fn a_cluster_is_refused_also_where_only_its_errors_reveal_it() {
    for (assigned, silent) in [(false, false), (true, false), (false, true), (true, true)] {
        // Redis itself lets every user call HELLO.
        let hidden = if silent { &["--rename-command", "HELLO", ""][..] } else { &[] };
        let redis = RedisServer::start_with(&[&["--cluster-enabled", "yes"], hidden].concat()).await;
        let mut raw = redis.connection().await;
        if assigned {
            redis::cmd("CLUSTER")
                .arg("ADDSLOTS")
                .arg((0..16384).collect::<Vec<u16>>())
                .exec_async(&mut raw)
                .await
                .expect("assigned");
            // A node that has just got its slots takes a moment to believe that the cluster is well.
            eventually("it serves", std::time::Duration::from_secs(5), async || {
                let info: String =
                    redis::cmd("CLUSTER").arg("INFO").query_async(&mut redis.connection().await).await.ok()?;
                info.contains("cluster_state:ok").then_some(())
            })
            .await;
        }
        let limited = ["SETUSER", "limited", "on", ">secret", "~*", "&*", "+@all", "-info", "-cluster"];
        redis::cmd("ACL").arg(&limited).exec_async(&mut raw).await.expect("a user");
        let url = format!("'{}'", redis.url());
        let user = if silent { format!("{url}, username: limited, password: secret") } else { url.clone() };
        let workplace = Workplace::with(&configuration(&redis, 1).replace(&url, &user));
        let text = "redis is a cluster: give its servers as `redis.cluster: { urls: [...] }` instead of `redis.url`";
        assert_refused(&workplace.run(&["serve"]).await, 1, &[text]);
        let checked = workplace.run(&["check", "--connect"]).await;
        assert!(checked.code == Some(1) && checked.out.contains(text), "{checked:?}");
    }
}

#[tokio::test]
async fn a_key_of_another_certificate_is_found_before_anything_is_served() {
    let (redis, own, other) = (RedisServer::start().await, Authority::new(), Authority::new());
    let (client, server) = (own.file("client.pem"), own.file("server.pem"));
    let ca = own.file("ca.pem");
    let pair = |cert: &Path, key: &Path| format!("cert_file: '{}', key_file: '{}'", cert.display(), key.display());
    let workplace = |client_key: &Path, server_key: &Path| {
        let files = format!("tls: {{ ca_file: '{}', {} }}", ca.display(), pair(&client, client_key));
        Workplace::with(&format!(
            "redis: {{ url: 'rediss://127.0.0.1:1', {files} }}\n\
             server: {{ listen: '127.0.0.1:0', tls: {{ {} }} }}\nsinks:\n\
             \x20 hook: {{ type: http, url: 'https://localhost', {files} }}\n\
             \x20 rabbit: {{ type: rabbitmq, url: 'amqps://localhost', exchange: x, {files} }}\n\
             \x20 list: {{ type: redis_list, url: 'rediss://localhost', key: x, {files} }}\n\
             \x20 topic: {{ type: kafka, brokers: ['localhost:1'], topic: x, {files} }}\n\
             routes: {{ a: {{ sink: hook }} }}\nsources:\n\
             \x20 queue: {{ type: rabbitmq, url: 'amqps://localhost', queue: q, route: a, {files} }}\n\
             \x20 log: {{ type: kafka, brokers: ['localhost:1'], topics: [t], group_id: g, route: a, {files} }}\n",
            pair(&server, server_key),
        ))
    };
    let good = workplace(&own.file("client.key"), &own.file("server.key")).run(&["check"]).await;
    assert_eq!(good.code, Some(0), "{good:?}");
    let wrong_server = workplace(&own.file("client.key"), &other.file("server.key"));
    for command in [&["serve"][..], &["check"], &["check", "--connect"]] {
        let text = ["the configuration is invalid", "server.tls: ", "server.pem"];
        assert_refused(&wrong_server.run(command).await, 2, &text);
    }
    let wrong_clients = workplace(&other.file("client.key"), &own.file("server.key"));
    for command in [&["serve"][..], &["check"], &["check", "--connect"]] {
        let each = ["redis: ", "sinks.hook: ", "sinks.rabbit: ", "sinks.list: ", "sinks.topic: "];
        assert_refused(&wrong_clients.run(command).await, 2, &each);
    }
    let sources = wrong_clients.run(&["check"]).await.error;
    assert!(sources.contains("sources.queue: ") && sources.contains("sources.log: "), "{sources}");
    assert!(content(&redis).await.is_empty(), "nothing was written");
}

#[tokio::test]
async fn what_only_a_library_can_refuse_is_a_wrong_configuration_too() {
    let redis = RedisServer::start().await;
    let workplace = Workplace::with(&format!(
        "redis: {{ url: '{}' }}\nserver: {{ listen: '127.0.0.1:0' }}\nsinks:\n\
         \x20 hook: {{ type: http, url: 'https://localhost', tls: {{ ca_file: punctual.yaml }} }}\n\
         \x20 rabbit: {{ type: rabbitmq, url: 'amqps://localhost', exchange: x, tls: {{ ca_file: punctual.yaml }} }}\n\
         \x20 list: {{ type: redis_list, url: 'rediss://localhost', key: x, tls: {{ ca_file: punctual.yaml }} }}\n\
         \x20 topic: {{ type: kafka, brokers: ['localhost:9092'], topic: x, tls: {{ ca_file: punctual.yaml }} }}\n\
         routes: {{ a: {{ sink: hook }} }}\n",
        redis.url()
    ));
    let each = ["the configuration is invalid", "sinks.hook: ", "sinks.rabbit: ", "sinks.list: ", "sinks.topic: "];
    for command in [&["serve"][..], &["check"], &["check", "--connect"]] {
        assert_refused(&workplace.run(command).await, 2, &each);
    }
    let own = Workplace::with("redis: { url: 'rediss://localhost', tls: { ca_file: punctual.yaml } }\n");
    for command in [&["serve"][..], &["check"], &["check", "--connect"]] {
        assert_refused(
            &own.run(command).await,
            2,
            &["the configuration is invalid", "redis: punctual.yaml: no certificate in it"],
        );
    }
    assert!(content(&redis).await.is_empty(), "nothing was written");
}

#[tokio::test]
async fn check_answers_in_json_when_the_configuration_is_invalid_too() {
    let workplace = Workplace::with("redis:\n  timeot: 1s\nroutes:\n  a: { sink: b }\n");
    let ended = workplace.run(&["check", "--json"]).await;
    assert_eq!(ended.code, Some(2), "{ended:?}");
    let known = "url, sentinel, cluster, username, password, tls, key_prefix, data_dir, timeout, max_memory, durability, \
                 allow_eviction";
    let unknown = format!("`timeot` is unknown: did you mean `timeout`? known: {known}");
    let shown: serde_json::Value = serde_json::from_str(&ended.out).expect("JSON");
    let expected = serde_json::json!({
        "valid": false,
        "problems": [
            { "path": "redis.timeot", "file": "punctual.yaml", "line": 2, "column": 3, "text": unknown },
            {
                "path": "routes.a.sink", "file": "punctual.yaml", "line": 4, "column": 8,
                "text": "sink `b` is unknown: known: nothing"
            },
        ],
    });
    assert_eq!(shown, expected);

    let unused = Workplace::with("sinks: { a: { type: redis_list, key: k } }\n");
    let ended = unused.run(&["check", "--json"]).await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let shown: serde_json::Value = serde_json::from_str(&ended.out).expect("JSON");
    assert_eq!((&shown["valid"], &shown["warnings"][0]["path"]), (&true.into(), &"sinks.a".into()), "{shown}");
    let ended = unused.run(&["check"]).await;
    assert_eq!(ended.error, "warning: punctual.yaml:1:10: sinks.a: no route uses it\n");
}

#[tokio::test]
async fn an_unknown_command_or_option_is_a_usage_error() {
    let workplace = Workplace::with("");
    assert_refused(&workplace.run(&["serv"]).await, 2, &["unrecognized subcommand 'serv'"]);
    assert_refused(&workplace.run(&["serve", "--fast"]).await, 2, &["unexpected argument '--fast'"]);
    assert_refused(&workplace.run(&[]).await, 2, &["Usage"]);
}

#[tokio::test]
async fn a_redis_that_evicts_is_refused_and_one_that_begins_to_is_not_ready() {
    let evicting = RedisServer::start_with(&["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"]).await;
    let workplace = Workplace::with(&configuration(&evicting, 1));
    let texts = ["redis may evict messages: maxmemory-policy is `allkeys-lru`", "noeviction"];
    assert_refused(&workplace.run(&["serve"]).await, 1, &texts);
    assert_refused(&workplace.run(&["check", "--connect"]).await, 1, &[]);
    assert!(content(&evicting).await.is_empty(), "nothing was written");

    let redis = RedisServer::start().await;
    let punctual = Punctual::start(&configuration(&redis, 1)).await;
    let client = Client::of(&punctual);
    let mut connection = redis.connection().await;
    for (policy, status) in [("allkeys-random", 503), ("noeviction", 200), ("volatile-ttl", 200)] {
        let mut set = redis::cmd("CONFIG");
        let () = set.arg("SET").arg("maxmemory-policy").arg(policy).query_async(&mut connection).await.unwrap();
        let answer = client.readiness().await;
        assert_eq!(answer.status, status, "{policy}: {}", answer.text);
        assert!(status == 200 || answer.problem(503) == "not-ready" && answer.text.contains(policy), "{}", answer.text);
    }
}

#[tokio::test]
async fn a_third_number_of_partitions_is_refused_while_messages_are_moved() {
    let redis = RedisServer::start().await;
    let mut punctual = Punctual::start(&configuration(&redis, 1)).await;
    Client::of(&punctual).schedule("list", r#"{"id":"held","delay":"1h","payload":"x"}"#).await;
    assert_eq!(punctual.terminate().await.code, Some(0));
    // In flight until 2112: the move does not end.
    let key = |set: &str| format!("{{punctual:list:0/1}}:{set}");
    let mut held = redis::pipe();
    held.zrem(key("pending"), "held").zadd(key("unack"), "held", 1_u64 << 52);
    held.exec_async(&mut redis.connection().await).await.expect("the server answers");
    let mut punctual = Punctual::start(&configuration(&redis, 2)).await;
    assert_eq!(punctual.terminate().await.code, Some(0));
    let before = content(&redis).await;
    let former = [
        "route `list` has 2 partitions, which replaced the 1",
        "routes.list.partitions",
        "punctual repartition list 1",
    ];
    let third = ["route `list` is stored as", "routes.list.partitions", "until it is done"];
    for (partitions, texts) in [(1, former), (3, third)] {
        let refused = Workplace::with(&configuration(&redis, partitions)).run(&["serve"]).await;
        assert_refused(&refused, 1, &texts);
    }
    assert_eq!(content(&redis).await, before);
}

#[tokio::test]
async fn an_address_in_use_is_refused_before_anything_is_written() {
    let redis = RedisServer::start().await;
    let taken = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let workplace = Workplace::with(&configuration(&redis, 1).replace("127.0.0.1:0", &address));
    assert_refused(&workplace.run(&["serve"]).await, 1, &[&format!("server.listen {address}"), "in use"]);
    assert!(content(&redis).await.is_empty());
}

#[tokio::test]
async fn wrong_input_and_wrong_tokens_change_nothing() {
    let redis = RedisServer::start().await;
    let with_token = configuration(&redis, 1).replace("listen:", "auth: { tokens: [right-token] }, listen:");
    let punctual = Punctual::start(&with_token).await;
    let before = content(&redis).await;
    let http = crate::support::http::client();
    let post = |path: &str, token: Option<&str>, body: &'static str| {
        let request = http.post(punctual.url(path)).body(body);
        match token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    };
    let messages = "/v1/routes/list/messages";
    for (path, token, body, status) in [
        (messages, None, r#"{"payload":"x"}"#, 401),
        (messages, Some("wrong-token"), r#"{"payload":"x"}"#, 401),
        (messages, Some("right-toke"), r#"{"payload":"x"}"#, 401),
        ("/v1/routes/none/messages", Some("right-token"), r#"{"payload":"x"}"#, 404),
        (messages, Some("right-token"), "{", 400),
        (messages, Some("right-token"), r#"{"payload":"x","dellay":1}"#, 422),
        (messages, Some("right-token"), r#"[{"payload":"x"},{"payload":"x","delay":-1}]"#, 422),
    ] {
        let answer = crate::support::answer(post(path, token, body)).await;
        answer.problem(status);
    }
    assert_eq!(content(&redis).await, before);
    let accepted = post(messages, Some("right-token"), r#"{"payload":"x"}"#).send().await.unwrap();
    assert_eq!(accepted.status(), 201);
    let list_length = async || {
        let length: usize = redis::cmd("LLEN").arg("jobs").query_async(&mut redis.connection().await).await.unwrap();
        (length == 1).then_some(())
    };
    eventually("it is delivered", std::time::Duration::from_secs(5), list_length).await;
}
