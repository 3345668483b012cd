//! What HTTP endpoints do to their clients. Every attempt ends in time and with a small amount read.

mod replies;
mod tls;

use std::time::Duration;

use axum::http::HeaderMap;
use punctual::{config::HttpSinkConfig, connector::http::HttpSink, sink::template::Allow};

fn config(url: String, timeout: Duration) -> HttpSinkConfig {
    HttpSinkConfig {
        url: url.into(),
        allow: Allow::default(),
        allow_slashes: false,
        timeout,
        signing_secrets: vec![],
        headers: HeaderMap::new(),
        ca_file: None,
        cert_file: None,
        key_file: None,
    }
}

fn sink(port: u16, timeout: Duration) -> HttpSink {
    // The address holds what no text may show.
    let url = format!("http://user:hidden@127.0.0.1:{port}/due?token=hidden");
    HttpSink::new(&config(url, timeout)).expect("a valid configuration")
}
