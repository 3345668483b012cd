//! Converts a delivery of RabbitMQ to an entry for the intake.
//!
//! | AMQP | becomes |
//! |---|---|
//! | body, routing key, `content_type` | payload, key, content type |
//! | `content_encoding`, `correlation_id`, `reply_to`, `type`, `priority`, `app_id` | properties |
//! | headers | headers with their types |
//! | properties with control characters; `message_id`, `timestamp`, `cluster_id` | the origin |
//! | exchange | the origin |
//! | `x-delay`, `x-deliver-at`, `x-opt-delivery-delay`, `x-opt-delivery-time` | the due time |
//! | `x-flow`, `x-group` | the flow and the group |
//! | `user_id`, `expiration`, CC, BCC, counters of the broker, and headers that a sink sets | dropped |

use base64::{Engine, engine::general_purpose::STANDARD};
use lapin::{
    BasicProperties,
    message::Delivery,
    types::{FieldTable, ShortString},
};
use rand::Rng;

use super::due::{self, DEATHS, DELAYS, ROUND, TIMES};
use crate::{
    connector::rabbitmq::{self, IdFrom},
    message::{
        HeaderValue, Headers, MessageId, Metadata, NewMessage, OnConflict, Origin, Properties, TypedValue, check_flow,
        check_group, check_text, digest,
    },
    retry::Backoff,
    sink::headers,
    source::{IdGenerator, SourceEntry},
    time::Due,
};

/// Headers that are dropped. CC and BCC would route the message to its source queues again. A counter of deliveries would
/// change the content of a redelivered message.
const DROPPED: [&str; 6] = ["BCC", "CC", "x-acquired-count", DELIVERY_COUNT, FLOW, GROUP];

/// Text, or an integer: the key of the message's flow.
const FLOW: &str = "x-flow";
/// Text, or an integer: the message's group.
const GROUP: &str = "x-group";

/// How often the message was returned to a quorum queue.
const DELIVERY_COUNT: &str = "x-delivery-count";

pub struct MessageReader {
    pub id_from: IdFrom,
    /// Delays of dead-lettered messages. Replaces their timing headers.
    pub backoff: Option<Backoff>,
    pub generate_id: IdGenerator,
}

impl MessageReader {
    /// `unreadable`: the note of `frames` on what it replaced.
    pub fn entry(&self, delivery: Delivery, unreadable: Option<String>, rng: &mut impl Rng) -> SourceEntry {
        let none = FieldTable::default();
        let headers = delivery.properties.headers().as_ref().unwrap_or(&none);
        let rounds = if self.backoff.is_some() { due::rounds(headers) } else { Ok(0) };
        let due = rounds.clone().and_then(|rounds| match &self.backoff {
            Some(backoff) => due::by_rounds(headers, rounds, backoff, rng),
            None => due::by_headers(headers),
        });
        let rounds = rounds.unwrap_or(0);
        let (id, mut origin) = self.id(&delivery.properties, headers, rounds, unreadable.as_deref());
        let (flow, group) = (name(headers, FLOW, check_flow), name(headers, GROUP, check_group));
        let errors = [due.as_ref().err(), flow.as_ref().err(), group.as_ref().err()];
        let mut problem = unreadable.or_else(|| errors.into_iter().flatten().next().cloned());
        let (flow, group) = (flow.unwrap_or_default(), group.unwrap_or_default());
        let mut metadata = Metadata { flow, group, ..Metadata::default() };
        let mut given = Vec::new();
        for (name, value) in headers.inner() {
            match rabbitmq::to_typed(value) {
                Ok(value) => given.push((name.to_string(), value)),
                Err(_) if self.is_dropped(name.as_str()) => {}
                Err(error) => problem = Some(format!("header `{}` {error}", name.as_str().escape_debug())),
            }
        }
        metadata.headers = Headers::classify(given, |name| self.is_dropped(name));
        if rounds > 0 {
            metadata.headers.push(ROUND.into(), HeaderValue::Typed(TypedValue::Int64(rounds.into())));
        }
        origin.exchange = Some(delivery.exchange.to_string()).filter(|exchange| !exchange.is_empty());
        let key = delivery.routing_key.as_str();
        match check_text(key) {
            Ok(()) => metadata.key = (!key.is_empty()).then(|| key.to_owned()),
            Err(_) => origin.key_base64 = Some(STANDARD.encode(key)),
        }
        (metadata.content_type, origin.content_type) = split(delivery.properties.content_type().as_ref());
        let (allowed, others) = properties(&delivery.properties);
        metadata.properties = allowed.or_none().map(Box::new);
        origin.properties = others.or_none();
        metadata.origin = origin.or_none();
        let due = due.unwrap_or(Due::NOW);
        let (payload, on_conflict) = (delivery.data.into(), OnConflict::Keep);
        let message = NewMessage { id, due, payload, metadata, on_conflict, debounce: None, record: None };
        match problem {
            None => SourceEntry::Schedule(message),
            Some(problem) => SourceEntry::Invalid(message, problem),
        }
    }

