//! Targets by message: a setting such as `jobs:{key}` is the template, and `Allow` restricts the results.
//!
//! `parts` splits a text at its placeholders and fills them in, `place` checks the characters of each kind of name,
//! `url` does both for path and query of a URL, `address` joins exchange and routing key, `flow` makes the key of a
//! message's flow. A text without placeholders is a constant: it costs nothing per message, and needs no `allow`. A
//! message with an invalid value is rejected by the sink; other messages are not affected.

mod address;
mod allow;
mod flow;
mod parts;
mod place;
mod url;

use std::borrow::Cow;

pub use self::{
    address::Address,
    allow::{Allow, Pattern},
    flow::FlowTemplate,
    place::Place,
    url::UrlTemplate,
};
use self::{
    allow::PatternToken,
    parts::{Part, Values},
};
use crate::message::Metadata;

/// The name of a target: a constant, or a text with placeholders `{key}`, `{route}`, `{header:NAME}`. `{{` and `}}` are
/// braces.
#[derive(Clone, Debug)]
pub struct Template {
    place: Place,
    text: Text,
}

#[derive(Clone, Debug)]
enum Text {
    Constant(String),
    Parts(Vec<Part>),
}

impl Template {
    /// # Errors
    /// For an unknown placeholder, or a template without any valid result.
    pub fn parse(text: &str, place: Place) -> Result<Self, String> {
        let parts = parts::parse(text)?;
        if parts.iter().any(|part| matches!(part, Part::Value(_))) {
            // The sample values are valid, so an error comes from the setting.
            place.check(&parts::sample(&parts))?;
            return Ok(Self { place, text: Text::Parts(parts) });
        }
        let constant = parts::sample(&parts);
        place.check(&constant)?;
        Ok(Self { place, text: Text::Constant(constant) })
    }

    /// The template for another kind of name.
    ///
    /// # Errors
    /// The error text, if no values make a valid name of that kind.
    pub fn for_place(self, place: Place) -> Result<Self, String> {
        place.check(&self.sample())?;
        Ok(Self { place, ..self })
    }

    /// `None` for a template.
    pub fn as_constant(&self) -> Option<&str> {
        match &self.text {
            Text::Constant(text) => Some(text),
            Text::Parts(_) => None,
        }
    }

