//! Reads a reply: `Retry-After` and, within bounds, the body.
//!
//! The body is read so that its connection can be used again. The beginning of an error's text is stored with the
//! message. It is not logged, because an endpoint can echo the payload in it. Values of the sink's own headers are
//! removed from it.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use http::{
    HeaderMap, Response, StatusCode,
    header::{CONTENT_LENGTH, DATE, LOCATION, RETRY_AFTER, TRANSFER_ENCODING},
};
use http_body_util::BodyExt;
use hyper::body::Body as _;
use tokio::time::{Instant, timeout_at};

use super::body::{Broken, ReplyBody};

/// Maximum bytes of a body that are read. For a longer rest, a new connection is cheaper.
const DRAIN_BYTES: usize = 64 * 1024;
/// Maximum time to read a body. A body that does not follow its head at once is dropped.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(250);

/// Maximum bytes of an error's text that are stored.
pub const MAX_TEXT_BYTES: usize = 500;
/// Bytes that are read for it: a secret at the end of the stored text is read completely, so it can be removed.
const TEXT_READ_BYTES: usize = 8 * 1024;
/// Replaces a secret.
const REDACTED: &str = "[redacted]";

/// The beginning of the body as one line without `secrets`, if the body is text.
pub async fn text(body: &mut ReplyBody, deadline: Instant, secrets: &[String]) -> String {
    let deadline = deadline.min(Instant::now() + DRAIN_TIMEOUT);
    let mut text = Vec::new();
    while text.len() < TEXT_READ_BYTES
        && let Ok(Some(chunk)) = chunk(body, deadline).await
    {
        text.extend_from_slice(&chunk[..chunk.len().min(TEXT_READ_BYTES - text.len())]);
    }
    excerpt(&text, secrets)
}

/// The target of a redirect: `Location` without user, query and fragment, which can hold credentials, and without
/// `secrets`. `None` if the reply is not a redirect or has no `Location`.
pub fn location<B>(response: &Response<B>, secrets: &[String]) -> Option<String> {
    let location = response.headers().get(LOCATION).filter(|_| response.status().is_redirection())?;
    let text = String::from_utf8_lossy(location.as_bytes());
    let target = text.split(['?', '#']).next().unwrap_or_default();
    let (scheme, rest) = target.split_at(target.find("//").map_or(0, |at| at + 2));
    let authority = if scheme.is_empty() { "" } else { rest.split('/').next().unwrap_or_default() };
    let rest = &rest[authority.rfind('@').map_or(0, |at| at + 1)..];
    Some(format!("Location: {}", excerpt(format!("{scheme}{rest}").as_bytes(), secrets)))
}

/// Whether the end of the reply is unambiguous, so that the next reply on its connection belongs to the next request.
/// For a reply that hyper treats as empty or chunked, other headers must not contradict that.
pub fn is_framed<B>(response: &Response<B>) -> bool {
    let is_chunked = response.headers().contains_key(TRANSFER_ENCODING);
    let length = response.headers().get(CONTENT_LENGTH);
    match response.status() {
        StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED => !is_chunked && length.is_none_or(|length| length == "0"),
        _ => !(is_chunked && length.is_some()),
    }
}

fn excerpt(body: &[u8], secrets: &[String]) -> String {
    let text = match std::str::from_utf8(body) {
        Ok(text) => text,
        // Only the last character was cut.
        Err(error) if error.error_len().is_none() => {
            std::str::from_utf8(&body[..error.valid_up_to()]).unwrap_or_default()
        }
        Err(_) => return String::new(),
    };
    let mut text = text.to_owned();
    for secret in secrets {
        text = text.replace(secret, REDACTED);
    }
    let text: String = text.trim().chars().map(|char| if char.is_control() { ' ' } else { char }).collect();
    text[..text.floor_char_boundary(MAX_TEXT_BYTES)].to_owned()
}

/// Reads the rest of a body, within bounds. Returns whether that was all. If not, its connection cannot be used again.
pub async fn drain(mut body: ReplyBody, deadline: Instant) -> bool {
    let deadline = deadline.min(Instant::now() + DRAIN_TIMEOUT);
    let mut read = 0;
    while read <= DRAIN_BYTES {
        match chunk(&mut body, deadline).await {
            Ok(Some(chunk)) => read += chunk.len(),
            Ok(None) => return true,
            Err(Broken) => return false,
        }
    }
    body.is_end_stream()
}

