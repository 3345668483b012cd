//! Connects to a configured broker.

use std::{sync::Arc, time::Duration};

use async_rs::Runtime;
use lapin::{
    AsyncTcpStream, Channel, Connection, ConnectionProperties,
    uri::{AMQPScheme, AMQPUri},
};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::{
    missing::with_remedy,
    transport::{BrokerEndpoint, ConnectionLink, LapinRuntime, Transport, lapin_runtime},
};
use crate::{
    secret::{Secret, SecretUrl},
    tls::{self, TlsFiles},
};

/// Seconds between heartbeats, unless the URL sets them. A lost peer is noticed after twice that time.
const HEARTBEAT: u16 = 10;
/// Maximum time of the closing handshake. It takes one round trip.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// Minimum channels that the broker must permit. A sink has 4 for batches, 16 for single messages and 2 for questions;
/// one that was given up closes after its last confirm.
const MIN_CHANNELS: u16 = 32;
/// First reconnect delay: at most ten attempts a second.
const FIRST_RECONNECT_DELAY: Duration = Duration::from_millis(100);
/// Maximum reconnect delay: short compared to an outage, and long compared to the cost of an attempt for a broker.
const MAX_RECONNECT_DELAY: Duration = Duration::from_secs(3);

/// A broker and the settings to connect to it.
#[derive(Clone, Copy)]
pub struct BrokerServer<'a> {
    pub url: &'a SecretUrl,
    pub username: Option<&'a str>,
    pub password: Option<&'a Secret>,
    pub tls: &'a TlsFiles,
}

impl BrokerServer<'_> {
    pub fn is_encrypted(&self) -> bool {
        self.url.expose().starts_with("amqps:")
    }
}

#[derive(Clone)]
pub struct Broker {
    uri: AMQPUri,
    endpoint: BrokerEndpoint,
}

pub struct BrokerConnection {
    pub connection: Connection,
    pub link: ConnectionLink,
}

impl Broker {
    /// # Errors
    /// The setting that is invalid. The text holds no secret.
    pub fn new(server: BrokerServer<'_>) -> Result<Self, String> {
        // The parse error itself would show the URL.
        let mut uri: AMQPUri =
            server.url.expose().parse().map_err(|_| format!("url: {} cannot be used", server.url))?;
        if let Some(username) = server.username {
            username.clone_into(&mut uri.authority.userinfo.username);
        }
        if let Some(password) = server.password {
            password.expose().clone_into(&mut uri.authority.userinfo.password);
        }
        uri.query.heartbeat.get_or_insert(HEARTBEAT);
        // lapin parses an IPv6 address as an empty host.
        let url = url::Url::parse(server.url.expose()).map_err(|error| format!("url: {error}"))?;
        let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        let encrypted = uri.scheme == AMQPScheme::AMQPS;
        let tls = || tls::client_config(server.tls).map(|config| TlsConnector::from(Arc::new(config)));
        let tls = encrypted.then(tls).transpose()?;
        let endpoint = BrokerEndpoint { host, port: uri.authority.port, tls };
        Ok(Self { uri, endpoint })
    }

    /// Host and port.
    pub fn address(&self) -> String {
        format!("{}:{}", self.endpoint.host, self.endpoint.port)
    }

    /// Must be called within a tokio runtime.
    ///
    /// # Errors
    /// When connect, handshake and login do not succeed within `limit`.
    pub async fn connect(&self, limit: Duration) -> Result<BrokerConnection, String> {
        let link = ConnectionLink::default();
        let (endpoint, transport_link) = (self.endpoint.clone(), link.clone());
        let connect = async move |_: AMQPUri, _: Runtime<LapinRuntime>| {
            Ok(AsyncTcpStream::Plain(Transport::connect(&endpoint, limit, transport_link.clone()).await?))
        };
        let properties = ConnectionProperties::default().with_connection_name("punctual".into());
        let runtime = Runtime::new(lapin_runtime());
        let connecting = Connection::connector(self.uri.clone(), runtime, connect, properties);
        let error = match timeout(limit, connecting).await {
            Ok(Ok(connection)) => match check_channels(connection.configuration().channel_max()) {
                Ok(()) => return Ok(BrokerConnection { connection, link }),
                Err(error) => error,
            },
            Ok(Err(error)) => text(&error),
            Err(_) => format!("not connected within {limit:?}"),
        };
        // lapin's thread might still be in the handshake.
        link.abort.cancel();
        Err(format!("{}: {error}", self.address()))
    }

