//! Sets the schedules of the configuration file in Redis: at the start, when Redis lost them, and every ten minutes.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout_at},
};

use crate::{
    message::MessageId,
    metrics,
    queue::{NewSchedule, Queue, QueueError, RouteSchedule, ScheduleError},
    store::{ScheduleChange, ScheduleOwner, StoreError},
    time::wall_millis,
};

/// Interval at which lost schedules are found. Redis that was emptied is detected earlier.
const INTERVAL: Duration = Duration::from_mins(10);

/// Pause after a failure of Redis.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Interval at which the metrics follow schedules that another instance sent, paused or deleted.
const FOLLOW_INTERVAL: Duration = Duration::from_millis(FOLLOW_MILLIS);
const FOLLOW_MILLIS: u64 = 15_000;

/// Maximum number of schedules that are read in one interval: they take some milliseconds each.
const MAX_FOLLOWED: usize = 100;

/// The schedules of a file, and its revision.
#[derive(Clone, Debug, Default)]
pub struct FileSchedules {
    pub schedules: Vec<NewSchedule>,
    pub revision: u64,
}

/// Runs until `stop`. Applies the file again when routes are registered, also in a Redis that was emptied.
/// `is_first`: the file has not been applied before.
pub async fn run(file: FileSchedules, queue: Arc<Queue>, mut is_first: bool, mut stop: watch::Receiver<bool>) {
    let mut registered = queue.registered();
    let work = async {
        loop {
            registered.mark_unchanged();
            while let Err(error) = file.apply(&queue, is_first).await {
                // The keeper reports an outage.
                tracing::debug!(%error, "cannot set the schedules of the file");
                sleep(RETRY_INTERVAL).await;
            }
            is_first = false;
            // An error is the timeout, or the end of the process.
            let _ = timeout_at(Instant::now() + INTERVAL, registered.changed()).await;
        }
    };
    tokio::select! {
        () = work => {}
        () = follow(&queue) => {}
        _ = stop.wait_for(|stop| *stop) => {}
    }
}

async fn follow(queue: &Queue) {
    loop {
        sleep(FOLLOW_INTERVAL).await;
        if let Err(error) = read_overdue(queue).await {
            // The keeper reports an outage.
            tracing::debug!(%error, "cannot read schedules for the metrics");
        }
    }
}

/// Reads the schedules again that have a next occurrence in the past, as far as this instance knows.
async fn read_overdue(queue: &Queue) -> Result<(), QueueError> {
    let mut shown: Vec<(u64, String)> = metrics::schedules_shown().into_iter().map(|(name, at)| (at, name)).collect();
    shown.sort();
    // The clock of this host: asking Redis would cost every idle instance a call.
    let overdue = wall_millis().get().saturating_sub(FOLLOW_MILLIS);
    for (_, name) in shown.iter().take_while(|(at, _)| *at < overdue).take(MAX_FOLLOWED) {
        let Ok(id) = MessageId::of_schedule(name) else { continue };
        match queue.find_schedule(&id).await {
            Ok(one) => metrics::schedule_next(name, one.and_then(|one| one.sends_at())),
            Err(error @ QueueError::Store(StoreError::Unavailable { .. })) => return Err(error),
            // Its route might be one with keys of another type.
            Err(error) => tracing::debug!(schedule = name, %error, "cannot be read for the metrics"),
        }
    }
    Ok(())
}

/// Whether the same call can succeed soon.
fn is_outage(error: &ScheduleError) -> bool {
    let unavailable = |error: &QueueError| matches!(error, QueueError::Store(StoreError::Unavailable { .. }));
    matches!(error, ScheduleError::Moving(_)) || matches!(error, ScheduleError::Queue(error) if unavailable(error))
}

/// The schedules of all routes. One route with keys of another type does not hide the others.
async fn read_all(queue: &Queue) -> Result<Vec<RouteSchedule>, ScheduleError> {
    let mut all = Vec::new();
    for route in queue.routes() {
        match queue.schedules(std::slice::from_ref(&route)).await.map_err(ScheduleError::from) {
            Ok(some) => all.extend(some),
            Err(error) if is_outage(&error) => return Err(error),
            Err(error) => tracing::warn!(%route, %error, "its schedules cannot be read"),
        }
    }
    Ok(all)
}

