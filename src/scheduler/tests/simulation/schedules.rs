//! Seeded runs of a schedule with faults, after which no occurrence is missing.

use std::sync::{Arc, Mutex};

use punctual_model::LinkFaults;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use tokio::time::sleep;

use super::{
    super::{
        recurring::{EVERY, definition, ended},
        sink::{Act, SinkEnd, StoreClock},
        *,
    },
    Seed,
    changes::answered,
    redis::{Process, SimulatedRedis, signals},
    routes::{CALM, pick, random_faults, random_settings},
    seeds,
};
use crate::{
    recurrence::Missed,
    store::{NextOccurrence, ScheduleOwner},
    time::UnixMillis,
};

#[test]
fn without_faults_each_occurrence_is_sent_once_and_in_time() {
    (0..30).for_each(|seed| simulate(seed, false));
}

#[test]
fn whatever_fails_no_occurrence_is_left_out() {
    seeds().for_each(|seed| simulate(seed, true));
}

fn simulate(seed: u64, troubled: bool) {
    let _seed = Seed(seed);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(Box::pin(run(StdRng::seed_from_u64(seed), troubled)));
}

async fn run(mut rng: StdRng, troubled: bool) {
    let mut settings = random_settings(rng.random_range(0..2), 1, &mut rng);
    settings.name = "r".into();
    let (has_flows, keeps_history) = (settings.flow.is_some(), settings.history.is_some());
    let redis = SimulatedRedis::new(rng.random(), vec![settings]).await;
    let sink = random_sink(&redis, if troubled { rng.random_range(0.0..0.7) } else { 0.0 }, &mut rng);
    let (client, place) = (redis.process(rng.random()), partition("r"));
    let first = (redis.now() / 1000 / EVERY + 1) * EVERY;
    let at = UnixMillis::new(first).unwrap();
    let next = NextOccurrence::At { occurrence: at, at };
    let schedule = definition(Missed::All(1000));
    client.store.set_schedule(&place, &schedule, None, next).await.expect("it is set");
    let start = |seed: [u64; 2]| {
        let process = redis.process(seed[0]);
        let setup = RouteSetup {
            route: "r".into(),
            partitions: signals(&process, std::iter::once(place.clone())),
            policy: policy(),
            window: None,
            has_flows,
            keeps_history,
            target: to_sink(&sink, &Breaker::new("s")),
            spans: Spans::default(),
            instance: "test:1".into(),
        };
        let store: Arc<dyn Store> = process.store.clone();
        let instance = Instance::start_over(&store, seed[1], vec![setup]);
        (process, instance)
    };
    let mut instances: Vec<(Process, Instance)> = (0..2).map(|_| start(rng.random())).collect();
    for step in 0..40 {
        if troubled {
            let errors = if rng.random_bool(0.5) { rng.random_range(0.0..0.3) } else { 0.0 };
            redis.set_faults(LinkFaults { errors, ..random_faults(&mut rng) });
            redis.lose_messages(rng.random_bool(0.1));
            // Not the one that sets the schedule.
            if step > 8 && rng.random_bool(0.1) {
                redis.fail_over(rng.random_range(0..5));
            }
            if rng.random_bool(0.05) {
                instances.pop().expect("one runs").1.kill().await;
                instances.push(start(rng.random()));
            }
        }
        sleep(CALM / 40).await;
        redis.check(&place);
    }
    redis.set_faults(LinkFaults::default());
    redis.lose_messages(false);
    answered(|| client.store.delete_schedule(&place, &schedule.id, ScheduleOwner::Api)).await;
    until("an empty queue", || {
        let (pending, unack, _) = redis.count(&place);
        pending + unack == 0
    })
    .await;
    redis.check(&place);
    // A fail-over can drop a dead letter before its occurrence ends.
    let dropped = redis.lost.lock().iter().filter(|id| id.contains('~')).cloned().collect::<Vec<_>>();
    let ended = ended(&sink, redis.dead(&place).into_iter().chain(dropped));
    let last = *ended.last().expect("some");
    assert_eq!(ended.len() as u64, (last - first) / EVERY + 1, "{ended:?}");
    assert_eq!(sink.early(), 0);
    if !troubled {
        assert!(ended.len() >= 19, "it stopped: {ended:?}");
        assert!(sink.taken().values().all(|times| *times == 1), "{:?}", sink.taken());
        assert!(sink.most_late() <= 12, "late");
    }
    for (_process, instance) in instances {
        instance.stop().await;
    }
}

/// `trouble`: the share of the attempts that fail.
fn random_sink(redis: &Arc<SimulatedRedis>, trouble: f64, rng: &mut StdRng) -> Arc<FakeSink> {
    let rng = Mutex::new(StdRng::seed_from_u64(rng.random()));
    FakeSink::new(redis, move |_| {
        let mut rng = rng.lock().unwrap();
        let delay = rng.random_range(0..1500) * MILLI;
        if !rng.random_bool(trouble) {
            return Act::confirm(rng.random_range(0..50) * MILLI);
        }
        pick(
            &mut rng,
            &[
                Act { delay, ..Act::report(failed()) },
                Act::report(Outcome::Rejected { error: "HTTP 400".into() }),
                Act { takes: true, ..Act::end(SinkEnd::Hang) },
                Act::end(SinkEnd::Panic),
                Act { takes: true, ..Act::report(lost()) },
                Act::report(unavailable()),
            ],
        )
        .clone()
    })
}
