//! Edits dead letters.

use super::{Queue, QueueError};
use crate::{
    message::MessageId,
    store::{Edit, Edited, StoreError},
};

impl Queue {
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
