//! Why a broker closed a channel.

use std::{
    collections::HashSet,
    sync::{Mutex, MutexGuard, PoisonError},
};

use lapin::{
    Error, ErrorKind,
    protocol::{AMQPErrorKind, AMQPSoftError},
};

use crate::sink::Domain;

/// Domains that are remembered: a message of one that was forgotten costs its channel once more.
const MAX_REFUSED: usize = 1000;

/// What a broker refused when it closed a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// There is no such exchange, or it may not be published to.
    Exchange,
    /// Topic permissions forbid the routing key.
    RoutingKey,
    /// Something else of the message, e.g. a header.
    Message,
}

impl Refusal {
    /// `None`: the error is not that of a channel.
    pub fn of(error: &Error) -> Option<Self> {
        let ErrorKind::ProtocolError(error) = error.kind() else { return None };
        let AMQPErrorKind::Soft(kind) = error.kind() else { return None };
        Some(match kind {
            // `access to topic 'x' in exchange 'y'`; else `access to exchange` or `cannot publish to internal exchange`.
            AMQPSoftError::ACCESSREFUSED if error.get_message().as_str().contains("access to topic '") => {
                Self::RoutingKey
            }
            AMQPSoftError::ACCESSREFUSED | AMQPSoftError::NOTFOUND => Self::Exchange,
            _ => Self::Message,
        })
    }
}

/// Domains whose routing key was refused: the broker closes the channel over each of their messages.
#[derive(Default)]
pub struct Refusals(Mutex<HashSet<Domain>>);

impl Refusals {
    pub fn contains(&self, domain: Option<&Domain>) -> bool {
        domain.is_some_and(|domain| self.lock().contains(domain))
    }

    pub fn insert(&self, domain: Option<Domain>) {
        let mut refused = self.lock();
        if refused.len() >= MAX_REFUSED {
            refused.clear();
        }
        refused.extend(domain);
    }

    pub fn remove(&self, domain: Option<&Domain>) {
        if let Some(domain) = domain {
            self.lock().remove(domain);
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashSet<Domain>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
