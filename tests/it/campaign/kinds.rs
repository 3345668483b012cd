//! The kinds of faults.

use super::store::Shape;

/// Kinds of faults, each with the mean time between two of them in milliseconds.
pub const KINDS: [(Kind, u64); 28] = [
    (Kind::Kill, 8000),
    (Kind::Stop, 10_000),
    (Kind::Terminate, 9000),
    (Kind::RedisKill, 90_000),
    (Kind::RedisFreeze, 110_000),
    (Kind::FailOver, 100_000),
    (Kind::Flush, 12_000),
    (Kind::Clients, 12_000),
    (Kind::Endpoint, 6000),
    (Kind::Kafka, 60_000),
    (Kind::RabbitMq, 40_000),
    (Kind::Network, 10_000),
    (Kind::EndpointNetwork, 15_000),
    (Kind::RabbitMqNetwork, 20_000),
    (Kind::CutOff, 100_000),
    (Kind::Right, 15_000),
    (Kind::Memory, 15_000),
    (Kind::Clock, 20_000),
    (Kind::Unread, 25_000),
    (Kind::Older, 25_000),
    (Kind::Exchange, 30_000),
    (Kind::FullQueue, 30_000),
    (Kind::Slots, 15_000),
    (Kind::OtherRedis, 30_000),
    (Kind::OtherRedisNetwork, 25_000),
    // Last, so that the other kinds of a seed stay as they were.
    (Kind::Leader, 60_000),
    (Kind::KafkaNetwork, 20_000),
    (Kind::BrokerFreeze, 30_000),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Kill,
    Stop,
    Terminate,
    RedisKill,
    RedisFreeze,
    FailOver,
    Flush,
    Clients,
    Endpoint,
    Kafka,
    RabbitMq,
    Network,
    EndpointNetwork,
    RabbitMqNetwork,
    /// A primary without its replicas and sentinels, or without the other servers of its cluster.
    CutOff,
    Right,
    Memory,
    Clock,
    /// The standard error of an instance is not read.
    Unread,
    /// An instance has an older configuration.
    Older,
    /// The exchange does not exist.
    Exchange,
    FullQueue,
    /// A slot of a cluster moves.
    Slots,
    /// The Redis of a list of its own.
    OtherRedis,
    OtherRedisNetwork,
    /// The second broker of Kafka, and with it the leader of one partition.
    Leader,
    KafkaNetwork,
    /// One of the brokers stands still.
    BrokerFreeze,
}

impl Kind {
    /// As `--only` has it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Stop => "stop",
            Self::Terminate => "terminate",
            Self::RedisKill => "redis-kill",
            Self::RedisFreeze => "redis-freeze",
            Self::FailOver => "fail-over",
            Self::Flush => "script-flush",
            Self::Clients => "client-kill",
            Self::Endpoint => "endpoint",
            Self::Kafka => "kafka",
            Self::RabbitMq => "rabbitmq",
            Self::Network => "network",
            Self::EndpointNetwork => "endpoint-network",
            Self::RabbitMqNetwork => "rabbitmq-network",
            Self::CutOff => "cut-off",
            Self::Right => "right",
            Self::Memory => "memory",
            Self::Clock => "clock",
            Self::Unread => "unread",
            Self::Older => "older",
            Self::Exchange => "exchange",
            Self::FullQueue => "queue-full",
            Self::Slots => "slots",
            Self::OtherRedis => "other-redis",
            Self::OtherRedisNetwork => "other-redis-network",
            Self::Leader => "leader",
            Self::KafkaNetwork => "kafka-network",
            Self::BrokerFreeze => "broker-freeze",
        }
    }

    /// Whether it can be caused in this Redis.
    pub fn suits(self, shape: Shape) -> bool {
        match self {
            Self::Slots => shape == Shape::Cluster,
            _ => true,
        }
    }

    /// Whether another primary takes its place, which can lack the last changes.
    pub fn loses(self) -> bool {
        matches!(self, Self::RedisKill | Self::RedisFreeze | Self::FailOver | Self::CutOff)
    }

    /// Whether a message of the route can arrive twice because of it. Without a name: of a route to the endpoint.
    pub fn duplicates(self, route: &str) -> bool {
        match self {
            // A step of the clock forwards ends leases.
            Self::Kill
            | Self::Stop
            | Self::Network
            | Self::Right
            | Self::Clock
            | Self::RedisKill
            | Self::RedisFreeze
            | Self::FailOver
            | Self::CutOff => true,
            // It has stored what it did not confirm any more.
            Self::Kafka | Self::Leader | Self::KafkaNetwork => route == "topic",
            Self::RabbitMq | Self::RabbitMqNetwork | Self::Exchange | Self::FullQueue => route == "queue",
            Self::BrokerFreeze => matches!(route, "topic" | "queue"),
            Self::OtherRedis | Self::OtherRedisNetwork => route == "elsewhere",
            Self::EndpointNetwork => !matches!(route, "jobs" | "elsewhere" | "topic" | "queue"),
            _ => false,
        }
    }

    /// Whether its second delivery comes after the lease of the first: that was sent, and could not be settled.
    pub fn is_after_lease(self) -> bool {
        matches!(self, Self::Kill | Self::Stop | Self::Network | Self::Right)
    }

    /// Whether a claim of the route that is no longer current can be sent because of it. A killed instance sends nothing, and
    /// one that cannot use Redis knows when its leases end.
    pub fn sends_late(self, route: &str) -> bool {
        !matches!(self, Self::Kill | Self::Network | Self::Right) && self.duplicates(route)
    }
}
