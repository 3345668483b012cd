//! Gathers concurrent calls into one script call: one message per call costs Redis ten times as much.
//!
//! A call leaves when as many jobs wait as the last unhurried gathering found, or `LINGER` after the first:
//! with a handful of clients that wait for their answers all of them are soon back and nobody waits for the
//! clock, while an open stream of posts fills a batch. Every `CALIBRATION` calls one gathers for the whole
//! `LINGER` again, to learn how many there are.

use std::sync::Arc;

use tokio::{
    sync::{Semaphore, mpsc, oneshot},
    time::{Duration, Instant, timeout_at},
};

use super::Scheduled;
use crate::{
    message::{MAX_ID_BYTES, NewMessage},
    port::{Partition, StoreError},
    store::redis::{MAX_BATCH, MAX_CALL_BYTES, RedisStore},
};

/// Longest wait for company: at 5,000 messages/s it gathers 25.
const LINGER: Duration = Duration::from_millis(5);
/// Calls between two gatherings of full length.
const CALIBRATION: u32 = 32;
/// As many messages make a good batch: no use in waiting for more.
const ENOUGH: usize = 256;
/// Script calls under way at once for a partition: one is on its way while one runs.
const CALLS: usize = 2;
/// Jobs that may wait; later ones wait outside, within their own timeout.
const WAITING: usize = 1024;
/// Room in a script call beside payloads: keys, numbers and the protocol.
const CALL_OVERHEAD: usize = 4096;
/// The same for each message.
const MESSAGE_OVERHEAD: usize = MAX_ID_BYTES + 128;

type Answer = Result<Vec<Scheduled>, StoreError>;

struct Job {
    messages: Vec<NewMessage>,
    bytes: usize,
    answer: oneshot::Sender<Answer>,
}

/// One partition's way in.
#[derive(Debug)]
pub struct Coalescer {
    jobs: mpsc::Sender<Job>,
}

impl Coalescer {
    /// Spawns the gathering task; it ends when this is dropped.
    pub fn spawn(store: Arc<RedisStore>, partition: Partition) -> Self {
        let (jobs, waiting) = mpsc::channel(WAITING);
        tokio::spawn(gather(store, partition, waiting));
        Self { jobs }
    }

    /// One answer per message, in order; later messages see earlier ones.
    pub async fn schedule(&self, messages: Vec<NewMessage>) -> Answer {
        let mut answers = Vec::with_capacity(messages.len());
        for (messages, bytes) in parts(messages) {
            let (answer, answered) = oneshot::channel();
            let gone = || StoreError::Unavailable { kind: "shutdown", text: "punctual is stopping".into() };
            self.jobs.send(Job { messages, bytes, answer }).await.map_err(|_| gone())?;
            answers.extend(answered.await.map_err(|_| gone())??);
        }
        Ok(answers)
    }
}

/// Cuts a list into parts that fit into a script call each.
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

fn size(message: &NewMessage) -> usize {
    let metadata = serde_json::to_vec(&message.metadata).map_or(0, |json| json.len());
    message.payload.len() + metadata + MESSAGE_OVERHEAD
}

async fn gather(store: Arc<RedisStore>, partition: Partition, mut waiting: mpsc::Receiver<Job>) {
    let slots = Arc::new(Semaphore::new(CALLS));
    let mut held_over: Option<Job> = None;
    let mut wanted = 1;
    for call in 0_u32.. {
        let Some(first) = (match held_over.take() {
            Some(job) => Some(job),
            None => waiting.recv().await,
        }) else {
            return;
        };
        let (mut count, mut bytes) = (first.messages.len(), first.bytes);
        let mut jobs = vec![first];
        let unhurried = call % CALIBRATION == 0;
        let deadline = Instant::now() + LINGER;
        let mut timed_out = false;
        while count < ENOUGH && (unhurried || jobs.len() < wanted) {
            let Ok(next) = timeout_at(deadline, waiting.recv()).await else {
                timed_out = true;
                break;
            };
            let Some(job) = next else { break };
            if count + job.messages.len() > MAX_BATCH || bytes + job.bytes > MAX_CALL_BYTES {
                held_over = Some(job);
                break;
            }
            count += job.messages.len();
            bytes += job.bytes;
            jobs.push(job);
        }
        if timed_out {
            wanted = jobs.len();
        }
        let slot = slots.clone().acquire_owned().await.expect("the semaphore is never closed");
        let (store, partition) = (store.clone(), partition.clone());
        tokio::spawn(async move {
            schedule(&store, &partition, jobs).await;
            drop(slot);
        });
    }
}

async fn schedule(store: &RedisStore, partition: &Partition, jobs: Vec<Job>) {
    let mut batch = Vec::new();
    let mut askers = Vec::with_capacity(jobs.len());
    for job in jobs {
        askers.push((job.messages.len(), job.answer));
        batch.extend(job.messages);
    }
    let mut answer = store.schedule(partition, &batch).await.map(Vec::into_iter);
    for (count, asker) in askers {
        let part = match &mut answer {
            Ok(scheduled) => Ok(scheduled.by_ref().take(count).collect()),
            Err(error) => Err(error.clone()),
        };
        // An asker that has gone away may ask again with the same id.
        let _ = asker.send(part);
    }
}
