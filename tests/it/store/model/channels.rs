//! Subscriptions, and what is pushed to them.

use std::time::Duration;

use punctual_model::Links;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use super::{Pair, cases, words};
use crate::support::servers;

const SEQUENCES: u64 = 50;
const STEPS: usize = 30;
/// For one reply.
const ANSWER: Duration = Duration::from_secs(10);
const CHANNELS: [&str; 3] = ["a", "b", "c"];

trait Link: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Link for T {}

/// All bytes up to the reply to a last command.
async fn received(link: &mut dyn Link) -> String {
    send(link, "SUBSCRIBE end").await;
    let mut all = Vec::new();
    let reading = async {
        while !is_end(&all) {
            assert_ne!(link.read_buf(&mut all).await.expect("a link"), 0, "the link has ended");
        }
    };
    timeout(ANSWER, reading).await.expect("a reply to each command");
    String::from_utf8(all).expect("text")
}

fn is_end(received: &[u8]) -> bool {
    let text = String::from_utf8_lossy(received);
    text.rsplit_once("\r\nend\r\n:").is_some_and(|(_, count)| count.ends_with("\r\n"))
}

async fn send(link: &mut dyn Link, command: &str) {
    let words: Vec<String> = command.split(' ').map(|word| format!("${}\r\n{word}\r\n", word.len())).collect();
    link.write_all(format!("*{}\r\n{}", words.len(), words.concat()).as_bytes()).await.expect("a link");
}

#[tokio::test]
async fn subscriptions_of_the_model_get_what_redis_pushes() {
    let has_sharded = servers::redis_version() >= (7, 0);
    let mut pair = Pair::start().await;
    let port = pair.redis.port();
    for seed in 0..cases(SEQUENCES) {
        let mut rng = StdRng::seed_from_u64(seed);
        let (model, is_resp3) = (Links::new(&pair.model, seed), rng.random());
        let mut subscribers: Vec<[Box<dyn Link>; 2]> = Vec::new();
        for _ in 0..2 {
            let redis = TcpStream::connect(("127.0.0.1", port)).await.expect("the server listens");
            let mut both: [Box<dyn Link>; 2] = [Box::new(redis), Box::new(model.connect().expect("a link"))];
            for link in &mut both {
                if is_resp3 {
                    send(&mut **link, "HELLO 3").await;
                }
                received(&mut **link).await;
            }
            subscribers.push(both);
        }
        let mut before = format!("seed {seed}, RESP3 {is_resp3}");
        for _ in 0..STEPS {
            let (sharded, channel) = (if has_sharded && rng.random() { "S" } else { "" }, rng.random_range(0..3));
            let (channel, other) = (CHANNELS[channel], CHANNELS[rng.random_range(0..3)]);
            let command = match rng.random_range(0..6) {
                0 => format!("{sharded}SUBSCRIBE {channel}"),
                1 => format!("SUBSCRIBE {channel} {other}"),
                2 => format!("UNSUBSCRIBE {channel}"),
                _ => format!("{sharded}PUBLISH {channel} {}", rng.random::<u32>()),
            };
            before = format!("{before}\n{command}");
            if command.contains("PUBLISH") {
                pair.compare(&words(&command), &before).await;
            } else {
                for link in &mut subscribers[rng.random_range(0..2)] {
                    send(&mut **link, &command).await;
                }
            }
            for [redis, model] in &mut subscribers {
                assert_eq!(received(&mut **model).await, received(&mut **redis).await, "{before}");
            }
        }
    }
}
