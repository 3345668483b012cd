//! What a call does to the model, and what it should answer.

use std::collections::{BTreeMap, HashSet};

use bytes::Bytes;
use punctual::store::{Claim, ClaimRequest, End, ScheduleStatus, Settled, Settlement, Transfer, Transferred};

use super::{
    operation::{Memory, Operation},
    rows::Rows,
};

/// Where transfers go.
pub const LISTS: [&str; 3] = ["list", "list-2", TAKEN];
/// A list's key at which there is something else.
pub const TAKEN: &str = "taken";

/// What each list holds.
pub type Lists = BTreeMap<&'static str, Vec<Bytes>>;

/// An operation whose leases and numbers are named.
pub enum Call {
    Plain(Operation),
    Claim(ClaimRequest),
    Settle(Vec<Settlement>),
    Transfer(Vec<Transfer>),
}

/// What Redis answered, and what it holds now.
pub struct Reply {
    pub text: String,
    pub claim: Option<Claim>,
    pub rows: Rows,
    pub lists: Lists,
}

/// Does `call` to the model; what it should answer.
pub fn expect(
    model: &mut Rows,
    lists: &mut Lists,
    (call, memory): (&Call, Memory),
    reply: &Reply,
    now: u64,
    micros: u64,
) -> String {
    match call {
        Call::Claim(request) => {
            let claim = reply.claim.as_ref().expect("a claim answered");
            format!("{:?}", model.claim(request, claim.clock.micros))
        }
        Call::Settle(settlements) => {
            let settled: Vec<_> = settlements.iter().map(|one| model.settle(one, now)).collect();
            let gone = |(one, settled): (&Settlement, &Settled)| {
                (*settled == Settled::Done && matches!(one.end, End::Ack)).then(|| one.lease.id.to_string())
            };
            let gone: Vec<String> = settlements.iter().zip(&settled).filter_map(gone).collect();
            model.remember(&gone.iter().map(String::as_str).collect::<Vec<_>>(), false, now, memory);
            format!("{settled:?}")
        }
        Call::Transfer(transfers) => {
            let mut refused = HashSet::new();
            let mut transfer = |one: &Transfer| {
                // Named again in one call, a lease is stale.
                if refused.contains(&one.lease) {
                    return Transferred::Stale;
                }
                if &*one.list == TAKEN && model.unack.get(one.lease.id.as_str()) == Some(&one.lease.token.0) {
                    refused.insert(one.lease.clone());
                    return Transferred::Refused("the key holds a string".into());
                }
                if model.end_claim(&one.lease) == Settled::Stale {
                    return Transferred::Stale;
                }
                model.forget(one.lease.id.as_str());
                let list = LISTS.into_iter().find(|list| **list == *one.list).expect("one of ours");
                lists.entry(list).or_default().push(one.value.clone());
                Transferred::Done
            };
            let transferred: Vec<_> = transfers.iter().map(&mut transfer).collect();
            let done = transfers.iter().zip(&transferred).filter(|(_, one)| **one == Transferred::Done);
            let gone: Vec<&str> = done.map(|(transfer, _)| transfer.lease.id.as_str()).collect();
            model.remember(&gone, false, now, memory);
            format!("{transferred:?}")
        }
        Call::Plain(operation) => match operation {
            Operation::Schedule(batch) => format!("{:?}", model.schedule(batch, now, memory)),
            Operation::Inter(batch) => format!("{:?}", model.inter(batch, now)),
            Operation::Produce(message) => {
                let (status, due) = model.schedule(std::slice::from_ref(message), now, memory)[0];
                match status {
                    ScheduleStatus::Over(limit) => limit.problem().to_owned(),
                    _ => format!("{:?}", (produced(status), due)),
                }
            }
            Operation::Recover => format!("{:?}", model.recover(micros, now)),
            Operation::Cancel(cancellation) => format!("{:?}", model.cancel(cancellation, now, memory)),
            Operation::Reschedule(id, due) => format!("{:?}", model.reschedule(id.as_str(), *due, now, memory)),
            Operation::Redrive(ids) => model.redrive(ids.as_deref(), now).to_string(),
            Operation::Purge(ids) => model.purge(ids.as_deref()).to_string(),
            Operation::PurgePending(ids, limit, dry) => {
                format!("{:?}", model.purge_pending(ids.as_deref(), *limit, *dry, now, memory))
            }
            Operation::Evict(most) => format!("{:?}", model.evict(*most)),
            Operation::Pause | Operation::Resume => {
                model.paused = matches!(operation, Operation::Pause);
                "()".to_owned()
            }
            _ => String::new(),
        },
    }
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
