//! Fuzzing of stored bodies: damaged ones, and those of other releases.

use bytes::Bytes;

use crate::fuzz::FuzzTarget;
use crate::message::codec::{DecodeError, VERSION, decode, encode, weight};

const TARGET: FuzzTarget = FuzzTarget {
    name: "codec",
    words: &[
        "{}",
        "\"headers\":",
        "\"key\":",
        "\"flow\":",
        "\"origin\":",
        "\"properties\":",
        "\"expires_at\":",
        "\0\0\0\x02{}",
    ],
    run,
};

fn run(body: &[u8]) -> String {
    let body = Bytes::copy_from_slice(body);
    match decode(&body) {
        Ok(message) => {
            let again = encode(&message);
            assert_eq!(decode(&again), Ok(message.clone()));
            assert_eq!(encode(&decode(&again).expect("decoded")), again);
            assert!(message.payload.len() < weight(&body));
            format!("{:?}", message.metadata)
        }
        Err(error) => {
            let other = body.first().is_some_and(|version| *version > VERSION);
            assert_eq!(matches!(error, DecodeError::Version(_)), other, "{error}");
            error.to_string()
        }
    }
}

#[test]
fn the_corpus_keeps_to_what_is_promised() {
    TARGET.replay();
}

#[test]
#[ignore = "runs for minutes: tests/run.sh --fuzz"]
fn mutations_keep_to_what_is_promised() {
    TARGET.explore();
}
