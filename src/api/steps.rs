//! Deliveries, failed attempts, lateness and pending messages of the last 24 hours, by route, in steps of five minutes.
//! They are in memory, and begin with the process.

use std::{
    collections::{BTreeMap, VecDeque},
    iter,
};

use super::activity::Activity;
use crate::metrics::BUCKETS;

/// Length of a step in ms.
pub const STEP_MILLIS: u64 = 300_000;

/// Maximum steps of a route, the running one included: 24 hours. Each takes 16 bytes, so a route takes 4.6 KB.
pub const STEPS: usize = 288;

/// Steps of a short chart that are one: half an hour.
pub const PER_SHORT: u64 = 6;

/// Percentile of lateness.
const SHARE: f64 = 0.99;

/// The numbers of a route in a step.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Step {
    delivered: u32,
    failed: u32,
    /// In seconds; NaN without a delivery.
    p99: f32,
    /// `UNKNOWN`: not read.
    pending: u32,
}

const UNKNOWN: u32 = u32::MAX;

impl Step {
    const EMPTY: Step = Step { delivered: 0, failed: 0, p99: f32::NAN, pending: UNKNOWN };
}

struct Series {
    /// The counters at the end of the last step.
    known: Activity,
    ended: VecDeque<Step>,
}

/// The steps of all routes. A step is named by its number since 1970.
pub struct Steps {
    began: u64,
    /// The running step.
    current: u64,
    routes: BTreeMap<String, Series>,
}

/// A chart: one value for each step, from `first` on, in ms. The last step is running.
#[derive(Clone, Debug, PartialEq)]
pub struct Chart {
    pub first: u64,
    pub delivered: Vec<u64>,
    pub failed: Vec<u64>,
    /// In seconds; the largest of several routes. `None` without a delivery.
    pub p99: Vec<Option<f64>>,
    /// At the end of the step. `None` if it was not read.
    pub pending: Vec<Option<u64>>,
}

impl Steps {
    /// `now`: in ms.
    pub fn new(now: u64) -> Self {
        Self { began: now, current: now / STEP_MILLIS, routes: BTreeMap::new() }
    }

    /// The time in ms from which on deliveries are counted.
    pub fn began(&self) -> u64 {
        self.began
    }

    /// Whether `now`, in ms, is in the running step.
    pub fn is_running(&self, now: u64) -> bool {
        self.current == now / STEP_MILLIS
    }

    /// Ends the running step unless `now` is in it. `activity`: the counters of all routes. Returns the step that ended.
    pub fn record(&mut self, now: u64, activity: &BTreeMap<&str, Activity>) -> Option<u64> {
        let next = now / STEP_MILLIS;
        if next <= self.current {
            // The clock was set back: the steps after it are not of this day.
            let back = usize::try_from(self.current - next).unwrap_or(usize::MAX);
            self.routes.values_mut().for_each(|one| one.ended.truncate(one.ended.len().saturating_sub(back)));
            self.current = next;
            return None;
        }
        let ended = self.current;
        let skipped = usize::try_from(next - ended - 1).unwrap_or(usize::MAX).min(STEPS);
        for route in activity.keys() {
            if !self.routes.contains_key(*route) {
                self.routes.insert((*route).to_owned(), Series::with_capacity(STEPS - 1));
            }
        }
        for (route, series) in &mut self.routes {
            let step = activity.get(route.as_str()).map_or(Step::EMPTY, |now| series.running(now));
            for step in iter::once(step).chain(iter::repeat_n(Step::EMPTY, skipped)) {
                if series.ended.len() == STEPS - 1 {
                    series.ended.pop_front();
                }
                series.ended.push_back(step);
            }
            if let Some(now) = activity.get(route.as_str()) {
                series.known.clone_from(now);
            }
        }
        self.current = next;
        Some(ended)
    }

    /// Sets the number of pending messages of a route at the end of a step.
    pub fn set_pending(&mut self, step: u64, route: &str, pending: u64) {
        let back = self.current.saturating_sub(step);
        let Some(series) = self.routes.get_mut(route) else { return };
        let place = usize::try_from(back).ok().and_then(|back| series.ended.len().checked_sub(back));
        if let Some(step) = place.and_then(|place| series.ended.get_mut(place)) {
            step.pending = u32::try_from(pending).unwrap_or(UNKNOWN).min(UNKNOWN - 1);
        }
    }

