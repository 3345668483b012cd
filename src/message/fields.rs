//! Metadata inside a stored body, except `expires_at` (`codec`): for each field that is set a tag and the value, then a
//! zero byte.
//!
//! The label (key, flow, group, and the token with which the message was scheduled) has a place of its own in the body,
//! where scripts read it (lua/include/label.lua).
//!
//! A text follows its length. Numbers are LEB128: seven bits per byte, the lowest first. Content types that the API
//! sets have their own tags. Rare fields are JSON.

use std::borrow::Cow;

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::{Header, HeaderValue, Metadata};

const END: u8 = 0;
const CONTENT_TYPE: u8 = 1;
pub(super) const KEY: u8 = 2;
/// Name and value; once for each header.
const HEADER: u8 = 3;
const MAX_ATTEMPTS: u8 = 4;
const PROPERTIES: u8 = 6;
const ORIGIN: u8 = 7;
/// Name, then type and value as JSON; once for each header.
const TYPED_HEADER: u8 = 8;
pub(super) const FLOW: u8 = 9;
const RECURRING: u8 = 10;
pub(super) const GROUP: u8 = 11;
pub(super) const SCHEDULED_BY: u8 = 12;
/// Tags of common content types.
const CONTENT_TYPES: [(u8, &str); 3] =
    [(16, "application/json"), (17, "text/plain; charset=utf-8"), (18, "application/octet-stream")];

/// Maximum bytes of a label: its length takes two bytes.
const MAX_LABEL: usize = 65_535;

/// The label of a message: its fields that are set and not empty. Empty if they are too long together.
pub fn label(metadata: &Metadata) -> BytesMut {
    let Metadata { key, flow, group, scheduled_by, .. } = metadata;
    let mut label = BytesMut::new();
    for (tag, text) in [(KEY, key), (FLOW, flow), (GROUP, group), (SCHEDULED_BY, scheduled_by)] {
        if let Some(text) = text.as_ref().filter(|text| !text.is_empty()) {
            write_text(tag, text.as_bytes(), &mut label);
        }
    }
    if label.len() > MAX_LABEL {
        label.clear();
    }
    label
}

/// Adds the fields of a label to `metadata`. `None` if they are malformed.
pub fn read_label(mut label: Bytes, metadata: &mut Metadata) -> Option<()> {
    while label.has_remaining() {
        let place = match label.get_u8() {
            KEY => &mut metadata.key,
            FLOW => &mut metadata.flow,
            GROUP => &mut metadata.group,
            SCHEDULED_BY => &mut metadata.scheduled_by,
            _ => return None,
        };
        *place = Some(read_text(&mut label)?);
    }
    Some(())
}

/// Adds a field of a history entry.
pub fn write_field(tag: u8, text: &str, out: &mut BytesMut) {
    if !text.is_empty() {
        write_text(tag, text.as_bytes(), out);
    }
}

/// Removes a field from the front of a history entry: its tag and text. `None` if it is malformed.
pub fn read_field(from: &mut Bytes) -> Option<(u8, String)> {
    let tag = from.try_get_u8().ok()?;
    Some((tag, String::from_utf8_lossy(&read_bytes(from)?).into_owned()))
}

/// `labelled`: the label is written elsewhere.
pub fn write(metadata: &Metadata, labelled: bool, out: &mut BytesMut) {
    let Metadata {
        headers,
        key,
        flow,
        group,
        content_type,
        properties,
        origin,
        max_attempts,
        expires_at: _,
        recurring,
        scheduled_by,
    } = metadata;
    if let Some(content_type) = content_type {
        match CONTENT_TYPES.iter().find(|(_, known)| known == content_type) {
            Some((tag, _)) => out.put_u8(*tag),
            None => write_text(CONTENT_TYPE, content_type.as_bytes(), out),
        }
    }
    for (tag, text) in [(KEY, key), (FLOW, flow), (GROUP, group), (SCHEDULED_BY, scheduled_by)] {
        if let Some(text) = text.as_ref().filter(|text| !labelled || text.is_empty()) {
            write_text(tag, text.as_bytes(), out);
        }
    }
    let json = |error| -> Vec<u8> { panic!("strings and integers always serialize: {error}") };
    for Header { name, value } in headers.iter() {
        let (tag, value) = match value {
            HeaderValue::Text(text) => (HEADER, Cow::Borrowed(text.as_bytes())),
            HeaderValue::Typed(value) => (TYPED_HEADER, serde_json::to_vec(value).unwrap_or_else(json).into()),
        };
        write_text(tag, name.as_bytes(), out);
        write_number(value.len() as u64, out);
        out.extend_from_slice(&value);
    }
    if let Some(number) = max_attempts {
        out.put_u8(MAX_ATTEMPTS);
        write_number(u64::from(*number), out);
    }
    if let Some(properties) = properties {
        write_text(PROPERTIES, &serde_json::to_vec(properties).unwrap_or_else(json), out);
    }
    if let Some(origin) = origin {
        write_text(ORIGIN, &serde_json::to_vec(origin).unwrap_or_else(json), out);
    }
    if let Some(recurring) = recurring {
        write_text(RECURRING, &serde_json::to_vec(recurring).unwrap_or_else(json), out);
    }
    out.put_u8(END);
}

