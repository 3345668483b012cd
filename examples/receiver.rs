//! An HTTP endpoint that prints a line per request: id, lateness and payload.
//!
//! `receiver [PORT]`: listens on a port of 127.0.0.1, 9000 by default. 0 takes a free port. The first line names the
//! port.

use std::time::{SystemTime, UNIX_EPOCH};

use axum::{Router, http::HeaderMap, routing::post};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let port: u16 = std::env::args().nth(1).map_or(Ok(9000), |port| port.parse())?;
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await?;
    println!("listening on http://{}", listener.local_addr()?);
    axum::serve(listener, Router::new().route("/due", post(receive))).await?;
    Ok(())
}

async fn receive(headers: HeaderMap, payload: String) {
    let arrived = epoch_millis();
    let header = |name| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or("?");
    let late = match header("punctual-due").parse::<i128>() {
        Ok(due) => format!("{:+6} ms", arrived - due),
        Err(_) => "no due time".to_owned(),
    };
    println!("http  {:<12} {late}  {payload}", header("punctual-id"));
}

#[expect(clippy::disallowed_methods, reason = "compared with the due time, on the machine where Redis runs")]
fn epoch_millis() -> i128 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i128::try_from(since.as_millis()).unwrap_or(i128::MAX)
}
