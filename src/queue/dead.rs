//! Redrives, purges, forwards, counts and edits dead letters.

use tokio::time::Instant;

use super::{Bulk, DeadSummary, Queue, QueueError, cursor};
use crate::{
    message::MessageId,
    store::{BulkProgress, DeadAction, DeadWork, Edit, Edited, Filter, Selection, StoreError},
};

impl Queue {
    /// Redrives, purges or counts dead messages, starting at `cursor`. `bulk` is correct after an error, too, except
    /// for the effect of the failed call.
    ///
    /// # Errors
    /// `Invalid` unless `act_on_dead` made the cursor.
    pub async fn act_on_dead(
        &self,
        route: &str,
        work: &DeadWork<'_>,
        cursor: Option<&str>,
        bulk: &mut Bulk,
    ) -> Result<(), QueueError> {
        let store = self.store();
        let found = self.route(route)?;
        let (first, mut done) = cursor.map_or(Ok((0, BulkProgress::default())), cursor::decode_bulk)?;
        if work.action == DeadAction::Forward && !store.forwards(route) {
            return Err(QueueError::NoForwarding(route.to_owned()));
        }
        // Sequential, so that each script and all of them together are bounded.
        for (partition, _) in found.partitions.iter().filter(|(partition, _)| partition.index >= first) {
            let own = match work.selection {
                Selection::Ids { ids, until } => &Selection::Ids { ids: found.own(partition, ids), until: *until },
                filter @ Selection::Where(_) => filter,
            };
            let result = store.act_on_dead(partition, &DeadWork { selection: own, ..*work }, &mut done).await;
            bulk.reach(partition.index, work.selection, &done);
            result?;
            if done.more {
                break;
            }
            done.place = None;
        }
        self.was_current(route).await
    }

    /// Dead messages by reason, the most frequent first. Counts as many as possible until `deadline`.
    pub async fn summary(&self, route: &str, filter: &Filter, deadline: Instant) -> Result<DeadSummary, QueueError> {
        let store = self.store();
        let mut summary = DeadSummary { complete: true, ..DeadSummary::default() };
        for (partition, _) in &self.route(route)?.partitions {
            let mut place = None;
            loop {
                if Instant::now() >= deadline {
                    summary.complete = false;
                    break;
                }
                let (groups, reached) = store.summary(partition, filter, place.as_ref()).await?;
                for group in groups {
                    summary.add(group);
                }
                place = reached;
                if place.is_none() {
                    break;
                }
            }
        }
        summary.groups.sort_by(|one, other| other.count.cmp(&one.count).then_with(|| one.reason.cmp(&other.reason)));
        Ok(summary)
    }

    /// Changes a dead letter. `revision`: that which it must have.
    ///
    /// # Errors
    /// `Refused` for a payload that the route does not take.
    pub async fn edit(
        &self,
        route: &str,
        id: &MessageId,
        edit: &Edit,
        revision: Option<&str>,
    ) -> Result<Edited, QueueError> {
        let (size, most) = (edit.payload.as_ref().map_or(0, bytes::Bytes::len), self.route(route)?.max_payload);
        if size > most {
            let text = format!("the payload of `{id}` takes {size} bytes, at most {most}");
            return Err(StoreError::Refused { slug: "too-large".into(), text }.into());
        }
        let (store, partition) = (self.store(), &self.partition(route, id)?);
        Ok(self.registry.when_open(|| store.edit(partition, id, edit, revision)).await?)
    }
}

impl Bulk {
    /// Takes over what a call has done up to the partition `index`.
    pub(super) fn reach(&mut self, index: u16, selection: &Selection, done: &BulkProgress) {
        (self.count, self.more, self.until, self.next) = (done.count, done.more, done.until, done.next);
        let has_filter = matches!(selection, Selection::Where(filter) if *filter != Filter::default());
        self.scanned = has_filter.then_some(done.scanned);
        let goes_on = done.more && matches!(selection, Selection::Where(_));
        self.cursor = goes_on.then(|| cursor::encode_bulk(index, done));
    }
}
