//! The operations of a random sequence.

use std::time::Duration;

use proptest::{collection::vec, option, prelude::*, sample::select};
use punctual::{
    message::{
        Cancellation, DeadReason, FlowLimits, HistoryLimits, LogRecord, MessageId, Metadata, NewMessage, OnConflict,
        Rate, Recurring, Remember, RouteLimits,
    },
    recurrence::Rule,
    sink::template::FlowTemplate,
    store::{
        ClaimRequest, DeadAction, Edit, Expiry, FieldChange, Filter, FlowChange, NewDue, NewKey, NextOccurrence,
        Partition, ScheduleDefinition, ScheduleOwner, Selection, Sent, Spread, Suspects, memory::PartitionSettings,
        redis::Turn,
    },
    time::{Due, LAST_MILLIS, UnixMillis},
};

use crate::support::receiver::wall_clock;

/// Routes of the model, and their partitions.
pub const ROUTES: [(&str, u16); 6] =
    [("one", 1), ("three", 3), ("off", 1), ("rated", 1), ("parallel", 1), ("ordered", 1)];
/// One route remembers long but few, one for a moment, one nothing.
pub fn remember(route: &str) -> Option<Remember> {
    match route {
        "one" => Some(Remember { period: Duration::from_hours(1), max: 3 }),
        "three" => Some(Remember { period: Duration::from_millis(5), max: 5 }),
        _ => None,
    }
}

/// One route takes few messages and bytes, one no long delays, one anything.
pub fn limits(route: &str) -> RouteLimits {
    match route {
        "one" => RouteLimits::default(),
        "three" => RouteLimits { messages: Some(13), bytes: Some(3 * 110), delay: None },
        _ => RouteLimits { delay: Some(Duration::from_millis(FAR + 1)), ..RouteLimits::default() },
    }
}

/// The flows of a route: a rate alone, both, and order.
pub fn flow(route: &str) -> Option<FlowLimits> {
    let limits = |rate: Option<&str>, burst, parallel, ordered| {
        Some(FlowLimits { rate: rate.map(|rate| Rate::parse(rate).expect("a rate")), burst, parallel, ordered })
    };
    match route {
        "rated" => limits(Some("200/s"), 2, None, false),
        "parallel" => limits(Some("1000/s"), 3, Some(2), false),
        "ordered" => limits(None, 1, Some(1), true),
        _ => None,
    }
}

/// The flow of messages without one.
pub fn flow_key(route: &str) -> Option<FlowTemplate> {
    (route == "rated").then(|| FlowTemplate::parse("k:{key}").expect("a template"))
}

/// The token that cancels.
pub const BY: Option<&str> = Some("ops");

/// The note of each pause.
pub const PAUSE_NOTE: &str = "two\nlines";

/// Few ids, so that they meet again and again.
const IDS_PER_PARTITION: usize = 6;
/// Far enough that nothing of it comes due while a test runs.
pub const FAR: u64 = 3_600_000;
/// Later than any message was accepted.
pub fn never() -> UnixMillis {
    UnixMillis::new(LAST_MILLIS).expect("below 2^53")
}

/// Up to five seconds before or after the time at which the case is made.
fn about_now() -> impl Strategy<Value = UnixMillis> {
    (0..10_000_u64).prop_map(|millis| UnixMillis::new(wall_clock() - 5000 + millis).expect("a time"))
}
/// A time of expiry, in ms, behind the due times of most messages.
const SOME_EXPIRY: u64 = 4_000_000_000_000;
const SHORT_LEASE: Duration = Duration::from_millis(1);
const LONG_LEASE: Duration = Duration::from_hours(1);

/// One step of a sequence.
#[derive(Clone, Debug)]
pub struct Step {
    pub partition: Partition,
    pub operation: Operation,
    /// Done again at once: as often as a reply is lost.
    pub twice: bool,
    /// While the server takes no more data.
    pub full: bool,
}

