//! A message of RabbitMQ as one of punctual.
//!
//! | AMQP | becomes |
//! |---|---|
//! | body, routing key, `content_type` | payload, key, content type |
//! | `content_encoding`, `correlation_id`, `reply_to`, `type`, `priority`, `app_id` | properties |
//! | text headers | headers |
//! | other headers, and headers and properties that HTTP or punctual could not bear; `message_id`, `timestamp`, `cluster_id` | the origin |
//! | exchange | the origin |
//! | `x-delay`, `x-deliver-at`, `x-opt-delivery-delay`, `x-opt-delivery-time` | the due time |
//! | `user_id`, `expiration`, CC, BCC, what the broker counts and what punctual sets anew | nothing |

use std::collections::BTreeMap;

use base64::{Engine, engine::general_purpose::STANDARD};
use lapin::{
    BasicProperties,
    message::Delivery,
    types::{AMQPValue, FieldTable, ShortString},
};
use rand::Rng;

use super::due::{self, DEATHS, DELAYS, ROUND, TIMES};
use crate::{
    connector::rabbitmq::{self, IdFrom},
    message::{
        MessageId, Metadata, NewMessage, OnConflict, Origin, Properties, TypedHeader, check_header_name, check_text,
        digest, folded_header,
    },
    retry::Backoff,
    source::{Entry, NewId},
    time::Due,
};

/// Have done their work, would route the message again to where it was copied from (CC, BCC), count how often a
/// queue gave the message out, which would make it another message each time, or are set anew by the sink.
const STRIPPED: [&str; 8] = [
    "BCC",
    "CC",
    "x-acquired-count",
    DELIVERY_COUNT,
    "punctual-attempt",
    "punctual-due",
    "punctual-id",
    "punctual-route",
];

/// How often a quorum queue got the message back.
const DELIVERY_COUNT: &str = "x-delivery-count";

/// How messages are read.
pub struct Reader {
    pub id_from: IdFrom,
    /// In place of the headers, for what was dead-lettered.
    pub backoff: Option<Backoff>,
    pub new_id: NewId,
}

impl Reader {
    /// `unreadable`: what of it is not as its producer sent it.
    pub fn entry(&self, delivery: Delivery, unreadable: Option<String>, rng: &mut impl Rng) -> Entry {
        let none = FieldTable::default();
        let headers = delivery.properties.headers().as_ref().unwrap_or(&none);
        let rounds = if self.backoff.is_some() { due::rounds(headers) } else { Ok(0) };
        let due = rounds.clone().and_then(|rounds| match &self.backoff {
            Some(backoff) => due::by_rounds(headers, rounds, backoff, rng),
            None => due::by_headers(headers),
        });
        let rounds = rounds.unwrap_or(0);
        let (id, mut origin) = self.id(&delivery.properties, headers, rounds, unreadable.as_deref());
        let mut problem = unreadable.or_else(|| due.as_ref().err().cloned());
        let mut metadata = Metadata::default();
        let mut counts = BTreeMap::new();
        for name in headers.inner().keys() {
            *counts.entry(folded_header(name.as_str())).or_insert(0) += 1;
        }
        for (name, value) in headers.inner() {
            let alone = counts[&folded_header(name.as_str())] == 1;
            match (self.is_stripped(name.as_str()), plain(name, value).filter(|_| alone)) {
                (true, _) => {}
                (false, Some(text)) => {
                    metadata.headers.insert(name.to_string(), text.to_owned());
                }
                (false, None) => match rabbitmq::to_typed(value) {
                    Ok(value) => origin.headers.push(TypedHeader { name: name.to_string(), value }),
                    Err(error) => problem = Some(format!("header `{}` {error}", name.as_str().escape_debug())),
                },
            }
        }
        if rounds > 0 {
            let value = rabbitmq::to_typed(&AMQPValue::LongLongInt(rounds.into())).expect("a number");
            origin.headers.push(TypedHeader { name: ROUND.into(), value });
        }
        origin.exchange = Some(delivery.exchange.to_string()).filter(|exchange| !exchange.is_empty());
        let key = delivery.routing_key.as_str();
        match check_text(key) {
            Ok(()) => metadata.key = (!key.is_empty()).then(|| key.to_owned()),
            Err(_) => origin.key_base64 = Some(STANDARD.encode(key)),
        }
        (metadata.content_type, origin.content_type) = sorted(delivery.properties.content_type().as_ref());
        let (ours, odd) = properties(&delivery.properties);
        metadata.properties = ours.or_none().map(Box::new);
        origin.properties = odd.or_none();
        metadata.origin = origin.or_none();
        let due = due.unwrap_or(Due::NOW);
        let (payload, on_conflict) = (delivery.data.into(), OnConflict::Keep);
        let message = NewMessage { id, due, payload, metadata, on_conflict, record: None };
        match problem {
            None => Entry::Schedule(message),
            Some(problem) => Entry::Invalid(message, problem),
        }
    }

