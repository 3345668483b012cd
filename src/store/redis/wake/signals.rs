//! Signals of wake-up subscriptions, and the times of every subscription.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

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
