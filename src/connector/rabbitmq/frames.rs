//! Frames of a broker on their way to lapin, which ends the connection over a short string that is no UTF-8, and
//! overflows its stack on tables nested by the thousand. RabbitMQ looks for neither, and would give such a message
//! out again for ever. So it is made readable here, without changing a length, and what was wrong is noted.
//!
//! Only what delivers or returns a message is looked at, whole frames of it; all else passes as it comes. See AMQP 0-9-1,
//! sections 2.3.5 (frames), 4.2.5 (field types) and 4.2.6 (content).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::returns::Returns;

/// Bytes of a frame around its payload: type, channel, size; and the end.
const HEAD: usize = 7;
const END: usize = 1;
const METHOD: u8 = 1;
const HEADER: u8 = 2;
/// Largest frame in bytes that is held to be looked at: many times what brokers agree to (131,072 by default).
const MAX_HELD_BYTES: usize = 4 * 1024 * 1024;
/// Class and method of `basic.deliver`.
const DELIVER: [u8; 4] = [0, 60, 0, 60];
/// The same of `basic.return`.
const RETURN: [u8; 4] = [0, 60, 0, 50];
/// Deepest table that stays one: deeper than any that is kept (`value`), far from what a stack holds.
const MAX_DEPTH: u32 = 64;
/// After so many bytes no more is noted of a message.
const MAX_NOTE_BYTES: usize = 1024;
/// The properties of a message in their order; the highest bit of the flags is the first.
const PROPERTIES: [(&str, Kind); 14] = [
    ("content_type", Kind::Short),
    ("content_encoding", Kind::Short),
    ("headers", Kind::Table),
    ("delivery_mode", Kind::Bytes(1)),
    ("priority", Kind::Bytes(1)),
    ("correlation_id", Kind::Short),
    ("reply_to", Kind::Short),
    ("expiration", Kind::Short),
    ("message_id", Kind::Short),
    ("timestamp", Kind::Bytes(8)),
    ("type", Kind::Short),
    ("user_id", Kind::Short),
    ("app_id", Kind::Short),
    ("cluster_id", Kind::Short),
];

#[derive(Clone, Copy)]
enum Kind {
    Short,
    Table,
    Bytes(usize),
}

/// What could not be read of deliveries, by their tags: of a connection of which one channel consumes.
#[derive(Clone, Default)]
pub struct Notes(Arc<Mutex<BTreeMap<u64, String>>>);

impl Notes {
    /// Why the delivery is not as its producer sent it; told once.
    pub fn take(&self, tag: u64) -> Option<String> {
        self.lock().remove(&tag)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, String>> {
        // No panic can leave it half-changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub struct Frames {
    /// From the broker.
    held: Vec<u8>,
    /// Of them, at the front, may go on, up to `ready`; those up to `gone` have.
    ready: usize,
    gone: usize,
    /// Bytes of a frame that need no look and have still to come.
    passing: usize,
    /// Of the delivery whose properties come next, and what is wrong with it.
    delivery: (u64, String),
    notes: Notes,
    /// Channels on which the properties of a returned message come next.
    returning: BTreeSet<u16>,
    returns: Returns,
}

impl Frames {
    pub fn new(notes: Notes, returns: Returns) -> Self {
        Self {
            held: Vec::new(),
            ready: 0,
            gone: 0,
            passing: 0,
            delivery: (0, String::new()),
            notes,
            returning: BTreeSet::new(),
            returns,
        }
    }

    /// What the broker sent; nothing says that it has sent all.
    pub fn push(&mut self, bytes: &[u8]) {
        self.held.drain(..self.gone);
        self.ready -= self.gone;
        self.gone = 0;
        self.held.extend_from_slice(bytes);
        if bytes.is_empty() {
            self.ready = self.held.len();
        }
        while self.step() {}
    }

    /// How many bytes of the front of `buffer` were filled.
    pub fn read(&mut self, buffer: &mut [u8]) -> usize {
        let n = buffer.len().min(self.ready - self.gone);
        buffer[..n].copy_from_slice(&self.held[self.gone..self.gone + n]);
        self.gone += n;
        n
    }

    /// Whether there may be more to do.
    fn step(&mut self) -> bool {
        let rest = &mut self.held[self.ready..];
        if self.passing > 0 {
            let n = self.passing.min(rest.len());
            self.passing -= n;
            self.ready += n;
            return n > 0;
        }
        let Some(head) = rest.first_chunk::<HEAD>() else { return false };
        let [kind, high, low, size @ ..] = *head;
        let channel = u16::from_be_bytes([high, low]);
        let size = u32::from_be_bytes(size) as usize + HEAD + END;
        if !matches!(kind, METHOD | HEADER) || size > MAX_HELD_BYTES {
            self.passing = size;
            return true;
        }
        let Some(frame) = rest.get_mut(..size).map(|frame| &mut frame[HEAD..size - END]) else { return false };
        let (tag, wrong) = &mut self.delivery;
        // What has another form than this knows is lapin's to judge.
        if kind == HEADER {
            let _ = Reader { rest: &mut *frame, wrong }.properties();
            if self.returning.remove(&channel) {
                wrong.clear();
                self.returns.note(channel, frame);
            } else if !wrong.is_empty() {
                self.notes.lock().insert(*tag, std::mem::take(wrong));
            }
        } else if frame.starts_with(&RETURN) {
            self.returning.insert(channel);
        } else if frame.starts_with(&DELIVER) {
            wrong.clear();
            *tag = Reader { rest: frame, wrong }.deliver().unwrap_or_default();
        }
        self.ready += size;
        true
    }
}

/// Reads a payload and mends it; `None` where it ends too early or holds what is unknown.
struct Reader<'a> {
    rest: &'a mut [u8],
    wrong: &'a mut String,
}

impl<'a> Reader<'a> {
    /// The delivery's tag.
    fn deliver(mut self) -> Option<u64> {
        self.bytes(DELIVER.len())?;
        self.short("consumer tag")?;
        let tag = u64::from_be_bytes(*self.bytes(8)?.first_chunk()?);
        self.bytes(1)?;
        self.short("exchange")?;
        self.short("routing key")?;
        Some(tag)
    }

