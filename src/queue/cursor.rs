//! Where a listing goes on: behind a score and an id. Opaque to callers.

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};

use super::QueueError;
use crate::message::MessageId;

pub fn encode(score: u64, id: &MessageId) -> String {
    URL_SAFE_NO_PAD.encode(format!("{score} {id}"))
}

/// # Errors
/// `Invalid` for what `encode` did not make.
pub fn decode(cursor: &str) -> Result<(u64, MessageId), QueueError> {
    let parse = || {
        let bytes = URL_SAFE_NO_PAD.decode(cursor).ok()?;
        let text = String::from_utf8(bytes).ok()?;
        let (score, id) = text.split_once(' ')?;
        Some((score.parse().ok()?, MessageId::parse(id).ok()?))
    };
    parse().ok_or_else(|| QueueError::Invalid("the cursor is not one that a listing gave out".into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_given_out_is_taken_back() {
        let id = MessageId::parse("order:42").unwrap();
        assert_eq!(decode(&encode(1_700_000_000_000, &id)), Ok((1_700_000_000_000, id)));
        for bad in ["", "x", "!!", "MQ", "MSBhIGI"] {
            assert!(decode(bad).is_err(), "{bad}");
        }
    }
}
