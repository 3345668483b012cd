//! Frames of a broker on their way to lapin, repaired where lapin would fail.
//!
//! lapin 4.12 closes the connection at a short string that is not UTF-8, and overflows its stack on tables that are
//! nested thousands deep. RabbitMQ accepts both, and delivers such a message again after each reconnect. So
//! `FrameFilter` overwrites such bytes, without a change of any length, and notes what it replaced. It also notes
//! returned messages, because lapin attaches them to the wrong confirms. `docs/upstream/lapin-frames.md` has a
//! reproduction of each defect.
//!
//! Only whole frames that deliver or return a message are parsed; all other bytes pass unchanged. See AMQP 0-9-1,
//! sections 2.3.5 (frames), 4.2.5 (field types) and 4.2.6 (content).

use std::collections::BTreeSet;

use super::frame_notes::{FrameNotes, PROPERTIES_OFFSET};

/// Bytes of a frame before its payload: type, channel, size.
const HEAD: usize = 7;
/// Bytes of a frame after its payload.
const END: usize = 1;
const METHOD: u8 = 1;
const HEADER: u8 = 2;
/// Largest frame in bytes that is buffered and parsed. Brokers negotiate 131,072 by default.
const MAX_PARSED_BYTES: usize = 4 * 1024 * 1024;
/// Class and method of `basic.deliver`.
const DELIVER: [u8; 4] = [0, 60, 0, 60];
/// Class and method of `basic.return`.
const RETURN: [u8; 4] = [0, 60, 0, 50];
/// Maximum depth of a table that stays a table: deeper than `value` keeps, and far from the limit of a stack.
const MAX_DEPTH: u32 = 64;
/// Size of the note of a message, in bytes, from which no more is added.
const MAX_NOTE_BYTES: usize = 1024;
/// The properties of a message in their order. The highest bit of the flags is for the first.
const PROPERTIES: [(&str, PropertyKind); 14] = [
    ("content_type", PropertyKind::ShortString),
    ("content_encoding", PropertyKind::ShortString),
    ("headers", PropertyKind::Table),
    ("delivery_mode", PropertyKind::Bytes(1)),
    ("priority", PropertyKind::Bytes(1)),
    ("correlation_id", PropertyKind::ShortString),
    ("reply_to", PropertyKind::ShortString),
    ("expiration", PropertyKind::ShortString),
    ("message_id", PropertyKind::ShortString),
    ("timestamp", PropertyKind::Bytes(8)),
    ("type", PropertyKind::ShortString),
    ("user_id", PropertyKind::ShortString),
    ("app_id", PropertyKind::ShortString),
    ("cluster_id", PropertyKind::ShortString),
];

#[derive(Clone, Copy)]
enum PropertyKind {
    ShortString,
    Table,
    Bytes(usize),
}

/// Buffers bytes of a broker, and releases them once they are parsed and repaired.
#[derive(Default)]
pub struct FrameFilter {
    buffer: Vec<u8>,
    /// Bytes at the front of `buffer` that `read` can return.
    released: usize,
    /// Bytes at the front of `buffer` that `read` has returned.
    consumed: usize,
    /// Remaining bytes of a frame that is not parsed.
    unparsed: usize,
    /// Tag and note of the delivery that waits for its content header.
    delivery: (u64, String),
    /// Channels with a returned message that waits for its content header.
    returning: BTreeSet<u16>,
    notes: FrameNotes,
}

impl FrameFilter {
    pub fn new(notes: FrameNotes) -> Self {
        Self { notes, ..Self::default() }
    }

