//! What a status says about the message.

use std::time::Duration;

use http::StatusCode;

use crate::sink::Outcome;

/// `error` and `retry_after` go where the outcome has a place for them.
pub fn outcome(status: StatusCode, error: String, retry_after: Option<Duration>) -> Outcome {
    match status.as_u16() {
        200..=299 => Outcome::Confirmed,
        // Too many requests, or down behind a gateway; 401 and 403 are a credential that somebody will mend.
        401 | 403 | 429 | 502 | 503 | 504 => Outcome::Throttled { error, retry_after },
        // Not there yet, too slow to arrive, too early: this message may pass later.
        404 | 408 | 425 | 500..=599 => Outcome::Failed { error, retry_after },
        // A redirect is never followed: it could point anywhere, into the private network too.
        _ => Outcome::Rejected { error },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_has_its_outcome() {
        for code in 100..1000 {
            let expected = match code {
                200..=299 => None,
                401 | 403 | 429 | 502 | 503 | 504 => Some("throttled"),
                404 | 408 | 425 | 500 | 501 | 505..=599 => Some("failed"),
                _ => Some("rejected"),
            };
            let outcome = outcome(StatusCode::from_u16(code).unwrap(), "x".into(), None);
            assert_eq!(outcome.failure_kind(), expected, "{code}");
        }
    }
}
