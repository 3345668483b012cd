//! Edits dead letters.

use std::iter;

use super::{RedisStore, history::ends_of, script, unless_closed};
use crate::{
    message::{MessageId, codec},
    store::{Edit, Edited, Partition, StoreError, revision},
};

impl RedisStore {
    /// Changes a dead letter. `expected`: the revision that it must have.
    ///
    /// The script compares the stored body with the one that was read here, so the call carries two bodies.
    pub async fn edit(
        &self,
        partition: &Partition,
        id: &MessageId,
        edit: &Edit,
        expected: Option<&str>,
    ) -> Result<Edited, StoreError> {
        if !self.pull(partition, iter::once(id)).await?.is_empty() {
            return Ok(Edited::InFlight);
        }
        let keys = self.keys(partition)?;
        let route = self.route(&partition.route)?;
        let mut reply = self.look_up(partition, &self.layout(partition)?, id).await?;
        ends_of(&mut reply, id, route.settings.history_shares().map(|(age, _)| age))?;
        if reply.is_done() {
            return Ok(Edited::NotFound);
        }
        match &*reply.text()? {
            "dead" => {}
            "pending" => return Ok(Edited::Pending),
            "unack" => return Ok(Edited::InFlight),
            _ => return Ok(Edited::NotFound),
        }
        let (died, _, former) = (reply.integer()?, reply.failure()?, reply.bytes()?);
        let (new, changes) = match codec::decode(&former).map(|message| edit.apply(&message)) {
            Ok(Ok((message, changes))) => (codec::encode(&message), changes),
            Ok(Err(mistakes)) => return Ok(Edited::Invalid(mistakes)),
            Err(error) => return Ok(Edited::Unreadable(error.to_string())),
        };
        // A repeated call finds its own change.
        if expected.is_some_and(|expected| expected != revision(died, &former)) && new != former {
            return Ok(Edited::Changed);
        }
        let mut all = vec![keys.dead.as_str(), &keys.messages, &keys.route];
        all.extend(route.settings.forwards.then_some(&*keys.outbox));
        let call = script::EDIT
            .keys(&all)
            .arg(self.layout(partition)?)
            .arg(id.as_str())
            .arg(died)
            .arg(&former[..])
            .arg(&new[..]);
        let (reply, link): (String, _) = self.writes.run(call).await.map_err(unless_closed)?;
        self.confirm(partition, link, reply == "done").await?;
        Ok(match reply.as_str() {
            "done" => Edited::Done { changes, revision: revision(died, &new) },
            "forwarding" => Edited::Forwarding,
            _ => Edited::Changed,
        })
    }
}
