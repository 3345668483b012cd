//! Keys of other programs beside the queue in the scenes: something to move, and something to pass by.

use bytes::Bytes;
use punctual::{
    message::Metadata,
    store::redis::{DelayQueueKeys, ExternalEntry, ExternalPlace, MoveOutcome, MovedEntry},
};
use redis::aio::MultiplexedConnection;

use super::{bench::id, scene::SOURCE};

/// Bytes.
pub const MAX_PAYLOAD: usize = 40;
/// A due time in seconds, after the end of these tests.
const FAR: f64 = 5_000_000_000.0;

pub fn place(scene: &str) -> ExternalPlace {
    match scene {
        "take hashes" => ExternalPlace::Hashes { key: SOURCE.into(), unit: 1000, prefix: "task:".into() },
        "take from a delayqueue" => ExternalPlace::DelayQueue(DelayQueueKeys::new("dp", "jobs", false)),
        _ => ExternalPlace::Members { key: SOURCE.into(), unit: 1000 },
    }
}

/// Members of the scene, each with the id that it becomes; `held` and `dead` are live already.
pub fn entries(scene: &str) -> Vec<ExternalEntry> {
    let names: &[(&str, &str)] = match scene {
        "take hashes" => &[
            ("task:1", "task:1"),
            ("task:no-details", "task:no-details"),
            ("task:text", "task:text"),
            ("task:bytes", "task:bytes"),
            ("task:held", "held"),
            ("task:later", "task:later"),
            ("task:gone", "task:gone"),
            ("task:large", "task:large"),
        ],
        _ => &[
            ("one", "one"),
            ("two", "two"),
            ("two", "two"),
            ("claimed", "held"),
            ("buried", "dead"),
            ("later", "later"),
            ("gone", "gone"),
            ("listed", "listed"),
            ("failing", "failing"),
            ("kept-too-long", "kept-too-long"),
            ("kept", "kept"),
            ("a member that is larger than what is allowed here", "large"),
        ],
    };
    names.iter().map(|(member, name)| entry(member, name)).collect()
}

pub fn entry(member: &str, name: &str) -> ExternalEntry {
    let content_type = (name == "two").then(|| "text/plain".to_owned());
    let metadata = Metadata { content_type, ..Metadata::default() };
    ExternalEntry { member: Bytes::copy_from_slice(member.as_bytes()), id: id(name), metadata }
}

/// The keys that `scene` finds.
pub async fn write(connection: &mut MultiplexedConnection, scene: &str) {
    let mut pipe = redis::pipe();
    match scene {
        "take members" | "due" => {
            for (n, entry) in entries(scene).iter().enumerate() {
                match &entry.member[..] {
                    b"gone" => {}
                    b"later" => drop(pipe.zadd(SOURCE, "later", FAR)),
                    member => drop(pipe.zadd(SOURCE, member, 1.0005 + f64::from(u32::try_from(n).unwrap()))),
                }
            }
        }
        "take hashes" => {
            for member in ["task:1", "task:no-details", "task:text", "task:bytes", "task:held", "task:large"] {
                pipe.zadd(SOURCE, member, 1);
            }
            pipe.zadd(SOURCE, "task:later", FAR);
            for key in ["task:1", "task:held", "task:later", "task:gone"] {
                pipe.hset(key, "type", "mail \"now\"\n");
                pipe.hset(key, "to", "/é");
            }
            pipe.set("task:text", "not a hash").hset("task:bytes", "raw", b"a\xff");
            pipe.hset("task:large", "text", "x".repeat(MAX_PAYLOAD));
        }
        "take from a delayqueue" => {
            for member in ["one", "two", "claimed", "a member that is larger than what is allowed here"] {
                pipe.zadd("dp:jobs:pending", member, 1);
            }
            pipe.zadd("dp:jobs:pending", "later", FAR);
            pipe.rpush("dp:jobs:ready", &["other", "listed", "buried", "another"]);
            pipe.rpush("dp:jobs:retry", &["failing", "failing-elsewhere"]);
            pipe.zadd("dp:jobs:unack", "kept-too-long", 1).zadd("dp:jobs:unack", "kept", FAR);
            for entry in entries(scene) {
                let member = String::from_utf8(entry.member.to_vec()).expect("text");
                if !["gone", "failing"].contains(&&*member) {
                    pipe.hset("dp:jobs:retry:cnt", &member, 2);
                }
                if member != "two" && member != "gone" {
                    let body = if member.len() > MAX_PAYLOAD { &*member } else { "a body" };
                    pipe.set(format!("dp:jobs:msg:{member}"), body);
                }
            }
        }
        "persist" => {
            pipe.cmd("SET").arg("dp:jobs:msg:due").arg("a body").arg("EX").arg(3600);
            pipe.set("dp:jobs:msg:fresh", "a body");
        }
        _ => return,
    }
    pipe.exec_async(connection).await.expect("the server answers");
}

pub fn outcomes(moved: Vec<MovedEntry>) -> Vec<MoveOutcome> {
    moved.into_iter().map(|one| one.outcome).collect()
}
