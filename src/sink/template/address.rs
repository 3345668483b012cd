//! The address on an AMQP broker: an exchange and a routing key. Each is constant or a template.

use std::borrow::Cow;

use super::{
    Allow, Pattern, Template,
    allow::{PatternToken, shown},
};
use crate::message::Metadata;

/// Separates exchange and routing key in the text that `allow` is compared with. A templated exchange must not contain
/// it, so that a pattern that names an exchange matches that exchange only.
const SEPARATOR: char = '/';

/// An exchange and a routing key.
#[derive(Clone, Debug)]
pub struct Address {
    exchange: Template,
    /// `None`: the message's `key`, if it has one.
    routing_key: Option<Template>,
}

impl Address {
    /// # Errors
    /// The error of the exchange.
    pub fn new(exchange: Template, routing_key: Option<Template>) -> Result<Self, String> {
        if exchange.as_constant().is_none() && exchange.sample().contains(SEPARATOR) {
            return Err(format!("must not have a `{SEPARATOR}` beside a placeholder: `allow` splits there"));
        }
        Ok(Self { exchange, routing_key })
    }

    /// `None` for a template.
    pub fn constant_exchange(&self) -> Option<&str> {
        self.exchange.as_constant()
    }

    /// Whether every message goes to the same exchange with the same routing key.
    pub fn is_constant(&self) -> bool {
        let is_constant = |template: &Template| template.as_constant().is_some();
        is_constant(&self.exchange) && self.routing_key.as_ref().is_some_and(is_constant)
    }

    /// The pattern of the texts that `allow` is compared with: `EXCHANGE/ROUTING_KEY` for a templated exchange,
    /// otherwise the routing key. `None` if neither is a template. A routing key that is the message's `key` needs no
    /// `allow`.
    pub fn shape(&self) -> Option<Pattern> {
        let routing_key = self.routing_key.as_ref();
        if self.exchange.as_constant().is_some() {
            return routing_key.and_then(Template::shape);
        }
        let key =
            routing_key.map_or_else(|| Pattern::from_iter([PatternToken::Any]), |key| key.pattern(PatternToken::Any));
        Some(self.exchange.pattern(PatternToken::Segment).followed_by(SEPARATOR, key))
    }

    /// The exchange and the routing key of one message.
    ///
    /// # Errors
    /// The missing or invalid value, or the name that `allow` does not match.
    pub fn render_allowed<'a: 'b, 'b>(
        &'a self,
        allow: &Allow,
        route: &str,
        metadata: &'b Metadata,
    ) -> Result<(Cow<'a, str>, Cow<'b, str>), String> {
        let exchange = self.exchange.render(route, metadata)?;
        let key = match &self.routing_key {
            Some(key) => key.render(route, metadata)?,
            None => metadata.key.as_deref().map(Cow::Borrowed).or_else(|| odd_key(metadata)).unwrap_or_default(),
        };
        if self.exchange.as_constant().is_none() {
            if exchange.contains(SEPARATOR) {
                return Err(format!("the exchange for this message `{}` has a `{SEPARATOR}`", shown(&exchange)));
            }
            allow.check("exchange/routing_key", &format!("{exchange}{SEPARATOR}{key}"))?;
        } else if self.routing_key.as_ref().is_some_and(|key| key.as_constant().is_none()) {
            allow.check("routing_key", &key)?;
        }
        Ok((exchange, key))
    }
}

