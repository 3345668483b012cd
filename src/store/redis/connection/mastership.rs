//! Whether the links to one upstream still lead to a master. Shared by all connections of the upstream: if one of them
//! leads to a demoted server, all do, and another server may be the master by now.

use std::time::Duration;

use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

/// Minimum age of a link that is replaced: a server that stays a replica, or loads for long, costs each connection one
/// attempt a second.
const MIN_LINK_AGE: Duration = Duration::from_secs(1);

#[derive(Debug, Default)]
pub struct Mastership(watch::Sender<MasterState>);

#[derive(Clone, Copy, Debug, Default)]
struct MasterState {
    /// Links that were made earlier may lead to a server that is not the master.
    suspect_before: Option<Instant>,
    /// Whether no master was found since the last loss.
    is_lost: bool,
    /// Links that were made earlier lead to a server that is certainly not the master any more.
    deposed_before: Option<Instant>,
}

impl Mastership {
    /// The server that answered a command, sent at `sent`, is not the master at present.
    pub fn lost(&self, sent: Instant) {
        self.0.send_modify(|state| {
            *state = MasterState { suspect_before: state.suspect_before.max(Some(sent)), is_lost: true, ..*state }
        });
    }

    /// A link made at `made` leads to a master. Links made earlier may still lead to another server, if the master had
    /// been lost.
    pub fn found(&self, made: Instant) {
        self.0.send_if_modified(|state| {
            let was_lost = state.is_lost;
            if was_lost {
                let suspect_before = state.suspect_before.max(Some(made));
                *state = MasterState { suspect_before, is_lost: false, ..*state };
            }
            was_lost
        });
    }

    /// Another server has been the master since `at`.
    pub fn moved(&self, at: Instant) {
        self.0.send_modify(|state| {
            *state = MasterState {
                suspect_before: state.suspect_before.max(Some(at)),
                is_lost: false,
                deposed_before: Some(at),
            }
        });
    }

    /// Returns once the server of a link made at `made` is deposed: its answers are not valid any more.
    pub async fn deposed(&self, made: Instant) {
        let mut state = self.0.subscribe();
        // Cannot fail: `self` holds the sender.
        let _ = state.wait_for(|state| state.deposed_before.is_some_and(|at| made < at)).await;
    }

    /// Whether a link made at `made` is to be replaced now.
    pub fn is_outdated(&self, made: Instant) -> bool {
        self.replaced_at(made).is_some_and(|at| at <= Instant::now())
    }

    /// Returns once a link made at `made` is to be replaced.
    pub async fn outdated(&self, made: Instant) {
        let mut state = self.0.subscribe();
        loop {
            if let Some(at) = self.replaced_at(made) {
                return sleep_until(at).await;
            }
            // Cannot fail: `self` holds the sender.
            let _ = state.changed().await;
        }
    }

    fn replaced_at(&self, made: Instant) -> Option<Instant> {
        let suspect_before = self.0.borrow().suspect_before?;
        (made < suspect_before).then(|| made + MIN_LINK_AGE)
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{sleep, timeout};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn earlier_links_are_replaced_when_a_master_is_lost_and_when_one_is_found() {
        let mastership = Mastership::default();
        let first = Instant::now();
        mastership.found(first);
        assert!(!mastership.is_outdated(first), "none was lost");
        sleep(2 * MIN_LINK_AGE).await;
        mastership.lost(Instant::now());
        assert!(mastership.is_outdated(first));

        sleep(MIN_LINK_AGE / 10).await;
        let to_the_old = Instant::now();
        sleep(MIN_LINK_AGE / 10).await;
        let to_the_new = Instant::now();
        sleep(2 * MIN_LINK_AGE).await;
        assert!(!mastership.is_outdated(to_the_old), "it may be the new one");
        mastership.found(to_the_new);
        assert!(mastership.is_outdated(to_the_old) && !mastership.is_outdated(to_the_new));
        mastership.found(Instant::now());
        assert!(!mastership.is_outdated(to_the_new), "none was lost since");
    }

    #[tokio::test(start_paused = true)]
    async fn links_to_a_deposed_master_end_at_once_and_those_to_the_new_one_stay() {
        let mastership = Mastership::default();
        let to_the_old = Instant::now();
        mastership.lost(Instant::now());
        assert!(timeout(MIN_LINK_AGE, mastership.deposed(to_the_old)).await.is_err(), "it may be the master again");
        mastership.moved(Instant::now());
        let to_the_new = Instant::now();
        timeout(Duration::ZERO, mastership.deposed(to_the_old)).await.expect("it is deposed");
        assert!(mastership.is_outdated(to_the_old) && !mastership.is_outdated(to_the_new));
        assert!(timeout(MIN_LINK_AGE, mastership.deposed(to_the_new)).await.is_err(), "it is the master");
        mastership.found(Instant::now());
        assert!(!mastership.is_outdated(to_the_new), "none was lost since");
    }

    #[tokio::test(start_paused = true)]
    async fn a_link_that_was_just_made_is_left_for_a_second() {
        let mastership = Mastership::default();
        let made = Instant::now();
        sleep(MIN_LINK_AGE / 10).await;
        mastership.lost(Instant::now());
        assert!(!mastership.is_outdated(made));
        mastership.outdated(made).await;
        assert_eq!(made.elapsed(), MIN_LINK_AGE);
        assert!(mastership.is_outdated(made));
    }
}