    fn properties(mut self) -> Option<()> {
        // Class, weight and the body's size.
        self.bytes(12)?;
        let flags = u16::from_be_bytes(*self.bytes(2)?.first_chunk()?);
        for (place, (name, kind)) in PROPERTIES.into_iter().enumerate() {
            if flags & (0x8000 >> place) == 0 {
                continue;
            }
            match kind {
                Kind::Short => self.short(name)?,
                Kind::Table => self.inner()?.table(0)?,
                Kind::Bytes(n) => drop(self.bytes(n)?),
            }
        }
        Some(())
    }

    /// Names and values to the end.
    fn table(mut self, depth: u32) -> Option<()> {
        while !self.rest.is_empty() {
            self.short("header name")?;
            self.value(depth)?;
        }
        Some(())
    }

    fn value(&mut self, depth: u32) -> Option<()> {
        let kind = &mut self.bytes(1)?[0];
        let n = match *kind {
            // Its length is written as that of a table, so that it can pass for one string.
            b'A' | b'F' if depth == MAX_DEPTH => {
                *kind = b'S';
                self.note(format_args!("arrays or tables are nested deeper than {MAX_DEPTH}"));
                return self.inner().map(drop);
            }
            b'A' => {
                let mut values = self.inner()?;
                while !values.rest.is_empty() {
                    values.value(depth + 1)?;
                }
                return Some(());
            }
            b'F' => return self.inner()?.table(depth + 1),
            b'S' | b'x' => return self.inner().map(drop),
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

    fn short(&mut self, name: &str) -> Option<()> {
        let length = self.bytes(1)?[0].into();
        let text = self.bytes(length)?;
        if str::from_utf8(text).is_ok() {
            return Some(());
        }
        self.note(format_args!("{name} `{}` is no UTF-8", text.escape_ascii()));
        let mut at = 0;
        while let Err(error) = str::from_utf8(&text[at..]) {
            let bad = at + error.valid_up_to();
            at = error.error_len().map_or(text.len(), |length| bad + length);
            text[bad..at].fill(b'?');
        }
        Some(())
    }

    /// What a length of four bytes stands before.
    fn inner(&mut self) -> Option<Reader<'_>> {
        let length = u32::from_be_bytes(*self.bytes(4)?.first_chunk()?) as usize;
        let rest = self.bytes(length)?;
        Some(Reader { rest, wrong: self.wrong })
    }

    fn bytes(&mut self, n: usize) -> Option<&'a mut [u8]> {
        let (bytes, rest) = std::mem::take(&mut self.rest).split_at_mut_checked(n)?;
        self.rest = rest;
        Some(bytes)
    }

    fn note(&mut self, text: std::fmt::Arguments<'_>) {
        use std::fmt::Write;
        if self.wrong.len() < MAX_NOTE_BYTES {
            let comma = if self.wrong.is_empty() { "" } else { ", " };
            write!(self.wrong, "{comma}{text}").expect("a string takes all");
        }
    }
}

#[cfg(test)]
mod tests {
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

    /// A table in a table, and so on.
    fn nested(depth: u32) -> Vec<u8> {
        (0..depth).fold(vec![0, b'V'], |inner, _| [&[0, b'F'][..], &long(&inner)].concat())
    }

