//! The settings of RabbitMQ sinks and sources.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer};
use url::Url;

use super::{
    broker::{Broker, BrokerServer},
    check_writable,
    sink::RabbitMqSink,
    source::RabbitMqSource,
};
use crate::{
    config::{
        Context, GrowingDelay, Path, Problems, Settings, Timeout, Whole, check_allow, check_tls, non_empty, parsed,
        template,
    },
    retry::Backoff,
    secret::{Secret, SecretUrl},
    sink::{
        OpenSink, SinkSettings,
        template::{Address, Allow, Place, Template},
    },
    source::{Source, SourceSettings, SourceSetup},
    tls::TlsFiles,
};

/// Publish to an exchange of RabbitMQ, with publisher confirms.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RabbitMqSinkSettings {
    /// `amqp://` or `amqps://`, ending with the virtual host, `/%2f` for the default one; required.
    #[serde(deserialize_with = "url")]
    #[schemars(with = "Secret")]
    pub url: SecretUrl,
    /// User, if it is not in the URL.
    #[serde(default, deserialize_with = "non_empty")]
    pub username: Option<String>,
    /// Password, if it is not in the URL.
    #[serde(default, deserialize_with = "non_empty")]
    pub password: Option<Secret>,
    /// TLS files for `amqps://`.
    pub tls: TlsFiles,
    /// Name of an existing exchange; required. The empty name is the default exchange, which routes to the queue that
    /// the routing key names. The name can contain `{key}`, `{route}`, `{header:NAME}`; `{{` and `}}` are braces.
    #[serde(deserialize_with = "exchange")]
    #[schemars(with = "String")]
    pub exchange: Template,
    /// Routing key in place of the message's `key`. It can contain the placeholders of `exchange`.
    #[serde(default, deserialize_with = "routing_key")]
    #[schemars(with = "Option<String>")]
    pub routing_key: Option<Template>,
    /// Patterns of destinations: each routing key must match one of them, or each `exchange/routing_key` if `exchange`
    /// has placeholders. Required with placeholders. `*` is any text without `/`, `**` any text, `?` one character.
    pub allow: Allow,
    /// Maximum time from sending a batch to its confirmation: 100ms to 1h. Each route to the sink needs a `lease` that
    /// is at least 500ms longer.
    pub timeout: Timeout,
}

/// A queue of RabbitMQ.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RabbitMqSourceSettings {
    /// Route on which the messages are scheduled; required.
    pub route: Arc<str>,
    /// `amqp://` or `amqps://`, ending with the virtual host, `/%2f` for the default one; required.
    #[serde(deserialize_with = "url")]
    #[schemars(with = "Secret")]
    pub url: SecretUrl,
    /// User, if it is not in the URL.
    #[serde(default, deserialize_with = "non_empty")]
    pub username: Option<String>,
    /// Password, if it is not in the URL.
    #[serde(default, deserialize_with = "non_empty")]
    pub password: Option<Secret>,
    /// TLS files for `amqps://`.
    pub tls: TlsFiles,
    /// Name of an existing queue; required.
    #[serde(deserialize_with = "queue")]
    pub queue: String,
    /// Maximum messages that are received and not yet stored in Redis: 1 to 65535.
    pub prefetch: Whole<1, 65_535>,
    /// `ulid`: every message gets a new id. `message_id`: the id that the producer set, which must be unique.
    pub id_from: IdFrom,
    /// Where the delay comes from. `headers`: `x-delay` or `x-deliver-at`. `x_death`: `backoff`, by the number of times
    /// that the message was dead-lettered.
    pub delay_from: DelayFrom,
    /// Delays for `delay_from: x_death`.
    pub backoff: GrowingDelay,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum IdFrom {
    Ulid,
    MessageId,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DelayFrom {
    Headers,
    XDeath,
}

impl RabbitMqSinkSettings {
    pub fn server(&self) -> BrokerServer<'_> {
        let Self { url, username, password, tls, .. } = self;
        BrokerServer { url, username: username.as_deref(), password: password.as_ref(), tls }
    }

    /// # Errors
    /// Why exchange and routing key do not fit together.
    pub fn address(&self) -> Result<Address, String> {
        Address::new(self.exchange.clone(), self.routing_key.clone())
    }
}

