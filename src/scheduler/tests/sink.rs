use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use futures::future::join_all;
use parking_lot::Mutex;
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};

use crate::sink::{Delivery, Domain, Outcome, Reply, Report, Sink};

/// How a sink treats one message.
#[derive(Clone, Debug)]
pub struct Act {
    pub delay: Duration,
    /// Whether the destination takes the message, whatever is reported.
    pub takes: bool,
    pub end: SinkEnd,
}

#[derive(Clone, Debug)]
pub enum SinkEnd {
    Report(Outcome),
    Reply(Outcome, Reply),
    Silence,
    /// Reported as unsent once the route of the message stops.
    Waits,
    Hang,
    Panic,
}

impl Act {
    pub fn confirm(delay: Duration) -> Self {
        Self { delay, takes: true, end: SinkEnd::Report(Outcome::Confirmed) }
    }

    pub fn report(outcome: Outcome) -> Self {
        Self { delay: Duration::from_millis(1), takes: false, end: SinkEnd::Report(outcome) }
    }

    pub fn end(end: SinkEnd) -> Self {
        Self { delay: Duration::from_millis(1), takes: false, end }
    }
}

/// One attempt as the destination saw it.
#[derive(Clone, Debug)]
pub struct Seen {
    pub at: Instant,
    pub id: String,
    pub attempt: u32,
    /// Milliseconds from due to arrival.
    pub late: u64,
    pub flow: Option<String>,
}

/// The first time that the destination took a message.
#[derive(Clone, Debug)]
pub struct Taken {
    pub id: String,
    pub flow: Option<String>,
    /// Milliseconds.
    pub due: u64,
}

/// A function of the message.
type Of<T> = Box<dyn Fn(&Delivery) -> T + Send + Sync>;

/// The clock by which messages are due.
pub trait StoreClock: Send + Sync + 'static {
    /// Microseconds.
    fn now(&self) -> u64;
}

pub struct FakeSink {
    act: Of<Act>,
    domain: Of<Option<Domain>>,
    clock: Arc<dyn StoreClock>,
    seen: Mutex<Vec<Seen>>,
    taken: Mutex<BTreeMap<String, u32>>,
    first_taken: Mutex<Vec<Taken>>,
    /// By flow: how many are inside, and were at most.
    flows: Mutex<BTreeMap<Option<String>, [usize; 2]>>,
    inside: AtomicUsize,
    most_inside: AtomicUsize,
    early: AtomicUsize,
    most_late: AtomicU64,
    /// The latest route that stopped.
    stopped: watch::Sender<Option<Arc<str>>>,
}

impl FakeSink {
    pub const TIMEOUT: Duration = Duration::from_secs(2);

    pub fn new(store: &Arc<impl StoreClock>, act: impl Fn(&Delivery) -> Act + Send + Sync + 'static) -> Arc<Self> {
        Self::with_domains(store, |_| None, act)
    }

