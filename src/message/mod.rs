//! A message and its parts: the payload, the metadata, and the id, which all attempts share.

use std::{fmt, iter, sync::Arc};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use self::forwarded::DEAD_PREFIX;
#[cfg(test)]
pub use self::headers::tests::any_headers;
pub use self::{
    dead_reason::DeadReason,
    digest::digest,
    ended::{Ended, Ending, Remember},
    flow::{EMPTY_FLOW, FlowLimits, Rate, check_flow, parse_flow, shown_flow},
    forwarded::{DeadLetter, Forwarding},
    group::check_group,
    headers::{Header, HeaderValue, Headers},
    history::{EndOutcome, EndRecord, EndedMessage, HistoryLimits, linked, parse_block, parse_end},
    limits::{DeadLimits, Limit, RouteLimits},
    origin::Origin,
    properties::Properties,
    record::{Cancellation, LogRecord},
    recurring::{MAX_SCHEDULE_BYTES, OccurrenceMessage, Recurring, as_occurrence, occurrence_id, shown_occurrence},
    trace::{TraceContext, TraceHeaders, TraceId},
    typed::{MAX_DEPTH, TypeFault, TypedValue, too_deep},
};
use crate::time::{Due, UnixMillis};

pub mod codec;
mod dead_reason;
mod digest;
mod ended;
mod fields;
mod flow;
mod forwarded;
#[cfg(test)]
mod fuzz;
mod group;
mod headers;
mod history;
mod limits;
mod origin;
mod properties;
mod record;
mod recurring;
mod trace;
mod typed;

/// Maximum number of partitions of a route: each costs a task and one poll of Redis per `max_sleep`.
pub const MAX_PARTITIONS: u16 = 256;

/// Maximum length of an id, in bytes.
pub const MAX_ID_BYTES: usize = 128;

/// Maximum size of the metadata (headers, key, content type, properties, limits) of a message as JSON, in bytes: far
/// below the 4 MiB of a script call, far above the header limits of brokers and HTTP servers.
pub const MAX_METADATA_BYTES: usize = 64 * 1024;

/// 1 to 128 characters of `A-Za-z0-9._:~-`. Consumers use it as idempotency key.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageId(Arc<str>);

impl MessageId {
    /// # Errors
    /// When `text` is empty, too long or has another character.
    pub fn parse(text: &str) -> Result<Self, String> {
        let allowed = |b: u8| b.is_ascii_alphanumeric() || b"._:~-".contains(&b);
        if (1..=MAX_ID_BYTES).contains(&text.len()) && text.bytes().all(allowed) {
            Ok(Self(text.into()))
        } else {
            Err(format!("an id is 1 to {MAX_ID_BYTES} of A-Za-z0-9._:~-"))
        }
    }

    /// The id of a new message. `.` and `..` are refused: clients remove them from the path of a URL, also when
    /// escaped.
    ///
    /// # Errors
    /// Those of `parse`, and for `.` and `..`.
    pub fn parse_new(text: &str) -> Result<Self, String> {
        match text {
            "." | ".." => Err(format!("`{text}` is no id, because no URL leads to it")),
            _ => Self::parse(text),
        }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The index, from 0, of the partition that the id belongs to: CRC32 (IEEE) of the id modulo `partitions`.
    pub fn partition(&self, partitions: u16) -> u16 {
        let index = crc32fast::hash(self.0.as_bytes()) % u32::from(partitions);
        u16::try_from(index).expect("below the number of partitions")
    }
}

impl fmt::Debug for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The data that is sent with a payload. Stored by `fields`, and as JSON by `lua/produce.lua`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Metadata {
    #[serde(skip_serializing_if = "Headers::is_empty")]
    pub headers: Headers,
    /// The key of the flow: the message's own, or the one that its route made of it (`FlowTemplate`). Empty: a
    /// flow without a key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flow: Option<String>,
    /// Messages of a route with the same group are listed, cancelled and moved together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content_type: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub properties: Option<Box<Properties>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub origin: Option<Box<Origin>>,
    /// Overrides the route's `retry.max_attempts`; at least 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<u32>,
    /// Milliseconds since the epoch. A claim after this time makes the message dead. Stored before the other metadata
    /// (`codec`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<u64>,
    /// The name of the token with which it was scheduled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scheduled_by: Option<String>,
    /// Only of the message of a schedule.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recurring: Option<Box<Recurring>>,
}

impl Metadata {
    /// The id that consumers see, for a message that is stored under `id`.
    pub fn shown_id<'a>(&'a self, id: &'a MessageId) -> &'a str {
        self.origin.as_ref().and_then(|origin| origin.id.as_deref()).unwrap_or(id.as_str())
    }

