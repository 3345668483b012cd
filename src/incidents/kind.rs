//! Kinds of errors. Texts that differ only in ids, addresses or numbers are of one kind.

/// Bytes of a text that determine its kind; one word can exceed it.
const MAX_BYTES: usize = 200;

/// Maximum digits of a number that is part of the kind, such as an HTTP status or an AMQP code. A longer number is an
/// id, a port or a size.
const CODE_DIGITS: usize = 3;

/// The text without parts that differ by message: quoted parts, and words with digits other than codes.
pub fn of(error: &str) -> String {
    let mut kind = String::new();
    let (mut word, mut quote) = (String::new(), None);
    for c in error.chars().chain([' ']) {
        if kind.len() >= MAX_BYTES {
            break;
        }
        if let Some(end) = quote {
            if c == end {
                quote = None;
            }
        } else if is_of_word(c) && word.len() < MAX_BYTES {
            word.push(c);
        } else {
            kind.push_str(told(&word));
            word.clear();
            kind.push(c);
            quote = matches!(c, '"' | '`').then_some(c);
        }
    }
    kind.truncate(kind.trim_end().len());
    kind
}

fn is_of_word(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '-' | '_' | '.' | '~')
}

fn told(word: &str) -> &str {
    let is_code = word.len() <= CODE_DIGITS && word.bytes().all(|byte| byte.is_ascii_digit());
    if is_code || !word.contains(|c: char| c.is_ascii_digit()) { word } else { "#" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_from_message_to_message_is_left_out() {
        for (error, kind) in [
            ("HTTP 422", "HTTP 422"),
            ("HTTP 404", "HTTP 404"),
            ("no reply within 10s", "no reply within #"),
            ("order 01J9ZK5T2M-7 of `Alice B`: 1234 bytes", "order # of `: # bytes"),
            ("connect 127.0.0.1:9000: connection refused", "connect #:#: connection refused"),
            ("ACCESS_REFUSED - 403 for \"q\"", "ACCESS_REFUSED - 403 for \""),
            ("", ""),
        ] {
            assert_eq!(of(error), kind, "{error}");
        }
        assert!(of(&"word ".repeat(1000)).len() <= MAX_BYTES + 5);
    }
}