    fn is_stripped(&self, name: &str) -> bool {
        let ours = self.backoff.is_some() && name == ROUND;
        ours || [&STRIPPED[..], &DELAYS, &TIMES].concat().contains(&name)
    }

    /// The id here, and what is to be known of the one there.
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
            _ => return ((self.new_id)(), origin),
        };
        let deaths = headers.inner().get(DEATHS).filter(|_| self.backoff.is_some());
        let id = match (deaths, MessageId::parse(&text)) {
            (None, Ok(id)) => return (id, origin),
            (None, Err(_)) => match unreadable {
                // Different ids may look the same by now.
                Some(unreadable) => digest(&[text.as_bytes(), unreadable.as_bytes()]),
                None => digest(&[text.as_bytes()]),
            },
            // The same message comes again with every round: each is a message of its own.
            (Some(deaths), _) => digest(&[text.as_bytes(), format!("{deaths:?}").as_bytes(), &rounds.to_be_bytes()]),
        };
        origin.id = Some(text);
        (id, origin)
    }
}

/// How often a quorum queue got the message back; 0 for other queues.
pub fn deliveries_before(delivery: &Delivery) -> u64 {
    let headers = delivery.properties.headers().as_ref();
    let count = headers.and_then(|headers| headers.inner().get(DELIVERY_COUNT)).and_then(due::integer);
    count.and_then(|count| u64::try_from(count).ok()).unwrap_or(0)
}

/// The text of a header that every sink can send.
fn plain<'a>(name: &ShortString, value: &'a AMQPValue) -> Option<&'a str> {
    let AMQPValue::LongString(text) = value else { return None };
    let text = str::from_utf8(text.as_bytes()).ok()?;
    (check_header_name(name.as_str()).is_ok() && check_text(text).is_ok()).then_some(text)
}

