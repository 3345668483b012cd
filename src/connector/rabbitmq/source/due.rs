//! The due time of a message of RabbitMQ, from its headers or from the number of its dead-letterings.

use lapin::types::{AMQPValue, DecimalValue, FieldTable};
use rand::Rng;

use crate::{
    retry::Backoff,
    time::{Due, MAX_DELAY_MILLIS, UnixMillis, instant, parse_instant},
};

/// Milliseconds, or a duration such as `5m`. The second is RabbitMQ's form of the AMQP 1.0 annotation.
pub const DELAYS: [&str; 2] = ["x-delay", "x-opt-delivery-delay"];
/// RFC 3339, epoch milliseconds, or an AMQP timestamp. The second is RabbitMQ's form of the AMQP 1.0 annotation.
pub const TIMES: [&str; 2] = ["x-deliver-at", "x-opt-delivery-time"];
/// The broker's list of the queues that dead-lettered the message.
pub const DEATHS: &str = "x-death";
/// How often a message was dead-lettered, on a message that this source took before. RabbitMQ 4 resets `x-death` when a
/// message is published again.
pub const ROUND: &str = "punctual-round";

/// # Errors
/// The header, and what is wrong with it.
pub fn by_headers(headers: &FieldTable) -> Result<Due, String> {
    let given = |names: [&'static str; 2]| {
        names.into_iter().filter_map(|name| headers.inner().get(name).map(|value| (name, value)))
    };
    let delays = given(DELAYS).map(|(name, value)| (name, delay(value)));
    let mut all = delays.chain(given(TIMES).map(|(name, value)| (name, deliver_at(value).map(Due::At))));
    match (all.next(), all.next()) {
        (None, _) => Ok(Due::NOW),
        (Some((name, due)), None) => due.map_err(|error| format!("{name}: {error}")),
        (Some((first, _)), Some((second, _))) => Err(format!("{first} and {second} exclude each other")),
    }
}

/// The number of retry rounds: how often the message was dead-lettered. It is the largest count of `x-death`, because each
/// queue of a retry topology counts every round.
///
/// # Errors
/// When `x-death` does not have the form that a broker writes.
pub fn rounds(headers: &FieldTable) -> Result<u32, String> {
    let Some(deaths) = headers.inner().get(DEATHS) else { return Ok(0) };
    let count = |death: &AMQPValue| match death {
        AMQPValue::FieldTable(death) => death.inner().get("count").and_then(integer),
        _ => None,
    };
    let AMQPValue::FieldArray(deaths) = deaths else { return Err(format!("{DEATHS}: is no array")) };
    let counts: Option<Vec<i128>> = deaths.as_slice().iter().map(count).collect();
    let counts = counts.ok_or_else(|| format!("{DEATHS}: an entry has no count"))?;
    let at_most = |count: i128| u32::try_from(count.max(0)).unwrap_or(u32::MAX);
    match at_most(counts.into_iter().max().unwrap_or(0)) {
        0 => Ok(0),
        most => {
            let before = headers.inner().get(ROUND).and_then(integer).map_or(0, at_most);
            Ok(most.max(before.saturating_add(1)))
        }
    }
}

/// The due time after `rounds` retry rounds, by `backoff`. After no round, as `by_headers`.
///
/// # Errors
/// As `by_headers`.
pub fn by_rounds(headers: &FieldTable, rounds: u32, backoff: &Backoff, rng: &mut impl Rng) -> Result<Due, String> {
    match rounds {
        0 => by_headers(headers),
        rounds => millis(backoff.delay(rounds, rng).as_nanos().div_ceil(1_000_000)),
    }
}

fn delay(value: &AMQPValue) -> Result<Due, String> {
    if let Some(number) = number(value, "milliseconds, or a duration such as `5m`")? {
        // A negative delay means now, as in RabbitMQ's delayed message plugin.
        return millis(u128::try_from(number).unwrap_or(0));
    }
    Due::parse_delay(text(value)?)
}