    /// The sum of several routes. `activity`: their counters now.
    pub fn chart<'a>(&self, routes: impl IntoIterator<Item = (&'a str, &'a Activity)>) -> Chart {
        let first = (self.began / STEP_MILLIS).max((self.current + 1).saturating_sub(STEPS as u64));
        let first = first.min(self.current);
        let count = usize::try_from(self.current - first).map_or(STEPS, |ended| ended + 1);
        let mut chart = Chart {
            first: first * STEP_MILLIS,
            delivered: vec![0; count],
            failed: vec![0; count],
            p99: vec![None; count],
            pending: vec![None; count],
        };
        let empty = Series::with_capacity(0);
        for (route, now) in routes {
            let series = self.routes.get(route).unwrap_or(&empty);
            let steps = series.ended.iter().copied().chain(iter::once(series.running(now)));
            // A route that is younger than the process has fewer steps.
            let missing = count.saturating_sub(series.ended.len() + 1);
            for (n, step) in (missing..count).zip(steps.skip((series.ended.len() + 1).saturating_sub(count))) {
                chart.delivered[n] += u64::from(step.delivered);
                chart.failed[n] += u64::from(step.failed);
                let late = (!step.p99.is_nan()).then_some(f64::from(step.p99));
                chart.p99[n] = [chart.p99[n], late].into_iter().flatten().reduce(f64::max);
                if step.pending != UNKNOWN {
                    chart.pending[n] = Some(chart.pending[n].unwrap_or(0) + u64::from(step.pending));
                }
            }
        }
        for late in chart.p99.iter_mut().flatten() {
            *late = (*late * 10_000.0).round() / 10_000.0;
        }
        chart
    }
}

impl Chart {
    /// The time of the first half hour in ms, and deliveries and failures by half hour. `None` if nothing happened.
    pub fn short(&self) -> Option<(u64, Vec<u64>, Vec<u64>)> {
        if self.delivered.iter().chain(&self.failed).all(|count| *count == 0) {
            return None;
        }
        let first = self.first / STEP_MILLIS;
        let sums = |counts: &[u64]| {
            let mut sums: Vec<u64> = Vec::new();
            for (step, count) in (first..).zip(counts) {
                let place = usize::try_from(step / PER_SHORT - first / PER_SHORT).expect("at most STEPS");
                sums.resize(sums.len().max(place + 1), 0);
                sums[place] += count;
            }
            sums
        };
        Some((first / PER_SHORT * PER_SHORT * STEP_MILLIS, sums(&self.delivered), sums(&self.failed)))
    }
}

impl Series {
    fn with_capacity(steps: usize) -> Self {
        Self { known: Activity::default(), ended: VecDeque::with_capacity(steps) }
    }

    /// The numbers since the end of the last step.
    fn running(&self, now: &Activity) -> Step {
        // The counters of a sink that was replaced are gone: a smaller sum began again.
        let since = |now: u64, known: u64| now.checked_sub(known).unwrap_or(now);
        let known = self.known.lateness.iter().copied().chain(iter::repeat(0));
        let late: Vec<u64> = now.lateness.iter().zip(known).map(|(now, known)| since(*now, known)).collect();
        let count = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        Step {
            delivered: count(since(now.delivered, self.known.delivered)),
            failed: count(since(now.failed, self.known.failed)),
            p99: p99(&late),
            pending: UNKNOWN,
        }
    }
}

