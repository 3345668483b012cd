//! Retries: the number of attempts and the delays.

use std::time::Duration;

use rand::Rng;

/// A route's `retry` settings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RetryPolicy {
    /// At least 1.
    pub max_attempts: u32,
    pub backoff: Backoff,
}

/// Exponential backoff with a maximum and jitter. `new` validates the values, so `delay` cannot fail.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Backoff {
    initial: Duration,
    factor: f64,
    max: Duration,
    jitter: f64,
}

impl Backoff {
    /// `factor` is in `1..=100`, `jitter` in `0..=1` (the share of the delay that is random), `initial` at least 1 ms
    /// and at most `max`.
    ///
    /// # Errors
    /// The name of the invalid setting, and the error text.
    pub fn new(initial: Duration, factor: f64, max: Duration, jitter: f64) -> Result<Self, (&'static str, String)> {
        if initial < Duration::from_millis(1) {
            return Err(("initial", "must be at least 1ms".into()));
        }
        if !(1.0..=100.0).contains(&factor) {
            return Err(("factor", format!("{factor} is not within 1 .. 100")));
        }
        if max < initial {
            return Err(("max", "must not be shorter than `initial`".into()));
        }
        if !(0.0..=1.0).contains(&jitter) {
            return Err(("jitter", format!("{jitter} is not within 0 .. 1")));
        }
        Ok(Self { initial, factor, max, jitter })
    }

    pub fn max(&self) -> Duration {
        self.max
    }

    /// The delay before jitter: `initial * factor^(failures - 1)`, at most `max`. `failures` counts from 1.
    pub fn base(&self, failures: u32) -> Duration {
        let power = self.factor.powf(f64::from(failures.saturating_sub(1)));
        let seconds = self.initial.as_secs_f64() * power;
        if seconds >= self.max.as_secs_f64() { self.max } else { Duration::from_secs_f64(seconds) }
    }

    /// A random delay from `base * (1 - jitter)` to `base`.
    pub fn delay(&self, failures: u32, rng: &mut impl Rng) -> Duration {
        use rand::RngExt;
        self.base(failures).mul_f64(1.0 - self.jitter * rng.random::<f64>())
    }
}

#[cfg(test)]
mod tests {
    use rand::{SeedableRng, rngs::StdRng};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn doubles_up_to_the_cap_and_never_overflows() {
        let backoff = Backoff::new(SECOND, 2.0, 600 * SECOND, 0.0).unwrap();
        assert_eq!([1, 2, 3, 10, 11, u32::MAX].map(|n| backoff.base(n).as_secs()), [1, 2, 4, 512, 600, 600]);
    }

    #[test]
    fn jitter_only_shortens_and_stays_within_its_share() {
        let backoff = Backoff::new(SECOND, 2.0, 600 * SECOND, 0.2).unwrap();
        let mut rng = StdRng::seed_from_u64(1);
        let delays: Vec<_> = (0..1000).map(|_| backoff.delay(3, &mut rng)).collect();
        assert!(delays.iter().all(|d| (3200..=4000).contains(&d.as_millis())));
        assert!(delays.iter().any(|d| d.as_millis() < 3400) && delays.iter().any(|d| d.as_millis() > 3800));
    }

    #[test]
    fn settings_out_of_range_are_named() {
        let field = |result: Result<Backoff, (&'static str, String)>| result.unwrap_err().0;
        assert_eq!(field(Backoff::new(Duration::ZERO, 2.0, SECOND, 0.0)), "initial");
        assert_eq!(field(Backoff::new(SECOND, f64::NAN, SECOND, 0.0)), "factor");
        assert_eq!(field(Backoff::new(2 * SECOND, 2.0, SECOND, 0.0)), "max");
        assert_eq!(field(Backoff::new(SECOND, 2.0, SECOND, 1.5)), "jitter");
    }
}
