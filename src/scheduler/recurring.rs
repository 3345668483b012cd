//! The occurrences of schedules: the message of a schedule is claimed, and one of its occurrences is sent.

use std::time::Duration;

use crate::{
    message::{DeadReason, MessageId, OccurrenceMessage, StoredMessage, as_occurrence, codec},
    metrics,
    recurrence::{Plan, Timetable, Turn},
    store::{ClaimEnd, Claimed, Planned, Sent},
    time::UnixMillis,
};

/// How long a schedule waits with a definition that cannot be read: as long as a message of a later release.
const UNREADABLE_PAUSE: Duration = Duration::from_secs(2);

/// Makes the claimed message of a schedule its occurrence. Any other message stays as it is. `now`: milliseconds.
///
/// # Errors
/// How the claim ends if no occurrence is sent now.
pub fn occurrence(claimed: &Claimed, message: StoredMessage, now: u64) -> Result<StoredMessage, ClaimEnd> {
    let Some(schedule) = claimed.id.schedule() else { return Ok(message) };
    let unreadable = |error: &str| {
        let end = ClaimEnd::Bury { reason: DeadReason::Undecodable, error: error.to_owned() };
        readable_later(claimed, end)
    };
    let Some(recurring) = &message.metadata.recurring else { return Err(unreadable("its rule is missing")) };
    let timetable = recurring.rule.timetable().map_err(|error| unreadable(&error.text))?;
    let (due, planned) = (message.due.get(), message.accepted.get());
    match timetable.turn(schedule, due, planned, claimed.tried, now) {
        Turn::Plan(plan) => Err(ClaimEnd::Plan(planned_end(schedule, &timetable, &recurring.revision, plan))),
        Turn::Send if claimed.crashed_out => {
            let error = "its leases expired, the last ones alone".into();
            Err(ClaimEnd::Bury { reason: DeadReason::Crash, error })
        }
        Turn::Send if recurring.expires_after.is_some_and(|after| now > due.saturating_add(after)) => {
            let error = "claimed after it had expired".into();
            Err(ClaimEnd::Bury { reason: DeadReason::Expired, error })
        }
        Turn::Send => Ok(StoredMessage { metadata: as_occurrence(schedule, &message), ..message }),
    }
}

/// The end of a claim of a message that cannot be read. The end of an occurrence writes the message of a schedule anew
/// from its definition. If that cannot be read either, an instance of another release might: the claim is deferred.
pub fn readable_later(claimed: &Claimed, end: ClaimEnd) -> ClaimEnd {
    let is_anew = claimed.id.schedule().is_some() && codec::accepted(&claimed.body) == Some(0);
    if is_anew { ClaimEnd::Defer { pause: UNREADABLE_PAUSE, sent: Sent::No } } else { end }
}

fn planned_end(schedule: &str, timetable: &Timetable, revision: &str, plan: Plan) -> Planned {
    let occurrence = plan.occurrence.and_then(UnixMillis::new);
    let at = occurrence.and_then(|occurrence| UnixMillis::new(timetable.fires(schedule, occurrence.get())));
    Planned { revision: revision.to_owned(), occurrence, at: at.unwrap_or_default(), missed: plan.missed }
}

/// The dead letter of the occurrence in this stored body of a schedule. `None`: the body cannot be read.
pub fn dead_occurrence(id: &MessageId, body: &bytes::Bytes) -> Option<OccurrenceMessage> {
    OccurrenceMessage::of(id.schedule()?, &codec::decode(body).ok()?)
}