    /// Adds bytes of the broker. No bytes mean the end of the stream.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.drain(..self.consumed);
        self.released -= self.consumed;
        self.consumed = 0;
        self.buffer.extend_from_slice(bytes);
        if bytes.is_empty() {
            self.released = self.buffer.len();
        }
        while self.release_next() {}
    }

    /// Moves released bytes to the front of `buffer`. Returns their number.
    pub fn read(&mut self, buffer: &mut [u8]) -> usize {
        let n = buffer.len().min(self.released - self.consumed);
        buffer[..n].copy_from_slice(&self.buffer[self.consumed..self.consumed + n]);
        self.consumed += n;
        n
    }

    /// Releases a frame, or a part of one that is not parsed. Returns false when more bytes are needed.
    fn release_next(&mut self) -> bool {
        let rest = &mut self.buffer[self.released..];
        if self.unparsed > 0 {
            let n = self.unparsed.min(rest.len());
            self.unparsed -= n;
            self.released += n;
            return n > 0;
        }
        let Some(head) = rest.first_chunk::<HEAD>() else { return false };
        let [kind, high, low, size @ ..] = *head;
        let channel = u16::from_be_bytes([high, low]);
        let size = u32::from_be_bytes(size) as usize + HEAD + END;
        if !matches!(kind, METHOD | HEADER) || size > MAX_PARSED_BYTES {
            self.unparsed = size;
            return true;
        }
        let Some(payload) = rest.get_mut(..size).map(|frame| &mut frame[HEAD..size - END]) else { return false };
        let (tag, note) = &mut self.delivery;
        if kind == HEADER {
            // lapin handles a payload of another form.
            let _ = PayloadReader { rest: &mut *payload, note }.properties();
            if self.returning.remove(&channel) {
                note.clear();
                self.notes.add_returned(channel, payload);
            } else if !note.is_empty() {
                self.notes.add_unreadable(*tag, std::mem::take(note));
            }
        } else if payload.starts_with(&RETURN) {
            self.returning.insert(channel);
        } else if payload.starts_with(&DELIVER) {
            note.clear();
            *tag = PayloadReader { rest: payload, note }.deliver().unwrap_or_default();
        }
        self.released += size;
        true
    }
}

/// Parses and repairs a payload. Each method returns `None` at the end of the payload or at an unknown type.
struct PayloadReader<'a> {
    rest: &'a mut [u8],
    /// The note on replaced bytes.
    note: &'a mut String,
}

impl<'a> PayloadReader<'a> {
    /// Reads `basic.deliver`. Returns the delivery tag.
    fn deliver(mut self) -> Option<u64> {
        self.bytes(DELIVER.len())?;
        self.short_string("consumer tag")?;
        let tag = u64::from_be_bytes(*self.bytes(8)?.first_chunk()?);
        self.bytes(1)?;
        self.short_string("exchange")?;
        self.short_string("routing key")?;
        Some(tag)
    }

    /// Reads a content header.
    fn properties(mut self) -> Option<()> {
        self.bytes(PROPERTIES_OFFSET)?;
        let flags = u16::from_be_bytes(*self.bytes(2)?.first_chunk()?);
        for (index, (name, kind)) in PROPERTIES.into_iter().enumerate() {
            if flags & (0x8000 >> index) == 0 {
                continue;
            }
            match kind {
                PropertyKind::ShortString => self.short_string(name)?,
                PropertyKind::Table => self.long()?.table(0)?,
                PropertyKind::Bytes(n) => drop(self.bytes(n)?),
            }
        }
        Some(())
    }

    /// Reads names and values to the end.
    fn table(mut self, depth: u32) -> Option<()> {
        while !self.rest.is_empty() {
            self.short_string("header name")?;
            self.value(depth)?;
        }
        Some(())
    }

    fn value(&mut self, depth: u32) -> Option<()> {
        let kind = &mut self.bytes(1)?[0];
        let n = match *kind {
            // A table has the same length prefix as a long string, so it can become one.
            b'A' | b'F' if depth == MAX_DEPTH => {
                *kind = b'S';
                self.add_note(format_args!("arrays or tables are nested deeper than {MAX_DEPTH}"));
                return self.long().map(drop);
            }
            b'A' => {
                let mut values = self.long()?;
                while !values.rest.is_empty() {
                    values.value(depth + 1)?;
                }
                return Some(());
            }
            b'F' => return self.long()?.table(depth + 1),
            b'S' | b'x' => return self.long().map(drop),
            b'V' => 0,
            b't' | b'b' | b'B' => 1,
            b's' | b'u' | b'U' => 2,
            b'I' | b'i' | b'f' => 4,
            b'D' => 5,
            b'l' | b'L' | b'd' | b'T' => 8,
            _ => return None,
        };
        self.bytes(n).map(drop)
    }

