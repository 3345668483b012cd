//! When to try a broker again.

use std::time::Duration;

/// The first wait: at most ten attempts a second.
const FIRST: Duration = Duration::from_millis(100);
/// The longest: short beside an outage, long beside what an attempt costs a broker.
const LONGEST: Duration = Duration::from_secs(3);

/// Waits between attempts to connect; each is twice the one before.
pub struct ReconnectDelay(Duration);

impl Default for ReconnectDelay {
    fn default() -> Self {
        Self(FIRST)
    }
}

impl ReconnectDelay {
    pub fn next_delay(&mut self) -> Duration {
        let pause = self.0;
        self.0 = (pause * 2).min(LONGEST);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_longest() {
        let mut reconnect_delay = ReconnectDelay::default();
        let waits: Vec<u128> = (0..7).map(|_| reconnect_delay.next_delay().as_millis()).collect();
        assert_eq!(waits, [100, 200, 400, 800, 1600, 3000, 3000]);
    }
}
