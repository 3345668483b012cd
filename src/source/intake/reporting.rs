//! Reports of a source: its health and the messages that it took.

use super::Intake;
use crate::{
    incidents::{Sample, Subject},
    message::DeadReason,
    source::status::Side,
};

impl Intake {
    /// Reports Redis and the source's external system as healthy.
    pub fn resumed(&self) {
        self.report_healthy(Side::Redis);
        self.report_healthy(Side::System);
    }

    /// Reports the source's external system as healthy.
    pub fn running(&self) {
        self.report_healthy(Side::System);
    }

    /// Reports that the source's external system cannot be used at present.
    pub fn failing(&self, error: &str) {
        self.report_failing(Side::System, error);
    }

    /// Records messages that were taken and are in Redis.
    pub fn took(&self, count: u64) {
        if count > 0 {
            self.metrics.taken.increment(count);
            self.health.took();
        }
    }

    /// Records invalid messages, which are dead letters.
    pub fn took_invalid(&self, messages: impl IntoIterator<Item = Sample>) {
        for message in messages {
            self.metrics.invalid.increment(1);
            self.incidents.died(&self.route, DeadReason::Invalid, 1, Some(message));
        }
    }

    pub(super) fn report_healthy(&self, side: Side) {
        let became = self.health.set_healthy(side);
        let was_down = self.health.is_running() && self.incidents.ended(&Subject::Source(self.name.clone()));
        if became && !was_down {
            tracing::info!(source = &*self.name, "the source takes messages");
        }
    }

    /// Clears the error of a side without a call in progress.
    pub(super) fn clear(&self, side: Side) {
        self.health.clear(side);
        if self.health.is_running() {
            self.incidents.ended(&Subject::Source(self.name.clone()));
        }
    }

    /// Reports a call that Redis denied, unless the source itself names the missing right.
    pub(super) fn report_denied(&self, error: &str) {
        if self.health.set_denied(error) {
            self.incidents.failed(&Subject::Source(self.name.clone()), error);
        }
    }

    pub(super) fn report_failing(&self, side: Side, error: &str) {
        self.health.set_failing(side, error);
        self.incidents.failed(&Subject::Source(self.name.clone()), error);
    }
}
