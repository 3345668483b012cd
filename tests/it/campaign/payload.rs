//! Payloads that say to which id and version they belong, so that each delivery can be compared byte for byte.

use std::fmt::Write;

use super::random::Random;

/// Length in bytes of a payload without its head, at most: a small one, a larger one, one that is compressed or streamed.
const LENGTHS: [u64; 3] = [300, 20_000, 200_000];

/// The payload of a version of a message: the same whenever it is asked for.
pub fn of(id: &str, version: u32) -> String {
    let seed = id.bytes().fold(u64::from(version), |sum, byte| sum.wrapping_mul(1_099_511_628_211) ^ u64::from(byte));
    let mut random = Random::new(seed);
    let most = match random.between(1, 1000) {
        1 => LENGTHS[2],
        2..=10 => LENGTHS[1],
        _ => LENGTHS[0],
    };
    let mut text = format!("{id}|{version}|");
    let end = text.len() + usize::try_from(random.between(0, most)).expect("a length");
    while text.len() < end {
        let _ = write!(text, "{:016x}", random.next());
    }
    text
}

/// The version in a payload of the message `id`. `None`: it is not byte for byte the payload of any version.
pub fn version(id: &str, payload: &[u8]) -> Option<u32> {
    let text = str::from_utf8(payload).ok()?;
    let version = text.strip_prefix(id)?.strip_prefix('|')?.split('|').next()?.parse().ok()?;
    (of(id, version) == text).then_some(version)
}
