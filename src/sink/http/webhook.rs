//! Signatures of the Standard Webhooks specification, version 1 (standardwebhooks.com): an HMAC-SHA256 over
//! `{id}.{timestamp}.{payload}`, one for each secret so that a receiver can change over.

use base64::{Engine, prelude::BASE64_STANDARD};
use hmac::{Hmac, KeyInit, Mac};
use http::{HeaderMap, HeaderName, HeaderValue};
use sha2::Sha256;

use crate::{config::SigningSecret, message::MessageId};

const ID: HeaderName = HeaderName::from_static("webhook-id");
const TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");
const SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");

/// The secrets of one sink; signs nothing when there are none.
pub struct Signer {
    keys: Vec<Hmac<Sha256>>,
}

impl Signer {
    pub fn new(secrets: &[SigningSecret]) -> Self {
        let key = |secret: &SigningSecret| Hmac::new_from_slice(secret.expose()).expect("any length is a key");
        Self { keys: secrets.iter().map(key).collect() }
    }

    /// Adds the three headers. `timestamp` in seconds since the epoch.
    pub fn sign(&self, headers: &mut HeaderMap, id: &MessageId, timestamp: u64, payload: &[u8]) {
        if self.keys.is_empty() {
            return;
        }
        let signatures: Vec<String> = self.keys.iter().map(|key| signature(key, id, timestamp, payload)).collect();
        let value = |text: &str| HeaderValue::from_str(text).expect("ids, digits and base64 are plain ASCII");
        headers.insert(ID, value(id.as_str()));
        headers.insert(TIMESTAMP, timestamp.into());
        headers.insert(SIGNATURE, value(&signatures.join(" ")));
    }
}

fn signature(key: &Hmac<Sha256>, id: &MessageId, timestamp: u64, payload: &[u8]) -> String {
    let mut mac = key.clone();
    mac.update(format!("{id}.{timestamp}.").as_bytes());
    mac.update(payload);
    format!("v1,{}", BASE64_STANDARD.encode(mac.finalize().into_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The vector that the reference libraries of the specification test themselves with.
    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    const EXPECTED: &str = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";

    fn signed(secrets: &[&str]) -> HeaderMap {
        let secrets: Vec<_> = secrets.iter().map(|secret| SigningSecret::parse(secret).unwrap()).collect();
        let id = MessageId::parse("msg_p5jXN8AQM9LWM0D4loKWxJek").unwrap();
        let mut headers = HeaderMap::new();
        Signer::new(&secrets).sign(&mut headers, &id, 1_614_265_330, br#"{"test": 2432232314}"#);
        headers
    }

    #[test]
    fn the_published_vector_is_reproduced() {
        let headers = signed(&[SECRET]);
        assert_eq!(headers[ID], "msg_p5jXN8AQM9LWM0D4loKWxJek");
        assert_eq!(headers[TIMESTAMP], "1614265330");
        assert_eq!(headers[SIGNATURE], EXPECTED);
    }

    #[test]
    fn each_secret_signs_and_none_signs_nothing() {
        let headers = signed(&["whsec_b2xk", SECRET]);
        let signatures: Vec<_> = headers[SIGNATURE].to_str().unwrap().split(' ').collect();
        assert_eq!(signatures.len(), 2);
        assert_eq!(signatures[1], EXPECTED);
        assert_ne!(signatures[0], EXPECTED);
        assert!(signed(&[]).is_empty());
    }
}
