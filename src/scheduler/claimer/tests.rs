use super::*;
use crate::time::{ServerClock, UnixMillis};

/// The clock of the reply, in milliseconds.
const CLOCK: u64 = 1_700_000_000_000;

/// A reply with `count` messages, and a head that is due now or in an hour.
fn claim(count: usize, is_due: bool) -> Claim {
    let at = |millis| UnixMillis::new(millis).unwrap();
    Claim {
        messages: (0..count).map(|n| Claimed::new(&format!("m{n}"), at(CLOCK))).collect(),
        next_due: Some(at(if is_due { CLOCK } else { CLOCK + 3_600_000 })),
        ..Claim::empty(ServerClock { micros: CLOCK * 1000, taken: Instant::now() })
    }
}

#[test]
fn a_claim_is_fruitless_if_an_overdue_head_stays_for_no_reason_in_the_reply() {
    assert_eq!(claim_yield(&claim(0, true)), ClaimYield::Fruitless);
    let orphan = Deaths { count: 1, ..Deaths::default() };
    for reply in [
        claim(0, false),
        Claim { next_due: None, ..claim(0, true) },
        Claim { paused: true, ..claim(0, true) },
        Claim { suspects: 1, ..claim(0, true) },
        Claim { orphans: orphan, ..claim(0, true) },
        Claim { parked: 1, ..claim(0, true) },
    ] {
        assert_eq!(claim_yield(&reply), ClaimYield::Empty, "{reply:?}");
    }
    for (paused, is_due, more) in [(false, true, true), (false, false, false), (true, true, false)] {
        let reply = Claim { paused, ..claim(2, is_due) };
        assert_eq!(claim_yield(&reply), ClaimYield::Messages { count: 2, more });
    }
}