fn deliver_at(value: &AMQPValue) -> Result<UnixMillis, String> {
    let number = match value {
        // RabbitMQ cuts the milliseconds of an AMQP 1.0 timestamp. The end of the second is never early.
        AMQPValue::Timestamp(seconds) => Some((i128::from(*seconds) + 1) * 1000),
        other => number(other, "milliseconds since 1970, or RFC 3339")?,
    };
    match number {
        Some(number) => {
            let at = u64::try_from(number).map_err(|_| format!("{number} ms is before 1970, or too large"))?;
            instant(at).map_err(|error| format!("{number} {error}"))
        }
        None => parse_instant(text(value)?),
    }
}

fn millis(delay: u128) -> Result<Due, String> {
    let allowed = u64::try_from(delay).ok().filter(|delay| *delay <= MAX_DELAY_MILLIS);
    allowed.map(Due::After).ok_or_else(|| format!("{delay} ms is too long: at most {MAX_DELAY_MILLIS} ms"))
}

/// A number of any type, or text of digits. Fractions are rounded up. `None`: other text. `hint`: the allowed forms.
fn number(value: &AMQPValue, hint: &str) -> Result<Option<i128>, String> {
    let float = match value {
        AMQPValue::Float(value) => f64::from(*value),
        AMQPValue::Double(value) => *value,
        AMQPValue::LongString(_) | AMQPValue::ShortString(_) | AMQPValue::ByteArray(_) => {
            return Ok(text(value)?.parse().ok());
        }
        AMQPValue::DecimalValue(value) => return decimal(*value).map(Some),
        other => return integer(other).map(Some).ok_or_else(|| format!("is neither a number nor text: use {hint}")),
    };
    if !float.is_finite() {
        return Err(format!("{float} is no number of milliseconds"));
    }
    #[expect(clippy::cast_possible_truncation, reason = "saturates, and the caller refuses such values")]
    Ok(Some(float.ceil() as i128))
}

/// `value` / 10^`scale`.
fn decimal(DecimalValue { scale, value }: DecimalValue) -> Result<i128, String> {
    // AMQP has unsigned decimals. The clients for Java and Python write signed ones.
    if i32::try_from(value).is_err() {
        return Err(format!("{value} is too large for a decimal, or negative: use an integer"));
    }
    // A larger divisor than 10^9 gives 1, like 10^10.
    Ok(i128::from(u64::from(value).div_ceil(10_u64.pow(u32::from(scale.min(10))))))
}

pub fn integer(value: &AMQPValue) -> Option<i128> {
    Some(match value {
        AMQPValue::ShortShortInt(value) => (*value).into(),
        AMQPValue::ShortShortUInt(value) => (*value).into(),
        AMQPValue::ShortInt(value) => (*value).into(),
        AMQPValue::ShortUInt(value) => (*value).into(),
        AMQPValue::LongInt(value) => (*value).into(),
        AMQPValue::LongUInt(value) => (*value).into(),
        AMQPValue::LongLongInt(value) => (*value).into(),
        _ => return None,
    })
}

