//! Faults of HTTP endpoints. Every attempt ends in time and with a small amount read.

mod connections;
mod heads;
mod http2;
mod kept;
mod replies;
mod tls;

use std::{collections::BTreeMap, time::Duration};

use punctual::{
    config::{Flag, List, Period, Whole},
    connector::http::{HttpSettings, HttpSink},
    sink::template::Allow,
    tls::TlsFiles,
};

fn config(url: String, timeout: Duration) -> HttpSettings {
    HttpSettings {
        url: url.into(),
        allow: Allow::default(),
        allow_slashes: Flag(false),
        timeout: Period(timeout),
        max_connections: Whole(64),
        signing_secrets: List::default(),
        headers: BTreeMap::new(),
        tls: TlsFiles::default(),
    }
}

fn sink(port: u16, timeout: Duration) -> HttpSink {
    // The address holds what no text may show.
    let url = format!("http://user:hidden@127.0.0.1:{port}/due?token=hidden");
    HttpSink::new(&config(url, timeout)).expect("a valid configuration")
}
