//! One link to a server.

use std::time::Duration;

use redis::{AsyncConnectionConfig, Client, ConnectionAddr, aio::MultiplexedConnection};
use tokio::time::timeout;

use super::{NO_LINK, classify};
use crate::store::StoreError;

/// Opens a link to the server of `client`.
///
/// # Errors
/// `Unavailable`, also if that takes longer than `longest`.
pub(super) async fn open(client: &Client, longest: Duration) -> Result<MultiplexedConnection, StoreError> {
    // Each command has its own timeout.
    let config = AsyncConnectionConfig::new().set_response_timeout(None).set_connection_timeout(Some(longest));
    let late = || StoreError::Unavailable { kind: NO_LINK, text: format!("no link in {longest:?}{}", hint(client)) };
    match timeout(longest, client.get_multiplexed_async_connection_with_config(&config)).await {
        Ok(Err(error)) if error.is_timeout() => Err(late()),
        Ok(result) => result.map_err(|error| classify(&error)),
        Err(_) => Err(late()),
    }
}

/// The usual cause if no link was made in time: a server without TLS waits for the end of the handshake's first line.
pub(super) fn hint(client: &Client) -> &'static str {
    match client.get_connection_info().addr() {
        ConnectionAddr::TcpTls { .. } => ": the server may not speak TLS, in which case its URL begins with redis://",
        _ => "",
    }
}

/// Links to the server of a simulation.
#[cfg(test)]
pub(super) mod simulated {
    use std::sync::Arc;

    use punctual_model::Links;
    use redis::{
        AsyncConnectionConfig, IntoConnectionInfo, RedisConnectionInfo,
        aio::{MultiplexedConnection, PubSub},
    };

    use super::super::{NO_LINK, classify};
    use crate::store::StoreError;

    pub async fn open(links: &Arc<Links>) -> Result<MultiplexedConnection, StoreError> {
        let stream = links.connect().ok_or_else(refused)?;
        let settings = settings();
        let config = AsyncConnectionConfig::new().set_response_timeout(None).set_connection_timeout(None);
        let made = MultiplexedConnection::new_with_config(&settings, stream, config).await;
        let (connection, driver) = made.map_err(|error| classify(&error))?;
        tokio::spawn(driver);
        Ok(connection)
    }

    pub async fn subscribe(links: &Arc<Links>) -> Result<PubSub, StoreError> {
        let stream = links.connect().ok_or_else(refused)?;
        PubSub::new(&settings(), stream).await.map_err(|error| classify(&error))
    }

    fn settings() -> RedisConnectionInfo {
        let info = "redis://simulated".into_connection_info().expect("an address");
        info.redis_settings().clone().set_skip_set_lib_name()
    }

    fn refused() -> StoreError {
        StoreError::Unavailable { kind: NO_LINK, text: "connection refused".into() }
    }
}
