//! Calls of punctual's API, each over its own connection.

use std::{
    io::{Read, Write},
    net::TcpStream,
};

/// The body of the reply, or its status line if the status is not 2xx.
pub fn call(port: u16, method: &str, path: &str, body: &str) -> Result<String, String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).map_err(|error| error.to_string())?;
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\n\r\n"
    );
    let mut reply = String::new();
    stream
        .write_all(head.as_bytes())
        .and_then(|()| stream.write_all(body.as_bytes()))
        .and_then(|()| stream.read_to_string(&mut reply))
        .map_err(|error| error.to_string())?;
    let (head, body) = reply.split_once("\r\n\r\n").ok_or("no reply")?;
    if head.starts_with("HTTP/1.1 20") { Ok(body.to_owned()) } else { Err(format!("{head}\n{body}")) }
}
