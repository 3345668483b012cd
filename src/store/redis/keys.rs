//! Every key name. A partition's keys share one hash tag, so that a cluster keeps them in one slot.

use crate::store::Partition;

/// Hash: route -> `{"version","partitions","max_payload"}`.
pub fn routes_key(prefix: &str) -> String {
    format!("{prefix}:routes")
}

/// The keys of a hdt3213/delayqueue, as its producers and consumers spell them.
#[derive(Clone, Debug)]
pub struct DelayQueueKeys {
    /// Sorted set: id -> due time, seconds.
    pub pending: String,
    /// List of ids; consumers take from its right end.
    pub ready: String,
    /// List of failed ids.
    pub retry: String,
    /// Sorted set: id -> deadline of the consumer that has it, seconds.
    pub unack: String,
    /// Hash: id -> retries that remain.
    pub counts: String,
    /// Prefix of the strings with the bodies; the id follows.
    pub body_prefix: String,
}

impl DelayQueueKeys {
    /// Milliseconds per 1 of a score.
    pub const UNIT: u32 = 1000;

    /// `prefix` is part of all keys except those of the bodies, which always begin with `dp`.
    pub fn new(prefix: &str, name: &str, hash_tag: bool) -> Self {
        let base = |prefix: &str| if hash_tag { format!("{{{prefix}:{name}}}") } else { format!("{prefix}:{name}") };
        let key = |last: &str| format!("{}:{last}", base(prefix));
        Self {
            pending: key("pending"),
            ready: key("ready"),
            retry: key("retry"),
            unack: key("unack"),
            counts: key("retry:cnt"),
            body_prefix: format!("{}:msg:", base("dp")),
        }
    }

    pub fn body(&self, id: &[u8]) -> Vec<u8> {
        [self.body_prefix.as_bytes(), id].concat()
    }
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
    /// Hash: id -> `<failed attempts> <expired leases>`, only for pending and in-flight ids that have any.
    pub attempts: String,
    /// Hash: id -> `<time of the last failure, ms> <failed attempts> <error>`; the error of a dead message begins with
    /// the reason.
    pub errors: String,
    /// Sorted set: id -> time of death, ms.
    pub dead: String,
    /// Sorted set: remembered id -> time of delivery, ms; of a cancelled id, half a millisecond after the cancellation.
    pub remembered: String,
    /// Hash: id -> `<offset> <timestamp, ms> <place>` of the record that was last applied to the id (`LogRecord`), only
    /// for live or remembered ids that came with a record.
    pub records: String,
    /// Hash: instance -> `<number> <token>` of its last claim that took messages; `latest` -> `<instance> <time, us>`
    /// of the last such claim of any instance.
    pub claims: String,
    /// String: total bytes of the bodies in pending and unack; absent while there are none.
    pub bytes: String,
    /// Hash: id -> its group, only for live ids that have one; lua/include/groups.lua describes it.
    pub groups: String,
    /// Sorted set, all scores 0: `<group> NUL <id>` of each of them.
    pub grouped: String,
    /// Hash: id of a schedule -> its definition; lua/include/recurring.lua describes it.
    pub schedules: String,
    /// Sorted set: id of a dead letter to forward -> time from which it is taken, ms.
    pub outbox: String,
    /// Hash: number of a block -> ends of messages, of a route with a history; lua/include/history.lua describes it.
    pub history: String,
    /// Sorted set: id -> number of the block of its last end.
    pub ended: String,
    /// String, while the route is paused: when (ms), by whom, and why, each on a line.
    pub paused: String,
    /// String: `<version> <partitions> <index> <largest payload> <ms that completed ids are remembered>`. If the route
    /// has limits, ` <messages> <bytes> <delay, ms>` follows: the partition's share, 0 for no limit. If it has a
    /// history, ` history <age, ms> <ends of a partition>` follows. If it has flows, ` flow` follows, and the template of a flow if there is one.
    pub route: String,
    /// The keys of a route with flows; lua/include/flow.lua describes them.
    pub flow: FlowKeys,
    /// Never written: the user's rights are checked on this key.
    pub rights: String,
    /// Channel: the head became earlier. On a cluster, a sharded channel (SPUBLISH) that ends with `:swake`.
    pub wake: String,
}

/// The keys of the flows of a partition.
#[derive(Clone, Debug)]
pub struct FlowKeys {
    pub flows: String,
    pub waiting: String,
    pub flights: String,
    pub gates: String,
    pub slots: String,
    pub rules: String,
}

impl FlowKeys {
    /// In the order in which scripts expect them.
    pub fn all(&self) -> [&str; 6] {
        let Self { flows, waiting, flights, gates, slots, rules } = self;
        [flows, waiting, flights, gates, slots, rules]
    }
}

impl PartitionKeys {
    pub fn new(prefix: &str, partition: &Partition) -> Self {
        let key = |name: &str| format!("{{{prefix}:{partition}}}:{name}");
        Self {
            pending: key("pending"),
            unack: key("unack"),
            messages: key("messages"),
            attempts: key("attempts"),
            errors: key("errors"),
            dead: key("dead"),
            remembered: key("remembered"),
            records: key("records"),
            claims: key("claims"),
            bytes: key("bytes"),
            groups: key("groups"),
            grouped: key("grouped"),
            schedules: key("schedules"),
            outbox: key("outbox"),
            history: key("history"),
            ended: key("ended"),
            paused: key("paused"),
            route: key("route"),
            flow: FlowKeys {
                flows: key("flows"),
                waiting: key("waiting"),
                flights: key("flights"),
                gates: key("gates"),
                slots: key("slots"),
                rules: key("rules"),
            },
            rights: key("rights"),
            wake: key("wake"),
        }
    }

    /// The keys of one partition on a cluster.
    pub fn on_cluster(prefix: &str, partition: &Partition) -> Self {
        Self { wake: format!("{{{prefix}:{partition}}}:swake"), ..Self::new(prefix, partition) }
    }

    /// `on_cluster` or `new`.
    pub fn naming(is_cluster: bool) -> fn(&str, &Partition) -> Self {
        if is_cluster { Self::on_cluster } else { Self::new }
    }

    /// The keys of the scripts that delete dead messages.
    pub fn of_dead(&self, has_flows: bool) -> Vec<&str> {
        let mut all = vec![self.messages.as_str(), &self.attempts, &self.errors, &self.dead, &self.records];
        all.extend(self.of_groups());
        self.with_flow_of_each(all, has_flows)
    }

    /// The keys of groups, in the order in which scripts expect them.
    pub fn of_groups(&self) -> [&str; 2] {
        [&self.groups, &self.grouped]
    }

    /// `all`, and behind them the key with the flow of each message, if the route has flows.
    pub fn with_flow_of_each<'a>(&'a self, mut all: Vec<&'a str>, has_flows: bool) -> Vec<&'a str> {
        all.extend(has_flows.then_some(&*self.flow.flows));
        all
    }

    /// The first keys of most scripts: the sets that a message can be in, and its data; then `others`.
    pub fn of_messages<'a>(&'a self, others: &[&'a str]) -> Vec<&'a str> {
        let Self { pending, unack, messages, attempts, errors, dead, .. } = self;
        let own: [&str; 6] = [pending, unack, messages, attempts, errors, dead];
        [&own[..], others].concat()
    }
}
