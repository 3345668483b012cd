//! When to look, and moving what is due.

use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};

use super::{RedisSets, naming::entry};
use crate::{
    message::MessageId,
    source::{Intake, Stopped},
    store::{
        Ring,
        redis::{ForeignDue, ForeignEntry, Room, Verdict},
    },
};

/// Shortest time between two looks that find nothing.
const MIN_SLEEP: Duration = Duration::from_millis(2);
/// The same after one that a change of their keys had asked for: producers may add thousands a second, due much later.
const BUSY_SLEEP: Duration = Duration::from_millis(20);
/// Looks in a row that found what somebody else took, before the waits between them grow, and the longest wait.
const GONE_IN_A_ROW: u32 = 3;
const GONE_PAUSE: Duration = Duration::from_millis(100);
/// Waits while due members stay where they are because the route is full: the first, and the longest.
const PAUSES: [Duration; 2] = [Duration::from_millis(5), Duration::from_secs(1)];
/// Shortest time between two questions whether the route is still paused: whatever is scheduled on it wakes us, too.
const PAUSED_SLEEP: Duration = Duration::from_millis(100);

impl RedisSets {
    /// Moves what is due, until punctual stops.
    pub(super) async fn follow(&self, intake: &Intake) -> Result<(), Stopped> {
        let mut told = Told { is_told: false, asked: None };
        // Whether a change asked for this look; how many looks in a row found what was gone, or what could not be taken.
        let (mut prompted, mut gone, mut stuck) = (false, 0, 0);
        loop {
            // Subscribe, look, sleep: the bell remembers what rings from here on.
            told.ask(self).await;
            let due = intake.until_done(|| intake.queue().foreign_due(&self.place)).await?;
            let looked = Instant::now();
            if due.members.is_empty() {
                gone = 0;
                let next = until_next(&due);
                let floor = if prompted { BUSY_SLEEP } else { MIN_SLEEP };
                let longest = self.longest_sleep(&told);
                tokio::select! {
                    () = sleep(next.map_or(longest, |next| next.min(longest))) => prompted = false,
                    ring = self.bells.changed.heard() => {
                        prompted = ring == Ring::Notify;
                        if !prompted {
                            told.asked = None;
                        }
                    }
                }
                sleep_until(looked + next.map_or(floor, |next| floor.min(next.max(MIN_SLEEP)))).await;
                continue;
            }
            prompted = false;
            match self.take(intake, due).await? {
                Outcome::Moved => (gone, stuck) = (0, 0),
                // By somebody who is faster, or less than a millisecond early.
                Outcome::Gone => {
                    gone += 1;
                    sleep(gone_pause(gone)).await;
                }
                Outcome::Stuck(ids) => {
                    gone = 0;
                    self.wait_for_room(intake, &ids).await?;
                    // Another instance may have registered the route with lower limits than ours.
                    sleep(if stuck > 0 { gone_pause(GONE_IN_A_ROW + stuck) } else { Duration::ZERO }).await;
                    stuck += 1;
                }
            }
        }
    }

    fn longest_sleep(&self, told: &Told) -> Duration {
        if told.is_told && self.bells.changed.is_listening() { self.max_sleep } else { self.poll }
    }

    /// Until some of these may be taken. Asks with one small call, and while the route is paused only when it was woken.
    async fn wait_for_room(&self, intake: &Intake, ids: &[MessageId]) -> Result<(), Stopped> {
        let woken = &self.bells.woken;
        let mut pause = PAUSES[0];
        loop {
            let room = intake.until_done(|| intake.queue().room(intake.route(), ids)).await?;
            let asked = Instant::now();
            match room {
                Room::Free => return Ok(()),
                Room::Full => {
                    sleep(pause).await;
                    pause = PAUSES[1].min(pause * 2);
                }
                Room::Paused => {
                    let longest = if woken.is_listening() { self.max_sleep } else { PAUSES[1] };
                    tokio::select! {
                        () = sleep(longest) => {}
                        _ = woken.heard() => {}
                    }
                    sleep_until(asked + PAUSED_SLEEP).await;
                }
            }
        }
    }

