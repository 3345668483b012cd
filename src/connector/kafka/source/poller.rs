//! The thread that owns the consumer: it alone polls, commits and applies rebalances.
//!
//! The thread sleeps on its signals. librdkafka sends `Signal::Ready` when there is something to poll, so an idle
//! source costs one tick a second. Records gather in `BatchBuffer` while one batch is in flight to Redis. When the
//! buffer stays full, the thread pauses all partitions and goes on polling: the group keeps the member during an
//! outage of Redis.
//!
//! A revocation waits `REVOKE_TIMEOUT` for the batch in flight, then cancels it. A cancelled batch can still arrive in
//! Redis after the records that the next owner reads: the store recognizes them by their log record or id. Stored
//! records are committed. The next owner reads the others again.

use std::{
    cell::RefCell,
    collections::BTreeSet,
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError},
    },
    time::Duration,
};

use rdkafka::{
    Offset, TopicPartitionList,
    consumer::{CommitMode, Consumer},
    error::{KafkaError, KafkaResult, RDKafkaErrorCode},
};
use tokio::{sync::mpsc::UnboundedSender, time::Instant};

use super::{
    action::{RecordAction, action},
    batch::{BatchBuffer, FetchedBatch, FetchedRecord},
    callbacks::Rebalance,
    membership::{GroupMember, Membership},
    overdue::{RedisClock, SkippedRecords},
    record::{ConsumedRecord, TopicPartition},
    start_position::{StartPosition, start_positions, to_list, watermarks},
};
use crate::{
    connector::kafka::{Start, Tombstones},
    source::{Intake, SourceEntry},
};

/// Maximum sleep. It must be far below any reasonable `max.poll.interval.ms`.
const TICK: Duration = Duration::from_secs(1);
/// Minimum time between two commits of offsets.
const COMMIT_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum wait for the batch in flight when its partitions are revoked. The whole group waits for it.
const REVOKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum wait for the brokers to report where new partitions start. A stop also waits for it.
const START_TIMEOUT: Duration = Duration::from_secs(5);
/// Time from an assignment until its positions are committed once more. At the end of it, a slower member that
/// decided about the same partitions at the same time has committed.
const RECOMMIT_DELAY: Duration = Duration::from_secs(30);

/// Events that wake the poller.
#[derive(Clone, Debug)]
pub enum Signal {
    /// librdkafka has records or events to poll.
    Ready,
    /// Redis has these entries of the batch in flight, by their index. Others may wait.
    Stored(Vec<usize>),
    /// The batch in flight ended: `true` if Redis has all of it.
    BatchDone(bool),
    Stop,
}

pub struct Poller {
    pub client: GroupMember,
    pub membership: Arc<Membership>,
    pub intake: Intake,
    pub start: Start,
    pub tombstones: Tombstones,
    /// Maximum age of records of the first read, and the clock to compare with.
    pub max_overdue: Option<(Duration, RedisClock)>,
    pub batches: UnboundedSender<FetchedBatch>,
    pub signals: Receiver<Signal>,
    pub state: PollerState,
}

#[derive(Default)]
pub struct PollerState {
    buffer: BatchBuffer,
    paused: bool,
    stopped: bool,
    group: GroupState,
    ticked: Option<Instant>,
    committed: Option<Instant>,
    /// Time of the latest assignment that was not yet committed again.
    assigned: Option<Instant>,
    skipped: SkippedRecords,
}

#[derive(Default)]
struct GroupState {
    /// `Membership::subscribe` succeeded.
    subscribed: bool,
    /// Partitions were assigned, possibly none.
    joined: bool,
    /// An error was reported. librdkafka sends no event at the end of an error.
    failing: bool,
}

impl Poller {
    /// # Errors
    /// Why the consumer cannot continue.
    pub fn run(mut self) -> Result<(), String> {
        let end = self.poll_until_stopped();
        self.finish_batch(Duration::ZERO);
        self.commit(CommitMode::Sync);
        end
    }

