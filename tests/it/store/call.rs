//! One call, and what it should answer according to the in-memory store.

use punctual::{
    message::{MessageId, Metadata, NewMessage},
    store::{
        Claim, ClaimRequest, DeadAction, DeadWork, Death, FieldChange, ScheduleChange, ScheduleStatus, Settlement,
        Transfer,
        memory::{MemoryLists, MemoryPartition, PartitionSettings},
        redis::{HOLD, Turn},
    },
};

use super::bench::later;
use super::operation::{BY, Defining, Operation, PAUSE_NOTE, Ruling, flow_key, revision};

/// Where transfers go.
pub const LISTS: [&str; 3] = ["list", "list-2", TAKEN];
/// A list's key at which there is something else.
pub const TAKEN: &str = "taken";

/// An operation with its leases and numbers by name.
pub enum Call {
    Plain(Box<Operation>),
    Claim(ClaimRequest),
    Settle(Vec<Settlement>),
    Transfer(Vec<Transfer>),
}

impl Call {
    pub fn claim(&self) -> Option<&ClaimRequest> {
        match self {
            Self::Claim(request) => Some(request),
            _ => None,
        }
    }
}

/// An answer of Redis, and its content after that.
pub struct Reply {
    pub text: String,
    pub claim: Option<Claim>,
    pub rows: MemoryPartition,
    pub lists: MemoryLists,
}

/// Makes `call` in memory, at `now` in microseconds; what it should answer.
pub fn expect(
    memory: &mut MemoryPartition,
    lists: &mut MemoryLists,
    (call, route, settings): (&Call, &str, PartitionSettings),
    reply: &Reply,
    now: u64,
) -> String {
    match call {
        Call::Claim(request) => {
            let claim = reply.claim.as_ref().expect("a claim answered");
            format!("{:?}", memory.claim(request, claim.clock, settings))
        }
        Call::Settle(settlements) => format!("{:?}", memory.settle(settlements, now, settings)),
        Call::Transfer(transfers) => format!("{:?}", memory.transfer(transfers, lists, now, settings)),
        Call::Plain(operation) => match &**operation {
            Operation::Schedule(batch) => format!("{:?}", memory.schedule(&with_flows(route, batch), now, settings)),
            Operation::Bury(batch) => {
                format!("{:?}", memory.bury(Death::INVALID, &with_errors(&with_flows(route, batch)), now, settings))
            }
            Operation::Produce(message) => {
                let message = &with_flows(route, std::slice::from_ref(message))[0];
                let scheduled = memory.produce(message, now, settings);
                match scheduled.status {
                    ScheduleStatus::Over(limit) => limit.problem().to_owned(),
                    status => format!("{:?}", (produced(status), scheduled.due.get())),
                }
            }
            Operation::Recover => format!("{:?}", memory.recover(now, settings)),
            Operation::Cancel(cancellation) => format!("{:?}", memory.cancel(cancellation, now, settings)),
            Operation::Reschedule(id, due, only) => {
                let only = only.as_ref().map(|(group, before)| (&**group, *before));
                format!("{:?}", memory.reschedule(id, *due, only, now, settings))
            }
            Operation::CancelGroup(group, after, most) => {
                let after = after.as_ref().map_or("", MessageId::as_str);
                format!("{:?}", memory.cancel_group(group, after, (*most, BY), now, settings))
            }
            Operation::Dead(DeadAction::Forward, ..) if !settings.forwards => String::new(),
            Operation::Dead(action, spread, selection, limit, dry) => {
                let (spread, limit, dry_run) = (*spread, *limit, *dry);
                let work = DeadWork { action: *action, spread, selection, limit, dry_run, deadline: later() };
                format!("{:?}", memory.act_on_dead(&work, now, settings))
            }
            Operation::PurgePending(ids, limit, dry) => {
                format!("{:?}", memory.purge_pending(ids.as_deref(), *limit, (*dry, BY), now, settings))
            }
            Operation::Edit(id, edit) => format!("{:?}", memory.edit(id, edit, settings)),
            Operation::Evict(most) => format!("{:?}", memory.evict(*most, settings)),
            Operation::Forward(turn) if settings.forwards => {
                let purges = turn.map(|turn| turn == Turn::Purge);
                format!("{:?}", memory.forward(u64::try_from(HOLD.as_millis()).expect("short"), purges, now))
            }
            Operation::Pause | Operation::Resume => {
                let before = std::mem::replace(&mut memory.paused, matches!(**operation, Operation::Pause));
                format!("{:?}", memory.paused != before)
            }
            Operation::Rule(flow, ruling) if settings.flow.is_some() => {
                format!("{:?}", rule(memory, flow, *ruling, now))
            }
            Operation::Define(defining) => format!("{:?}", define(memory, route, defining, now, settings)),
            _ => String::new(),
        },
    }
}

