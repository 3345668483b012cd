use base64::{Engine, prelude::BASE64_STANDARD};

/// A message as the API is sent it, and the bytes that must arrive.
pub struct Message {
    pub id: String,
    /// Epoch milliseconds.
    pub due: u64,
    pub json: String,
    pub payload: Vec<u8>,
}

/// The `number`th message: text, JSON kept as it was sent, or arbitrary bytes, each unlike any other.
pub fn message(prefix: &str, number: usize, due: u64) -> Message {
    let id = format!("{prefix}-{number}");
    let (field, payload) = match number % 3 {
        0 => {
            let bytes = (0..100).map(|place| (number.wrapping_mul(31) + place * 7).to_le_bytes()[0]);
            let payload: Vec<u8> = id.bytes().chain(bytes).collect();
            (format!(r#""payload_base64":"{}""#, BASE64_STANDARD.encode(&payload)), payload)
        }
        1 => {
            let text = format!("{id} gr\u{fc}\u{df}e \u{1f600} \"quoted\" \\ \n \0 \u{7f}");
            (format!(r#""payload":{}"#, serde_json::to_string(&text).unwrap()), text.into_bytes())
        }
        _ => {
            let text = format!(r#"{{ "id" : "{id}",  "big":12345678901234567890.10, "empty": [ ] }}"#);
            (format!(r#""payload":{text}"#), text.into_bytes())
        }
    };
    let json = format!(r#"{{"id":"{id}","deliver_at":{due},{field}}}"#);
    Message { id, due, json, payload }
}

/// As the API takes several at once.
pub fn array(messages: &[Message]) -> String {
    let parts: Vec<&str> = messages.iter().map(|message| message.json.as_str()).collect();
    format!("[{}]", parts.join(","))
}
