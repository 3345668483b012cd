//! Pages of messages.

use std::sync::Arc;

use axum::response::Response;
use serde::Deserialize;
use serde_json::json;
use tokio::time::Instant;

use super::{
    auth::Grant,
    deadline::Deadline,
    problem::Problem,
    readers::{self, Broken, Writer},
    shown::{self, Waits},
    state::Api,
};
use crate::{
    message::{EndedMessage, State},
    queue::Page,
    store::{Filter, Order, PageRequest, Snapshot},
};

/// Default number of messages of a page.
const DEFAULT_LIMIT: usize = 100;
/// Maximum number of messages of a page: as many as the store lists at once.
const MAX_LIMIT: usize = 1000;
/// A page ends with the part that reaches this number of bytes of escaped JSON.
const MAX_PAGE_BYTES: u64 = 8 * 1024 * 1024;

pub const PAGE_QUERY: &[&str] = &["limit", "cursor", "payload"];

/// The query parameters of a page.
#[derive(Deserialize)]
pub struct PageQuery {
    pub limit: Option<usize>,
    pub cursor: Option<String>,
    pub payload: Option<bool>,
}

/// The number of messages of a page.
///
/// # Errors
/// 400 for one that is not allowed.
pub fn page_limit(query: &PageQuery) -> Result<usize, Problem> {
    let limit = query.limit.unwrap_or(DEFAULT_LIMIT);
    if !(1..=MAX_LIMIT).contains(&limit) {
        return Err(Problem::bad_request(format!("`limit` is 1 to {MAX_LIMIT}")));
    }
    Ok(limit)
}

/// The messages of a listing.
pub enum Listed {
    Filtered { state: State, filter: Filter, order: Order },
    Group(String),
}

/// A page that is being sent.
pub struct MessageListing {
    api: Arc<Api>,
    grant: Arc<Grant>,
    route: String,
    listed: Listed,
    payload: shown::Payload,
    /// Maximum number of bytes of bodies in one part of the page.
    part: u64,
    /// The time at which a page with a filter ends. A page without a filter ends by its size.
    end: Option<Instant>,
}

impl MessageListing {
    /// Reads the first part, and begins the reply.
    ///
    /// # Errors
    /// Those of the request or of Redis occur with the first part, before the reply begins.
    pub async fn begin(
        api: Arc<Api>,
        grant: Arc<Grant>,
        route: String,
        listed: Listed,
        query: &PageQuery,
        end: Option<Instant>,
        deadline: Deadline,
    ) -> Result<Response, Problem> {
        let limit = page_limit(query)?;
        let part = api.queue.part_bytes(&route);
        let permit = api.enter(&grant.share, part + api.largest_message(), deadline).await?;
        let payload = if query.payload.unwrap_or(true) { shown::Payload::Shown } else { shown::Payload::LeftOut };
        let listing = Self { api, grant, route, listed, payload, part, end };
        let first = listing.fetch(limit, query.cursor.as_deref()).await?;
        Ok(readers::json(async move |writer: Writer| {
            let _permit = permit;
            listing.write(first, limit, writer).await
        }))
    }

    async fn fetch(&self, limit: usize, cursor: Option<&str>) -> Result<Page, Problem> {
        let Self { api, grant, route, listed, part, .. } = self;
        let page = match listed {
            Listed::Filtered { state, filter, order } => {
                let (state, order) = (*state, *order);
                let page = PageRequest { state, filter, order, limit, max_bytes: *part, after: None };
                api.readers.fetch(&grant.share, api.queue.list(route, &page, cursor)).await?
            }
            Listed::Group(group) => {
                api.readers.fetch(&grant.share, api.queue.group(route, group, limit, *part, cursor)).await?
            }
        };
        Ok(page)
    }

    fn is_over(&self) -> bool {
        self.end.is_some_and(|end| Instant::now() >= end)
    }

    async fn write(&self, mut page: Page, limit: usize, mut writer: Writer) -> Result<Writer, Broken> {
        let (mut left, mut separator, mut scanned) = (limit, "", 0);
        writer.write(br#"{"messages":["#).await?;
        let cursor = loop {
            left -= page.messages.len();
            scanned += page.scanned;
            for snapshot in page.messages {
                writer.write(separator.as_bytes()).await?;
                write(&mut writer, &self.route, &snapshot, (&Waits::default(), &[]), self.payload).await?;
                separator = ",";
            }
            match page.cursor {
                Some(cursor) if left > 0 && writer.written() < MAX_PAGE_BYTES && !self.is_over() => {
                    let part = self.fetch(left, Some(&cursor)).await;
                    page =
                        part.inspect_err(|error| tracing::debug!(?error, "a listing broke off")).map_err(|_| Broken)?;
                }
                cursor => break cursor,
            }
        };
        let scanned = self.end.map_or_else(String::new, |_| format!(r#""scanned":{scanned},"#));
        writer.write(format!(r#"],{scanned}"cursor":{}}}"#, json!(cursor)).as_bytes()).await?;
        Ok(writer)
    }
}

pub async fn write(
    writer: &mut Writer,
    route: &str,
    snapshot: &Snapshot,
    (waits, ends): (&Waits, &[EndedMessage]),
    payload: shown::Payload,
) -> Result<(), Broken> {
    for piece in shown::pieces(route, snapshot, (waits, ends), payload) {
        writer.write(&piece).await?;
    }
    Ok(())
}
