//! Polls for due members and moves them.

use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};

use super::{RedisSets, naming::entry};
use crate::{
    incidents::Sample,
    message::MessageId,
    source::{Intake, Stopped},
    store::{
        WakeReason,
        redis::{ExternalDue, ExternalEntry, MoveOutcome, MovedEntry, PendingCapacity},
    },
};

/// Minimum time between two polls that find nothing.
const MIN_SLEEP: Duration = Duration::from_millis(2);
/// Minimum time after a poll that a notification caused: producers can add thousands of members a second that are due
/// much later.
const NOTIFIED_SLEEP: Duration = Duration::from_millis(20);
/// Polls in a row that lost all their members to others, after which the delays grow.
const LOST_POLLS_BEFORE_BACKOFF: u32 = 3;
/// Maximum delay after such polls.
const MAX_LOST_DELAY: Duration = Duration::from_millis(100);
/// First and maximum delay while the route has no capacity for due members.
const CAPACITY_DELAYS: [Duration; 2] = [Duration::from_millis(5), Duration::from_secs(1)];
/// Minimum time between two checks of a paused route. Every message that is scheduled on it also wakes the source.
const PAUSED_SLEEP: Duration = Duration::from_millis(100);

impl RedisSets {
    /// Moves due members until punctual stops.
    pub(super) async fn follow(&self, intake: &Intake) -> Result<(), Stopped> {
        let mut notifications = Notifications { is_enabled: false, checked: None };
        // `prompted`: a notification caused this poll. `lost`: polls in a row that lost all their members to others.
        // `stuck`: polls in a row for which the route had no capacity.
        let (mut prompted, mut lost, mut stuck) = (false, 0, 0);
        loop {
            // Signals since the last wait are kept, so none is lost between the poll and the sleep.
            notifications.check(self).await;
            let due = intake.until_done(|| intake.queue().external_due(&self.place)).await?;
            let polled = Instant::now();
            if due.members.is_empty() {
                lost = 0;
                let next = until_next(&due);
                let floor = if prompted { NOTIFIED_SLEEP } else { MIN_SLEEP };
                let longest = self.longest_sleep(&notifications);
                tokio::select! {
                    () = sleep(next.map_or(longest, |next| next.min(longest))) => prompted = false,
                    ring = self.bells.changed.notified() => {
                        prompted = ring == WakeReason::HeadEarlier;
                        if !prompted {
                            notifications.checked = None;
                        }
                    }
                }
                sleep_until(polled + next.map_or(floor, |next| floor.min(next.max(MIN_SLEEP)))).await;
                continue;
            }
            prompted = false;
            match self.take(intake, due).await? {
                TakeOutcome::Moved => (lost, stuck) = (0, 0),
                TakeOutcome::Lost => {
                    lost += 1;
                    sleep(lost_delay(lost)).await;
                }
                TakeOutcome::NoCapacity(ids) => {
                    lost = 0;
                    self.wait_for_capacity(intake, &ids).await?;
                    // Another instance might have registered the route with lower limits.
                    sleep(if stuck > 0 { lost_delay(LOST_POLLS_BEFORE_BACKOFF + stuck) } else { Duration::ZERO }).await;
                    stuck += 1;
                }
            }
        }
    }

    fn longest_sleep(&self, notifications: &Notifications) -> Duration {
        if notifications.is_enabled && self.bells.changed.is_listening() { self.max_sleep } else { self.poll }
    }

    /// Waits until the route has capacity for some of `ids`. Each check is one small call. While the route is paused,
    /// wake-ups trigger the checks.
    async fn wait_for_capacity(&self, intake: &Intake, ids: &[MessageId]) -> Result<(), Stopped> {
        let woken = &self.bells.woken;
        let [mut delay, max_delay] = CAPACITY_DELAYS;
        loop {
            let room = intake.until_done(|| intake.queue().capacity(intake.route(), ids)).await?;
            let checked = Instant::now();
            match room {
                PendingCapacity::Free => return Ok(()),
                PendingCapacity::Full => {
                    sleep(delay).await;
                    delay = max_delay.min(delay * 2);
                }
                PendingCapacity::Paused => {
                    let longest = if woken.is_listening() { self.max_sleep } else { max_delay };
                    tokio::select! {
                        () = sleep(longest) => {}
                        _ = woken.notified() => {}
                    }
                    sleep_until(checked + PAUSED_SLEEP).await;
                }
            }
        }
    }

