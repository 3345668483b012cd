//! The queues of a sink, and the tasks that take messages from them.
//!
//! Routes and failure domains take turns, so that a message waits for one reply and not for the backlog of others. A
//! worker sends messages in sequence over its connection, without a pause between batches. There are never more
//! connections than workers. Workers start when messages wait, and end after a while without messages.

use std::{sync::Arc, time::Duration};

use parking_lot::{Mutex, MutexGuard};
use tokio::{sync::Notify, time::sleep};

use super::{
    alarm::Alarm,
    connection::{self, Connection},
    delivery::{Job, Sender},
    permits,
};
use crate::sink::turns::Turns;

/// Less than the 5 s after which common servers (Node.js) close an idle connection. A request at the moment of the
/// close would be lost.
const IDLE_TIMEOUT: Duration = Duration::from_secs(4);

/// Why messages are not sent.
const STOPS: &str = "the sink stops";

pub struct Workers {
    sender: Arc<Sender>,
    queue: Mutex<Queue>,
    /// Wakes the worker that became idle last, so that the others end under a light load.
    arrived: Notify,
}

#[derive(Default)]
struct Queue {
    jobs: Turns<Job>,
    workers: usize,
    /// Workers that wait for a job.
    idle: usize,
    stopped: bool,
}

impl Workers {
    pub fn new(sender: Arc<Sender>) -> Arc<Self> {
        Arc::new(Self { sender, queue: Mutex::default(), arrived: Notify::new() })
    }

    pub fn push(self: &Arc<Self>, jobs: impl Iterator<Item = Job>) {
        let limit = self.sender.connector.limit();
        let (woken, started) = {
            let mut queue = self.lock();
            if queue.stopped {
                return jobs.for_each(|job| job.unsent(STOPS));
            }
            for job in jobs {
                let domain = self.sender.requests.domain_of(&job.delivery);
                let route = Arc::clone(&job.delivery.route);
                queue.jobs.push(route, domain, job);
            }
            let woken = queue.jobs.len().min(queue.idle);
            let started = (queue.jobs.len() - woken).min(limit.saturating_sub(queue.workers));
            queue.workers += started;
            (woken, started)
        };
        for _ in 0..woken {
            self.arrived.notify_last();
        }
        for _ in 0..started {
            self.start();
        }
    }

    /// Starts a worker that is already counted.
    fn start(self: &Arc<Self>) {
        tokio::spawn(Worker { workers: Arc::clone(self), counted: true }.run());
    }

    /// Reports the waiting messages of a route as unsent.
    pub fn give_back(&self, route: &Arc<str>) {
        let waiting = self.lock().jobs.remove(route);
        for job in waiting {
            job.unsent("the route stops");
        }
    }

    /// Reports waiting messages as unsent. Ends idle workers at once, and the others after their messages.
    pub fn stop(&self) {
        let mut waiting = {
            let mut queue = self.lock();
            queue.stopped = true;
            std::mem::take(&mut queue.jobs)
        };
        std::iter::from_fn(|| waiting.pop()).for_each(|job| job.unsent(STOPS));
        self.arrived.notify_waiters();
    }

    /// A panic cannot leave the queue half-changed.
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock()
    }
}

/// `counted`: whether the queue counts this worker.
struct Worker {
    workers: Arc<Workers>,
    counted: bool,
}

impl Worker {
    async fn run(mut self) {
        let workers = Arc::clone(&self.workers);
        let (mut connection, mut alarm) = (None, Alarm::default());
        while let Some(job) = self.next(&mut connection).await {
            workers.sender.deliver(job, &mut connection, &mut alarm).await;
        }
    }

    /// The next job. `None`: the worker ends.
    async fn next(&mut self, connection: &mut Option<Connection>) -> Option<Job> {
        let mut ends = false;
        loop {
            {
                let limit = self.workers.sender.connector.limit();
                let mut queue = self.workers.lock();
                // The endpoint allows fewer requests at once than before.
                let is_surplus = queue.workers > limit;
                let job = if is_surplus { None } else { queue.jobs.pop() };
                if job.is_some() {
                    if connection.as_ref().is_some_and(Connection::has_had_turn) {
                        *connection = None;
                    }
                    // The endpoint allows more requests at once than before.
                    if queue.jobs.len() > queue.idle && queue.workers < limit {
                        queue.workers += 1;
                        self.workers.start();
                    }
                    return job;
                }
                if ends || is_surplus || queue.stopped {
                    queue.workers -= 1;
                    self.counted = false;
                    if queue.idle > 0 && !queue.jobs.is_empty() {
                        // A surplus worker might have been woken in place of one that stays.
                        self.workers.arrived.notify_last();
                    }
                    if queue.workers == 0 {
                        self.workers.sender.connector.retire(None);
                    }
                    return None;
                }
                queue.idle += 1;
            }
            let has_own = connection.as_ref().is_some_and(|kept| kept.shared().is_none());
            // A notification before this point is kept.
            tokio::select! {
                () = self.workers.arrived.notified() => {}
                () = permits::wanted(), if has_own => (*connection, ends) = (None, true),
                () = connection::closed(connection) => ends = true,
                () = sleep(IDLE_TIMEOUT) => ends = true,
            }
            self.workers.lock().idle -= 1;
        }
    }
}

impl Drop for Worker {
    /// Also runs after a panic.
    fn drop(&mut self) {
        if self.counted {
            self.workers.lock().workers -= 1;
        }
    }
}
