//! Combines concurrent calls into one script call: one message per script call costs Redis ten times as much.
//!
//! A batch is sent when it has as many jobs as the last full gathering found, or `LINGER` after its first job. If a few
//! clients each wait for their reply, all their jobs arrive together and are sent without delay. A stream of posts
//! fills a batch. Every `CALIBRATION` calls, one gathers for the whole `LINGER` to measure the number of jobs. Jobs
//! that arrive while a call waits are sent with it.
//!
//! A job that was not sent within the store's timeout fails and is dropped: it must not take effect after its caller
//! got the error. A job of a disconnected caller is dropped, too.

use std::sync::Arc;

use tokio::{
    sync::{Semaphore, mpsc, oneshot},
    time::{Duration, Instant, timeout_at},
};

use super::registry::RouteRegistry;
use crate::store::Scheduled;
use crate::{
    message::{MAX_ID_BYTES, NewMessage},
    store::{
        Partition, StoreError,
        redis::{MAX_BATCH, MAX_CALL_BYTES, RedisStore},
    },
};

/// Maximum time of a gathering: at 5,000 messages/s it collects 25.
const LINGER: Duration = Duration::from_millis(5);
/// Calls between two gatherings of full length.
const CALIBRATION: u32 = 32;
/// Number of messages that makes a batch efficient: it is sent without further waiting.
const ENOUGH: usize = 256;
/// Concurrent script calls of a partition: one is transferred while another one runs.
const CALLS: usize = 2;
/// Maximum number of queued jobs. Further jobs wait for a free place.
const WAITING: usize = 1024;
/// Overhead of a script call in bytes: keys, numbers and the protocol.
const CALL_OVERHEAD: usize = 4096;
/// Overhead of each message in bytes.
const MESSAGE_OVERHEAD: usize = MAX_ID_BYTES + 128;

type Answer = Result<Vec<Scheduled>, StoreError>;

struct Job {
    messages: Vec<NewMessage>,
    bytes: usize,
    /// The job is not sent after this time.
    deadline: Instant,
    answer: oneshot::Sender<Answer>,
}

/// Jobs of one script call.
#[derive(Default)]
struct ScheduleBatch {
    jobs: Vec<Job>,
    messages: usize,
    bytes: usize,
}

impl ScheduleBatch {
    /// Returns the job if the batch is full.
    fn add(&mut self, job: Job) -> Result<(), Job> {
        let full = self.messages + job.messages.len() > MAX_BATCH || self.bytes + job.bytes > MAX_CALL_BYTES;
        if full && !self.jobs.is_empty() {
            return Err(job);
        }
        self.messages += job.messages.len();
        self.bytes += job.bytes;
        self.jobs.push(job);
        Ok(())
    }
}

/// The coalescer of one partition.
#[derive(Debug)]
pub struct Coalescer {
    jobs: mpsc::Sender<Job>,
    /// Timeout of a script call of the store.
    timeout: Duration,
}

impl Coalescer {
    /// Spawns the gathering task, which ends when the coalescer is dropped.
    pub fn spawn(store: Arc<RedisStore>, registry: Arc<RouteRegistry>, partition: Partition) -> Self {
        let (jobs, waiting) = mpsc::channel(WAITING);
        let timeout = store.servers().timeout();
        tokio::spawn(gather(Way { store, registry, partition }, waiting));
        Self { jobs, timeout }
    }

    /// One result per message, in order. Later messages see the effects of earlier ones.
    pub async fn schedule(&self, messages: Vec<NewMessage>) -> Answer {
        let mut answers = Vec::with_capacity(messages.len());
        for (messages, bytes) in parts(messages) {
            let (answer, answered) = oneshot::channel();
            let deadline = Instant::now() + self.timeout;
            let job = Job { messages, bytes, deadline, answer };
            timeout_at(deadline, self.jobs.send(job)).await.map_err(|_| too_late())?.map_err(|_| stopping())?;
            answers.extend(answered.await.map_err(|_| stopping())??);
        }
        Ok(answers)
    }
}

