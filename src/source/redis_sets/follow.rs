//! When to look, and moving what is due.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, sleep, sleep_until};

use super::{RedisSets, naming::entry};
use crate::{
    port::{Bell, Ring},
    source::{Intake, Stopped},
    store::redis::{ForeignDue, ForeignEntry, Verdict, WakeListener},
};

/// Longest sleep while Redis tells of changes: a notification may be lost.
const MAX_SLEEP: Duration = Duration::from_secs(30);
/// How often it is asked whether it tells of changes, at most.
const ASK_INTERVAL: Duration = Duration::from_secs(30);
/// Shortest time between two looks that find nothing: producers may add thousands a second.
const MIN_SLEEP: Duration = Duration::from_millis(2);
/// Waits while due members stay where they are, the route being paused or full: the first, and the longest.
const PAUSES: [Duration; 2] = [Duration::from_millis(5), Duration::from_secs(1)];

impl RedisSets {
    /// Moves what is due, until punctual stops.
    pub(super) async fn follow(&self, intake: &Intake) -> Result<(), Stopped> {
        let bell = Arc::new(Bell::default());
        let mut listener = WakeListener::new(self.client.clone());
        for channel in self.channels() {
            listener.ring_on(channel, &bell);
        }
        tokio::select! {
            () = listener.run() => Ok(()),
            stopped = self.take_turns(intake, &bell) => stopped,
        }
    }

    async fn take_turns(&self, intake: &Intake, bell: &Bell) -> Result<(), Stopped> {
        let mut told = Told { is_told: false, asked: None };
        let mut pause = PAUSES[0];
        loop {
            // Subscribe, look, sleep: the bell remembers what rings from here on.
            told.ask(self).await;
            let due = intake.until_done(|| intake.queue().foreign_due(&self.place)).await?;
            let looked = Instant::now();
            if due.members.is_empty() {
                pause = PAUSES[0];
                let longest = if told.is_told && bell.is_listening() { MAX_SLEEP } else { self.poll };
                let wait = until_next(&due).map_or(longest, |wait| wait.min(longest));
                tokio::select! {
                    () = sleep(wait) => {}
                    ring = bell.heard() => if ring == Ring::Resubscribe { told.asked = None },
                }
                sleep_until(looked + MIN_SLEEP).await;
            } else {
                match self.take(intake, due).await? {
                    Outcome::Moved => pause = PAUSES[0],
                    // By somebody who is faster, or less than a millisecond early.
                    Outcome::Gone => {
                        pause = PAUSES[0];
                        sleep(MIN_SLEEP).await;
                    }
                    Outcome::Stuck => {
                        sleep(pause).await;
                        pause = PAUSES[1].min(pause * 2);
                    }
                }
            }
        }
    }

    async fn take(&self, intake: &Intake, due: ForeignDue) -> Result<Outcome, Stopped> {
        let entries: Vec<_> = due.members.into_iter().map(|member| entry(&self.place, member, None)).collect();
        let verdicts = self.take_entries(intake, &entries).await?;
        let again: Vec<_> = entries
            .into_iter()
            .zip(&verdicts)
            .filter(|(_, verdict)| **verdict == Verdict::Conflict)
            .map(|(old, _)| entry(&self.place, old.member, Some(due.now)))
            .collect();
        let mut moved = verdicts.iter().copied().any(has_left);
        if !again.is_empty() {
            // A member that came again while its message is live: another message, not the same one twice.
            let verdicts = self.take_entries(intake, &again).await?;
            let renamed = verdicts.iter().filter(|verdict| has_left(**verdict)).count();
            intake.metrics().conflicts.increment(renamed as u64);
            moved |= renamed > 0;
        }
        Ok(if moved {
            Outcome::Moved
        } else if verdicts.contains(&Verdict::Gone) {
            Outcome::Gone
        } else {
            Outcome::Stuck
        })
    }

    async fn take_entries(&self, intake: &Intake, entries: &[ForeignEntry]) -> Result<Vec<Verdict>, Stopped> {
        let take = || intake.queue().take(intake.route(), intake.name(), &self.place, entries);
        let verdicts = intake.until_done(take).await?;
        let count = |wanted| verdicts.iter().filter(|verdict| **verdict == wanted).count() as u64;
        intake.metrics().taken.increment(count(Verdict::Taken));
        intake.metrics().invalid.increment(count(Verdict::Invalid));
        Ok(verdicts)
    }
}

/// What became of what a look found.
enum Outcome {
    /// Some of it left its place: look again.
    Moved,
    /// Nothing did, but some was no longer there.
    Gone,
    /// All stays: the route is paused or full.
    Stuck,
}

fn has_left(verdict: Verdict) -> bool {
    matches!(verdict, Verdict::Taken | Verdict::Invalid)
}

/// Until the first one that is not due yet will be.
fn until_next(due: &ForeignDue) -> Option<Duration> {
    let next = due.next_due?.get().saturating_mul(1000);
    Some(Duration::from_micros(next.saturating_sub(due.now)))
}

/// Whether Redis tells of changes, as it was when last asked.
struct Told {
    is_told: bool,
    asked: Option<Instant>,
}

impl Told {
    async fn ask(&mut self, source: &RedisSets) {
        if self.asked.is_none_or(|asked| asked.elapsed() >= ASK_INTERVAL) {
            self.is_told = source.is_told().await;
            self.asked = Some(Instant::now());
        }
    }
}
