//! The flow of a route.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer};

use super::{
    problem::{Path, Problems},
    value::{Flag, Whole, scalar},
};
use crate::{
    message::{FlowLimits, Rate},
    sink::template::FlowTemplate,
    store::RouteFlow,
};

/// Maximum `burst` and `parallel`: as many as the largest rate sends in a second.
const MOST: u64 = 1_000_000;

/// Limits of the messages of a route that have the same key, over all instances.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Flow {
    /// Template of the flow of messages that name none: `{key}`, `{header:NAME}`, `{route}`. Unless set: messages
    /// without a flow share the empty flow.
    key: Option<FlowKey>,
    /// Maximum rate at which messages of one key leave, retries included: `N/s`, `N/m`, `N/h` or `N/d`, with N from 1
    /// to 1000000.
    rate: Option<FlowRate>,
    /// Maximum messages of one key that leave at once after a pause: 1 to 1000000. Unless set: the number that `rate`
    /// allows in one second, at least 1.
    burst: Option<Whole<1, MOST>>,
    /// Maximum messages of one key in flight, over all instances: 1 to 1000000. Unless set: no maximum.
    parallel: Option<Whole<1, MOST>>,
    /// Whether messages of one key leave one after another, by due time, then by acceptance. Excludes a `parallel`
    /// above 1.
    ordered: Option<Flag>,
}

#[derive(Clone, Debug)]
struct FlowKey(FlowTemplate);

#[derive(Clone, Copy, Debug)]
struct FlowRate(Rate);

impl Flow {
    pub fn check(self, partitions: u64, route: &Path, problems: &mut Problems) -> RouteFlow {
        let Self { key, rate, burst, parallel, ordered } = self;
        let (at, rate, ordered) =
            (route.key("flow"), rate.map(|rate| rate.0), ordered.is_some_and(|ordered| ordered.0));
        // A setting that was refused in the route or in the defaults is missing here.
        let defaults = Path::of("route_defaults.flow");
        let is_wrong = problems.is_refused(&at) || problems.is_refused(&defaults);
        let is_rate_wrong = problems.is_refused(&at.key("rate")) || problems.is_refused(&defaults.key("rate"));
        if partitions > 1 && !problems.is_refused(&route.key("partitions")) {
            let text = "excludes `flow`: a flow needs one partition, which carries more than the rate of any key. On a \
                        cluster, other routes use the other primaries";
            problems.add(&route.key("partitions"), text);
        }
        if rate.is_none() && parallel.is_none() && !ordered && !is_wrong {
            problems.add(&at, "has no effect: it needs `rate`, `parallel` or `ordered: true`");
        } else if burst.is_some() && rate.is_none() && !is_rate_wrong {
            problems.add(&at.key("burst"), "needs `rate`");
        }
        if let Some(parallel) = parallel.filter(|parallel| ordered && parallel.0 > 1) {
            let text = format!("`{parallel}` contradicts `ordered: true`, which sends one message of a key at a time");
            problems.add(&at.key("parallel"), text);
        }
        let [burst, parallel] = [burst, parallel].map(|number| {
            let number = number?.0;
            Some(u32::try_from(number).expect("at most 1000000"))
        });
        RouteFlow {
            key: key.map(|key| key.0),
            limits: FlowLimits {
                rate,
                burst: burst.or(rate.map(Rate::burst)).unwrap_or(1),
                parallel: if ordered { Some(1) } else { parallel },
                ordered,
            },
        }
    }
}

scalar!(FlowKey, |text| FlowTemplate::parse(text).map(FlowKey), "a text such as `{key}`",
    { "type": "string", "examples": ["{key}", "{header:X-Tenant}"] });
scalar!(FlowRate, |text| Rate::parse(text).map(FlowRate), "a rate such as `100/s`",
    { "type": "string", "pattern": "^[0-9]{1,7}/[smhd]$", "examples": ["100/s"] });
