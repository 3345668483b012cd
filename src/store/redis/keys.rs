//! Every key name. A partition's keys share one hash tag, so that a cluster keeps them together.

/// Hash: route -> `{"version","partitions","max_payload"}`.
pub fn routes_key(prefix: &str) -> String {
    format!("{prefix}:routes")
}

/// The keys of one partition of a route.
#[derive(Clone, Debug)]
pub struct PartitionKeys {
    /// Sorted set: id -> time of the next attempt, ms.
    pub pending: String,
    /// Sorted set: id -> lease deadline, us; the score is the claim's token.
    pub unack: String,
    /// Hash: id -> encoded message (`codec`).
    pub messages: String,
    /// Hash: id -> `<failed attempts> <expired leases>`, only for ids that have any.
    pub attempts: String,
    /// Hash: id -> last error; for the dead it begins with the reason.
    pub errors: String,
    /// Sorted set: id -> time of death, ms.
    pub dead: String,
    /// Sorted set: id -> time at which it was delivered, ms, or half a millisecond after it was cancelled; of those
    /// that the route remembers.
    pub remembered: String,
    /// Exists while the route is paused.
    pub paused: String,
    /// String: `<version> <partitions> <number> <largest payload> <ms that the ended are remembered>`, for `lua/produce.lua`.
    pub route: String,
    /// Channel: the head became earlier.
    pub wake: String,
}

impl PartitionKeys {
    pub fn new(prefix: &str, route: &str, number: u16) -> Self {
        let key = |name: &str| format!("{{{prefix}:{route}:{number}}}:{name}");
        Self {
            pending: key("pending"),
            unack: key("unack"),
            messages: key("messages"),
            attempts: key("attempts"),
            errors: key("errors"),
            dead: key("dead"),
            remembered: key("remembered"),
            paused: key("paused"),
            route: key("route"),
            wake: key("wake"),
        }
    }
}
