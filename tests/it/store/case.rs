//! Runs a sequence on Redis and in memory, and compares replies and contents after every step.
//!
//! The time a script took is unknown but lies between `TIME` before and after it: some millisecond in between
//! must explain both the reply and all that is stored now.

use std::{
    collections::{BTreeMap, HashMap},
    fmt::Debug,
};

use bytes::Bytes;
use punctual::{
    message::{DeadLimits, EndRecord, MessageId, NewMessage, OnConflict},
    store::{
        BulkProgress, Claim, ClaimEnd, ClaimRequest, DeadAction, DeadWork, Death, FailedAttempt, Lease, Partition,
        Planned, Settlement, Store, StoreError, Token, Transfer,
        memory::{MemoryLists, MemoryPartition, PartitionSettings, SortedSet},
        redis::{Outgoing, RedisStore, Turn, connection::classify},
    },
    time::UnixMillis,
};
use tokio::time::{Duration, sleep};

use super::{
    bench::{Bench, later},
    call::{Call, LISTS, Reply, TAKEN, expect, with_errors},
    operation::{
        BY, Defining, Ending, FAR, Number, Operation, PAUSE_NOTE, Pick, ROUTES, Ruling, Step, flow as flow_of,
        forwards, partitions, revision, settings,
    },
    rows::PREFIX,
};

/// The reply of a server that takes no more data.
const REFUSED: &str = "refused";

/// One sequence's state beside Redis.
pub struct Case<'a> {
    bench: &'a mut Bench,
    memory: BTreeMap<Partition, MemoryPartition>,
    /// The lists as they should be.
    lists: MemoryLists,
    /// All leases ever given.
    leases: HashMap<Partition, Vec<Given>>,
    /// The last number of each claimant.
    numbers: HashMap<(Partition, u64), u64>,
}

/// A lease, with its message's score in pending.
#[derive(Clone)]
struct Given {
    lease: Lease,
    not_before: UnixMillis,
}

/// Redis' view between two steps.
struct View {
    micros: u64,
    publishes: u64,
}

impl<'a> Case<'a> {
    pub async fn new(bench: &'a mut Bench) -> Self {
        bench.clear().await;
        redis::cmd("SET").arg(&[TAKEN, "foreign"]).exec_async(&mut bench.raw).await.expect("the server answers");
        let memory = partitions().into_iter().map(|partition| (partition, MemoryPartition::default())).collect();
        let lists = MemoryLists { strings: [TAKEN.to_owned()].into(), ..MemoryLists::default() };
        Self { bench, memory, lists, leases: HashMap::new(), numbers: HashMap::new() }
    }

    pub async fn run(mut self, steps: &[Step]) {
        for step in steps {
            let call = self.resolve(&step.partition, &step.operation);
            let (once, claim) = self.step(step, &call).await;
            if step.twice {
                let (again, _) = self.step(step, &call).await;
                if step.operation.is_idempotent(settings(&step.partition), claim.as_ref()) {
                    assert_eq!(once, again, "twice is not once: {step:?}");
                }
            }
        }
        // Each step compared its own partition.
        for (partition, memory) in &self.memory {
            assert_eq!(self.bench.rows(partition).await, *memory, "{partition} was changed by a step of another one");
        }
        self.check_keys().await;
    }