    fn is_dropped(&self, name: &str) -> bool {
        (self.backoff.is_some() && name == ROUND)
            || [&DROPPED[..], &headers::ALL, &DELAYS, &TIMES].iter().any(|all| all.contains(&name))
    }

    /// The id, and an origin with the ids of the producer.
    fn id(
        &self,
        properties: &BasicProperties,
        headers: &FieldTable,
        rounds: u32,
        unreadable: Option<&str>,
    ) -> (MessageId, Origin) {
        let message_id = owned(properties.message_id().as_ref());
        let mut origin = Origin {
            message_id: message_id.clone(),
            cluster_id: owned(properties.cluster_id().as_ref()),
            timestamp: *properties.timestamp(),
            ..Origin::default()
        };
        let text = match (self.id_from, message_id) {
            (IdFrom::MessageId, Some(text)) if !text.is_empty() => text,
            _ => return ((self.generate_id)(), origin),
        };
        let deaths = headers.inner().get(DEATHS).filter(|_| self.backoff.is_some());
        let id = match (deaths, MessageId::parse_new(&text)) {
            (None, Ok(id)) => return (id, origin),
            (None, Err(_)) => match unreadable {
                // Different ids can be equal after the replacement.
                Some(unreadable) => digest(&[text.as_bytes(), unreadable.as_bytes()]),
                None => digest(&[text.as_bytes()]),
            },
            // Each retry round delivers the same message: the rounds need ids of their own.
            (Some(deaths), _) => digest(&[text.as_bytes(), format!("{deaths:?}").as_bytes(), &rounds.to_be_bytes()]),
        };
        origin.id = Some(text);
        (id, origin)
    }
}

/// The text or the integer of a header that names something; `None` for an absent or empty one.
///
/// # Errors
/// The header, and what is wrong with it.
fn name(
    headers: &FieldTable,
    header: &str,
    check: impl Fn(&str) -> Result<(), String>,
) -> Result<Option<String>, String> {
    let Some(value) = headers.inner().get(header) else { return Ok(None) };
    let text = match due::integer(value) {
        Some(number) => Ok(number.to_string()),
        None => due::text(value).map(str::to_owned),
    };
    text.and_then(|text| if text.is_empty() { Ok(None) } else { check(&text).map(|()| Some(text)) })
        .map_err(|error| format!("{header}: {error}"))
}

/// How often the message was returned to a quorum queue; 0 for other queues.
pub fn return_count(delivery: &Delivery) -> u64 {
    let headers = delivery.properties.headers().as_ref();
    let count = headers.and_then(|headers| headers.inner().get(DELIVERY_COUNT)).and_then(due::integer);
    count.and_then(|count| u64::try_from(count).ok()).unwrap_or(0)
}

