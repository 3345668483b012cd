//! Deliveries of this instance since its start, by route: counters and a histogram of lateness. The difference of two
//! calls gives rates.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Value, json};

use super::auth::Grant;
use crate::metrics::{BUCKETS, DELIVERED, FAILURES, LATENESS};

/// Since the start of this instance.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Activity {
    /// Messages that the sink confirmed.
    pub delivered: u64,
    /// Attempts that were not confirmed.
    pub failed: u64,
    /// Deliveries with a lateness up to each bound, then all deliveries: cumulative, as in `/metrics`.
    pub lateness: Vec<u64>,
}

/// The activity of the routes that the token covers. `page`: the recorder's page of metrics.
pub fn shown(page: &str, grant: &Grant) -> Value {
    let mut routes = by_route(page);
    routes.retain(|route, _| grant.covers(route));
    json!({ "lateness_bounds_seconds": BUCKETS, "routes": routes })
}

/// Messages that were delivered and attempts that failed, of all routes.
pub fn total(page: &str) -> (u64, u64) {
    by_route(page).values().fold((0, 0), |sum, route| (sum.0 + route.delivered, sum.1 + route.failed))
}

/// `page`: the recorder's page of metrics.
pub fn by_route(page: &str) -> BTreeMap<&str, Activity> {
    let mut routes: BTreeMap<&str, Activity> = BTreeMap::new();
    for (name, labels, value) in page.lines().filter_map(series) {
        let is_bucket = name.strip_suffix("_bucket") == Some(LATENESS);
        if !is_bucket && name != DELIVERED && name != FAILURES {
            continue;
        }
        let (Some(route), Ok(value)) = (label(labels, "route"), value.parse::<u64>()) else { continue };
        let activity = routes.entry(route).or_default();
        match name {
            DELIVERED => activity.delivered += value,
            FAILURES => activity.failed += value,
            _ => activity.lateness.push(value),
        }
    }
    routes
}

/// Name, labels and value of a line of the page.
fn series(line: &str) -> Option<(&str, &str, &str)> {
    let (name, rest) = line.split_once('{')?;
    let (labels, value) = rest.rsplit_once("} ")?;
    Some((name, labels, value))
}

/// Names of routes need no unescaping.
fn label<'a>(labels: &'a str, name: &str) -> Option<&'a str> {
    let mut pairs = labels.split(',').filter_map(|pair| pair.split_once('='));
    pairs.find(|(key, _)| *key == name).map(|(_, value)| value.trim_matches('"'))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use metrics_exporter_prometheus::PrometheusBuilder;

    use super::*;
    use crate::metrics::RouteMetrics;

    #[test]
    fn counters_and_buckets_of_a_route_are_read_from_the_page() {
        let recorder = PrometheusBuilder::new().set_buckets(&BUCKETS).unwrap().build_recorder();
        let route = metrics::with_local_recorder(&recorder, || RouteMetrics::new("a.b-c", "s", false));
        let other = metrics::with_local_recorder(&recorder, || RouteMetrics::new("other", "s", false));
        route.delivered.increment((1 << 53) + 1);
        for late in [Duration::from_micros(900), Duration::from_millis(30), Duration::from_hours(2)] {
            route.lateness.record(late.as_secs_f64());
        }
        metrics::with_local_recorder(&recorder, || ["failed", "rejected"].map(|kind| route.failure(kind)));
        other.delivered.increment(7);
        let page = recorder.handle().render();
        let routes = by_route(&page);
        let mut lateness = vec![1; 5];
        lateness.extend([2; 10]);
        lateness.push(3);
        assert_eq!(routes["a.b-c"], Activity { delivered: (1 << 53) + 1, failed: 2, lateness });
        assert_eq!((routes["other"].delivered, routes.len()), (7, 2));
    }
}
