//! A delivery as an AMQP message.
//!
//! | AMQP | from |
//! |---|---|
//! | body | payload |
//! | `message_id` | that of the RabbitMQ message that a source took; without one, the id |
//! | `content_type`, other properties | content type, properties of the message, and those of its origin |
//! | `timestamp`, `cluster_id` | those of the origin; without an origin, not set |
//! | `delivery_mode` | 2, persistent |
//! | headers | those of the message with their types; `punctual-id`, `punctual-route` (text), `punctual-attempt`, `punctual-due` (64-bit integers) |
//!
//! `punctual-id` is the id in the queue, or that of the occurrence of a schedule; `message_id` need not be unique. `user_id` is never set: the broker closes
//! the channel at the name of another user.

use bytes::Bytes;
use lapin::{
    BasicProperties,
    protocol::basic::gen_properties,
    types::{AMQPValue, FieldTable, LongString, ShortString},
};

use crate::{
    connector::rabbitmq,
    message::{Header, HeaderValue, Origin, Properties},
    sink::{
        Delivery, Domain,
        headers::{ATTEMPT, DUE, ID, ROUTE},
    },
};

/// `delivery_mode` of messages that survive a restart of the broker.
const PERSISTENT: u8 = 2;
/// Bytes of a content header frame besides the properties: type, channel, size and end of the frame (8); class, weight and
/// body size (12).
const HEADER_FRAME_BYTES: usize = 8 + 12;

/// Headers with further routing keys. RabbitMQ closes the channel at any value but a list.
const COPIES: [&str; 2] = ["CC", "BCC"];
/// As `reply_to` it requests replies over this channel. RabbitMQ closes a channel that does not consume replies.
const DIRECT_REPLY: &str = "amq.rabbitmq.reply-to";

/// A message that can be published any number of times.
pub struct PreparedMessage {
    /// Index in the batch.
    pub index: usize,
    /// `None` if the whole sink is one domain.
    pub domain: Option<Domain>,
    pub routing_key: ShortString,
    pub properties: BasicProperties,
    pub payload: Bytes,
    pub tag: MessageTag,
}

/// Identifies a message of a batch, also when the broker returns it. Two routes can share an id.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct MessageTag {
    route: Vec<u8>,
    id: Vec<u8>,
    attempt: i64,
}

impl PreparedMessage {
    /// `frame_max`: maximum frame size of the broker, in bytes.
    ///
    /// # Errors
    /// The part of the message that AMQP cannot carry, or at which RabbitMQ would close the channel.
    pub fn new(
        (index, domain): (usize, Option<Domain>),
        delivery: Delivery,
        routing_key: &str,
        frame_max: usize,
    ) -> Result<Self, String> {
        let routing_key = short("routing key", routing_key)?;
        let attempt = i64::from(delivery.attempt);
        let mut headers = FieldTable::default();
        let origin = delivery.metadata.origin.as_deref();
        // AMQP permits each name once in a table. If a header of Kafka is repeated, the last one counts.
        for Header { name, value } in delivery.metadata.headers.iter() {
            let value = match value {
                HeaderValue::Text(value) => text(value),
                HeaderValue::Typed(value) => {
                    rabbitmq::from_typed(value).map_err(|error| format!("header `{}` {error}", name.escape_debug()))?
                }
            };
            headers.insert(short("header name", name)?, value);
        }
        for name in COPIES {
            if !matches!(headers.inner().get(name), None | Some(AMQPValue::FieldArray(_))) {
                return Err(format!("header `{name}` is no list: RabbitMQ closes the channel over it"));
            }
        }
        headers.insert(ID.into(), text(delivery.unique_id()));
        headers.insert(ROUTE.into(), text(&delivery.route));
        headers.insert(ATTEMPT.into(), AMQPValue::LongLongInt(attempt));
        headers.insert(DUE.into(), AMQPValue::LongLongInt(delivery.due.get().cast_signed()));
        let message_id = origin.and_then(|origin| origin.message_id.as_deref()).unwrap_or(delivery.shown_id());
        let mut properties = BasicProperties::default()
            .with_message_id(short("id", message_id)?)
            .with_delivery_mode(PERSISTENT)
            .with_headers(headers);
        if let Some(content_type) = &delivery.metadata.content_type {
            properties = properties.with_content_type(short("content_type", content_type)?);
        }
        if let Some(given) = &delivery.metadata.properties {
            properties = with_given(properties, given)?;
        }
        if let Some(origin) = origin {
            properties = with_original(properties, origin)?;
        }
        if properties.reply_to().as_ref().is_some_and(|name| name.as_str() == DIRECT_REPLY) {
            return Err(format!("`reply_to` is `{DIRECT_REPLY}`: RabbitMQ closes the channel over it"));
        }
        let bytes = HEADER_FRAME_BYTES + encoded_bytes(&properties);
        if bytes > frame_max {
            return Err(format!("headers and properties take a frame of {bytes} bytes, the broker takes {frame_max}"));
        }
        let tag = MessageTag { route: delivery.route.as_bytes().to_vec(), id: delivery.unique_id().into(), attempt };
        Ok(Self { index, domain, routing_key, properties, payload: delivery.payload, tag })
    }
}

