//! One folder for each external system: its settings, its sink, its source and what they share.

use crate::config::Registry;

#[cfg(feature = "http")]
pub mod http;
#[cfg(feature = "kafka")]
pub mod kafka;
#[cfg(feature = "rabbitmq")]
pub mod rabbitmq;
#[cfg(feature = "redis")]
pub mod redis_list;
#[cfg(feature = "redis")]
pub mod redis_sets;

/// Registers types of sinks and sources. A type without its Cargo feature is registered as absent.
macro_rules! types {
    ($registry:ident: $($section:ident $add:ident $name:literal $feature:literal $settings:path;)*) => {$(
        #[cfg(feature = $feature)]
        $registry.$add::<$settings>($name);
        #[cfg(not(feature = $feature))]
        $registry.$section.absent($name, $feature);
    )*};
}

/// All types of sinks and sources of this build.
pub fn registry() -> Registry {
    let mut registry = Registry::default();
    types! { registry:
        sinks sink "http" "http" http::HttpSettings;
        sinks sink "kafka" "kafka" kafka::KafkaSinkSettings;
        sinks sink "redis_list" "redis" redis_list::RedisListSettings;
        sinks sink "rabbitmq" "rabbitmq" rabbitmq::RabbitMqSinkSettings;
        sources source "delayqueue" "redis" redis_sets::DelayQueueSettings;
        sources source "kafka" "kafka" kafka::KafkaSourceSettings;
        sources source "rabbitmq" "rabbitmq" rabbitmq::RabbitMqSourceSettings;
        sources source "sorted_set" "redis" redis_sets::SortedSetSettings;
    }
    registry
}

#[cfg(all(test, feature = "redis"))]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "the type `redis_list` is registered twice")]
    fn a_type_is_registered_once() {
        registry().sink::<redis_list::RedisListSettings>("redis_list");
    }
}
