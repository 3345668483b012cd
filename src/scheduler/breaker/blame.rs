//! Tells a message that makes its destination drop the connection from a destination that went away: after the one
//! others get through, again and again.

use std::{collections::HashMap, sync::Arc};

use crate::message::MessageId;

/// So many connections lost with the same message, another message having been confirmed between each two, are its
/// own doing. A destination that comes and goes hits the same one so often by a rare chance, and then costs it an
/// attempt.
const LOST_BY_ITSELF: u32 = 3;

/// Messages remembered at once: far more than there are causes, little memory.
const MAX_REMEMBERED: usize = 1000;

#[derive(Debug, Default)]
pub struct Blame {
    /// Messages confirmed by the sink so far.
    confirmed: u64,
    lost: HashMap<(Arc<str>, MessageId), Lost>,
}

#[derive(Clone, Copy, Debug)]
struct Lost {
    times: u32,
    /// What `confirmed` was at the last of them.
    confirmed: u64,
}

impl Blame {
    /// The connection was lost with this message under way; whether that is its own doing.
    pub fn lost(&mut self, route: &Arc<str>, id: &MessageId) -> bool {
        let key = (Arc::clone(route), id.clone());
        let Some(lost) = self.lost.get_mut(&key) else {
            self.remember(key);
            return false;
        };
        if lost.confirmed == self.confirmed {
            return false;
        }
        *lost = Lost { times: lost.times.saturating_add(1), confirmed: self.confirmed };
        lost.times >= LOST_BY_ITSELF
    }

    fn remember(&mut self, key: (Arc<str>, MessageId)) {
        if self.lost.len() >= MAX_REMEMBERED {
            // One loss says next to nothing: such messages may as well be forgotten.
            self.lost.retain(|_, lost| lost.times > 1);
        }
        if self.lost.len() < MAX_REMEMBERED {
            self.lost.insert(key, Lost { times: 1, confirmed: self.confirmed });
        }
    }

    /// The destination gave an answer.
    pub fn answered(&mut self, route: &Arc<str>, id: &MessageId, confirmed: bool) {
        self.confirmed += u64::from(confirmed);
        if !self.lost.is_empty() {
            self.lost.remove(&(Arc::clone(route), id.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lose(blame: &mut Blame, text: &str) -> bool {
        blame.lost(&"r".into(), &MessageId::parse(text).unwrap())
    }

    fn answer(blame: &mut Blame, text: &str, confirmed: bool) {
        blame.answered(&"r".into(), &MessageId::parse(text).unwrap(), confirmed);
    }

    #[test]
    fn a_destination_that_is_away_blames_nobody() {
        let mut blame = Blame::default();
        assert!((0..100).all(|_| !lose(&mut blame, "a") && !lose(&mut blame, "b")));
    }

    #[test]
    fn a_message_that_is_lost_while_others_pass_is_blamed_from_the_third_time_on() {
        let mut blame = Blame::default();
        let mut blamed = Vec::new();
        for n in 0..5 {
            blamed.push(lose(&mut blame, "poison"));
            assert!(!lose(&mut blame, "poison"), "nothing passed since");
            answer(&mut blame, &format!("m{n}"), true);
        }
        assert_eq!(blamed, [false, false, true, true, true]);
    }

    #[test]
    fn an_answer_clears_a_message() {
        let mut blame = Blame::default();
        for n in 0..10 {
            assert!(!lose(&mut blame, "a") && !lose(&mut blame, "b"));
            answer(&mut blame, if n % 2 == 0 { "a" } else { "b" }, n % 4 < 2);
        }
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut blame = Blame::default();
        for n in 0..10 * MAX_REMEMBERED {
            lose(&mut blame, &format!("m{n}"));
            answer(&mut blame, "other", true);
        }
        assert!(blame.lost.len() <= MAX_REMEMBERED);
    }
}
