//! Ids for messages that come without a usable id.

use ring::digest::{Context, SHA256};

use super::MessageId;

/// Bytes of the digest in an id: 128 bits exclude chance collisions.
const DIGEST_BYTES: usize = 16;

/// The id of `parts`: `~` and hexadecimal digits. Equal parts give equal ids.
pub fn digest(parts: &[&[u8]]) -> MessageId {
    use std::fmt::Write;
    let mut hasher = Context::new(&SHA256);
    for part in parts {
        // The length of each part is hashed, because ["ab", "c"] and ["a", "bc"] must differ.
        hasher.update(&(part.len() as u64).to_be_bytes());
        hasher.update(part);
    }
    let mut text = String::from("~");
    for byte in &hasher.finish().as_ref()[..DIGEST_BYTES] {
        write!(text, "{byte:02x}").expect("a string takes all");
    }
    MessageId::parse(&text).expect("tilde and digits")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_depends_on_every_part_and_on_their_borders() {
        assert_eq!(digest(&[b"a", b"b"]), digest(&[b"a", b"b"]));
        assert_ne!(digest(&[b"a", b"b"]), digest(&[b"ab", b""]));
        assert_ne!(digest(&[b"a"]), digest(&[b"a", b""]));
        assert_eq!(digest(&[]).as_str().len(), 1 + 2 * DIGEST_BYTES);
    }
}
