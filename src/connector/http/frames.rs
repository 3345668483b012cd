//! Observes the HTTP/2 frames of a connection. It notes facts that the client library does not report: the streams that
//! were written, the streams that a GOAWAY excludes, and the status of a reply if the library refuses the head.

use std::{collections::HashMap, sync::Arc};

use http::StatusCode;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::wire::Observer;

/// Bytes that a client sends before its first frame (RFC 9113, section 3.4).
const PREFACE: usize = 24;
const FRAME_HEAD: usize = 9;
/// Bytes of a payload that are kept: padding, priority and the first field of HEADERS, or the first half of GOAWAY. The
/// longest form of a status has 13 bytes.
const KEPT: usize = 32;

const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;

/// Flags of HEADERS.
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;
const ACK: u8 = 0x1;

/// Notes on the frames of a connection so far.
#[derive(Default)]
pub struct Frames {
    noted: Mutex<Noted>,
    settings: Notify,
}

#[derive(Default)]
struct Noted {
    /// The latest stream with HEADERS of which a part was written.
    written: u32,
    /// The last stream that the server processes, from a GOAWAY.
    last: Option<u32>,
    has_settings: bool,
    /// Open streams, and the status of their reply once it is known.
    replies: HashMap<u32, Option<StatusCode>>,
}

impl Frames {
    /// Waits for the first SETTINGS of the server. Cancel-safe.
    pub async fn settings(&self) {
        loop {
            let arrived = self.settings.notified();
            if self.noted.lock().has_settings {
                return;
            }
            arrived.await;
        }
    }

    /// Notes that a request was given to the library. Its reply is noted until `forget`.
    pub fn expect(&self, stream: u32) {
        self.noted.lock().replies.insert(stream, None);
    }

    pub fn forget(&self, stream: u32) -> Option<StatusCode> {
        self.noted.lock().replies.remove(&stream).flatten()
    }

    /// Whether the server has not processed a stream: nothing of it was written, or a GOAWAY excludes it.
    pub fn is_unprocessed(&self, stream: u32) -> bool {
        let noted = self.noted.lock();
        stream > noted.written || noted.last.is_some_and(|last| stream > last)
    }

    /// Whether the server has announced the end of the connection.
    pub fn is_ending(&self) -> bool {
        self.noted.lock().last.is_some()
    }

    fn sent(&self, frame: &Frame) {
        if frame.kind == HEADERS {
            let mut noted = self.noted.lock();
            noted.written = noted.written.max(frame.stream);
        }
    }

    fn received(&self, frame: &Frame) {
        match frame.kind {
            SETTINGS if frame.flags & ACK == 0 => {
                self.noted.lock().has_settings = true;
                self.settings.notify_waiters();
            }
            GOAWAY => {
                if let Some(last) = frame.kept().first_chunk::<4>() {
                    let last = u32::from_be_bytes(*last) & (u32::MAX >> 1);
                    let mut noted = self.noted.lock();
                    noted.last = Some(noted.last.map_or(last, |known| known.min(last)));
                }
            }
            HEADERS => {
                // An interim reply, and trailers, have no final status.
                if let Some(status) = status(frame.flags, frame.kept()).filter(|status| !status.is_informational())
                    && let Some(reply) = self.noted.lock().replies.get_mut(&frame.stream)
                {
                    *reply = Some(status);
                }
            }
            _ => {}
        }
    }
}

/// The status of a reply: its first field in the code of HPACK (RFC 7541). A server that keeps to the size of the table
/// in our SETTINGS, 0, does not refer to earlier replies.
fn status(flags: u8, mut payload: &[u8]) -> Option<StatusCode> {
    if flags & PADDED != 0 {
        payload = payload.get(1..)?;
    }
    if flags & PRIORITY != 0 {
        payload = payload.get(5..)?;
    }
    // A new size of the table can precede the first field.
    while let [size @ 0x20..=0x3f, rest @ ..] = payload {
        payload = rest;
        let mut continues = *size == 0x3f;
        while continues {
            let [byte, rest @ ..] = payload else { return None };
            (continues, payload) = (*byte >= 0x80, rest);
        }
    }
    let value = match payload {
        [indexed @ 0x88..=0x8e, ..] => return StatusCode::from_u16(INDEXED[usize::from(*indexed - 0x88)]).ok(),
        // A literal, with the name of any entry of the static table that is a status.
        [0x48..=0x4e | 0x08..=0x0e | 0x18..=0x1e, value @ ..] => value,
        [0x40 | 0x00 | 0x10, named @ ..] => NAMES.iter().find_map(|name| named.strip_prefix(*name))?,
        _ => return None,
    };
    let digits = match value {
        [3, digits @ ..] => *digits.first_chunk()?,
        [length @ 0x82..=0x83, coded @ ..] => huffman(coded.get(..usize::from(length & 0x7f))?)?,
        _ => return None,
    };
    StatusCode::from_bytes(&digits).ok()
}

