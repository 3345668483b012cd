//! Groups: messages of a route that are listed, cancelled and moved together.

use super::MessageId;

/// # Errors
/// When `text` is empty, too long or has a character that an id cannot have.
pub fn check_group(text: &str) -> Result<(), String> {
    match text {
        "." | ".." => Err(format!("`{text}` is no group, because no URL leads to it")),
        _ => MessageId::parse(text).map(drop).map_err(|error| error.replacen("an id", "a group", 1)),
    }
}
