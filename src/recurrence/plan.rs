//! Which occurrence is next, after those that were missed.

use std::collections::VecDeque;

use super::{Missed, Times, Timetable};

/// An occurrence that could not begin within this time was missed, in milliseconds. With `missed: skip` it is not sent.
/// It is far more than the lateness of a busy instance, and less than an outage that an operator sees.
const GRACE: u64 = 10_000;

/// Maximum number of missed occurrences of a cron expression that are counted: 10,000 take about 50 ms.
const MAX_COUNTED: u64 = 10_000;

/// The next occurrence, and the number of missed ones before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The next occurrence. It can have passed already. `None`: the schedule has ended.
    pub occurrence: Option<u64>,
    /// Occurrences before it that are not sent.
    pub missed: u64,
}

/// The decision about an occurrence that was claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    Send,
    /// Its time or the rule changed.
    Plan(Plan),
}

impl Timetable {
    /// The plan when all occurrences up to `after` are done.
    pub fn plan(&self, after: u64, now: u64) -> Plan {
        let most = match self.missed {
            Missed::Skip => 0,
            Missed::Last => 1,
            Missed::All(most) => usize::from(most),
        };
        let (last, count) = self.between(after, now, most);
        let occurrence = last.front().copied().or_else(|| self.next(after.max(now)));
        Plan { occurrence, missed: count - last.len() as u64 }
    }

    /// The decision about `occurrence`, which was planned at `planned` and claimed at `now`. `planned` is 0 if it is done,
    /// and what follows is not planned yet. `tried`: it was sent before.
    pub fn turn(&self, schedule: &str, occurrence: u64, planned: u64, tried: bool, now: u64) -> Turn {
        if planned == 0 {
            return Turn::Plan(self.plan(occurrence, now));
        }
        let fires = self.fires(schedule, occurrence);
        if now < fires {
            return Turn::Plan(Plan { occurrence: Some(occurrence), missed: 0 });
        }
        // One that was chosen after its time is sent however late it is.
        let is_in_time = || now - fires <= GRACE && self.next(occurrence).is_none_or(|next| next > now);
        if tried || planned >= occurrence || is_in_time() {
            return Turn::Send;
        }
        match self.plan(occurrence - 1, now) {
            plan if plan.occurrence == Some(occurrence) => Turn::Send,
            plan => Turn::Plan(plan),
        }
    }

    /// The last `most` occurrences after `after` and up to `now`, and the number of all of them.
    fn between(&self, after: u64, now: u64, most: usize) -> (VecDeque<u64>, u64) {
        let now = now.min(self.ends_at - 1);
        let (mut at, mut count, mut last) = (after, 0, VecDeque::new());
        if let Times::Every(every) = self.times
            && let Some(first) = self.next(after)
        {
            let all = (now + every).saturating_sub(first) / every;
            count = all.saturating_sub(most as u64);
            at = if count > 0 { first + (count - 1) * every } else { after };
        }
        while let Some(next) = self.next(at).filter(|next| *next <= now) {
            if count == MAX_COUNTED
                && let Times::Cron(cron) = &self.times
            {
                let before = std::iter::successors(cron.previous(now + 1000), |at| cron.previous(*at));
                let mut last: VecDeque<_> = before.take(most).collect();
                last.make_contiguous().reverse();
                return (last, count);
            }
            if most > 0 {
                if last.len() == most {
                    last.pop_front();
                }
                last.push_back(next);
            }
            (at, count) = (next, count + 1);
        }
        (last, count)
    }
}
