//! The rate limit of a token.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// A token bucket with a capacity of one second.
#[derive(Debug)]
pub struct Rate {
    /// At least 1.
    per_second: u32,
    bucket: Mutex<Bucket>,
}

#[derive(Debug)]
struct Bucket {
    /// The level in `UNITS`; below 0 after a batch that was larger than the bucket.
    level: i128,
    /// The time of `level`; `None` before the first call.
    at: Option<Instant>,
}

/// Units per message: a bucket of one message per second gains one unit per nanosecond.
const UNITS: i128 = 1_000_000_000;

/// The error when the rate is exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooFast {
    pub per_second: u32,
    /// Seconds until the call would be admitted, at least 1.
    pub wait: u64,
}

impl Rate {
    pub fn new(per_second: u32) -> Self {
        Self { per_second, bucket: Mutex::new(Bucket { level: i128::from(per_second) * UNITS, at: None }) }
    }

    /// Admits all messages of a call or none. A full bucket admits a batch that is larger than its capacity; later
    /// calls wait until the excess is refilled.
    ///
    /// # Errors
    /// The time to wait before a retry.
    pub fn admit(&self, messages: usize, now: Instant) -> Result<(), TooFast> {
        let per_second = i128::from(self.per_second);
        let (full, wanted) = (per_second * UNITS, messages as i128 * UNITS);
        // A panic cannot leave the bucket half-changed.
        let mut bucket = self.bucket.lock();
        let passed = bucket.at.map_or(Duration::ZERO, |at| now.saturating_duration_since(at));
        let gained = i128::try_from(passed.as_nanos()).unwrap_or(i128::MAX).saturating_mul(per_second);
        bucket.level = full.min(bucket.level.saturating_add(gained));
        bucket.at = bucket.at.max(Some(now));
        let missing = wanted.min(full) - bucket.level;
        if missing > 0 {
            let wait = u64::try_from((missing + full - 1) / full).unwrap_or(u64::MAX);
            return Err(TooFast { per_second: self.per_second, wait });
        }
        bucket.level -= wanted;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_has_its_messages_and_what_was_saved_is_a_second_at_most() {
        let (rate, start) = (Rate::new(10), Instant::now());
        let at = |millis| start + Duration::from_millis(millis);
        let too_fast = Err(TooFast { per_second: 10, wait: 1 });
        assert_eq!(rate.admit(10, at(0)), Ok(()));
        assert_eq!(rate.admit(1, at(99)), too_fast);
        assert_eq!(rate.admit(1, at(200)), Ok(()));
        assert_eq!(rate.admit(2, at(200)), too_fast, "all or none");
        assert_eq!(rate.admit(1, at(200)), Ok(()));
        assert_eq!(rate.admit(11, at(60_000)), Ok(()), "a full bucket takes a batch of any size");
        assert_eq!(rate.admit(1, at(60_100)), too_fast, "which is owed");
        assert_eq!(rate.admit(1, at(60_200)), Ok(()));
    }

    #[test]
    fn a_batch_that_is_larger_than_the_bucket_passes_and_is_paid_for() {
        let (rate, start) = (Rate::new(2), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(rate.admit(1000, at(0)), Ok(()));
        assert_eq!(rate.admit(1, at(0)), Err(TooFast { per_second: 2, wait: 500 }));
        assert_eq!(rate.admit(1000, at(499)), Err(TooFast { per_second: 2, wait: 1 }));
        assert_eq!(rate.admit(1000, at(500)), Ok(()));
    }

    #[test]
    fn a_clock_that_steps_back_gives_nothing() {
        let (rate, start) = (Rate::new(1), Instant::now());
        assert_eq!(rate.admit(1, start + Duration::from_secs(5)), Ok(()));
        assert!(rate.admit(1, start).is_err());
        assert!(rate.admit(1, start + Duration::from_millis(900)).is_err());
    }
}