    /// Reads a string with a length of one byte. Replaces each byte that is not UTF-8 by `?`.
    fn short_string(&mut self, name: &str) -> Option<()> {
        let length = self.bytes(1)?[0].into();
        let text = self.bytes(length)?;
        if str::from_utf8(text).is_ok() {
            return Some(());
        }
        self.add_note(format_args!("{name} `{}` is no UTF-8", text.escape_ascii()));
        let mut at = 0;
        while let Err(error) = str::from_utf8(&text[at..]) {
            let bad = at + error.valid_up_to();
            at = error.error_len().map_or(text.len(), |length| bad + length);
            text[bad..at].fill(b'?');
        }
        Some(())
    }

    /// Reads bytes with a length of four bytes.
    fn long(&mut self) -> Option<PayloadReader<'_>> {
        let length = u32::from_be_bytes(*self.bytes(4)?.first_chunk()?) as usize;
        let rest = self.bytes(length)?;
        Some(PayloadReader { rest, note: self.note })
    }

    fn bytes(&mut self, n: usize) -> Option<&'a mut [u8]> {
        let (bytes, rest) = std::mem::take(&mut self.rest).split_at_mut_checked(n)?;
        self.rest = rest;
        Some(bytes)
    }

    fn add_note(&mut self, text: std::fmt::Arguments<'_>) {
        use std::fmt::Write;
        if self.note.len() < MAX_NOTE_BYTES {
            let comma = if self.note.is_empty() { "" } else { ", " };
            write!(self.note, "{comma}{text}").expect("writing to a string never fails");
        }
    }
}

#[cfg(test)]
mod tests {
    use lapin::protocol::basic::parse_properties;

    use super::*;

    fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
        let size = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&[kind, 0, 1], &size[..], payload, &[0xce]].concat()
    }

    fn short(text: &[u8]) -> Vec<u8> {
        [&[u8::try_from(text.len()).unwrap()], text].concat()
    }

    fn long(bytes: &[u8]) -> Vec<u8> {
        [&u32::try_from(bytes.len()).unwrap().to_be_bytes(), bytes].concat()
    }

    fn deliver(tag: u8, routing_key: &[u8]) -> Vec<u8> {
        let tag = [0, 0, 0, 0, 0, 0, 0, tag];
        frame(METHOD, &[&DELIVER[..], &short(b"consumer"), &tag, &[0], &short(b"x"), &short(routing_key)].concat())
    }

    /// With headers and a correlation id.
    fn header(table: &[u8], correlation_id: &[u8]) -> Vec<u8> {
        let flags = [0b0010_0100, 0];
        frame(
            HEADER,
            &[&[0, 60, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4][..], &flags, &long(table), &short(correlation_id)].concat(),
        )
    }

    /// A table of `depth` nested tables.
    fn nested(depth: u32) -> Vec<u8> {
        (0..depth).fold(vec![0, b'V'], |inner, _| [&[0, b'F'][..], &long(&inner)].concat())
    }

    /// The output for an input in pieces of `piece` bytes, and the notes.
    fn filtered(bytes: &[u8], piece: usize) -> (Vec<u8>, FrameNotes) {
        let (notes, mut out, mut buffer) = (FrameNotes::default(), Vec::new(), [0; 5]);
        let mut frames = FrameFilter::new(notes.clone());
        for piece in bytes.chunks(piece) {
            frames.push(piece);
            loop {
                let n = frames.read(&mut buffer);
                out.extend_from_slice(&buffer[..n]);
                if n == 0 {
                    break;
                }
            }
        }
        (out, notes)
    }

    #[test]
    fn strings_that_are_not_utf_8_are_replaced_at_the_same_length_and_noted_for_any_split_of_the_input() {
        let values = [&b"\x03caft\x01"[..], b"\x02\xe9!I\0\0\0\x07\x01aA", &long(b"VF\0\0\0\x03\x01\xffV")].concat();
        let repaired = [&b"\x03caft\x01"[..], b"\x02?!I\0\0\0\x07\x01aA", &long(b"VF\0\0\0\x03\x01?V")].concat();
        let body = frame(3, &[0xff; 40]);
        let sent = [deliver(1, b"k"), header(b"\x01sS\0\0\0\x01\xff", "é".as_bytes()), body.clone()];
        let odd = [deliver(2, b"\xe9.k"), header(&values, b"caf\xe9"), body.clone(), frame(8, &[])];
        let read = [deliver(2, b"?.k"), header(&repaired, b"caf?"), body, frame(8, &[])];
        for piece in 1..60 {
            let (out, notes) = filtered(&[sent.concat(), odd.concat()].concat(), piece);
            assert_eq!(out, [sent.concat(), read.concat()].concat(), "{piece}");
            assert_eq!(notes.take_unreadable(1), None);
            let note = r"routing key `\xe9.k` is no UTF-8, header name `\xe9!` is no UTF-8, header name `\xff` is no UTF-8, correlation_id `caf\xe9` is no UTF-8";
            assert_eq!(notes.take_unreadable(2).as_deref(), Some(note), "{piece}");
            assert_eq!(notes.take_unreadable(2), None);
        }
    }

    #[test]
    fn lapin_parses_properties_that_are_not_utf_8_only_after_the_repair() {
        let parses = |frame: &[u8]| parse_properties(&frame[HEAD + PROPERTIES_OFFSET..frame.len() - END]).is_ok();
        for sent in [header(b"", b"caf\xe9"), header(b"\x02\xe9!V", b"c")] {
            assert!(!parses(&sent), "lapin parses it, so the repair is not needed any more");
            assert!(parses(&filtered(&sent, 1000).0));
        }
    }

    #[test]
    fn a_returned_message_is_noted_by_channel_and_passes_unchanged() {
        let on = |channel: u8, mut frame: Vec<u8>| {
            frame[2] = channel;
            frame
        };
        let method =
            on(7, frame(METHOD, &[&RETURN[..], &[1, 56], &short(b"NO_ROUTE"), &short(b"x"), &short(b"k")].concat()));
        // Frames of another channel can come in between.
        let other = [on(2, deliver(1, b"k")), on(2, header(b"", b"other"))].concat();
        let returned = [method.clone(), other, on(7, header(b"\x01sS\0\0\0\x01v", b"mine"))].concat();
        let unreadable = [method, on(7, header(b"\x01a?\0\0", b"c"))].concat();
        for piece in 1..60 {
            let (notes, mut out, mut buffer) = (FrameNotes::default(), Vec::new(), [0; 500]);
            let mut frames = FrameFilter::new(notes.clone());
            let sent = [returned.clone(), unreadable.clone()].concat();
            for piece in sent.chunks(piece) {
                frames.push(piece);
                let n = frames.read(&mut buffer);
                out.extend_from_slice(&buffer[..n]);
            }
            assert_eq!(out, sent, "{piece}");
            assert!(notes.take_returned(2).is_empty());
            let ids: Vec<_> = notes.take_returned(7).iter().map(|returned| returned.correlation_id().clone()).collect();
            assert_eq!(ids, [Some("mine".into()), None], "{piece}");
            assert!(notes.take_returned(7).is_empty());
        }
    }

    #[test]
    fn a_table_that_is_nested_too_deep_becomes_a_string() {
        let (kept, notes) = filtered(&header(&nested(MAX_DEPTH), b"c"), 1000);
        assert_eq!((kept, notes.take_unreadable(0)), (header(&nested(MAX_DEPTH), b"c"), None));
        let sent = header(&nested(10_000), b"c\xff");
        let (out, notes) = filtered(&sent, 1000);
        let changed: Vec<_> = sent.iter().zip(&out).filter(|(sent, read)| sent != read).collect();
        assert_eq!((out.len(), changed), (sent.len(), vec![(&b'F', &b'S'), (&0xff, &b'?')]));
        assert!(
            notes.take_unreadable(0).unwrap().starts_with("arrays or tables are nested deeper than 64, correlation_id")
        );
    }

    #[test]
    fn unknown_types_pass_and_buffered_bytes_are_released_at_the_end_of_the_stream() {
        let unknown = header(b"\x01a?\0\0", b"c");
        assert_eq!(filtered(&unknown, 7).0, unknown);
        let refused = b"AMQP\0\0\x09\x01";
        let mut frames = FrameFilter::new(FrameNotes::default());
        frames.push(&refused[..5]);
        frames.push(&[]);
        let mut buffer = [0; 8];
        assert_eq!((frames.read(&mut buffer), &buffer[..5]), (5, &refused[..5]));
        assert_eq!(filtered(refused, 3).0, refused);
    }
}