/// Splits a list into parts. Each fits into one script call.
fn parts(messages: Vec<NewMessage>) -> Vec<(Vec<NewMessage>, usize)> {
    let mut parts: Vec<(Vec<NewMessage>, usize)> = Vec::new();
    for message in messages {
        let size = size(&message);
        match parts.last_mut() {
            Some((part, bytes)) if part.len() < MAX_BATCH && *bytes + size <= MAX_CALL_BYTES => {
                part.push(message);
                *bytes += size;
            }
            _ => parts.push((vec![message], CALL_OVERHEAD + size)),
        }
    }
    parts
}

/// Bytes of a message in a script call.
pub fn size(message: &NewMessage) -> usize {
    let metadata = serde_json::to_vec(&message.metadata).map_or(0, |json| json.len());
    let record = message.record.as_ref().map_or(0, |record| record.place.len());
    message.payload.len() + metadata + record + MESSAGE_OVERHEAD
}

fn too_late() -> StoreError {
    StoreError::Unavailable { kind: "busy", text: "it waited too long for its turn, and was not written".into() }
}

fn stopping() -> StoreError {
    StoreError::Unavailable { kind: "shutdown", text: "punctual is stopping".into() }
}

async fn gather(way: Way, mut waiting: mpsc::Receiver<Job>) {
    let slots = Arc::new(Semaphore::new(CALLS));
    let mut held_over = None;
    let mut wanted = 1;
    for call in 0_u32.. {
        let mut batch = ScheduleBatch::default();
        let first = match held_over.take() {
            Some(job) => Some(job),
            None => waiting.recv().await,
        };
        let Some(first) = first else { return };
        held_over = batch.add(first).err();

        let unhurried = call % CALIBRATION == 0;
        let deadline = Instant::now() + LINGER;
        let mut learnt = unhurried;
        while held_over.is_none() && batch.messages < ENOUGH && (unhurried || batch.jobs.len() < wanted) {
            match timeout_at(deadline, waiting.recv()).await {
                Ok(Some(job)) => held_over = batch.add(job).err(),
                Ok(None) => break,
                Err(_) => {
                    learnt = true;
                    break;
                }
            }
        }
        if learnt {
            wanted = batch.jobs.len();
        }
        let slot = slots.clone().acquire_owned().await.expect("the semaphore is never closed");
        while held_over.is_none()
            && batch.messages < ENOUGH
            && let Ok(job) = waiting.try_recv()
        {
            held_over = batch.add(job).err();
        }
        let way = way.clone();
        tokio::spawn(async move {
            way.schedule(batch.jobs).await;
            drop(slot);
        });
    }
}

/// The destination of the jobs.
#[derive(Clone)]
struct Way {
    store: Arc<RedisStore>,
    registry: Arc<RouteRegistry>,
    partition: Partition,
}

impl Way {
    async fn schedule(&self, jobs: Vec<Job>) {
        let mut batch = Vec::new();
        let mut askers = Vec::with_capacity(jobs.len());
        let now = Instant::now();
        for job in jobs {
            if job.answer.is_closed() {
                continue;
            }
            if job.deadline <= now {
                // An error means that the caller disconnected.
                let _ = job.answer.send(Err(too_late()));
                continue;
            }
            askers.push((job.messages.len(), job.answer));
            batch.extend(job.messages);
        }
        if batch.is_empty() {
            return;
        }
        let mut answer = self.schedule_batch(&batch).await.map(Vec::into_iter);
        for (count, asker) in askers {
            let part = match &mut answer {
                Ok(scheduled) => Ok(scheduled.by_ref().take(count).collect()),
                Err(error) => Err(error.clone()),
            };
            // An error means that the caller disconnected. It can repeat the call with the same id.
            let _ = asker.send(part);
        }
    }

    async fn schedule_batch(&self, batch: &[NewMessage]) -> Answer {
        self.registry.when_open(|| self.store.schedule(&self.partition, batch)).await
    }
}

