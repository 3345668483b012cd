//! The partition of a key by the 32-bit murmur2 hash with Kafka's seed. The Java producer and librdkafka's partitioners
//! `murmur2` and `murmur2_random` compute it the same way.

const SEED: u32 = 0x9747_b28c;
const M: u32 = 0x5bd1_e995;
const R: u32 = 24;

/// `partitions`: at least 1.
pub fn partition(key: &[u8], partitions: usize) -> usize {
    let positive = hash(key) & 0x7fff_ffff;
    usize::try_from(positive).expect("31 bits") % partitions
}

fn hash(data: &[u8]) -> u32 {
    // The length of a key of 4 GiB or more wraps.
    #[expect(clippy::cast_possible_truncation, reason = "as the other implementations do")]
    let mut hash = SEED ^ data.len() as u32;
    let mut words = data.chunks_exact(4);
    for word in words.by_ref() {
        let word = u32::from_le_bytes(word.try_into().expect("four bytes")).wrapping_mul(M);
        hash = hash.wrapping_mul(M) ^ (word ^ (word >> R)).wrapping_mul(M);
    }
    let rest = words.remainder();
    if !rest.is_empty() {
        let rest = rest.iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte));
        hash = (hash ^ rest).wrapping_mul(M);
    }
    hash = (hash ^ (hash >> 13)).wrapping_mul(M);
    hash ^ (hash >> 15)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_equal_the_vectors_of_kafkas_tests() {
        // UtilsTest.testMurmur2 of Apache Kafka.
        for (key, expected) in [
            ("21", -973_932_308_i32),
            ("foobar", -790_332_482),
            ("a-little-bit-long-string", -985_981_536),
            ("a-little-bit-longer-string", -1_486_304_829),
            ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58_897_971),
            ("abc", 479_470_107),
        ] {
            assert_eq!(hash(key.as_bytes()), expected.cast_unsigned(), "{key}");
        }
        assert_eq!(partition(b"foobar", 10), (0x7fff_ffff & (-790_332_482_i32).cast_unsigned()) as usize % 10);
    }
}