    async fn take(&self, intake: &Intake, due: ExternalDue) -> Result<TakeOutcome, Stopped> {
        let entries: Vec<_> = due.members.into_iter().map(|member| entry(&self.place, member, None)).collect();
        let verdicts = self.take_entries(intake, &entries).await?;
        let of = |wanted| entries.iter().zip(&verdicts).filter(move |(_, one)| **one == wanted);
        let again: Vec<_> =
            of(MoveOutcome::Conflict).map(|(old, _)| entry(&self.place, old.member.clone(), Some(due.now))).collect();
        let mut left: Vec<MessageId> = of(MoveOutcome::Left).map(|(entry, _)| entry.id.clone()).collect();
        let mut moved = verdicts.iter().copied().any(has_left);
        if !again.is_empty() {
            // The member was added again while its message is live. It becomes another message.
            let verdicts = self.take_entries(intake, &again).await?;
            let renamed = verdicts.iter().filter(|verdict| has_left(**verdict)).count();
            intake.metrics().conflicts.increment(renamed as u64);
            moved |= renamed > 0;
            let of_again = again.into_iter().zip(&verdicts).filter(|(_, verdict)| **verdict == MoveOutcome::Left);
            left.extend(of_again.map(|(entry, _)| entry.id));
        }
        Ok(if moved {
            TakeOutcome::Moved
        } else if left.is_empty() {
            TakeOutcome::Lost
        } else {
            TakeOutcome::NoCapacity(left)
        })
    }

    async fn take_entries(&self, intake: &Intake, entries: &[ExternalEntry]) -> Result<Vec<MoveOutcome>, Stopped> {
        let take = || intake.queue().take(intake.route(), intake.name(), &self.place, entries);
        let moved = intake.until_done(take).await?;
        let outcomes: Vec<_> = moved.iter().map(|one| one.outcome).collect();
        intake.took(outcomes.iter().filter(|one| **one == MoveOutcome::Taken).count() as u64);
        let sample =
            |(entry, one): (&ExternalEntry, MovedEntry)| one.error.map(|error| Sample::new(entry.id.as_str(), &error));
        intake.took_invalid(entries.iter().zip(moved).filter_map(sample));
        Ok(outcomes)
    }
}

/// The outcome of a poll with due members.
enum TakeOutcome {
    /// At least one was moved.
    Moved,
    /// None was moved: other consumers had taken them, or they were due a fraction of a millisecond later.
    Lost,
    /// None was moved: the route is paused, or has no capacity for these ids.
    NoCapacity(Vec<MessageId>),
}

fn has_left(verdict: MoveOutcome) -> bool {
    matches!(verdict, MoveOutcome::Taken | MoveOutcome::Invalid)
}

/// Time until the next member is due.
fn until_next(due: &ExternalDue) -> Option<Duration> {
    let next = due.next_due?.get().saturating_mul(1000);
    Some(Duration::from_micros(next.saturating_sub(due.now)))
}

fn lost_delay(polls: u32) -> Duration {
    let doublings = polls.saturating_sub(LOST_POLLS_BEFORE_BACKOFF);
    MIN_SLEEP.saturating_mul(2_u32.saturating_pow(doublings)).min(MAX_LOST_DELAY)
}

/// Whether keyspace notifications were enabled at the last check.
struct Notifications {
    is_enabled: bool,
    checked: Option<Instant>,
}

impl Notifications {
    /// Checks once per `max_sleep`.
    async fn check(&mut self, source: &RedisSets) {
        if self.checked.is_none_or(|checked| checked.elapsed() >= source.max_sleep) {
            self.is_enabled = source.has_notifications().await;
            self.checked = Some(Instant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_grow_while_others_take_all_members() {
        let delays: Vec<_> = [1, 2, 3, 4, 5, 8, 9, 10, u32::MAX].map(|n| lost_delay(n).as_millis()).into();
        assert_eq!(delays, [2, 2, 2, 4, 8, 64, 100, 100, 100]);
    }
}
