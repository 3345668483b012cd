//! One call of each script on a state where it has something to do, and something to pass by.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use punctual::{
    message::{DeadLimits, NewMessage, Remember, State},
    store::{
        BulkProgress, ClaimRequest, DeadAction, DeadWork, Death, Edit, Expiry, FieldChange, Filter, FlowChange, Lease,
        NewDue, Order, PARKED, PageRequest, Partition, Rescheduled, Selection, Settlement, Spread, Store, StoreError,
        Suspects, Token, Transfer,
        redis::{EndPlace, Outgoing, RedisStore, RegistrationError, Turn},
    },
    time::Due,
};

pub use super::scenes::{SCENES, split};
use super::{
    arguments::{
        all_dead, attempt, batch, cancelled, claim, edited, ends, failed, grouped, leases, message, some_dead,
        to_produce,
    },
    bench::{Bench, MAX_PAYLOAD, id, later},
    content::{FAR_AHEAD, GROUP, HELD_UNTIL, HOLDER, LATE, LONG_AGO, rows, rows_with_flows, rows_with_groups},
    external,
    operation::{BY, remember},
    rows::{PREFIX, key, write},
    schedules,
};
use crate::support::all;

/// Type and content of each key.
pub type Dump = BTreeMap<String, (String, Vec<Vec<u8>>)>;

pub const ROUTE: &str = "one";
/// Scenes of the outbox.
const OF_OUTBOX: [&str; 5] = ["forward", "post", "end a turn", "end a turn and purge", "end a turn in vain"];
/// Where transfers go, in turn.
pub const LISTS: [&str; 2] = ["list", "list-2"];
/// Somebody's sorted set.
pub const SOURCE: &str = "source";
/// An instance that claims for the first time.
pub const NEW: u64 = u64::MAX;

pub fn partition() -> Partition {
    Partition { route: ROUTE.into(), index: 0, count: 1 }
}

