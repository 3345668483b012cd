//! Keyspace notifications: their channels, and whether Redis sends them.

use super::RedisSets;

impl RedisSets {
    /// The channels of this source's keys.
    pub(super) fn channels(&self, database: i64) -> Vec<String> {
        self.parts().into_iter().map(|(key, ..)| format!("__keyspace@{database}__:{key}")).collect()
    }

    /// Whether the server sends notifications for these keys. False if the user is not allowed to read the
    /// configuration.
    pub(super) async fn has_notifications(&self) -> bool {
        let mut command = redis::cmd("CONFIG");
        command.arg("GET").arg("notify-keyspace-events");
        let reply: Result<Vec<String>, _> = self.connection.run(&command).await;
        let flags = reply.ok().and_then(|mut reply| reply.pop()).unwrap_or_default();
        covers(&flags, self.has_lists())
    }
}

/// `K`: keyspace events. `z`: sorted sets. `l`: lists. `A`: all types. `lists`: whether lists are needed too.
fn covers(flags: &str, lists: bool) -> bool {
    let has = |flag| flags.contains(flag) || flags.contains('A');
    flags.contains('K') && has('z') && (!lists || has('l'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_must_cover_sorted_sets_and_if_needed_lists() {
        for (flags, sets, lists) in
            [("", false, false), ("Kz", true, false), ("Ez", false, false), ("zlK", true, true), ("AK", true, true)]
        {
            assert_eq!((covers(flags, false), covers(flags, true)), (sets, lists), "{flags}");
        }
    }
}
