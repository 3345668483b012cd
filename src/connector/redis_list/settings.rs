//! The settings of a list on Redis.

use std::{sync::Arc, time::Duration};

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer};

use super::RedisListSink;
use crate::{
    config::{Context, Path, Problems, Settings, Timeout, check_allow, check_tls, non_empty, redis_url, template},
    secret::{Secret, SecretUrl},
    sink::{
        Element, OpenSink, Render, SinkSettings,
        envelope::{self, ListFormat},
        template::{Allow, Place, Template},
    },
    store::redis::connection::RedisEndpoint,
    tls::TlsFiles,
};

/// RPUSH to a Redis list.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RedisListSettings {
    /// Key of the list; required. It can contain `{key}`, `{route}`, `{header:NAME}`; `{{` and `}}` are braces.
    #[serde(deserialize_with = "key")]
    #[schemars(with = "String")]
    pub key: Template,
    /// Patterns of lists: each list must match one of them. Required if `key` has placeholders. `*` is any text without
    /// `/`, `**` any text, `?` one character.
    pub allow: Allow,
    pub format: ListFormat,
    /// Maximum time from sending a batch to its confirmation: 100ms to 1h. Each route to the sink needs a `lease` that
    /// is at least 500ms longer.
    pub timeout: Timeout,
    /// URL of the Redis with the list: `redis://`, `rediss://` or `unix://`. Unless set: the Redis of the queue.
    #[serde(default, deserialize_with = "redis_url")]
    #[schemars(with = "Option<Secret>")]
    pub url: Option<SecretUrl>,
    /// ACL user, if it is not in the URL.
    #[serde(default, deserialize_with = "non_empty")]
    pub username: Option<String>,
    /// Password, if it is not in the URL.
    #[serde(default, deserialize_with = "non_empty")]
    pub password: Option<Secret>,
    /// TLS files for `rediss://`.
    pub tls: TlsFiles,
}

fn key<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Template, D::Error> {
    // `check` uses the prefix of the queue's own keys.
    template(deserializer, Place::ListKey { key_prefix: "".into() })
}

impl RedisListSettings {
    /// `None`: the Redis of the queue itself, with exactly-once delivery.
    pub fn server(&self) -> Option<RedisEndpoint> {
        let Self { url, username, password, tls, .. } = self.clone();
        url.map(|url| RedisEndpoint { url, username, password, tls })
    }

    fn render(self) -> Render {
        let constant: Option<Arc<str>> = self.key.as_constant().map(Into::into);
        Arc::new(move |delivery| {
            let list = match &constant {
                Some(list) => Arc::clone(list),
                None => self.key.render_allowed(&self.allow, &delivery.route, &delivery.metadata)?.into(),
            };
            Ok(Element { list, value: envelope::render(self.format, delivery) })
        })
    }
}

impl Settings for RedisListSettings {
    fn check(&mut self, at: &Path, context: &Context, problems: &mut Problems) {
        // Also on another Redis, because its URL can be another name of the queue's Redis.
        let place = Place::ListKey { key_prefix: context.key_prefix.into() };
        match problems.check(&at.key("key"), self.key.clone().for_place(place)) {
            Some(key) => self.key = key,
            None => return,
        }
        check_allow(&self.allow, self.key.shape().as_ref(), (at, "key"), problems);
        let url_at = at.key("url");
        match &self.url {
            Some(url) => check_tls(at, &self.tls, url.expose().starts_with("rediss:"), problems),
            None if problems.is_refused(&url_at) => {}
            None if context.is_cluster => {
                problems
                    .add(&url_at, "is needed with `redis.cluster`: a list there is on another server than the queue");
            }
            None => {
                let given = [
                    ("username", self.username.is_some()),
                    ("password", self.password.is_some()),
                    ("tls", !self.tls.is_empty()),
                ];
                for (key, _) in given.iter().filter(|(_, given)| *given) {
                    problems.add(&at.key(*key), "needs an own `url`; without one the queue's Redis is meant");
                }
            }
        }
    }
}

impl SinkSettings for RedisListSettings {
    fn kind(&self) -> &'static str {
        "redis_list"
    }

    fn timeout(&self) -> Duration {
        self.timeout.0
    }

    fn varying(&self) -> Option<&'static str> {
        self.key.as_constant().is_none().then_some("key")
    }

    fn open(&self) -> Result<OpenSink, String> {
        match &self.url {
            None => Ok(OpenSink::List { render: self.clone().render(), list: self.key.as_constant().map(Into::into) }),
            Some(_) => RedisListSink::new(self).map(OpenSink::new),
        }
    }
}
