//! Strings that a script packed into one, as `cmsgpack` writes them. Format:
//! <https://github.com/msgpack/msgpack/blob/master/spec.md>.

use super::reply::unexpected;
use crate::store::StoreError;

/// The strings of an array, and the bytes after it.
///
/// # Errors
/// If `packed` is truncated, or not an array of strings.
pub fn array(packed: &[u8]) -> Result<(Vec<&[u8]>, &[u8]), StoreError> {
    read(packed).ok_or_else(|| unexpected("packed strings", None))
}

fn read(packed: &[u8]) -> Option<(Vec<&[u8]>, &[u8])> {
    let (kind, rest) = packed.split_first()?;
    let (count, mut rest) = match kind {
        0x90..=0x9f => (usize::from(kind & 0x0f), rest),
        0xdc => number::<2>(rest)?,
        0xdd => number::<4>(rest)?,
        _ => return None,
    };
    // Each string takes at least one byte.
    let mut strings = Vec::with_capacity(count.min(rest.len()));
    for _ in 0..count {
        let (string, behind) = string(rest)?;
        strings.push(string);
        rest = behind;
    }
    Some((strings, rest))
}

/// A string in any of the formats for text and for bytes, and the bytes after it.
fn string(packed: &[u8]) -> Option<(&[u8], &[u8])> {
    let (kind, rest) = packed.split_first()?;
    let (length, rest) = match kind {
        0xa0..=0xbf => (usize::from(kind & 0x1f), rest),
        0xc4 | 0xd9 => number::<1>(rest)?,
        0xc5 | 0xda => number::<2>(rest)?,
        0xc6 | 0xdb => number::<4>(rest)?,
        _ => return None,
    };
    rest.split_at_checked(length)
}

/// A big-endian number of `BYTES` bytes, and the bytes after it.
fn number<const BYTES: usize>(packed: &[u8]) -> Option<(usize, &[u8])> {
    let (bytes, rest) = packed.split_first_chunk::<BYTES>()?;
    Some((bytes.iter().fold(0, |number, byte| number << 8 | usize::from(*byte)), rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_of_every_length_are_read_in_every_format() {
        let text = |length: usize| vec![b'x'; length];
        for (head, length) in [
            (vec![0xa0], 0),
            (vec![0xbf], 31),
            (vec![0xd9, 32], 32),
            (vec![0xc4, 255], 255),
            (vec![0xda, 1, 0], 256),
            (vec![0xc5, 0xff, 0xff], 65_535),
            (vec![0xdb, 0, 1, 0, 0], 65_536),
            (vec![0xc6, 0, 1, 0, 1], 65_537),
        ] {
            let packed = [&[0x92, 0xa1, b'a'][..], &head, &text(length), b"rest"].concat();
            assert_eq!(array(&packed), Ok((vec![&b"a"[..], &text(length)], &b"rest"[..])), "{length}");
        }
    }

    #[test]
    fn arrays_of_every_length_are_read() {
        for (head, count) in
            [(vec![0x90], 0), (vec![0x9f], 15), (vec![0xdc, 0, 16], 16), (vec![0xdd, 0, 1, 0, 0], 65_536)]
        {
            let packed = [head, [0xa1, b'a'].repeat(count)].concat();
            let (strings, rest) = array(&packed).unwrap();
            assert!(rest.is_empty() && strings == vec![&b"a"[..]; count], "{count}");
        }
    }

    #[test]
    fn what_is_cut_or_no_array_of_strings_is_an_error() {
        let whole = [&[0xdc, 0, 2, 0xa2][..], b"ab", &[0xd9, 3], b"cde"].concat();
        assert!(array(&whole).is_ok());
        for cut in 0..whole.len() {
            assert!(array(&whole[..cut]).is_err(), "cut at {cut}");
        }
        for wrong in [&[0xa0][..], &[0x91, 0x01], &[0x91, 0x90], &[0x81, 0xa0, 0xa0], &[0xdd, 0xff, 0xff, 0xff, 0xff]] {
            assert!(array(wrong).is_err(), "{wrong:x?}");
        }
    }
}