/// Those that the queue takes, and the others.
fn properties(given: &BasicProperties) -> (Properties, Properties) {
    let (content_encoding, odd_encoding) = sorted(given.content_encoding().as_ref());
    let (correlation_id, odd_correlation) = sorted(given.correlation_id().as_ref());
    let (reply_to, odd_reply_to) = sorted(given.reply_to().as_ref());
    let (r#type, odd_type) = sorted(given.kind().as_ref());
    let (app_id, odd_app_id) = sorted(given.app_id().as_ref());
    let ours = Properties { content_encoding, correlation_id, reply_to, r#type, priority: *given.priority(), app_id };
    let odd = Properties {
        content_encoding: odd_encoding,
        correlation_id: odd_correlation,
        reply_to: odd_reply_to,
        r#type: odd_type,
        priority: None,
        app_id: odd_app_id,
    };
    (ours, odd)
}

/// In the second place what has control characters.
fn sorted(text: Option<&ShortString>) -> (Option<String>, Option<String>) {
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

    use rand::{SeedableRng, rngs::StdRng};

    use super::*;

    fn read(id_from: IdFrom, backoff: bool, key: &str, properties: BasicProperties) -> Entry {
        let backoff = backoff.then(|| Backoff::new(Duration::from_secs(1), 2.0, Duration::from_mins(1), 0.0).unwrap());
        let reader = Reader { id_from, backoff, new_id: Arc::new(|| MessageId::parse("new").unwrap()) };
        let mut delivery = Delivery::mock(1, "x".into(), key.into(), false, b"body".to_vec());
        delivery.properties = properties;
        reader.entry(delivery, None, &mut StdRng::seed_from_u64(1))
    }

    fn scheduled(entry: Entry) -> NewMessage {
        let Entry::Schedule(message) = entry else { panic!("{entry:?}") };
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
    fn no_header_is_lost_whatever_its_name_and_value() {
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
        assert_eq!(message.metadata.headers, [("X-Plain".to_owned(), "é\tb".to_owned())].into());
        let origin = message.metadata.origin.unwrap();
        let mut names: Vec<_> = odd.iter().map(|(name, _)| *name).collect();
        names.sort_unstable();
        assert_eq!(origin.headers.iter().map(|header| &*header.name).collect::<Vec<_>>(), names);
        assert_eq!((message.metadata.key.as_deref(), origin.odd_key().as_deref()), (None, Some("a\u{1}")));
    }

    #[test]
    fn properties_with_control_characters_are_kept_beside_those_of_the_message() {
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
    fn ids_are_new_or_the_producers_and_its_own_one_is_kept() {
        let with = |id: &str| BasicProperties::default().with_message_id(id.into());
        let known = |message: &NewMessage| message.metadata.origin.as_ref().unwrap().message_id.clone();
        let message = scheduled(read(IdFrom::Ulid, false, "k", with("m-1")));
        assert_eq!((message.id.as_str(), known(&message).as_deref()), ("new", Some("m-1")));
        assert_eq!(message.metadata.shown_id(&message.id), "new", "what need not be unique is nobody's id");
        let message = scheduled(read(IdFrom::MessageId, false, "k", with("m-1")));
        assert_eq!((message.id.as_str(), known(&message).as_deref()), ("m-1", Some("m-1")));
        let message = scheduled(read(IdFrom::MessageId, false, "k", with("m 1")));
        assert_eq!((&message.id, message.metadata.shown_id(&message.id)), (&digest(&[b"m 1"]), "m 1"));
        for without in [BasicProperties::default(), with("")] {
            assert_eq!(scheduled(read(IdFrom::MessageId, false, "k", without)).id.as_str(), "new");
        }
    }

    #[test]
    fn every_round_of_a_retry_is_a_message_of_its_own_and_a_redelivery_is_not() {
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
    fn the_round_of_a_retry_travels_with_it_where_the_broker_counts_anew() {
        let mut death = FieldTable::default();
        death.insert("count".into(), AMQPValue::LongLongInt(1));
        let deaths = AMQPValue::FieldArray(vec![AMQPValue::FieldTable(death)].into());
        let mut given = vec![("x-death", deaths)];
        let (mut ids, mut waits) = (Vec::new(), Vec::new());
        for round in 1..=3 {
            let message = read(IdFrom::MessageId, true, "k", headers(&given).with_message_id("m".into()));
            let message = scheduled(message);
            let travels = &message.metadata.origin.as_ref().unwrap().headers;
            let rounds: Vec<_> = travels.iter().filter(|header| header.name == ROUND).collect();
            assert_eq!(rounds.len(), 1, "{travels:?}");
            assert_eq!(rabbitmq::from_typed(&rounds[0].value), Ok(AMQPValue::LongLongInt(round)));
            given.truncate(1);
            given.push((ROUND, AMQPValue::LongLongInt(round)));
            waits.push(message.due);
            ids.push(message.id);
        }
        assert_eq!(waits, [1000, 2000, 4000].map(Due::After));
        assert!(ids[0] != ids[1] && ids[1] != ids[2], "{ids:?}");
        let message = scheduled(read(IdFrom::Ulid, true, "k", headers(&given[1..])));
        assert_eq!(message.metadata.origin.map(|origin| origin.headers), Some(vec![]), "published anew, by copying");
    }

    #[test]
    fn what_a_queue_counts_does_not_make_another_message() {
        let given_out = |times| {
            let entries = [("x-delivery-count", AMQPValue::LongLongInt(times))];
            scheduled(read(IdFrom::Ulid, false, "k", headers(&entries))).metadata
        };
        assert_eq!(given_out(1), given_out(2));
    }

    #[test]
    fn what_is_broken_is_kept_with_the_reason() {
        let entry = read(IdFrom::Ulid, false, "k", headers(&[("x-delay", string("soon")), ("X", string("v"))]));
        let Entry::Invalid(message, reason) = entry else { panic!("{entry:?}") };
        assert!(reason.starts_with("x-delay: `soon` is neither"), "{reason}");
        assert_eq!((&*message.payload, message.metadata.headers["X"].as_str()), (&b"body"[..], "v"));
    }
}