/// `None` at the end. Empty for trailers.
async fn chunk(body: &mut ReplyBody, deadline: Instant) -> Result<Option<Bytes>, Broken> {
    match timeout_at(deadline, body.frame()).await {
        Ok(Some(Ok(frame))) => Ok(Some(frame.into_data().unwrap_or_default())),
        Ok(None) => Ok(None),
        Ok(Some(Err(_))) | Err(_) => Err(Broken),
    }
}

/// The delay of `Retry-After` (RFC 9110, section 10.2.3), in seconds or as an HTTP date. Zero for a date in the past.
/// `None` if the header is missing or invalid.
///
/// A date is compared with the `Date` of the reply, which is by the same clock, or with `now` if there is none.
pub fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
        return text.parse().ok().map(Duration::from_secs);
    }
    let until = httpdate::parse_http_date(text).ok()?;
    let date = headers.get(DATE).and_then(|date| date.to_str().ok());
    let from = date.and_then(|date| httpdate::parse_http_date(date).ok()).unwrap_or(now);
    Some(until.duration_since(from).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;

    use super::*;

    fn parse(value: &str, date: Option<&str>) -> Option<Duration> {
        let mut headers = HeaderMap::new();
        headers.insert(RETRY_AFTER, value.parse().unwrap());
        if let Some(date) = date {
            headers.insert(DATE, date.parse().unwrap());
        }
        // Sun, 06 Nov 1994 08:49:37 GMT, the example of RFC 9110.
        retry_after(&headers, SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777))
    }

    #[test]
    fn an_excerpt_is_one_line_of_text_without_secrets() {
        let secrets = ["s3cret-value".to_owned()];
        let of = |body: &[u8]| excerpt(body, &secrets);
        assert_eq!(of(b" no such\r\n\tcustomer\0: 7\n"), "no such   customer : 7");
        assert_eq!(of(b"{\"authorization\":\"s3cret-value\"}"), "{\"authorization\":\"[redacted]\"}");
        assert_eq!(of(&[0x1f, 0x8b, 8, 0, 0xff]), "", "compressed");
        assert_eq!(of(b"cut \xe2\x82"), "cut");
        assert_eq!(of("€".repeat(400).as_bytes()), "€".repeat(166), "within 500 bytes");
        let at_the_end = format!("{}s3cret-value", "x".repeat(495));
        assert_eq!(of(at_the_end.as_bytes()), format!("{}[reda", "x".repeat(495)));
    }

    #[test]
    fn seconds_are_the_delay() {
        assert_eq!(parse("0", None), Some(Duration::ZERO));
        assert_eq!(parse(" 120 ", None), Some(Duration::from_mins(2)));
        assert_eq!(parse("1000000000", None), Some(Duration::from_secs(1_000_000_000)));
    }

    #[test]
    fn a_date_is_compared_with_the_date_of_the_reply_or_else_with_now() {
        let date = "Sun, 06 Nov 1994 08:50:37 GMT";
        assert_eq!(parse(date, None), Some(Duration::from_mins(1)));
        assert_eq!(parse(date, Some("Sun, 06 Nov 1994 08:50:07 GMT")), Some(Duration::from_secs(30)));
        assert_eq!(parse(date, Some("yesterday")), Some(Duration::from_mins(1)));
        assert_eq!(parse("Sunday, 06-Nov-94 08:50:37 GMT", None), Some(Duration::from_mins(1)));
        assert_eq!(parse("Sun, 06 Nov 1994 08:00:00 GMT", None), Some(Duration::ZERO));
    }

    #[test]
    fn an_invalid_value_is_ignored() {
        for garbage in ["", "-1", "+1", "1.5", "1e9", "soon", "99999999999999999999999", "Sun, 06 Nov", "\u{e9}"] {
            assert_eq!(parse(garbage, None), None, "{garbage}");
        }
    }

    /// A reply over HTTP/1.1, as the endpoint writes it. After `then`, the rest follows.
    async fn reply(head: &str, body: &[u8], then: Option<(Duration, &'static [u8])>) -> Response<ReplyBody> {
        let (client, mut server) = tokio::io::duplex(1 << 20);
        let io = hyper_util::rt::TokioIo::new(client);
        let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await.unwrap();
        tokio::spawn(connection);
        let text = [format!("HTTP/1.1 {head}\r\n\r\n").as_bytes(), body].concat();
        tokio::spawn(async move {
            server.write_all(&text).await.unwrap();
            if let Some((pause, rest)) = then {
                tokio::time::sleep(pause).await;
                // The reader may have given up.
                let _ = server.write_all(rest).await;
            }
            std::future::pending::<()>().await;
        });
        let request = http::Request::new(http_body_util::Empty::<Bytes>::new());
        sender.send_request(request).await.unwrap().map(ReplyBody::Http1)
    }

    fn later() -> Instant {
        Instant::now() + Duration::from_mins(1)
    }

    #[tokio::test(start_paused = true)]
    async fn the_beginning_of_a_text_is_read_within_its_bounds() {
        let secret = ["s3cret".to_owned()];
        let text_of = async |head: &str, body: &[u8], then| {
            text(reply(head, body, then).await.body_mut(), later(), &secret).await
        };
        assert_eq!(text_of("500 X\r\nContent-Length: 9", b"no s3cret", None).await, "no [redacted]");
        // The rest of a body that breaks off or stalls is not waited for.
        let began = Instant::now();
        assert_eq!(text_of("500 X\r\nContent-Length: 9", b"no", None).await, "no");
        assert_eq!(began.elapsed(), DRAIN_TIMEOUT);
        let rest = Some((DRAIN_TIMEOUT / 2, &b"more"[..]));
        assert_eq!(text_of("500 X\r\nContent-Length: 7", b"no ", rest).await, "no more");
        let long = vec![b'x'; 100_000];
        assert_eq!(text_of("500 X\r\nContent-Length: 100000", &long, None).await, "x".repeat(MAX_TEXT_BYTES));
        // A secret behind 8 KiB is not read.
        let spaces = [&vec![b' '; TEXT_READ_BYTES][..], b"behind"].concat();
        assert_eq!(text_of(&format!("500 X\r\nContent-Length: {}", spaces.len()), &spaces, None).await, "");
        let near = [&vec![b' '; TEXT_READ_BYTES - 2][..], b"behind"].concat();
        assert_eq!(text_of(&format!("500 X\r\nContent-Length: {}", near.len()), &near, None).await, "be");
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_used_again_after_a_body_that_was_read_to_its_end() {
        let drained = async |size: usize, sent: usize, deadline| {
            let head = format!("200 OK\r\nContent-Length: {size}");
            drain(reply(&head, &vec![b'x'; sent], None).await.into_body(), deadline).await
        };
        assert!(drained(0, 0, later()).await && drained(1000, 1000, later()).await);
        assert!(drained(DRAIN_BYTES, DRAIN_BYTES, later()).await);
        assert!(!drained(10 * DRAIN_BYTES, 10 * DRAIN_BYTES, later()).await);
        let began = Instant::now();
        assert!(!drained(1000, 999, later()).await);
        assert_eq!(began.elapsed(), DRAIN_TIMEOUT);
        let soon = Instant::now() + Duration::from_millis(20);
        assert!(!drained(1000, 999, soon).await);
        assert_eq!(Instant::now(), soon);
    }

    #[test]
    fn the_target_of_a_redirect_is_shown_without_what_can_be_secret() {
        let of = |status: u16, target: &str| {
            let response = Response::builder().status(status).header(LOCATION, target).body(()).unwrap();
            location(&response, &["s3cret".to_owned()])
        };
        let shown = |target: &str| of(302, target).unwrap();
        assert_eq!(shown("https://user:pass@host/a?token=1#b"), "Location: https://host/a");
        assert_eq!(shown("https://host/a@b"), "Location: https://host/a@b");
        assert_eq!(shown("//user@host"), "Location: //host");
        assert_eq!(shown("/a/s3cret/@b"), "Location: /a/[redacted]/@b");
        assert_eq!((of(200, "/a"), of(404, "/a")), (None, None));
        assert_eq!(location(&Response::builder().status(302).body(()).unwrap(), &[]), None);
    }

    #[test]
    fn only_a_reply_with_one_end_leaves_its_connection() {
        let framed = |status: u16, headers: &[(&str, &str)]| {
            let builder = Response::builder().status(status);
            is_framed(
                &headers.iter().fold(builder, |builder, (name, value)| builder.header(*name, *value)).body(()).unwrap(),
            )
        };
        let (length, none, chunked) =
            (("content-length", "5"), ("content-length", "0"), ("transfer-encoding", "chunked"));
        assert!(
            framed(200, &[length]) && framed(200, &[chunked]) && framed(200, &[]) && !framed(200, &[length, chunked])
        );
        for status in [204, 304] {
            assert!(framed(status, &[]) && framed(status, &[none]), "{status}");
            assert!(
                !framed(status, &[length]) && !framed(status, &[chunked]) && !framed(status, &[none, chunked]),
                "{status}"
            );
        }
    }
}