/// The properties that a message can have, and those with control characters.
fn properties(given: &BasicProperties) -> (Properties, Properties) {
    let (mut allowed, mut others) = (Properties::default(), Properties::default());
    (allowed.content_encoding, others.content_encoding) = split(given.content_encoding().as_ref());
    (allowed.correlation_id, others.correlation_id) = split(given.correlation_id().as_ref());
    (allowed.reply_to, others.reply_to) = split(given.reply_to().as_ref());
    (allowed.r#type, others.r#type) = split(given.kind().as_ref());
    (allowed.app_id, others.app_id) = split(given.app_id().as_ref());
    allowed.priority = *given.priority();
    (allowed, others)
}

/// The text in the first place, or in the second if it has control characters.
fn split(text: Option<&ShortString>) -> (Option<String>, Option<String>) {
    match owned(text) {
        Some(text) if check_text(&text).is_err() => (None, Some(text)),
        text => (text, None),
    }
}

fn owned(text: Option<&ShortString>) -> Option<String> {
    text.map(ToString::to_string)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use std::time::Duration;

    use lapin::types::AMQPValue;
    use rand::{SeedableRng, rngs::StdRng};

    use super::*;
    use crate::message::MAX_DEPTH;

    fn read(id_from: IdFrom, backoff: bool, key: &str, properties: BasicProperties) -> SourceEntry {
        let backoff = backoff.then(|| Backoff::new(Duration::from_secs(1), 2.0, Duration::from_mins(1), 0.0).unwrap());
        let reader = MessageReader { id_from, backoff, generate_id: Arc::new(|| MessageId::parse("new").unwrap()) };
        let mut delivery = Delivery::mock(1, "x".into(), key.into(), false, b"body".to_vec());
        delivery.properties = properties;
        reader.entry(delivery, None, &mut StdRng::seed_from_u64(1))
    }

    fn scheduled(entry: SourceEntry) -> NewMessage {
        let SourceEntry::Schedule(message) = entry else { panic!("{entry:?}") };
        message
    }

    fn headers(entries: &[(&str, AMQPValue)]) -> BasicProperties {
        let mut table = FieldTable::default();
        for (name, value) in entries {
            table.insert((*name).into(), value.clone());
        }
        BasicProperties::default().with_headers(table)
    }

    fn string(text: &str) -> AMQPValue {
        AMQPValue::LongString(text.into())
    }

    #[test]
    fn a_header_with_any_name_and_value_is_kept() {
        let odd = [
            ("two words", string("v")),
            ("Host", string("v")),
            ("X-Case", string("1")),
            ("x-case", string("2")),
            ("control", string("a\nb")),
            ("count", AMQPValue::LongInt(1)),
            ("punctual-other", string("v")),
        ];
        let mut all = vec![("X-Plain", string("é\tb")), ("x-delay", AMQPValue::LongInt(7)), ("CC", string("q"))];
        all.extend(odd.clone());
        let message = scheduled(read(IdFrom::Ulid, false, "a\u{1}", headers(&all)));
        assert_eq!(message.metadata.validate(), Ok(()));
        assert_eq!(message.due, Due::After(7));
        let headers = &message.metadata.headers;
        assert_eq!(headers.texts().collect::<Vec<_>>(), [("X-Plain", "é\tb")]);
        let origin = message.metadata.origin.unwrap();
        let mut names: Vec<_> = odd.iter().map(|(name, _)| *name).collect();
        names.sort_unstable();
        assert_eq!(headers.typed().map(|(name, _)| name).collect::<Vec<_>>(), names);
        assert_eq!((message.metadata.key.as_deref(), origin.odd_key().as_deref()), (None, Some("a\u{1}")));
    }

    #[test]
    fn properties_with_control_characters_go_to_the_origin() {
        let given = BasicProperties::default()
            .with_content_type("text/a\nb".into())
            .with_correlation_id("a\nb".into())
            .with_reply_to("answers".into())
            .with_type("\0".into())
            .with_priority(3);
        let metadata = scheduled(read(IdFrom::Ulid, false, "k", given)).metadata;
        assert_eq!((metadata.validate(), &metadata.content_type), (Ok(()), &None));
        let ours = Properties { reply_to: Some("answers".into()), priority: Some(3), ..Properties::default() };
        assert_eq!(metadata.properties.as_deref(), Some(&ours));
        let origin = metadata.origin.unwrap();
        assert_eq!(origin.content_type.as_deref(), Some("text/a\nb"));
        let odd =
            Properties { correlation_id: Some("a\nb".into()), r#type: Some("\0".into()), ..Properties::default() };
        assert_eq!(origin.properties, Some(odd));
    }

    #[test]
    fn the_broker_counts_how_often_a_message_was_returned() {
        let returned = |header| {
            let mut delivery = Delivery::mock(1, "x".into(), "k".into(), false, Vec::new());
            delivery.properties = headers(&[header]);
            return_count(&delivery)
        };
        let count = |value| returned((DELIVERY_COUNT, value));
        assert_eq!([12, 0, -1].map(|count_| count(AMQPValue::LongLongInt(count_))), [12, 0, 0]);
        assert_eq!(returned(("other", AMQPValue::LongLongInt(7))), 0);
    }

    #[test]
    fn exchange_key_and_ids_of_the_producer_are_kept() {
        let given = BasicProperties::default().with_cluster_id("c".into()).with_timestamp(7);
        let metadata = scheduled(read(IdFrom::Ulid, false, "k", given)).metadata;
        let origin = metadata.origin.unwrap();
        assert_eq!((metadata.key.as_deref(), origin.exchange.as_deref()), (Some("k"), Some("x")));
        assert_eq!((origin.cluster_id.as_deref(), origin.timestamp), (Some("c"), Some(7)));
        let metadata = scheduled(read(IdFrom::Ulid, false, "", BasicProperties::default())).metadata;
        assert_eq!((metadata.key, metadata.origin.unwrap().key_base64), (None, None));
    }

    #[test]
    fn a_header_that_is_nested_too_deep_matters_only_if_it_is_kept() {
        let nest = |inner, _| AMQPValue::FieldArray(vec![inner].into());
        let unreadable = (0..=MAX_DEPTH).fold(AMQPValue::Void, nest);
        for backoff in [false, true] {
            let message = scheduled(read(IdFrom::Ulid, backoff, "k", headers(&[("CC", unreadable.clone())])));
            assert!(message.metadata.headers.is_empty());
            let entry = read(IdFrom::Ulid, backoff, "k", headers(&[("kept", unreadable.clone())]));
            let SourceEntry::Invalid(_, problem) = entry else { panic!("{entry:?}") };
            assert!(problem.starts_with("header `kept` "), "{problem}");
            let kept = [(ROUND, AMQPValue::LongLongInt(1)), ("other", string("v"))];
            let message = scheduled(read(IdFrom::Ulid, backoff, "k", headers(&kept)));
            let typed: Vec<_> = message.metadata.headers.typed().map(|(name, _)| name).collect();
            assert_eq!(typed, if backoff { &[][..] } else { &[ROUND] }, "the round is that of its backoff");
            assert_eq!(message.metadata.headers.texts().collect::<Vec<_>>(), [("other", "v")]);
        }
    }

    #[test]
    fn an_id_is_generated_or_the_message_id_which_the_origin_keeps() {
        let with = |id: &str| BasicProperties::default().with_message_id(id.into());
        let known = |message: &NewMessage| message.metadata.origin.as_ref().unwrap().message_id.clone();
        let message = scheduled(read(IdFrom::Ulid, false, "k", with("m-1")));
        assert_eq!((message.id.as_str(), known(&message).as_deref()), ("new", Some("m-1")));
        assert_eq!(message.metadata.shown_id(&message.id), "new", "a message_id need not be unique");
        let message = scheduled(read(IdFrom::MessageId, false, "k", with("m-1")));
        assert_eq!((message.id.as_str(), known(&message).as_deref()), ("m-1", Some("m-1")));
        let message = scheduled(read(IdFrom::MessageId, false, "k", with("m 1")));
        assert_eq!((&message.id, message.metadata.shown_id(&message.id)), (&digest(&[b"m 1"]), "m 1"));
        for without in [BasicProperties::default(), with("")] {
            assert_eq!(scheduled(read(IdFrom::MessageId, false, "k", without)).id.as_str(), "new");
        }
    }

    #[test]
    fn each_retry_round_has_its_own_id_and_a_redelivery_has_the_same() {
        let round = |count| {
            let mut death = FieldTable::default();
            death.insert("count".into(), AMQPValue::LongLongInt(count));
            let deaths = AMQPValue::FieldArray(vec![AMQPValue::FieldTable(death)].into());
            let properties = headers(&[("x-death", deaths)]).with_message_id("m".into());
            scheduled(read(IdFrom::MessageId, true, "k", properties))
        };
        assert_eq!(round(1).id, round(1).id);
        assert_ne!(round(1).id, round(2).id);
        assert_eq!((round(2).due, round(2).metadata.origin.unwrap().id.as_deref()), (Due::After(2000), Some("m")));
    }

    #[test]
    fn the_retry_round_is_kept_in_a_header_when_the_broker_resets_its_count() {
        let mut death = FieldTable::default();
        death.insert("count".into(), AMQPValue::LongLongInt(1));
        let deaths = AMQPValue::FieldArray(vec![AMQPValue::FieldTable(death)].into());
        let mut given = vec![("x-death", deaths)];
        let (mut ids, mut waits) = (Vec::new(), Vec::new());
        for round in 1..=3 {
            let message = read(IdFrom::MessageId, true, "k", headers(&given).with_message_id("m".into()));
            let message = scheduled(message);
            let headers = message.metadata.headers.typed();
            let rounds: Vec<_> = headers.filter_map(|(name, value)| (name == ROUND).then_some(value)).collect();
            assert_eq!(rounds, [&TypedValue::Int64(round)]);
            given.truncate(1);
            given.push((ROUND, AMQPValue::LongLongInt(round)));
            waits.push(message.due);
            ids.push(message.id);
        }
        assert_eq!(waits, [1000, 2000, 4000].map(Due::After));
        assert!(ids[0] != ids[1] && ids[1] != ids[2], "{ids:?}");
        let message = scheduled(read(IdFrom::Ulid, true, "k", headers(&given[1..])));
        assert!(message.metadata.headers.is_empty(), "published again as a copy");
    }

    #[test]
    fn the_delivery_count_is_not_part_of_the_message() {
        let delivered = |times| {
            let entries = [("x-delivery-count", AMQPValue::LongLongInt(times))];
            scheduled(read(IdFrom::Ulid, false, "k", headers(&entries))).metadata
        };
        assert_eq!(delivered(1), delivered(2));
    }

    #[test]
    fn a_flow_and_a_group_are_text_or_an_integer_and_not_among_the_headers() {
        let with = |value: AMQPValue| {
            let all = [("x-flow", value.clone()), ("x-group", value), ("X", string("v"))];
            read(IdFrom::Ulid, false, "k", headers(&all))
        };
        for (value, flow) in [
            (string("tenant:7"), Some("tenant:7")),
            (AMQPValue::ByteArray(b"a".to_vec().into()), Some("a")),
            (AMQPValue::LongInt(7), Some("7")),
            (string(""), None),
        ] {
            let metadata = scheduled(with(value)).metadata;
            assert_eq!((metadata.flow.as_deref(), metadata.group.as_deref()), (flow, flow));
            assert_eq!(metadata.headers.iter().map(|header| &*header.name).collect::<Vec<_>>(), ["X"]);
        }
        for (value, text) in [
            (string("a b"), "x-flow: a flow is 1 to 128 of A-Za-z0-9._:~-"),
            (AMQPValue::Boolean(true), "x-flow: is neither a number nor text"),
        ] {
            let SourceEntry::Invalid(message, error) = with(value) else { panic!("{text}") };
            assert_eq!((&*error, message.metadata.flow), (text, None));
        }
    }

    #[test]
    fn an_invalid_message_is_kept_with_the_reason() {
        let entry = read(IdFrom::Ulid, false, "k", headers(&[("x-delay", string("soon")), ("X", string("v"))]));
        let SourceEntry::Invalid(message, reason) = entry else { panic!("{entry:?}") };
        assert!(reason.starts_with("x-delay: `soon` is neither"), "{reason}");
        assert_eq!((&*message.payload, &message.metadata.headers["X"]), (&b"body"[..], "v"));
    }
}