/// Removes the metadata from the front of `from`. `None` if it is malformed, or has a field that this release does not
/// know.
pub fn read(from: &mut Bytes) -> Option<Metadata> {
    let mut metadata = Metadata::default();
    loop {
        match from.try_get_u8().ok()? {
            END => return Some(metadata),
            CONTENT_TYPE => metadata.content_type = Some(read_text(from)?),
            KEY => metadata.key = Some(read_text(from)?),
            FLOW => metadata.flow = Some(read_text(from)?),
            GROUP => metadata.group = Some(read_text(from)?),
            SCHEDULED_BY => metadata.scheduled_by = Some(read_text(from)?),
            HEADER => metadata.headers.insert(read_text(from)?, read_text(from)?),
            TYPED_HEADER => {
                let (name, value) = (read_text(from)?, serde_json::from_slice(&read_bytes(from)?).ok()?);
                metadata.headers.push(name, HeaderValue::Typed(value));
            }
            MAX_ATTEMPTS => metadata.max_attempts = Some(read_number(from)?.try_into().ok()?),
            PROPERTIES => metadata.properties = Some(serde_json::from_slice(&read_bytes(from)?).ok()?),
            RECURRING => metadata.recurring = Some(serde_json::from_slice(&read_bytes(from)?).ok()?),
            ORIGIN => metadata.origin = Some(serde_json::from_slice(&read_bytes(from)?).ok()?),
            tag => {
                let (_, known) = CONTENT_TYPES.iter().find(|(one, _)| *one == tag)?;
                metadata.content_type = Some((*known).to_owned());
            }
        }
    }
}

fn write_text(tag: u8, text: &[u8], out: &mut BytesMut) {
    out.put_u8(tag);
    write_number(text.len() as u64, out);
    out.extend_from_slice(text);
}

fn write_number(mut number: u64, out: &mut BytesMut) {
    while number >= 0x80 {
        out.put_u8(number.to_le_bytes()[0] | 0x80);
        number >>= 7;
    }
    out.put_u8(number.to_le_bytes()[0]);
}

fn read_number(from: &mut Bytes) -> Option<u64> {
    let mut number = 0;
    for shift in (0..63).step_by(7) {
        let byte = from.try_get_u8().ok()?;
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

fn read_bytes(from: &mut Bytes) -> Option<Bytes> {
    let length = usize::try_from(read_number(from)?).ok()?;
    (length <= from.len()).then(|| from.split_to(length))
}

fn read_text(from: &mut Bytes) -> Option<String> {
    String::from_utf8(read_bytes(from)?.into()).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{super::headers::tests::any_headers, *};
    use crate::{
        message::{Origin, Properties, Recurring},
        recurrence::Rule,
    };

    fn written(metadata: &Metadata) -> Bytes {
        let mut out = BytesMut::new();
        write(metadata, false, &mut out);
        out.freeze()
    }

    #[test]
    fn every_field_comes_back_and_what_follows_is_left() {
        let metadata = Metadata {
            headers: [("A".to_owned(), "é".repeat(100)), ("B".to_owned(), String::new())].into(),
            key: Some(String::new()),
            flow: Some("tenant-7".into()),
            group: Some("order-7".into()),
            content_type: Some("text/xml".into()),
            properties: Some(Properties { priority: Some(3), ..Properties::default() }.into()),
            origin: Some(Origin { id: Some("a b".into()), ..Origin::default() }.into()),
            max_attempts: Some(u32::MAX),
            expires_at: None,
            scheduled_by: Some("shop".into()),
            recurring: Some(Recurring { revision: "1".into(), rule: Rule::default(), expires_after: Some(7) }.into()),
        };
        for metadata in [metadata, Metadata::default()] {
            let mut stored = BytesMut::from(&written(&metadata)[..]);
            stored.extend_from_slice(b"rest");
            let mut stored = stored.freeze();
            assert_eq!((read(&mut stored), &stored[..]), (Some(metadata), &b"rest"[..]));
        }
    }

    proptest! {
        #[test]
        fn headers_of_every_type_come_back_in_their_order(headers in any_headers()) {
            let metadata = Metadata { headers, ..Metadata::default() };
            prop_assert_eq!(read(&mut written(&metadata)), Some(metadata));
        }
    }

    #[test]
    fn a_text_header_takes_its_bytes_and_three_more() {
        let metadata = Metadata { headers: [("A".to_owned(), "12".to_owned())].into(), ..Metadata::default() };
        assert_eq!(written(&metadata)[..], *b"\x03\x01A\x0212\0");
    }

    #[test]
    fn absent_fields_and_usual_content_types_take_one_byte_each() {
        assert_eq!(written(&Metadata::default())[..], [END]);
        for (tag, content_type) in CONTENT_TYPES {
            let metadata = Metadata { content_type: Some(content_type.into()), ..Metadata::default() };
            let mut stored = written(&metadata);
            assert_eq!(stored[..], [tag, END]);
            assert_eq!(read(&mut stored), Some(metadata));
        }
    }

    #[test]
    fn what_is_malformed_is_refused() {
        for bad in [
            &b""[..],
            b"\x0a\0",
            b"\x0b\x05abc",
            b"\x09\x05abc",
            b"\x02\x05abc",
            b"\x02\x01\xff\0",
            b"\x03\x01A\0",
            b"\x04\x80\x80\x80\x80\x80\x01\0",
            b"\x05\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\0",
            b"\x06\x02[3\0",
        ] {
            assert_eq!(read(&mut Bytes::from_static(bad)), None, "{bad:?}");
        }
    }

    #[test]
    fn a_label_is_left_out_when_its_length_does_not_fit_into_two_bytes() {
        // A tag and three bytes of length come before the text.
        for (length, expected) in [(MAX_LABEL - 4, MAX_LABEL), (MAX_LABEL - 3, 0), (MAX_LABEL, 0)] {
            let metadata = Metadata { key: Some("k".repeat(length)), ..Metadata::default() };
            assert_eq!(label(&metadata).len(), expected, "{length}");
        }
    }
}
