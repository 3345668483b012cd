//! A URL with optional placeholders in path and query. Scheme, user, host and port are the same for all messages.
//!
//! All characters of values except the unreserved ones are percent-encoded. So a value cannot add a parameter, nor a
//! segment for a server that splits a path before it decodes it. Many servers decode first, so `/` and `\` are refused
//! in a path unless the sink allows them. Dot segments are always refused, encoded or not: browsers and many servers
//! resolve both.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use url::Url;

use super::{
    allow::{Allow, Pattern, PatternToken},
    parts::{self, KNOWN, Part, Values},
};
use crate::message::Metadata;

/// All characters except those that RFC 3986, section 2.3 calls unreserved.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Maximum length of path and query, in bytes: the minimum that RFC 9110, section 4.1 asks servers to support.
const MAX_BYTES: usize = 8000;

/// `Debug` shows nothing of the URL, which may hold secrets.
#[derive(Clone)]
pub struct UrlTemplate {
    base: Url,
    /// `None`: `base` is the URL of all messages.
    target: Option<Target>,
    /// Whether values in the path can have `/` and `\`.
    slashes: bool,
}

#[derive(Clone)]
struct Target {
    path: Vec<Part>,
    query: Option<Vec<Part>>,
}

impl UrlTemplate {
    /// Parses a URL. A fragment is dropped, because it is never sent.
    ///
    /// # Errors
    /// The error, without any part of `text`, which may hold secrets.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong = |error: url::ParseError| format!("is not a URL such as https://example.org/due: {error}");
        let parts = parts::parse(text).map_err(|_| format!("has a brace that is no placeholder; {KNOWN}"))?;
        let values = parts.iter().filter(|part| matches!(part, Part::Value(_))).count();
        // The placeholders are replaced by this word, which the parser leaves unchanged in every part of a URL.
        let word = unused_word(text);
        let marked: String = parts
            .iter()
            .map(|part| match part {
                Part::Literal(literal) => literal.as_str(),
                Part::Value(_) => word.as_str(),
            })
            .collect();
        let mut base = Url::parse(&marked).map_err(wrong)?;
        base.set_fragment(None);
        if values == 0 {
            return Ok(Self { base, target: None, slashes: false });
        }
        let mut placeholders = parts.into_iter().filter(|part| matches!(part, Part::Value(_)));
        let path = split(base.path(), &word, &mut placeholders);
        let query = base.query().map(|query| split(query, &word, &mut placeholders));
        let found = base.path().matches(&word).count() + base.query().unwrap_or_default().matches(&word).count();
        if found != values {
            return Err("may have placeholders in its path and query only".into());
        }
        Ok(Self { base, target: Some(Target { path, query }), slashes: false })
    }

    /// The scheme, user, host and port of all messages.
    pub fn base(&self) -> &Url {
        &self.base
    }

    pub fn is_constant(&self) -> bool {
        self.target.is_none()
    }

    /// Allows `/` and `\` in values of the path, percent-encoded.
    #[must_use]
    pub fn with_slashes(self) -> Self {
        Self { slashes: true, ..self }
    }

    #[must_use]
    pub fn without_user(mut self) -> Self {
        // Both setters fail without a host, but a URL without a host has neither user nor password.
        let _ = self.base.set_username("");
        let _ = self.base.set_password(None);
        self
    }

    /// The URL for a message. `allow` is compared with the percent-encoded path, or with `path?query` if the query has
    /// placeholders. A constant is always allowed.
    ///
    /// # Errors
    /// The missing or invalid value, or the name that `allow` does not match.
    pub fn render_allowed(&self, allow: &Allow, route: &str, metadata: &Metadata) -> Result<Url, String> {
        let mut url = self.base.clone();
        let Some(target) = &self.target else { return Ok(url) };
        let values = Values { route, metadata };
        let path = values.fill(&target.path, |value, text| {
            if value.split(['/', '\\']).any(|segment| matches!(segment, "." | "..")) {
                return Err("has a segment `.` or `..`, and stands in a path".into());
            }
            if !self.slashes && value.contains(['/', '\\']) {
                return Err(
                    "has a `/` or `\\`, and stands in a path: the sink does not say `allow_slashes: true`".into()
                );
            }
            encode(value, text);
            Ok(())
        })?;
        let query = target.query.as_ref().map(|query| {
            values.fill(query, |value, text| {
                encode(value, text);
                Ok(())
            })
        });
        let query = query.transpose()?;
        let length = path.len() + query.as_ref().map_or(0, String::len);
        if length > MAX_BYTES {
            return Err(format!("path and query for this message have {length} bytes, at most {MAX_BYTES}"));
        }
        url.set_path(&path);
        url.set_query(query.as_deref());
        // Two values together can form a dot segment, which `set_path` removes.
        if url.path() != path {
            return Err("the path for this message has a segment `.` or `..`".into());
        }
        match &query {
            Some(query) if target.query_varies() => {
                // The query may be secret, so only the path is shown.
                if !allow.allows(&format!("{path}?{query}")) {
                    return Err(Allow::refusal("path", &path, " with its query"));
                }
            }
            _ => allow.check("path", &path)?,
        }
        Ok(url)
    }

    /// The pattern of the texts that `allow` is compared with; `None` for a constant.
    pub fn shape(&self) -> Option<Pattern> {
        let target = self.target.as_ref()?;
        let mut parts = target.path.clone();
        if let Some(query) = target.query.as_ref().filter(|_| target.query_varies()) {
            parts.push(Part::Literal("?".into()));
            parts.extend(query.iter().cloned());
        }
        // An encoded value has no `/`.
        Some(parts::shape(&parts, PatternToken::Segment))
    }
}

