//! Generated ids, for messages that come without one.

use std::{sync::Arc, time::SystemTime};

use rand::Rng;
use ulid::Ulid;

use crate::{message::MessageId, time::wall_clock};

/// Returns a new, unique id.
pub type NewId = Arc<dyn Fn() -> MessageId + Send + Sync>;

/// ULIDs: 48 bits of this machine's clock, which only sort them, and 80 random bits.
pub fn ulids() -> NewId {
    #[expect(clippy::disallowed_methods, reason = "the generator of the process")]
    Arc::new(|| ulid(wall_clock(), &mut rand::rng()))
}

fn ulid(now: SystemTime, rng: &mut impl Rng) -> MessageId {
    let text = Ulid::from_datetime_with_source(now, rng).to_string();
    MessageId::parse(&text).expect("26 of A-Z0-9")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rand::{SeedableRng, rngs::StdRng};

    use super::*;

    #[test]
    fn ids_of_one_millisecond_differ_and_later_ones_sort_behind() {
        let mut rng = StdRng::seed_from_u64(1);
        let at = |millis| SystemTime::UNIX_EPOCH + Duration::from_millis(millis);
        let first = ulid(at(1_700_000_000_000), &mut rng);
        assert_ne!(first, ulid(at(1_700_000_000_000), &mut rng));
        assert!(first < ulid(at(1_700_000_000_001), &mut rng));
    }
}
