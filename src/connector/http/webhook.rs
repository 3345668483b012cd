//! Signatures of the Standard Webhooks specification, version 1 (standardwebhooks.com): HMAC-SHA256 (`v1`) or ed25519
//! (`v1a`) over `{id}.{timestamp}.{payload}`. Each secret gives one signature, so that a receiver can rotate secrets.
//!
//! An id with a dot would make the signed text ambiguous, so `webhook-id` is then its digest.

use base64::{Engine, prelude::BASE64_STANDARD};
use http::{HeaderMap, HeaderName, HeaderValue};
use ring::{hmac, signature::Ed25519KeyPair};

use super::SigningSecret;
use crate::message::{MessageId, digest};

const ID: HeaderName = HeaderName::from_static("webhook-id");
const TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");
const SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");

/// Signs with the secrets of one sink. Without secrets it adds no headers.
pub struct Signer {
    keys: Vec<SigningKey>,
}

enum SigningKey {
    Symmetric(hmac::Key),
    Asymmetric(Box<Ed25519KeyPair>),
}

impl SigningKey {
    fn new(secret: &SigningSecret) -> Self {
        match secret {
            SigningSecret::Symmetric(key) => Self::Symmetric(hmac::Key::new(hmac::HMAC_SHA256, key)),
            SigningSecret::Asymmetric(seed) => {
                let pair = Ed25519KeyPair::from_seed_unchecked(seed).expect("32 bytes are a seed");
                Self::Asymmetric(Box::new(pair))
            }
        }
    }

    fn signature(&self, head: &str, payload: &[u8]) -> String {
        match self {
            Self::Symmetric(key) => {
                let mut mac = hmac::Context::with_key(key);
                mac.update(head.as_bytes());
                mac.update(payload);
                format!("v1,{}", BASE64_STANDARD.encode(mac.sign()))
            }
            Self::Asymmetric(pair) => {
                let signature = pair.sign(&[head.as_bytes(), payload].concat());
                format!("v1a,{}", BASE64_STANDARD.encode(signature))
            }
        }
    }
}

impl Signer {
    pub fn new<'a>(secrets: impl IntoIterator<Item = &'a SigningSecret>) -> Self {
        Self { keys: secrets.into_iter().map(SigningKey::new).collect() }
    }

    /// Adds the three `webhook-` headers. `timestamp`: seconds since the epoch.
    pub fn sign(&self, headers: &mut HeaderMap, id: &str, timestamp: u64, payload: &[u8]) {
        if self.keys.is_empty() {
            return;
        }
        let digest = id.contains('.').then(|| digest(&[id.as_bytes()]));
        let id = digest.as_ref().map_or(id, MessageId::as_str);
        let head = format!("{id}.{timestamp}.");
        let signatures: Vec<String> = self.keys.iter().map(|key| key.signature(&head, payload)).collect();
        let value = |text: &str| HeaderValue::from_str(text).expect("ids, digits and base64 are plain ASCII");
        headers.insert(ID, value(id));
        headers.insert(TIMESTAMP, timestamp.into());
        headers.insert(SIGNATURE, value(&signatures.join(" ")));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The test vector of the specification's reference libraries.
    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    const EXPECTED: &str = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";

    fn signed(secrets: &[&str]) -> HeaderMap {
        signed_as("msg_p5jXN8AQM9LWM0D4loKWxJek", secrets)
    }

    fn signed_as(id: &str, secrets: &[&str]) -> HeaderMap {
        let secrets: Vec<_> = secrets.iter().map(|secret| SigningSecret::parse(secret).unwrap()).collect();
        let mut headers = HeaderMap::new();
        Signer::new(&secrets).sign(&mut headers, id, 1_614_265_330, br#"{"test": 2432232314}"#);
        headers
    }

    #[test]
    fn the_published_vector_is_signed_alike() {
        let headers = signed(&[SECRET]);
        assert_eq!(headers[ID], "msg_p5jXN8AQM9LWM0D4loKWxJek");
        assert_eq!(headers[TIMESTAMP], "1614265330");
        assert_eq!(headers[SIGNATURE], EXPECTED);
    }

    #[test]
    fn each_secret_adds_a_signature_and_no_secret_adds_no_header() {
        let headers = signed(&["whsec_b2xkIHNlY3JldCwgb2xkIHNlY3JldCwgb2xk", SECRET]);
        let signatures: Vec<_> = headers[SIGNATURE].to_str().unwrap().split(' ').collect();
        assert_eq!(signatures.len(), 2);
        assert_eq!(signatures[1], EXPECTED);
        assert_ne!(signatures[0], EXPECTED);
        assert!(signed(&[]).is_empty());
    }

    #[test]
    fn an_id_with_a_dot_is_its_digest() {
        let headers = signed_as("order.1614265330", &[SECRET]);
        let id = headers[ID].to_str().unwrap();
        assert!(id.starts_with('~') && !id.contains('.'), "{id}");
        let signed = |id: &str| signed_as(id, &[SECRET])[SIGNATURE].clone();
        assert_eq!(headers[SIGNATURE], signed(id), "the digest is signed");
        assert_ne!(headers[ID], signed_as("order.1614265331", &[SECRET])[ID]);
    }

    #[test]
    fn an_ed25519_signature_verifies_with_the_public_key() {
        // RFC 8032, section 7.1, test 1.
        let public = "11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=";
        let headers = signed(&["whsk_nWGxne/9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A=", SECRET]);
        let (asymmetric, symmetric) = headers[SIGNATURE].to_str().unwrap().split_once(' ').unwrap();
        assert_eq!(symmetric, EXPECTED);
        let signature = BASE64_STANDARD.decode(asymmetric.strip_prefix("v1a,").unwrap()).unwrap();
        let public = BASE64_STANDARD.decode(public).unwrap();
        let public = ring::signature::UnparsedPublicKey::new(&ring::signature::ED25519, public);
        let signed = br#"msg_p5jXN8AQM9LWM0D4loKWxJek.1614265330.{"test": 2432232314}"#;
        assert!(public.verify(signed, &signature).is_ok());
        assert!(public.verify(b"another", &signature).is_err());
    }
}
