//! A broker as it is configured, and how a connection to it is made.

use std::{sync::Arc, time::Duration};

use async_rs::Runtime;
use lapin::{
    AsyncTcpStream, Channel, Connection, ConnectionProperties,
    uri::{AMQPScheme, AMQPUri},
};
use tokio::{sync::oneshot, time::timeout};
use tokio_rustls::TlsConnector;

use super::{
    frames::Notes,
    remedy::with_remedy,
    returns::Returns,
    settings::Server,
    transport::{Endpoint, Kit, Switch, Transport},
};
use crate::tls;

/// Seconds between heartbeats where the URL does not say: a peer that vanished is noticed after twice that time.
const HEARTBEAT: u16 = 10;

#[derive(Clone)]
pub struct Broker {
    uri: AMQPUri,
    endpoint: Endpoint,
}

/// A connection, and what it hangs on.
pub struct Connected {
    pub connection: Connection,
    pub switch: Switch,
    /// What could not be read of what it delivers.
    pub notes: Notes,
    /// What it returned.
    pub returns: Returns,
    /// Resolves, to an error, when the connection is over.
    pub over: oneshot::Receiver<()>,
}

impl Broker {
    /// # Errors
    /// Which setting cannot be used; the text holds no secret.
    pub fn new(server: Server<'_>) -> Result<Self, String> {
        // The text of its error would show the URL.
        let mut uri: AMQPUri =
            server.url.expose().parse().map_err(|_| format!("url: {} cannot be used", server.url))?;
        if let Some(username) = server.username {
            username.clone_into(&mut uri.authority.userinfo.username);
        }
        if let Some(password) = server.password {
            password.expose().clone_into(&mut uri.authority.userinfo.password);
        }
        uri.query.heartbeat.get_or_insert(HEARTBEAT);
        // lapin takes an IPv6 address for no host at all.
        let url = url::Url::parse(server.url.expose()).map_err(|error| format!("url: {error}"))?;
        let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        let encrypted = uri.scheme == AMQPScheme::AMQPS;
        let tls = || tls::client_config(server.tls).map(|config| TlsConnector::from(Arc::new(config)));
        let tls = encrypted.then(tls).transpose()?;
        let endpoint = Endpoint { host, port: uri.authority.port, tls };
        Ok(Self { uri, endpoint })
    }

    /// Host and port.
    pub fn address(&self) -> String {
        format!("{}:{}", self.endpoint.host, self.endpoint.port)
    }

    /// Must be called within a tokio runtime.
    ///
    /// # Errors
    /// When there is no connection, handshake and login included, within `limit`.
    pub async fn connect(&self, limit: Duration) -> Result<Connected, String> {
        let (switch, notes, returns) = (Switch::default(), Notes::default(), Returns::default());
        let (alive, over) = oneshot::channel();
        let alive = std::sync::Mutex::new(Some(alive));
        let (endpoint, inner) = (self.endpoint.clone(), (switch.clone(), (notes.clone(), returns.clone())));
        let connect = async move |_: AMQPUri, _: Runtime<Kit>| {
            let alive = alive.lock().expect("never poisoned").take();
            let alive = alive.ok_or_else(|| std::io::Error::other("connects once only"))?;
            let (switch, notes) = inner.clone();
            Ok(AsyncTcpStream::Plain(Transport::connect(&endpoint, limit, switch, notes, alive).await?))
        };
        let properties = ConnectionProperties::default().with_connection_name("punctual".into());
        let runtime = Runtime::new(Kit::current());
        let connecting = Connection::connector(self.uri.clone(), runtime, connect, properties);
        let error = match timeout(limit, connecting).await {
            Ok(Ok(connection)) => return Ok(Connected { connection, switch, notes, returns, over }),
            Ok(Err(error)) => text(&error),
            Err(_) => format!("not connected within {limit:?}"),
        };
        // Its thread may still be in the handshake.
        switch.cut();
        Err(format!("{}: {error}", self.address()))
    }

    /// What `look` finds over a connection of its own.
    ///
    /// # Errors
    /// When there is no answer within twice `limit`, or not a good one.
    pub async fn visit<F>(&self, limit: Duration, look: impl FnOnce(Channel) -> F) -> Result<(), String>
    where
        F: Future<Output = lapin::Result<()>>,
    {
        let connected = self.connect(limit).await.map_err(with_remedy)?;
        let looking = async {
            // Kept to the end: one that was dropped closes by itself, which the closing connection takes for a failure.
            let channel = connected.connection.create_channel().await?;
            look(channel.clone()).await?;
            connected.connection.close(200, "checked".into()).await
        };
        let looked = timeout(limit, looking).await;
        connected.switch.cut();
        match looked {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(with_remedy(format!("{}: {}", self.address(), text(&error)))),
            Err(_) => Err(format!("{}: no answer within {limit:?}", self.address())),
        }
    }
}

/// Without the words that lapin puts in front.
pub fn text(error: &lapin::Error) -> String {
    match error.kind() {
        lapin::ErrorKind::ProtocolError(error) => error.get_message().to_string(),
        lapin::ErrorKind::IOError(error) => error.to_string(),
        _ => error.to_string(),
    }
}