    /// Returns the content of the partition afterwards, and the answer of a claim.
    async fn step(
        &mut self,
        Step { partition, operation, full, .. }: &Step,
        call: &Call,
    ) -> (MemoryPartition, Option<Claim>) {
        if matches!(operation, Operation::Recover) {
            self.pass_short_leases(partition).await;
        }
        let before = self.view().await;
        self.bench.maxmemory(u64::from(*full)).await;
        let reply = self.call(partition, call).await;
        self.bench.maxmemory(0).await;
        let after = self.view().await;
        let is_refused = reply.text == REFUSED;
        assert!(!is_refused || (*full && operation.grows()), "refused: {operation:?}");

        // Without memory, a claim that takes nothing is not recorded.
        let unrecorded;
        let call = match call.claim() {
            Some(request) if *full && reply.rows.claims == self.memory[partition].claims => {
                unrecorded = Call::Claim(ClaimRequest { again: false, ..*request });
                &unrecorded
            }
            _ => call,
        };
        let mut explained = None;
        for now in before.micros / 1000..=after.micros / 1000 {
            let mut memory = self.memory[partition].clone();
            let mut lists = self.lists.clone();
            let now = before.micros.max(now * 1000);
            let settings = settings(partition);
            let expected = if is_refused {
                REFUSED.to_owned()
            } else {
                expect(&mut memory, &mut lists, (call, &partition.route, settings), &reply, now)
            };
            if !settings.forwards {
                memory.outbox = SortedSet::default();
            }
            let differs = explained.insert((memory, lists, expected));
            if differs.2 == reply.text && differs.0 == reply.rows && differs.1 == reply.lists {
                break;
            }
        }
        let (memory, lists, expected) = explained.expect("time does not go back");
        assert_eq!(reply.text, expected, "reply of {operation:?}");
        assert_eq!(reply.rows, memory, "stored after {operation:?}");
        assert_eq!(reply.lists, lists, "pushed by {operation:?}");
        memory.check_invariants();
        if let Some(flow) = settings(partition).flow {
            memory.check_flows(&flow);
        }
        assert!(memory.remembered.len() <= settings(partition).max, "more is remembered than asked for: {memory:?}");
        if let (Some(request), Some(claim)) = (call.claim(), &reply.claim) {
            let last = self.memory[partition].claims.get(&request.claimant);
            let is_repeated = last.is_some_and(|(number, _)| *number == request.sequence);
            assert!((before.micros..=after.micros).contains(&claim.clock.micros), "the claim's clock");
            self.check_claim(partition, claim, is_repeated);
        }
        let looked = self.memory[partition].next_look();
        let earlier = memory.next_look().is_some_and(|head| looked.is_none_or(|was| head < was));
        let published = after.publishes - before.publishes;
        match operation {
            Operation::Resume => assert_eq!(published, u64::from(self.memory[partition].paused)),
            // A later one of the same id may have moved the head back.
            Operation::Schedule(batch) if published == 1 && settings(partition).flow.is_none() => {
                assert!(earlier || batch.len() > 1);
            }
            // The time at which a flow is looked at can be before a head that became earlier.
            _ if settings(partition).flow.is_some() => {
                assert!(published >= u64::from(earlier), "no wake-up by {operation:?}");
            }
            _ => assert_eq!(published, u64::from(earlier), "wake-ups by {operation:?}"),
        }
        self.memory.insert(partition.clone(), memory.clone());
        self.lists = lists;
        if let Operation::Look(limit) = operation {
            self.look(partition, *limit).await;
        }
        (memory, reply.claim)
    }

    fn check_claim(&mut self, partition: &Partition, claim: &Claim, is_repeated: bool) {
        let leases = self.leases.entry(partition.clone()).or_default();
        for message in &claim.messages {
            let lease = Lease { id: message.id.clone(), token: claim.token, bytes: message.body.len() };
            if leases.iter().all(|other| other.lease != lease) {
                leases.push(Given { lease, not_before: message.not_before });
            } else {
                assert!(is_repeated, "a token given twice: {lease:?}");
            }
        }
    }

    /// Waits until what was claimed under a short lease has expired for certain.
    async fn pass_short_leases(&mut self, partition: &Partition) {
        let now = self.view().await.micros;
        let soon = now + 1_000_000;
        if let Some(last) = self.memory[partition].unack.up_to(soon).map(|(_, deadline)| deadline).last() {
            while self.view().await.micros <= last {
                sleep(Duration::from_micros(100)).await;
            }
        }
    }

    async fn view(&mut self) -> View {
        let stats: String =
            redis::cmd("INFO").arg("commandstats").query_async(&mut self.bench.raw).await.expect("the server answers");
        let publishes = stats
            .lines()
            .find_map(|line| line.strip_prefix("cmdstat_publish:calls=")?.split(',').next()?.parse().ok())
            .unwrap_or(0);
        View { micros: self.bench.micros().await, publishes }
    }

