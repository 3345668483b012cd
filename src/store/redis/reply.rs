//! Parses a script's flat reply.

use bytes::Bytes;
use redis::Value;

use crate::{
    message::MessageId,
    store::{Deaths, PastAttempt, StoreError},
    time::UnixMillis,
};

/// Maximum characters of an invalid id in an error.
const MAX_SHOWN_ID_CHARS: usize = 64;

/// The failures of a message.
#[derive(Debug, Default)]
pub struct Failure {
    /// The last one.
    pub at: Option<UnixMillis>,
    pub count: u32,
    pub error: Option<String>,
    /// The last attempts that failed, the latest last.
    pub attempts: Vec<PastAttempt>,
}

/// Values in the order in which the script's header names them.
pub struct Reply(std::vec::IntoIter<Value>);

impl From<Vec<Value>> for Reply {
    fn from(values: Vec<Value>) -> Self {
        Self(values.into_iter())
    }
}

impl Reply {
    pub fn is_done(&self) -> bool {
        self.0.len() == 0
    }

    pub fn bytes(&mut self) -> Result<Bytes, StoreError> {
        match self.0.next() {
            Some(Value::BulkString(bytes)) => Ok(bytes.into()),
            Some(Value::SimpleString(text)) => Ok(text.into_bytes().into()),
            other => Err(unexpected("a string", other.as_ref())),
        }
    }

    pub fn text(&mut self) -> Result<String, StoreError> {
        String::from_utf8(self.bytes()?.into()).map_err(|_| unexpected("UTF-8", None))
    }

    pub fn id(&mut self) -> Result<MessageId, StoreError> {
        id(&self.bytes()?)
    }

    /// An id; `None` for an empty text.
    pub fn optional_id(&mut self) -> Result<Option<MessageId>, StoreError> {
        let text = self.bytes()?;
        if text.is_empty() { Ok(None) } else { id(&text).map(Some) }
    }

    /// A string with a character for each of `count` messages.
    pub fn verdicts(&mut self, count: usize) -> Result<Bytes, StoreError> {
        let verdicts = self.bytes()?;
        if verdicts.len() == count { Ok(verdicts) } else { Err(unexpected("a verdict for each message", None)) }
    }

    pub fn integer(&mut self) -> Result<u64, StoreError> {
        self.optional()?.ok_or_else(|| unexpected("an integer", None))
    }

    /// `None` for -1.
    pub fn optional(&mut self) -> Result<Option<u64>, StoreError> {
        match self.0.next() {
            Some(Value::Int(number)) => Ok(u64::try_from(number).ok()),
            other => Err(unexpected("an integer", other.as_ref())),
        }
    }

    pub fn count(&mut self) -> Result<u32, StoreError> {
        u32::try_from(self.integer()?).map_err(|_| unexpected("a count", None))
    }

    /// A reply within this one.
    pub fn array(&mut self) -> Result<Self, StoreError> {
        match self.0.next() {
            Some(Value::Array(values)) => Ok(values.into()),
            other => Err(unexpected("an array", other.as_ref())),
        }
    }

    /// A number of messages, and the id of one of them.
    pub fn deaths(&mut self) -> Result<Deaths, StoreError> {
        let (count, id) = (self.count()?, self.bytes()?);
        Ok(Deaths { count, sample: MessageId::stored(&String::from_utf8_lossy(&id)).ok() })
    }

    pub fn flag(&mut self) -> Result<bool, StoreError> {
        Ok(self.integer()? != 0)
    }

    /// Score and id of the last member that a script considered; `None` when there was none.
    pub fn place(&mut self) -> Result<Option<(u64, MessageId)>, StoreError> {
        let score = match self.0.next() {
            Some(Value::Int(score)) => u64::try_from(score).ok(),
            Some(Value::BulkString(text)) => std::str::from_utf8(&text).ok().and_then(|text| text.parse().ok()),
            other => return Err(unexpected("a score", other.as_ref())),
        };
        match score {
            Some(score) => Ok(Some((score, self.id()?))),
            None => self.text().map(|_| None),
        }
    }