impl FileSchedules {
    /// # Errors
    /// When Redis is unavailable, or a schedule is being moved: to be repeated.
    pub async fn apply(&self, queue: &Queue, is_first: bool) -> Result<(), ScheduleError> {
        let mut all = read_all(queue).await?;
        if self.set(queue, &all, is_first).await? {
            all = read_all(queue).await?;
        }
        for one in &all {
            match queue.restore_schedule(one).await {
                Ok(false) => {}
                Ok(true) => tracing::warn!(schedule = one.name(), "its message was lost: it is set again"),
                Err(error) if is_outage(&error) => return Err(error),
                Err(error) => tracing::warn!(schedule = one.name(), %error, "its message was lost"),
            }
        }
        self.tidy(queue, &all, is_first).await
    }

    /// Sets the schedules that are not in Redis as they are in the file. Returns whether there were any.
    async fn set(&self, queue: &Queue, all: &[RouteSchedule], is_first: bool) -> Result<bool, ScheduleError> {
        let mut known: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for one in all {
            known.entry(&one.state.id).or_default().push(one);
        }
        let owner = ScheduleOwner::File { revision: self.revision };
        let is_set = |new: &NewSchedule| {
            let Some([RouteSchedule { route, state }]) = known.get(&new.id).map(Vec::as_slice) else { return false };
            let is_same = *route == new.route && state.recurring.revision == new.revision();
            is_same && state.owner == owner && !state.is_lost
        };
        // During a rolling deploy, a file with a higher revision deletes what this one has alone. A start sets it again: the
        // deploy may have been rolled back.
        let is_older = |one: &RouteSchedule| matches!(one.state.owner, ScheduleOwner::File { revision } if revision > self.revision);
        let sets_absent = is_first || !all.iter().any(is_older);
        let is_due = |new: &&NewSchedule| !is_set(new) && (sets_absent || known.contains_key(&new.id));
        let mut has_set = false;
        for new in self.schedules.iter().filter(is_due) {
            has_set = true;
            let name = new.id.schedule().unwrap_or_default();
            match queue.set_schedule(new.clone()).await {
                Ok(ScheduleChange::Unchanged) => {}
                Ok(change) => tracing::info!(schedule = name, route = &*new.route, ?change, "set by the file"),
                Err(error) if is_outage(&error) => return Err(error),
                Err(ScheduleError::Older(_)) if !is_first => {}
                Err(error) => tracing::warn!(schedule = name, %error, "the schedule of the file is not set"),
            }
        }
        Ok(has_set)
    }

    /// Deletes schedules of files with a lower revision that are not in this one. At the start, reports those of other files.
    /// Shows the metrics of all that are left.
    async fn tidy(&self, queue: &Queue, all: &[RouteSchedule], is_first: bool) -> Result<(), ScheduleError> {
        let owner = ScheduleOwner::File { revision: self.revision };
        let revision_elsewhere = |one: &RouteSchedule| match one.state.owner {
            ScheduleOwner::File { revision } if self.schedules.iter().all(|new| new.id != one.state.id) => {
                Some(revision)
            }
            _ => None,
        };
        let is_former = |one: &&RouteSchedule| revision_elsewhere(one).is_some_and(|revision| revision < self.revision);
        let (former, left): (Vec<_>, Vec<_>) = all.iter().partition(is_former);
        for one in former {
            match queue.delete(one, owner).await {
                Ok(_) => {
                    let (schedule, route) = (one.name(), &*one.route);
                    tracing::info!(schedule, route, "deleted: it is no longer in the file");
                }
                Err(error) if is_outage(&error) => return Err(error),
                Err(error) => tracing::warn!(schedule = one.name(), %error, "the schedule is not deleted"),
            }
        }
        // A deletion removes the gauge of its name, which another route can have too.
        for one in left {
            metrics::begin_schedule(one.name());
            metrics::schedule_next(one.name(), one.sends_at());
            if is_first && revision_elsewhere(one).is_some() {
                tracing::warn!(
                    schedule = one.name(),
                    "the schedule of another file is not in this one, and goes on: to delete it, raise \
                     `schedules_revision`"
                );
            }
        }
        Ok(())
    }
}
