//! Why there was no reply.

use std::error::Error;

use crate::sink::Outcome;

/// `address` (host and port) stands in the text; the URL does not: its path and query may hold secrets.
pub fn outcome(error: &reqwest::Error, address: &str) -> Outcome {
    let text = format!("{address}: {}", causes(error));
    if error.is_connect() {
        return Outcome::Unavailable { error: text };
    }
    let cause = hyper_error(error);
    if error.is_builder() || cause.is_some_and(hyper::Error::is_user) {
        return Outcome::Unsendable { error: text };
    }
    // There was a reply, but it is not HTTP or passes the limits of its head. If one message alone provokes
    // it, the attempts must come to an end; if all do, the breaker opens after a few.
    if cause.is_some_and(hyper::Error::is_parse) {
        return Outcome::Throttled { error: text, retry_after: None };
    }
    Outcome::Unavailable { error: text }
}

/// The innermost texts, without the outermost, which names the URL.
fn causes(error: &reqwest::Error) -> String {
    let chain = std::iter::successors(error.source(), |cause| (*cause).source());
    let mut texts: Vec<String> = chain.map(ToString::to_string).collect();
    // An outer error often repeats the text of its cause.
    texts.dedup_by(|inner, outer| outer.contains(inner.as_str()));
    if texts.is_empty() { "the request cannot be sent".into() } else { texts.join(": ") }
}

fn hyper_error<'a>(error: &'a reqwest::Error) -> Option<&'a hyper::Error> {
    std::iter::successors(error.source(), |cause: &&'a (dyn Error + 'static)| (*cause).source())
        .find_map(|cause| cause.downcast_ref())
}
