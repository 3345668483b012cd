//! The signal that a store's subscription gives to who waits for due messages.

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::Notify;

/// Rings when a partition's head may have become earlier. It carries no data: look again. Who listens to the store
/// rings it; how soon a lost subscription is noticed is theirs to say.
#[derive(Debug, Default)]
pub struct Bell {
    rung: Notify,
    resubscribed: AtomicBool,
    called: AtomicBool,
    listening: AtomicBool,
}

/// Why a bell rang.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ring {
    /// The head became earlier.
    Notify,
    /// Another instance has overdue messages and no capacity (`Store::call_all`).
    Call,
    /// The subscription came back, or was lost: anything may have been missed.
    Resubscribe,
}

impl Bell {
    /// Remembers one ring while nothing waits for it.
    pub fn ring(&self) {
        self.rung.notify_one();
    }

    /// A ring that asks for a poll without delay.
    pub fn call(&self) {
        self.called.store(true, Ordering::SeqCst);
        self.rung.notify_one();
    }

    /// Records whether wake-ups arrive at present, and rings.
    pub fn set_listening(&self, listening: bool) {
        self.listening.store(listening, Ordering::SeqCst);
        self.resubscribed.store(true, Ordering::SeqCst);
        self.rung.notify_one();
    }

    /// Whether the subscription behind this bell answers, as far as is known: false until the first one.
    pub fn is_listening(&self) -> bool {
        self.listening.load(Ordering::SeqCst)
    }

    /// Cancel-safe.
    pub async fn heard(&self) -> Ring {
        self.rung.notified().await;
        let called = self.called.swap(false, Ordering::SeqCst);
        if self.resubscribed.swap(false, Ordering::SeqCst) {
            Ring::Resubscribe
        } else if called {
            Ring::Call
        } else {
            Ring::Notify
        }
    }
}
