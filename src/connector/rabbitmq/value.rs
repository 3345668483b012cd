//! Converts header values of AMQP to typed values and back, without loss. A short string becomes a long one, which AMQP
//! 0-9-1 has in tables.

use lapin::types::{AMQPValue, DecimalValue, FieldArray, FieldTable, LongString, ShortString};

use crate::message::{MAX_DEPTH, TypedValue, too_deep};

/// # Errors
/// When arrays and tables are nested deeper than `MAX_DEPTH`.
pub fn to_typed(value: &AMQPValue) -> Result<TypedValue, String> {
    typed(value, MAX_DEPTH)
}

/// # Errors
/// When a table has a name that is too long for AMQP, or a number is infinite or none: RabbitMQ closes the connection at it.
pub fn from_typed(typed: &TypedValue) -> Result<AMQPValue, String> {
    Ok(match typed {
        TypedValue::Null => AMQPValue::Void,
        TypedValue::Boolean(value) => AMQPValue::Boolean(*value),
        TypedValue::Int8(value) => AMQPValue::ShortShortInt(*value),
        TypedValue::Uint8(value) => AMQPValue::ShortShortUInt(*value),
        TypedValue::Int16(value) => AMQPValue::ShortInt(*value),
        TypedValue::Uint16(value) => AMQPValue::ShortUInt(*value),
        TypedValue::Int32(value) => AMQPValue::LongInt(*value),
        TypedValue::Uint32(value) => AMQPValue::LongUInt(*value),
        TypedValue::Int64(value) => AMQPValue::LongLongInt(*value),
        TypedValue::Timestamp(seconds) => AMQPValue::Timestamp(*seconds),
        TypedValue::Float(bits) => finite(f32::from_bits(*bits), f32::is_finite).map(AMQPValue::Float)?,
        TypedValue::Double(bits) => finite(f64::from_bits(*bits), f64::is_finite).map(AMQPValue::Double)?,
        TypedValue::Decimal { scale, value } => AMQPValue::DecimalValue(DecimalValue { scale: *scale, value: *value }),
        TypedValue::String(text) => AMQPValue::LongString(text.as_str().into()),
        TypedValue::StringBytes(bytes) => AMQPValue::LongString(LongString::from(bytes.clone())),
        TypedValue::Bytes(bytes) => AMQPValue::ByteArray(bytes.clone().into()),
        TypedValue::Array(values) => {
            let values: Vec<AMQPValue> = values.iter().map(from_typed).collect::<Result<_, _>>()?;
            AMQPValue::FieldArray(FieldArray::from(values))
        }
        TypedValue::Table(values) => {
            let mut table = FieldTable::default();
            for (name, value) in values {
                let name = ShortString::try_new(name.as_str());
                let name = name.map_err(|_| "has a table with a name of more than 255 bytes".to_owned())?;
                table.insert(name, from_typed(value)?);
            }
            AMQPValue::FieldTable(table)
        }
    })
}

fn finite<T: Copy>(number: T, is_finite: fn(T) -> bool) -> Result<T, String> {
    if is_finite(number) {
        Ok(number)
    } else {
        Err("has an infinite number or none: RabbitMQ closes the connection over it".into())
    }
}