impl Bench {
    /// Only the state that `scene` begins with.
    pub async fn set(&mut self, scene: &str) {
        let (scene, kind) = split(scene);
        let mut pipe = redis::pipe();
        pipe.cmd("FLUSHALL");
        let routes = format!("{PREFIX}:routes");
        for (route, partitions) in super::operation::ROUTES {
            let (keep, memory) = match remember(route) {
                Some(Remember { period, max }) => {
                    let keep = period.as_millis();
                    (keep, format!(r#","remember":{{"for":{keep},"max":{max}}}"#))
                }
                None => (0, String::new()),
            };
            // Each partition's share.
            let (limits, shares) = match route {
                "three" => (r#","limits":{"messages":13,"bytes":330}"#, " 4 110 0"),
                "off" => (r#","limits":{"delay":3600001}"#, " 0 0 3600001"),
                ROUTE if ["flows", "ordered"].contains(&kind) => ("", " history 3600000 1 flow"),
                ROUTE => ("", " history 3600000 1"),
                _ => ("", ""),
            };
            let text =
                format!(r#"{{"version":1,"partitions":{partitions},"max_payload":{MAX_PAYLOAD}{memory}{limits}}}"#);
            pipe.hset(&routes, route, text);
            for partition in Partition::all(&route.into(), partitions) {
                let index = partition.index;
                pipe.set(key(&partition, "route"), format!("1 {partitions} {index} {MAX_PAYLOAD} {keep}{shares}"));
            }
        }
        if ["move", "end the move"].contains(&scene) {
            let memory = remember(ROUTE).expect("it remembers");
            let (keep, max) = (memory.period.as_millis(), memory.max);
            let text = format!(
                r#"{{"version":1,"partitions":2,"max_payload":{MAX_PAYLOAD},"former":1,"generations":{{"1":1,"2":2}},"remember":{{"for":{keep},"max":{max}}}}}"#
            );
            pipe.hset(&routes, ROUTE, text).set(key(&partition(), "route"), "1 2 0 0 0");
            for partition in Partition::all(&ROUTE.into(), 2) {
                pipe.set(
                    key(&partition, "route"),
                    format!("1m 2 {} {MAX_PAYLOAD} {keep} history 3600000 1", partition.index),
                );
            }
        }
        if scene != "transfer to a new list" {
            pipe.rpush(LISTS[0], &["old", "older"]);
        }
        pipe.exec_async(&mut self.raw).await.expect("the server answers");
        let mut rows = match (scene, kind) {
            ("unpark", _) => rows_with_flows(false),
            (_, "") => rows(),
            (_, "groups") => rows_with_groups(),
            _ => rows_with_flows(kind == "ordered"),
        };
        if scene == "cancel a group" && kind == "flows" {
            for id in ["parked", "parked-too", "failed", "held"] {
                rows.groups.insert(id.to_owned(), GROUP.to_owned());
            }
        }
        if scene == "tidy flights" {
            rows.flow.flights.insert("a\0long-gone".to_owned());
        }
        if ["change a flow", "tidy flights"].contains(&scene) {
            rows.flow.flights.remove("a\0held");
        }
        if scene == "tidy parked" {
            rows.flow.waiting.retain(|member| !member.ends_with("parked-too"));
        }
        rows.paused = scene == "resume";
        if scene.contains("schedule") || scene.contains("occurrence") {
            schedules::add(&mut rows, kind, scene == "resume a schedule");
        }
        if scene == "claim only suspects" {
            let others: Vec<_> = rows
                .pending
                .iter()
                .filter(|(_, due)| *due != LONG_AGO + 2 && *due < PARKED)
                .map(|(id, _)| id.to_owned())
                .collect();
            for id in &others {
                rows.pending.insert(id, FAR_AHEAD);
            }
        }
        if scene == "end the move" {
            let claims = key(&partition(), "claims");
            redis::cmd("HSET").arg(&[&*claims, "a", "1 1"]).exec_async(&mut self.raw).await.expect("written");
        } else {
            write(&rows, &mut self.raw, &partition()).await;
        }
        if scene == "restore" {
            let pending = key(&partition(), "pending");
            redis::cmd("DEL").arg(pending).exec_async(&mut self.raw).await.expect("deleted");
        }
        external::write(&mut self.raw, scene).await;
    }

    /// Acts `scene` out.
    pub async fn act(&mut self, scene: &str) -> Result<(), StoreError> {
        let (scene, kind) = split(scene);
        let (store, partition) = (self.of_kind(kind), partition());
        let waiting = if ["flows", "ordered"].contains(&kind) { "parked" } else { "failed" };
        match scene {
            "ack" => drop(store.settle(&partition, &all(leases(), &ends()[0])).await?),
            "retry" => drop(store.settle(&partition, &failed(&ends()[1])).await?),
            "bury" => drop(store.settle(&partition, &failed(&ends()[2])).await?),
            "release" => drop(store.settle(&partition, &all(leases(), &ends()[3])).await?),
            "defer" => drop(store.settle(&partition, &all(leases(), &ends()[4])).await?),
            "settle in every way" => {
                // Each current lease ends in another way, and so do those that are stale.
                let ends = [0, 1, 1, 2, 3, 2, 3, 4, 0].map(|n| ends()[n].clone());
                let settlement = |(lease, end)| Settlement { attempt: Some(attempt()), ..Settlement::new(lease, end) };
                store.settle(&partition, &leases().into_iter().zip(ends).map(settlement).collect::<Vec<_>>()).await?;
            }
            "settle stale" => {
                let stale =
                    ["held-failed", "held-crashed", "held", "unknown", "suspect", "expired-often", "dead-crashed"];
                let leases = stale.map(|text| Lease { id: id(text), token: Token(1), bytes: 0 });
                store.settle(&partition, &all(leases, &ends()[1])).await?;
            }
            "transfer" | "transfer to a new list" => {
                let transfer = |(lease, list): (Lease, &str)| Transfer {
                    record: None,
                    value: lease.id.to_string().into(),
                    lease,
                    list: list.into(),
                };
                let lists = LISTS.into_iter().cycle();
                store.transfer(&partition, &leases().into_iter().zip(lists).map(transfer).collect::<Vec<_>>()).await?;
            }
            "claim" => drop(store.claim(&partition, claim(NEW, 1)).await?),
            "claim a suspect" => {
                drop(store.claim(&partition, ClaimRequest { suspects: Suspects::Few, ..claim(LATE, 8) }).await?);
            }
            "claim only suspects" => drop(store.claim(&partition, claim(HOLDER, 6)).await?),
            "claim again" => drop(store.claim(&partition, claim(HOLDER, 5)).await?),
            "claim again after the lease" => drop(store.claim(&partition, claim(LATE, 7)).await?),
            "claim too late" => drop(store.claim(&partition, claim(HOLDER, 4)).await?),
            "cut" => drop(store.cut_leases(&partition, Duration::from_secs(30), Some(HELD_UNTIL / 2)).await?),
            "cut none" => drop(store.cut_leases(&partition, Duration::from_secs(30), None).await?),
            "recover" => drop(store.recover(&partition).await?),
            "restore" | "restore none" => drop(store.restore(&partition, "").await?),
            "cancel pending" => drop(store.cancel(&partition, &id(waiting).into()).await?),
            "cancel dead" => drop(store.cancel(&partition, &id("dead").into()).await?),
            "cancel pending by a record" => drop(store.cancel(&partition, &cancelled("failed")).await?),
            "cancel dead by a record" => drop(store.cancel(&partition, &cancelled("dead")).await?),
            "cancel unseen" => drop(store.cancel(&partition, &cancelled("ended")).await?),
            "bury new" => {
                let named = ["fresh", "due", "other", "fresh", "dead", "ended"];
                let batch = named.map(|id| (grouped(kind, message(id, Due::NOW, false)), "a broken header".to_owned()));
                store.bury(&partition, Death::INVALID, &batch).await?;
            }
            "due" => drop(store.external_due(&external::place(scene)).await?),
            "persist" => drop(store.persist(&[b"dp:jobs:msg:due".to_vec(), b"dp:jobs:msg:fresh".to_vec()]).await?),
            "take members" | "take hashes" | "take from a delayqueue" => {
                store
                    .take(&partition, &external::place(scene), external::MAX_PAYLOAD, &external::entries(scene))
                    .await?;
            }
            "get" => drop(store.get(&partition, &id("dead")).await?),
            "list" => drop(store.list(&partition, &whole_page(State::Dead, 10, &Filter::default())).await?),
            "summary" => drop(store.summary(&partition, &Filter::default(), None).await?),
            "list ends" => drop(store.ends(&partition, Order::Ascending, EndPlace::Start, 10).await?),
            "trim" => assert_eq!(store.trim_history(&partition).await?, (4, true)),
            "forecast" => drop(store.forecast(&partition, None, 60_000, 10).await?),
            "stats" => drop(store.stats(&partition).await?),
            scene if OF_OUTBOX.contains(&scene) => forward(&store, &partition, scene).await?,
            "purge all" => act_on_dead(&store, DeadAction::Purge, &all_dead(), false).await?,
            "purge some" => act_on_dead(&store, DeadAction::Purge, &some_dead(), false).await?,
            "purge no dead" => act_on_dead(&store, DeadAction::Purge, &all_dead(), true).await?,
            "purge all pending" => drop(store.purge_pending(&partition, None, 3, false, BY).await?),
            "purge some pending" => {
                let named = ["failed", "unknown", "held", "dead", "failed", "later", "due", "orphan"].map(id);
                let named = if waiting == "failed" {
                    named.to_vec()
                } else {
                    vec![id("parked"), id("failed"), id("parked-too")]
                };
                store.purge_pending(&partition, Some(&named), 3, false, BY).await?;
            }
            "purge nothing" => drop(store.purge_pending(&partition, None, 3, true, BY).await?),
            "edit" | "edit in the outbox" => drop(store.edit(&partition, &id("dead"), &edited("new"), None).await?),
            "edit without change" => drop(store.edit(&partition, &id("dead"), &Edit::default(), None).await?),
            "evict" => {
                let limits = DeadLimits { max_age: Some(Duration::from_mins(1)), max_count: Some(1) };
                store.evict(&partition, limits).await?;
            }
            "redrive all" => act_on_dead(&store, DeadAction::Redrive(Expiry::Drop), &all_dead(), false).await?,
            "redrive some" => act_on_dead(&store, DeadAction::Redrive(Expiry::Drop), &some_dead(), false).await?,
            "redrive none" => act_on_dead(&store, DeadAction::Redrive(Expiry::Drop), &all_dead(), true).await?,
            "reschedule" => drop(store.reschedule(&partition, &id(waiting), Some(Due::After(0))).await?),
            "schedule" => drop(store.schedule(&partition, &batch(kind)).await?),
            of if of.starts_with("produce") => return self.produced(grouped(kind, to_produce(of, waiting))).await,
            "move" | "begin to move" | "end the move" => self.change_partitions(scene).await?,
            "rights" | "registered" | "register" | "repartition" => self.register(scene).await?,
            other => return steer(&store, other).await,
        }
        Ok(())
    }

    async fn register(&self, scene: &str) -> Result<(), StoreError> {
        match scene {
            "rights" => self.store.check_rights().await.expect("all rights"),
            "registered" => assert!(self.store.is_registered().await?),
            // Another largest payload, or another number of partitions of an empty route: something to write.
            "register" => registered(&self.other).await?,
            _ => registered(&self.repartitioned).await?,
        }
        Ok(())
    }

    async fn change_partitions(&self, scene: &str) -> Result<(), StoreError> {
        registered(&self.moving).await?;
        match scene {
            "move" => {
                // All of one partition: one call.
                let named = ["failed", "unknown", "held", "dead-crashed", "failed", "later", "ended"].map(id);
                self.moving.carry(&partition(), &named).await?;
            }
            "end the move" => assert!(self.moving.move_some(ROUTE).await?.is_done),
            _ => {}
        }
        Ok(())
    }

    async fn produced(&mut self, message: NewMessage) -> Result<(), StoreError> {
        self.try_produce(&partition(), &message)
            .await
            .map_err(|error| punctual::store::redis::connection::classify(&error))?;
        Ok(())
    }

    /// All that is stored: type and content of each key, in an order of its own, and whether it expires.
    pub async fn dump(&mut self) -> Dump {
        let script = redis::Script::new(
            r"local all = {}
            for _, key in ipairs(redis.call('KEYS', '*')) do
              local kind = redis.call('TYPE', key).ok
              local content = kind == 'hash' and redis.call('HGETALL', key)
                or kind == 'zset' and redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
                or kind == 'list' and redis.call('LRANGE', key, 0, -1)
                or { redis.call('GET', key) }
              local expires = redis.call('TTL', key) >= 0 and ', expiring' or ''
              all[#all + 1] = { key, kind .. expires, content }
            end
            return all",
        );
        let all: Vec<(String, String, Vec<Vec<u8>>)> =
            script.invoke_async(&mut self.raw).await.expect("the server answers");
        all.into_iter()
            .map(|(key, kind, content)| {
                let content = if kind == "hash" {
                    let mut pairs: Vec<_> = content.chunks(2).collect();
                    pairs.sort();
                    pairs.concat()
                } else {
                    content
                };
                (key, (kind, content))
            })
            .collect()
    }
}

/// Scenes about whole flows and schedules.
async fn steer(store: &RedisStore, scene: &str) -> Result<(), StoreError> {
    let partition = partition();
    match scene {
        of if of.contains("schedule") || of.contains("occurrence") => schedules::act(store, of).await?,
        "pause" => assert!(store.pause(&partition, "ops", "why").await?),
        "resume" => assert!(store.resume(&partition).await?),
        "fence" => store.fence(&partition).await?,
        "deliver at once" => drop(store.reschedule(&partition, &id("failed"), None).await?),
        "list flows" => drop(store.flows(&partition, Some("a"), 1).await?),
        "look at a flow" => drop(store.flow(&partition, "a").await?),
        "change a flow" => {
            let change =
                FlowChange { burst: FieldChange::Set(7), parallel: FieldChange::Set(2), ..FlowChange::default() };
            assert!(store.change_flow(&partition, "a", change).await?);
        }
        "change a flow back" => {
            let change = FlowChange { rate: FieldChange::Remove, burst: FieldChange::Remove, ..FlowChange::default() };
            assert!(store.change_flow(&partition, "b", change).await?);
        }
        "pause a flow" => assert!(store.pause_flow(&partition, "b", "ops", "why").await?),
        "look at a group" => drop(store.messages_of_group(&partition, GROUP, None, 10, u64::MAX).await?),
        "cancel a group" => drop(store.cancel_group(&partition, GROUP, None, 10, BY).await?),
        "move a message of a group" => {
            let only = (GROUP, super::operation::never());
            let moved = store.reschedule_if(&partition, &id("failed"), NewDue::By(7), Some(only)).await?;
            assert!(matches!(moved, Rescheduled::Done(_)), "{moved:?}");
        }
        "tidy flights" | "tidy parked" => drop(store.tidy(&partition).await?),
        "unpark" => drop(store.unpark(&partition).await?),
        other => panic!("no scene `{other}`"),
    }
    Ok(())
}

/// The keys that differ in two dumps, with their content in both.
pub fn differing(one: &Dump, other: &Dump) -> String {
    let shown = |dump: &Dump, key: &String| {
        let words = dump.get(key).into_iter().flat_map(|(_, content)| content);
        words.map(|word| String::from_utf8_lossy(word)).collect::<Vec<_>>().join(" ")
    };
    let keys: BTreeSet<_> = one.keys().chain(other.keys()).filter(|key| one.get(*key) != other.get(*key)).collect();
    let lines = keys.into_iter().map(|key| format!("{key}: {} | {}", shown(one, key), shown(other, key)));
    lines.collect::<Vec<_>>().join("\n")
}

async fn forward(store: &RedisStore, partition: &Partition, scene: &str) -> Result<(), StoreError> {
    let turn = match scene {
        "forward" => return store.take_outbox(partition).await.map(drop),
        "post" => return act_on_dead(store, DeadAction::Forward, &all_dead(), false).await,
        "end a turn" => Turn::Keep,
        "end a turn in vain" => Turn::Again(Duration::from_secs(5)),
        _ => Turn::Purge,
    };
    let taken = |text: &str, score: u64, died| Outgoing::taken(id(text), score, died);
    let all = [
        taken("dead", LONG_AGO, LONG_AGO),
        taken("dead-crashed", LONG_AGO, LONG_AGO + 1),
        taken("long-gone", LONG_AGO, LONG_AGO),
    ];
    store.end_turn(partition, &all, turn).await
}

/// A page of the first messages, of any size.
pub fn whole_page(state: State, limit: usize, filter: &Filter) -> PageRequest<'_> {
    PageRequest { state, filter, order: Order::Ascending, limit, max_bytes: u64::MAX, after: None }
}

async fn act_on_dead(store: &RedisStore, action: DeadAction, of: &Selection, dry_run: bool) -> Result<(), StoreError> {
    let work = DeadWork { action, spread: Spread::default(), selection: of, limit: 1000, dry_run, deadline: later() };
    store.act_on_dead(&partition(), &work, &mut BulkProgress::default()).await
}

async fn registered(store: &RedisStore) -> Result<(), StoreError> {
    let registered = store.register().await.map_err(|error| match error {
        RegistrationError::Store(error) => error,
        mismatch => panic!("{mismatch}"),
    });
    registered.map(drop)
}
