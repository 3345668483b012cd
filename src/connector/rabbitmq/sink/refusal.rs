//! The reason for which a broker closed a channel.

use std::collections::HashSet;

use lapin::{
    Error, ErrorKind,
    protocol::{AMQPErrorKind, AMQPSoftError},
};
use parking_lot::{Mutex, MutexGuard};

use crate::sink::Domain;

/// Maximum refused domains that are kept. A message of an evicted one closes a shared channel once more.
const MAX_REFUSED: usize = 1000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The exchange does not exist, or the user is not allowed to publish to it.
    Exchange,
    /// Topic permissions forbid the routing key.
    RoutingKey,
    /// Another part of the message, e.g. a header.
    Message,
}

impl Refusal {
    /// `None`: the error is not a channel error of the broker.
    pub fn of(error: &Error) -> Option<Self> {
        let ErrorKind::ProtocolError(error) = error.kind() else { return None };
        let AMQPErrorKind::Soft(kind) = error.kind() else { return None };
        Some(match kind {
            // For a topic: `access to topic 'x' in exchange 'y'`. Otherwise `access to exchange` or `cannot publish to
            // internal exchange`.
            AMQPSoftError::ACCESSREFUSED if error.get_message().as_str().contains("access to topic '") => {
                Self::RoutingKey
            }
            AMQPSoftError::ACCESSREFUSED | AMQPSoftError::NOTFOUND => Self::Exchange,
            _ => Self::Message,
        })
    }
}

/// Domains with a refused routing key. The broker closes the channel at each of their messages.
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
        self.0.lock()
    }
}

#[cfg(test)]
mod tests {
    use lapin::protocol::{AMQPError, AMQPHardError};

    use super::*;

    #[test]
    fn a_refusal_is_of_the_exchange_of_the_routing_key_or_of_the_message() {
        let soft = |kind, text: &str| {
            Error::from(ErrorKind::ProtocolError(AMQPError::new(AMQPErrorKind::Soft(kind), text.into())))
        };
        let to_exchange = "ACCESS_REFUSED - write access to exchange 'x' in vhost '/' refused";
        let to_topic = "ACCESS_REFUSED - write access to topic 'k' in exchange 'x' in vhost '/' refused";
        for (kind, text, expected) in [
            (AMQPSoftError::ACCESSREFUSED, to_exchange, Refusal::Exchange),
            (AMQPSoftError::ACCESSREFUSED, to_topic, Refusal::RoutingKey),
            (AMQPSoftError::NOTFOUND, "NOT_FOUND - no exchange 'x' in vhost '/'", Refusal::Exchange),
            (AMQPSoftError::PRECONDITIONFAILED, "PRECONDITION_FAILED - invalid expiration", Refusal::Message),
        ] {
            assert_eq!(Refusal::of(&soft(kind, text)), Some(expected), "{text}");
        }
        let hard = AMQPError::new(AMQPErrorKind::Hard(AMQPHardError::CONNECTIONFORCED), "closed".into());
        assert_eq!(Refusal::of(&Error::from(ErrorKind::ProtocolError(hard))), None);
        assert_eq!(Refusal::of(&Error::from(ErrorKind::ChannelsLimitReached)), None);
    }

    #[test]
    fn a_refused_domain_is_known_until_it_is_removed_and_their_number_is_bounded() {
        let refusals = Refusals::default();
        let domain = |n: usize| Domain::from(n.to_string().as_str());
        refusals.insert(Some(domain(0)));
        refusals.insert(None);
        assert!(
            refusals.contains(Some(&domain(0))) && !refusals.contains(Some(&domain(1))) && !refusals.contains(None)
        );
        refusals.remove(None);
        refusals.remove(Some(&domain(0)));
        assert!(!refusals.contains(Some(&domain(0))));
        for n in 0..3 * MAX_REFUSED {
            refusals.insert(Some(domain(n)));
            assert!(refusals.contains(Some(&domain(n))) && refusals.lock().len() <= MAX_REFUSED);
        }
    }
}
