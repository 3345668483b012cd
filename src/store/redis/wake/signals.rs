//! The signals of wake-up subscriptions, and the times of every subscription.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use super::super::engine::CALL;
use crate::store::WakeSignal;

/// How often an idle subscription is asked whether it lives: with a fallback poll every 30 s for ten partitions, and the
/// keeper's check once a minute, this stays below one command in two seconds, the budget of an idle instance.
pub const PING_INTERVAL: Duration = Duration::from_secs(8);
/// Longest wait for its answer, and for a connection.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// Pause before the next try to subscribe; the fallback sleep is 1 s meanwhile.
pub const RESUBSCRIBE_INTERVAL: Duration = Duration::from_millis(250);

/// Signals by channel.
pub type Signals = BTreeMap<String, Vec<Arc<WakeSignal>>>;

/// Notifies those who wait on a channel of a message with this text.
pub fn notify<'a>(signals: impl Iterator<Item = &'a Vec<Arc<WakeSignal>>>, text: &[u8]) {
    let notify = if text == CALL.as_bytes() { WakeSignal::notify_overdue } else { WakeSignal::notify };
    signals.flatten().for_each(|signal| notify(signal));
}

/// Records whether wake-ups arrive. A signal that did not listen before is not told again that it does not.
pub fn set_listening<'a>(signals: impl Iterator<Item = &'a Vec<Arc<WakeSignal>>>, listening: bool) {
    for signal in signals.flatten() {
        if listening || signal.is_listening() {
            signal.set_listening(listening);
        }
    }
}
