//! The operator of a round: pauses and resumes routes, and gives one of them another number of partitions.

use std::{fs, time::Duration};

use reqwest::Method;
use tokio::{
    join,
    time::{Instant, sleep},
};

use super::{
    clients::Clients,
    configuration::Age,
    history::Arrival,
    judge::{Observed, Verdict},
    random::Random,
    store::Shape,
    world::{INSTANCES, LEASE, World},
};
use crate::support::receiver::wall_clock;

/// Pauses of a round.
const PAUSES: usize = 3;
/// In milliseconds.
const PAUSED: [u64; 2] = [4000, 7000];
/// A claim from before a pause is sent within this time, in milliseconds.
const CLAIMED: u64 = 3000;
/// Maximum time until a call has a definite answer.
const MAX_REPEAT: Duration = Duration::from_secs(40);
/// Maximum time until an instance is ready: the faults of a round, and some time after them.
const MAX_START: Duration = Duration::from_mins(2);
const REPEAT: Duration = Duration::from_millis(200);

/// A route that was paused. Times are epoch milliseconds.
#[derive(Clone, Copy, Debug)]
pub struct Pause {
    pub route: &'static str,
    pub called: u64,
    /// When the pause was answered, and when the end of it was asked for.
    answered: u64,
    resumed: u64,
    /// When that was answered.
    ended: u64,
}

/// The actions of an operator in a round.
#[derive(Clone, Debug, Default)]
pub struct Acts {
    pub pauses: Vec<Pause>,
    /// The route with another number of partitions, and the number.
    pub moved: Option<(&'static str, u64)>,
    /// From the first stop of an instance for that to the last start.
    restarts: Option<[u64; 2]>,
}

impl Acts {
    /// Whether messages of the route wait in this time, for the end of a pause or for instances that are restarted.
    pub fn hold(&self, route: &str, from: u64, to: u64) -> bool {
        self.pauses.iter().any(|pause| pause.holds(route, from, to))
            || self.restarts.is_some_and(|[began, ended]| began <= to && from <= ended)
    }
}

impl Pause {
    /// Whether a message of the route waits for its end in this time.
    pub fn holds(&self, route: &str, from: u64, to: u64) -> bool {
        self.route == route && self.called <= to && from <= self.ended
    }

