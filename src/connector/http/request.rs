//! Builds the request of a message. Later headers replace earlier ones of the same name: `User-Agent`, the message's
//! headers, the sink's headers, then `punctual-*` and `webhook-*`. The sink sets `Content-Type`; if it does not, the
//! message does; the default is octet-stream.

use std::{
    collections::HashSet,
    time::{Duration, SystemTime},
};

use base64::{Engine, engine::general_purpose::STANDARD};
use http::{
    HeaderMap, HeaderName, HeaderValue,
    header::{ACCEPT, AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE, USER_AGENT},
};
use percent_encoding::percent_decode_str;
use url::Url;

use super::{
    HttpSettings,
    target::{MessageRequest, Origin},
    webhook::Signer,
};
use crate::{
    message::{check_header_name, folded_header},
    sink::{
        Delivery, Domain, headers,
        template::{Allow, UrlTemplate},
    },
};

const ID: HeaderName = HeaderName::from_static(headers::ID);
const ROUTE: HeaderName = HeaderName::from_static(headers::ROUTE);
const ATTEMPT: HeaderName = HeaderName::from_static(headers::ATTEMPT);
const DUE: HeaderName = HeaderName::from_static(headers::DUE);

const AGENT: HeaderValue = HeaderValue::from_static(concat!("punctual/", env!("CARGO_PKG_VERSION")));
const ANYTHING: HeaderValue = HeaderValue::from_static("*/*");
const OCTET_STREAM: HeaderValue = HeaderValue::from_static("application/octet-stream");

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const FIRST: HeaderValue = HeaderValue::from_static("1");

/// Headers of every request, with `Host` and `Content-Length`, and capacity for one more of the message. A map of up to
/// twelve headers takes half the memory of a larger one.
const OWN_HEADERS: usize = 10;

/// Builds the requests of one sink.
pub struct RequestFactory {
    /// Without user and password.
    url: UrlTemplate,
    origin: Origin,
    allow: Allow,
    /// The configured headers, and `Authorization` if the URL has a user.
    headers: HeaderMap,
    /// Names of `headers` in the form in which receivers compare them. A message cannot set one in another spelling.
    names: HashSet<String>,
    signer: Signer,
    /// Values of `headers` that must not be stored or shown.
    secrets: Vec<String>,
}

/// Shorter header values are not secrets, and are common in texts.
const MIN_SECRET_BYTES: usize = 6;

/// The header values, and the part of each after the name of a scheme (`Bearer`).
fn secrets(headers: &HeaderMap) -> Vec<String> {
    let values = headers.values().filter_map(|value| value.to_str().ok());
    let parts = values.flat_map(|value| [Some(value), value.split_once(' ').map(|(_, rest)| rest)]).flatten();
    parts.filter(|part| part.len() >= MIN_SECRET_BYTES).map(str::to_owned).collect()
}

impl RequestFactory {
    /// # Errors
    /// The setting that is invalid. The text shows neither secrets nor header values.
    pub fn new(config: &HttpSettings) -> Result<Self, String> {
        let url = UrlTemplate::parse(config.url.expose()).map_err(|error| format!("url: {error}"))?;
        if !matches!(url.base().scheme(), "http" | "https") || url.base().host_str().is_none_or(str::is_empty) {
            return Err("url: not an http:// or https:// address".into());
        }
        let url = if config.allow_slashes.0 { url.with_slashes() } else { url };
        let mut headers = HeaderMap::new();
        if let Some(value) = basic_authorization(url.base()) {
            headers.insert(AUTHORIZATION, value);
        }
        // Configured headers override the user and password of the URL.
        for (name, value) in config.header_map()?.drain() {
            headers.extend(name.map(|name| (name, value)));
        }
        let names = headers.keys().map(|name| folded_header(name.as_str())).collect();
        let signer = Signer::new(config.signing_secrets.iter());
        let (secrets, url) = (secrets(&headers), url.without_user());
        let origin = Origin::new(url.base(), url.is_constant()).map_err(|error| format!("url: {error}"))?;
        Ok(Self { url, origin, allow: config.allow.clone(), headers, names, signer, secrets })
    }

    /// Values that an endpoint can echo and that must not be stored.
    pub fn secrets(&self) -> &[String] {
        &self.secrets
    }

    /// Scheme, host and port of every request.
    pub fn base(&self) -> &Url {
        self.url.base()
    }

    /// Whether the URL depends on the message.
    pub fn has_destinations(&self) -> bool {
        !self.url.is_constant()
    }