#[derive(Clone, Debug)]
pub enum Operation {
    Schedule(Vec<NewMessage>),
    Bury(Vec<NewMessage>),
    /// Through lua/produce.lua.
    Produce(NewMessage),
    /// The sequence number in it is not used: `Number` makes it.
    Claim(ClaimRequest, Number),
    Recover,
    /// All kinds of ends in one call.
    Settle(Vec<(Pick, Ending)>),
    Transfer(Vec<Pick>),
    Cancel(Cancellation),
    /// With the group that it must have, and the time before which it must have been accepted or moved last.
    Reschedule(MessageId, NewDue, Option<(String, UnixMillis)>),
    /// The pending messages of a group after an id, and how many are looked at.
    CancelGroup(String, Option<MessageId>, usize),
    /// Maximum number, and whether only to count.
    Dead(DeadAction, Spread, Selection, u64, bool),
    Edit(MessageId, Edit),
    /// Maximum number, and whether only to count.
    PurgePending(Option<Vec<MessageId>>, u64, bool),
    /// The number of dead letters that stay.
    Evict(u64),
    /// Takes what is in the outbox, and ends its turn or not.
    Forward(Option<Turn>),
    Pause,
    Resume,
    /// A change of the rules of a flow.
    Rule(String, Ruling),
    Define(Defining),
    /// All operations that only read, with this size of a page.
    Look(usize),
}

/// The sequence number of a claim, by those that its claimant used on the partition before.
#[derive(Clone, Copy, Debug)]
pub enum Number {
    Next,
    /// The last one: its reply was lost.
    Last,
    /// The distance before the last one: that request was overtaken.
    Earlier(u64),
}

/// How a picked lease ends. A release gives back the score that its claim told.
#[derive(Clone, Copy, Debug)]
pub enum Ending {
    Ack,
    /// The last time holds its flow.
    Retry(Duration, Option<Duration>),
    Bury(DeadReason),
    /// The plan after an occurrence: the number of its definition, the due time, and how many were missed. `Ack` for a
    /// message of a user.
    Plan(u8, Option<u64>, u64),
    Release,
    Defer(Duration, Sent),
}

/// A change of the rules of a flow. It never removes `parallel`: messages in flight would stay counted.
#[derive(Clone, Copy, Debug)]
pub enum Ruling {
    Change(FlowChange),
    Pause,
    Resume,
}

/// A change of the schedule of a partition.
#[derive(Clone, Debug)]
pub enum Defining {
    /// The definition, the number of the one that it replaces, and its next occurrence.
    Set(Box<ScheduleDefinition>, Option<u8>, NextOccurrence),
    Delete(MessageId, ScheduleOwner),
    Pause(MessageId, bool),
}

/// The only schedule of `partition`.
fn schedule(partition: &Partition) -> MessageId {
    let mut names = (0..).map(|n| MessageId::of_schedule(&format!("tick-{n}")).expect("a name"));
    names.find(|id| id.partition(partition.count) == partition.index).expect("one of the first names")
}

/// The revision of the definition with this number.
pub fn revision(number: u8) -> String {
    format!("r{number}")
}

/// A lease out of all that were ever given: current, settled, expired, or not even that.
#[derive(Clone, Copy, Debug)]
pub struct Pick {
    /// The distance before the last one that was given.
    pub back: usize,
    pub forged: bool,
    /// Where to, if it is transferred.
    pub list: usize,
}

/// The history of a route: long but few, and for a moment.
pub fn history(route: &str) -> Option<HistoryLimits> {
    match route {
        "one" => Some(HistoryLimits { period: Duration::from_hours(1), max: 1 }),
        "three" => Some(HistoryLimits { period: Duration::from_millis(5), max: 300 }),
        "parallel" | "ordered" => Some(HistoryLimits { period: Duration::from_millis(1), max: 20 }),
        _ => None,
    }
}

/// Whether the dead letters of the route are forwarded.
pub fn forwards(route: &str) -> bool {
    matches!(route, "three" | "ordered")
}

/// Every partition of the model.
pub fn partitions() -> Vec<Partition> {
    ROUTES.into_iter().flat_map(|(route, count)| Partition::all(&route.into(), count).collect::<Vec<_>>()).collect()
}

