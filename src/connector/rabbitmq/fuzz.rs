//! Frames that a broker, or a program that poses as one, can send.

use std::iter;

use lapin::types::{AMQPValue, DecimalValue, FieldTable, LongString, ShortString};

use super::{FrameNotes, frames::FrameFilter, from_typed, to_typed};
use crate::{
    fuzz::{Bytes, FuzzTarget},
    message::TypedValue,
};

/// The first byte of an input is the length of the pieces in which the rest arrives.
const FRAMES: FuzzTarget = FuzzTarget {
    name: "frames",
    words: &[
        "\x01\0\x01\0\0\0",
        "\x02\0\x01\0\0\0",
        "\0\x3c\0\x3c",
        "\0\x3c\0\x32",
        "\0\x3c\0\0\0\0\0\0\0\0\0\0\x20\0",
        "\x01aF\0\0\0\x05",
        "\x01aA\0\0\0\x05",
        "S\0\0\0\x01",
    ],
    run: frames,
};

fn frames(input: &[u8]) -> String {
    let Some((piece, sent)) = input.split_first() else { return "nothing".into() };
    let (whole, noted) = through(sent, sent.len().max(1));
    assert_eq!(whole.len(), sent.len(), "nothing is lost or added");
    assert_eq!(through(sent, usize::from(*piece).max(1)), (whole.clone(), noted.clone()), "pieces make no difference");
    let apart: Vec<u8> = cut(sent).flat_map(|frame| through(frame, frame.len()).0).collect();
    assert_eq!(apart, whole, "no frame makes another one read differently");
    let (again, rest) = through(&whole, sent.len().max(1));
    assert_eq!(again, whole, "what is mended stays as it is");
    assert!(rest.is_empty(), "it is mended: {rest:?}");
    noted.into_iter().map(|(_, note)| note).collect::<Vec<_>>().join(";")
}

/// Cuts at the ends of frames, by the sizes that the frames declare: AMQP 0-9-1, section 2.3.5.
fn cut(mut sent: &[u8]) -> impl Iterator<Item = &[u8]> {
    iter::from_fn(move || {
        let size = sent.get(3..7).map_or(0, |size| u32::from_be_bytes(size.try_into().expect("four bytes")));
        let end = sent.len().min(usize::try_from(size).expect("64 bits") + 8);
        let (frame, rest) = sent.split_at(end);
        sent = rest;
        (!frame.is_empty()).then_some(frame)
    })
}

/// The output, and the notes on it.
fn through(sent: &[u8], piece: usize) -> (Vec<u8>, Vec<(u64, String)>) {
    let (notes, mut out, mut buffer) = (FrameNotes::default(), Vec::new(), [0; 4096]);
    let mut frames = FrameFilter::new(notes.clone());
    for piece in sent.chunks(piece).chain([&[][..]]) {
        frames.push(piece);
        loop {
            let n = frames.read(&mut buffer);
            out.extend_from_slice(&buffer[..n]);
            if n == 0 {
                break;
            }
        }
    }
    // A tag is one byte in the original inputs, and mutations leave most tags unchanged.
    let unreadable = (0..=255).filter_map(|tag| Some((tag, notes.take_unreadable(tag)?))).collect();
    (out, unreadable)
}

#[test]
fn frames_of_the_corpus_keep_to_what_is_promised() {
    FRAMES.replay();
}

#[test]
#[ignore = "runs for minutes: tests/run.sh --fuzz"]
fn mutated_frames_keep_to_what_is_promised() {
    FRAMES.explore();
}

/// Header values that a producer can send, and typed values that a store can hold.
const VALUES: FuzzTarget = FuzzTarget {
    name: "amqp_value",
    words: &[
        "{\"type\":",
        ",\"value\":",
        "\"int8\"",
        "\"decimal\"",
        "\"array\"",
        "\"table\"",
        "\"string-base64\"",
        "\"float\"",
        "\x0c\x02",
        "\x0e\x03",
    ],
    run: values,
};

fn values(input: &[u8]) -> String {
    let value = value(&mut Bytes(input), 40);
    let mut came_to = match to_typed(&value) {
        Ok(typed) => {
            let text = serde_json::to_string(&typed).expect("JSON");
            let read: TypedValue = serde_json::from_str(&text).expect("what was written is read");
            // The values are not compared: a short string comes back as a long one. RabbitMQ takes no infinite number.
            if let Ok(back) = from_typed(&read) {
                assert_eq!(to_typed(&back), Ok(typed.clone()));
            }
            typed.type_name().to_owned()
        }
        Err(error) => error,
    };
    if let Ok(typed) = serde_json::from_slice::<TypedValue>(input) {
        came_to += &match from_typed(&typed) {
            Ok(value) => {
                let plain = to_typed(&value).expect("not nested deeper than JSON");
                assert_eq!(from_typed(&plain).and_then(|value| to_typed(&value)), Ok(plain.clone()));
                plain.type_name().to_owned()
            }
            Err(error) => error,
        };
    }
    came_to
}

/// A value of the type that the first byte chooses, with at most `levels` levels.
fn value(bytes: &mut Bytes, levels: u32) -> AMQPValue {
    let name =
        |bytes: &mut Bytes| ShortString::try_new(bytes.text().chars().take(60).collect::<String>()).unwrap_or_default();
    match bytes.byte() % 18 {
        0 => AMQPValue::Boolean(bytes.byte() > 127),
        1 => AMQPValue::ShortShortInt(bytes.byte().cast_signed()),
        2 => AMQPValue::ShortShortUInt(bytes.byte()),
        3 => AMQPValue::ShortInt(i16::from_be_bytes([bytes.byte(), bytes.byte()])),
        4 => AMQPValue::ShortUInt(u16::from_be_bytes([bytes.byte(), bytes.byte()])),
        5 => AMQPValue::LongInt(bytes.u32().cast_signed()),
        6 => AMQPValue::LongUInt(bytes.u32()),
        7 => AMQPValue::LongLongInt(bytes.u64().cast_signed()),
        8 => AMQPValue::Float(f32::from_bits(bytes.u32())),
        9 => AMQPValue::Double(f64::from_bits(bytes.u64())),
        10 => AMQPValue::DecimalValue(DecimalValue { scale: bytes.byte(), value: bytes.u32() }),
        11 => AMQPValue::ShortString(name(bytes)),
        12 if levels > 0 => {
            let count = bytes.byte() % 4;
            AMQPValue::FieldArray((0..count).map(|_| value(bytes, levels - 1)).collect::<Vec<_>>().into())
        }
        13 => AMQPValue::Timestamp(bytes.u64()),
        14 if levels > 0 => {
            let mut table = FieldTable::default();
            for _ in 0..bytes.byte() % 4 {
                table.insert(name(bytes), value(bytes, levels - 1));
            }
            AMQPValue::FieldTable(table)
        }
        15 => AMQPValue::ByteArray(bytes.bytes().into()),
        16 => AMQPValue::LongString(LongString::from(bytes.bytes())),
        _ => AMQPValue::Void,
    }
}

#[test]
fn values_of_the_corpus_keep_to_what_is_promised() {
    VALUES.replay();
}

#[test]
#[ignore = "runs for minutes: tests/run.sh --fuzz"]
fn mutated_values_keep_to_what_is_promised() {
    VALUES.explore();
}