impl Target {
    fn query_varies(&self) -> bool {
        self.query.iter().flatten().any(|part| matches!(part, Part::Value(_)))
    }
}

fn encode(value: &str, text: &mut String) {
    text.extend(utf8_percent_encode(value, ENCODED));
}

/// A word that does not occur in `text`, in any case, and that URL parsers leave unchanged.
fn unused_word(text: &str) -> String {
    let lower = text.to_ascii_lowercase();
    let mut word = String::from("value");
    while lower.contains(&word) {
        word.push('q');
    }
    word
}

/// `text` with a placeholder for each `word`.
fn split(text: &str, word: &str, placeholders: &mut impl Iterator<Item = Part>) -> Vec<Part> {
    let mut parts = Vec::new();
    for (index, literal) in text.split(word).enumerate() {
        if index > 0 {
            parts.extend(placeholders.next());
        }
        if !literal.is_empty() {
            parts.push(Part::Literal(literal.to_owned()));
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use percent_encoding::percent_decode_str;

    use super::*;

    fn template(text: &str) -> UrlTemplate {
        UrlTemplate::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    fn rendered(text: &str, key: &str, allow: &[&str]) -> Result<String, String> {
        let metadata = Metadata {
            key: Some(key.into()),
            headers: [("X-A".to_owned(), ".".to_owned())].into(),
            ..Metadata::default()
        };
        let url = template(text).with_slashes().render_allowed(&Allow::new(allow).unwrap(), "r", &metadata)?;
        Ok(url.into())
    }

    #[test]
    fn a_url_without_placeholders_is_a_constant() {
        let constant = template("https://u:p@h/a{{b}}?c={{d}}#e");
        assert!(constant.is_constant() && constant.shape().is_none());
        let url = constant.without_user().render_allowed(&Allow::default(), "r", &Metadata::default()).unwrap();
        assert_eq!(url.as_str(), "https://h/a%7Bb%7D?c={d}");
    }

    #[test]
    fn a_value_stays_one_segment_or_one_parameter_whatever_it_holds() {
        let long = "x".repeat(1000);
        for (key, encoded) in [
            ("plain-1._~", "plain-1._~"),
            ("a/b?c#d", "a%2Fb%3Fc%23d"),
            ("a\\b", "a%5Cb"),
            ("%2f", "%252f"),
            ("..%2f", "..%252f"),
            ("a&b=c;d+e f", "a%26b%3Dc%3Bd%2Be%20f"),
            ("é☃", "%C3%A9%E2%98%83"),
            ("@h:1", "%40h%3A1"),
            ("...", "..."),
            ("a..", "a.."),
            (&long, &long),
        ] {
            let url = rendered("https://h/hooks/{key}/x?tenant={key}&a=b", key, &["/hooks/*/x?tenant=*&a=b"]);
            assert_eq!(url, Ok(format!("https://h/hooks/{encoded}/x?tenant={encoded}&a=b")), "{key}");
        }
    }

    #[test]
    fn path_and_query_have_a_bound_together() {
        let text = |length: usize| format!("https://h/{}{{key}}?b={{key}}", "a".repeat(length - "/k?b=k".len() + 1));
        assert!(rendered(&text(MAX_BYTES), "k", &["**"]).is_ok());
        let error = rendered(&text(MAX_BYTES + 1), "k", &["**"]).unwrap_err();
        assert_eq!(error, "path and query for this message have 8001 bytes, at most 8000");
    }

    #[test]
    fn the_word_for_a_placeholder_does_not_occur_in_the_text() {
        let mut text = "https://h/Value/{key}".to_owned();
        for _ in 0..3 {
            let word = unused_word(&text);
            assert!(!text.to_lowercase().contains(&word), "{word} in {text}");
            let url = rendered(&text, "k", &["**"]);
            assert_eq!(url, Ok(text.replace("{key}", "k")));
            text = text.replace("h/", &format!("h/{word}"));
        }
    }

    #[test]
    fn a_value_in_the_path_has_no_slashes_unless_they_are_allowed() {
        let rendered = |text: &str, key: &str| {
            let metadata = Metadata { key: Some(key.into()), ..Metadata::default() };
            template(text).render_allowed(&Allow::new(["**"]).unwrap(), "r", &metadata).map(String::from)
        };
        for key in ["x/admin", "x\\admin", "/", "\\"] {
            let error = rendered("https://h/hooks/{key}", key).unwrap_err();
            assert!(error.starts_with("its `key` has a `/` or `\\`, and stands in a path"), "{error}");
        }
        assert_eq!(rendered("https://h/hooks/{key}", "x%2Fadmin"), Ok("https://h/hooks/x%252Fadmin".into()));
        assert_eq!(rendered("https://h/?a={key}", "x/admin"), Ok("https://h/?a=x%2Fadmin".into()));
    }

    #[test]
    fn what_could_leave_its_place_is_refused() {
        for key in ["", ".", "..", "../x", "a/../b", "a\\..", "./", "a\r\nb", "\0", "\u{85}", &"x".repeat(10_000)] {
            assert!(rendered("https://h/hooks/{key}", key, &["**"]).is_err(), "{key:?}");
        }
        assert_eq!(rendered("https://h/?a={key}", "../x", &["**"]), Ok("https://h/?a=..%2Fx".into()));
        for text in ["https://h/a/{key}{header:x-a}/b", "https://h/a/%2e{key}", "https://h/{key}%2E"] {
            let error = rendered(text, ".", &["**"]).expect_err(text);
            assert!(error.contains("segment `.`"), "{error}");
        }
    }

    #[test]
    fn no_path_has_a_dot_segment_however_it_is_put_together() {
        let is_dot = |segment: &str| matches!(&*Cow::from(percent_decode_str(segment)), b"." | b"..");
        let texts = ["", ".", "..", "%2e", "%2E.", ".%2e", "%2E%2e", "/", "/.", "./", "a", "%2f", "%5c", "\\", "%00"];
        let mut sent = 0;
        for n in 0..texts.len().pow(3) {
            let [before, between, after] =
                [1, texts.len(), texts.len().pow(2)].map(|step| texts[n / step % texts.len()]);
            let text = format!("https://h/x/{before}{{key}}{between}/{{header:x-a}}{after}/y");
            let Ok(template) = UrlTemplate::parse(&text) else { continue };
            for key in texts {
                let metadata = Metadata {
                    key: Some(key.into()),
                    headers: [("X-A".to_owned(), "a".to_owned())].into(),
                    ..Metadata::default()
                };
                for template in [template.clone(), template.clone().with_slashes()] {
                    let Ok(url) = template.render_allowed(&Allow::new(["**"]).unwrap(), "r", &metadata) else {
                        continue;
                    };
                    sent += 1;
                    assert!(!url.path().split('/').any(is_dot), "{text} with `{key}`: {url}");
                }
            }
        }
        assert!(sent > 1000, "{sent}");
    }

    #[test]
    fn what_is_allowed_is_compared_as_it_is_sent() {
        let url = "https://h/hooks/{key}?token=hunter2";
        assert_eq!(rendered(url, "a", &["/x", "/hooks/a"]), Ok("https://h/hooks/a?token=hunter2".into()));
        assert!(rendered(url, "a/b", &["/hooks/a%2Fb"]).is_ok());
        assert_eq!(
            rendered(url, "b", &["/hooks/a"]).unwrap_err(),
            "the path `/hooks/b` is not allowed: no pattern of `allow` matches"
        );
        let url = "https://h/hooks/{key}?token=hunter2&key={key}";
        assert!(rendered(url, "a", &["/hooks/*?token=*&key=a"]).is_ok());
        let error = rendered(url, "b", &["/hooks/*?token=*&key=a", "/hooks/b"]).unwrap_err();
        assert_eq!(error, "the path `/hooks/b` with its query is not allowed: no pattern of `allow` matches");
    }

    #[test]
    fn only_path_and_query_may_have_placeholders_and_no_error_shows_the_url() {
        for url in [
            "https://{key}/hunter2",
            "https://{key}.example.org/hunter2",
            "https://{key}@h/hunter2",
            "https://u:{key}@h/hunter2",
            "https://h:{key}/hunter2",
            "{key}://h/hunter2",
            "{key}",
            "https://h/hunter2#{key}",
            "https://h/{key}/../hunter2",
            "https://h\\@{key}/../hunter2",
            "https:{key}/hunter2",
            "https://h/{hunter2}",
            "https://h/{key}/hunter2}",
        ] {
            let error = UrlTemplate::parse(url).err().unwrap_or_else(|| panic!("{url}"));
            assert!(!error.contains("hunter2"), "{error}");
        }
        assert!(!template("https://h/value/valueq/{key}").is_constant());
        assert_eq!(rendered("https://h/value/valueq/{key}", "k", &["**"]), Ok("https://h/value/valueq/k".into()));
    }

    #[test]
    fn the_shape_is_what_allow_is_compared_with() {
        let meets = |url: &str, pattern: &str| template(url).shape().unwrap().meets(&Pattern::parse(pattern).unwrap());
        assert!(meets("https://h/a/{key}?b=c", "/a/x"));
        assert!(!meets("https://h/a/{key}?b=c", "https://h/a/x"));
        assert!(!meets("https://h/a/{key}?b=c", "/a/x/y"));
        assert!(meets("https://h/a?b={key}", "/a?b=*"));
        assert!(!meets("https://h/a?b={key}", "/a"));
    }
}