    /// Nothing outside the prefix but the lists, and nothing that would vanish by itself.
    async fn check_keys(&mut self) {
        let keys: Vec<String> =
            redis::cmd("KEYS").arg("*").query_async(&mut self.bench.raw).await.expect("the server answers");
        let mut ttls = redis::pipe();
        for key in &keys {
            assert!(
                key.starts_with(&format!("{{{PREFIX}:"))
                    || key == &format!("{PREFIX}:routes")
                    || LISTS.contains(&&**key),
                "{key}"
            );
            ttls.ttl(key);
        }
        let ttls: Vec<i64> = ttls.query_async(&mut self.bench.raw).await.expect("the server answers");
        assert!(ttls.iter().all(|ttl| *ttl == -1), "a key has a TTL");
    }

    async fn look(&mut self, partition: &Partition, limit: usize) {
        self.bench.check_looks(partition, &self.memory, limit).await;
    }
}

impl Case<'_> {
    fn resolve(&mut self, partition: &Partition, operation: &Operation) -> Call {
        match operation {
            Operation::Claim(request, number) => Call::Claim(self.numbered(partition, request, *number)),
            Operation::Settle(endings) => Call::Settle(self.settlements(partition, endings)),
            Operation::Transfer(picks) => {
                let transfer = |pick: &Pick| {
                    let lease = self.pick(partition, *pick).lease;
                    let value = format!("{} {}", lease.id, lease.token.0).into();
                    let record = self.record_of(partition, &lease);
                    Transfer { lease, value, list: LISTS[pick.list].into(), record }
                };
                Call::Transfer(picks.iter().map(transfer).collect())
            }
            plain => Call::Plain(plain.clone().into()),
        }
    }

    fn numbered(&mut self, partition: &Partition, request: &ClaimRequest, number: Number) -> ClaimRequest {
        let last = self.numbers.entry((partition.clone(), request.claimant)).or_default();
        let sequence = match number {
            Number::Next => *last + 1,
            Number::Last => *last,
            Number::Earlier(back) => last.saturating_sub(back),
        };
        let sequence = sequence.max(1);
        *last = sequence.max(*last);
        ClaimRequest { sequence, ..*request }
    }

    fn settlements(&self, partition: &Partition, endings: &[(Pick, Ending)]) -> Vec<Settlement> {
        let settlement = |(pick, ending): &(Pick, Ending)| {
            let Given { lease, not_before } = self.pick(partition, *pick);
            let ending = match ending {
                Ending::Plan(..) if lease.id.schedule().is_none() => Ending::Ack,
                ending => *ending,
            };
            let attempt = matches!(ending, Ending::Retry(..) | Ending::Bury(_)).then(|| failed_attempt(&lease));
            let record = self.record_of(partition, &lease);
            Settlement { lease, end: end(ending, not_before), attempt, record }
        };
        endings.iter().map(settlement).collect()
    }

    /// As a scheduler makes it of the message that it claimed.
    fn record_of(&self, partition: &Partition, lease: &Lease) -> Option<EndRecord> {
        let (rows, id) = (&self.memory[partition], lease.id.as_str());
        let status = lease.token.0.is_multiple_of(3).then_some(204);
        let body = rows.bodies.get(id)?;
        Some(EndRecord::of(body, rows.failures(id)).with_status(status))
    }

    fn pick(&self, partition: &Partition, pick: Pick) -> Given {
        let given = self.leases.get(partition).map_or(&[][..], Vec::as_slice);
        let Some(last) = given.len().checked_sub(1) else {
            let lease = Lease { id: MessageId::parse("id-unknown").expect("an id"), token: Token(1), bytes: 9 };
            return Given { lease, not_before: UnixMillis::default() };
        };
        let mut one = given[last.saturating_sub(pick.back)].clone();
        if pick.forged {
            one.lease.token.0 += 1;
        }
        one
    }

    async fn call(&mut self, partition: &Partition, call: &Call) -> Reply {
        let store = &self.bench.store;
        let mut claim = None;
        let text = match call {
            Call::Claim(request) => {
                let claimed = store.claim(partition, *request).await.expect("a claim");
                let text = format!("{claimed:?}");
                claim = Some(claimed);
                text
            }
            Call::Settle(settlements) => shown(store.settle(partition, settlements).await),
            Call::Transfer(transfers) => shown(store.transfer(partition, transfers).await),
            Call::Plain(operation) => match &**operation {
                Operation::Schedule(batch) => shown(store.schedule(partition, batch).await),
                Operation::Bury(batch) => shown(store.bury(partition, Death::INVALID, &with_errors(batch)).await),
                Operation::Produce(message) => {
                    match self.bench.try_produce(partition, message).await.map_err(|error| classify(&error)) {
                        Err(StoreError::Refused { slug, .. }) if slug.starts_with("limit-") => slug,
                        answer => shown(answer),
                    }
                }
                Operation::Recover => shown(store.recover(partition).await),
                Operation::Cancel(cancellation) => shown(store.cancel(partition, cancellation).await),
                Operation::Reschedule(id, due, only) => {
                    let only = only.as_ref().map(|(group, before)| (&**group, *before));
                    shown(store.reschedule_if(partition, id, *due, only).await)
                }
                Operation::CancelGroup(group, after, most) => {
                    shown(store.cancel_group(partition, group, after.as_ref(), *most, BY).await)
                }
                Operation::Dead(DeadAction::Forward, ..) if !forwards(&partition.route) => String::new(),
                Operation::Dead(action, spread, selection, limit, dry) => {
                    let (action, spread, limit, dry_run, deadline) = (*action, *spread, *limit, *dry, later());
                    let work = DeadWork { action, spread, selection, limit, dry_run, deadline };
                    let mut done = BulkProgress::default();
                    let result = store.act_on_dead(partition, &work, &mut done).await;
                    shown(result.map(|()| (done.count, done.more)))
                }
                Operation::PurgePending(ids, limit, dry) => {
                    shown(store.purge_pending(partition, ids.as_deref(), *limit, *dry, BY).await)
                }
                Operation::Edit(id, edit) => shown(store.edit(partition, id, edit, None).await),
                Operation::Evict(most) => {
                    let limits = DeadLimits { max_age: None, max_count: Some(*most * count_of(&partition.route)) };
                    shown(store.evict(partition, limits).await)
                }
                Operation::Forward(turn) if forwards(&partition.route) => shown(forward(store, partition, *turn).await),
                Operation::Pause => shown(store.pause(partition, "ops", PAUSE_NOTE).await),
                Operation::Resume => shown(store.resume(partition).await),
                Operation::Rule(flow, ruling) if flow_of(&partition.route).is_some() => shown(match ruling {
                    Ruling::Change(change) => store.change_flow(partition, flow, *change).await,
                    Ruling::Pause => store.pause_flow(partition, flow, "ops", PAUSE_NOTE).await,
                    Ruling::Resume => store.resume_flow(partition, flow).await,
                }),
                Operation::Define(Defining::Set(definition, replaces, next)) => {
                    let replaces = replaces.map(revision);
                    shown(store.set_schedule(partition, definition, replaces.as_deref(), *next).await)
                }
                Operation::Define(Defining::Delete(id, owner)) => {
                    shown(store.delete_schedule(partition, id, *owner).await)
                }
                Operation::Define(Defining::Pause(id, pause)) => {
                    shown(store.pause_schedule(partition, id, *pause).await)
                }
                _ => String::new(),
            },
        };
        let rows = self.bench.rows(partition).await;
        Reply { text, claim, rows, lists: self.lists().await }
    }
}