/// Statuses of the static table, from index 8.
const INDEXED: [u16; 7] = [200, 204, 206, 304, 400, 404, 500];
/// `:status` as a literal name, plain and in Huffman code, each after its length.
const NAMES: [&[u8]; 2] = [b"\x07:status", b"\x85\xb8\x84\x8d\x36\xa3"];

/// Three digits in the Huffman code of HPACK: 5 bits for each of 0 to 2, 6 bits for each of 3 to 9.
fn huffman(coded: &[u8]) -> Option<[u8; 3]> {
    let mut bits = coded.iter().fold(0_u32, |bits, byte| bits << 8 | u32::from(*byte)) << (32 - 8 * coded.len());
    let mut digits = [0; 3];
    for digit in &mut digits {
        let (code, length) = match bits >> 27 {
            code @ 0..=2 => (code, 5),
            _ => (bits >> 26, 6),
        };
        *digit = b'0'
            + u8::try_from(match (code, length) {
                (code, 5) => code,
                (code @ 0x19..=0x1f, 6) => code - 0x16,
                _ => return None,
            })
            .ok()?;
        bits <<= length;
    }
    Some(digits)
}

/// A frame of which the head and up to `KEPT` bytes of the payload were read.
#[derive(Default)]
struct Frame {
    kind: u8,
    flags: u8,
    stream: u32,
    payload: [u8; KEPT],
    /// Bytes of `payload`.
    filled: usize,
}

impl Frame {
    fn kept(&self) -> &[u8] {
        &self.payload[..self.filled]
    }
}

/// Finds the frames in a stream of bytes.
struct Reader {
    /// Bytes before the next head.
    skipped: usize,
    head: [u8; FRAME_HEAD],
    head_filled: usize,
    frame: Frame,
    /// Bytes of the payload that are still to come. Some of them are kept.
    left: usize,
}

impl Reader {
    fn after(skipped: usize) -> Self {
        Self { skipped, head: [0; FRAME_HEAD], head_filled: 0, frame: Frame::default(), left: 0 }
    }

    /// Calls `found` with each frame once its kept bytes are complete.
    fn read(&mut self, mut bytes: &[u8], mut found: impl FnMut(&Frame)) {
        while !bytes.is_empty() {
            let skipped = self.skipped.min(bytes.len());
            (self.skipped, bytes) = (self.skipped - skipped, &bytes[skipped..]);
            if self.head_filled < FRAME_HEAD {
                let taken = (FRAME_HEAD - self.head_filled).min(bytes.len());
                self.head[self.head_filled..][..taken].copy_from_slice(&bytes[..taken]);
                (self.head_filled, bytes) = (self.head_filled + taken, &bytes[taken..]);
                if self.head_filled < FRAME_HEAD {
                    return;
                }
                let [a, b, c, kind, flags, stream @ ..] = self.head;
                self.left = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
                let stream = u32::from_be_bytes(stream) & (u32::MAX >> 1);
                self.frame = Frame { kind, flags, stream, ..Frame::default() };
            }
            let kept = self.left.min(KEPT - self.frame.filled);
            let taken = kept.min(bytes.len());
            self.frame.payload[self.frame.filled..][..taken].copy_from_slice(&bytes[..taken]);
            self.frame.filled += taken;
            (self.left, bytes) = (self.left - taken, &bytes[taken..]);
            if taken == kept {
                found(&self.frame);
                (self.skipped, self.head_filled) = (self.left, 0);
            }
        }
    }
}

