//! Faults of the brokers.

use lapin::{
    options::{ExchangeDeleteOptions, QueueDeclareOptions, QueueDeleteOptions},
    types::{AMQPValue, FieldTable},
};
use tokio::time::sleep;

use super::{
    brokers::{Brokers, NAME},
    caused::Faults,
    kinds::Kind,
    nemesis::Planned,
    world::World,
};

/// A second queue for the messages of `NAME`.
const FULL: &str = "campaign-full";

pub async fn run(planned: &Planned, world: &World, faults: &Faults) {
    let Some(brokers) = &world.brokers else { return };
    match planned.kind {
        Kind::Exchange => without_exchange(planned, brokers, faults).await,
        Kind::FullQueue => with_full_queue(planned, brokers, faults).await,
        Kind::BrokerFreeze => freeze(planned, brokers, faults).await,
        _ => restart(planned, brokers, faults).await,
    }
}

/// Killed or stopped, and started again.
async fn restart(planned: &Planned, brokers: &Brokers, faults: &Faults) {
    let is_killed = planned.instance == 0;
    let detail = format!("{} for {:?}", if is_killed { "killed" } else { "stopped" }, planned.lasts);
    if matches!(planned.kind, Kind::Kafka | Kind::Leader) {
        let broker = if planned.kind == Kind::Kafka { &brokers.kafka } else { &brokers.second };
        let Ok(mut kafka) = broker.try_lock() else { return };
        let fault = faults.begin(planned.kind, detail);
        if is_killed {
            kafka.kill();
        } else {
            kafka.stop().await;
        }
        sleep(planned.lasts).await;
        kafka.restart().await;
        faults.end(fault);
    } else {
        let Ok(mut rabbitmq) = brokers.rabbitmq.try_lock() else { return };
        let fault = faults.begin(planned.kind, detail);
        if is_killed {
            rabbitmq.kill();
        } else {
            rabbitmq.stop().await;
        }
        sleep(planned.lasts).await;
        rabbitmq.restart().await;
        faults.end(fault);
    }
}

async fn freeze(planned: &Planned, brokers: &Brokers, faults: &Faults) {
    let begin = |broker| faults.begin(planned.kind, format!("{broker} for {:?}", planned.lasts));
    let fault = if planned.instance == 0 {
        let Ok(rabbitmq) = brokers.rabbitmq.try_lock() else { return };
        let fault = begin("RabbitMQ");
        rabbitmq.freeze();
        sleep(planned.lasts).await;
        rabbitmq.resume();
        fault
    } else {
        let (broker, name) =
            [(&brokers.kafka, "the first of Kafka"), (&brokers.second, "the second of Kafka")][planned.instance - 1];
        let Ok(kafka) = broker.try_lock() else { return };
        let fault = begin(name);
        kafka.freeze();
        sleep(planned.lasts).await;
        kafka.resume();
        fault
    };
    faults.end(fault);
}

/// The exchange is deleted, and declared again. For a moment it has no queue.
async fn without_exchange(planned: &Planned, brokers: &Brokers, faults: &Faults) {
    let Ok(rabbitmq) = brokers.rabbitmq.try_lock() else { return };
    let fault = faults.begin(planned.kind, format!("deleted for {:?}", planned.lasts));
    let channel = rabbitmq.channel().await;
    channel.exchange_delete(NAME.into(), ExchangeDeleteOptions::default()).await.expect("deleted");
    sleep(planned.lasts).await;
    rabbitmq.declare(NAME, NAME).await;
    faults.end(fault);
}

/// A second queue gets the same messages and is full: the broker refuses each message, although the first queue has it.
async fn with_full_queue(planned: &Planned, brokers: &Brokers, faults: &Faults) {
    let Ok(rabbitmq) = brokers.rabbitmq.try_lock() else { return };
    let fault = faults.begin(planned.kind, format!("full for {:?}", planned.lasts));
    let mut arguments = FieldTable::default();
    arguments.insert("x-max-length".into(), AMQPValue::LongInt(1));
    arguments.insert("x-overflow".into(), AMQPValue::LongString("reject-publish".into()));
    rabbitmq.declare_queue_with(FULL, NAME, NAME, QueueDeclareOptions::default(), arguments).await;
    sleep(planned.lasts).await;
    rabbitmq.channel().await.queue_delete(FULL.into(), QueueDeleteOptions::default()).await.expect("deleted");
    faults.end(fault);
}