impl Settings for RabbitMqSinkSettings {
    fn check(&mut self, at: &Path, _: &Context, problems: &mut Problems) {
        check_tls(at, &self.tls, self.server().is_encrypted(), problems);
        if problems.is_refused(&at.key("routing_key")) {
            return;
        }
        if let Some(address) = problems.check(&at.key("exchange"), self.address()) {
            let setting = if self.varying().is_some() { "exchange/routing_key" } else { "routing_key" };
            check_allow(&self.allow, address.shape().as_ref(), (at, setting), problems);
        }
    }
}

#[async_trait]
impl SinkSettings for RabbitMqSinkSettings {
    fn kind(&self) -> &'static str {
        "rabbitmq"
    }

    fn timeout(&self) -> Duration {
        self.timeout.0
    }

    fn varying(&self) -> Option<&'static str> {
        self.exchange.as_constant().is_none().then_some("exchange")
    }

    fn open(&self) -> Result<OpenSink, String> {
        RabbitMqSink::new(self).map(OpenSink::new)
    }

    async fn check_rights(&self, limit: Duration) -> Result<(), String> {
        let Some(exchange) = self.exchange.as_constant() else { return Ok(()) };
        let check = async |channel| check_writable(&channel, exchange).await;
        Broker::new(self.server())?.on_channel(self.timeout.0.min(limit / 2), check).await
    }
}

impl RabbitMqSourceSettings {
    pub fn server(&self) -> BrokerServer<'_> {
        let Self { url, username, password, tls, .. } = self;
        BrokerServer { url, username: username.as_deref(), password: password.as_ref(), tls }
    }

    /// The delay by the count in `x-death`. `None`: the delay is in headers.
    pub fn delay(&self) -> Option<Backoff> {
        match self.delay_from {
            DelayFrom::Headers => None,
            DelayFrom::XDeath => self.backoff.get().ok(),
        }
    }
}

impl Settings for RabbitMqSourceSettings {
    fn check(&mut self, at: &Path, _: &Context, problems: &mut Problems) {
        check_tls(at, &self.tls, self.server().is_encrypted(), problems);
        self.backoff.check(&at.key("backoff"), problems);
    }
}

impl SourceSettings for RabbitMqSourceSettings {
    fn kind(&self) -> &'static str {
        "rabbitmq"
    }

    fn route(&self) -> &Arc<str> {
        &self.route
    }

    fn open(&self, setup: SourceSetup<'_>) -> Result<Arc<dyn Source>, String> {
        RabbitMqSource::new(self, setup.new_id, setup.seed).map(|source| Arc::new(source) as _)
    }
}

fn url<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SecretUrl, D::Error> {
    parsed(deserializer, check_url)
}

fn exchange<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Template, D::Error> {
    template(deserializer, Place::Exchange)
}

fn routing_key<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Template>, D::Error> {
    parsed(deserializer, |text| {
        let key = Some(text).filter(|text| !text.is_empty());
        key.map(|text| Template::parse(text, Place::RoutingKey)).transpose()
    })
}

fn queue<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    parsed(deserializer, |text| Place::RoutingKey.check(text).map(|()| text.to_owned()))
}

fn check_url(text: &str) -> Result<SecretUrl, String> {
    let url = Url::parse(text).map_err(|error| format!("is not a URL such as amqp://localhost:5672/%2f: {error}"))?;
    if !matches!(url.scheme(), "amqp" | "amqps") {
        return Err(format!("has the scheme `{}`; known: amqp, amqps", url.scheme()));
    }
    if url.host_str().is_none_or(str::is_empty) {
        return Err("names no host".into());
    }
    let vhost = url.path().strip_prefix('/');
    if vhost == Some("") {
        return Err("names the empty virtual host; the default one is `/%2f`".into());
    }
    if vhost.is_some_and(|vhost| vhost.contains('/')) {
        return Err("has a `/` in its virtual host, which is to be written `%2f`".into());
    }
    for (key, value) in url.query_pairs() {
        match &*key {
            "heartbeat" if value.parse::<u16>().is_ok() => {}
            "auth_mechanism" if matches!(&*value, "plain" | "external") => {}
            "heartbeat" => return Err("has a `heartbeat` that is not 0 to 65535 seconds".into()),
            "auth_mechanism" => return Err("has an `auth_mechanism` other than plain, external".into()),
            _ => return Err("has a parameter other than heartbeat, auth_mechanism".into()),
        }
    }
    Ok(text.into())
}