/// Returns whether that changed anything.
fn rule(memory: &mut MemoryPartition, flow: &str, ruling: Ruling, now: u64) -> bool {
    fn changed(rule: &mut String, change: FieldChange<impl ToString>) {
        match change {
            FieldChange::Keep => {}
            FieldChange::Remove => "-".clone_into(rule),
            FieldChange::Set(value) => *rule = value.to_string(),
        }
    }
    let rows = &mut memory.flow;
    let was = rows.rules.get(flow).map_or("- - - -", String::as_str).to_owned();
    let parts: Vec<_> = was.splitn(4, ' ').map(str::to_owned).collect();
    let [mut rate, mut burst, mut parallel, mut pause] = <[_; 4]>::try_from(parts).expect("four rules");
    let was_counted = parallel != "-";
    match ruling {
        Ruling::Change(change) => {
            changed(&mut rate, change.rate);
            changed(&mut burst, change.burst);
            changed(&mut parallel, change.parallel);
        }
        Ruling::Pause if pause == "-" => pause = format!("{}\nops\n{PAUSE_NOTE}", now / 1000),
        Ruling::Pause => {}
        Ruling::Resume => "-".clone_into(&mut pause),
    }
    let is_counted = parallel != "-";
    let is = [rate, burst, parallel, pause].join(" ");
    if is == was {
        return false;
    }
    rows.rules.remove(flow);
    if is != "- - - -" {
        rows.rules.insert(flow.to_owned(), is);
    }
    if is_counted && !was_counted {
        let of_flow =
            |id: &&str| rows.flows.get(*id).is_some_and(|value| value.split_once(' ').expect("a flow").1 == flow);
        let counted: Vec<_> =
            memory.unack.iter().map(|(id, _)| id).filter(of_flow).map(|id| format!("{flow}\0{id}")).collect();
        rows.flights.extend(counted);
    }
    rows.gates.entry(flow.to_owned()).and_modify(|gate| *gate = now / 1000);
    true
}

fn define(
    memory: &mut MemoryPartition,
    route: &str,
    defining: &Defining,
    now: u64,
    settings: PartitionSettings,
) -> ScheduleChange {
    match defining {
        Defining::Set(definition, replaces, next) => {
            let mut definition = (**definition).clone();
            name_flow(route, &mut definition.metadata);
            let replaces = replaces.map(revision);
            memory.set_schedule(&definition, replaces.as_deref(), *next, now, settings)
        }
        Defining::Delete(id, owner) => memory.delete_schedule(id, *owner, now, settings),
        Defining::Pause(id, pause) => memory.pause_schedule(id, *pause, now, settings),
    }
}

/// Messages as a route stores them.
fn with_flows(route: &str, batch: &[NewMessage]) -> Vec<NewMessage> {
    let mut batch = batch.to_vec();
    for metadata in batch.iter_mut().map(|message| &mut message.metadata) {
        name_flow(route, metadata);
    }
    batch
}

fn name_flow(route: &str, metadata: &mut Metadata) {
    if let Some(template) = flow_key(route) {
        let made = || Some(template.render(route, metadata)).filter(|flow| !flow.is_empty());
        metadata.flow = metadata.flow.clone().or_else(made);
    }
}

/// Messages that a source could not understand, each with the reason.
pub fn with_errors(batch: &[NewMessage]) -> Vec<(NewMessage, String)> {
    batch.iter().map(|message| (message.clone(), "odd".to_owned())).collect()
}

/// lua/produce.lua's word for it.
fn produced(status: ScheduleStatus) -> &'static str {
    match status {
        ScheduleStatus::Scheduled => "scheduled",
        ScheduleStatus::Exists(_) => "exists",
        ScheduleStatus::Replaced | ScheduleStatus::Revived => "replaced",
        ScheduleStatus::InFlight => "in_flight",
        ScheduleStatus::Known => panic!("it cannot name a record"),
        ScheduleStatus::Ended(ending) => ending.as_str(),
        ScheduleStatus::Over(limit) => panic!("an error: {limit:?}"),
    }
}
