//! TLS of Redis servers and sentinels.

use punctual::{
    store::redis::connection::{RedisEndpoint, client},
    tls::TlsFiles,
};

use super::Authority;

/// With these settings a server or a sentinel has no port but an encrypted one, where it asks clients for a certificate. It
/// reaches other servers in the same way.
pub fn server_settings(authority: &Authority, port: u16) -> Vec<(&'static str, String)> {
    let file = |name| authority.file(name).display().to_string();
    vec![
        ("port", "0".into()),
        ("tls-port", port.to_string()),
        ("tls-ca-cert-file", file("ca.pem")),
        ("tls-cert-file", file("both.pem")),
        ("tls-key-file", file("both.key")),
        ("tls-client-cert-file", file("client.pem")),
        ("tls-client-key-file", file("client.key")),
        ("tls-replication", "yes".into()),
    ]
}

/// Files of a client of such a server.
pub fn client_files(authority: &Authority) -> TlsFiles {
    let file = |name| Some(authority.file(name));
    TlsFiles { ca_file: file("ca.pem"), cert_file: file("client.pem"), key_file: file("client.key") }
}

/// For the server on this port; encrypted if `tls` has files.
pub fn client_at(port: u16, tls: &TlsFiles) -> redis::Client {
    let scheme = if tls.is_empty() { "redis" } else { "rediss" };
    let url = format!("{scheme}://127.0.0.1:{port}/0").into();
    client(&RedisEndpoint { url, username: None, password: None, tls: tls.clone() })
        .expect("a valid URL, and its files")
}
