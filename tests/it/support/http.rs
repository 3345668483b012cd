use std::time::Duration;

/// A client that gives up after 10 s.
pub fn client() -> reqwest::Client {
    // Another test of this process may have installed it.
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder().timeout(Duration::from_secs(10)).build().expect("a client")
}
