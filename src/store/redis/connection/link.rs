//! One link to a server.

use std::time::Duration;

use redis::{AsyncConnectionConfig, Client, aio::MultiplexedConnection};
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
    match timeout(longest, client.get_multiplexed_async_connection_with_config(&config)).await {
        Ok(result) => result.map_err(|error| classify(&error)),
        Err(_) => Err(StoreError::Unavailable { kind: NO_LINK, text: format!("no link in {longest:?}") }),
    }
}
