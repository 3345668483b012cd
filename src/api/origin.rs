//! Refuses requests of web pages where no tokens are configured.
//!
//! Without this check, any page in a browser of the same machine could call an API on the loopback interface. A
//! cross-origin request has an `Origin` header. After DNS rebinding, the attacker's name resolves to the loopback
//! address, so both origins agree and only the name in `Host` shows the attack.

use std::net::IpAddr;

use axum::http::{HeaderMap, Method, StatusCode, header, uri::Authority};

use super::problem::Problem;

/// # Errors
/// 421 for a `Host` name that external DNS can resolve; 403 for a change by a page of another origin, and for every
/// request by a page of another site. Programs that send none of these headers pass.
pub fn check(method: &Method, headers: &HeaderMap) -> Result<(), Problem> {
    if !headers.get_all(header::HOST).iter().all(|host| host.to_str().is_ok_and(is_own)) {
        let text = "without tokens, only an IP address or `localhost` is served as `Host`: set `server.auth.tokens`";
        return Err(Problem::new(StatusCode::MISDIRECTED_REQUEST, "unknown-host", text));
    }
    if headers.get_all("sec-fetch-site").iter().any(|site| site == "cross-site") {
        let text = "without tokens, pages of other sites may not ask for anything";
        return Err(Problem::new(StatusCode::FORBIDDEN, "cross-origin", text));
    }
    if !method.is_safe() && is_from_a_foreign_page(headers) {
        let text = "without tokens, pages of other origins may not change anything";
        return Err(Problem::new(StatusCode::FORBIDDEN, "cross-origin", text));
    }
    Ok(())
}

/// Whether the host needs no DNS: an address, or a name that browsers resolve to the loopback address by themselves
/// (RFC 6761, section 6.3).
fn is_own(host: &str) -> bool {
    let Ok(authority) = host.parse::<Authority>() else { return false };
    let name = authority.host();
    let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    let name = name.to_ascii_lowercase();
    address.parse::<IpAddr>().is_ok() || name == "localhost" || name.ends_with(".localhost")
}

/// Whether a page of another origin sends the request. Browsers send `Origin` with every cross-origin request that can
/// change state.
fn is_from_a_foreign_page(headers: &HeaderMap) -> bool {
    let Some(origin) = headers.get(header::ORIGIN) else { return false };
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    let origin = origin.to_str().ok().and_then(|origin| origin.split_once("://")).map(|(_, host)| host);
    origin.is_none() || origin != host
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn only_addresses_and_localhost_are_this_machine_for_sure() {
        for own in ["127.0.0.1:8080", "127.0.0.1", "[::1]:8080", "[::1]", "10.0.0.7:80", "localhost", "LocalHost:8080"]
        {
            assert!(is_own(own), "{own}");
        }
        assert!(is_own("punctual.localhost:8080"));
        for foreign in ["evil.example", "evil.example:8080", "127.0.0.1.evil.example", "localhost.evil", "notlocalhost"]
        {
            assert!(!is_own(foreign), "{foreign}");
        }
        for malformed in ["", "a b", "[::1", "http://127.0.0.1", "évil"] {
            assert!(!is_own(malformed), "{malformed}");
        }
    }

    #[test]
    fn a_page_of_another_origin_is_told_from_a_program_and_from_the_own_origin() {
        let foreign = |origin: Option<&'static str>| {
            let mut headers = HeaderMap::from_iter([(header::HOST, HeaderValue::from_static("127.0.0.1:8080"))]);
            if let Some(origin) = origin {
                headers.insert(header::ORIGIN, HeaderValue::from_static(origin));
            }
            is_from_a_foreign_page(&headers)
        };
        assert!(!foreign(None));
        assert!(!foreign(Some("http://127.0.0.1:8080")));
        assert!(foreign(Some("https://evil.example")));
        assert!(foreign(Some("null")));
    }

    #[test]
    fn a_program_without_host_and_origin_passes() {
        assert!(check(&Method::POST, &HeaderMap::new()).is_ok());
    }
}
