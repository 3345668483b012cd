//! The thread that has the consumer: it alone polls, commits and answers rebalances.
//!
//! It sleeps on its mailbox, which librdkafka rings when there is something to poll; so an idle source costs nothing
//! but a tick. What it reads gathers in `backlog` while one batch is in `flight` to Redis. When both are full for a
//! while, all partitions are paused and polled on, so that the group keeps its member for as long as Redis is away.
//!
//! Before partitions are given up, the flight has some time to land; then it is called back, so that nothing more of it
//! leaves. What is in the connection by then may reach Redis after what the next owner reads: it is known there, by its
//! record or its id. What landed is committed; the rest the next owner reads again.

use std::{
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError},
    },
    time::Duration,
};

use rdkafka::{
    consumer::{CommitMode, Consumer},
    error::{KafkaError, KafkaResult, RDKafkaErrorCode},
};
use tokio::{
    sync::{mpsc::UnboundedSender, oneshot},
    time::Instant,
};

use super::{
    beginning::{Beginning, beginnings, list},
    clock::RedisClock,
    context::Change,
    membership::{Membership, Seat},
    reading::{Reading, read},
    record::{Place, Record},
    skips::Skips,
};
use crate::{
    connector::kafka::Start,
    source::{Entry, Intake},
};

/// Most that goes to Redis in one call of the intake: records, and bytes.
const BATCH: usize = 1000;
const BATCH_BYTES: usize = 4 * 1024 * 1024;
/// Longest sleep. It must be far below the least `max.poll.interval.ms` that makes sense.
const TICK: Duration = Duration::from_secs(1);
/// How often offsets are committed, at most.
const COMMIT_INTERVAL: Duration = Duration::from_secs(1);
/// What a batch has left to get into Redis when its partitions are revoked. The group waits for it.
const LANDING: Duration = Duration::from_secs(5);
/// Longest wait for the brokers to say where new partitions begin; a stop waits for it, too.
const BEGIN_TIMEOUT: Duration = Duration::from_secs(5);
/// Time from an assignment until its positions are committed once more: another member that decided about the same
/// partitions at the same time, and was slower, has long committed by then.
const CONFIRM_AFTER: Duration = Duration::from_secs(30);

/// What wakes the poller.
#[derive(Clone, Copy, Debug)]
pub enum Signal {
    /// There is something to poll.
    Ready,
    /// The batch is in Redis, or (`false`) it is not.
    Landed(bool),
    /// Nobody takes batches any more.
    Stop,
}

/// On its way to Redis.
pub struct Batch {
    pub entries: Vec<Entry>,
    /// Ends when it must not arrive any more.
    pub called_back: oneshot::Receiver<()>,
}

struct Taken {
    place: Place,
    offset: i64,
    bytes: usize,
    /// `None`: there is nothing to do.
    entry: Option<Entry>,
}

struct Flight {
    records: Vec<Taken>,
    /// Taken when it must not arrive any more.
    call_back: Option<oneshot::Sender<()>>,
}

pub struct Poller {
    pub client: Seat,
    pub membership: Arc<Membership>,
    pub intake: Intake,
    pub start: Start,
    /// Of a first read.
    pub max_overdue: Option<(Duration, RedisClock)>,
    pub batches: UnboundedSender<Batch>,
    pub mailbox: Receiver<Signal>,
    pub state: State,
}

#[derive(Default)]
pub struct State {
    flight: Option<Flight>,
    backlog: Vec<Taken>,
    backlog_bytes: usize,
    paused: bool,
    stopped: bool,
    group: Group,
    ticked: Option<Instant>,
    committed: Option<Instant>,
    /// Of the last one that is to be confirmed.
    assigned: Option<Instant>,
    skips: Skips,
}

/// How it stands with the brokers.
#[derive(Default)]
struct Group {
    /// It is known which topics were missing before.
    subscribed: bool,
    /// Partitions were assigned, be it none.
    joined: bool,
    /// Something is wrong, and nothing tells when it no longer is.
    lost: bool,
}

impl Poller {
    /// # Errors
    /// Why the consumer cannot go on.
    pub fn run(mut self) -> Result<(), String> {
        let end = self.poll();
        self.land(Duration::ZERO);
        self.commit(CommitMode::Sync);
        end
    }

