//! The target of requests, and a request in the form of each protocol.

use bytes::Bytes;
use http::{
    HeaderMap, HeaderValue, Method, Request, Uri,
    header::{CONNECTION, HOST},
    uri::{Authority, PathAndQuery, Scheme},
};
use http_body_util::Full;
use url::{Position, Url};

use crate::sink::Domain;

/// Scheme, host and port of every request of a sink.
pub struct Origin {
    scheme: Scheme,
    authority: Authority,
    host: HeaderValue,
    /// The path and query of every message; `/` if they depend on the message.
    path: PathAndQuery,
}

/// The request of one message.
#[derive(Debug)]
pub struct MessageRequest {
    uri: Uri,
    host: HeaderValue,
    domain: Option<Domain>,
    headers: HeaderMap,
    body: Bytes,
}

impl Origin {
    /// # Errors
    /// When HTTP cannot carry the address. The text shows no part of the address.
    pub fn new(url: &Url, is_constant: bool) -> Result<Self, String> {
        let host = url.host_str().unwrap_or_default();
        let authority = url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"));
        let invalid = || "not an address that HTTP can carry".to_owned();
        Ok(Self {
            scheme: url.scheme().parse().map_err(|_| invalid())?,
            authority: authority.parse().map_err(|_| invalid())?,
            host: authority.parse().map_err(|_| invalid())?,
            path: if is_constant { path(url)? } else { PathAndQuery::from_static("/") },
        })
    }

    /// A request to the path of every message.
    pub fn request(&self, headers: HeaderMap, body: Bytes) -> MessageRequest {
        self.build(self.path.clone(), None, headers, body)
    }

    /// # Errors
    /// When HTTP cannot carry the address.
    pub fn request_to(
        &self,
        url: &Url,
        domain: Domain,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<MessageRequest, String> {
        Ok(self.build(path(url)?, Some(domain), headers, body))
    }

    fn build(&self, path: PathAndQuery, domain: Option<Domain>, headers: HeaderMap, body: Bytes) -> MessageRequest {
        let mut parts = http::uri::Parts::default();
        parts.scheme = Some(self.scheme.clone());
        parts.authority = Some(self.authority.clone());
        parts.path_and_query = Some(path);
        let uri = Uri::from_parts(parts).expect("all three parts are there");
        MessageRequest { uri, host: self.host.clone(), domain, headers, body }
    }
}

fn path(url: &Url) -> Result<PathAndQuery, String> {
    let text = &url[Position::BeforePath..Position::AfterQuery];
    text.parse().map_err(|_| "its path is none that HTTP can carry".to_owned())
}

impl MessageRequest {
    /// The failure domain; `None` if all messages have the same URL.
    pub fn domain(&self) -> Option<&Domain> {
        self.domain.as_ref()
    }

    /// With path and query alone, and `Host`. `once`: the server is asked to close the connection after the request.
    pub fn over_http1(self, once: bool) -> Request<Full<Bytes>> {
        let path = self.uri.into_parts().path_and_query.map(Uri::from).unwrap_or_default();
        let mut headers = self.headers;
        headers.insert(HOST, self.host);
        if once {
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        post(path, headers, Full::new(self.body))
    }

    /// With the whole URI, which HTTP/2 has in place of `Host`.
    pub fn over_http2(self) -> Request<Bytes> {
        post(self.uri, self.headers, self.body)
    }

    #[cfg(test)]
    pub fn uri(&self) -> String {
        self.uri.to_string()
    }

    #[cfg(test)]
    pub fn headers(&self) -> &HeaderMap {
        &self.headers
    }
}

fn post<B>(uri: Uri, headers: HeaderMap, body: B) -> Request<B> {
    let mut request = Request::new(body);
    *request.method_mut() = Method::POST;
    *request.uri_mut() = uri;
    *request.headers_mut() = headers;
    request
}