impl Case<'_> {
    async fn lists(&mut self) -> MemoryLists {
        let mut lists = MemoryLists { strings: [TAKEN.to_owned()].into(), ..MemoryLists::default() };
        for name in LISTS.into_iter().filter(|name| *name != TAKEN) {
            let list: Vec<Vec<u8>> =
                redis::cmd("LRANGE").arg(name).arg(0).arg(-1).query_async(&mut self.bench.raw).await.expect("a list");
            if !list.is_empty() {
                lists.lists.insert(name.to_owned(), list.into_iter().map(Bytes::from).collect());
            }
        }
        lists
    }
}

/// Takes what is in the outbox, and ends its turn or not. Returns the number that was in it, and what was taken.
async fn forward(store: &RedisStore, partition: &Partition, turn: Option<Turn>) -> Result<impl Debug, StoreError> {
    let outbox = store.take_outbox(partition).await?;
    if let Some(turn) = turn {
        store.end_turn(partition, &outbox.taken, turn).await?;
    }
    let of = |one: Outgoing| (one.id.to_string(), one.died, one.body, one.failures, one.error);
    Ok((outbox.waiting, outbox.taken.into_iter().map(of).collect::<Vec<_>>()))
}

/// Its partitions.
fn count_of(route: &str) -> u64 {
    ROUTES.iter().find(|(name, _)| *name == route).expect("one of ours").1.into()
}