    /// The value of a header, also of one that sinks do not send. An exact match of the name has priority over a match
    /// in another case.
    pub fn selector(&self, name: &str) -> Option<&str> {
        let any_case = |(other, text): (&str, _)| other.eq_ignore_ascii_case(name).then_some(text);
        let of_headers = || self.headers.get(name).or_else(|| self.headers.texts().find_map(any_case));
        let of_selectors = || {
            let selectors = &self.origin.as_ref()?.selectors;
            let mut texts = selectors.iter().map(|(other, text)| (other.as_str(), text.as_str()));
            selectors.get(name).map(String::as_str).or_else(|| texts.find_map(any_case))
        };
        of_headers().or_else(of_selectors)
    }

    /// The property `content_encoding`. A header of that name, in any spelling, must have the same value, because both
    /// are the same header to HTTP receivers.
    ///
    /// # Errors
    /// The error text when such a header has another value.
    pub fn property_encoding(&self) -> Result<Option<&str>, String> {
        let Some(encoding) = self.properties.as_ref().and_then(|all| all.content_encoding.as_deref()) else {
            return Ok(None);
        };
        let is_other = |(name, value): &(&str, &str)| {
            folded_header(name) == "content-encoding" && !value.eq_ignore_ascii_case(encoding)
        };
        match self.headers.texts().find(is_other) {
            None => Ok(Some(encoding)),
            Some((name, _)) => {
                Err(format!("header `{name}` and the property `content_encoding` contradict each other"))
            }
        }
    }

    /// # Errors
    /// When a message with this due time would expire before its delivery. `now`: the clock of Redis.
    pub fn check_expiry(&self, due: Due, now: u64) -> Result<(), String> {
        let due = match due {
            Due::After(delay) => now + delay,
            Due::At(at) => at.get().max(now),
        };
        match self.expires_at.and_then(UnixMillis::new) {
            Some(at) if at.get() < due => {
                let due = UnixMillis::new(due).unwrap_or_default().to_rfc3339();
                Err(format!("{} is before it would be delivered, at {due} or later", at.to_rfc3339()))
            }
            _ => Ok(()),
        }
    }

    /// # Errors
    /// The name of the first invalid field, and the error text.
    pub fn validate(&self) -> Result<(), (&'static str, String)> {
        self.mistakes().next().map_or(Ok(()), Err)
    }

