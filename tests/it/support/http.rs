use std::time::Duration;

use reqwest::{Client, ClientBuilder, redirect::Policy};

/// A client that gives up after 10 s.
pub fn client() -> Client {
    builder().build().expect("a client")
}

/// A client that gives up after 10 s and does not follow redirects.
pub fn client_without_redirects() -> Client {
    builder().redirect(Policy::none()).build().expect("a client")
}

/// For a client that trusts no certificate. A debug build takes long to read those of the system.
pub fn builder() -> ClientBuilder {
    // Another test of this process may have installed it.
    let _ = rustls::crypto::ring::default_provider().install_default();
    Client::builder().tls_certs_only([]).timeout(Duration::from_secs(10))
}
