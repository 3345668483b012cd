use std::{process::Stdio, time::Duration};

use futures::StreamExt;
use tokio::{
    io::AsyncWriteExt,
    process::Command,
    time::{Instant, timeout_at},
};

use super::{client::Client, heavy};
use crate::support::{RedisServer, punctual::Punctual, receiver::Receiver, scale::rounds};

/// Commands sent by the client while it is watched: a poll of each route, and five others. By default one in 2 s.
const MOST_COMMANDS: usize = 15;
/// Clock ticks of 10 ms.
const MOST_CPU_TICKS: u64 = 5;
/// A debug build on a busy machine keeps this; the printed number is the one that counts.
const MOST_LATE: u64 = 200;

/// `max_sleep`, after which each route polls, in seconds. An idle instance is watched for this time.
fn max_sleep() -> u64 {
    rounds(10, 30)
}

fn configuration(redis: &RedisServer, receiver: &Receiver) -> String {
    let routes: Vec<String> = (0..10).map(|n| format!("route-{n}: {{ sink: hook }}")).collect();
    format!(
        "max_sleep: {}s\nredis: {{ url: '{}' }}\nsinks: {{ hook: {{ type: http, url: '{}' }} }}\nroutes: {{ {} }}\n",
        max_sleep(),
        redis.url(),
        receiver.url(),
        routes.join(", ")
    )
}

/// The next message comes in time; says how late.
async fn arrives(receiver: &Receiver, count: usize, what: &str) {
    let requests = receiver.wait_for(count, Duration::from_secs(10)).await;
    let request = &requests[count - 1];
    assert!(request.arrived >= request.due(), "{} ms early", request.due() - request.arrived);
    let late = request.arrived - request.due();
    println!("idle: {what}: {late} ms late");
    assert!(late <= MOST_LATE, "{late} ms late");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_instance_hardly_polls_uses_no_cpu_and_wakes_in_time() {
    let _turn = heavy().await;
    let (redis, receiver) = (RedisServer::start().await, Receiver::start());
    let punctual = Punctual::start(&configuration(&redis, &receiver)).await;
    let client = Client::of(&punctual);
    client.schedule("route-3", r#"{"id":"in-an-hour","delay":"1h","payload":""}"#).await;
    client.drained("route-4", Duration::from_secs(1)).await;
    // The work that the calls above caused is done after a second.
    tokio::time::sleep(Duration::from_secs(1)).await;

    let cpu_before = cpu_ticks(&punctual);
    let idle = Duration::from_secs(max_sleep());
    let commands = commands(&redis, idle).await;
    let cpu = cpu_ticks(&punctual) - cpu_before;
    println!("idle: {} commands and {cpu} ticks of CPU in {idle:?}", commands.len());
    assert!(commands.len() <= MOST_COMMANDS, "{} commands: {commands:#?}", commands.len());
    for n in 0..10 {
        let pending = format!("{{punctual:route-{n}:0/1}}:pending");
        assert!(commands.iter().any(|line| line.contains(&pending)), "no poll of route-{n}: {commands:#?}");
    }
    assert!(cpu <= MOST_CPU_TICKS, "{cpu} ticks");

    client.schedule("route-7", r#"{"id":"alone","delay":"2s","payload":""}"#).await;
    arrives(&receiver, 1, "scheduled 2 s ahead over the API").await;
    client.schedule("route-3", r#"{"id":"first","delay":"2s","payload":""}"#).await;
    arrives(&receiver, 2, "due before one that waits already").await;
    produce(&redis, "route-3", "from-redis-cli", 2000).await;
    arrives(&receiver, 3, "scheduled by redis-cli").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_leaves_in_time_and_once_beside_a_second_instance() {
    let _turn = heavy().await;
    let (redis, receiver) = (RedisServer::start().await, Receiver::start());
    let configuration = configuration(&redis, &receiver);
    let one = Punctual::start(&configuration).await;
    let other = Punctual::start(&configuration).await;
    Client::of(&one).schedule("route-0", r#"{"id":"in-an-hour","delay":"1h","payload":""}"#).await;
    Client::of(&other).schedule("route-0", r#"{"id":"by-the-other","delay":"2s","payload":""}"#).await;
    arrives(&receiver, 1, "two instances, over the API").await;
    produce(&redis, "route-0", "from-redis-cli", 2000).await;
    arrives(&receiver, 2, "two instances, by redis-cli").await;
    let (one, other) = (Client::of(&one).metrics().await, Client::of(&other).metrics().await);
    let claims = |page: &super::metrics_page::MetricsPage| {
        page.sum("punctual_redis_script_seconds_count", &["script=\"claim\""])
    };
    println!("idle: two instances: {} and {} claims", claims(&one), claims(&other));
    assert_eq!(receiver.count(), 2, "once each");
}

/// Commands that clients send to a server in this time, as MONITOR shows them.
pub async fn commands(redis: &RedisServer, time: Duration) -> Vec<String> {
    let monitor = redis::Client::open(redis.url()).unwrap().get_async_monitor().await.unwrap();
    let mut seen = monitor.into_on_message::<String>();
    let end = Instant::now() + time;
    let mut commands = Vec::new();
    while let Ok(Some(line)) = timeout_at(end, seen.next()).await {
        // MONITOR marks commands of scripts with `lua` in place of the client's address.
        if !line.contains(" lua]") {
            commands.push(line);
        }
    }
    commands
}

/// As lua/produce.lua documents it.
async fn produce(redis: &RedisServer, route: &str, id: &str, delay: u64) {
    let port = redis.port().to_string();
    let script = include_bytes!("../../../lua/produce.lua");
    let sha = redis_cli(&["-p", &port, "-x", "SCRIPT", "LOAD"], script).await;
    let key = format!("{{punctual:{route}:0/1}}:pending");
    let delay = format!("+{delay}");
    let call = ["-p", &port, "EVALSHA", &sha, "1", &key, "1", id, &delay, "the payload", r#"{"key":"k"}"#];
    let reply = redis_cli(&call, b"").await;
    assert!(reply.starts_with(&format!("scheduled\n{id}\n")), "{reply}");
}

async fn redis_cli(arguments: &[&str], input: &[u8]) -> String {
    let mut child = Command::new("redis-cli")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("redis-cli comes with redis-server");
    child.stdin.take().expect("piped").write_all(input).await.expect("it reads");
    let output = child.wait_with_output().await.expect("it ends");
    String::from_utf8(output.stdout).expect("UTF-8").trim_end().to_owned()
}

/// User and system time of the process, in clock ticks.
fn cpu_ticks(punctual: &Punctual) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", punctual.pid().as_raw_nonzero())).unwrap();
    // proc(5): fields 14 and 15; the name, field 2, may hold spaces.
    let (_, after_name) = stat.rsplit_once(')').unwrap();
    after_name.split_whitespace().skip(11).take(2).map(|ticks| ticks.parse::<u64>().unwrap()).sum()
}