/// `late`: cumulative counts, as those of `Activity`. Beyond the largest bound it is that bound.
#[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, reason = "an estimate within a bucket")]
fn p99(late: &[u64]) -> f32 {
    let all = late.last().copied().unwrap_or(0);
    if all == 0 {
        return f32::NAN;
    }
    let rank = all as f64 * SHARE;
    let at = late.iter().position(|count| *count as f64 >= rank).unwrap_or(BUCKETS.len());
    let Some(bound) = BUCKETS.get(at) else { return BUCKETS[BUCKETS.len() - 1] as f32 };
    let (from, below) = at.checked_sub(1).map_or((0.0, 0), |before| (BUCKETS[before], late[before]));
    (from + (bound - from) * (rank - below as f64) / (late[at] - below) as f64) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 12;

    /// `late`: deliveries within the bound of the place, not cumulative.
    fn activity(delivered: u64, failed: u64, late: (usize, u64)) -> Activity {
        let lateness = (0..=BUCKETS.len()).map(|place| if place >= late.0 { late.1 } else { 0 }).collect();
        Activity { delivered, failed, lateness }
    }

    fn at(step: u64) -> u64 {
        step * STEP_MILLIS
    }

    #[test]
    fn a_step_has_the_difference_of_the_counters_and_the_last_one_is_running() {
        let mut steps = Steps::new(at(1000) + 7);
        let first = BTreeMap::from([("a", activity(100, 3, (0, 100)))]);
        assert!(steps.is_running(at(1001) - 1));
        assert_eq!(steps.record(at(1001) - 1, &first), None);
        assert_eq!(steps.record(at(1001), &first), Some(1000));
        steps.set_pending(1000, "a", 12);
        let now = activity(150, 3, (9, 150));
        let chart = steps.chart([("a", &now)]);
        assert_eq!((chart.first, &chart.delivered, &chart.failed), (at(1000), &vec![100, 50], &vec![3, 0]));
        assert_eq!(chart.pending, [Some(12), None]);
        // 99 of 100 within the first bound; of the others, which took up to a second, 99 % of the last interval.
        assert_eq!(chart.p99[0], Some(0.001));
        assert_eq!(chart.p99[1], Some(0.995));
        assert_eq!(steps.chart([("unknown", &Activity::default())]).delivered, [0, 0]);
        // Its sink was replaced.
        assert_eq!(steps.chart([("a", &activity(4, 1, (0, 4)))]).delivered, [100, 4]);
    }

    #[test]
    fn a_day_is_kept_and_a_route_takes_the_bytes_that_the_pages_name() {
        let mut steps = Steps::new(at(5000));
        for step in 5001..=5400 {
            steps.record(at(step), &BTreeMap::from([("a", activity(step - 5000, 0, (0, step - 5000)))]));
        }
        let chart = steps.chart([("a", &activity(400, 0, (0, 400)))]);
        assert_eq!((chart.first, chart.delivered.len()), (at(5400 - 287), STEPS));
        assert_eq!(chart.delivered.iter().sum::<u64>(), 287, "the running step has none");
        let ended = &steps.routes["a"].ended;
        assert_eq!((size_of::<Step>(), ended.len(), ended.capacity()), (16, STEPS - 1, STEPS - 1));
        let (first, delivered, failed) = chart.short().expect("deliveries");
        assert_eq!((first, delivered.len()), (at((5400 - 287) / 6 * 6), 49));
        assert_eq!((delivered.iter().sum::<u64>(), failed), (287, vec![0; 49]));
        assert_eq!(steps.chart([("b", &Activity::default())]).short(), None);
    }

    #[test]
    fn routes_are_added_up_and_a_younger_one_has_fewer_steps() {
        let mut steps = Steps::new(at(100));
        let (old, new) = (activity(5, 1, (0, 5)), activity(2, 0, (12, 2)));
        steps.record(at(101), &BTreeMap::from([("old", old.clone())]));
        steps.record(at(102), &BTreeMap::from([("old", old.clone()), ("new", new.clone())]));
        for route in ["old", "new"] {
            steps.set_pending(101, route, 4);
        }
        let chart = steps.chart([("old", &old), ("new", &new)]);
        assert_eq!((chart.delivered, chart.failed), (vec![5, 2, 0], vec![1, 0, 0]));
        assert_eq!(chart.pending, [None, Some(8), None]);
        assert!(chart.p99[0] < Some(0.01) && chart.p99[1] > Some(10.0) && chart.p99[2].is_none());
    }

    #[test]
    fn a_clock_that_jumps_leaves_no_step_at_a_wrong_time() {
        let mut steps = Steps::new(at(100));
        let done = activity(9, 0, (0, 9));
        let counters = BTreeMap::from([("a", done.clone())]);
        steps.record(at(100 + 2 * HOUR), &counters);
        let mut expected = vec![0; 25];
        expected[0] = 9;
        assert_eq!(steps.chart([("a", &done)]).delivered, expected);
        // Back by an hour, then a year ahead.
        steps.record(at(100 + HOUR), &counters);
        expected.truncate(13);
        assert_eq!(steps.chart([("a", &done)]).delivered, expected);
        steps.record(at(100_000), &counters);
        assert_eq!(steps.chart([("a", &done)]).delivered, vec![0; STEPS]);
        // Before its start.
        steps.record(at(50), &counters);
        let chart = steps.chart([("a", &done)]);
        assert_eq!((chart.first, chart.delivered), (at(50), vec![0]));
    }
}
