//! One HTTP/1.1 connection.

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::{Method, Request, Response, StatusCode, client::conn::http1};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use crate::Result;

pub struct Connection {
    sender: http1::SendRequest<Full<Bytes>>,
    /// `host:port`
    address: String,
}

impl Connection {
    /// Connects to `http://host:port`.
    pub async fn open(url: &str) -> Result<Self> {
        let address = url.trim_start_matches("http://").trim_end_matches('/').to_owned();
        let stream = TcpStream::connect(&address).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        tokio::spawn(connection);
        Ok(Self { sender, address })
    }

    /// Fails unless the status is 2xx.
    pub async fn send(&mut self, method: Method, path: &str, headers: &[(&str, &str)], body: Bytes) -> Result<Bytes> {
        let mut request = Request::builder().method(method).uri(path).header("host", &self.address);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.sender.ready().await?;
        let response: Response<_> = self.sender.send_request(request.body(Full::new(body))?).await?;
        let status: StatusCode = response.status();
        let body = response.into_body().collect().await?.to_bytes();
        if !status.is_success() {
            return Err(format!("{path}: {status} {}", String::from_utf8_lossy(&body)).into());
        }
        Ok(body)
    }
}
