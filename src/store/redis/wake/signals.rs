//! Signals of wake-up subscriptions, and the times of every subscription.

use std::{collections::BTreeMap, mem, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::sync::watch;

use super::super::engine::CALL;
use crate::store::WakeSignal;

/// Interval at which an idle subscription is checked. With a fallback poll every 30 s for ten partitions, and the
/// keeper's check once a minute, an idle instance stays below its budget of one command in two seconds.
pub const PING_INTERVAL: Duration = Duration::from_secs(8);
/// Maximum wait for an answer, and for a connection.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// Pause before the next try to subscribe. In that time, the fallback sleep is 1 s.
pub const RESUBSCRIBE_INTERVAL: Duration = Duration::from_millis(250);

/// Signals by channel.
pub type Signals = BTreeMap<String, Vec<Arc<WakeSignal>>>;

/// Signals that can be added and removed while a subscription is active.
#[derive(Debug, Default)]
pub struct SignalTable {
    current: Mutex<CurrentSignals>,
    /// Changes with `current`.
    changed: watch::Sender<u64>,
}

/// The signals at a moment.
#[derive(Clone, Debug, Default)]
pub struct CurrentSignals {
    /// Signals of partitions.
    pub own: Signals,
    /// Signals of sources, by channel of other programs' keys.
    pub others: Signals,
    /// Number of partitions, plus `SLEEPERS_OF_A_SOURCE` for each source.
    pub sleepers: usize,
}

impl SignalTable {
    pub fn current(&self) -> CurrentSignals {
        self.current.lock().clone()
    }

    /// Changes when `current` does.
    pub fn changed(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    pub fn change(&self, change: impl FnOnce(&mut CurrentSignals)) {
        change(&mut self.current.lock());
        self.changed.send_modify(|times| *times += 1);
    }
}

impl CurrentSignals {
    /// Removes the signal from all channels.
    pub fn remove(&mut self, signal: &Arc<WakeSignal>) {
        for signals in [&mut self.own, &mut self.others] {
            for (channel, mut of_channel) in mem::take(signals) {
                of_channel.retain(|other| !Arc::ptr_eq(other, signal));
                if !of_channel.is_empty() {
                    signals.insert(channel, of_channel);
                }
            }
        }
    }
}

/// Whether the channels and their signals are the same ones.
pub fn are_same(one: &Signals, other: &Signals) -> bool {
    let same = |(a, b): (&Arc<WakeSignal>, &Arc<WakeSignal>)| Arc::ptr_eq(a, b);
    one.len() == other.len()
        && one.iter().zip(other).all(|((name, signals), (other_name, others))| {
            name == other_name && signals.len() == others.len() && signals.iter().zip(others).all(same)
        })
}

/// Notifies the signals of a channel of a message with this text.
pub fn notify<'a>(signals: impl Iterator<Item = &'a Vec<Arc<WakeSignal>>>, text: &[u8]) {
    let notify = if text == CALL.as_bytes() { WakeSignal::notify_overdue } else { WakeSignal::notify };
    signals.flatten().for_each(|signal| notify(signal));
}

/// Records whether wake-ups arrive. A signal that already does not listen is not notified again.
pub fn set_listening<'a>(signals: impl Iterator<Item = &'a Vec<Arc<WakeSignal>>>, listening: bool) {
    for signal in signals.flatten() {
        if listening || signal.is_listening() {
            signal.set_listening(listening);
        }
    }
}
