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