/// Text without the blanks around it.
///
/// # Errors
/// When the value has another type, or is not UTF-8.
pub fn text(value: &AMQPValue) -> Result<&str, String> {
    let bytes = match value {
        AMQPValue::LongString(text) => text.as_bytes(),
        AMQPValue::ShortString(text) => text.as_str().as_bytes(),
        AMQPValue::ByteArray(bytes) => bytes.as_slice(),
        _ => return Err("is neither a number nor text".into()),
    };
    str::from_utf8(bytes).map(str::trim).map_err(|_| "is no text".into())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rand::{SeedableRng, rngs::StdRng};

    use super::*;

    fn table(entries: Vec<(&str, AMQPValue)>) -> FieldTable {
        let mut table = FieldTable::default();
        for (name, value) in entries {
            table.insert(name.into(), value);
        }
        table
    }

    fn string(text: &str) -> AMQPValue {
        AMQPValue::LongString(text.into())
    }

    fn decimal(scale: u8, value: u32) -> AMQPValue {
        AMQPValue::DecimalValue(DecimalValue { scale, value })
    }

    #[test]
    fn a_delay_is_an_integer_digits_or_a_duration_and_a_negative_one_means_now() {
        let due = |value| by_headers(&table(vec![("x-delay", value)]));
        for (value, millis) in [
            (AMQPValue::ShortShortInt(5), 5),
            (AMQPValue::ShortShortUInt(200), 200),
            (AMQPValue::ShortInt(300), 300),
            (AMQPValue::ShortUInt(60_000), 60_000),
            (AMQPValue::LongUInt(4_000_000_000), 4_000_000_000),
            (AMQPValue::LongInt(5000), 5000),
            (AMQPValue::LongLongInt(1 << 40), 1 << 40),
            (AMQPValue::Double(1.2), 2),
            (string(" 1500 "), 1500),
            (string("5m"), 300_000),
            (AMQPValue::ShortString("6".into()), 6),
            (AMQPValue::ByteArray(b"7".to_vec().into()), 7),
            (decimal(0, 1500), 1500),
            (decimal(3, 1_500_000), 1500),
            (decimal(1, 15_001), 1501),
            (decimal(255, 7), 1),
            (decimal(255, 0), 0),
            (AMQPValue::LongInt(-1), 0),
            (string("-20"), 0),
        ] {
            assert_eq!(due(value.clone()), Ok(Due::After(millis)), "{value:?}");
        }
        for bad in [
            string("soon"),
            string(""),
            string("99999999999999999999999999999999999999999999"),
            AMQPValue::LongString(vec![0xff].into()),
            AMQPValue::LongLongInt(i64::MAX),
            AMQPValue::Double(f64::NAN),
            AMQPValue::Double(1e300),
            decimal(0, 1 << 31),
            decimal(2, u32::MAX),
        ] {
            assert!(due(bad.clone()).unwrap_err().starts_with("x-delay: "), "{bad:?}");
        }
        for bad in [AMQPValue::Boolean(true), AMQPValue::Timestamp(1), AMQPValue::Void] {
            let hint = "x-delay: is neither a number nor text: use milliseconds, or a duration such as `5m`";
            assert_eq!(due(bad), Err(hint.into()));
        }
        assert_eq!(by_headers(&FieldTable::default()), Ok(Due::NOW));
    }

    #[test]
    fn headers_of_amqp_1_0_are_read_alike_and_two_timing_headers_are_refused() {
        let due = |entries| by_headers(&table(entries));
        assert_eq!(due(vec![("x-opt-delivery-delay", AMQPValue::LongLongInt(1500))]), Ok(Due::After(1500)));
        let at = |millis| Ok(Due::At(UnixMillis::new(millis).unwrap()));
        assert_eq!(
            due(vec![("x-opt-delivery-time", AMQPValue::LongLongInt(1_700_000_000_123))]),
            at(1_700_000_000_123)
        );
        assert_eq!(due(vec![("x-opt-delivery-time", AMQPValue::Timestamp(1_700_000_000))]), at(1_700_000_001_000));
        let one = AMQPValue::LongInt(1);
        let names = [DELAYS, TIMES].concat();
        for first in &names {
            for second in names.iter().filter(|second| *second != first) {
                let error = due(vec![(first, one.clone()), (second, one.clone())]).unwrap_err();
                assert!([first, second].iter().all(|name| error.contains(*name)), "{error}");
            }
        }
    }

    #[test]
    fn a_due_time_is_rfc_3339_epoch_milliseconds_or_the_end_of_a_timestamps_second() {
        let due = |value| by_headers(&table(vec![("x-deliver-at", value)]));
        let at = Ok(Due::At(UnixMillis::new(1_700_000_000_000).unwrap()));
        assert_eq!(due(string("2023-11-14T22:13:20Z")), at);
        assert_eq!(due(string("1700000000000")), at);
        assert_eq!(due(AMQPValue::LongLongInt(1_700_000_000_000)), at);
        assert_eq!(due(AMQPValue::Timestamp(1_699_999_999)), at);
        for bad in
            [string("tomorrow"), AMQPValue::LongInt(-1), AMQPValue::Timestamp(u64::MAX), AMQPValue::Void, decimal(0, 1)]
        {
            assert!(due(bad.clone()).unwrap_err().starts_with("x-deliver-at: "), "{bad:?}");
        }
    }

    fn by_deaths(entries: Vec<(&str, AMQPValue)>) -> Result<Due, String> {
        let backoff = Backoff::new(Duration::from_secs(1), 2.0, Duration::from_mins(1), 0.0).unwrap();
        let headers = table(entries);
        by_rounds(&headers, rounds(&headers)?, &backoff, &mut StdRng::seed_from_u64(1))
    }

    fn deaths(counts: &[i64]) -> AMQPValue {
        let death = |count: &i64| AMQPValue::FieldTable(table(vec![("count", AMQPValue::LongLongInt(*count))]));
        AMQPValue::FieldArray(counts.iter().map(death).collect::<Vec<_>>().into())
    }

    #[test]
    fn the_delay_of_a_dead_letter_grows_with_its_largest_count() {
        let due = |deaths| by_deaths(vec![(DEATHS, deaths)]);
        assert_eq!(due(deaths(&[1])), Ok(Due::After(1000)));
        assert_eq!(due(deaths(&[3, 2])), Ok(Due::After(4000)));
        assert_eq!(due(deaths(&[i64::MAX])), Ok(Due::After(60_000)));
        assert_eq!(due(deaths(&[])), Ok(Due::NOW));
        assert!(due(string("3")).is_err());
        assert!(due(AMQPValue::FieldArray(vec![string("3")].into())).is_err());
    }

    #[test]
    fn the_delay_of_a_dead_letter_grows_with_its_rounds_when_the_broker_resets_the_count() {
        let due = |counts, round| by_deaths(vec![(DEATHS, deaths(counts)), (ROUND, round)]);
        assert_eq!(due(&[1], AMQPValue::LongLongInt(1)), Ok(Due::After(2000)));
        assert_eq!(due(&[1], AMQPValue::LongLongInt(3)), Ok(Due::After(8000)));
        // RabbitMQ before 4 does not reset the count.
        assert_eq!(due(&[4], AMQPValue::LongLongInt(3)), Ok(Due::After(8000)));
        assert_eq!(due(&[1], AMQPValue::LongLongInt(i64::MAX)), Ok(Due::After(60_000)));
        for odd in [AMQPValue::LongLongInt(-5), string("7")] {
            assert_eq!(due(&[1], odd), Ok(Due::After(1000)));
        }
        assert_eq!(due(&[], AMQPValue::LongLongInt(3)), Ok(Due::NOW));
    }

    #[test]
    fn a_message_that_was_never_dead_lettered_is_due_by_its_other_headers() {
        let delay = |millis| ("x-delay", AMQPValue::LongInt(millis));
        assert_eq!(by_deaths(vec![]), Ok(Due::NOW));
        assert_eq!(by_deaths(vec![delay(7)]), Ok(Due::After(7)));
        assert_eq!(by_deaths(vec![delay(7), (DEATHS, deaths(&[]))]), Ok(Due::After(7)));
        assert_eq!(by_deaths(vec![delay(7), (DEATHS, deaths(&[1]))]), Ok(Due::After(1000)));
        assert!(by_deaths(vec![("x-delay", string("soon"))]).is_err());
    }
}
