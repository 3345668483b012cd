//! The settings of an HTTP sink.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    fmt,
    time::Duration,
};

use base64::{
    Engine,
    engine::{
        DecodePaddingMode,
        general_purpose::{GeneralPurpose, GeneralPurposeConfig},
    },
};
use http::{HeaderMap, HeaderName, HeaderValue};
use ring::signature::Ed25519KeyPair;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Deserializer};

use super::HttpSink;
use crate::{
    config::{Context, Flag, List, Path, Problems, Settings, Timeout, Whole, check_allow, check_tls, parsed},
    message::{folded_header, is_reserved_header},
    secret::{Secret, SecretUrl},
    sink::{
        OpenSink, SinkSettings,
        template::{Allow, UrlTemplate},
    },
    tls::TlsFiles,
};

/// Headers that the configuration of a sink can set, but a message cannot.
const CONFIGURABLE: [&str; 2] = ["authorization", "content-type"];

/// Secrets are accepted with and without padding.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// Minimum bytes of a symmetric secret, by the specification of Standard Webhooks.
const MIN_SECRET_BYTES: usize = 24;

/// A secret of Standard Webhooks: the bytes of a key, for signing only. `Debug` does not show them.
#[derive(Clone, PartialEq, Eq)]
pub enum SigningSecret {
    /// `whsec_`: HMAC-SHA256, at least 24 bytes.
    Symmetric(Vec<u8>),
    /// `whsk_`: the seed of an ed25519 key.
    Asymmetric([u8; 32]),
}

impl SigningSecret {
    /// # Errors
    /// The required form. The text does not show the secret.
    pub fn parse(text: &str) -> Result<Self, String> {
        let bytes = |prefix| text.strip_prefix(prefix).and_then(|text| BASE64.decode(text).ok());
        if let Some(key) = bytes("whsec_") {
            if key.len() < MIN_SECRET_BYTES {
                return Err(format!("has {} bytes, Standard Webhooks asks for at least {MIN_SECRET_BYTES}", key.len()));
            }
            return Ok(Self::Symmetric(key));
        }
        if let Some(key) = bytes("whsk_") {
            return seed(&key).map(Self::Asymmetric).ok_or_else(|| {
                "is no private key of ed25519: its seed of 32 bytes, perhaps followed by its public key".into()
            });
        }
        Err("is not `whsec_` or `whsk_` followed by base64, as Standard Webhooks has it".into())
    }
}

/// The seed of a private key. Some programs append the public key.
fn seed(key: &[u8]) -> Option<[u8; 32]> {
    match key.split_at_checked(32)? {
        (seed, []) => seed.try_into().ok(),
        (seed, public) => {
            Ed25519KeyPair::from_seed_and_public_key(seed, public).ok()?;
            seed.try_into().ok()
        }
    }
}

impl<'de> Deserialize<'de> for SigningSecret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        parsed(deserializer, Self::parse)
    }
}

impl JsonSchema for SigningSecret {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "SigningSecret".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        Secret::json_schema(generator)
    }
}

impl fmt::Debug for SigningSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// POST to an HTTP endpoint.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HttpSettings {
    /// `http://` or `https://`; required. Path and query can contain `{key}`, `{route}`, `{header:NAME}`.
    #[serde(deserialize_with = "url")]
    #[schemars(with = "Secret")]
    pub url: SecretUrl,
    /// Patterns of paths: each percent-encoded path must match one of them, with its query if the query has
    /// placeholders. Required if `url` has placeholders. `*` is any text without `/`, `**` any text, `?` one character.
    pub allow: Allow,
    /// Whether `/` and `\` are allowed in the text of a placeholder. They are sent percent-encoded. Many servers decode
    /// them and see further path segments.
    pub allow_slashes: Flag,
    /// Maximum time from sending a request to the end of its reply: 100ms to 1h. Each route to the sink needs a `lease`
    /// that is at least 500ms longer.
    pub timeout: Timeout,
    /// Maximum connections of one instance: 1 to 4096. A connection carries one request at a time, with HTTP/2 up to
    /// 256.
    pub max_connections: Whole<1, 4096>,
    /// Secrets of Standard Webhooks: `whsec_` and base64 of at least 24 bytes (HMAC-SHA256), or `whsk_` and base64 of
    /// the seed of an ed25519 key. Each secret adds a signature.
    pub signing_secrets: List<SigningSecret>,
    /// Headers of every request. A header of the message with the same name is replaced. `Authorization` and
    /// `Content-Type` are allowed.
    pub headers: BTreeMap<String, Secret>,
    /// TLS files for `https://`.
    pub tls: TlsFiles,
}

fn url<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SecretUrl, D::Error> {
    parsed(deserializer, |text| match UrlTemplate::parse(text)?.base().scheme() {
        "http" | "https" => Ok(text.into()),
        other => Err(format!("has the scheme `{other}`; known: http, https")),
    })
}

