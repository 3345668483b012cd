//! The `punctual.yaml` of a plan: a source, route and sink for each delayed exchange.

use std::fmt::Write as _;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use crate::plan::Plan;

const HEAD: &str = r#"# Made by `punctual migrate rabbitmq`. Needs PUNCTUAL_RABBITMQ_PASSWORD, the content of the file `password` where that
# was made; also heeds PUNCTUAL_RABBITMQ_URL, without the virtual host, and PUNCTUAL_REDIS_URL.
# `punctual check --connect -c punctual.yaml` tells whether all of it is there.

redis:
  url: "${PUNCTUAL_REDIS_URL:-redis://127.0.0.1:6379/0}"

"#;

/// The configuration, without secrets.
pub fn yaml(plan: &Plan) -> String {
    let (mut sources, mut routes, mut sinks) = (String::new(), String::new(), String::new());
    for moved in &plan.moved {
        let (name, queue) = (quoted(&moved.route), quoted(&moved.queue));
        let vhost = utf8_percent_encode(&moved.vhost, NON_ALPHANUMERIC);
        let url = format!("\"${{PUNCTUAL_RABBITMQ_URL:-amqp://localhost:5672}}/{vhost}\"");
        // In a template, a literal brace is doubled.
        let exchange = quoted(&moved.out.replace('{', "{{").replace('}', "}}"));
        let _ = writeln!(sources, "  {name}: {{ type: rabbitmq, url: {url}, queue: {queue}, route: {name} }}");
        let _ = writeln!(routes, "  {name}: {{ sink: {name} }}");
        let _ = writeln!(sinks, "  {name}: {{ type: rabbitmq, url: {url}, exchange: {exchange} }}");
    }
    let user = quoted(&plan.user);
    let login = format!("  rabbitmq: {{ username: {user}, password: \"${{PUNCTUAL_RABBITMQ_PASSWORD}}\" }}");
    format!(
        "{HEAD}source_defaults:\n{login}\nsink_defaults:\n{login}\n\nsources:\n{sources}\nroutes:\n{routes}\n\
         # Without a routing key: each message keeps its own.\nsinks:\n{sinks}"
    )
}

/// The text in YAML, without references to variables.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text.replace("${", "$${")).to_string()
}
