//! Distributes an operation on many messages over the partitions of their ids.

use std::collections::HashMap;

use futures::future::try_join_all;

use super::{QueueError, coalescer::Coalescer, handle::QueueRoute};
use crate::{message::MessageId, store::Partition};

impl QueueRoute {
    /// Calls `call` concurrently for all partitions of the items, each with its own items. One result per item, in
    /// order.
    ///
    /// # Errors
    /// The first error of any call. The effects of the other calls are unknown.
    pub(super) async fn scatter<'a, T, A, F>(
        &'a self,
        items: Vec<T>,
        id: impl Fn(&T) -> &MessageId,
        call: impl Fn(&'a Partition, &'a Coalescer, Vec<T>) -> F,
    ) -> Result<Vec<A>, QueueError>
    where
        F: Future<Output = Result<Vec<A>, QueueError>>,
    {
        let mut answers: Vec<Option<A>> = items.iter().map(|_| None).collect();
        let mut parts: HashMap<u16, (Vec<usize>, Vec<T>)> = HashMap::new();
        for (place, item) in items.into_iter().enumerate() {
            let (places, part) = parts.entry(id(&item).partition(self.count())).or_default();
            places.push(place);
            part.push(item);
        }
        let calls = parts.into_iter().map(|(index, (places, part))| {
            let (partition, coalescer) = self.at(index);
            let answers = call(partition, coalescer, part);
            async move { Ok::<_, QueueError>((places, answers.await?)) }
        });
        for (places, part) in try_join_all(calls).await? {
            for (place, answer) in places.into_iter().zip(part) {
                answers[place] = Some(answer);
            }
        }
        Ok(answers.into_iter().flatten().collect())
    }
}
