//! Which messages a call is about.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::{Items, field, id, json, keep, object, present, read};
use crate::{
    api::problem::{FieldError, Problem},
    message::MessageId,
};

/// The ids of a redrive or purge; `None` for all: no body, or no `ids` in it.
///
/// # Errors
/// As `parse`.
pub fn parse_ids(body: &[u8]) -> Result<Option<Vec<MessageId>>, Problem> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Selection<'a> {
        // Present but null is no way to say "all": it is how a lost variable looks.
        #[serde(borrow, default, deserialize_with = "present")]
        ids: Option<&'a RawValue>,
    }
    if body.is_empty() {
        return Ok(None);
    }
    let selection: Selection = object(json(body)?, "").map_err(|error| Problem::invalid(vec![error]))?;
    let Some(ids) = selection.ids else { return Ok(None) };
    let mut errors = Vec::new();
    let parsed = self::ids(ids, &mut errors);
    if errors.is_empty() { Ok(Some(parsed)) } else { Err(Problem::invalid(errors)) }
}

/// Most pending messages that one call purges, and how many unless it says.
pub const MAX_PURGED: u64 = 100_000;
const DEFAULT_PURGED: u64 = 10_000;

/// Which pending messages are to be purged.
#[derive(Debug, PartialEq, Eq)]
pub struct PurgeRequest {
    /// `None`: all.
    pub ids: Option<Vec<MessageId>>,
    /// 1 to `MAX_PURGED`.
    pub limit: u64,
    pub dry_run: bool,
}

/// # Errors
/// 400 for what is not JSON or has unknown fields; 422 where nothing is selected, or a field is invalid.
pub fn parse_purge(body: &[u8]) -> Result<PurgeRequest, Problem> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Selection<'a> {
        // Present but null is how a lost variable looks.
        #[serde(borrow, default, deserialize_with = "present")]
        all: Option<&'a RawValue>,
        #[serde(borrow, default, deserialize_with = "present")]
        ids: Option<&'a RawValue>,
        #[serde(borrow, default, deserialize_with = "present")]
        limit: Option<&'a RawValue>,
        #[serde(borrow, default, deserialize_with = "present")]
        dry_run: Option<&'a RawValue>,
    }
    let given: Selection = object(json(body)?, "").map_err(|error| Problem::bad_request(error.detail))?;
    let mut errors = Vec::new();
    let all: bool = field(given.all, "", "all", &mut errors).unwrap_or_default();
    let limit = field(given.limit, "", "limit", &mut errors).unwrap_or(DEFAULT_PURGED);
    if !(1..=MAX_PURGED).contains(&limit) {
        errors.push(FieldError::new("/limit", format!("is 1 to {MAX_PURGED}")));
    }
    let dry_run = field(given.dry_run, "", "dry_run", &mut errors).unwrap_or_default();
    let ids = given.ids.map(|raw| ids(raw, &mut errors));
    match &ids {
        Some(_) if all => errors.push(FieldError::new("", "`all` and `ids` exclude each other")),
        Some(ids) if ids.is_empty() && errors.is_empty() => errors.push(FieldError::new("/ids", "selects nothing")),
        None if !all && errors.is_empty() => {
            errors.push(FieldError::new("", "selects nothing: one of `ids` and `\"all\": true` is needed"));
        }
        _ => {}
    }
    if errors.is_empty() { Ok(PurgeRequest { ids, limit, dry_run }) } else { Err(Problem::invalid(errors)) }
}

fn ids(raw: &RawValue, errors: &mut Vec<FieldError>) -> Vec<MessageId> {
    let Some(Items(items)) = keep(Some(read(raw, "/ids")), errors) else { return Vec::new() };
    let parsed = items.into_iter().enumerate().map(|(index, item)| id(item, &format!("/ids/{index}")));
    parsed.filter_map(|id| keep(Some(id), errors)).collect()
}
