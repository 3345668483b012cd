//! Recurring schedules: set, read, run, paused and deleted.

use std::sync::Arc;

use bytes::Bytes;
use futures::future::join_all;

use super::{Queue, QueueError};
use crate::{
    message::{MessageId, Metadata, OccurrenceMessage, Recurring, StoredMessage, digest},
    metrics,
    recurrence::{Rule, RuleError, Timetable},
    store::{NextOccurrence, ScheduleChange, ScheduleDefinition, ScheduleOwner, ScheduleState, Scheduled, StoreError},
    time::UnixMillis,
};

/// Attempts to set a schedule that others change at the same time.
const MAX_ATTEMPTS: usize = 5;

/// A schedule to set.
#[derive(Clone, Debug)]
pub struct NewSchedule {
    /// `MessageId::of_schedule`.
    pub id: MessageId,
    pub route: Arc<str>,
    pub owner: ScheduleOwner,
    pub rule: Rule,
    /// Milliseconds.
    pub expires_after: Option<u64>,
    pub metadata: Metadata,
    pub payload: Bytes,
}

/// A schedule and its route.
#[derive(Clone, Debug)]
pub struct RouteSchedule {
    pub route: Arc<str>,
    pub state: ScheduleState,
}

impl RouteSchedule {
    pub fn name(&self) -> &str {
        self.state.id.schedule().unwrap_or_default()
    }

    /// When the next occurrence is sent, in milliseconds; `None`: it is paused or has ended.
    pub fn sends_at(&self) -> Option<u64> {
        let next = self.state.next.filter(|_| !self.state.is_paused)?;
        Some(self.state.recurring.rule.timetable().ok()?.fires(self.name(), next.get()))
    }

    /// The occurrence that is waited for or in flight, and those after `now`, in milliseconds. A paused schedule has only
    /// the latter.
    pub fn following(&self, now: u64, count: usize) -> Vec<UnixMillis> {
        let Ok(timetable) = self.state.recurring.rule.timetable() else { return Vec::new() };
        let next = self.state.next.filter(|_| !self.state.is_paused);
        let after = next.map_or(now, |next| next.get().max(now));
        next.into_iter().chain(timetable.following(after).filter_map(UnixMillis::new)).take(count).collect()
    }
}

/// Why a schedule was not changed.
#[derive(Debug, thiserror::Error)]
pub enum ScheduleError {
    #[error(transparent)]
    Queue(#[from] QueueError),
    #[error("{}: {}", .0.field, .0.text)]
    Rule(RuleError),
    #[error("there is no schedule `{0}`")]
    Unknown(String),
    #[error("the schedule `{0}` is of the configuration file: change it there")]
    Managed(String),
    #[error("the schedule `{0}` is of a file with a higher `schedules_revision`")]
    Older(String),
    #[error("the schedule `{0}` is changed again and again by others")]
    Conflict(String),
    #[error("the schedule `{0}` is of the route `{1}`, which cannot be changed: delete it first")]
    OtherRoute(String, String),
    #[error("the schedule `{0}` is of the route `{1}`, which is not configured: configure that to change or delete it")]
    Unconfigured(String, String),
    #[error("the schedule `{0}` cannot be moved to another partition while its occurrence is in flight: try again")]
    Moving(String),
}

impl From<StoreError> for ScheduleError {
    fn from(error: StoreError) -> Self {
        Self::Queue(error.into())
    }
}

impl NewSchedule {
    pub fn name(&self) -> &str {
        self.id.schedule().unwrap_or_default()
    }

    /// The revision of the definition: equal for equal definitions, on all instances.
    pub fn revision(&self) -> String {
        let json = |value: serde_json::Result<String>| value.expect("strings and integers always serialize");
        let parts = [
            json(serde_json::to_string(&self.rule)),
            json(serde_json::to_string(&self.metadata)),
            format!("{:?}", self.expires_after),
        ];
        let id = digest(&[parts[0].as_bytes(), parts[1].as_bytes(), parts[2].as_bytes(), &self.payload]);
        id.as_str().trim_start_matches('~')[..16].to_owned()
    }
}

impl Queue {
    /// Changes when routes are registered that were not in Redis: it may have been emptied.
    pub fn registered(&self) -> tokio::sync::watch::Receiver<u64> {
        self.registry.registered()
    }