/// Counts the end of a claim of this id, if it is the message of a schedule.
pub fn count(id: &MessageId, end: &ClaimEnd) {
    let Some(schedule) = id.schedule() else { return };
    match end {
        ClaimEnd::Ack => metrics::schedule_delivered(schedule),
        ClaimEnd::Bury { .. } => metrics::schedule_dead(schedule),
        ClaimEnd::Plan(plan) => {
            metrics::schedule_missed(schedule, plan.missed);
            metrics::schedule_next(schedule, plan.occurrence.map(|_| plan.at.get()));
        }
        ClaimEnd::Retry { .. } | ClaimEnd::Release { .. } | ClaimEnd::Defer { .. } => {}
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::{
        message::{Metadata, Recurring},
        recurrence::Rule,
    };

    #[test]
    fn only_the_message_of_a_schedule_that_was_written_anew_is_read_later() {
        let end = |id: MessageId, accepted| {
            let message = StoredMessage {
                due: UnixMillis::default(),
                accepted: UnixMillis::new(accepted).unwrap(),
                metadata: Metadata::default(),
                payload: Bytes::new(),
            };
            let claimed = Claimed { id, body: codec::encode(&message), ..claimed() };
            readable_later(&claimed, ClaimEnd::Ack)
        };
        let (schedule, other) = (MessageId::of_schedule("s").unwrap(), MessageId::parse("m").unwrap());
        assert!(matches!(end(schedule.clone(), 0), ClaimEnd::Defer { pause: UNREADABLE_PAUSE, sent: Sent::No }));
        assert!(matches!(end(schedule, 1), ClaimEnd::Ack));
        assert!(matches!(end(other, 0), ClaimEnd::Ack));
    }

    /// The end of a claim of an occurrence that was due at 10 s, `now` in milliseconds; `None`: it is sent.
    fn ended(claimed: &Claimed, expires_after: Option<u64>, now: u64) -> Option<ClaimEnd> {
        let rule = Rule { every: Some(1000), ..Rule::default() };
        let recurring = Recurring { revision: "7".into(), rule, expires_after };
        let message = StoredMessage {
            due: UnixMillis::new(10_000).unwrap(),
            // Planned at its time.
            accepted: UnixMillis::new(10_000).unwrap(),
            metadata: Metadata { recurring: Some(recurring.into()), ..Metadata::default() },
            payload: Bytes::new(),
        };
        occurrence(claimed, message, now).err()
    }

    fn claimed() -> Claimed {
        Claimed {
            id: MessageId::of_schedule("s").unwrap(),
            body: Bytes::new(),
            failures: 0,
            not_before: UnixMillis::default(),
            waited: Duration::ZERO,
            suspect: false,
            tried: false,
            crashed_out: false,
        }
    }

    #[test]
    fn an_occurrence_is_dead_after_its_expiry_or_its_last_crash() {
        for (expires_after, now, is_sent) in
            [(None, 99_000, true), (Some(500), 10_499, true), (Some(500), 10_500, true), (Some(500), 10_501, false)]
        {
            let end = ended(&claimed(), expires_after, now);
            assert_eq!(end.is_none(), is_sent, "{expires_after:?} {now}");
            assert!(is_sent || matches!(end, Some(ClaimEnd::Bury { reason: DeadReason::Expired, .. })), "{end:?}");
        }
        let crashed = ended(&Claimed { crashed_out: true, ..claimed() }, None, 10_000);
        assert!(matches!(crashed, Some(ClaimEnd::Bury { reason: DeadReason::Crash, .. })), "{crashed:?}");
        // One that is not due yet is planned again.
        let early = ended(&Claimed { crashed_out: true, ..claimed() }, Some(0), 9_999);
        assert!(matches!(early, Some(ClaimEnd::Plan(Planned { missed: 0, .. }))), "{early:?}");
        let without = StoredMessage {
            due: UnixMillis::default(),
            accepted: UnixMillis::default(),
            metadata: Metadata::default(),
            payload: Bytes::new(),
        };
        let end = occurrence(&claimed(), without.clone(), 1).unwrap_err();
        assert!(matches!(end, ClaimEnd::Bury { reason: DeadReason::Undecodable, .. }), "{end:?}");
        let other = Claimed { id: MessageId::parse("m").unwrap(), ..claimed() };
        assert_eq!(occurrence(&other, without.clone(), 1).unwrap(), without);
    }
}