    fn poll(&mut self) -> Result<(), String> {
        // If this is too early, the next tick tries again, and tells why.
        let _ = self.subscribe();
        while !self.state.stopped {
            self.drain()?;
            let departed = self.depart();
            // A rebalance makes room too.
            if self.has_room() {
                self.pause(false);
            }
            if departed {
                continue;
            }
            match self.mailbox.recv_timeout(TICK) {
                Ok(signal) => self.heed(signal),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            while let Ok(signal) = self.mailbox.try_recv() {
                self.heed(signal);
            }
            if is_over(self.state.ticked, TICK) {
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

    fn heed(&mut self, signal: Signal) {
        match signal {
            Signal::Ready => {}
            Signal::Landed(landed) => {
                let Some(flight) = self.state.flight.take() else { return };
                if landed {
                    let mut positions = self.membership.positions();
                    for record in flight.records {
                        positions.taken(&record.place, record.offset);
                    }
                } else {
                    self.state.backlog_bytes += flight.records.iter().map(|record| record.bytes).sum::<usize>();
                    self.state.backlog.splice(0..0, flight.records);
                }
            }
            Signal::Stop => {
                self.state.stopped = true;
                self.state.flight = None;
            }
        }
    }

    fn has_room(&self) -> bool {
        self.state.backlog.len() < BATCH && self.state.backlog_bytes < BATCH_BYTES
    }

    /// Polls until there is nothing more, or no room. When paused there are no records, only events.
    fn drain(&mut self) -> Result<(), String> {
        while self.has_room() || self.state.paused {
            let client = Arc::clone(&self.client);
            let served = client.context().served();
            let polled = client.poll(Duration::ZERO);
            while let Some(change) = client.context().change() {
                self.change(&change)?;
                client.context().answered();
            }
            match polled {
                Some(Ok(message)) => self.gather(Record::of(&message)),
                Some(Err(error)) => self.trouble(&error)?,
                None if client.context().served() == served => break,
                None => {}
            }
        }
        Ok(())
    }

    fn gather(&mut self, record: Record) {
        let (place, offset, bytes) = (record.place.clone(), record.offset, record.size());
        let is_first_read = self.membership.positions().is_first_read(&place, offset);
        let (max_overdue, now) = match self.max_overdue {
            Some((most, clock)) if is_first_read => (Some(most), clock.now()),
            _ => (None, 0),
        };
        let entry = match read(record, max_overdue, now) {
            Reading::Take(entry) => Some(entry),
            Reading::Skip(replaced) => {
                self.state.skips.add();
                self.intake.metrics().skipped.increment(1);
                replaced.map(Entry::Cancel)
            }
            Reading::TooLarge(bytes) => {
                self.intake.metrics().skipped.increment(1);
                let (source, topic, partition) = (self.intake.name(), &*place.topic, place.partition);
                tracing::error!(source, topic, partition, offset, bytes, "a record is too large, and was left out");
                None
            }
        };
        self.state.backlog_bytes += bytes;
        self.state.backlog.push(Taken { place, offset, bytes, entry });
    }

    /// Sends what has gathered on its way, if nothing else is.
    fn depart(&mut self) -> bool {
        if self.state.flight.is_some() || self.state.backlog.is_empty() {
            return false;
        }
        self.state.backlog_bytes = 0;
        let records = std::mem::take(&mut self.state.backlog);
        let entries = records.iter().filter_map(|record| record.entry.clone()).collect();
        let (call_back, called_back) = oneshot::channel();
        self.state.flight = Some(Flight { records, call_back: Some(call_back) });
        if self.batches.send(Batch { entries, called_back }).is_err() {
            self.heed(Signal::Stop);
        }
        true
    }

    /// Waits for what is on its way, and calls it back after `patience`.
    fn land(&mut self, patience: Duration) {
        let deadline = Instant::now() + patience;
        while self.state.flight.is_some() {
            let left = deadline.saturating_duration_since(Instant::now());
            let signal = self.mailbox.recv_timeout(left).or_else(|_| {
                drop(self.state.flight.as_mut().and_then(|flight| flight.call_back.take()));
                self.mailbox.recv()
            });
            self.heed(signal.unwrap_or(Signal::Stop));
        }
    }

    fn change(&mut self, change: &Change) -> Result<(), String> {
        match change {
            Change::Assigned(assigned) => {
                tracing::info!(source = self.intake.name(), partitions = assigned.count(), "partitions were assigned");
                let start = |topic: &str| (!self.membership.came_later(topic)).then_some(self.start);
                let begun = beginnings(&self.client, assigned, start, BEGIN_TIMEOUT)?;
                for one in &begun {
                    self.membership.positions().begin(one.clone());
                }
                self.assign(&begun).map_err(|error| error.to_string())?;
                self.state.assigned = Some(Instant::now());
                self.state.group.joined = true;
                if !self.state.group.lost {
                    self.intake.running();
                }
            }
            Change::Revoked(list) => {
                tracing::info!(source = self.intake.name(), partitions = list.count(), "partitions were revoked");
                let gone = |place: &Place| list.find_partition(&place.topic, place.partition).is_some();
                if self.state.flight.iter().flat_map(|flight| &flight.records).any(|record| gone(&record.place)) {
                    self.land(LANDING);
                }
                self.state.backlog.retain(|record| !gone(&record.place));
                self.state.backlog_bytes = self.state.backlog.iter().map(|record| record.bytes).sum();
                // Others have it already, and may be further.
                if self.client.assignment_lost() {
                    self.state.group.joined = false;
                } else {
                    self.commit(CommitMode::Sync);
                }
                self.membership.positions().forget(gone);
                change.answer(&self.client).map_err(|error| error.to_string())?;
            }
        }
        Ok(())
    }

    fn assign(&self, begun: &[Beginning]) -> KafkaResult<()> {
        let list = list(begun)?;
        Change::Assigned(list.clone()).answer(&self.client)?;
        // The state may be one from before it was revoked.
        if self.state.paused { self.client.pause(&list) } else { self.client.resume(&list) }
    }

    fn trouble(&mut self, error: &KafkaError) -> Result<(), String> {
        let text = self.client.context().reports.cause().unwrap_or_else(|| error.to_string());
        match error {
            KafkaError::MessageConsumptionFatal(_) => return Err(text),
            KafkaError::MessageConsumption(
                RDKafkaErrorCode::BrokerTransportFailure
                | RDKafkaErrorCode::AllBrokersDown
                | RDKafkaErrorCode::Resolve
                | RDKafkaErrorCode::SSL
                | RDKafkaErrorCode::Authentication,
            ) => {
                self.state.group.lost = true;
                self.intake.failing(&text);
            }
            // It has left the group because this thread stood still, and joins again by itself.
            KafkaError::MessageConsumption(RDKafkaErrorCode::PollExceeded) => {}
            other => {
                self.state.group.lost = true;
                self.intake.failing(&other.to_string());
            }
        }
        Ok(())
    }

    fn tick(&mut self) {
        if self.state.flight.is_some() && !self.has_room() {
            self.pause(true);
        }
        if !self.state.group.subscribed
            && let Err(error) = self.subscribe()
        {
            // What is said meanwhile comes as an event.
            if !self.state.group.lost {
                self.state.group.lost = true;
                self.intake.failing(&self.client.context().reports.cause().unwrap_or_else(|| error.to_string()));
            }
            return;
        }
        if self.state.assigned.is_some_and(|since| since.elapsed() >= CONFIRM_AFTER) {
            self.state.assigned = None;
            self.membership.positions().not_committed();
        }
        if is_over(self.state.committed, COMMIT_INTERVAL) {
            self.state.committed = Some(Instant::now());
            self.commit(CommitMode::Async);
        }
        if self.state.group.lost && self.membership.ask(&self.client, "", TICK).is_ok() {
            self.state.group.lost = false;
            if self.state.group.joined {
                self.intake.running();
            }
        }
        self.state.skips.tell(self.intake.name());
    }

    fn pause(&mut self, pause: bool) {
        if self.state.paused == pause {
            return;
        }
        let all = self.client.assignment();
        let done = all.and_then(|all| if pause { self.client.pause(&all) } else { self.client.resume(&all) });
        match done {
            Ok(()) => self.state.paused = pause,
            Err(error) => tracing::warn!(source = self.intake.name(), %error, pause, "fetching goes on as before"),
        }
    }

    fn commit(&self, mode: CommitMode) {
        if self.client.context().commit_failed() {
            self.membership.positions().not_committed();
        }
        // Others may look at the positions while the brokers take their time.
        let news = self.membership.positions().uncommitted();
        let result = news.and_then(|news| news.map_or(Ok(()), |list| self.client.commit(&list, mode)));
        if let Err(error) = result {
            self.membership.positions().not_committed();
            tracing::warn!(source = self.intake.name(), %error, "offsets were not committed; they will be again");
        }
    }
}

fn is_over(since: Option<Instant>, interval: Duration) -> bool {
    since.is_none_or(|since| since.elapsed() >= interval)
}
