//! The definitions of a broker, as `rabbitmqctl export_definitions` and the management plugin write them. Fields
//! without a name here are kept unchanged. No `Debug`, because the definitions have password hashes and URLs of shovels
//! with passwords.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The type of the exchanges that the plugin adds.
pub const DELAYED: &str = "x-delayed-message";
/// The argument of these exchanges for the type by which they route.
pub const DELAYED_TYPE: &str = "x-delayed-type";
pub const ALTERNATE: &str = "alternate-exchange";

#[derive(Clone, Default, Deserialize, Serialize)]
#[serde(default)]
pub struct Definitions {
    pub users: Vec<User>,
    pub permissions: Vec<Permission>,
    pub exchanges: Vec<Exchange>,
    pub queues: Vec<BrokerQueue>,
    pub bindings: Vec<Binding>,
    pub policies: Vec<BrokerPolicy>,
    pub parameters: Vec<Parameter>,
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

#[derive(Clone, Deserialize, Serialize)]
pub struct User {
    pub name: String,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

/// The permissions are regular expressions.
#[derive(Clone, Deserialize, Serialize, PartialEq)]
pub struct Permission {
    pub user: String,
    pub vhost: String,
    pub configure: String,
    pub write: String,
    pub read: String,
}

#[derive(Clone, Deserialize, Serialize)]
pub struct Exchange {
    pub name: String,
    #[serde(default)]
    pub vhost: String,
    #[serde(rename = "type")]
    pub kind: String,
    #[serde(default)]
    pub durable: bool,
    #[serde(default)]
    pub auto_delete: bool,
    #[serde(default)]
    pub internal: bool,
    #[serde(default)]
    pub arguments: Map<String, Value>,
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

#[derive(Clone, Deserialize, Serialize)]
pub struct BrokerQueue {
    pub name: String,
    #[serde(default)]
    pub vhost: String,
    #[serde(default)]
    pub durable: bool,
    #[serde(default)]
    pub auto_delete: bool,
    #[serde(default)]
    pub arguments: Map<String, Value>,
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

#[derive(Clone, Deserialize, Serialize, PartialEq)]
pub struct Binding {
    pub source: String,
    #[serde(default)]
    pub vhost: String,
    pub destination: String,
    pub destination_type: String,
    pub routing_key: String,
    #[serde(default)]
    pub arguments: Map<String, Value>,
}

#[derive(Clone, Deserialize, Serialize, PartialEq)]
pub struct BrokerPolicy {
    pub name: String,
    #[serde(default)]
    pub vhost: String,
    pub pattern: String,
    #[serde(rename = "apply-to")]
    pub apply_to: String,
    /// 3.10 exports the definition of an operator policy as a list of pairs.
    pub definition: Value,
    #[serde(default)]
    pub priority: i64,
}

/// A shovel, an upstream of a federation, limits of a virtual host, or an operator policy.
#[derive(Clone, Deserialize, Serialize)]
pub struct Parameter {
    pub component: String,
    pub name: String,
    #[serde(default)]
    pub vhost: String,
    pub value: Value,
}

impl Definitions {
    /// # Errors
    /// When the text is not an export of a whole broker. The error has names from the text, but no values.
    pub fn parse(text: &[u8]) -> Result<Self, String> {
        let value: Value = serde_json::from_slice(text).map_err(|error| format!("no JSON: {error}"))?;
        if !value.is_object() || value.get("exchanges").is_none() {
            return Err("no export of definitions: it has no `exchanges`".into());
        }
        // The error of serde would show the unexpected value.
        let definitions: Self = serde_json::from_value(value).map_err(|error| shape(&error))?;
        if let Some(exchange) = definitions.exchanges.iter().find(|exchange| exchange.vhost.is_empty()) {
            return Err(format!(
                "exchange `{}` has no `vhost`: this is an export of one virtual host; export the whole broker with \
                 `rabbitmqctl export_definitions FILE`",
                exchange.name
            ));
        }
        Ok(definitions)
    }
}

/// The error without values: only serde's message about a missing field is kept.
fn shape(error: &serde_json::Error) -> String {
    let text = error.to_string();
    if text.starts_with("missing field") {
        format!("no export of definitions: {text}")
    } else {
        "no export of definitions: a field has another type".into()
    }
}

impl User {
    pub fn new(name: String, rest: Map<String, Value>) -> Self {
        Self { name, rest }
    }

    /// Whether an import gives the user a password.
    pub fn has_password(&self) -> bool {
        self.rest.get("password_hash").and_then(Value::as_str).is_some_and(|hash| !hash.is_empty())
    }
}

impl Exchange {
    /// The type by which a delayed exchange routes; `None` for other exchanges, or without the argument.
    pub fn delayed_type(&self) -> Option<&str> {
        (self.kind == DELAYED).then(|| self.arguments.get(DELAYED_TYPE)?.as_str()).flatten()
    }
}

impl BrokerPolicy {
    pub fn has(&self, key: &str) -> bool {
        match &self.definition {
            Value::Array(pairs) => pairs.iter().any(|pair| pair.get(0).and_then(Value::as_str) == Some(key)),
            definition => definition.get(key).is_some(),
        }
    }
}