/// The settings of a partition, from those of its route.
pub fn settings(partition: &Partition) -> PartitionSettings {
    let count = ROUTES.iter().find(|(route, _)| **route == *partition.route).expect("one of ours").1;
    let RouteLimits { messages, bytes, delay } = limits(&partition.route);
    let share = |limit: Option<u64>| limit.map(|limit| limit / u64::from(count));
    let limits = RouteLimits { messages: share(messages), bytes: share(bytes), delay };
    let (keep, max) = remember(&partition.route).map_or((0, 0), |Remember { period, max }| {
        let keep = u64::try_from(period.as_millis()).expect("short");
        (keep, max.div_ceil(u32::from(count)) as usize)
    });
    let history = history(&partition.route).map(|HistoryLimits { period, max }| {
        (u64::try_from(period.as_millis()).expect("short"), u64::from(max.div_ceil(u32::from(count))))
    });
    PartitionSettings { keep, max, limits, flow: flow(&partition.route), forwards: forwards(&partition.route), history }
}

/// Ids that live in `partition`.
pub fn ids(partition: &Partition) -> Vec<MessageId> {
    let count = ROUTES.iter().find(|(route, _)| **route == *partition.route).expect("one of ours").1;
    (0..)
        .map(|n| MessageId::parse(&format!("id-{n}")).expect("an id"))
        .filter(|id| id.partition(count) == partition.index)
        .take(IDS_PER_PARTITION)
        .collect()
}

pub fn sequence() -> impl Strategy<Value = Vec<Step>> {
    vec(step(), 1..60)
}

fn step() -> impl Strategy<Value = Step> {
    select(partitions()).prop_flat_map(|partition| {
        let faults = (prop::bool::weighted(0.2), prop::bool::weighted(0.1));
        (operation(&ids(&partition), &schedule(&partition)), faults).prop_map(move |(operation, (twice, full))| Step {
            partition: partition.clone(),
            operation,
            twice,
            full,
        })
    })
}

fn operation(ids: &[MessageId], schedule: &MessageId) -> impl Strategy<Value = Operation> + use<> {
    let id = || select(ids.to_vec());
    let some_ids = || option::of(vec(id(), 0..4));
    let message = message(ids.to_vec()).boxed();
    prop_oneof![
        8 => vec(message.clone(), 1..8).prop_map(Operation::Schedule),
        1 => vec(message.clone(), 1..4).prop_map(Operation::Bury),
        2 => message.prop_map(|message| Operation::Produce(NewMessage { record: None, ..message })),
        14 => (claim(), number()).prop_map(|(request, number)| Operation::Claim(request, number)),
        3 => Just(Operation::Recover),
        15 => vec((pick(), ending()), 1..6).prop_map(Operation::Settle),
        3 => vec(pick(), 1..6).prop_map(Operation::Transfer),
        2 => (id(), log_record(), any::<bool>(), any::<bool>()).prop_map(|(id, record, unseen, keep_dead)| {
            Operation::Cancel(Cancellation { id, record, unseen, keep_dead, by: BY.map(str::to_owned) })
        }),
        3 => (id(), new_due(), option::weighted(0.5, (group(), about_now())))
            .prop_map(|(id, due, only)| Operation::Reschedule(id, due, only)),
        2 => (group(), option::weighted(0.3, id()), 1..4_usize)
            .prop_map(|(group, after, most)| Operation::CancelGroup(group, after, most)),
        3 => (action(), spread(), selection(ids.to_vec()), 1..5_u64, any::<bool>()).prop_map(
            |(action, spread, selection, limit, dry)| Operation::Dead(action, spread, selection, limit, dry)
        ),
        2 => (id(), edit()).prop_map(|(id, edit)| Operation::Edit(id, edit)),
        1 => (some_ids(), 1..5_u64, any::<bool>())
            .prop_map(|(ids, limit, dry)| Operation::PurgePending(ids, limit, dry)),
        1 => (3..9_u64).prop_map(Operation::Evict),
        2 => select(vec![None, Some(Turn::Keep), Some(Turn::Purge)]).prop_map(Operation::Forward),
        1 => Just(Operation::Pause),
        2 => Just(Operation::Resume),
        3 => (select(vec!["a", "a:b"]), ruling()).prop_map(|(flow, ruling)| Operation::Rule(flow.to_owned(), ruling)),
        4 => defining(schedule.clone()).prop_map(Operation::Define),
        2 => (1..5_usize).prop_map(Operation::Look),
    ]
}

