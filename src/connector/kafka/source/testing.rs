use super::record::{Place, Record};

pub fn record(headers: &[(&str, &[u8])]) -> Record {
    Record {
        place: Place { topic: "t".into(), partition: 3 },
        offset: 7,
        timestamp: Some(1_700_000_000_000),
        key: Some(b"key".to_vec()),
        value: Some("value".into()),
        headers: headers.iter().map(|(name, value)| ((*name).to_owned(), Some(value.to_vec()))).collect(),
        unreadable: false,
    }
}