fn end(ending: Ending, not_before: UnixMillis) -> ClaimEnd {
    match ending {
        Ending::Ack => ClaimEnd::Ack,
        Ending::Retry(delay, hold) => ClaimEnd::Retry { delay, error: "HTTP 500".into(), hold },
        Ending::Bury(reason) => ClaimEnd::Bury { reason, error: "HTTP 400".into() },
        Ending::Plan(number, due, missed) => {
            let occurrence = due.and_then(UnixMillis::new);
            let at = occurrence.unwrap_or_default();
            ClaimEnd::Plan(Planned { revision: revision(number), occurrence, at, missed })
        }
        Ending::Release => ClaimEnd::Release { at: not_before },
        Ending::Defer(pause, sent) => ClaimEnd::Defer { pause, sent },
    }
}

/// An attempt that failed.
fn failed_attempt(lease: &Lease) -> FailedAttempt {
    FailedAttempt {
        duration: Duration::from_millis(lease.token.0 % 1000),
        outcome: "failed",
        status: lease.token.0.is_multiple_of(2).then_some(500),
        instance: "host:1".into(),
        error: "HTTP 500".into(),
    }
}

fn shown<T: Debug>(result: Result<T, StoreError>) -> String {
    match result {
        Ok(answer) => format!("{answer:?}"),
        Err(StoreError::Unavailable { kind: "oom", .. }) => REFUSED.to_owned(),
        Err(error) => panic!("{error}"),
    }
}

impl Operation {
    /// Whether it may need memory.
    fn grows(&self) -> bool {
        match self {
            // It may be remembered.
            Operation::Cancel(cancellation) => cancellation.unseen && cancellation.record.is_some(),
            Operation::Schedule(_)
            | Operation::Bury(_)
            | Operation::Produce(_)
            | Operation::Reschedule(..)
            | Operation::Edit(..)
            | Operation::Define(Defining::Set(..))
            | Operation::Forward(_)
            | Operation::Dead(DeadAction::Redrive(_) | DeadAction::Forward, ..) => true,
            _ => false,
        }
    }

    /// Whether doing it again at once leaves everything as it is, times included; `claim` is what it answered if it is one.
    fn is_idempotent(&self, settings: PartitionSettings, claim: Option<&Claim>) -> bool {
        // An id that was remembered a moment ago may be forgotten now.
        let stays = settings.keep > FAR / 2;
        let fixed = |message: &NewMessage| stays && message.on_conflict == OnConflict::Keep;
        match self {
            // One of several records may be of a log that was made anew, and another one no longer old because of it.
            Operation::Schedule(batch) if batch.len() == 1 && batch[0].record.is_some() => true,
            Operation::Schedule(batch) => batch.iter().all(fixed),
            Operation::Produce(message) => fixed(message),
            // An expired lease is renewed, and what took nothing may take something now.
            Operation::Claim(..) => {
                let held = |claim: &Claim| claim.token.0 > claim.clock.micros + 60_000_000;
                claim.is_some_and(|claim| !claim.messages.is_empty() && held(claim))
            }
            Operation::Define(Defining::Set(..))
            | Operation::Reschedule(..)
            | Operation::PurgePending(_, _, false)
            | Operation::Forward(_)
            | Operation::CancelGroup(..)
            | Operation::Dead(_, _, _, _, false) => false,
            _ => true,
        }
    }
}
