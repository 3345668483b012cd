//! The trace context of a message (W3C Trace Context): its headers `traceparent` and `tracestate`.
//!
//! A valid context is kept and sent as any header. An invalid one is dropped, because it must not stop the message.

use std::{collections::BTreeSet, fmt, io};

use super::{Header, HeaderValue, Headers, MAX_METADATA_BYTES, Metadata, TypedValue};

const PARENT: &str = "traceparent";
const STATE: &str = "tracestate";

/// Length of a `traceparent` of version 00.
const PARENT_BYTES: usize = 55;

/// Maximum length of a `tracestate` that is kept: W3C asks to propagate at least this number of characters.
const MAX_STATE_BYTES: usize = 512;

/// Maximum number of members of a `tracestate`, of W3C.
const MAX_STATE_MEMBERS: usize = 32;

/// Maximum length of a key and of a value of a `tracestate`, of W3C.
const MAX_STATE_PART_BYTES: usize = 256;

/// A position in a trace. Both ids are never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceContext {
    pub trace: TraceId,
    pub span: u64,
    pub is_sampled: bool,
}

/// The id of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceId(pub u128);

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// The value of `traceparent`.
impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{}-{:016x}-{:02x}", self.trace, self.span, u8::from(self.is_sampled))
    }
}

impl TraceContext {
    /// Reads a `traceparent`. `None` if it is invalid. A later version can have more fields at the end.
    pub fn parse(text: &str) -> Option<Self> {
        let bytes = text.as_bytes();
        let digits = |from: usize, to: usize| {
            let part = bytes.get(from..to)?;
            let is_hex = part.iter().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(b));
            is_hex.then(|| u128::from_str_radix(&text[from..to], 16).ok()).flatten()
        };
        let version = digits(0, 2).filter(|version| *version != 0xff)?;
        let fits = match bytes.get(PARENT_BYTES) {
            None => bytes.len() == PARENT_BYTES,
            Some(next) => version > 0 && *next == b'-',
        };
        if !fits || [2, 35, 52].iter().any(|at| bytes[*at] != b'-') {
            return None;
        }
        let (trace, span) = (digits(3, 35)?, u64::try_from(digits(36, 52)?).ok()?);
        let flags = digits(53, PARENT_BYTES)?;
        (trace != 0 && span != 0).then_some(Self { trace: TraceId(trace), span, is_sampled: flags & 1 == 1 })
    }
}

/// A valid `traceparent`, with the `tracestate` beside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceHeaders {
    parent: String,
    state: Option<String>,
}

impl TraceHeaders {
    /// `None` unless there is exactly one `traceparent`, and it is valid. Several `tracestate` are one list; an invalid
    /// or long one is left out.
    pub fn of<'a>(mut parents: impl Iterator<Item = &'a str>, states: impl Iterator<Item = &'a str>) -> Option<Self> {
        let parent = parents.next().filter(|parent| TraceContext::parse(parent).is_some())?;
        if parents.next().is_some() {
            return None;
        }
        let state = states.collect::<Vec<_>>().join(",");
        let state = (!state.is_empty() && is_state(&state)).then_some(state);
        Some(Self { parent: parent.to_owned(), state })
    }
}

/// W3C Trace Context Level 2, section 3.3: members `key=value`, each key once.
fn is_state(text: &str) -> bool {
    let mut keys = BTreeSet::new();
    let mut is_member = |member: &str| {
        let Some((key, value)) = member.split_once('=') else { return false };
        let is_begin = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit();
        let is_key = |b: u8| is_begin(&b) || b"_-*/@".contains(&b);
        let is_value = |b: u8| (b' '..=b'~').contains(&b) && b != b'=';
        key.len() <= MAX_STATE_PART_BYTES
            && key.as_bytes().first().is_some_and(is_begin)
            && key.bytes().all(is_key)
            && (1..=MAX_STATE_PART_BYTES).contains(&value.len())
            && value.bytes().all(is_value)
            && keys.insert(key.to_owned())
    };
    let members = || text.split(',').map(|member| member.trim_matches([' ', '\t'])).filter(|member| !member.is_empty());
    text.len() <= MAX_STATE_BYTES
        && (1..=MAX_STATE_MEMBERS).contains(&members().count())
        && members().all(&mut is_member)
}

/// The trace header with this name in any case.
fn known(name: &str) -> Option<&'static str> {
    [PARENT, STATE].into_iter().find(|known| name.eq_ignore_ascii_case(known))
}