fn typed(value: &AMQPValue, depth: u32) -> Result<TypedValue, String> {
    let inner = |value| typed(value, depth.checked_sub(1).ok_or_else(too_deep)?);
    Ok(match value {
        AMQPValue::Boolean(value) => TypedValue::Boolean(*value),
        AMQPValue::ShortShortInt(value) => TypedValue::Int8(*value),
        AMQPValue::ShortShortUInt(value) => TypedValue::Uint8(*value),
        AMQPValue::ShortInt(value) => TypedValue::Int16(*value),
        AMQPValue::ShortUInt(value) => TypedValue::Uint16(*value),
        AMQPValue::LongInt(value) => TypedValue::Int32(*value),
        AMQPValue::LongUInt(value) => TypedValue::Uint32(*value),
        AMQPValue::LongLongInt(value) => TypedValue::Int64(*value),
        AMQPValue::Float(value) => TypedValue::Float(value.to_bits()),
        AMQPValue::Double(value) => TypedValue::Double(value.to_bits()),
        AMQPValue::DecimalValue(DecimalValue { scale, value }) => TypedValue::Decimal { scale: *scale, value: *value },
        AMQPValue::ShortString(value) => TypedValue::String(value.to_string()),
        AMQPValue::LongString(value) => match str::from_utf8(value.as_bytes()) {
            Ok(text) => TypedValue::String(text.to_owned()),
            Err(_) => TypedValue::StringBytes(value.as_bytes().to_vec()),
        },
        AMQPValue::FieldArray(values) => {
            TypedValue::Array(values.as_slice().iter().map(inner).collect::<Result<_, _>>()?)
        }
        AMQPValue::Timestamp(seconds) => TypedValue::Timestamp(*seconds),
        AMQPValue::FieldTable(table) => {
            let entries = table.inner().iter().map(|(name, value)| Ok((name.to_string(), inner(value)?)));
            TypedValue::Table(entries.collect::<Result<_, String>>()?)
        }
        AMQPValue::ByteArray(value) => TypedValue::Bytes(value.as_slice().to_vec()),
        AMQPValue::Void => TypedValue::Null,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_is_converted_without_loss() {
        let mut table = FieldTable::default();
        table.insert("a\nb".into(), AMQPValue::Void);
        let array = vec![AMQPValue::FieldTable(table), AMQPValue::Timestamp(u64::MAX), AMQPValue::Boolean(true)];
        let all = [
            AMQPValue::FieldArray(array.into()),
            AMQPValue::ShortShortInt(-128),
            AMQPValue::ShortShortUInt(255),
            AMQPValue::ShortInt(-3),
            AMQPValue::ShortUInt(u16::MAX),
            AMQPValue::LongInt(i32::MIN),
            AMQPValue::LongUInt(u32::MAX),
            AMQPValue::LongLongInt(i64::MIN),
            AMQPValue::Float(f32::MIN_POSITIVE),
            AMQPValue::Double(0.1 + 0.2),
            AMQPValue::DecimalValue(DecimalValue { scale: 2, value: 314 }),
            AMQPValue::LongString("é\0".into()),
            AMQPValue::LongString(LongString::from(vec![0xff, 0xfe])),
            AMQPValue::ByteArray(vec![0, 255].into()),
        ];
        for value in all {
            let text = serde_json::to_string(&to_typed(&value).unwrap()).unwrap();
            let typed: TypedValue = serde_json::from_str(&text).unwrap();
            assert_eq!(from_typed(&typed), Ok(value), "{text}");
        }
    }

    #[test]
    fn the_deepest_value_is_valid_json_and_a_deeper_one_is_refused() {
        let nested = |depth| (0..depth).fold(AMQPValue::Void, |inner, _| AMQPValue::FieldArray(vec![inner].into()));
        let text = serde_json::to_string(&[to_typed(&nested(MAX_DEPTH)).unwrap()]).unwrap();
        let typed: Vec<TypedValue> = serde_json::from_str(&text).unwrap();
        assert_eq!(from_typed(&typed[0]), Ok(nested(MAX_DEPTH)));
        assert!(to_typed(&nested(MAX_DEPTH + 1)).unwrap_err().contains("deeper than 32"));
    }

    #[test]
    fn a_number_at_which_rabbitmq_closes_the_connection_is_refused() {
        let [float, double] = [TypedValue::Float(f32::NAN.to_bits()), TypedValue::Double(f64::NEG_INFINITY.to_bits())];
        let inside = TypedValue::Array(vec![TypedValue::Double(f64::INFINITY.to_bits())]);
        for value in [float, double, inside] {
            assert!(from_typed(&value).unwrap_err().starts_with("has an infinite number"), "{value:?}");
        }
    }

    #[test]
    fn a_table_with_a_name_that_is_too_long_is_refused() {
        let table = TypedValue::Table([("x".repeat(256), TypedValue::Null)].into());
        assert!(from_typed(&table).unwrap_err().contains("more than 255 bytes"));
    }
}