/// The key of a consumed message as routing key, if control characters prevent it from being the `key`.
fn odd_key(metadata: &Metadata) -> Option<Cow<'_, str>> {
    metadata.origin.as_ref()?.odd_key().map(Cow::Owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{message::Origin, sink::template::Place};

    fn address(exchange: &str, routing_key: Option<&str>) -> Result<Address, String> {
        let exchange = Template::parse(exchange, Place::Exchange).unwrap();
        Address::new(exchange, routing_key.map(|key| Template::parse(key, Place::RoutingKey).unwrap()))
    }

    /// The address of a message of the route `r` with this key.
    fn rendered(address: &Address, allow: &[&str], key: &str) -> Result<(String, String), String> {
        let metadata = Metadata { key: Some(key.into()), ..Metadata::default() };
        let (exchange, key) = address.render_allowed(&Allow::new(allow).unwrap(), "r", &metadata)?;
        Ok((exchange.into_owned(), key.into_owned()))
    }

    fn meets(address: &Address, pattern: &str) -> bool {
        Pattern::parse(pattern).unwrap().meets(&address.shape().unwrap())
    }

    #[test]
    fn names_that_do_not_vary_need_no_permission_and_a_set_routing_key_wins() {
        for (routing_key, expected) in [(Some("fixed"), "fixed"), (None, "of the message")] {
            let address = address("a/b", routing_key).unwrap();
            assert!(address.shape().is_none());
            assert_eq!(address.constant_exchange(), Some("a/b"));
            assert_eq!(rendered(&address, &[], "of the message"), Ok(("a/b".into(), expected.into())));
        }
        let (address, allow) = (address("a", None).unwrap(), Allow::default());
        assert_eq!(address.render_allowed(&allow, "r", &Metadata::default()).unwrap().1, "", "a message without a key");
    }

    #[test]
    fn a_routing_key_that_varies_is_compared_alone() {
        let address = address("a/b", Some("{route}.{key}")).unwrap();
        assert!(meets(&address, "r.*") && !meets(&address, "a/b/r"));
        assert_eq!(rendered(&address, &["r.x*"], "x1"), Ok(("a/b".into(), "r.x1".into())));
        let error = rendered(&address, &["r.x*"], "y").unwrap_err();
        assert_eq!(error, "the routing_key `r.y` is not allowed: no pattern of `allow` matches");
    }

    #[test]
    fn an_exchange_that_varies_is_compared_with_the_routing_key_behind_a_slash() {
        let fixed = address("tenant.{key}", Some("due/now")).unwrap();
        assert_eq!(fixed.constant_exchange(), None);
        assert!(meets(&fixed, "tenant.*/due/now") && meets(&fixed, "**") && !meets(&fixed, "tenant.*"));
        assert!(!meets(&fixed, "tenant.*/due"));
        assert_eq!(rendered(&fixed, &["tenant.a/**"], "a"), Ok(("tenant.a".into(), "due/now".into())));
        let error = rendered(&fixed, &["tenant.a/**"], "b").unwrap_err();
        assert_eq!(error, "the exchange/routing_key `tenant.b/due/now` is not allowed: no pattern of `allow` matches");
        // `allow` is compared with the message's own key, too.
        let own = address("{route}", None).unwrap();
        assert_eq!(rendered(&own, &["r/good"], "good"), Ok(("r".into(), "good".into())));
        assert!(rendered(&own, &["r/good"], "bad").is_err());
    }

    #[test]
    fn no_exchange_that_varies_reaches_over_the_slash() {
        assert!(address("a/{key}", None).unwrap_err().contains("must not have a `/`"));
        let address = address("{key}", Some("k")).unwrap();
        assert_eq!(rendered(&address, &["**"], "a/b").unwrap_err(), "the exchange for this message `a/b` has a `/`");
    }

    #[test]
    fn an_address_is_constant_if_both_parts_are() {
        for (exchange, key, expected) in
            [("a", Some("k"), true), ("a", None, false), ("a", Some("{key}"), false), ("{key}", Some("k"), false)]
        {
            assert_eq!(address(exchange, key).unwrap().is_constant(), expected, "{exchange} {key:?}");
        }
    }

    #[test]
    fn a_key_with_control_characters_of_a_consumed_message_is_its_routing_key() {
        let origin = Origin { key_base64: Some("YQpi".into()), ..Origin::default() };
        let metadata = Metadata { origin: Some(origin.into()), ..Metadata::default() };
        let address = address("a", None).unwrap();
        assert_eq!(address.render_allowed(&Allow::default(), "r", &metadata).unwrap().1, "a\nb");
    }
}
