//! Loads, baselines and sinks of `benches/run.sh`. Each command prints one JSON object; its options are in its file.
//!
//! Everything runs on one machine, so all programs have the clock of Redis.

#![expect(clippy::cast_precision_loss, reason = "figures are shown with a few digits")]

mod bare;
mod connections;
mod drain;
mod flood;
mod http;
mod kafka;
mod lateness;
mod list;
mod message;
mod rabbitmq;
mod receive;
mod schedule;
mod steady;
mod tenants;
mod usage;

use std::error::Error;

use clap::Parser;
use serde_json::Value;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

#[derive(Parser)]
enum Command {
    /// Schedules messages over HTTP, in arrays.
    Schedule(schedule::Options),
    /// Schedules messages with one bare script call for each batch.
    BareSchedule(bare::Options),
    /// Moves due messages into a list with two bare script calls for each batch.
    BareDrain(bare::Options),
    /// Resumes a route and waits until it is empty.
    Drain(drain::Options),
    /// Waits while messages become due over a time, and measures Redis and punctual in that time.
    Steady(steady::Options),
    /// Reads a list, and measures how late its elements come.
    List(list::Options),
    /// Answers HTTP requests; `GET /stats` returns the number of messages and their lateness.
    Receive,
    /// Sends HTTP requests as fast as plain hyper connections can.
    Flood(flood::Options),
    /// Creates a topic, as soon as the broker answers.
    Topic(kafka::TopicOptions),
    /// Produces records with an idempotent producer of librdkafka.
    Produce(kafka::ProduceOptions),
    /// Opens connections to Redis, and measures their cost while idle.
    Connections(connections::Options),
    /// Schedules messages of one big and of many small tenants, and measures when they arrive in a list.
    Tenants(tenants::Options),
    /// Declares a durable queue, bound to an exchange of the same name, and empties it.
    Queue(rabbitmq::Options),
}

#[tokio::main]
async fn main() -> Result<()> {
    // `cargo bench` adds this flag.
    let arguments = std::env::args().filter(|argument| argument != "--bench");
    let measured: Value = match Command::parse_from(arguments) {
        Command::Schedule(options) => schedule::run(options).await?,
        Command::BareSchedule(options) => bare::schedule(&options).await?,
        Command::BareDrain(options) => bare::drain(&options).await?,
        Command::Drain(options) => drain::run(&options).await?,
        Command::Steady(options) => steady::run(&options).await?,
        Command::List(options) => list::run(&options).await?,
        Command::Receive => receive::run().await?,
        Command::Flood(options) => flood::run(&options).await?,
        Command::Topic(options) => kafka::create(&options).await?,
        Command::Produce(options) => kafka::produce(&options).await?,
        Command::Connections(options) => connections::run(&options).await?,
        Command::Tenants(options) => tenants::run(&options).await?,
        Command::Queue(options) => rabbitmq::run(&options).await?,
    };
    println!("{measured}");
    Ok(())
}