    async fn take(&self, intake: &Intake, due: ForeignDue) -> Result<Outcome, Stopped> {
        let entries: Vec<_> = due.members.into_iter().map(|member| entry(&self.place, member, None)).collect();
        let verdicts = self.take_entries(intake, &entries).await?;
        let of = |wanted| entries.iter().zip(&verdicts).filter(move |(_, verdict)| **verdict == wanted);
        let again: Vec<_> =
            of(Verdict::Conflict).map(|(old, _)| entry(&self.place, old.member.clone(), Some(due.now))).collect();
        let mut left: Vec<MessageId> = of(Verdict::Left).map(|(entry, _)| entry.id.clone()).collect();
        let mut moved = verdicts.iter().copied().any(has_left);
        if !again.is_empty() {
            // A member that came again while its message is live: another message, not the same one twice.
            let verdicts = self.take_entries(intake, &again).await?;
            let renamed = verdicts.iter().filter(|verdict| has_left(**verdict)).count();
            intake.metrics().conflicts.increment(renamed as u64);
            moved |= renamed > 0;
            let of_again = again.into_iter().zip(&verdicts).filter(|(_, verdict)| **verdict == Verdict::Left);
            left.extend(of_again.map(|(entry, _)| entry.id));
        }
        Ok(if moved {
            Outcome::Moved
        } else if left.is_empty() {
            Outcome::Gone
        } else {
            Outcome::Stuck(left)
        })
    }

    async fn take_entries(&self, intake: &Intake, entries: &[ForeignEntry]) -> Result<Vec<Verdict>, Stopped> {
        let take = || intake.queue().take(intake.route(), intake.name(), &self.place, entries);
        let verdicts = intake.until_done(take).await?;
        let count = |wanted| verdicts.iter().filter(|verdict| **verdict == wanted).count() as u64;
        let (taken, invalid) = (count(Verdict::Taken), count(Verdict::Invalid));
        intake.metrics().taken.increment(taken);
        intake.metrics().invalid.increment(invalid);
        if invalid > 0 {
            let (source, route) = (intake.name(), &**intake.route());
            tracing::warn!(source, route, count = invalid, "some became dead letters, each with its reason");
        }
        Ok(verdicts)
    }
}

/// What became of what a look found.
enum Outcome {
    /// Some of it left its place: look again.
    Moved,
    /// Nothing did: it was no longer there.
    Gone,
    /// Nothing did: the route is paused or full for these.
    Stuck(Vec<MessageId>),
}

fn has_left(verdict: Verdict) -> bool {
    matches!(verdict, Verdict::Taken | Verdict::Invalid)
}

/// Until the first one that is not due yet will be.
fn until_next(due: &ForeignDue) -> Option<Duration> {
    let next = due.next_due?.get().saturating_mul(1000);
    Some(Duration::from_micros(next.saturating_sub(due.now)))
}

fn gone_pause(in_a_row: u32) -> Duration {
    let doublings = in_a_row.saturating_sub(GONE_IN_A_ROW);
    MIN_SLEEP.saturating_mul(2_u32.saturating_pow(doublings)).min(GONE_PAUSE)
}

/// Whether Redis tells of changes, as it was when last asked.
struct Told {
    is_told: bool,
    asked: Option<Instant>,
}

impl Told {
    /// Again with every fallback look.
    async fn ask(&mut self, source: &RedisSets) {
        if self.asked.is_none_or(|asked| asked.elapsed() >= source.max_sleep) {
            self.is_told = source.is_told().await;
            self.asked = Some(Instant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_always_too_late_looks_less_and_less_often() {
        let pauses: Vec<_> = [1, 2, 3, 4, 5, 8, 9, 10, u32::MAX].map(|n| gone_pause(n).as_millis()).into();
        assert_eq!(pauses, [2, 2, 2, 4, 8, 64, 100, 100, 100]);
    }
}