impl MessageTag {
    /// The tag of a returned message; `None` if it does not have the headers of this sink.
    pub fn of(properties: &BasicProperties) -> Option<Self> {
        let headers = properties.headers().as_ref()?.inner();
        let text = |name| match headers.get(name)? {
            AMQPValue::LongString(text) => Some(text.as_bytes().to_vec()),
            _ => None,
        };
        let AMQPValue::LongLongInt(attempt) = headers.get(ATTEMPT)? else { return None };
        Some(Self { route: text(ROUTE)?, id: text(ID)?, attempt: *attempt })
    }
}

fn with_given(mut properties: BasicProperties, given: &Properties) -> Result<BasicProperties, String> {
    if let Some(value) = &given.content_encoding {
        properties = properties.with_content_encoding(short("content_encoding", value)?);
    }
    if let Some(value) = &given.correlation_id {
        properties = properties.with_correlation_id(short("correlation_id", value)?);
    }
    if let Some(value) = &given.reply_to {
        properties = properties.with_reply_to(short("reply_to", value)?);
    }
    if let Some(value) = &given.r#type {
        properties = properties.with_type(short("type", value)?);
    }
    if let Some(value) = given.priority {
        properties = properties.with_priority(value);
    }
    if let Some(value) = &given.app_id {
        properties = properties.with_app_id(short("app_id", value)?);
    }
    Ok(properties)
}

fn with_original(mut properties: BasicProperties, origin: &Origin) -> Result<BasicProperties, String> {
    if let Some(seconds) = origin.timestamp {
        properties = properties.with_timestamp(seconds);
    }
    if let Some(value) = &origin.cluster_id {
        properties = properties.with_cluster_id(short("cluster_id", value)?);
    }
    if let Some(value) = &origin.content_type {
        properties = properties.with_content_type(short("content_type", value)?);
    }
    if let Some(given) = &origin.properties {
        properties = with_given(properties, given)?;
    }
    Ok(properties)
}

fn encoded_bytes(properties: &BasicProperties) -> usize {
    let written = gen_properties(properties)(Vec::new().into());
    written.expect("writing to a vector never fails").into_inner().0.len()
}

fn short(what: &str, value: &str) -> Result<ShortString, String> {
    ShortString::try_new(value).map_err(|_| format!("{what}: {} bytes, AMQP takes at most 255", value.len()))
}