fn ruling() -> impl Strategy<Value = Ruling> {
    let rates = ["1/h", "300/s"].map(|text| FieldChange::Set(Rate::parse(text).expect("a rate")));
    let rate = select([FieldChange::Keep, FieldChange::Remove].into_iter().chain(rates).collect::<Vec<_>>());
    let burst = select(vec![FieldChange::Keep, FieldChange::Remove, FieldChange::Set(1), FieldChange::Set(4)]);
    let parallel = select(vec![FieldChange::Keep, FieldChange::Keep, FieldChange::Set(1), FieldChange::Set(3)]);
    let change = (rate, burst, parallel).prop_map(|(rate, burst, parallel)| FlowChange { rate, burst, parallel });
    prop_oneof![3 => change.prop_map(Ruling::Change), 1 => Just(Ruling::Pause), 2 => Just(Ruling::Resume)]
}

fn edit() -> impl Strategy<Value = Edit> {
    let payload = option::weighted(0.6, vec(any::<u8>(), 0..300));
    let headers = option::weighted(0.3, "[a-z]{0,4}");
    let key = prop_oneof![
        Just(FieldChange::Keep),
        Just(FieldChange::Remove),
        "[a-z]{0,3}".prop_map(|key| FieldChange::Set(NewKey::Text(key))),
        Just(FieldChange::Set(NewKey::Base64("/wA=".to_owned()))),
    ];
    let expires_at = select(vec![FieldChange::Keep, FieldChange::Remove, FieldChange::Set(SOME_EXPIRY)]);
    let attempts = select(vec![FieldChange::Keep, FieldChange::Remove, FieldChange::Set(1), FieldChange::Set(0)]);
    (payload, headers, key, expires_at, attempts).prop_map(|(payload, header, key, expires_at, max_attempts)| Edit {
        payload: payload.map(Into::into),
        headers: header.map(|text| [("X-Note".to_owned(), text)].into()),
        key,
        max_attempts,
        expires_at,
        ..Edit::default()
    })
}

fn defining(id: MessageId) -> impl Strategy<Value = Defining> {
    let [deleted, paused] = [id.clone(), id.clone()];
    let owner = || prop_oneof![3 => Just(ScheduleOwner::Api), 1 => (0..3_u64).prop_map(|revision| ScheduleOwner::File { revision })];
    let next = prop_oneof![
        1 => Just(NextOccurrence::Kept),
        4 => due_at().prop_map(|at| NextOccurrence::At { occurrence: at, at }),
    ];
    let set =
        (0..3_u8, option::weighted(0.6, 0..3_u8), owner(), next).prop_map(move |(number, replaces, owner, next)| {
            // A revision has one content.
            let recurring = Recurring { revision: revision(number), rule: Rule::default(), expires_after: None };
            let flow = ["", "a", "a:b"][usize::from(number)];
            let flow = Some(flow.to_owned()).filter(|flow| !flow.is_empty());
            let metadata = Metadata { recurring: Some(recurring.into()), flow, ..Metadata::default() };
            let payload = vec![number; 7 * usize::from(number)].into();
            Defining::Set(ScheduleDefinition { id: id.clone(), owner, metadata, payload }.into(), replaces, next)
        });
    prop_oneof![
        4 => set,
        1 => owner().prop_map(move |owner| Defining::Delete(deleted.clone(), owner)),
        2 => any::<bool>().prop_map(move |pause| Defining::Pause(paused.clone(), pause)),
    ]
}

