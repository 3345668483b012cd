//! The signal with which a store's subscription wakes the tasks that wait for due messages.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

/// Notifies that a partition's head may be due earlier. The signal carries no data: the receiver polls. How soon a lost
/// subscription is detected depends on the store.
#[derive(Debug, Default)]
pub struct WakeSignal {
    notify: Notify,
    resubscribed: AtomicBool,
    overdue: AtomicBool,
    listening: AtomicBool,
}

/// Why a signal notified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WakeReason {
    /// The head became earlier.
    HeadEarlier,
    /// Another instance has overdue messages and no capacity (`Store::wake_all`).
    Overdue,
    /// The subscription was established or lost: anything may have been missed.
    Subscription,
}

impl WakeSignal {
    /// Notifies that the head became earlier. One notification is kept while no task waits.
    pub fn notify(&self) {
        self.notify.notify_one();
    }

    /// Asks for an immediate poll.
    pub fn notify_overdue(&self) {
        self.overdue.store(true, Ordering::SeqCst);
        self.notify.notify_one();
    }

    /// Records whether wake-ups arrive at present, and notifies.
    pub fn set_listening(&self, listening: bool) {
        self.listening.store(listening, Ordering::SeqCst);
        self.resubscribed.store(true, Ordering::SeqCst);
        self.notify.notify_one();
    }

    /// Whether the subscription of this signal is active, as far as known; false before the first subscription.
    pub fn is_listening(&self) -> bool {
        self.listening.load(Ordering::SeqCst)
    }

    /// Waits for the next notification. Cancel-safe.
    pub async fn notified(&self) -> WakeReason {
        self.notify.notified().await;
        let overdue = self.overdue.swap(false, Ordering::SeqCst);
        if self.resubscribed.swap(false, Ordering::SeqCst) {
            WakeReason::Subscription
        } else if overdue {
            WakeReason::Overdue
        } else {
            WakeReason::HeadEarlier
        }
    }
}