    /// Whether it is in force at a time after it because its end is lost. `is_lost`: whether a change since then can be.
    pub fn may_last(&self, route: &str, at: u64, is_lost: impl Fn(u64) -> bool) -> bool {
        self.route == route && self.called <= at && is_lost(self.called)
    }
}

/// `number`: of the round.
pub async fn live(clients: &Clients, world: &World, number: u64, length: Duration, mut random: Random) -> Acts {
    let length = u64::try_from(length.as_millis()).expect("a short round");
    let route = random.pick(clients.routes());
    let at = Duration::from_millis(random.between(length / 4, length * 3 / 4));
    let (partitions, mut pausing) = (3 + number, random.fork());
    // A restart ends the counters of an instance. On a cluster the number cannot be changed.
    let is_moved = number.is_multiple_of(2) && world.shape == Shape::Sentinels;
    let moving = async {
        sleep(at).await;
        if is_moved { Some(repartition(world, route, partitions).await) } else { None }
    };
    let pauses = async {
        let (mut all, begun) = (Vec::new(), Instant::now());
        let mut times: Vec<u64> = (0..PAUSES).map(|_| pausing.between(0, length.saturating_sub(PAUSED[1]))).collect();
        times.sort_unstable();
        for at in times {
            sleep((begun + Duration::from_millis(at)).saturating_duration_since(Instant::now())).await;
            let route = pausing.pick(clients.routes());
            all.extend(pause(clients, route, pausing.between(PAUSED[0], PAUSED[1])).await);
        }
        all
    };
    let (restarts, pauses) = join!(moving, pauses);
    Acts { pauses, moved: is_moved.then_some((route, partitions)), restarts }
}

/// `None`: neither was answered.
async fn pause(clients: &Clients, route: &'static str, millis: u64) -> Option<Pause> {
    let called = wall_clock();
    let is_paused = call(clients, &format!("/v1/routes/{route}/pause")).await;
    let answered = wall_clock();
    sleep(Duration::from_millis(millis)).await;
    let resumed = wall_clock();
    let is_resumed = call(clients, &format!("/v1/routes/{route}/resume")).await;
    (is_paused && is_resumed).then(|| Pause { route, called, answered, resumed, ended: wall_clock() })
}

/// Without durable replies, a fail-over can lose the end of a pause.
pub async fn finish(clients: &Clients, acts: &Acts) -> Vec<String> {
    let mut left = Vec::new();
    for Pause { route, .. } in &acts.pauses {
        if !call(clients, &format!("/v1/routes/{route}/resume")).await {
            left.push(format!("{route} cannot be resumed\n"));
        }
    }
    left
}

/// Whether it was answered as done.
async fn call(clients: &Clients, path: &str) -> bool {
    let deadline = Instant::now() + MAX_REPEAT;
    for instance in (0..INSTANCES).cycle() {
        match clients.ask(instance, Method::POST, path, "").await {
            Some((204, _)) => return true,
            Some((503, _)) | None => {}
            Some((status, text)) => {
                clients.is_unexpected(format!("{path} answered with {status} {text}"));
                return false;
            }
        }
        if Instant::now() > deadline {
            break;
        }
        sleep(REPEAT).await;
    }
    false
}

/// Restarts all instances with another number of partitions of the route. When that began and ended.
async fn repartition(world: &World, route: &'static str, partitions: u64) -> [u64; 2] {
    {
        // An instance that starts with the former number at this moment would be refused.
        let instances = join!(world.instances[0].lock(), world.instances[1].lock(), world.instances[2].lock());
        for instance in 0..INSTANCES {
            world.is_ready(instance, MAX_START).await;
        }
        for (instance, configuration) in [&instances.0, &instances.1, &instances.2].iter().zip(&world.configurations) {
            configuration.set_partitions(route, partitions);
            fs::write(instance.path("punctual.yaml"), configuration.text(Age::Current)).expect("written");
        }
    }
    let began = wall_clock();
    for (index, instance) in world.instances.iter().enumerate() {
        let mut instance = instance.lock().await;
        instance.begun().await;
        let exit = instance.terminate().await;
        assert_eq!(exit.code, Some(0), "{exit:?}\n{}", instance.log());
        instance.launch();
        world.is_ready(index, MAX_START).await;
    }
    [began, wall_clock()]
}

/// A paused route sends nothing.
pub fn judge(observed: &Observed, verdict: &mut Verdict) {
    for pause in &observed.acts.pauses {
        verdict.note("pauses");
        let is_within = |since: u64, at: u64| since >= pause.answered + CLAIMED && at < pause.resumed;
        let of_route = |id: &str| observed.lives.get(id).is_some_and(|life| life.route == pause.route);
        let arrivals = observed.arrivals.iter().map(|Arrival { id, since, at, .. }| (&**id, *since, *at));
        let seen = observed.seen.iter().map(|(id, (_, at))| (&**id, *at, *at));
        let sent = arrivals.chain(seen).filter(|(id, since, at)| is_within(*since, *at) && of_route(id));
        for (id, _, at) in sent {
            let from = pause.called.saturating_sub(LEASE);
            let is_explained = observed.had(from, at, |kind| kind.sends_late(pause.route));
            if is_explained || observed.is_delayed(from, at) {
                verdict.note("sent while paused, explained");
            } else {
                verdict.note("sent while paused");
                verdict.breach(observed, id, &format!("sent at {at}, while its route is paused: {pause:?}"));
            }
        }
    }
}
