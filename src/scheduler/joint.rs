//! A settlement and a claim in one call of the store.
//!
//! A claimer without room asks the settler of its partition: the next settlement that has a call of its own makes room, and the
//! claim in the same call takes it. So a message is claimed only where another one is settled, and Redis makes one call
//! instead of two.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

use super::{breaker::Admission, budget::Reservation};
use crate::store::{Claim, ClaimRequest, StoreError};

/// The place of a partition where its claimer asks.
#[derive(Clone, Default)]
pub struct Joint(Arc<Place>);

#[derive(Default)]
struct Place {
    asked: Mutex<Option<Asked>>,
    arrived: Notify,
}

/// What is asked for.
pub struct Asked {
    /// Without the limits, which are those of the room.
    pub request: ClaimRequest,
    /// Dropped: nothing was claimed.
    pub answer: oneshot::Sender<Box<Answer>>,
}

/// What became of the claim. After an outage it is unknown whether it was made.
pub struct Answer {
    pub request: ClaimRequest,
    pub claim: Result<(Claim, Admission, Reservation), StoreError>,
}

impl Joint {
    pub fn ask(&self, request: ClaimRequest) -> oneshot::Receiver<Box<Answer>> {
        let (answer, receiver) = oneshot::channel();
        *self.0.asked.lock() = Some(Asked { request, answer });
        self.0.arrived.notify_waiters();
        receiver
    }

    /// What is asked for, with its `room`. It is not asked for any more then; without room it still is.
    pub fn take<T>(&self, room: impl FnOnce(&ClaimRequest) -> Option<T>) -> Option<(Asked, T)> {
        let mut asked = self.0.asked.lock();
        let room = room(&asked.as_ref()?.request)?;
        asked.take().map(|asked| (asked, room))
    }

    /// Whether anything was asked for. It is not asked for any more.
    pub fn withdraw(&self) -> bool {
        self.0.asked.lock().take().is_some()
    }

    /// Waits until a claim is asked for. Cancel-safe.
    pub async fn asked(&self) {
        let arrived = self.0.arrived.notified();
        if self.0.asked.lock().is_none() {
            arrived.await;
        }
    }
}