/// Observes the transport of an HTTP/2 connection.
pub struct FrameObserver {
    frames: Arc<Frames>,
    read: Reader,
    written: Reader,
}

impl FrameObserver {
    pub fn new() -> (Self, Arc<Frames>) {
        let frames = Arc::<Frames>::default();
        let observer = Self { frames: Arc::clone(&frames), read: Reader::after(0), written: Reader::after(PREFACE) };
        (observer, frames)
    }
}

impl Observer for FrameObserver {
    fn read(&mut self, bytes: &[u8]) {
        self.read.read(bytes, |frame| self.frames.received(frame));
    }

    fn written(&mut self, bytes: &[u8]) {
        self.written.read(bytes, |frame| self.frames.sent(frame));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
    }

    #[test]
    fn frames_are_found_however_the_bytes_are_cut() {
        let bytes = [
            frame(SETTINGS, 0, 0, &[0; 18]),
            frame(0, 0, 1, &[7; 100]),
            frame(SETTINGS, ACK, 0, b""),
            frame(HEADERS, PADDED | PRIORITY, 5, &[2, 0, 0, 0, 0, 9, 0x20, 0x89, 0, 0]),
            frame(HEADERS, 4, 7, b"\x48\x03307"),
            frame(GOAWAY, 0, 0, &[0x80, 0, 0, 5, 0, 0, 0, 0]),
        ]
        .concat();
        for size in [1, 5, 9, 40, 1000] {
            let frames = Frames::default();
            for stream in [1, 5, 7] {
                frames.expect(stream);
            }
            let mut reader = Reader::after(0);
            bytes.chunks(size).for_each(|part| reader.read(part, |frame| frames.received(frame)));
            assert!(frames.noted.lock().has_settings && frames.is_ending());
            let status = |stream| frames.forget(stream).map(|status| status.as_u16());
            assert_eq!([1, 5, 7].map(status), [None, Some(204), Some(307)]);
            assert_eq!(frames.noted.lock().last, Some(5));
        }
    }

    #[test]
    fn a_status_is_known_in_each_form() {
        for (fields, expected) in [
            (&b"\x88"[..], Some(200)),
            (b"\x8e", Some(500)),
            (b"\x20\x3f\xe1\x1f\x8a", Some(206)),
            (b"\x48\x03201", Some(201)),
            (b"\x0c\x03404", Some(404)),
            (b"\x18\x03999", Some(999)),
            (b"\x48\x82\x10\x05", Some(202)),
            (b"\x48\x83\x13\xef\xff", Some(299)),
            (b"\x08\x83\x65\xa6\xff", Some(345)),
            (b"\x00\x07:status\x03200", Some(200)),
            (b"\x40\x85\xb8\x84\x8d\x36\xa3\x82\x10\x05", Some(202)),
            // Another field, an entry of the table, and cut or wrong values.
            (b"\x00\x07:statuz\x03200", None),
            (b"\xbe", None),
            (b"\x61\x0320", None),
            (b"\x48\x0320", None),
            (b"\x48\x02200", None),
            (b"\x48\x83\x13\xef", None),
            (b"\x48\x83\xff\xff\xff", None),
            (b"\x3f\x80", None),
            (b"", None),
        ] {
            assert_eq!(status(0, fields).map(|status| status.as_u16()), expected, "{fields:x?}");
        }
    }

    #[test]
    fn a_stream_is_processed_when_it_was_written_and_no_goaway_excludes_it() {
        let frames = Frames::default();
        let mut written = Reader::after(PREFACE);
        let bytes = [vec![b'x'; PREFACE], frame(SETTINGS, 0, 0, b""), frame(HEADERS, 4, 3, b"abc")].concat();
        bytes.chunks(7).for_each(|part| written.read(part, |frame| frames.sent(frame)));
        assert_eq!([1, 3, 5].map(|stream| frames.is_unprocessed(stream)), [false, false, true]);
        Reader::after(0).read(&frame(GOAWAY, 0, 0, &[0, 0, 0, 1, 0, 0, 0, 0]), |frame| frames.received(frame));
        assert_eq!([1, 3].map(|stream| frames.is_unprocessed(stream)), [false, true]);
    }
}
