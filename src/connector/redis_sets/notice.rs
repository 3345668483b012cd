//! Whether Redis tells of changes: keyspace notifications.

use super::RedisSets;
use crate::store::redis::ExternalPlace;

impl RedisSets {
    /// The channels on which it tells of this source's keys.
    pub(super) fn channels(&self, database: i64) -> Vec<String> {
        self.parts().into_iter().map(|(key, ..)| format!("__keyspace@{database}__:{key}")).collect()
    }

    /// Whether the server is set to do so. Where that may not be asked, it counts as no.
    pub(super) async fn is_told(&self) -> bool {
        let mut question = redis::cmd("CONFIG");
        question.arg("GET").arg("notify-keyspace-events");
        let answer: Result<Vec<String>, _> = self.connection.run(&question).await;
        let flags = answer.ok().and_then(|mut answer| answer.pop()).unwrap_or_default();
        let lists = matches!(self.place, ExternalPlace::DelayQueue(_));
        tells(&flags, lists)
    }
}

/// `K`: by key. `z`: sorted sets. `l`: lists. `A`: both, among others.
fn tells(flags: &str, lists: bool) -> bool {
    let has = |flag| flags.contains(flag) || flags.contains('A');
    flags.contains('K') && has('z') && (!lists || has('l'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sorted_sets_and_where_they_matter_lists_are_told_of() {
        for (flags, sets, lists) in
            [("", false, false), ("Kz", true, false), ("Ez", false, false), ("zlK", true, true), ("AK", true, true)]
        {
            assert_eq!((tells(flags, false), tells(flags, true)), (sets, lists), "{flags}");
        }
    }
}
