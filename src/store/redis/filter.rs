//! The arguments of a filter (lua/include/filter.lua).

use super::script::Call;
use crate::{
    message::{DeadReason, MessageId, shown_flow},
    store::{Filter, Order},
    time::UnixMillis,
};

/// Messages that one call of a filtered listing considers: Redis needs 1 to 2 ms for them, on the machine of
/// docs/performance.md.
pub const CONSIDERED: usize = 500;
/// Messages that one call considers for a filter that reads bodies.
pub const READ: usize = 250;
/// Maximum bytes of the bodies that one call reads for a filter.
pub const FILTERED_BYTES: u64 = 256 * 1024;

/// A score as an argument; empty without one.
pub fn bound(at: Option<UnixMillis>) -> String {
    at.map_or_else(String::new, |at| at.get().to_string())
}

/// The arguments of lua/include/filter.lua: at most `most` messages are considered.
pub fn filtered(call: Call, most: usize, filter: &Filter, order: Order, place: Option<&(u64, MessageId)>) -> Call {
    let call = call
        .arg(most)
        .arg(bound(filter.since))
        .arg(bound(filter.until))
        .arg(filter.reason.map_or("", DeadReason::as_str))
        .arg(filter.contains.as_deref().unwrap_or_default())
        .arg(u8::from(filter.retried))
        .arg(filter.flow.as_deref().map_or("", shown_flow))
        .arg(filter.group.as_deref().unwrap_or_default())
        .arg(order.as_str());
    match place {
        Some((score, id)) => call.arg(*score).arg(id.as_str()),
        None => call,
    }
}
