//! The outcome of a request: by the status of its reply, or by the error if there is no reply.

use std::{error::Error, time::Duration};

use http::StatusCode;

use super::errors::LostReply;
use crate::sink::Outcome;

/// The outcome of a reply. `error` and `retry_after` are dropped if the outcome has no such field.
pub fn of_status(status: StatusCode, error: String, retry_after: Option<Duration>) -> Outcome {
    match status.as_u16() {
        200..=299 => Outcome::Confirmed,
        // Too many requests, or the server behind a gateway is down. 401 and 403: operators will correct the
        // credential.
        401 | 403 | 429 | 502 | 503 | 504 => Outcome::Throttled { error, retry_after },
        // Not found, moved, request timeout, too early, server errors: the message can be accepted later. Redirects are
        // not followed, because a redirect can lead anywhere, also into the private network.
        301..=303 | 307 | 308 | 404 | 408 | 425 | 500..=599 => Outcome::Failed { error, retry_after },
        _ => Outcome::Rejected { error },
    }
}

/// The outcome of a request that lost its reply.
pub fn of_lost(lost: &LostReply, address: &str) -> Outcome {
    let error = format!("{address}: {}", lost.text);
    // If a single message causes invalid replies, its attempts must end. If all messages do, the breaker opens after a
    // few.
    if lost.is_invalid { Outcome::Throttled { error, retry_after: None } } else { Outcome::Unavailable { error } }
}

/// The texts of an error and its causes.
pub fn causes(error: &(dyn Error + 'static)) -> String {
    let chain = std::iter::successors(Some(error), |cause| (*cause).source());
    let mut texts: Vec<String> = chain.map(ToString::to_string).collect();
    // An error often contains the text of its cause.
    texts.dedup_by(|inner, outer| outer.contains(inner.as_str()));
    texts.join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_an_error_has_its_causes_once() {
        #[derive(Debug, thiserror::Error)]
        #[error("{text}")]
        struct Layer {
            text: &'static str,
            source: Option<Box<Layer>>,
        }
        let layer = |text, source: Option<Layer>| Layer { text, source: source.map(Box::new) };
        let error = layer("a: b", Some(layer("b", Some(layer("c", None)))));
        assert_eq!(causes(&error), "a: b: c");
    }

    #[test]
    fn each_status_has_its_outcome() {
        for code in 100..1000 {
            let expected = match code {
                200..=299 => None,
                401 | 403 | 429 | 502 | 503 | 504 => Some("throttled"),
                301 | 302 | 303 | 307 | 308 | 404 | 408 | 425 | 500 | 501 | 505..=599 => Some("failed"),
                _ => Some("rejected"),
            };
            let outcome = of_status(StatusCode::from_u16(code).unwrap(), "x".into(), None);
            assert_eq!(outcome.failure_kind(), expected, "{code}");
        }
    }
}
