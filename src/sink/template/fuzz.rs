//! Fuzzing of settings and values that try to redirect a message. The lines of an input are the template, a pattern of
//! `allow`, the message's key, and a header's value.

use super::*;
use crate::{fuzz::FuzzTarget, message::check_flow};

const TARGET: FuzzTarget = FuzzTarget {
    name: "template",
    words: &[
        "{key}",
        "{route}",
        "{header:X-A}",
        "{{",
        "}}",
        "/",
        "..",
        ".",
        "%2e",
        "%2f",
        "\\",
        "?",
        "#",
        "@",
        ":",
        "*",
        "**",
        "https://h/",
        "http://u:p@h:1/a?b=",
        "punctual:routes",
        "{punctual:",
        "\n",
    ],
    run,
};

fn run(input: &[u8]) -> String {
    let text = String::from_utf8_lossy(input);
    let mut lines = text.split('\n');
    let mut line = || lines.next().unwrap_or_default();
    let (template, pattern, key, header) = (line(), line(), line(), line());
    let metadata = Metadata {
        key: Some(key.into()),
        headers: [("X-A".to_owned(), header.to_owned())].into(),
        ..Metadata::default()
    };
    let Ok(allow) = Allow::new([pattern]) else { return "no pattern".into() };
    let places = [Place::Topic, Place::Exchange, Place::RoutingKey, Place::ListKey { key_prefix: "punctual".into() }];
    let mut came_to: String = places.map(|place| name(template, &place, &allow, &metadata)).join("; ");
    for slashes in [false, true] {
        came_to.push_str(&url(template, slashes, &allow, &metadata));
    }
    came_to + &address(template, &allow, &metadata) + &flow(template, &metadata)
}

/// A name is valid for its place, and a templated name is allowed.
fn name(template: &str, place: &Place, allow: &Allow, metadata: &Metadata) -> String {
    let template = match Template::parse(template, place.clone()) {
        Ok(template) => template,
        Err(error) => return error,
    };
    match template.render_allowed(allow, "r", metadata) {
        Ok(name) => {
            assert_eq!(place.check(&name), Ok(()), "{name}");
            assert!(!name.contains(char::is_control), "{name:?}");
            if template.as_constant().is_none() {
                assert!(allow.allows(&name), "{name}");
                let literal: Pattern = name.chars().map(PatternToken::One).collect();
                assert!(template.shape().expect("it varies").meets(&literal), "{name} has not the shape");
            }
            "rendered".into()
        }
        Err(error) => error,
    }
}

/// For all values the URL has the same server and user, no dot segment, as many segments and parameters as the
/// template, and is allowed.
fn url(text: &str, slashes: bool, allow: &Allow, metadata: &Metadata) -> String {
    let template = match UrlTemplate::parse(text) {
        Ok(template) if slashes => template.with_slashes(),
        Ok(template) => template,
        Err(error) => return error,
    };
    let harmless =
        Metadata { key: Some("x".into()), headers: [("X-A".to_owned(), "x".to_owned())].into(), ..Metadata::default() };
    let url = match template.render_allowed(allow, "r", metadata) {
        Ok(url) => url,
        Err(error) => return error,
    };
    let everything = Allow::new(["**"]).expect("a pattern");
    let plain = template.render_allowed(&everything, "r", &harmless).expect("harmless values");
    assert_eq!(url[..::url::Position::BeforePath], plain[..::url::Position::BeforePath]);
    assert_eq!(url.path().matches('/').count(), plain.path().matches('/').count(), "{url}");
    let parameters = |url: &::url::Url| url.query().map(|query| query.matches(['&', '=']).count());
    assert_eq!(parameters(&url), parameters(&plain), "{url}");
    assert_eq!(url.fragment(), None);
    assert_eq!(::url::Url::parse(url.as_str()).as_ref(), Ok(&url), "a receiver reads the same");
    if !template.is_constant() {
        let path = url.path().to_ascii_lowercase().replace("%2e", ".");
        assert!(!path.split('/').any(|segment| segment == "." || segment == ".."), "{url}");
        let whole = &url[::url::Position::BeforePath..];
        assert!(allow.allows(url.path()) || allow.allows(whole), "{url}");
    }
    "a URL".into()
}

/// A flow is empty or valid, and in the template's place it stays as it is.
fn flow(text: &str, metadata: &Metadata) -> String {
    let template = match FlowTemplate::parse(text) {
        Ok(template) => template,
        Err(error) => return error,
    };
    let flow = template.render("r", metadata);
    if flow.is_empty() {
        return "no flow".into();
    }
    assert_eq!(check_flow(&flow), Ok(()));
    let again = Metadata { key: Some(flow.clone()), ..Metadata::default() };
    assert_eq!(FlowTemplate::parse("{key}").expect("a template").render("r", &again), flow);
    "a flow".into()
}

/// A templated exchange, and its routing key.
fn address(text: &str, allow: &Allow, metadata: &Metadata) -> String {
    let (exchange, key) = text.split_once('/').map_or((text, None), |(exchange, key)| (exchange, Some(key)));
    let parsed = Template::parse(exchange, Place::Exchange).and_then(|exchange| {
        let key = key.map(|key| Template::parse(key, Place::RoutingKey)).transpose()?;
        Address::new(exchange, key)
    });
    let address = match parsed {
        Ok(address) => address,
        Err(error) => return error,
    };
    match address.render_allowed(allow, "r", metadata) {
        Ok((exchange, key)) => {
            if address.constant_exchange().is_none() {
                assert!(!exchange.contains('/') && allow.allows(&format!("{exchange}/{key}")), "{exchange}/{key}");
            }
            "an address".into()
        }
        Err(error) => error,
    }
}

#[test]
fn the_corpus_keeps_to_what_is_promised() {
    TARGET.replay();
}

#[test]
#[ignore = "runs for minutes: tests/run.sh --fuzz"]
fn mutations_keep_to_what_is_promised() {
    TARGET.explore();
}