/// The text of a header; `None` if its value has another type.
fn text(header: &Header) -> Option<&str> {
    match &header.value {
        HeaderValue::Text(text) | HeaderValue::Typed(TypedValue::String(text)) => Some(text),
        HeaderValue::Typed(_) => None,
    }
}

impl Headers {
    /// The trace context; `None` without a valid one.
    pub fn trace(&self) -> Option<TraceContext> {
        self.get(PARENT).and_then(TraceContext::parse)
    }

    /// The `tracestate`; `None` without one.
    pub fn trace_state(&self) -> Option<&str> {
        self.get(STATE)
    }

    fn given_trace(&self) -> Option<TraceHeaders> {
        // A value that is not text makes the context invalid.
        let values = |name: &'static str| {
            let headers = self.iter().filter(move |header| known(&header.name) == Some(name));
            headers.map(|header| text(header).unwrap_or_default())
        };
        TraceHeaders::of(values(PARENT), values(STATE))
    }

    pub fn remove_trace(&mut self) {
        self.retain(|header| known(&header.name).is_none());
    }
}

impl Metadata {
    /// Keeps the valid trace context of the headers, under the names of W3C. Without one, that of the request becomes
    /// the message's. Drops an invalid context, and one that would make the metadata too large.
    pub fn keep_trace(&mut self, request: Option<&TraceHeaders>) {
        if request.is_none() && self.headers.iter().all(|header| known(&header.name).is_none()) {
            return;
        }
        let given = self.headers.given_trace();
        self.set_trace(given.as_ref().or(request));
    }

    /// Replaces the trace context by `context` and `state`, which must be valid. Without room for it there is none.
    pub fn replace_trace(&mut self, context: TraceContext, state: Option<String>) {
        self.set_trace(Some(&TraceHeaders { parent: context.to_string(), state }));
    }

    fn set_trace(&mut self, trace: Option<&TraceHeaders>) {
        self.headers.remove_trace();
        let Some(TraceHeaders { parent, state }) = trace else { return };
        self.headers.add_sorted(PARENT, parent);
        if let Some(state) = state {
            self.headers.add_sorted(STATE, state);
            if self.is_too_large() {
                self.headers.retain(|header| header.name != STATE);
            }
        }
        if self.is_too_large() {
            self.headers.remove_trace();
        }
    }

    fn is_too_large(&self) -> bool {
        let mut size = Counted(0);
        serde_json::to_writer(&mut size, self).is_err() || size.0 > MAX_METADATA_BYTES
    }
}

/// The number of bytes that were written.
struct Counted(usize);