    /// The names of the invalid fields, each with its error text.
    pub fn mistakes(&self) -> impl Iterator<Item = (&'static str, String)> {
        let headers = self.headers.mistakes().map(|text| ("headers", text));
        let texts = [("key", &self.key), ("content_type", &self.content_type)];
        let texts = texts.into_iter().filter_map(|(field, value)| Some((field, check_text(value.as_deref()?).err()?)));
        let flow = self.flow.iter().filter(|flow| !flow.is_empty());
        let flow = flow.filter_map(|flow| Some(("flow", check_flow(flow).err()?)));
        let group = self.group.iter().filter_map(|group| Some(("group", check_group(group).err()?)));
        let properties = self.properties.iter().flat_map(|properties| properties.mistakes());
        let attempts = (self.max_attempts == Some(0)).then(|| ("max_attempts", "must be at least 1".to_owned()));
        let is_outside = self.expires_at.is_some_and(|at| UnixMillis::new(at).is_none());
        let expiry = is_outside.then(|| ("expires_at", "lies outside 1970 .. 2^53 ms".to_owned()));
        let size = iter::once_with(|| serde_json::to_vec(self).map_or(0, |json| json.len()));
        let size = size
            .filter(|size| *size > MAX_METADATA_BYTES)
            .map(|size| ("headers", format!("headers and key take {size} bytes, at most {MAX_METADATA_BYTES}")));
        headers
            .chain(texts)
            .chain(flow)
            .chain(group)
            .chain(properties.map(|text| ("properties", text)))
            .chain(attempts)
            .chain(expiry)
            .chain(size)
    }
}

/// Names of headers that the transport or punctual sets.
const RESERVED_HEADERS: [&str; 13] = [
    "authorization",
    "connection",
    "content-length",
    "content-type",
    "host",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Prefixes of names of headers that punctual and Standard Webhooks use.
const RESERVED_PREFIXES: [&str; 2] = ["punctual-", "webhook-"];

/// The header of a test message, folded: `punctual send-test` and the console set it.
const TEST_HEADER: &str = "punctual-test";

/// # Errors
/// When `name` is not a header name, or is reserved.
pub fn check_header_name(name: &str) -> Result<(), String> {
    // RFC 9110, section 5.6.2: token.
    let token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
    if name.is_empty() || name.len() > 256 || !name.bytes().all(token) {
        return Err(format!("`{}` is not a header name", name.escape_debug()));
    }
    if is_reserved_header(name) {
        return Err(format!("header `{name}` is reserved"));
    }
    Ok(())
}

/// A header name as receivers compare it: in lower case, with `-` for `_`, because CGI and WSGI do not distinguish
/// them.
pub fn folded_header(name: &str) -> String {
    name.to_ascii_lowercase().replace('_', "-")
}

/// Whether the transport or punctual sets the header `name`, in any spelling.
pub fn is_reserved_header(name: &str) -> bool {
    let folded = folded_header(name);
    let is_open = folded.starts_with(DEAD_PREFIX) || folded == TEST_HEADER;
    RESERVED_HEADERS.contains(&folded.as_str())
        || (RESERVED_PREFIXES.iter().any(|prefix| folded.starts_with(prefix)) && !is_open)
}

/// # Errors
/// When `value` has a control character other than a tab.
pub fn check_text(value: &str) -> Result<(), String> {
    match value.chars().find(|c| c.is_ascii_control() && *c != '\t') {
        Some(c) => Err(format!("control character {} is not allowed", c.escape_unicode())),
        None => Ok(()),
    }
}

/// The effect of scheduling an id that is live.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum OnConflict {
    #[default]
    Keep,
    Replace,
}

/// A message to schedule.
#[derive(Clone, Debug)]
pub struct NewMessage {
    pub id: MessageId,
    pub due: Due,
    pub payload: Bytes,
    pub metadata: Metadata,
    pub on_conflict: OnConflict,
    /// With `OnConflict::Replace`: the message is due at most this many milliseconds after the first acceptance of those
    /// that it replaces, one after another.
    pub debounce: Option<u64>,
    /// The record that the message was read from, if the source reads a log.
    pub record: Option<LogRecord>,
}

/// A message as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredMessage {
    /// The original due time. A retry does not change it.
    pub due: UnixMillis,
    /// Time at which Redis accepted the message or its new due time.
    pub accepted: UnixMillis,
    pub metadata: Metadata,
    pub payload: Bytes,
}