#[cfg(test)]
mod tests {
    use futures::future::join_all;

    use super::*;
    use crate::{
        message::{LogRecord, MessageId, Metadata, OnConflict},
        store::redis::{RouteSettings, simulated::Simulated},
        time::Due,
    };

    fn message(id: usize, payload: usize) -> NewMessage {
        NewMessage {
            id: MessageId::parse(&id.to_string()).unwrap(),
            due: Due::NOW,
            payload: vec![0; payload].into(),
            metadata: Metadata::default(),
            on_conflict: OnConflict::Keep,
            debounce: None,
            record: None,
        }
    }

    fn partition() -> Partition {
        Partition { route: "r".into(), index: 0, count: 1 }
    }

    #[test]
    fn the_size_of_a_message_is_that_of_all_its_parts() {
        let empty = size(&message(0, 0));
        assert_eq!(size(&message(0, 100)), empty + 100);
        let record = Some(LogRecord { place: "topic:0".into(), offset: 1, timestamp: 1 });
        assert_eq!(size(&NewMessage { record, ..message(0, 0) }), empty + 7);
        let json = |metadata: &Metadata| serde_json::to_vec(metadata).unwrap().len();
        let metadata = Metadata { key: Some("a key".to_owned()), ..Metadata::default() };
        let more = json(&metadata) - json(&Metadata::default());
        assert_eq!(size(&NewMessage { metadata, ..message(0, 0) }), empty + more);
    }

    #[test]
    fn a_list_is_split_where_a_script_call_is_full() {
        let lengths = |messages: Vec<NewMessage>| {
            let parts = parts(messages);
            for (part, bytes) in &parts {
                assert_eq!(*bytes, CALL_OVERHEAD + part.iter().map(size).sum::<usize>());
            }
            parts.iter().map(|(part, _)| part.len()).collect::<Vec<_>>()
        };
        let small = |count| (0..count).map(|n| message(n, 0)).collect();
        assert_eq!(lengths(small(MAX_BATCH)), [MAX_BATCH]);
        assert_eq!(lengths(small(MAX_BATCH + 1)), [MAX_BATCH, 1]);
        // Three fill a call.
        let room = MAX_CALL_BYTES - CALL_OVERHEAD - 3 * size(&message(0, 0));
        let three =
            |last| [room / 3, room / 3, room - 2 * (room / 3) + last].map(|payload| message(0, payload)).to_vec();
        assert_eq!(lengths([three(0), small(1)].concat()), [3, 1]);
        assert_eq!(lengths([three(1), small(1)].concat()), [2, 2]);
    }