impl io::Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{super::headers::tests::any_headers, *};

    const VALID: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    const OTHER: &str = "00-1af7651916cd43dd8448eb211c80319c-c7ad6b7169203331-00";

    #[test]
    fn a_traceparent_is_read_and_written() {
        let context = TraceContext::parse(VALID).unwrap();
        assert_eq!(context.to_string(), VALID);
        assert_eq!(context.trace.to_string(), "0af7651916cd43dd8448eb211c80319c");
        assert!(!TraceContext::parse(OTHER).unwrap().is_sampled);
        assert_eq!(TraceContext::parse(&VALID.replace("00-0", "cc-0")), Some(context), "a later version");
        assert_eq!(TraceContext::parse(&format!("{}-more", VALID.replace("00-0", "01-0"))), Some(context));
        assert_eq!(TraceContext::parse(&VALID.replace("-01", "-ff")), Some(context), "flags of later versions");
    }

    #[test]
    fn an_invalid_traceparent_is_none() {
        for bad in [
            "",
            "00",
            &VALID[1..],
            &VALID[..54],
            &format!("{VALID}-more"),
            &format!("{VALID} "),
            &VALID.to_uppercase(),
            &VALID.replace("00-0", "ff-0"),
            &VALID.replace('-', "_"),
            &VALID.replace("0af7651916cd43dd8448eb211c80319c", &"0".repeat(32)),
            &VALID.replace("b7ad6b7169203331", &"0".repeat(16)),
            &VALID.replace("b7ad", "+7ad"),
            &VALID.replace("0af7", "éf7"),
            &format!("{}.more", VALID.replace("00-0", "01-0")),
        ] {
            assert_eq!(TraceContext::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_tracestate_has_members_with_a_key_of_their_own() {
        let many: Vec<String> = (0..33).map(|n| format!("k{n}=v")).collect();
        let long = format!("k={}", "v".repeat(257));
        for good in ["a=1", "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE", "a@b=1 2", " a=1 ,, b=2\t", &many[1..].join(",")]
        {
            assert!(is_state(good), "{good}");
        }
        for bad in ["", ",", "a", "a=", "=1", "A=1", "a=1,a=2", "a=1=2", "a=é", "a=\u{1}", &many.join(","), &long] {
            assert!(!is_state(bad), "{bad}");
        }
    }

    fn metadata(headers: &[(&str, &str)]) -> Metadata {
        let headers = headers.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
        Metadata { headers, ..Metadata::default() }
    }

    fn kept(headers: &[(&str, &str)], request: &[&str]) -> Vec<(String, String)> {
        let mut metadata = metadata(headers);
        let (parents, states) = (request.iter().take(1), request.iter().skip(1));
        metadata.keep_trace(TraceHeaders::of(parents.copied(), states.copied()).as_ref());
        metadata.headers.texts().map(|(name, text)| (name.to_owned(), text.to_owned())).collect()
    }

    fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
        expected.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
    }

    #[test]
    fn a_header_of_the_message_wins_over_the_request_and_an_invalid_one_is_dropped() {
        assert_eq!(kept(&[("a", "1")], &[]), pairs(&[("a", "1")]));
        let of_request = pairs(&[("a", "1"), (PARENT, VALID), (STATE, "k=v,l=w"), ("z", "1")]);
        assert_eq!(kept(&[("a", "1"), ("z", "1")], &[VALID, "k=v", "l=w"]), of_request);
        assert_eq!(kept(&[(PARENT, OTHER)], &[VALID, "k=v"]), pairs(&[(PARENT, OTHER)]), "no state of another trace");
        assert_eq!(
            kept(&[("Traceparent", OTHER), ("TraceState", "k=v")], &[]),
            pairs(&[(PARENT, OTHER), (STATE, "k=v")])
        );
        assert_eq!(kept(&[(PARENT, "bad"), (STATE, "k=v")], &[VALID]), pairs(&[(PARENT, VALID)]));
        assert_eq!(kept(&[(PARENT, "bad"), (STATE, "k=v"), ("z", "1")], &[]), pairs(&[("z", "1")]));
        assert_eq!(kept(&[(PARENT, OTHER), ("Traceparent", OTHER)], &[]), [], "two of them");
        assert_eq!(kept(&[(STATE, "k=v")], &[]), [], "a state without its parent");
        assert_eq!(kept(&[(PARENT, OTHER), (STATE, "k")], &[]), pairs(&[(PARENT, OTHER)]));
    }

    #[test]
    fn a_value_that_is_not_text_is_dropped() {
        let given = vec![(PARENT.to_owned(), TypedValue::Bytes(vec![255])), ("b".to_owned(), TypedValue::Null)];
        let mut metadata = Metadata { headers: Headers::classify(given, |_| false), ..Metadata::default() };
        metadata.keep_trace(None);
        assert_eq!(metadata.headers.iter().map(|header| header.name.as_str()).collect::<Vec<_>>(), ["b"]);
    }

    #[test]
    fn a_trace_never_makes_the_metadata_too_large() {
        let request = TraceHeaders::of([VALID].into_iter(), ["k=v"].into_iter());
        let size = |metadata: &Metadata| serde_json::to_vec(metadata).unwrap().len();
        let full = MAX_METADATA_BYTES - size(&metadata(&[("x", "")]));
        let exactly = size(&metadata(&[(PARENT, VALID), ("x", "")])) - size(&metadata(&[("x", "")]));
        for (room, kept) in [(200, 2), (80, 1), (exactly, 1), (exactly - 1, 0), (5, 0), (0, 0)] {
            let mut metadata = metadata(&[("x", &"v".repeat(full - room))]);
            metadata.keep_trace(request.as_ref());
            assert_eq!((metadata.headers.len() - 1, metadata.validate()), (kept, Ok(())), "{room}");
        }
    }

    proptest! {
        #[test]
        fn any_headers_stay_valid_and_others_stay_where_they_are(headers in any_headers(), with_request: bool) {
            let request = TraceHeaders::of([VALID].into_iter(), std::iter::empty()).filter(|_| with_request);
            let mut metadata = Metadata { headers: headers.clone(), ..Metadata::default() };
            metadata.keep_trace(request.as_ref());
            prop_assert_eq!(metadata.validate(), Ok(()));
            prop_assert_eq!(metadata.headers.trace().is_some(), with_request);
            metadata.headers.remove_trace();
            prop_assert_eq!(metadata.headers, headers);
        }
    }
}