    /// The schedules of this id, by route. More than one exist if a route could not be read when another was set. Also
    /// the first error, if a route cannot be read.
    async fn find_all(&self, id: &MessageId) -> (Vec<RouteSchedule>, Option<QueueError>) {
        let store = self.store();
        let look = async |route: Arc<str>| {
            let state = store.schedule_state(&self.partition(&route, id)?, id).await?;
            Ok(state.map(|state| RouteSchedule { route, state }))
        };
        let (mut found, mut first_error) = (Vec::new(), None);
        for one in join_all(self.routes().into_iter().map(look)).await {
            match one {
                Ok(one) => found.extend(one),
                Err(error) => first_error = first_error.or(Some(error)),
            }
        }
        (found, first_error)
    }

    /// A route that is not configured, with a schedule of this id: that goes on when the route is configured again.
    async fn unconfigured_with(&self, id: &MessageId) -> Result<Option<Arc<str>>, QueueError> {
        let store = self.store();
        let all = store.known_partitions(id).await?;
        for partition in all.into_iter().filter(|partition| !self.has_route(&partition.route)) {
            match store.has_schedule(&partition, id).await {
                Ok(true) => return Ok(Some(partition.route)),
                // Keys of another type hold no schedule.
                Ok(false) | Err(StoreError::WrongType { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(None)
    }

    /// The schedule of this id, on whichever route.
    ///
    /// # Errors
    /// When it is not found, and a route cannot be read.
    pub async fn find_schedule(&self, id: &MessageId) -> Result<Option<RouteSchedule>, QueueError> {
        let (found, error) = self.find_all(id).await;
        match (found.into_iter().next(), error) {
            (None, Some(error)) => Err(error),
            (one, _) => Ok(one),
        }
    }

    /// The schedules of this id that a new one on `route` replaces or must not coexist with, by route. A route with keys of
    /// another type has none: its schedules stop, and those of other routes are set.
    ///
    /// # Errors
    /// When there is none on `route`, and Redis is unavailable.
    pub async fn schedules_of_name(&self, id: &MessageId, route: &str) -> Result<Vec<RouteSchedule>, QueueError> {
        let (found, error) = self.find_all(id).await;
        match error.filter(|_| !found.iter().any(|one| &*one.route == route)) {
            Some(error @ QueueError::Store(StoreError::Unavailable { .. })) => Err(error),
            _ => Ok(found),
        }
    }

    /// The schedule of this id on this route.
    ///
    /// # Errors
    /// `Unknown` if there is none.
    pub async fn schedule_on(&self, route: &Arc<str>, id: &MessageId) -> Result<RouteSchedule, ScheduleError> {
        let store = self.store();
        let state = store.schedule_state(&self.partition(route, id)?, id).await?;
        Ok(RouteSchedule { route: route.clone(), state: state.ok_or_else(|| unknown(id))? })
    }

    /// All schedules of these routes, by name.
    pub async fn schedules(&self, routes: &[Arc<str>]) -> Result<Vec<RouteSchedule>, QueueError> {
        let store = self.store();
        let mut all = Vec::new();
        for route in routes {
            let found = self.route(route)?;
            let partitions = found.partitions.iter().map(|(partition, _)| partition.clone());
            for partition in partitions.chain(store.former_partitions(route)) {
                let states = store.schedules(&partition).await?;
                all.extend(states.into_iter().map(|state| RouteSchedule { route: route.clone(), state }));
            }
        }
        all.sort_by(|a, b| a.state.id.cmp(&b.state.id));
        Ok(all)
    }

    /// Sets a schedule. One of the same name on another route is deleted, if both are of a file. An equal one stays as
    /// it is.
    ///
    /// # Errors
    /// `Rule` and `Managed`: nothing was changed.
    pub async fn set_schedule(&self, new: NewSchedule) -> Result<ScheduleChange, ScheduleError> {
        let name = new.id.schedule().unwrap_or_default().to_owned();
        let found = self.route(&new.route)?;
        if new.payload.len() > found.max_payload {
            let text = format!("the payload takes {} bytes, at most {}", new.payload.len(), found.max_payload);
            return Err(StoreError::Refused { slug: "too-large".into(), text }.into());
        }
        let now = self.now(&new.route).await?;
        for _ in 0..MAX_ATTEMPTS {
            let known = self.schedules_of_name(&new.id, &new.route).await?;
            let same = known.iter().find(|known| known.route == new.route).map(|known| &known.state);
            // A file is applied again when the route is configured.
            if known.is_empty()
                && new.owner == ScheduleOwner::Api
                && let Some(route) = self.unconfigured_with(&new.id).await?
            {
                return Err(ScheduleError::Unconfigured(name, route.to_string()));
            }
            let is_same_rule = same.is_some_and(|state| state.recurring.rule == new.rule);
            // A rule in force is not checked anew: its end can have passed.
            let timetable = if is_same_rule { new.rule.timetable() } else { new.rule.check(now) };
            let timetable = timetable.map_err(ScheduleError::Rule)?;
            for other in known.iter().filter(|known| known.route != new.route) {
                // A file is applied again after a failure in between; a caller might not come back.
                if new.owner == ScheduleOwner::Api {
                    return Err(ScheduleError::OtherRoute(name, other.route.to_string()));
                }
                self.delete(other, new.owner).await?;
            }
            let next = match same {
                Some(state) if is_same_rule && !state.is_lost => NextOccurrence::Kept,
                _ => first(&timetable, &name, now)?,
            };
            let change = self.define(&new, same.map(|state| &*state.recurring.revision), next).await?;
            match change {
                ScheduleChange::Conflict => continue,
                ScheduleChange::Managed => return Err(ScheduleError::Managed(name)),
                ScheduleChange::Older => return Err(ScheduleError::Older(name)),
                ScheduleChange::Moving => return Err(ScheduleError::Moving(name)),
                ScheduleChange::Unchanged => {}
                _ => {
                    metrics::begin_schedule(&name);
                    if let NextOccurrence::At { at, .. } = next {
                        metrics::schedule_next(&name, Some(at.get()));
                    }
                }
            }
            return Ok(change);
        }
        Err(ScheduleError::Conflict(name))
    }

    /// Sets a schedule again that lost its message, because keys were edited. Returns whether it did.
    pub async fn restore_schedule(&self, one: &RouteSchedule) -> Result<bool, ScheduleError> {
        let RouteSchedule { route, state } = one;
        if !state.is_lost {
            return Ok(false);
        }
        let ScheduleState { id, owner, recurring, metadata, payload, .. } = state.clone();
        let (route, rule, expires_after) = (route.clone(), recurring.rule, recurring.expires_after);
        let new = NewSchedule { id, route, owner, rule, expires_after, metadata, payload };
        Ok(self.set_schedule(new).await? == ScheduleChange::Changed)
    }

    async fn define(
        &self,
        new: &NewSchedule,
        replaces: Option<&str>,
        next: NextOccurrence,
    ) -> Result<ScheduleChange, QueueError> {
        let store = self.store();
        let recurring =
            Recurring { revision: new.revision(), rule: new.rule.clone(), expires_after: new.expires_after };
        let metadata = Metadata { recurring: Some(recurring.into()), ..new.metadata.clone() };
        let definition =
            ScheduleDefinition { id: new.id.clone(), owner: new.owner, metadata, payload: new.payload.clone() };
        let partition = &self.partition(&new.route, &new.id)?;
        let set = || store.set_schedule(partition, &definition, replaces, next);
        Ok(self.registry.when_open(set).await?)
    }

    /// Deletes a schedule on its route.
    ///
    /// # Errors
    /// `Managed`, `Older` and `Moving`: it is still there.
    pub async fn delete(&self, one: &RouteSchedule, owner: ScheduleOwner) -> Result<ScheduleChange, ScheduleError> {
        let store = self.store();
        let (id, name) = (&one.state.id, one.name().to_owned());
        let partition = &self.partition(&one.route, id)?;
        let change =
            self.registry.when_open(|| store.delete_schedule(partition, id, owner)).await.map_err(QueueError::from)?;
        match change {
            ScheduleChange::Managed => Err(ScheduleError::Managed(name)),
            ScheduleChange::Older => Err(ScheduleError::Older(name)),
            ScheduleChange::Moving => Err(ScheduleError::Moving(name)),
            change => {
                metrics::schedule_next(&name, None);
                Ok(change)
            }
        }
    }

    /// Deletes a schedule. Its occurrence in flight ends as it is.
    ///
    /// # Errors
    /// `Unknown` if there is none.
    pub async fn delete_schedule(&self, id: &MessageId, owner: ScheduleOwner) -> Result<RouteSchedule, ScheduleError> {
        let (mut deleted, all) = (None, self.known_schedules(id).await?);
        let is_managed = |one: &RouteSchedule| matches!(one.state.owner, ScheduleOwner::File { .. });
        if owner == ScheduleOwner::Api && all.iter().any(is_managed) {
            return Err(ScheduleError::Managed(id.schedule().unwrap_or_default().to_owned()));
        }
        for one in all {
            if self.delete(&one, owner).await? != ScheduleChange::Absent {
                deleted.get_or_insert(one);
            }
        }
        deleted.ok_or_else(|| unknown(id))
    }

    /// Pauses or resumes a schedule. Returns it as it was, and whether that changed anything.
    ///
    /// # Errors
    /// `Unknown` if there is none.
    pub async fn pause_schedule(&self, id: &MessageId, pause: bool) -> Result<(RouteSchedule, bool), ScheduleError> {
        let (store, mut first, mut is_changed) = (self.store(), None, false);
        for one in self.known_schedules(id).await? {
            let partition = &self.partition(&one.route, id)?;
            let call = || store.pause_schedule(partition, id, pause);
            match self.registry.when_open(call).await.map_err(QueueError::from)? {
                ScheduleChange::Absent => continue,
                ScheduleChange::Moving => return Err(ScheduleError::Moving(one.name().to_owned())),
                change => is_changed |= change == ScheduleChange::Changed,
            }
            first.get_or_insert(one);
        }
        first.map(|one| (one, is_changed)).ok_or_else(|| unknown(id))
    }

    /// Sends an occurrence now. The next one stays where it is. The limits of the route apply.
    ///
    /// # Errors
    /// `Unknown` if there is none.
    pub async fn run_schedule(&self, id: &MessageId, via: &str) -> Result<(RouteSchedule, Scheduled), ScheduleError> {
        let one = self.known_schedule(id).await?;
        let now = UnixMillis::new(self.now(&one.route).await?).unwrap_or_default();
        let RouteSchedule { state: ScheduleState { metadata, payload, recurring, .. }, .. } = &one;
        let message = StoredMessage { due: now, accepted: now, metadata: metadata.clone(), payload: payload.clone() };
        let Some(mut run) = OccurrenceMessage::of(one.name(), &message) else {
            return Err(ScheduleError::Unknown(one.name().to_owned()));
        };
        run.metadata.expires_at = recurring.expires_after.map(|after| now.get().saturating_add(after));
        let scheduled = self.schedule(&one.route, via, vec![run.into()]).await?.swap_remove(0);
        Ok((one, scheduled))
    }

    /// The schedule of this id.
    ///
    /// # Errors
    /// `Unknown` if there is none.
    pub async fn known_schedule(&self, id: &MessageId) -> Result<RouteSchedule, ScheduleError> {
        self.known_schedules(id).await.map(|mut all| all.swap_remove(0))
    }

    /// The schedules of this id, at least one. More than one exist if a route could not be read when another was set.
    ///
    /// # Errors
    /// `Unknown` if there is none.
    pub async fn known_schedules(&self, id: &MessageId) -> Result<Vec<RouteSchedule>, ScheduleError> {
        match self.find_all(id).await {
            (found, _) if !found.is_empty() => Ok(found),
            (_, Some(error)) => Err(error.into()),
            _ => Err(unknown(id)),
        }
    }
}

fn unknown(id: &MessageId) -> ScheduleError {
    ScheduleError::Unknown(id.schedule().unwrap_or_default().to_owned())
}

fn first(timetable: &Timetable, name: &str, now: u64) -> Result<NextOccurrence, ScheduleError> {
    let next = timetable.next(now);
    let times = next.and_then(|next| UnixMillis::new(next).zip(UnixMillis::new(timetable.fires(name, next))));
    let ended = || ScheduleError::Rule(RuleError { field: "ends_at", text: "has passed".into() });
    times.map(|(occurrence, at)| NextOccurrence::At { occurrence, at }).ok_or_else(ended)
}
