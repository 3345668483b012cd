//! The messages of all programs: ids of 16 bytes, payloads of an exact size that contain their due time.

use std::fmt::Write;

/// An id of 16 bytes.
pub fn id(number: usize) -> String {
    format!("m{number:015}")
}

/// JSON of `size` bytes, at least 16. From 40 bytes on, it begins with the due time, ms since 1970. Order lines follow,
/// which compress like ordinary JSON.
pub fn payload(number: usize, due: u64, size: usize) -> String {
    if size < 40 {
        let digits = size - r#"{"n":}"#.len();
        return format!(r#"{{"n":{:0digits$}}}"#, number % 10_usize.pow(9) + 10_usize.pow(9));
    }
    let mut text = format!(r#"{{"due":{due:013},"items":""#);
    let mut seed = number as u64;
    while text.len() < size {
        // Knuth's constants; only the high bits are used.
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let random = seed >> 33;
        let _ = write!(text, "sku-{:08} qty {} price {:05}, ", random % 100_000_000, random % 9 + 1, random % 99_999);
    }
    text.truncate(size - 2);
    text + r#""}"#
}

/// The due time that a payload begins with, ms since 1970.
pub fn due(payload: &[u8]) -> Option<u64> {
    let digits = payload.strip_prefix(br#"{"due":"#)?;
    std::str::from_utf8(digits.get(..13)?).ok()?.parse().ok()
}