    /// The name for a message, without the check of `allow`.
    ///
    /// # Errors
    /// The missing or invalid value.
    pub fn render(&self, route: &str, metadata: &Metadata) -> Result<Cow<'_, str>, String> {
        let parts = match &self.text {
            Text::Constant(text) => return Ok(Cow::Borrowed(text)),
            Text::Parts(parts) => parts,
        };
        let text = Values { route, metadata }.fill(parts, |value, text| {
            text.push_str(value);
            Ok(())
        })?;
        self.place.check(&text).map_err(|error| format!("the {} for this message {error}", self.place.name()))?;
        Ok(Cow::Owned(text))
    }

    /// The name for a message. A constant is always allowed.
    ///
    /// # Errors
    /// Those of `render`, and a name that `allow` does not match.
    pub fn render_allowed(&self, allow: &Allow, route: &str, metadata: &Metadata) -> Result<Cow<'_, str>, String> {
        let name = self.render(route, metadata)?;
        if self.as_constant().is_none() {
            allow.check(self.place.name(), &name)?;
        }
        Ok(name)
    }

    /// The pattern of the results; `None` for a constant.
    pub fn shape(&self) -> Option<Pattern> {
        self.as_constant().is_none().then(|| self.pattern(PatternToken::Any))
    }

    /// The pattern of the results if every value matches `value`.
    fn pattern(&self, value: PatternToken) -> Pattern {
        match &self.text {
            Text::Constant(text) => text.chars().map(PatternToken::One).collect(),
            Text::Parts(parts) => parts::shape(parts, value),
        }
    }

    /// The name with sample values.
    fn sample(&self) -> String {
        match &self.text {
            Text::Constant(text) => text.clone(),
            Text::Parts(parts) => parts::sample(parts),
        }
    }
}

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests {
    use super::*;

    fn metadata(key: &str) -> Metadata {
        Metadata {
            key: Some(key.into()),
            headers: [("X-Tenant".to_owned(), "acme".to_owned())].into(),
            ..Metadata::default()
        }
    }

    fn list() -> Place {
        Place::ListKey { key_prefix: "punctual".into() }
    }

    fn rendered(text: &str, place: Place, key: &str) -> Result<String, String> {
        Template::parse(text, place).unwrap().render("r", &metadata(key)).map(Cow::into_owned)
    }

    #[test]
    fn a_text_without_placeholders_is_a_constant_that_needs_nothing() {
        let template = Template::parse("{{jobs}}", list()).unwrap();
        assert_eq!(template.as_constant(), Some("{jobs}"));
        assert!(template.shape().is_none());
        let name = template.render_allowed(&Allow::default(), "r", &Metadata::default());
        assert!(matches!(name, Ok(Cow::Borrowed("{jobs}"))), "{name:?}");
    }

    #[test]
    fn a_name_is_made_of_key_route_and_headers_and_must_be_allowed() {
        let template = Template::parse("{{{route}}}:{header:x-TENANT}:{key}", list()).unwrap();
        assert_eq!(template.as_constant(), None);
        assert_eq!(template.render("r", &metadata("k")).unwrap(), "{r}:acme:k");
        let allow = Allow::new(["{r}:acme:*"]).unwrap();
        assert_eq!(template.render_allowed(&allow, "r", &metadata("é k")).unwrap(), "{r}:acme:é k");
        assert_eq!(
            template.render_allowed(&allow, "other", &metadata("k")).unwrap_err(),
            "the key `{other}:acme:k` is not allowed: no pattern of `allow` matches"
        );
        assert!(template.render_allowed(&Allow::default(), "r", &metadata("k")).is_err());
    }

    #[test]
    fn a_topic_takes_only_what_kafka_takes() {
        for good in ["a", "A-z_0.9", &"x".repeat(242)] {
            assert_eq!(rendered("orders.{key}", Place::Topic, good), Ok(format!("orders.{good}")));
        }
        for bad in ["../x", "a/b?c#d", "a b", "é", "a%2f", "a:b", "a\r\nb", "\0", "", &"x".repeat(243)] {
            assert!(rendered("orders.{key}", Place::Topic, bad).is_err(), "{bad:?}");
        }
        for bad in [".", ".."] {
            assert!(rendered("{key}", Place::Topic, bad).is_err(), "{bad:?}");
            assert!(Template::parse(bad, Place::Topic).is_err(), "{bad:?}");
        }
        assert_eq!(
            rendered("{key}", Place::Topic, "a/b").unwrap_err(),
            "the topic for this message `a/b` is not 1 to 249 of A-Za-z0-9._-"
        );
    }

    #[test]
    fn exchanges_and_routing_keys_take_255_bytes_of_text() {
        for place in [Place::Exchange, Place::RoutingKey] {
            for good in ["../x", "a/b?c#d", "é.*.#", "a%2f", &"x".repeat(253)] {
                assert_eq!(rendered("a.{key}", place.clone(), good), Ok(format!("a.{good}")));
            }
            for bad in ["a\r\nb", "\0", "\t", "\u{85}", "", &"x".repeat(254), &"é".repeat(127)] {
                assert!(rendered("a.{key}", place.clone(), bad).is_err(), "{bad:?}");
            }
            assert_eq!(Template::parse("", place).unwrap().as_constant(), Some(""), "the default exchange");
        }
    }

    #[test]
    fn while_our_own_prefix_is_unknown_no_key_is_one_of_our_own() {
        for good in ["{:a}", ":routes", "{punctual:r:0/1}:pending"] {
            assert_eq!(rendered("{key}", Place::ListKey { key_prefix: "".into() }, good).as_deref(), Ok(good));
        }
    }

    #[test]
    fn a_list_key_takes_text_but_never_one_of_our_own_keys() {
        for good in ["../x", "a/b?c#d", "{jobs}", "é", "punctual:r", &"x".repeat(1024)] {
            assert_eq!(rendered("{key}", list(), good).as_deref(), Ok(good));
        }
        for bad in ["{punctual:r:0/1}:pending", "{punctual:", "punctual:routes", "a\nb", "\0", "", &"x".repeat(10_000)]
        {
            assert!(rendered("{key}", list(), bad).is_err(), "{bad:?}");
        }
        assert!(rendered("{{pun{key}", list(), "ctual:r:0}:dead").is_err());
        for bad in ["", "punctual:routes", "{{punctual:{key}", "{{punctual:r:0/1}}:dead", "a\0{key}"] {
            assert!(Template::parse(bad, list()).is_err(), "{bad:?}");
        }
    }
}
