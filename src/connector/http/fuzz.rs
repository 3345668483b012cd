//! Replies with any `Retry-After` and `Date`, one per line.

use std::time::{Duration, SystemTime};

use http::{
    HeaderMap, HeaderValue,
    header::{DATE, RETRY_AFTER},
};

use super::reply::retry_after;
use crate::fuzz::FuzzTarget;

const TARGET: FuzzTarget = FuzzTarget {
    name: "retry_after",
    words: &[
        "Sun, 06 Nov 1994 08:49:37 GMT",
        "Sunday, 06-Nov-94 08:49:37 GMT",
        "Sun Nov  6 08:49:37 1994",
        " GMT",
        "9999",
        "\n",
    ],
    run,
};

fn run(input: &[u8]) -> String {
    let (value, date) =
        input.iter().position(|b| *b == b'\n').map_or((input, None), |at| (&input[..at], Some(&input[at + 1..])));
    let mut headers = HeaderMap::new();
    let Ok(value) = HeaderValue::from_bytes(value) else { return "no header".into() };
    headers.insert(RETRY_AFTER, value.clone());
    if let Some(Ok(date)) = date.map(HeaderValue::from_bytes) {
        headers.insert(DATE, date);
    }
    let now = SystemTime::UNIX_EPOCH + Duration::from_hours(500_000);
    let wait = retry_after(&headers, now);
    let digits = value.to_str().ok().map(str::trim).filter(|text| text.chars().all(|c| c.is_ascii_digit()));
    // An independent check: digits are seconds, a date is one that another crate can read, and no date is later than
    // 9999.
    let date = value.to_str().ok().and_then(|text| httpdate::parse_http_date(text.trim()).ok());
    match digits.filter(|text| !text.is_empty()) {
        Some(text) => assert_eq!(wait, text.parse().ok().map(Duration::from_secs)),
        None => assert_eq!(wait.is_some(), date.is_some()),
    }
    if date.is_some() {
        assert!(wait < Some(Duration::from_hours(8100 * 366 * 24)), "{wait:?}");
    }
    format!("{} {} {}", wait.is_some(), digits.is_some(), wait == Some(Duration::ZERO))
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
