//! Values that must not be shown: `Debug` and `Display` of these types are safe to log.

use std::fmt;

use schemars::JsonSchema;
use serde::Deserialize;
use url::Url;

/// A password, token or key. Equal secrets compare equal, but not in constant time.
#[derive(Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(inline, description = "", extend("writeOnly" = true))]
pub struct Secret(String);

impl Secret {
    /// The value. Must not be logged, nor become part of an error or a metric.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl From<String> for Secret {
    fn from(value: String) -> Self {
        Self(value)
    }
}

impl From<&str> for Secret {
    fn from(value: &str) -> Self {
        Self(value.to_owned())
    }
}

/// A URL that may contain a password. Displayed without user, password and query.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretUrl(String);

impl SecretUrl {
    /// The whole URL, for connections only.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SecretUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Ok(mut url) = Url::parse(&self.0) else { return f.write_str("***") };
        // Without a host, user and password may be in the path. So may the rest of a password after an unescaped `/`.
        if url.cannot_be_a_base() || url.path().contains('@') {
            return write!(f, "{}:***", url.scheme());
        }
        // Both setters fail without a host, but a URL without a host has neither user nor password.
        let _ = url.set_username("");
        let _ = url.set_password(None);
        // For example `unix:///path?pass=...` and `https://host/hook?key=...`.
        let query = if url.query().is_some() { "?***" } else { "" };
        url.set_query(None);
        url.set_fragment(None);
        write!(f, "{url}{query}")
    }
}

impl fmt::Debug for SecretUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl From<String> for SecretUrl {
    fn from(url: String) -> Self {
        Self(url)
    }
}

impl From<&str> for SecretUrl {
    fn from(url: &str) -> Self {
        Self(url.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_shows_nothing() {
        assert_eq!(format!("{:?}", Secret::from("hunter2")), "***");
    }

    #[test]
    fn a_url_is_shown_without_what_it_keeps_secret() {
        for (url, shown) in [
            ("redis://127.0.0.1:6379/0", "redis://127.0.0.1:6379/0"),
            ("rediss://user:hunter2@redis.example:6380/1", "rediss://redis.example:6380/1"),
            ("unix:///run/redis.sock?user=u&pass=hunter2", "unix:///run/redis.sock?***"),
            ("unix:///run/redis.sock", "unix:///run/redis.sock"),
            ("https://example.org/hook?key=hunter2", "https://example.org/hook?***"),
            ("hunter2", "***"),
        ] {
            assert_eq!(SecretUrl::from(url).to_string(), shown);
            assert_eq!(format!("{:?}", SecretUrl::from(url)), shown);
        }
    }
}
