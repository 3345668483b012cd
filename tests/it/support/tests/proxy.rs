//! The fault proxy itself, in front of a real redis-server.

use std::{io::ErrorKind, time::Duration};

use redis::{AsyncCommands, AsyncConnectionConfig, RedisResult, aio::MultiplexedConnection};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::{Instant, sleep, timeout},
};

use crate::support::{
    proxy::{Direction, DroppedReply, Mode, Proxy},
    redis_server::RedisServer,
};

/// Far beyond the time of any step: only a test that fails waits for all of it.
const MAX_WAIT: Duration = Duration::from_secs(10);
/// How long a silent connection is listened to.
const SILENCE: Duration = Duration::from_millis(200);

async fn connect(proxy: &Proxy, response_timeout: Duration) -> RedisResult<MultiplexedConnection> {
    let config = AsyncConnectionConfig::new()
        .set_response_timeout(Some(response_timeout))
        .set_connection_timeout(Some(response_timeout));
    redis::Client::open(proxy.redis_url())?.get_multiplexed_async_connection_with_config(&config).await
}

async fn dial(proxy: &Proxy) -> TcpStream {
    TcpStream::connect(("127.0.0.1", proxy.port())).await.expect("the proxy listens")
}

async fn ping(stream: &mut TcpStream) {
    stream.write_all(b"PING\r\n").await.expect("the proxy reads");
    let mut pong = [0; 7];
    timeout(MAX_WAIT, stream.read_exact(&mut pong)).await.expect("in time").expect("an answer");
    assert_eq!(&pong, b"+PONG\r\n");
}

#[tokio::test]
async fn passing_carries_every_byte_and_counts_connections() {
    let server = RedisServer::start().await;
    let proxy = Proxy::start(server.port());
    let mut through = connect(&proxy, MAX_WAIT).await.unwrap();
    let value: Vec<u8> = (0..3_000_000_u32).map(|n| n.to_le_bytes()[n as usize % 3]).collect();
    let () = through.set("k", &value).await.unwrap();
    assert_eq!(through.get::<_, Vec<u8>>("k").await.unwrap(), value);
    assert_eq!(server.connection().await.get::<_, Vec<u8>>("k").await.unwrap(), value);
    assert_eq!(proxy.accepted(), 1);
    ping(&mut dial(&proxy).await).await;
    assert_eq!(proxy.accepted(), 2);
}

#[tokio::test]
async fn a_cut_closes_what_is_open_and_refuses_what_comes_until_it_is_mended() {
    let server = RedisServer::start().await;
    let proxy = Proxy::start(server.port());
    let mut open = dial(&proxy).await;
    ping(&mut open).await;
    proxy.set(Mode::Cut).await;
    assert_eq!(timeout(MAX_WAIT, open.read(&mut [0])).await.expect("in time").unwrap_or(0), 0);
    let refused = TcpStream::connect(("127.0.0.1", proxy.port())).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    assert_eq!(proxy.accepted(), 1);
    proxy.set(Mode::Pass).await;
    ping(&mut dial(&proxy).await).await;
}

#[tokio::test]
async fn a_black_hole_swallows_what_is_sent_and_spares_idle_connections() {
    let server = RedisServer::start().await;
    let proxy = Proxy::start(server.port());
    let (mut idle, mut busy) = (dial(&proxy).await, dial(&proxy).await);
    ping(&mut idle).await;
    ping(&mut busy).await;
    proxy.set(Mode::BlackHole).await;

    let mut late = dial(&proxy).await;
    for stream in [&mut busy, &mut late] {
        stream.write_all(b"SET k swallowed\r\n").await.unwrap();
        assert!(timeout(SILENCE, stream.read(&mut [0])).await.is_err(), "it stays open, and silent");
    }
    proxy.set(Mode::Pass).await;
    for stream in [&mut busy, &mut late] {
        // The end comes back only after the proxy has read, and discarded, everything before it.
        stream.write_all(b"SET k later\r\n").await.unwrap();
        stream.shutdown().await.unwrap();
        let mut answer = Vec::new();
        timeout(MAX_WAIT, stream.read_to_end(&mut answer)).await.expect("in time").unwrap();
        assert_eq!(answer, b"");
    }
    assert_eq!(server.connection().await.get::<_, Option<String>>("k").await.unwrap(), None);
    ping(&mut idle).await;
}

