//! The settings of sources on the queue's Redis.

use std::{any::Any, sync::Arc};

use schemars::JsonSchema;
use serde::Deserialize;

use super::RedisSets;
use crate::{
    config::{Context, Flag, Path, Period, Problems, Settings, non_empty},
    source::{Source, SourceSettings, SourceSetup},
};

/// Interval of polls: 10ms to 5m.
type Poll = Period<10, 300_000>;

/// Members of a sorted set on `redis.url`, scored with their due times.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SortedSetSettings {
    /// Route on which the messages are scheduled; required.
    pub route: Arc<str>,
    /// Key of the sorted set; required.
    pub key: String,
    /// Unit of the scores. Fractions are allowed.
    pub unit: ScoreUnit,
    /// `member`: the member is the payload. `hash`: the member names a hash, and a JSON object of its fields is the
    /// payload.
    pub payload: MemberPayload,
    /// Prefix of the names of hashes; required with `payload: hash`. Hashes with another name are neither read nor
    /// deleted.
    #[serde(default, deserialize_with = "non_empty")]
    pub hash_prefix: Option<String>,
    /// Time between two looks at the keys if Redis sends no notifications (`notify-keyspace-events`): 10ms to 5m.
    pub poll: Poll,
}

/// The keys of hdt3213/delayqueue on `redis.url`.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DelayQueueSettings {
    /// Route on which the messages are scheduled; required.
    pub route: Arc<str>,
    /// Name of the queue, as its producers have it; required.
    pub name: String,
    /// Whether the producers of the queue use hash tags.
    pub hash_tag: Flag,
    /// Prefix of the queue's keys, as its producers have it.
    pub prefix: String,
    /// Time between two looks at the keys if Redis sends no notifications (`notify-keyspace-events`): 10ms to 5m.
    pub poll: Poll,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ScoreUnit {
    Seconds,
    Milliseconds,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum MemberPayload {
    /// The member itself.
    Member,
    /// The fields of the hash that the member names, as a JSON object.
    Hash,
}

impl Settings for SortedSetSettings {
    fn check(&mut self, at: &Path, context: &Context, problems: &mut Problems) {
        let prefix = context.key_prefix;
        if self.key.is_empty() {
            problems.require::<()>(&at.key("key"), None);
        } else if self.key.starts_with(&format!("{{{prefix}:")) || self.key == format!("{prefix}:routes") {
            problems.add(&at.key("key"), format!("`{}` is one of punctual's own keys", self.key.escape_debug()));
        }
        let at = at.key("hash_prefix");
        match (self.payload, &self.hash_prefix) {
            (MemberPayload::Member, Some(_)) => problems.add(&at, "does nothing without `payload: hash`"),
            (MemberPayload::Hash, None) => drop(problems.require::<()>(&at, None)),
            (MemberPayload::Hash, Some(prefix)) if prefix.starts_with('{') => {
                problems.add(&at, "must not begin with `{`: so do punctual's own keys");
            }
            _ => {}
        }
    }
}

impl SourceSettings for SortedSetSettings {
    fn kind(&self) -> &'static str {
        "sorted_set"
    }

    fn route(&self) -> &Arc<str> {
        &self.route
    }

    fn is_on_redis(&self) -> bool {
        true
    }

    /// Two sources of one set would compete, and with different units one of them would be early.
    fn conflict(&self, other: &dyn SourceSettings, other_name: &str) -> Option<(&'static str, String)> {
        let other = (other as &dyn Any).downcast_ref::<Self>()?;
        (self.key == other.key).then(|| ("key", format!("is that of sources.{other_name} too")))
    }

    fn open(&self, setup: SourceSetup<'_>) -> Result<Arc<dyn Source>, String> {
        Ok(Arc::new(RedisSets::sorted_set(self, (setup.redis)()?, setup.max_sleep)))
    }
}

impl Settings for DelayQueueSettings {
    fn check(&mut self, at: &Path, context: &Context, problems: &mut Problems) {
        for (key, text) in [("name", &self.name), ("prefix", &self.prefix)] {
            if text.is_empty() {
                problems.require::<()>(&at.key(key), None);
            }
        }
        if self.prefix == context.key_prefix && self.hash_tag.0 {
            problems.add(&at.key("prefix"), "with a hash tag, keys of this prefix are punctual's own");
        }
    }
}

impl SourceSettings for DelayQueueSettings {
    fn kind(&self) -> &'static str {
        "delayqueue"
    }

    fn route(&self) -> &Arc<str> {
        &self.route
    }

    fn is_on_redis(&self) -> bool {
        true
    }

    /// Two sources of one queue would compete.
    fn conflict(&self, other: &dyn SourceSettings, other_name: &str) -> Option<(&'static str, String)> {
        let other = (other as &dyn Any).downcast_ref::<Self>()?;
        let same = self.name == other.name && self.prefix == other.prefix && self.hash_tag == other.hash_tag;
        same.then(|| ("name", format!("is that of sources.{other_name} too")))
    }

    fn open(&self, setup: SourceSetup<'_>) -> Result<Arc<dyn Source>, String> {
        Ok(Arc::new(RedisSets::delay_queue(self, (setup.redis)()?, setup.max_sleep)))
    }
}