/// Long ago, or far ahead.
fn due_at() -> impl Strategy<Value = UnixMillis> {
    prop_oneof![3 => 100_000_000_000..100_000_000_004_u64, 1 => LAST_MILLIS - 3..LAST_MILLIS]
        .prop_map(|at| UnixMillis::new(at).expect("below 2^53"))
}

fn action() -> impl Strategy<Value = DeadAction> {
    let expiry = prop_oneof![Just(Expiry::Drop), Just(Expiry::Keep), (1..=FAR).prop_map(Expiry::After)];
    prop_oneof![2 => expiry.prop_map(DeadAction::Redrive), 2 => Just(DeadAction::Purge), 1 => Just(DeadAction::Forward)]
}

fn spread() -> impl Strategy<Value = Spread> {
    let rates = ["1/m", "7/s", "1000000/s"].map(|text| Rate::parse(text).expect("a rate"));
    (option::weighted(0.3, due_at()), option::weighted(0.3, select(rates.to_vec())))
        .prop_map(|(start, rate)| Spread { start, rate })
}

fn selection(ids: Vec<MessageId>) -> impl Strategy<Value = Selection> {
    let reason = option::of(select(vec![DeadReason::Rejected, DeadReason::Attempts, DeadReason::Invalid]));
    let contains = option::of(select(vec!["HTTP", "400", ": ", "%d"]).prop_map(str::to_owned));
    // Everything dies in the present.
    let time = || option::of(select(vec![0, 1_000_000_000_000, 9_000_000_000_000]));
    let at = |time: Option<u64>| time.map(|time| UnixMillis::new(time).expect("below 2^53"));
    let flow = option::weighted(0.3, select(vec!["", "a", "a:b"]).prop_map(str::to_owned));
    let group = option::weighted(0.3, group());
    let key = option::weighted(0.1, select(vec!["a", "b"]).prop_map(str::to_owned));
    let payload = option::weighted(0.1, select(vec!["\u{1}", "A"]).prop_map(str::to_owned));
    let filter = (reason, contains, time(), time(), any::<bool>(), (flow, group), (key, payload)).prop_map(
        move |(reason, contains, since, until, retried, (flow, group), (key, payload))| Filter {
            reason,
            contains,
            since: at(since),
            until: at(until),
            retried,
            flow,
            group,
            key,
            headers: Vec::new(),
            payload,
        },
    );
    prop_oneof![
        2 => (vec(select(ids), 0..4), time()).prop_map(move |(ids, until)| Selection::Ids { ids, until: at(until) }),
        1 => Just(Selection::Where(Filter::default())),
        3 => filter.prop_map(Selection::Where),
    ]
}

fn pick() -> impl Strategy<Value = Pick> {
    let pick = (0..6_usize, prop::bool::weighted(0.1), 0..3_usize);
    pick.prop_map(|(back, forged, list)| Pick { back, forged, list })
}

fn ending() -> impl Strategy<Value = Ending> {
    let delay = || prop_oneof![0..4_u64, Just(FAR)].prop_map(Duration::from_millis);
    let reason = select(vec![DeadReason::Rejected, DeadReason::Attempts, DeadReason::Expired]);
    let sent = prop_oneof![Just(Sent::No), option::weighted(0.3, delay()).prop_map(|hold| Sent::Yes { hold })];
    prop_oneof![
        2 => Just(Ending::Ack),
        3 => (delay(), option::weighted(0.3, delay())).prop_map(|(delay, hold)| Ending::Retry(delay, hold)),
        3 => reason.prop_map(Ending::Bury),
        3 => Just(Ending::Release),
        2 => (0..3_u8, option::weighted(0.8, 100_000_000_000..100_000_000_004_u64), 0..2_u64)
            .prop_map(|(number, due, missed)| Ending::Plan(number, due, missed)),
        2 => (delay(), sent).prop_map(|(pause, sent)| Ending::Defer(pause, sent)),
    ]
}