    /// A value of `errors` (lua/include/failures.lua).
    pub fn failure(&mut self) -> Result<Failure, StoreError> {
        let value = self.text()?;
        let mut attempts = value.split('\0');
        let text = attempts.next().unwrap_or_default();
        let attempts = attempts.filter_map(PastAttempt::parse).collect();
        let mut parts = text.splitn(3, ' ');
        let mut number = || parts.next().and_then(|part| part.parse::<u64>().ok());
        Ok(match (number(), number(), parts.next()) {
            // The message was tried, and is tried anew since.
            (Some(0), Some(0), Some("")) => Failure { attempts, ..Failure::default() },
            (Some(at), Some(failures), Some(error)) => Failure {
                at: UnixMillis::new(at),
                count: u32::try_from(failures).unwrap_or(u32::MAX),
                error: Some(error.to_owned()),
                attempts,
            },
            // Not written by punctual, unless it is empty.
            _ => Failure { error: Some(text.to_owned()).filter(|text| !text.is_empty()), ..Failure::default() },
        })
    }

    pub fn millis(&mut self) -> Result<UnixMillis, StoreError> {
        UnixMillis::new(self.integer()?).ok_or_else(|| unexpected("milliseconds", None))
    }
}

/// Parses an id. An invalid id was not written by punctual.
pub fn id(bytes: &[u8]) -> Result<MessageId, StoreError> {
    let text = str::from_utf8(bytes).map_err(|_| unexpected("UTF-8", None))?;
    MessageId::stored(text).map_err(|_| {
        let shown: String = text.escape_debug().take(MAX_SHOWN_ID_CHARS).collect();
        StoreError::WrongType { text: format!("an invalid id in the queue, `{shown}`") }
    })
}

/// Parses a score as Redis writes it. Decimals were not written by punctual, and are ignored.
pub fn score(text: &[u8]) -> Result<UnixMillis, StoreError> {
    let whole = str::from_utf8(text).ok().and_then(|text| text.split('.').next()?.parse().ok());
    whole.and_then(UnixMillis::new).ok_or_else(|| unexpected("milliseconds", None))
}

/// Reports only the kind of the reply, because its content can be a payload.
pub fn unexpected(wanted: &str, got: Option<&Value>) -> StoreError {
    let got = match got {
        None => "nothing usable",
        Some(Value::Int(_)) => "an integer",
        Some(Value::BulkString(_) | Value::SimpleString(_)) => "a string",
        Some(_) => "something else",
    };
    StoreError::Unavailable { kind: "reply", text: format!("a script should answer {wanted}, but answered {got}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Reply {
        Reply::from(vec![Value::BulkString(text.into())])
    }

    #[test]
    fn a_failure_has_its_time_count_and_text_and_foreign_text_is_kept() {
        let failure = |at, count, error: Option<&str>| Failure {
            at: UnixMillis::new(at).filter(|_| at > 0),
            count,
            error: error.map(str::to_owned),
            ..Failure::default()
        };
        for (text, expected) in [
            ("1700000000000 3 HTTP 500: no", failure(1_700_000_000_000, 3, Some("HTTP 500: no"))),
            ("0 0 ", failure(0, 0, None)),
            ("", failure(0, 0, None)),
            ("written by another program", failure(0, 0, Some("written by another program"))),
        ] {
            let Failure { at, count, error, attempts } = of(text).failure().unwrap();
            let found = (at, count, error, attempts.len());
            assert_eq!(found, (expected.at, expected.count, expected.error, 0), "{text}");
        }
    }

    #[test]
    fn the_decimals_of_a_score_are_left_out() {
        let millis = |text: &str| score(text.as_bytes()).ok().map(UnixMillis::get);
        assert_eq!(["12", "12.75", "0", "x", "-1"].map(millis), [Some(12), Some(12), Some(0), None, None]);
    }
}
