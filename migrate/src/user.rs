//! The least-privilege user as an import creates it. `rabbitmqctl add_user` is not used: 4.0 never reads a password
//! from its input, and other users of the machine can see an argument.

use base64::{
    Engine,
    prelude::{BASE64_STANDARD, BASE64_URL_SAFE},
};
use ring::digest::{SHA256, digest};
use serde_json::{Map, json};

use crate::{definitions::User, plan::Plan, rights};

/// The variable with the password, to which the configuration refers.
pub const PASSWORD: &str = "PUNCTUAL_RABBITMQ_PASSWORD";

/// Adds the user and its permissions to the definitions.
pub fn add(plan: &mut Plan, password: &str, salt: [u8; 4]) {
    let rights = rights::least(plan);
    let fields = json!({
        "password_hash": hash(password, salt), "hashing_algorithm": "rabbit_password_hashing_sha256", "tags": [],
    });
    let fields: Map<_, _> = fields.as_object().cloned().unwrap_or_default();
    plan.definitions.users.push(User::new(plan.user.clone(), fields));
    plan.definitions.permissions.extend(rights);
}

/// 32 characters of A-Za-z0-9-_.
pub fn password(random: [u8; 24]) -> String {
    BASE64_URL_SAFE.encode(random)
}

fn hash(password: &str, salt: [u8; 4]) -> String {
    let digest = digest(&SHA256, &[&salt, password.as_bytes()].concat());
    BASE64_STANDARD.encode([&salt[..], digest.as_ref()].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of RabbitMQ's documentation.
    #[test]
    fn passwords_are_hashed_as_rabbitmq_does() {
        assert_eq!(hash("test12", [0x90, 0x8D, 0xC6, 0x0A]), "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR");
    }
}
