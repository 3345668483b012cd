//! Connections that need no token: they do not keep probes and others out.

use std::{net::SocketAddr, time::Duration};

use redis::InfoDict;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::{Instant, sleep, timeout},
};

use super::{alone, client::Client};
use crate::support::{
    RedisServer, http,
    port::Port,
    punctual::Punctual,
    receiver::{Behaviour, Receiver},
    scale::rounds,
};

/// More than an instance has places.
const CROWD: usize = 4400;
/// Connections opened at once: fewer than the kernel holds for a listener that does not accept them yet.
const ARRIVAL: usize = 400;
/// Time to accept an arrival on a busy machine.
const ACCEPTED: Duration = Duration::from_secs(20);
/// Default time that an orchestrator waits for a probe.
const PROBE: Duration = Duration::from_secs(1);

async fn probe(address: SocketAddr, within: Duration) -> Result<Duration, String> {
    let began = Instant::now();
    let ask = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").await?;
        let mut reply = String::new();
        stream.read_to_string(&mut reply).await.map(|_| reply)
    };
    match timeout(within, ask).await {
        Ok(Ok(reply)) if reply.starts_with("HTTP/1.1 200") => Ok(began.elapsed()),
        other => Err(format!("{other:?}")),
    }
}

/// Connections that ask something every second, so that none is ever silent, and come again when they are closed.
async fn press(address: SocketAddr, mut crowd: Vec<TcpStream>) {
    let mut unread = [0; 4096];
    loop {
        for stream in &mut crowd {
            let is_closed = matches!(stream.try_read(&mut unread), Ok(0));
            if (is_closed || stream.try_write(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n").is_err())
                && let Ok(Ok(new)) = timeout(PROBE, TcpStream::connect(address)).await
            {
                *stream = new;
            }
        }
        sleep(Duration::from_secs(1)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crowd_of_connections_from_one_address_keeps_no_probe_out() {
    let _alone = alone().await;
    let health = Port::reserve();
    let listen = health.address().to_string();
    let punctual =
        Punctual::start_with("redis: { url: embedded }", &[("PUNCTUAL__SERVER__HEALTH_LISTEN", &listen)]).await;
    let address: SocketAddr = punctual.url("").trim_start_matches("http://").parse().expect("an address");
    let mut crowd = Vec::with_capacity(CROWD);
    for _ in 0..CROWD / ARRIVAL {
        for _ in 0..ARRIVAL {
            crowd.push(TcpStream::connect(address).await.expect("the kernel accepts it"));
        }
        probe(address, ACCEPTED).await.expect("all before it were accepted");
    }
    // On each listener, five a second: for as long as the crowd asks twice, or four times.
    let probes = rounds(10, 20);
    let pressing = tokio::spawn(press(address, crowd));
    let (mut late, mut slowest) = (Vec::new(), Duration::ZERO);
    for _ in 0..probes {
        for address in [address, health.address()] {
            match probe(address, PROBE).await {
                Ok(took) => slowest = slowest.max(took),
                Err(error) => late.push(error),
            }
        }
        sleep(Duration::from_millis(200)).await;
    }
    println!("{} of {} probes failed, slowest {slowest:?}", late.len(), 2 * probes);
    assert!(late.is_empty(), "{}: {}", late.len(), late[0]);
    assert!(!pressing.is_finished());
    pressing.abort();
    let other = http::client().get(format!("http://{listen}/v1/routes")).send().await.expect("an answer");
    assert_eq!(other.status(), 404, "there is nothing but probes");
}

/// Limit of a process with few files: more than half of them are the connections of idle clients.
const FEW_FILES: usize = 70;
const IDLE: usize = 60;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_clients_leave_files_for_probes_and_deliveries() {
    let (redis, receiver) = (RedisServer::start().await, Receiver::start());
    let configuration = format!(
        "redis: {{ url: '{}' }}\nsinks: {{ hook: {{ type: http, url: '{}', max_connections: 4 }} }}\nroutes: {{ web: {{ sink: hook }} }}",
        redis.url(),
        receiver.url()
    );
    let mut punctual = Punctual::spawn_with_files(&configuration, FEW_FILES);
    punctual.ready().await;
    let (address, client) = (punctual.address(), Client::of(&punctual));
    let mut idle = Vec::new();
    for _ in 0..IDLE {
        idle.push(TcpStream::connect(address).await.expect("the kernel accepts it"));
    }
    let crowd = async {
        loop {
            // A client that was closed connects again.
            for stream in &mut idle {
                if matches!(stream.try_read(&mut [0; 16]), Ok(0))
                    && let Ok(Ok(new)) = timeout(PROBE, TcpStream::connect(address)).await
                {
                    *stream = new;
                }
            }
            sleep(Duration::from_millis(10)).await;
        }
    };
    let work = async {
        for n in 0..40 {
            probe(address, PROBE).await.unwrap_or_else(|error| panic!("probe {n}: {error}\n{}", punctual.log()));
            client.schedule("web", r#"[{"payload":1},{"payload":2},{"payload":3},{"payload":4}]"#).await;
        }
        receiver.wait_for(160, ACCEPTED).await;
    };
    tokio::select! {
        () = crowd => unreachable!("it has no end"),
        () = work => {}
    }
    let requests = receiver.requests();
    assert!(requests.iter().all(|request| request.attempt() == 1), "none failed for lack of a file");
    assert_eq!(punctual.terminate().await.code, Some(0));
    let loud = punctual.log().matches(" WARN ").count();
    assert!(loud <= 3, "{}", punctual.log());
}

/// Far below the time for which an idle connection is kept, and for which a message waits for a connection.
const SOON: Duration = Duration::from_secs(3);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sinks_share_few_files_without_waiting_for_idle_or_busy_connections() {
    let (redis, receivers) = (RedisServer::start().await, [(); 3].map(|()| Receiver::start()));
    let sinks =
        receivers.iter().enumerate().map(|(n, receiver)| format!("s{n}: {{ type: http, url: '{}' }}", receiver.url()));
    let configuration = format!(
        "redis: {{ url: '{}' }}\nsinks: {{ {} }}\nroutes: {{ r0: {{ sink: s0 }}, r1: {{ sink: s1 }}, r2: {{ sink: s2 }} }}",
        redis.url(),
        sinks.collect::<Vec<_>>().join(", ")
    );
    let mut punctual = Punctual::spawn_with_files(&configuration, FEW_FILES);
    punctual.ready().await;
    let client = Client::of(&punctual);
    let burst = |count: usize| format!("[{}]", vec![r#"{"payload":1}"#; count].join(","));
    for receiver in &receivers {
        receiver.behave(Behaviour::Delay(Duration::from_millis(5)));
    }
    for round in 1..=3 {
        for (n, receiver) in receivers.iter().enumerate() {
            client.schedule(&format!("r{n}"), &burst(60)).await;
            receiver.wait_for(60 * round, SOON).await;
        }
    }
    // One sink has work for longer than a message of another waits for a connection.
    receivers[0].behave(Behaviour::Delay(Duration::from_millis(100)));
    client.schedule("r0", &burst(900)).await;
    receivers[0].wait_for(180 + 100, SOON).await;
    client.schedule("r1", &burst(10)).await;
    receivers[1].wait_for(190, SOON).await;
    assert!(receivers[0].count() < 180 + 900);
    receivers[0].wait_for(180 + 900, ACCEPTED).await;
    for (receiver, count) in receivers.iter().zip([1080, 190, 180]) {
        let requests = receiver.requests();
        assert!(requests.iter().all(|request| request.attempt() == 1), "what was not sent is no attempt");
        assert_eq!(requests.len(), count, "none was sent twice");
    }
    assert_eq!(punctual.terminate().await.code, Some(0));
}

#[tokio::test]
async fn probes_of_readiness_ask_redis_once_a_second() {
    let _alone = alone().await;
    let redis = RedisServer::start().await;
    let punctual = Punctual::start(&format!("redis: {{ url: '{}' }}", redis.url())).await;
    let commands = async || {
        let info: InfoDict =
            redis::cmd("INFO").arg("stats").query_async(&mut redis.connection().await).await.expect("an answer");
        info.get::<u64>("total_commands_processed").expect("a number")
    };
    let (before, began, client) = (commands().await, Instant::now(), Client::of(&punctual));
    for _ in 0..200 {
        assert_eq!(client.call("GET", "/readyz", "").await.status, 200);
    }
    let (asked, seconds) = (commands().await - before, began.elapsed().as_secs() + 2);
    println!("{asked} commands of Redis for 200 probes in {:?}", began.elapsed());
    assert!(asked <= 10 * seconds, "{asked} commands in {seconds} s");
}