fn text(value: &str) -> AMQPValue {
    AMQPValue::LongString(LongString::from(value))
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::{
        message::{MessageId, Metadata, TypedValue},
        time::UnixMillis,
    };

    pub fn delivery(id: &str, metadata: Metadata) -> Delivery {
        Delivery {
            id: MessageId::parse(id).unwrap(),
            route: "r".into(),
            attempt: 3,
            due: UnixMillis::new(1_700_000_000_123).unwrap(),
            metadata,
            payload: Bytes::from_static(b"payload"),
            send_until: None,
        }
    }

    #[test]
    fn a_returned_message_is_identified_by_route_id_and_attempt() {
        let prepared = |delivery| PreparedMessage::new((0, None), delivery, "k", usize::MAX).unwrap();
        let one = prepared(delivery("a", Metadata::default()));
        assert_eq!(MessageTag::of(&one.properties), Some(one.tag.clone()));
        let others = [
            Delivery { route: "s".into(), ..delivery("a", Metadata::default()) },
            Delivery { attempt: 4, ..delivery("a", Metadata::default()) },
            delivery("b", Metadata::default()),
        ];
        for other in others {
            assert_ne!(MessageTag::of(&prepared(other).properties), Some(one.tag.clone()));
        }
        assert_eq!(MessageTag::of(&BasicProperties::default()), None);
    }

    #[test]
    fn a_message_is_sent_if_its_properties_fit_into_a_frame_of_the_broker() {
        let properties = |text: &str| Properties { correlation_id: Some(text.into()), ..Properties::default() };
        let origin = |text: &str| Origin { properties: Some(properties(text)), ..Origin::default() };
        let fits = |text: &str, frame_max| {
            let metadata = Metadata { origin: origin(text).or_none(), ..Metadata::default() };
            PreparedMessage::new((0, None), delivery("a", metadata), "k", frame_max).is_ok()
        };
        let bytes = |text: &str| (0..1000).find(|frame_max| fits(text, *frame_max)).unwrap();
        // With two headers of 14 bytes each, and their values.
        assert!(bytes("") > 50);
        assert_eq!(bytes(&"x".repeat(100)), bytes("") + 100);
    }

    #[test]
    fn an_occurrence_of_a_schedule_has_its_own_id() {
        let origin = Origin { id: Some("a@2026-05-24T00:00:00Z".into()), ..Origin::default() };
        let metadata = Metadata { origin: origin.or_none(), ..Metadata::default() };
        let occurrence = Delivery { id: MessageId::of_schedule("a").unwrap(), ..delivery("a", metadata) };
        let one = PreparedMessage::new((0, None), occurrence, "k", usize::MAX).unwrap();
        let headers = one.properties.headers().as_ref().unwrap().inner();
        assert_eq!(headers[ID], text("a@2026-05-24T00:00:00Z"));
        assert_eq!(one.properties.message_id().as_ref().unwrap().as_str(), "a@2026-05-24T00:00:00Z");
        assert_eq!(MessageTag::of(&one.properties), Some(one.tag));
    }

    #[test]
    fn a_message_from_rabbitmq_gets_the_properties_and_headers_of_its_producer() {
        let origin = Origin {
            id: Some("a b".into()),
            message_id: Some("a b".into()),
            cluster_id: Some("c".into()),
            timestamp: Some(7),
            ..Origin::default()
        };
        let mut metadata = Metadata { origin: origin.or_none(), ..Metadata::default() };
        // A header of the sink's own name is replaced.
        for (name, value) in [("x", TypedValue::Int16(-1)), ("punctual-attempt", TypedValue::Int64(99))] {
            metadata.headers.push(name.into(), HeaderValue::Typed(value));
        }
        let one = PreparedMessage::new((0, None), delivery("~1", metadata.clone()), "k", usize::MAX).unwrap();
        let other = PreparedMessage::new((0, None), delivery("~2", metadata), "k", usize::MAX).unwrap();
        assert_ne!(one.tag, other.tag, "two messages may have the same message_id");
        assert_eq!(MessageTag::of(&one.properties), Some(one.tag));
        let headers = one.properties.headers().as_ref().unwrap().inner();
        assert_eq!(headers["x"], AMQPValue::ShortInt(-1));
        assert_eq!((&headers[ID], &headers[ATTEMPT]), (&text("~1"), &AMQPValue::LongLongInt(3)));
        assert_eq!(one.properties.message_id().as_ref().unwrap().as_str(), "a b");
        assert_eq!(one.properties.cluster_id().as_ref().unwrap().as_str(), "c");
        assert_eq!(*one.properties.timestamp(), Some(7));
    }

    #[test]
    fn a_message_at_which_rabbitmq_closes_the_channel_is_refused() {
        let error = |metadata| PreparedMessage::new((0, None), delivery("a", metadata), "k", usize::MAX).err();
        let with = |name: &str| Metadata { headers: [(name.into(), "q".into())].into(), ..Metadata::default() };
        assert_eq!(error(with("CC")).as_deref(), Some("header `CC` is no list: RabbitMQ closes the channel over it"));
        assert!(error(with("BCC")).is_some());
        assert_eq!(error(with("cc")), None, "RabbitMQ compares names with case");
        let typed = |value: AMQPValue| {
            let mut metadata = Metadata::default();
            metadata.headers.push("CC".into(), HeaderValue::Typed(rabbitmq::to_typed(&value).unwrap()));
            metadata
        };
        assert!(error(typed(AMQPValue::LongInt(1))).is_some());
        assert_eq!(error(typed(AMQPValue::FieldArray(vec![text("q")].into()))), None);
        let reply_to = |name: &str| {
            let properties = Properties { reply_to: Some(name.into()), ..Properties::default() };
            Metadata { properties: Some(Box::new(properties)), ..Metadata::default() }
        };
        assert!(error(reply_to("amq.rabbitmq.reply-to")).unwrap().starts_with("`reply_to` is `amq.rabbitmq.reply-to`"));
        assert_eq!(error(reply_to("answers")), None);
    }

    #[test]
    fn a_message_that_amqp_cannot_carry_is_refused() {
        let new = |delivery, key: &str| PreparedMessage::new((0, None), delivery, key, usize::MAX);
        let long = "x".repeat(256);
        assert!(new(delivery("a", Metadata::default()), &long).is_err());
        let named = Metadata { headers: [(long.clone(), String::new())].into(), ..Metadata::default() };
        assert!(new(delivery("a", named), "").is_err());
        let typed = Metadata { content_type: Some(long), ..Metadata::default() };
        let error = new(delivery("a", typed), "").err();
        assert_eq!(error.as_deref(), Some("content_type: 256 bytes, AMQP takes at most 255"));
    }
}