    /// The failure domain of a delivery.
    pub fn domain_of(&self, delivery: &Delivery) -> Option<Domain> {
        if self.url.is_constant() {
            return None;
        }
        let url = self.url.render_allowed(&self.allow, &delivery.route, &delivery.metadata).ok()?;
        Some(domain(&url))
    }

    /// `now`: the time of the signature.
    ///
    /// # Errors
    /// The part of the message that HTTP cannot carry, or why its address is not allowed.
    pub fn request(&self, delivery: &Delivery, now: SystemTime) -> Result<MessageRequest, String> {
        let headers = self.headers(delivery, now)?;
        let payload = delivery.payload.clone();
        if self.url.is_constant() {
            return Ok(self.origin.request(headers, payload));
        }
        let url = self.url.render_allowed(&self.allow, &delivery.route, &delivery.metadata)?;
        self.origin.request_to(&url, domain(&url), headers, payload)
    }

    fn headers(&self, delivery: &Delivery, now: SystemTime) -> Result<HeaderMap, String> {
        let mut headers = HeaderMap::with_capacity(OWN_HEADERS + self.headers.len() + delivery.metadata.headers.len());
        let mut seen = HashSet::new();
        // A message cannot set the headers that the sink sets.
        let sets_encoding = self.names.contains(CONTENT_ENCODING.as_str());
        let encoding = if sets_encoding { None } else { delivery.metadata.property_encoding()? };
        for (name, text) in delivery.metadata.headers.texts() {
            // Repeats the check of the API for every way into the queue: a message must not change the framing of the
            // request, nor send another value than the one that was compared with `allow`.
            check_header_name(name)?;
            let folded = folded_header(name);
            let is_repeated = encoding.is_some() && folded == CONTENT_ENCODING.as_str();
            if !is_repeated && !self.names.contains(&folded) {
                headers.insert(header_name(name)?, header_value(name, text)?);
            }
            if !seen.insert(folded) {
                return Err(format!("header `{name}` comes twice, in another spelling"));
            }
        }
        headers.entry(USER_AGENT).or_insert(AGENT);
        headers.entry(ACCEPT).or_insert(ANYTHING);
        let content_type = match &delivery.metadata.content_type {
            Some(text) if *text == JSON => JSON,
            Some(text) => header_value("content_type", text)?,
            None => OCTET_STREAM,
        };
        headers.insert(CONTENT_TYPE, content_type);
        if let Some(encoding) = encoding {
            headers.insert(CONTENT_ENCODING, header_value("content_encoding", encoding)?);
        }
        for (name, value) in &self.headers {
            headers.insert(name, value.clone());
        }
        // The digest, if a header cannot carry the id that consumers know.
        let shown = Some(delivery.shown_id()).filter(|id| id.bytes().all(|b| b.is_ascii_graphic()));
        headers.insert(ID, header_value("id", shown.unwrap_or(delivery.id.as_str()))?);
        headers.insert(ROUTE, header_value("route", &delivery.route)?);
        headers.insert(ATTEMPT, if delivery.attempt == 1 { FIRST } else { delivery.attempt.into() });
        headers.insert(DUE, delivery.due.get().into());
        let since_epoch = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
        self.signer.sign(&mut headers, delivery.unique_id(), since_epoch.as_secs(), &delivery.payload);
        Ok(headers)
    }
}

/// The failure domain of a request to `url`: scheme, host, port and path.
fn domain(url: &Url) -> Domain {
    let (scheme, host, path) = (url.scheme(), url.host_str().unwrap_or_default(), url.path());
    let port = url.port_or_known_default().unwrap_or_default();
    format!("{scheme}://{host}:{port}{path}").into()
}

/// `Authorization` from the user and password of a URL, if it has any.
fn basic_authorization(url: &Url) -> Option<HeaderValue> {
    if url.username().is_empty() && url.password().is_none() {
        return None;
    }
    let mut pair = percent_decode_str(url.username()).collect::<Vec<u8>>();
    pair.push(b':');
    pair.extend(percent_decode_str(url.password().unwrap_or_default()));
    let mut value: HeaderValue = format!("Basic {}", STANDARD.encode(pair)).parse().expect("base64 is plain ASCII");
    value.set_sensitive(true);
    Some(value)
}

fn header_name(name: &str) -> Result<HeaderName, String> {
    name.parse().map_err(|_| format!("`{}` is not a header name", name.escape_debug()))
}

