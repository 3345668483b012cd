//! The selection of messages of a bulk call.

use serde_json::value::RawValue;

use super::{
    fields::{Faults, items, object, read},
    id, json,
};
use crate::{api::problem::Problem, message::MessageId};

// `null` does not select all: an unset variable may have produced it.
raw_object!(Ids: ids);
raw_object!(Purge: all, ids, limit, dry_run);

/// The ids of a redrive or purge; `None` for all: no body, or no `ids` in it.
///
/// # Errors
/// As `parse`.
pub fn parse_ids(body: &[u8]) -> Result<Option<Vec<MessageId>>, Problem> {
    if body.is_empty() {
        return Ok(None);
    }
    let mut faults = Faults::default();
    let given: Option<Ids> = faults.keep(object(json(body)?, ""));
    let ids = given.and_then(|given| given.ids).map(|raw| ids(raw, &mut faults));
    faults.end(Some(ids))
}

/// Largest and default number of pending messages that one call purges.
pub const MAX_PURGED: u64 = 100_000;
const DEFAULT_PURGED: u64 = 10_000;

/// The pending messages to purge.
#[derive(Debug, PartialEq, Eq)]
pub struct PurgeRequest {
    /// `None`: all.
    pub ids: Option<Vec<MessageId>>,
    /// 1 to `MAX_PURGED`.
    pub limit: u64,
    pub dry_run: bool,
}

/// # Errors
/// 400 for invalid JSON or unknown fields; 422 when nothing is selected, or a field is invalid.
pub fn parse_purge(body: &[u8]) -> Result<PurgeRequest, Problem> {
    let given: Purge = object(json(body)?, "").map_err(|error| Problem::bad_request(error.detail))?;
    let mut faults = Faults::default();
    let all = faults.field("all", given.all, read).unwrap_or(false);
    let limit = faults.field("limit", given.limit, read).unwrap_or(DEFAULT_PURGED);
    if !(1..=MAX_PURGED).contains(&limit) {
        faults.add("/limit", format!("is 1 to {MAX_PURGED}"));
    }
    let dry_run = faults.field("dry_run", given.dry_run, read).unwrap_or(false);
    let ids = given.ids.map(|raw| ids(raw, &mut faults));
    match &ids {
        Some(_) if all => faults.add("", "`all` and `ids` exclude each other"),
        Some(ids) if ids.is_empty() && faults.errors.is_empty() => faults.add("/ids", "selects nothing"),
        None if !all && faults.errors.is_empty() => {
            faults.add("", "selects nothing: one of `ids` and `\"all\": true` is needed");
        }
        _ => {}
    }
    faults.end(Some(PurgeRequest { ids, limit, dry_run }))
}

fn ids(raw: &RawValue, faults: &mut Faults) -> Vec<MessageId> {
    let items = faults.keep(items(raw, "/ids")).unwrap_or_default();
    let parsed = items.into_iter().enumerate().map(|(index, item)| id(item, &format!("/ids/{index}")));
    parsed.filter_map(|id| faults.keep(id)).collect()
}