/// The state of a live message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    Pending,
    Unack,
    Dead,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_keep_to_their_alphabet_and_length() {
        for good in ["a", "A-z0.9_:~-", &"x".repeat(128)] {
            assert!(MessageId::parse(good).is_ok(), "{good}");
        }
        for bad in ["", "a b", "a{b}", "a*", "a\r\n", "\0", "é", &"x".repeat(129)] {
            assert!(MessageId::parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn the_partition_is_the_ieee_crc32_of_the_id() {
        // 0xCBF43926 is the check value of CRC-32/ISO-HDLC: the CRC of "123456789".
        let id = MessageId::parse("123456789").unwrap();
        assert_eq!(u32::from(id.partition(256)), 0xCBF4_3926_u32 % 256);
        assert_eq!(id.partition(1), 0);
    }

    #[test]
    fn reserved_and_malformed_headers_are_refused() {
        let with = |name: &str, value: &str| Metadata {
            headers: [(name.to_owned(), value.to_owned())].into(),
            ..Metadata::default()
        };
        assert!(with("X-Trace", "a\tb é").validate().is_ok());
        for bad in [
            "Punctual-Id",
            "webhook-id",
            "Host",
            "authorization",
            "TE",
            "Punctual_Id",
            "webhook_signature",
            "Transfer_Encoding",
            "",
            "a b",
            "a:b",
            "a\r\n",
        ] {
            assert!(with(bad, "v").validate().is_err(), "{bad:?}");
        }
        assert!(with("X", "a\r\nInjected: 1").validate().is_err());
        let mut two = with("X-Tenant", "a");
        two.headers.insert("x-tenant".into(), "b".into());
        let text = "header `X-Tenant` and `x-tenant` are one header to receivers";
        assert_eq!(two.validate(), Err(("headers", text.into())), "`allow` would see one, the receiver the other");
        let mut two = with("X-Tenant", "a");
        two.headers.insert("X_Tenant".into(), "b".into());
        assert!(two.validate().is_err());
        assert!(with("X", &"v".repeat(MAX_METADATA_BYTES)).validate().is_err());
    }

    #[test]
    fn a_message_that_would_expire_before_its_delivery_is_refused() {
        const NOW: u64 = 1_700_000_000_000;
        let expires = |expires_at| Metadata { expires_at, ..Metadata::default() };
        let at = |millis| Due::At(UnixMillis::new(millis).unwrap());
        let cases = [
            (Due::After(100), NOW + 100, NOW + 99),
            (at(NOW + 100), NOW + 100, NOW + 99),
            (at(NOW - 100), NOW, NOW - 1),
            (Due::NOW, NOW, NOW - 1),
        ];
        for (due, in_time, too_early) in cases {
            assert_eq!(expires(Some(in_time)).check_expiry(due, NOW), Ok(()), "{due:?}");
            assert!(expires(Some(too_early)).check_expiry(due, NOW).is_err(), "{due:?}");
            assert_eq!(expires(None).check_expiry(due, NOW), Ok(()));
        }
        let error = expires(Some(NOW)).check_expiry(Due::After(1000), NOW).unwrap_err();
        assert_eq!(
            error,
            "2023-11-14T22:13:20.000Z is before it would be delivered, at 2023-11-14T22:13:21.000Z or later"
        );
    }

    #[test]
    fn names_that_no_url_leads_to_are_refused_when_they_are_new() {
        for name in [".", ".."] {
            assert!(MessageId::parse(name).is_ok() && MessageId::parse_new(name).is_err(), "{name}");
            assert!(check_group(name).is_err());
        }
        for name in ["...", "a.", "."] {
            assert_eq!(MessageId::parse_new(name).is_ok(), name != ".");
        }
        assert_eq!(check_group("a b"), Err("a group is 1 to 128 of A-Za-z0-9._:~-".to_owned()));
        assert!(check_header_name(&"x".repeat(256)).is_ok() && check_header_name(&"x".repeat(257)).is_err());
    }

    #[test]
    fn a_death_after_an_attempt_is_known() {
        let attempted = DeadReason::ALL.into_iter().filter(|reason| reason.is_attempted()).collect::<Vec<_>>();
        assert_eq!(attempted, [DeadReason::Rejected, DeadReason::Attempts]);
        for reason in DeadReason::ALL {
            assert_eq!(DeadReason::parse(reason.as_str()), Some(reason));
        }
        for limit in Limit::ALL {
            assert!(limit.explain().contains("`limits."), "{limit:?}");
        }
        let limits = DeadLimits::default();
        let max_count = DeadLimits { max_count: Some(1), ..limits };
        assert_eq!([limits.is_none(), max_count.is_none()], [true, false]);
    }
}
