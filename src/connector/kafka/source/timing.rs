//! The due time of a record, from its headers.
//!
//! | header | value |
//! |---|---|
//! | `punctual-deliver-at` | RFC 3339, or epoch milliseconds |
//! | `punctual-delay` | milliseconds, or a duration such as `5m`, added to the record's timestamp |
//! | `retry_topic-backoff-timestamp` (Spring Kafka) | epoch milliseconds as the bytes of a Java `BigInteger`, or as text |

use super::record::ConsumedRecord;
use crate::time::{Due, LAST_MILLIS, UnixMillis};

const DELIVER_AT: &str = "punctual-deliver-at";
const DELAY: &str = "punctual-delay";
const SPRING: &str = "retry_topic-backoff-timestamp";
/// The headers that make a record due at another time than now. They are dropped from the message.
pub const TIMING: [&str; 3] = [DELIVER_AT, DELAY, SPRING];

/// Maximum bytes of a `BigInteger` of milliseconds. A longer value is text: shorter text, up to 8 digits, would only be
/// a time on the first two days of 1970.
const MAX_NUMBER_BYTES: usize = 8;

/// # Errors
/// The header, and what is wrong with it.
pub fn due(record: &ConsumedRecord) -> Result<Due, String> {
    match (record.only(DELIVER_AT)?, record.only(DELAY)?) {
        (Some(_), Some(_)) => Err(format!("both {DELIVER_AT} and {DELAY}")),
        (Some(at), None) => Due::parse_deliver_at(at).map_err(|error| format!("{DELIVER_AT}: {error}")),
        (None, Some(delay)) => {
            let due = Due::parse_delay(delay).map_err(|error| format!("{DELAY}: {error}"))?;
            match (due, record.timestamp) {
                (Due::After(delay), Some(from)) => {
                    let at = from.checked_add(delay).and_then(UnixMillis::new);
                    at.map(Due::At).ok_or_else(|| format!("{DELAY}: `{delay}` leads beyond 2^53 ms"))
                }
                (due, _) => Ok(due),
            }
        }
        // Each retry adds a header. The last one counts, as in Spring.
        (None, None) => match record.header(SPRING).next_back() {
            Some(value) => spring(value),
            None if record.has(SPRING) => Err(format!("{SPRING}: is null")),
            None => Ok(Due::NOW),
        },
    }
}

fn spring(value: &[u8]) -> Result<Due, String> {
    if value.len() > MAX_NUMBER_BYTES {
        let text = str::from_utf8(value).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
        let text = text.ok_or_else(|| format!("{SPRING}: {} bytes that are no number", value.len()))?;
        return Due::parse_deliver_at(text).map_err(|error| format!("{SPRING}: {error}"));
    }
    match value.first() {
        None => Err(format!("{SPRING}: is empty")),
        Some(first) if *first >= 0x80 => Err(format!("{SPRING}: is negative")),
        Some(_) => {
            let millis = value.iter().fold(0, |number: u64, byte| number << 8 | u64::from(*byte));
            let at = UnixMillis::new(millis).filter(|at| at.get() <= LAST_MILLIS);
            at.map(Due::At).ok_or_else(|| format!("{SPRING}: {millis} is beyond the year 9999: microseconds?"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::record::test_record as record, *};

    fn at(millis: u64) -> Due {
        Due::At(UnixMillis::new(millis).unwrap())
    }

    #[test]
    fn a_delay_is_added_to_the_timestamp_of_the_record_if_it_has_one() {
        let mut record = record(&[(DELAY, b"5m")]);
        assert_eq!(due(&record), Ok(at(1_700_000_300_000)));
        record.timestamp = None;
        assert_eq!(due(&record), Ok(Due::After(300_000)));
    }

    #[test]
    fn a_due_time_is_text_or_the_header_of_spring_and_none_means_now() {
        assert_eq!(due(&record(&[])), Ok(Due::NOW));
        assert_eq!(due(&record(&[(DELIVER_AT, b"1700000000123")])), Ok(at(1_700_000_000_123)));
        assert_eq!(due(&record(&[(DELIVER_AT, b"2023-11-14T22:13:20.123Z")])), Ok(at(1_700_000_000_123)));
        // BigInteger.valueOf(1700000000123L).toByteArray()
        let java = [0x01, 0x8B, 0xCF, 0xE5, 0x68, 0x7B];
        assert_eq!(due(&record(&[(SPRING, &java)])), Ok(at(1_700_000_000_123)));
        let padded = [0, 0, 0x01, 0x8B, 0xCF, 0xE5, 0x68, 0x7B];
        assert_eq!(due(&record(&[(SPRING, &padded)])), Ok(at(1_700_000_000_123)));
        assert_eq!(due(&record(&[(SPRING, b"1"), (SPRING, b"1700000000123")])), Ok(at(1_700_000_000_123)));
        assert_eq!(due(&record(&[(SPRING, &java), (DELIVER_AT, b"0")])), Ok(at(0)), "the headers of punctual win");
    }

    #[test]
    fn a_header_of_spring_without_a_value_is_named() {
        let mut null = record(&[]);
        null.headers.push((SPRING.to_owned(), None));
        assert_eq!(due(&null), Err("retry_topic-backoff-timestamp: is null".into()));
    }

    #[test]
    fn a_broken_header_is_named() {
        for (headers, text) in [
            (&[(DELAY, &b"soon"[..])][..], "punctual-delay: `soon` is neither"),
            (&[(DELAY, b"1"), (DELAY, b"1")], "punctual-delay: is there more than once"),
            (&[(DELAY, b"1"), (DELIVER_AT, b"1")], "both"),
            (&[(DELAY, b"9007199254740991")], "punctual-delay: "),
            (&[(DELIVER_AT, b"\xff")], "punctual-deliver-at: is no text"),
            (&[(SPRING, b"")], "retry_topic-backoff-timestamp: is empty"),
            (&[(SPRING, b"\xff")], "retry_topic-backoff-timestamp: is negative"),
            (&[(SPRING, b"tomorrow, I hope")], "retry_topic-backoff-timestamp: 16 bytes"),
            (&[(SPRING, b"\x7f\0\0\0\0\0\0\0")], "retry_topic-backoff-timestamp: "),
        ] {
            let error = due(&record(headers)).expect_err(text);
            assert!(error.starts_with(text), "{error}");
        }
    }
}