    /// Runs `check` on a channel of a new connection.
    ///
    /// # Errors
    /// The error of the connection or of `check`. No answer within twice `limit` is an error too.
    pub async fn on_channel<F>(&self, limit: Duration, check: impl FnOnce(Channel) -> F) -> Result<(), String>
    where
        F: Future<Output = lapin::Result<()>>,
    {
        let BrokerConnection { connection, link } = self.connect(limit).await.map_err(with_remedy)?;
        let checking = async {
            // Kept to the end: a dropped channel closes itself, which `Connection::close` reports as an error.
            let channel = connection.create_channel().await?;
            check(channel.clone()).await?;
            connection.close(200, "checked".into()).await
        };
        let checked = answer(limit, checking).await;
        link.abort.cancel();
        checked.map_err(|error| with_remedy(format!("{}: {error}", self.address())))
    }
}

impl BrokerConnection {
    /// Closes with a handshake, so that the broker processes all sent frames. Aborts after `CLOSE_TIMEOUT`.
    pub async fn close(&self) {
        // An error means that the connection is closed already.
        let _ = timeout(CLOSE_TIMEOUT, self.connection.close(200, "done".into())).await;
        self.link.abort.cancel();
    }
}

/// `max`: the maximum of the broker; 0 is none.
fn check_channels(max: u16) -> Result<(), String> {
    if max == 0 || max >= MIN_CHANNELS {
        return Ok(());
    }
    Err(format!("the broker permits {max} channels, at least {MIN_CHANNELS} are needed: see `channel_max`"))
}

/// The answer of the broker to `call`.
///
/// # Errors
/// The `text` of the error. No answer within `limit` is an error too.
pub async fn answer<T>(limit: Duration, call: impl Future<Output = lapin::Result<T>>) -> Result<T, String> {
    match timeout(limit, call).await {
        Ok(answer) => answer.map_err(|error| text(&error)),
        Err(_) => Err(format!("no answer within {limit:?}")),
    }
}

/// The text of the broker or the operating system, without lapin's prefix.
pub fn text(error: &lapin::Error) -> String {
    match error.kind() {
        lapin::ErrorKind::ProtocolError(error) => error.get_message().to_string(),
        lapin::ErrorKind::IOError(error) => error.to_string(),
        _ => error.to_string(),
    }
}

/// Delays between attempts to connect. Each is twice the one before.
pub struct ReconnectDelay(Duration);

impl Default for ReconnectDelay {
    fn default() -> Self {
        Self(FIRST_RECONNECT_DELAY)
    }
}

impl ReconnectDelay {
    pub fn next_delay(&mut self) -> Duration {
        let delay = self.0;
        self.0 = (delay * 2).min(MAX_RECONNECT_DELAY);
        delay
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broker_with_too_few_channels_is_refused() {
        assert_eq!([0, MIN_CHANNELS, u16::MAX].map(check_channels), [Ok(()), Ok(()), Ok(())]);
        assert!(check_channels(MIN_CHANNELS - 1).unwrap_err().contains("permits 31 channels"));
    }

    #[test]
    fn delays_double_up_to_the_longest() {
        let mut reconnect_delay = ReconnectDelay::default();
        let delays: Vec<u128> = (0..7).map(|_| reconnect_delay.next_delay().as_millis()).collect();
        assert_eq!(delays, [100, 200, 400, 800, 1600, 3000, 3000]);
    }
}
