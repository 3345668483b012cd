//! Checks of the tokens for the API. An empty value is a mistake and never opens the API.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use ring::digest::{SHA256, digest as hash};

use super::{
    auth::{ConfiguredToken, Right, TokenEntry, Tokens},
    deserialize::unknown,
    problem::{Path, Problems},
};
use crate::secret::Secret;

/// Prefix of a token that is written as its digest.
const DIGEST_PREFIX: &str = "sha256:";

/// Minimum characters of a token that other hosts can try: 16 characters of base64 are 96 bits.
const MIN_CHARACTERS: usize = 16;

/// Maximum characters of the name of a token.
const MAX_NAME: usize = 64;

/// The tokens of the configuration.
#[derive(Clone, Debug)]
pub struct AuthConfig {
    pub tokens: Vec<TokenConfig>,
    /// Whether /metrics answers without a token.
    pub open_metrics: bool,
}

/// A token and its rights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenConfig {
    /// For the log.
    pub name: String,
    pub digest: TokenDigest,
    pub rights: Vec<Right>,
    /// Route names, or `*` for all.
    pub routes: Vec<String>,
    /// At least 1. `None`: unlimited.
    pub messages_per_second: Option<u32>,
}

/// The SHA-256 digest of a token. The token itself is not kept.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct TokenDigest([u8; 32]);

impl TokenDigest {
    pub fn of(token: &str) -> Self {
        Self(hash(&SHA256, token.as_bytes()).as_ref().try_into().expect("SHA-256 has 32 bytes"))
    }

    /// 64 hexadecimal digits.
    fn parse(text: &str) -> Option<Self> {
        // `from_str_radix` would accept a sign.
        if text.len() != 64 || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
            return None;
        }
        let mut digest = [0; 32];
        for (place, byte) in digest.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * place..2 * place + 2], 16).ok()?;
        }
        Some(Self(digest))
    }
}

impl fmt::Debug for TokenDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// Checks all tokens. Leaves out those that cannot be read, after a report. `open`: other hosts can connect. `routes`:
/// the names of all routes.
pub fn check(given: Tokens, open: bool, routes: &BTreeSet<String>, problems: &mut Problems) -> AuthConfig {
    let at = Path::of("server.auth.tokens");
    if given.tokens.is_empty() {
        problems.require::<()>(&at, None);
    }
    let mut tokens = Vec::new();
    let mut places = BTreeMap::new();
    for (place, ConfiguredToken(entry)) in given.tokens.items() {
        let at_item = at.key(place.to_string());
        let Some(token) = token(entry, &at_item, open, routes, problems) else { continue };
        if let Some(first) = places.get(&token.digest) {
            problems.add(&at_item, format!("is the token of {at}.{first} too"));
        } else {
            places.insert(token.digest, place);
        }
        tokens.push(token);
    }
    AuthConfig { tokens, open_metrics: given.open_metrics.0 }
}

fn token(
    entry: TokenEntry,
    at: &Path,
    open: bool,
    known: &BTreeSet<String>,
    problems: &mut Problems,
) -> Option<TokenConfig> {
    let rights: Vec<Right> = entry.rights.iter().copied().collect();
    if rights.is_empty() {
        problems.require::<()>(&at.key("rights"), None);
    }
    let routes_at = at.key("routes");
    if entry.routes.is_empty() {
        problems.add(&routes_at, "is empty: name routes, or `*` for all");
    }
    for (place, route) in entry.routes.places().filter(|(_, route)| *route != "*" && !known.contains(*route)) {
        problems.add(&routes_at.key(place.to_string()), format!("route {}", unknown(route, known)));
    }
    let rate = entry.limits.messages_per_second;
    if rate.is_some() && !rights.is_empty() && !rights.contains(&Right::Schedule) {
        let text = "needs the right `schedule`: without it the token sends no messages";
        problems.add(&at.key("limits").key("messages_per_second"), text);
    }
    let is_name = |name: &String| {
        (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._@-".contains(&b))
    };
    if entry.name.as_ref().is_some_and(|name| !is_name(name)) {
        problems.add(&at.key("name"), format!("is not 1 to {MAX_NAME} of A-Za-z0-9._@-"));
    }
    let place = at.to_string();
    let name = entry.name.unwrap_or_else(|| place.trim_start_matches("server.auth.").to_owned());
    let token = problems.require(&at.key("token"), entry.token)?;
    Some(TokenConfig {
        name,
        digest: problems.check(at, digest(&token, open))?,
        rights,
        routes: entry.routes.iter().cloned().collect(),
        messages_per_second: rate.map(|rate| u32::try_from(rate.0).expect("at most 1000000")),
    })
}

fn digest(token: &Secret, open: bool) -> Result<TokenDigest, String> {
    let text = token.expose();
    // A misspelt prefix must not make the digest itself the token.
    if let Some((prefix, digits)) = text.split_at_checked(DIGEST_PREFIX.len())
        && prefix.eq_ignore_ascii_case(DIGEST_PREFIX)
    {
        return TokenDigest::parse(digits).ok_or_else(|| "is not `sha256:` followed by 64 hexadecimal digits".into());
    }
    // RFC 9110: the characters that an Authorization header can carry.
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_graphic()) {
        return Err("has an empty token, or one with other than visible ASCII characters".into());
    }
    if open && text.len() < MIN_CHARACTERS {
        return Err(format!("is shorter than {MIN_CHARACTERS} characters, and `server.listen` is open to others"));
    }
    Ok(TokenDigest::of(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_stands_for_its_token() {
        let abc = "sha256:BA7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(digest(&abc.into(), true), Ok(TokenDigest::of("abc")));
        assert_eq!(format!("{:?}", TokenDigest::of("abc")), "***");
        for wrong in ["sha256:", &abc[..70], &abc.replace('B', "+"), &abc.replace("BA", "é")] {
            assert!(digest(&wrong.into(), false).is_err(), "{wrong}");
        }
    }

    #[test]
    fn short_tokens_are_for_this_host_only() {
        assert!(digest(&"fifteen-letters".into(), false).is_ok());
        assert!(digest(&"fifteen-letters".into(), true).is_err());
        assert!(digest(&"sixteen-letters!".into(), true).is_ok());
    }
}
