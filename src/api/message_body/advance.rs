//! The body of an advance of the development clock.

use std::time::Duration;

use super::fields::{Faults, given, moment, whole};
use crate::{
    api::problem::{FieldError, Problem},
    time::{Due, UnixMillis, parse_instant},
};

raw_object!(Given: by, to, wait);

/// Default and maximum of `wait`.
const WAITS: [Duration; 2] = [Duration::from_secs(5), Duration::from_mins(10)];

/// An advance of the clock.
#[derive(Debug, PartialEq, Eq)]
pub struct Advance {
    pub to: Target,
    /// Maximum duration of the call.
    pub wait: Duration,
}

/// How far the clock goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// In milliseconds.
    By(u64),
    At(UnixMillis),
}

pub fn is_past(pointer: &str) -> FieldError {
    FieldError::new(pointer, "is in the past: the clock goes forward only")
}

pub fn is_too_far(pointer: &str) -> FieldError {
    FieldError::new(pointer, "leads beyond the year 2199")
}

/// # Errors
/// 400 for invalid JSON or unknown fields; 422 for an invalid field.
pub fn parse_advance(body: &[u8]) -> Result<Advance, Problem> {
    let fields: Given = whole(body)?;
    let mut faults = Faults::default();
    let millis = |text: &str| match Due::parse_delay(text)? {
        Due::After(millis) => Ok(millis),
        Due::At(_) => unreachable!("a delay"),
    };
    let by = faults.field("by", given(fields.by), |raw, at| moment(raw, at, millis));
    let at = faults.field("to", given(fields.to), |raw, at| moment(raw, at, parse_instant));
    let wait = faults.field("wait", given(fields.wait), |raw, at| moment(raw, at, millis));
    let wait = wait.map_or(WAITS[0], Duration::from_millis);
    if wait > WAITS[1] {
        faults.add("/wait", "is at most 10m");
    }
    let to = match (by, at) {
        (Some(by), None) => Some(Target::By(by)),
        (None, Some(at)) => Some(Target::At(at)),
        (None, None) if faults.is_empty() => {
            faults.add("", "needs `by` or `to`");
            None
        }
        (Some(_), Some(_)) => {
            faults.add("", "has `by` and `to`: give one of them");
            None
        }
        (None, None) => None,
    };
    faults.end(to.map(|to| Advance { to, wait }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_advance_names_a_duration_or_a_time() {
        let parsed = |text: &str| parse_advance(text.as_bytes());
        let half_an_hour = Advance { to: Target::By(1_800_000), wait: Duration::from_secs(5) };
        assert_eq!(parsed(r#"{"by":"30m"}"#).unwrap(), half_an_hour);
        assert_eq!(parsed(r#"{"by":1800000,"wait":"5s"}"#).unwrap(), half_an_hour);
        let to = parsed(r#"{"to":"2026-12-01T00:00:00Z","wait":100}"#).unwrap();
        let at = UnixMillis::new(1_796_083_200_000).unwrap();
        assert_eq!(to, Advance { to: Target::At(at), wait: Duration::from_millis(100) });
        for (bad, pointer) in [
            ("{}", ""),
            (r#"{"by":null}"#, ""),
            (r#"{"by":"soon"}"#, "/by"),
            (r#"{"by":"-1s"}"#, "/by"),
            (r#"{"by":"1s","to":"2026-12-01T00:00:00Z"}"#, ""),
            (r#"{"to":"tomorrow"}"#, "/to"),
            (r#"{"by":"1s","wait":"11m"}"#, "/wait"),
        ] {
            let (_, errors) = parsed(bad).expect_err(bad).parts();
            assert_eq!(errors[0].pointer, pointer, "{bad}");
        }
        assert!(parsed(r#"{"days":1}"#).is_err());
    }
}
