//! Listings, page by page.

use serde_json::Value;
use url::form_urlencoded::Serializer;

use super::{Session, client::of_route, failure::Failure, filter::Filter, output, table};

/// Most messages of a page.
const MAX_PAGE: u64 = 1000;

/// What is listed.
pub struct Listing<'a> {
    pub route: &'a str,
    pub state: &'static str,
    pub filter: &'a Filter,
    /// `None`: all.
    pub limit: Option<u64>,
}

impl Listing<'_> {
    /// Whether there are more than `limit`. `each` takes the messages in their order.
    pub async fn read(
        &self,
        session: &Session<'_>,
        mut each: impl FnMut(Value) -> Result<(), Failure>,
    ) -> Result<bool, Failure> {
        let (mut left, mut cursor) = (self.limit, None::<String>);
        loop {
            let page = left.map_or(MAX_PAGE, |left| left.min(MAX_PAGE)).to_string();
            let mut query = Serializer::new(String::new());
            query.append_pair("state", self.state).append_pair("limit", &page).extend_pairs(self.filter.fields());
            if let Some(cursor) = &cursor {
                query.append_pair("cursor", cursor);
            }
            let path = of_route(self.route, &format!("/messages?{}", query.finish()))?;
            let mut answer = session.client.get(&path).await?;
            let Value::Array(messages) = answer["messages"].take() else {
                return Err(Failure::Failed(format!("{path} answered without messages")));
            };
            left = left.map(|left| left.saturating_sub(messages.len() as u64));
            messages.into_iter().try_for_each(&mut each)?;
            cursor = answer["cursor"].as_str().map(str::to_owned);
            if cursor.is_none() || left == Some(0) {
                return Ok(cursor.is_some());
            }
        }
    }

    /// Shows them: a table with `columns`, names of fields, or with `--json` a JSON object a line.
    pub async fn show(&self, session: &Session<'_>, columns: &[&str]) -> Result<(), Failure> {
        let mut rows = Vec::new();
        let more = self.read(session, |message| {
            if session.global.json {
                return output::listed(message);
            }
            let cell = |name: &&str| match &message[*name] {
                Value::Null => "-".to_owned(),
                value => value.as_str().map_or_else(|| value.to_string(), str::to_owned),
            };
            rows.push(columns.iter().map(cell).collect());
            Ok(())
        });
        let more = more.await?;
        if !session.global.json {
            let header: Vec<String> = columns.iter().map(|name| name.replace('_', " ").to_uppercase()).collect();
            let header: Vec<&str> = header.iter().map(String::as_str).collect();
            output::listed(table::text(&header, &rows))?;
        }
        if more {
            output::note("there are more: --limit");
        }
        Ok(())
    }
}