    /// All that comes out when it goes in by pieces of this many bytes.
    fn through(bytes: &[u8], piece: usize) -> (Vec<u8>, Notes) {
        let (notes, mut out, mut buffer) = (Notes::default(), Vec::new(), [0; 5]);
        let mut frames = Frames::new(notes.clone(), Returns::default());
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
    fn what_is_no_utf_8_becomes_readable_at_the_same_length_and_is_noted_with_its_tag_however_it_is_cut() {
        let values = [&b"\x03caft\x01"[..], b"\x02\xe9!I\0\0\0\x07\x01aA", &long(b"VF\0\0\0\x03\x01\xffV")].concat();
        let mended = [&b"\x03caft\x01"[..], b"\x02?!I\0\0\0\x07\x01aA", &long(b"VF\0\0\0\x03\x01?V")].concat();
        let body = frame(3, &[0xff; 40]);
        let sent = [deliver(1, b"k"), header(b"\x01sS\0\0\0\x01\xff", "é".as_bytes()), body.clone()];
        let odd = [deliver(2, b"\xe9.k"), header(&values, b"caf\xe9"), body.clone(), frame(8, &[])];
        let read = [deliver(2, b"?.k"), header(&mended, b"caf?"), body, frame(8, &[])];
        for piece in 1..60 {
            let (out, notes) = through(&[sent.concat(), odd.concat()].concat(), piece);
            assert_eq!(out, [sent.concat(), read.concat()].concat(), "{piece}");
            assert_eq!(notes.take(1), None);
            let note = r"routing key `\xe9.k` is no UTF-8, header name `\xe9!` is no UTF-8, header name `\xff` is no UTF-8, correlation_id `caf\xe9` is no UTF-8";
            assert_eq!(notes.take(2).as_deref(), Some(note), "{piece}");
            assert_eq!(notes.take(2), None);
        }
    }

    #[test]
    fn what_a_broker_returns_is_noted_by_its_channel_and_passes_as_it_came() {
        let on = |channel: u8, mut frame: Vec<u8>| {
            frame[2] = channel;
            frame
        };
        let method =
            on(7, frame(METHOD, &[&RETURN[..], &[1, 56], &short(b"NO_ROUTE"), &short(b"x"), &short(b"k")].concat()));
        // Frames of another channel may come in between.
        let other = [on(2, deliver(1, b"k")), on(2, header(b"", b"other"))].concat();
        let returned = [method.clone(), other, on(7, header(b"\x01sS\0\0\0\x01v", b"mine"))].concat();
        let unreadable = [method, on(7, header(b"\x01a?\0\0", b"c"))].concat();
        for piece in 1..60 {
            let (returns, mut out, mut buffer) = (Returns::default(), Vec::new(), [0; 500]);
            let mut frames = Frames::new(Notes::default(), returns.clone());
            let sent = [returned.clone(), unreadable.clone()].concat();
            for piece in sent.chunks(piece) {
                frames.push(piece);
                let n = frames.read(&mut buffer);
                out.extend_from_slice(&buffer[..n]);
            }
            assert_eq!(out, sent, "{piece}");
            assert!(returns.take(2).is_empty());
            let noted: Vec<_> = returns.take(7).iter().map(|noted| noted.correlation_id().clone()).collect();
            assert_eq!(noted, [Some("mine".into()), None], "{piece}");
            assert!(returns.take(7).is_empty());
        }
    }

    #[test]
    fn a_table_that_is_nested_too_deeply_becomes_a_string() {
        let (kept, notes) = through(&header(&nested(MAX_DEPTH), b"c"), 1000);
        assert_eq!((kept, notes.take(0)), (header(&nested(MAX_DEPTH), b"c"), None));
        let sent = header(&nested(10_000), b"c\xff");
        let (out, notes) = through(&sent, 1000);
        let changed: Vec<_> = sent.iter().zip(&out).filter(|(sent, read)| sent != read).collect();
        assert_eq!((out.len(), changed), (sent.len(), vec![(&b'F', &b'S'), (&0xff, &b'?')]));
        assert!(notes.take(0).unwrap().starts_with("arrays or tables are nested deeper than 64, correlation_id"));
    }

    #[test]
    fn what_is_unknown_passes_and_what_is_held_when_the_broker_ends_comes_out() {
        let unknown = header(b"\x01a?\0\0", b"c");
        assert_eq!(through(&unknown, 7).0, unknown);
        let refused = b"AMQP\0\0\x09\x01";
        let mut frames = Frames::new(Notes::default(), Returns::default());
        frames.push(&refused[..5]);
        frames.push(&[]);
        let mut buffer = [0; 8];
        assert_eq!((frames.read(&mut buffer), &buffer[..5]), (5, &refused[..5]));
        assert_eq!(through(refused, 3).0, refused);
    }
}
