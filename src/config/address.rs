//! The address of a running instance, read from its configuration without the other sections: a client of the API needs
//! neither the secrets of sinks nor a configuration that is valid as a whole.

use std::net::SocketAddr;

use figment::value::Value;

use super::{
    Listen,
    load::{Sources, expand_value, merge},
    problem::{ConfigErrors, Path, Problems},
};

/// The part of `server` that a client needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerAddress {
    pub listen: Listen,
    pub is_tls: bool,
    pub health_listen: Option<SocketAddr>,
}

/// # Errors
/// A file that cannot be read, or the mistakes in these settings alone.
pub fn server_address(sources: &Sources) -> Result<ServerAddress, ConfigErrors> {
    let mut all = Problems::default();
    let Some(values) = merge(sources, &mut all) else { return Err(all.into_errors()) };
    let mut problems = Problems::default();
    problems.origins = all.origins;
    let tree = Value::from(values);
    let mut text = |path: &str| {
        let mut value = tree.find_ref(path)?.clone();
        expand_value(&mut value, &Path::of(path), &sources.env, &mut problems);
        value.into_string().filter(|text| !text.is_empty())
    };
    let [listen, health_listen] = ["server.listen", "server.health_listen"].map(&mut text);
    let is_tls = tree.find_ref("server.tls.cert_file").and_then(Value::as_str).is_some_and(|file| !file.is_empty());
    let listen = problems.require(&Path::of("server.listen"), listen);
    let listen = listen.and_then(|text| problems.check(&Path::of("server.listen"), text.parse::<Listen>()));
    let health_listen = health_listen.and_then(|text| {
        let parsed = text.parse().map_err(|_| format!("`{text}` is not an address and port such as 127.0.0.1:8081"));
        problems.check(&Path::of("server.health_listen"), parsed)
    });
    let errors = problems.into_errors();
    match listen {
        Some(listen) if errors.0.is_empty() => Ok(ServerAddress { listen, is_tls, health_listen }),
        _ => Err(errors),
    }
}