fn header_value(name: &str, text: &str) -> Result<HeaderValue, String> {
    HeaderValue::from_bytes(text.as_bytes()).map_err(|_| format!("the value of `{name}` cannot be sent as a header"))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::{
        config::{Flag, Period, Whole},
        connector::http::SigningSecret,
        message::{MessageId, Metadata, Properties},
        time::UnixMillis,
        tls::TlsFiles,
    };

    fn config(headers: &[(&str, &str)]) -> HttpSettings {
        HttpSettings {
            url: "http://example.org/due?a=b".into(),
            allow: Allow::default(),
            allow_slashes: Flag(false),
            timeout: Period(Duration::from_secs(1)),
            max_connections: Whole(64),
            signing_secrets: [SigningSecret::parse("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap()]
                .into_iter()
                .collect(),
            headers: headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).into())).collect(),
            tls: TlsFiles::default(),
        }
    }

    fn delivery(headers: &[(&str, &str)], content_type: Option<&str>) -> Delivery {
        let metadata = Metadata {
            headers: headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
            content_type: content_type.map(ToOwned::to_owned),
            ..Metadata::default()
        };
        Delivery {
            id: MessageId::parse("m1").unwrap(),
            route: "r".into(),
            attempt: 3,
            due: UnixMillis::new(1_700_000_000_123).unwrap(),
            metadata,
            payload: Bytes::from_static(b"payload"),
            send_until: None,
        }
    }

    fn request(configured: &[(&str, &str)], message: &[(&str, &str)]) -> Result<MessageRequest, String> {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_614_265_330);
        RequestFactory::new(&config(configured))?.request(&delivery(message, None), now)
    }

    #[test]
    fn a_request_has_the_headers_of_the_message_and_of_punctual() {
        let request = request(&[], &[("X-Trace", "é")]).unwrap();
        let headers = request.headers();
        assert_eq!(request.uri(), "http://example.org/due?a=b");
        assert_eq!(headers["punctual-id"], "m1");
        assert_eq!(headers["punctual-route"], "r");
        assert_eq!(headers["punctual-attempt"], "3");
        assert_eq!(headers["punctual-due"], "1700000000123");
        assert_eq!(headers["content-type"], "application/octet-stream");
        assert_eq!(headers["x-trace"].as_bytes(), "é".as_bytes());
        assert_eq!(headers["webhook-id"], "m1");
        assert_eq!(headers["webhook-timestamp"], "1614265330");
        assert!(headers["user-agent"].to_str().unwrap().starts_with("punctual/"));
    }

    #[test]
    fn an_occurrence_of_a_schedule_has_its_own_id_in_all_headers() {
        let mut delivery = delivery(&[], None);
        let shown = "nightly@2026-05-24T00:00:00Z";
        for stored in ["nightly@", "nightly~1779580800000"] {
            delivery.id = MessageId::stored(stored).unwrap();
            delivery.metadata.origin =
                Some(crate::message::Origin { id: Some(shown.into()), ..Default::default() }.into());
            let request =
                RequestFactory::new(&config(&[])).unwrap().request(&delivery, SystemTime::UNIX_EPOCH).unwrap();
            assert_eq!([&request.headers()["punctual-id"], &request.headers()["webhook-id"]], [shown, shown]);
        }
    }

    #[test]
    fn headers_of_the_sink_replace_those_of_the_message() {
        let request =
            request(&[("X-Tenant", "ours"), ("Authorization", "Bearer x")], &[("x-tenant", "theirs")]).unwrap();
        assert_eq!(request.headers()["x-tenant"], "ours");
        assert_eq!(request.headers()["authorization"], "Bearer x");
        let request = self::request(&[("X-Tenant", "ours")], &[("X_Tenant", "theirs")]).unwrap();
        assert_eq!(request.headers()["x-tenant"], "ours");
        assert!(!request.headers().contains_key("x_tenant"), "CGI treats both names alike");
    }

    #[test]
    fn the_content_type_is_the_sink_s_else_the_message_s() {
        let content_type = |configured: &[(&str, &str)]| {
            let factory = RequestFactory::new(&config(configured)).unwrap();
            let request = factory.request(&delivery(&[], Some("text/plain")), SystemTime::UNIX_EPOCH).unwrap();
            request.headers()["content-type"].to_str().unwrap().to_owned()
        };
        assert_eq!(content_type(&[]), "text/plain");
        assert_eq!(content_type(&[("content-type", "application/json")]), "application/json");
    }

    #[test]
    fn only_the_content_encoding_of_the_properties_is_sent() {
        let request = |headers: &[(&str, &str)]| {
            let mut delivery = delivery(headers, None);
            let properties =
                Properties { content_encoding: Some("gzip".into()), priority: Some(1), ..Properties::default() };
            delivery.metadata.properties = Some(Box::new(properties));
            RequestFactory::new(&config(&[])).unwrap().request(&delivery, SystemTime::UNIX_EPOCH)
        };
        for same in [&[][..], &[("Content-Encoding", "gzip")], &[("content_encoding", "GZIP")]] {
            let request = request(same).expect("one encoding");
            let encodings = request.headers().keys().filter(|name| folded_header(name.as_str()) == "content-encoding");
            assert_eq!(encodings.count(), 1, "{same:?}");
            assert_eq!(request.headers()["content-encoding"], "gzip");
            assert!(!request.headers().contains_key("priority"));
        }
        for name in ["content-encoding", "Content_Encoding"] {
            let error = request(&[(name, "br")]).expect_err("two encodings");
            assert_eq!(error, format!("header `{name}` and the property `content_encoding` contradict each other"));
        }
    }

    #[test]
    fn headers_of_the_framing_and_of_punctual_are_refused() {
        for (name, value) in [
            ("host", "x"),
            ("Transfer-Encoding", "chunked"),
            ("content-length", "1"),
            ("punctual-id", "x"),
            ("webhook-signature", "x"),
            ("Punctual_Id", "x"),
            ("webhook_signature", "x"),
            ("Transfer_Encoding", "chunked"),
            ("Content_Length", "1"),
            ("a b", "x"),
            ("x", "a\r\nb: c"),
            ("x", "\0"),
        ] {
            assert!(request(&[], &[(name, value)]).is_err(), "{name:?}");
        }
        let error = request(&[], &[("X-Tenant", "a"), ("x-tenant", "b")]).unwrap_err();
        assert_eq!(error, "header `x-tenant` comes twice, in another spelling");
    }

    #[test]
    fn user_and_password_of_the_url_become_a_header() {
        let config = HttpSettings { url: "http://us%40er:p%3Ass@example.org/x".into(), ..config(&[]) };
        let factory = RequestFactory::new(&config).unwrap();
        let request = factory.request(&delivery(&[], None), SystemTime::UNIX_EPOCH).unwrap();
        assert_eq!(request.uri(), "http://example.org/x");
        // base64 of `us@er:p:ss`
        assert_eq!(request.headers()["authorization"], "Basic dXNAZXI6cDpzcw==");
    }

    #[test]
    fn the_url_is_rendered_for_each_message_if_it_is_allowed() {
        let url = "http://u@example.org/{header:X-Tenant}".into();
        let factory = RequestFactory::new(&HttpSettings { url, allow: Allow::new(["/a*"]).unwrap(), ..config(&[]) });
        let request = |tenant: &str| {
            factory.as_ref().unwrap().request(&delivery(&[("x-tenant", tenant)], None), SystemTime::UNIX_EPOCH)
        };
        assert_eq!(
            request("a/../b").unwrap_err(),
            "its header `X-Tenant` has a segment `.` or `..`, and stands in a path"
        );
        assert!(request("a/b").unwrap_err().contains("`allow_slashes: true`"));
        assert_eq!(request("a b").unwrap().uri(), "http://example.org/a%20b");
        assert!(request("b").unwrap_err().contains("not allowed"));
    }

    #[test]
    fn the_domain_shows_the_path_of_a_template_and_neither_query_nor_user() {
        let domain = |url: &str| {
            let allow = Allow::new(["/**"]).unwrap();
            let factory = RequestFactory::new(&HttpSettings { url: url.into(), allow, ..config(&[]) }).unwrap();
            let delivery = delivery(&[("x-tenant", "a b")], None);
            let request = factory.request(&delivery, SystemTime::UNIX_EPOCH).unwrap();
            let domain = request.domain().cloned();
            assert_eq!(domain, factory.domain_of(&delivery));
            domain
        };
        let url = "https://u:p@example.org/{header:X-Tenant}?token=secret";
        assert_eq!(domain(url).as_deref(), Some("https://example.org:443/a%20b"));
        assert_eq!(domain("http://[::1]:81/x?a={route}").as_deref(), Some("http://[::1]:81/x"));
        assert_eq!(domain("http://example.org/x"), None);
    }

    #[test]
    fn only_http_addresses_are_accepted() {
        for url in ["", "/due", "ftp://example.org", "http://", "mailto:a@b.c"] {
            let config = HttpSettings { url: url.into(), ..config(&[]) };
            assert!(RequestFactory::new(&config).is_err(), "{url}");
        }
    }
}