fn message(ids: Vec<MessageId>) -> impl Strategy<Value = NewMessage> {
    let conflict = select(vec![OnConflict::Keep, OnConflict::Replace]);
    let key = option::of("[a-zé\"\\\\\t]{0,5}");
    let expires_at = option::weighted(0.3, select(vec![LAST_MILLIS, SOME_EXPIRY]));
    let flow = option::weighted(0.7, select(vec!["a", "a:b"]).prop_map(str::to_owned));
    let names = (key, flow, option::weighted(0.6, group()));
    let debounce = option::weighted(0.4, select(vec![1, 3, FAR]));
    (select(ids), due(), vec(any::<u8>(), 0..40), names, expires_at, (conflict, debounce), log_record()).prop_map(
        |(id, due, payload, (key, flow, group), expires_at, (on_conflict, debounce), record)| {
            // Producers are refused a message that expires before it is due.
            let is_far = matches!(due, Due::At(at) if at.get() > SOME_EXPIRY);
            let expires_at = expires_at.filter(|at| !is_far || *at == LAST_MILLIS);
            let metadata = Metadata { key, flow, group, expires_at, ..Metadata::default() };
            let debounce = debounce.filter(|_| on_conflict == OnConflict::Replace);
            NewMessage { id, due, payload: payload.into(), metadata, on_conflict, debounce, record }
        },
    )
}

/// Few groups, one the beginning of another.
fn group() -> impl Strategy<Value = String> {
    select(vec!["g", "g:1"]).prop_map(str::to_owned)
}

fn new_due() -> impl Strategy<Value = NewDue> {
    prop_oneof![
        3 => Just(NewDue::Now),
        6 => due().prop_map(NewDue::At),
        2 => select(vec![-100_000_000_002, -1, 0, 2, 3_600_000]).prop_map(NewDue::By),
    ]
}

/// Few, so that they are read again and again, behind and ahead of each other, from a log that was made anew.
fn log_record() -> impl Strategy<Value = Option<LogRecord>> {
    let record = (0..6_u64, 0..3_u64, select(vec!["t:0", "t:0", "t:0", "log 2"]));
    let record = record.prop_map(|(offset, era, place)| LogRecord { place: place.into(), offset, timestamp: era });
    option::weighted(0.5, record)
}

/// Long ago (often the same), now, in a few milliseconds, or far ahead: whatever it is, the clock that a script
/// tells decides it.
fn due() -> impl Strategy<Value = Due> {
    prop_oneof![
        3 => (100_000_000_000..100_000_000_004_u64).prop_map(|at| Due::At(UnixMillis::new(at).expect("small"))),
        3 => (0..4_u64).prop_map(Due::After),
        2 => (FAR..FAR + 4).prop_map(Due::After),
        1 => (0..4_u64).prop_map(|n| Due::At(UnixMillis::new(LAST_MILLIS - n).expect("below 2^53"))),
    ]
}

fn claim() -> impl Strategy<Value = ClaimRequest> {
    let suspects = prop_oneof![
        2 => Just(Suspects::Defer(Duration::ZERO)),
        1 => Just(Suspects::Defer(Duration::from_millis(FAR))),
        2 => Just(Suspects::Few),
    ];
    let bytes = prop_oneof![3 => Just(u64::MAX), 1 => 0..150_u64];
    let lease = select(vec![SHORT_LEASE, SHORT_LEASE, LONG_LEASE]);
    let again = prop::bool::weighted(0.2);
    (0..3_u64, again, suspects, 1..5_usize, 0..8_u32, bytes, lease).prop_map(
        |(claimant, again, suspects, max_suspects, limit, max_bytes, lease)| ClaimRequest {
            claimant,
            sequence: 0,
            again,
            backlog: limit % 2 == 0,
            suspects,
            max_suspects,
            limit,
            max_bytes,
            lease,
        },
    )
}

fn number() -> impl Strategy<Value = Number> {
    prop_oneof![5 => Just(Number::Next), 3 => Just(Number::Last), 1 => (1..3_u64).prop_map(Number::Earlier)]
}