#[tokio::test]
async fn a_delay_is_added_to_each_direction_without_limiting_the_rate() {
    let delay = Duration::from_millis(100);
    let server = RedisServer::start().await;
    let proxy = Proxy::start(server.port());
    let mut through = connect(&proxy, MAX_WAIT).await.unwrap();
    proxy.set(Mode::Delay(delay)).await;
    let started = Instant::now();
    // Dozens of chunks: with a delay for each, in sequence, they would take seconds.
    let () = through.set("k", vec![b'x'; 5_000_000]).await.unwrap();
    let took = started.elapsed();
    assert!(took >= 2 * delay, "{took:?}");
    assert!(took < 20 * delay, "{took:?}");
    proxy.set(Mode::Pass).await;
    assert_eq!(through.strlen::<_, usize>("k").await.unwrap(), 5_000_000);
}

#[tokio::test]
async fn a_dropped_reply_leaves_the_request_done_and_the_connection_closed() {
    let server = RedisServer::start().await;
    let proxy = Proxy::start(server.port());
    let mut through = connect(&proxy, MAX_WAIT).await.unwrap();
    let dropped = proxy.drop_next_reply(b"INCR", DroppedReply::Closes);
    let () = through.ping().await.expect("another request passes");
    let error = through.incr::<_, _, i64>("n", 1).await.unwrap_err();
    assert!(error.is_connection_dropped() || error.is_io_error(), "{error}");
    timeout(MAX_WAIT, dropped).await.expect("in time").expect("it happened");
    assert_eq!(server.connection().await.get::<_, i64>("n").await.unwrap(), 1);
    let mut again = connect(&proxy, MAX_WAIT).await.unwrap();
    assert_eq!(again.incr::<_, _, i64>("n", 1).await.unwrap(), 2, "one reply is dropped, not two");
}

#[tokio::test]
async fn without_a_reply_the_request_is_done_and_the_connection_stays_open() {
    let server = RedisServer::start().await;
    let proxy = Proxy::start(server.port());
    let mut stream = dial(&proxy).await;
    // Sent before it is armed: must not set it off.
    stream.write_all(b"INCR other\r\n").await.unwrap();
    let mut one = [0; 4];
    timeout(MAX_WAIT, stream.read_exact(&mut one)).await.expect("in time").unwrap();
    let dropped = proxy.drop_next_reply(b"INCR", DroppedReply::NeverComes);
    ping(&mut stream).await;
    // In two parts: the proxy may read them one by one.
    stream.write_all(b"IN").await.unwrap();
    tokio::task::yield_now().await;
    stream.write_all(b"CR n\r\n").await.unwrap();
    timeout(MAX_WAIT, dropped).await.expect("in time").expect("it happened");
    assert!(timeout(SILENCE, stream.read(&mut [0])).await.is_err(), "it stays open, and silent");
    assert_eq!(server.connection().await.get::<_, i64>("n").await.unwrap(), 1);
}

#[tokio::test]
async fn a_held_direction_delivers_late_and_the_other_one_at_once() {
    let server = RedisServer::start().await;
    let proxy = Proxy::start(server.port());
    let (mut stream, mut direct) = (dial(&proxy).await, server.connection().await);
    let mut reply = [0; 5];
    proxy.set(Mode::Hold(Direction::ToClient)).await;
    stream.write_all(b"SET a 1\r\n").await.unwrap();
    // It is executed, and the reply does not come.
    while direct.get::<_, Option<String>>("a").await.unwrap().is_none() {}
    assert!(timeout(SILENCE, stream.read_exact(&mut reply)).await.is_err());
    proxy.set(Mode::Hold(Direction::ToServer)).await;
    timeout(MAX_WAIT, stream.read_exact(&mut reply)).await.expect("in time").expect("the reply");
    assert_eq!(&reply, b"+OK\r\n");
    // It is executed late, although the client has left.
    stream.write_all(b"SET b 1\r\n").await.unwrap();
    drop(stream);
    sleep(SILENCE).await;
    assert_eq!(direct.get::<_, Option<String>>("b").await.unwrap(), None);
    proxy.set(Mode::Pass).await;
    let found = async { while direct.get::<_, Option<String>>("b").await.unwrap().is_none() {} };
    timeout(MAX_WAIT, found).await.expect("it comes in the end");
}