    pub fn with_domains(
        store: &Arc<impl StoreClock>,
        domain: impl Fn(&Delivery) -> Option<Domain> + Send + Sync + 'static,
        act: impl Fn(&Delivery) -> Act + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self {
            act: Box::new(act),
            domain: Box::new(domain),
            clock: store.clone(),
            seen: Mutex::default(),
            taken: Mutex::default(),
            first_taken: Mutex::default(),
            flows: Mutex::default(),
            inside: AtomicUsize::new(0),
            most_inside: AtomicUsize::new(0),
            early: AtomicUsize::new(0),
            most_late: AtomicU64::new(0),
            stopped: watch::Sender::default(),
        })
    }

    /// Confirms everything after a millisecond.
    pub fn good(store: &Arc<impl StoreClock>) -> Arc<Self> {
        Self::new(store, |_| Act::confirm(Duration::from_millis(1)))
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.seen.lock().clone()
    }

    /// How often the destination took each id.
    pub fn taken(&self) -> BTreeMap<String, u32> {
        self.taken.lock().clone()
    }

    /// In the order in which the destination took them.
    pub fn first_taken(&self) -> Vec<Taken> {
        self.first_taken.lock().clone()
    }

    pub fn most_inside(&self) -> usize {
        self.most_inside.swap(0, Ordering::SeqCst)
    }

    /// The most messages of one flow that were inside at the same time.
    pub fn most_inside_of_a_flow(&self) -> usize {
        self.flows.lock().values().map(|[_, most]| *most).max().unwrap_or(0)
    }

    /// Messages that came before they were due.
    pub fn early(&self) -> usize {
        self.early.load(Ordering::SeqCst)
    }

    /// The maximum time from due to arrival since the last call, in milliseconds.
    pub fn most_late(&self) -> u64 {
        self.most_late.swap(0, Ordering::SeqCst)
    }

    async fn deliver(&self, index: usize, delivery: Delivery, report: &Report) {
        let _inside = Inside::enter(self, delivery.metadata.flow.clone());
        let now = self.clock.now();
        match now.checked_sub(delivery.due.get() * 1000) {
            Some(late) => drop(self.most_late.fetch_max(late / 1000, Ordering::SeqCst)),
            None => drop(self.early.fetch_add(1, Ordering::SeqCst)),
        }
        let id = delivery.metadata.shown_id(&delivery.id).to_owned();
        self.seen.lock().push(Seen {
            at: Instant::now(),
            id: id.clone(),
            attempt: delivery.attempt,
            late: (now / 1000).saturating_sub(delivery.due.get()),
            flow: delivery.metadata.flow.clone(),
        });
        let act = (self.act)(&delivery);
        sleep(act.delay).await;
        if act.takes {
            let first = Taken { id: id.clone(), flow: delivery.metadata.flow.clone(), due: delivery.due.get() };
            let mut taken = self.taken.lock();
            let times = taken.entry(id).or_default();
            *times += 1;
            if *times == 1 {
                self.first_taken.lock().push(first);
            }
        }
        match act.end {
            SinkEnd::Report(outcome) => report.outcome_in(index, (self.domain)(&delivery), outcome),
            SinkEnd::Reply(outcome, reply) => report.replied(index, (self.domain)(&delivery), outcome, reply),
            SinkEnd::Silence => {}
            SinkEnd::Waits => {
                let is_its = |stopped: &Option<Arc<str>>| stopped.as_ref() == Some(&delivery.route);
                let _ = self.stopped.subscribe().wait_for(is_its).await;
                report.outcome(index, Outcome::Unsent { error: "the route stopped".into() });
            }
            SinkEnd::Hang => std::future::pending().await,
            // Bypasses the panic hook, which would print the panic.
            SinkEnd::Panic => std::panic::resume_unwind(Box::new("ordered by the test")),
        }
    }
}

struct Inside<'a> {
    sink: &'a FakeSink,
    flow: Option<String>,
}

impl<'a> Inside<'a> {
    fn enter(sink: &'a FakeSink, flow: Option<String>) -> Self {
        let inside = sink.inside.fetch_add(1, Ordering::SeqCst) + 1;
        sink.most_inside.fetch_max(inside, Ordering::SeqCst);
        let mut flows = sink.flows.lock();
        let [inside, most] = flows.entry(flow.clone()).or_default();
        *inside += 1;
        *most = (*most).max(*inside);
        drop(flows);
        Self { sink, flow }
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.sink.inside.fetch_sub(1, Ordering::SeqCst);
        if let Some([inside, _]) = self.sink.flows.lock().get_mut(&self.flow) {
            *inside -= 1;
        }
    }
}

#[async_trait]
impl Sink for FakeSink {
    fn timeout(&self) -> Duration {
        Self::TIMEOUT
    }

    fn has_destinations(&self) -> bool {
        true
    }

    fn domain(&self, delivery: &Delivery) -> Option<Domain> {
        (self.domain)(delivery)
    }

    async fn send(&self, batch: Vec<Delivery>, report: Report) {
        join_all(batch.into_iter().enumerate().map(|(index, delivery)| self.deliver(index, delivery, &report))).await;
    }

    async fn check(&self) -> Result<(), String> {
        Ok(())
    }

    fn give_back(&self, route: &Arc<str>) {
        self.stopped.send_replace(Some(route.clone()));
    }
}