impl Settings for HttpSettings {
    fn check(&mut self, at: &Path, _: &Context, problems: &mut Problems) {
        let Some(url) = problems.check(&at.key("url"), UrlTemplate::parse(self.url.expose())) else { return };
        check_tls(at, &self.tls, url.base().scheme() == "https", problems);
        check_allow(&self.allow, url.shape().as_ref(), (at, "url"), problems);
        if self.allow_slashes.0 && url.shape().is_none() {
            problems.add(&at.key("allow_slashes"), "does nothing: `url` has no placeholders");
        }
        let mut names = BTreeSet::new();
        for (name, value) in &self.headers {
            let at = at.key("headers").key(name);
            if problems.check(&at, header_name(name)).is_some() && !names.insert(folded_header(name)) {
                problems.add(&at, "comes twice: header names have no case, and receivers may take `_` for `-`");
            }
            problems.check(&at, header_value(value));
        }
    }
}

impl HttpSettings {
    /// `headers` in the form in which they are sent. The values are marked as sensitive.
    ///
    /// # Errors
    /// The header that is invalid. The text shows no value.
    pub fn header_map(&self) -> Result<HeaderMap, String> {
        self.headers.iter().map(|(name, value)| Ok((header_name(name)?, header_value(value)?))).collect()
    }
}

impl SinkSettings for HttpSettings {
    fn kind(&self) -> &'static str {
        "http"
    }

    fn timeout(&self) -> Duration {
        self.timeout.0
    }

    fn open(&self) -> Result<OpenSink, String> {
        HttpSink::new(self).map(OpenSink::new)
    }
}

fn header_name(text: &str) -> Result<HeaderName, String> {
    let name = HeaderName::try_from(text).map_err(|_| format!("`{}` is not a header name", text.escape_debug()))?;
    if is_reserved_header(name.as_str()) && !CONFIGURABLE.contains(&name.as_str()) {
        return Err("is a header that punctual or HTTP itself sets".into());
    }
    Ok(name)
}

fn header_value(text: &Secret) -> Result<HeaderValue, String> {
    let value = HeaderValue::from_bytes(text.expose().as_bytes());
    let mut value = value.map_err(|_| "has a value with control characters")?;
    // Kept out of debug output, and out of the compression state that HTTP/2 shares between requests.
    value.set_sensitive(true);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signing_secret_may_lack_its_padding_and_is_not_shown() {
        let padded = SigningSecret::parse("whsec_c2VjcmV0IHNlY3JldCBzZWNyZXQgc2VjcmV0cw==").unwrap();
        assert_eq!(padded, SigningSecret::parse("whsec_c2VjcmV0IHNlY3JldCBzZWNyZXQgc2VjcmV0cw").unwrap());
        assert_eq!(padded, SigningSecret::Symmetric(b"secret secret secret secrets".to_vec()));
        assert_eq!(format!("{padded:?}"), "***");
        for wrong in ["", "whsec_", "c2VjcmV0", "whsec_%hidden%", "whsk_%hidden%", "whpk_AAAA"] {
            assert!(!SigningSecret::parse(wrong).unwrap_err().contains("hidden"), "{wrong}");
        }
    }

    #[test]
    fn a_short_secret_is_refused() {
        let with = |bytes: usize| SigningSecret::parse(&format!("whsec_{}", BASE64.encode(vec![7; bytes])));
        assert!(with(24).is_ok());
        assert_eq!(with(23), Err("has 23 bytes, Standard Webhooks asks for at least 24".into()));
    }

    #[test]
    fn a_private_key_is_its_seed_with_or_without_its_public_key() {
        // RFC 8032, section 7.1, test 1.
        let seed = "nWGxne/9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A=";
        let both = "nWGxne/9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2DXWpgBgrEKt9VL/tPJZAc6DuFy89qmIyWvAhpo9wdRGg==";
        let key = SigningSecret::parse(&format!("whsk_{seed}")).unwrap();
        assert!(matches!(key, SigningSecret::Asymmetric(_)));
        assert_eq!(SigningSecret::parse(&format!("whsk_{both}")).unwrap(), key);
        assert_eq!(format!("{key:?}"), "***");
        for wrong in ["AAAA", &both.replace("DXWpg", "DXWph")] {
            let error = SigningSecret::parse(&format!("whsk_{wrong}")).unwrap_err();
            assert!(error.starts_with("is no private key of ed25519"), "{error}");
        }
    }

    #[test]
    fn a_sink_may_set_two_headers_that_a_message_may_not() {
        for allowed in ["X-Tenant", "Authorization", "content-type"] {
            assert!(header_name(allowed).is_ok(), "{allowed}");
        }
        for refused in [
            "Host",
            "Transfer-Encoding",
            "content-length",
            "Punctual-Id",
            "webhook-signature",
            "Punctual_Id",
            "Content_Type",
            "a b",
            "",
        ] {
            assert!(header_name(refused).is_err(), "{refused}");
        }
        for refused in ["a\r\nb: c", "\0"] {
            assert!(header_value(&refused.into()).is_err(), "{refused:?}");
        }
    }
}