    fn poll_until_stopped(&mut self) -> Result<(), String> {
        // The next tick tries again and reports the error.
        let _ = self.subscribe();
        while !self.state.stopped {
            self.poll_pending()?;
            let sent = self.send_batch();
            // A rebalance might have freed capacity too.
            if self.state.buffer.has_capacity() {
                self.set_paused(false);
            }
            if sent {
                continue;
            }
            match self.signals.recv_timeout(TICK) {
                Ok(signal) => self.handle_signal(signal),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            while let Ok(signal) = self.signals.try_recv() {
                self.handle_signal(signal);
            }
            if has_elapsed(self.state.ticked, TICK) {
                self.state.ticked = Some(Instant::now());
                self.tick();
            }
        }
        Ok(())
    }

    fn subscribe(&mut self) -> KafkaResult<()> {
        self.membership.subscribe(&self.client, TICK)?;
        self.state.group.subscribed = true;
        Ok(())
    }

    fn handle_signal(&mut self, signal: Signal) {
        match signal {
            Signal::Ready => {}
            Signal::Stored(entries) => {
                let mut positions = self.membership.positions();
                for (partition, offset) in self.state.buffer.mark_stored(&entries) {
                    positions.advance(&partition, offset);
                }
            }
            Signal::BatchDone(stored) => {
                let mut positions = self.membership.positions();
                for record in self.state.buffer.finish(stored) {
                    positions.advance(&record.partition, record.offset);
                }
            }
            Signal::Stop => {
                self.state.stopped = true;
                self.state.buffer.abandon();
            }
        }
    }

    /// Polls until nothing is left or the buffer is full. Paused partitions give events, but no records.
    fn poll_pending(&mut self) -> Result<(), String> {
        while self.state.buffer.has_capacity() || self.state.paused {
            let client = Arc::clone(&self.client);
            let calls_before = client.context().calls();
            let polled = client.poll(Duration::ZERO);
            while let Some(rebalance) = client.context().next_rebalance() {
                self.handle_rebalance(&rebalance)?;
                client.context().finish_rebalance();
            }
            match polled {
                Some(Ok(message)) => self.add(ConsumedRecord::of(&message)),
                Some(Err(error)) => self.handle_error(&error)?,
                None if client.context().calls() == calls_before => break,
                None => {}
            }
        }
        Ok(())
    }

    fn add(&mut self, record: ConsumedRecord) {
        let (partition, offset, bytes) = (record.partition.clone(), record.offset, record.size());
        let expected = self.membership.positions().poll(&partition, offset);
        if let Some(expected) = expected {
            self.report_reset(&partition, offset, expected);
        }
        let is_first_read = self.membership.positions().is_first_read(&partition, offset);
        let (max_overdue, now) = match self.max_overdue {
            Some((most, clock)) if is_first_read => (Some(most), clock.now()),
            _ => (None, 0),
        };
        let entry = match action(record, self.tombstones, max_overdue, now) {
            RecordAction::Take(entry) => Some(entry),
            RecordAction::Skip(cancellation) => {
                self.state.skipped.add();
                self.intake.metrics().skipped.increment(1);
                cancellation.map(SourceEntry::Cancel)
            }
            RecordAction::TooLarge(bytes) => {
                self.intake.metrics().skipped.increment(1);
                let (source, topic, partition) = (self.intake.name(), &*partition.topic, partition.index);
                tracing::error!(source, topic, partition, offset, bytes, "skipped a record that is too large");
                None
            }
        };
        self.state.buffer.push(FetchedRecord { partition, offset, bytes, entry });
    }

    fn report_reset(&self, partition: &TopicPartition, offset: i64, expected: i64) {
        self.intake.metrics().resets.increment(1);
        tracing::warn!(
            source = self.intake.name(),
            topic = &*partition.topic,
            partition = partition.index,
            offset,
            expected,
            "the offsets of a partition began again: the topic was deleted and created again, or its log was cut. All \
             its records are read"
        );
    }

    /// Sends the backlog to the intake, unless a batch is in flight. Returns whether it did.
    fn send_batch(&mut self) -> bool {
        let Some(batch) = self.state.buffer.start_batch() else { return false };
        if self.batches.send(batch).is_err() {
            self.handle_signal(Signal::Stop);
        }
        true
    }

    /// Waits for the batch in flight. Cancels it after `limit`.
    fn finish_batch(&mut self, limit: Duration) {
        let deadline = Instant::now() + limit;
        while self.state.buffer.is_in_flight() {
            let left = deadline.saturating_duration_since(Instant::now());
            let signal = self.signals.recv_timeout(left).or_else(|_| {
                self.state.buffer.cancel();
                self.signals.recv()
            });
            self.handle_signal(signal.unwrap_or(Signal::Stop));
        }
    }

    fn handle_rebalance(&mut self, rebalance: &Rebalance) -> Result<(), String> {
        match rebalance {
            Rebalance::Assigned(assigned) => {
                tracing::info!(source = self.intake.name(), partitions = assigned.count(), "partitions were assigned");
                // A topic that was read before, and has no committed offset, was deleted and created again.
                let is_younger =
                    |topic: &str| self.membership.was_missing(topic) || self.membership.positions().was_read(topic);
                let without_offsets = RefCell::new(BTreeSet::new());
                let start = |topic: &str| {
                    without_offsets.borrow_mut().insert(topic.to_owned());
                    (!is_younger(topic)).then_some(self.start)
                };
                let positions = start_positions(&self.client, assigned, start, START_TIMEOUT)?;
                let insert = |position: &StartPosition| self.membership.positions().insert(position.clone());
                let lower = positions.iter().filter_map(|position| Some((position, insert(position)?))).collect();
                for (position, committed) in self.begun_again(lower, &without_offsets.into_inner()) {
                    self.report_reset(&position.partition, position.next, committed);
                }
                self.assign(&positions).map_err(|error| error.to_string())?;
                self.state.assigned = Some(Instant::now());
                self.state.group.joined = true;
                if !self.state.group.failing {
                    self.intake.running();
                }
            }
            Rebalance::Revoked(list) => {
                tracing::info!(source = self.intake.name(), partitions = list.count(), "partitions were revoked");
                let is_revoked =
                    |partition: &TopicPartition| list.find_partition(&partition.topic, partition.index).is_some();
                if self.state.buffer.is_any_in_flight(is_revoked) {
                    self.finish_batch(REVOKE_TIMEOUT);
                }
                self.state.buffer.remove(is_revoked);
                // The new owner of a lost partition might have committed higher offsets already.
                if self.client.assignment_lost() {
                    self.state.group.joined = false;
                } else {
                    self.commit(CommitMode::Sync);
                }
                self.membership.positions().remove(is_revoked);
                rebalance.apply(&self.client).map_err(|error| error.to_string())?;
            }
        }
        Ok(())
    }

    /// The positions in `lower`, which are below the offset that this process committed, with a log that began again: the
    /// topic has no committed offset, or the log ends before that one. Otherwise the commit was lost, with the session of
    /// this member.
    fn begun_again<'a>(
        &self,
        mut lower: Vec<(&'a StartPosition, i64)>,
        without_offsets: &BTreeSet<String>,
    ) -> Vec<(&'a StartPosition, i64)> {
        let mut list = TopicPartitionList::new();
        for (StartPosition { partition, .. }, _) in &lower {
            list.add_partition(&partition.topic, partition.index);
        }
        // Without an answer, the end of a log is unknown.
        let marks = watermarks(&self.client, &list, Instant::now() + START_TIMEOUT).unwrap_or_default();
        let ends_before =
            |partition: &TopicPartition, committed: i64| marks.get(partition).is_some_and(|(_, end)| *end < committed);
        lower.retain(|(StartPosition { partition, .. }, committed)| {
            without_offsets.contains(&*partition.topic) || ends_before(partition, *committed)
        });
        lower
    }

    fn assign(&self, positions: &[StartPosition]) -> KafkaResult<()> {
        let list = to_list(positions)?;
        Rebalance::Assigned(list.clone()).apply(&self.client)?;
        // librdkafka keeps the paused state of a partition beyond its revocation.
        if self.state.paused { self.client.pause(&list) } else { self.client.resume(&list) }
    }

    fn handle_error(&mut self, error: &KafkaError) -> Result<(), String> {
        let cause = self.client.context().cause().unwrap_or_else(|| error.to_string());
        match error {
            KafkaError::MessageConsumptionFatal(_) => return Err(cause),
            KafkaError::MessageConsumption(
                RDKafkaErrorCode::BrokerTransportFailure
                | RDKafkaErrorCode::AllBrokersDown
                | RDKafkaErrorCode::Resolve
                | RDKafkaErrorCode::SSL
                | RDKafkaErrorCode::Authentication,
            ) => self.report_failing(&cause),
            // The thread was blocked for too long. librdkafka left the group and joins it again.
            KafkaError::MessageConsumption(RDKafkaErrorCode::PollExceeded) => {}
            other => self.report_failing(&other.to_string()),
        }
        Ok(())
    }

    fn report_failing(&mut self, error: &str) {
        self.state.group.failing = true;
        self.intake.failing(error);
    }

    fn tick(&mut self) {
        if self.state.buffer.is_in_flight() && !self.state.buffer.has_capacity() {
            self.set_paused(true);
        }
        if !self.state.group.subscribed
            && let Err(error) = self.subscribe()
        {
            // Later errors arrive as events.
            if !self.state.group.failing {
                let cause = self.client.context().cause();
                self.report_failing(&cause.unwrap_or_else(|| error.to_string()));
            }
            return;
        }
        if self.state.assigned.is_some_and(|since| since.elapsed() >= RECOMMIT_DELAY) {
            self.state.assigned = None;
            self.membership.positions().mark_uncommitted();
        }
        self.step_over_markers();
        if has_elapsed(self.state.committed, COMMIT_INTERVAL) {
            self.state.committed = Some(Instant::now());
            self.commit(CommitMode::Async);
        }
        if self.state.group.failing && self.membership.check_topics(&self.client, "", TICK).is_ok() {
            self.state.group.failing = false;
            if self.state.group.joined {
                self.intake.running();
            }
        }
        self.state.skipped.log(self.intake.name());
    }

    /// Moves positions past offsets that are not records, once Redis has all polled records: librdkafka by itself polls
    /// the markers of transactions and skips aborted records.
    fn step_over_markers(&self) {
        if !self.state.buffer.is_empty() {
            return;
        }
        // Without an answer the next tick tries again.
        let Ok(polled) = self.client.position() else { return };
        let mut positions = self.membership.positions();
        for one in polled.elements() {
            if let Offset::Offset(next) = one.offset() {
                positions.step_over(&TopicPartition { topic: one.topic().into(), index: one.partition() }, next);
            }
        }
    }

    fn set_paused(&mut self, paused: bool) {
        if self.state.paused == paused {
            return;
        }
        let all = self.client.assignment();
        let done = all.and_then(|all| if paused { self.client.pause(&all) } else { self.client.resume(&all) });
        match done {
            Ok(()) => self.state.paused = paused,
            Err(error) => {
                tracing::warn!(source = self.intake.name(), %error, paused, "cannot pause or resume fetching");
            }
        }
    }

    fn commit(&self, mode: CommitMode) {
        if self.client.context().take_commit_failed() {
            self.membership.positions().mark_uncommitted();
        }
        // The lock of the positions is not held during the commit, which waits for the brokers.
        let uncommitted = self.membership.positions().take_uncommitted();
        let result = uncommitted.and_then(|list| list.map_or(Ok(()), |list| self.client.commit(&list, mode)));
        if let Err(error) = result {
            self.membership.positions().mark_uncommitted();
            tracing::warn!(source = self.intake.name(), %error, "offsets were not committed; trying again");
        }
    }
}

fn has_elapsed(since: Option<Instant>, interval: Duration) -> bool {
    since.is_none_or(|since| since.elapsed() >= interval)
}

#[cfg(test)]
mod tests;
