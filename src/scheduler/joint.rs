//! A settlement and a claim in one call of the store.
//!
//! A claimer without room asks the settler of its partition: the next settlement that has a call of its own makes room, and the
//! claim in the same call takes it. So a message is claimed only where another one is settled, and Redis makes one call
//! instead of two.

use std::sync::{Arc, Mutex};

use tokio::sync::oneshot;

use super::{breaker::Admission, budget::Reservation, lock};
use crate::store::{Claim, ClaimRequest, StoreError};

/// The place of a partition where its claimer asks.
#[derive(Clone, Default)]
pub struct Joint(Arc<Mutex<Option<Asked>>>);

/// What is asked for.
pub struct Asked {
    /// Without the limits, which are those of the room.
    pub request: ClaimRequest,
    /// Dropped: nothing was claimed.
    pub answer: oneshot::Sender<Box<Answer>>,
}

/// An error means that nothing was claimed.
pub struct Answer {
    pub claim: Result<Claim, StoreError>,
    pub admission: Admission,
    pub reservation: Reservation,
}

impl Joint {
    pub fn ask(&self, request: ClaimRequest) -> oneshot::Receiver<Box<Answer>> {
        let (answer, receiver) = oneshot::channel();
        *lock(&self.0) = Some(Asked { request, answer });
        receiver
    }

    /// What is asked for, if anything is. It is not asked for any more then.
    pub fn take(&self) -> Option<Asked> {
        lock(&self.0).take()
    }
}
