//! The routes of a campaign, and the flows of their messages.

use super::random::Random;

/// A route of the configuration.
pub struct Route {
    pub name: &'static str,
    pub sink: &'static str,
    /// Further settings, as YAML.
    pub settings: &'static str,
    needs_brokers: bool,
}

const TWO: &str = "partitions: 2";
/// Retries included.
pub const RATE: u64 = 10;
pub const BURST: u64 = 3;
pub const PARALLEL: usize = 3;

const ROUTES: [Route; 12] = [
    Route { name: "web", sink: "hook", settings: TWO, needs_brokers: false },
    Route { name: "jobs", sink: "jobs", settings: TWO, needs_brokers: false },
    Route { name: "ordered", sink: "hook", settings: "flow: { key: '{key}', ordered: true }", needs_brokers: false },
    Route { name: "parallel", sink: "hook", settings: "flow: { parallel: 3 }", needs_brokers: false },
    Route { name: "rate", sink: "hook", settings: "flow: { rate: 10/s, burst: 3 }", needs_brokers: false },
    Route { name: "ticks", sink: "hook", settings: TWO, needs_brokers: false },
    Route { name: "from-set", sink: "hook", settings: TWO, needs_brokers: false },
    Route { name: "from-library", sink: "hook", settings: TWO, needs_brokers: false },
    Route { name: "from-kafka", sink: "hook", settings: TWO, needs_brokers: true },
    Route { name: "from-rabbitmq", sink: "hook", settings: TWO, needs_brokers: true },
    Route { name: "topic", sink: "topic", settings: TWO, needs_brokers: true },
    Route { name: "queue", sink: "queue", settings: TWO, needs_brokers: true },
];
/// Their messages wait for others, so that they are late without a fault.
pub const WITH_FLOW: [&str; 3] = ["ordered", "parallel", "rate"];

/// Those that do without brokers, or all.
pub fn all(has_brokers: bool) -> impl Iterator<Item = &'static Route> {
    ROUTES.iter().filter(move |route| has_brokers || !route.needs_brokers)
}

/// Those that clients use, without flows.
pub fn plain(has_brokers: bool) -> Vec<&'static str> {
    let is_plain = |route: &&Route| route.settings == TWO && route.name != "ticks" && !route.name.starts_with("from-");
    all(has_brokers).filter(is_plain).map(|route| route.name).collect()
}

/// Those of sources.
pub fn of_sources(has_brokers: bool) -> Vec<&'static str> {
    all(has_brokers).map(|route| route.name).filter(|name| name.starts_with("from-")).collect()
}

/// The flow of a message; `None` on a route without flows. The number of flows leaves each of them with messages that wait, and
/// fast enough to send all of them in the end.
pub fn draw_flow(route: &str, prefix: &str, random: &mut Random) -> Option<String> {
    let most = match route {
        "ordered" => 8,
        "parallel" => 2,
        "rate" => 3,
        _ => return None,
    };
    Some(format!("{prefix}-{}", random.between(1, most)))
}

/// The field of a message that decides its flow.
pub fn flow_field(route: &str) -> &'static str {
    if route == "ordered" { "key" } else { "flow" }
}