    #[tokio::test]
    async fn a_batch_takes_jobs_until_it_is_full() {
        let job = |messages, bytes| Job {
            messages: vec![message(0, 0); messages],
            bytes,
            deadline: Instant::now(),
            answer: oneshot::channel().0,
        };
        let mut batch = ScheduleBatch::default();
        assert!(batch.add(job(MAX_BATCH - 1, 10)).is_ok() && batch.add(job(1, 10)).is_ok());
        assert!(batch.add(job(1, 10)).is_err());
        assert_eq!((batch.jobs.len(), batch.messages, batch.bytes), (2, MAX_BATCH, 20));
        let mut batch = ScheduleBatch::default();
        assert!(batch.add(job(1, MAX_CALL_BYTES - 1)).is_ok() && batch.add(job(1, 1)).is_ok());
        assert!(batch.add(job(1, 1)).is_err());
        // A job that fits into no batch is sent alone.
        let mut batch = ScheduleBatch::default();
        assert!(batch.add(job(1, MAX_CALL_BYTES + 1)).is_ok() && batch.add(job(1, 1)).is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn concurrent_jobs_share_a_call_and_a_lone_one_does_not_wait_for_others() {
        let redis = Simulated::start([RouteSettings::plain("r", 1000)]).await;
        let registry = Arc::new(RouteRegistry::new(redis.store.clone(), false));
        let coalescer = Coalescer::spawn(redis.store.clone(), registry, partition());
        let schedule = async |id| coalescer.schedule(vec![message(id, 1)]).await.unwrap();
        let (began, before) = (Instant::now(), redis.calls());
        join_all((0..ENOUGH).map(schedule)).await;
        assert_eq!((redis.calls() - before, began.elapsed()), (1, Duration::ZERO), "as many as are enough");
        // The first call has learnt how many to wait for; the next waits for them in vain.
        let began = Instant::now();
        schedule(ENOUGH).await;
        assert!(began.elapsed() >= LINGER && began.elapsed() < 2 * LINGER, "{:?}", began.elapsed());
        let (began, before) = (Instant::now(), redis.calls());
        for n in 0..2 * CALIBRATION {
            schedule(1000 + usize::try_from(n).unwrap()).await;
        }
        assert_eq!(redis.calls() - before, u64::from(2 * CALIBRATION));
        let gatherings = began.elapsed().as_micros() / LINGER.as_micros();
        assert_eq!(gatherings, 2, "one in {CALIBRATION} calls gathers: {:?}", began.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn jobs_that_arrive_while_a_call_waits_are_sent_with_it_unless_it_has_enough() {
        for (messages, calls) in [(1, 3), (ENOUGH - 1, 3), (ENOUGH, 4)] {
            let redis = Simulated::start([RouteSettings::plain("r", 1000)]).await;
            let registry = Arc::new(RouteRegistry::new(redis.store.clone(), false));
            let coalescer = Coalescer::spawn(redis.store.clone(), registry, partition());
            let latency = Duration::from_millis(400);
            redis.links.set_faults(punctual_model::LinkFaults { latency, ..Default::default() });
            let schedule = async |after: u32, from: usize, count: usize| {
                tokio::time::sleep(after * LINGER).await;
                let batch = (from..from + count).map(|id| message(id, 1)).collect();
                assert_eq!(coalescer.schedule(batch).await.unwrap().len(), count);
            };
            let before = redis.calls();
            // Two calls are in progress when the third job arrives.
            tokio::join!(schedule(0, 0, 1), schedule(2, 1, 1), schedule(4, 2, messages), schedule(6, 1000, 1));
            assert_eq!(redis.calls() - before, calls, "{messages}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_job_that_waited_too_long_or_for_nobody_is_not_written() {
        let redis = Simulated::start([RouteSettings::plain("r", 1000)]).await;
        let store = redis.store.clone();
        let registry = Arc::new(RouteRegistry::new(store.clone(), false));
        let way = Way { store, registry, partition: partition() };
        let now = Instant::now();
        let job = |ids: &[usize], deadline| {
            let messages = ids.iter().map(|id| message(*id, 1)).collect();
            let (answer, answered) = oneshot::channel();
            (Job { messages, bytes: 1, deadline, answer }, answered)
        };
        let (late, late_answer) = job(&[0], now);
        let (left, _) = job(&[1], now + LINGER);
        let [(two, two_answer), (one, one_answer)] = [job(&[2, 3], now + LINGER), job(&[2], now + LINGER)];
        let before = redis.calls();
        way.schedule(vec![late, left, two, one]).await;
        assert_eq!(redis.calls() - before, 1);
        assert_eq!(late_answer.await.unwrap(), Err(too_late()));
        let ids = |scheduled: Answer| scheduled.unwrap().into_iter().map(|one| one.id.to_string()).collect::<Vec<_>>();
        assert_eq!(
            (ids(two_answer.await.unwrap()), ids(one_answer.await.unwrap())),
            (vec!["2".into(), "3".into()], vec!["2".into()])
        );
        for (id, is_there) in [("0", false), ("1", false), ("2", true)] {
            let found = redis.store.get(&way.partition, &MessageId::parse(id).unwrap()).await.unwrap();
            assert_eq!(found.is_some(), is_there, "{id}");
        }
        let before = redis.calls();
        way.schedule(vec![job(&[4], now).0]).await;
        assert_eq!(redis.calls(), before, "nothing is left to send");
    }
}
