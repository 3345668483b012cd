//! The routes of a campaign, and the flows of their messages.

use super::{random::Random, store::Shape};

/// A route of the configuration.
pub struct Route {
    pub name: &'static str,
    pub sink: &'static str,
    /// As YAML; empty without flows.
    pub flow: &'static str,
    needs: Needs,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Needs {
    Nothing,
    /// Keys of its own on the Redis of the queue, which a cluster does not permit.
    OneServer,
    Brokers,
}

/// Partitions of a route without flows at the beginning.
pub const PARTITIONS: u64 = 2;
/// Retries included.
pub const RATE: u64 = 10;
pub const BURST: u64 = 3;
pub const PARALLEL: usize = 3;

const ROUTES: [Route; 13] = [
    Route { name: "web", sink: "hook", flow: "", needs: Needs::Nothing },
    Route { name: "jobs", sink: "jobs", flow: "", needs: Needs::OneServer },
    Route { name: "elsewhere", sink: "elsewhere", flow: "", needs: Needs::Nothing },
    Route { name: "ordered", sink: "hook", flow: "{ key: '{key}', ordered: true }", needs: Needs::Nothing },
    Route { name: "parallel", sink: "hook", flow: "{ parallel: 3 }", needs: Needs::Nothing },
    Route { name: "rate", sink: "hook", flow: "{ rate: 10/s, burst: 3 }", needs: Needs::Nothing },
    Route { name: "ticks", sink: "hook", flow: "", needs: Needs::Nothing },
    Route { name: "from-set", sink: "hook", flow: "", needs: Needs::OneServer },
    Route { name: "from-library", sink: "hook", flow: "", needs: Needs::OneServer },
    Route { name: "from-kafka", sink: "hook", flow: "", needs: Needs::Brokers },
    Route { name: "from-rabbitmq", sink: "hook", flow: "", needs: Needs::Brokers },
    Route { name: "topic", sink: "topic", flow: "", needs: Needs::Brokers },
    Route { name: "queue", sink: "queue", flow: "", needs: Needs::Brokers },
];
/// Their messages wait for others, so that they are late without a fault.
pub const WITH_FLOW: [&str; 3] = ["ordered", "parallel", "rate"];

impl Route {
    pub fn has_source(&self) -> bool {
        self.name.starts_with("from-")
    }

    /// Whether clients use it, and its messages wait for no others.
    pub fn is_plain(&self) -> bool {
        self.flow.is_empty() && self.name != "ticks" && !self.has_source()
    }
}

/// The routes that are possible.
pub fn all(shape: Shape, has_brokers: bool) -> Vec<&'static Route> {
    assert!(shape == Shape::Sentinels || has_brokers, "on a cluster the campaign needs Kafka and RabbitMQ");
    let suits = |route: &&Route| match route.needs {
        Needs::Nothing => true,
        Needs::OneServer => shape == Shape::Sentinels,
        Needs::Brokers => has_brokers,
    };
    ROUTES.iter().filter(suits).collect()
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
