//! The servers of Redis that a producer writes to.

use std::time::Duration;

use futures::future::join_all;
use tokio::time::timeout;

use super::{producers::connection, store::Store};
use crate::support::sentinels::MASTER;

/// For one answer of a sentinel.
const ANSWER: Duration = Duration::from_secs(1);

/// With durable replies a producer tries all servers: on each but the primary that the replicas follow, `WAIT` fails. Otherwise
/// it asks the sentinels: a primary that was killed and started again takes writes until they demote it, and loses all of them.
#[derive(Clone)]
pub struct Writers {
    ports: Vec<u16>,
    /// As sentinels name the servers, in the same order.
    announced: Vec<u16>,
    /// Empty if they are not asked.
    sentinels: Vec<u16>,
}

impl Writers {
    pub fn new(redis: &Store, is_durable: bool) -> Self {
        let ports = redis.ports();
        match redis {
            Store::Sentinels(redis) if !is_durable => Self {
                announced: (0..ports.len()).map(|place| redis.announced(place)).collect(),
                sentinels: redis.sentinel_ports(),
                ports,
            },
            _ => Self { ports, announced: Vec::new(), sentinels: Vec::new() },
        }
    }

    /// Their ports.
    pub async fn ports(&self) -> Vec<u16> {
        if self.sentinels.is_empty() {
            return self.ports.clone();
        }
        let named = join_all(self.sentinels.iter().map(|sentinel| named_by(*sentinel))).await;
        let votes = |announced: u16| named.iter().filter(|one| **one == Some(announced)).count();
        let pairs = self.ports.iter().zip(&self.announced);
        pairs.filter(|(_, announced)| votes(**announced) > self.sentinels.len() / 2).map(|(port, _)| *port).collect()
    }
}

async fn named_by(sentinel: u16) -> Option<u16> {
    let asking = async {
        let mut link = connection(sentinel).await?;
        let mut question = redis::cmd("SENTINEL");
        question.arg("GET-MASTER-ADDR-BY-NAME").arg(MASTER);
        let (_, port): (String, u16) = question.query_async(&mut link).await.ok()?;
        Some(port)
    };
    timeout(ANSWER, asking).await.ok().flatten()
}
