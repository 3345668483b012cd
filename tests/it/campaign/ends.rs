//! Compares the history of the routes with what is owed: each message has one end.

use std::collections::HashMap;

use super::{
    clock,
    history::{Answer, Operation},
    judge::{Observed, Verdict},
    oracle::{Life, Owed},
    world::{World, text_of},
};

/// Ends of each id on a route, the latest first: the outcome, and all that is shown of it.
pub type Ends = HashMap<String, Vec<(String, String)>>;

/// Reads ends of the routes since this time, in epoch milliseconds.
pub async fn read(world: &World, since: u64) -> Ends {
    let mut all = Ends::new();
    for end in world.messages(&format!("state=ended&since={}", clock::lowest(since))).await {
        all.entry(text_of(&end, "id")).or_default().push((text_of(&end, "outcome"), end.to_string()));
    }
    all
}

/// A message that is owed has ended as delivered, once; a cancelled one as cancelled. Ends of a route that gets another number of
/// partitions are deleted, and sources make ids of their own.
pub fn judge(observed: &Observed, verdict: &mut Verdict) {
    let moved = observed.acts.moved.map(|(route, _)| route);
    let lives = observed.lives.iter().filter(|(_, life)| Some(life.route) != moved && !life.is_from_source);
    for (id, life) in lives {
        let ends = observed.ends.get(id).map(Vec::as_slice).unwrap_or_default();
        let count = |outcome: &str| ends.iter().filter(|(end, _)| end == outcome).count();
        let (delivered, cancelled) = (count("delivered"), count("cancelled"));
        let is_right = match life.owed() {
            // It may be delivered before it is a dead letter, once the endpoint takes it.
            Owed::Delivery if life.is_rejected => delivered <= 1 && count("dead") + delivered >= 1,
            Owed::Delivery => delivered == 1 && cancelled == 0,
            Owed::Either => delivered + cancelled <= 1 || life.is_rejected,
            Owed::Never if is_cancelled(life) => delivered == 0 && cancelled == 1,
            Owed::Never => ends.is_empty(),
        };
        verdict.note("ends");
        if !is_right {
            verdict.note("wrong ends");
            verdict.breach(observed, id, &format!("its ends in the history are {ends:?}"));
        }
    }
}

fn is_cancelled(life: &Life) -> bool {
    life.calls.iter().any(|call| call.operation == Operation::Cancel && matches!(call.answer, Answer::Done { .. }))
}
