//! The operator's console at `/console/`: static files that call the API with the operator's token.
//!
//! The files are public, as they hold no data. `POLICY` restricts the page: it loads from its own origin alone, and
//! never turns text into HTML.

mod files;

use std::sync::LazyLock;

use axum::{
    Router,
    body::Bytes,
    extract::Path,
    http::{HeaderName, StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};

use self::files::{DEVELOPMENT, FILES, INDEX, SCRIPT};
use super::problem::Problem;

/// Content-Security-Policy. With `trusted-types` no script of the page can turn a text into HTML.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
                      require-trusted-types-for 'script'; trusted-types 'none'";

/// Attribute in `INDEX`: whether the page asks for a token before its first call.
const ASKS: &str = "data-asks-for-token=\"no\"";

/// Which console is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    Production,
    /// With the development clock and the inbox.
    Development,
}

/// The module of others, which is served as it was published.
const VENDORED: &str = "preact.js";

/// The end of the head in `INDEX`.
const HEAD_END: &str = "</head>";

/// Whether the path needs no token.
pub fn is_open(path: &str) -> bool {
    matches!(path, "/" | "/console") || path.starts_with("/console/")
}

/// The page and the redirects to it. The redirects are relative, so that a proxy can add a prefix to the path. `asks`:
/// whether the API asks for a token now.
pub fn routes<S: Clone + Send + Sync + 'static>(
    mut router: Router<S>,
    asks: impl Fn() -> bool + Clone + Send + Sync + 'static,
    variant: Variant,
) -> Router<S> {
    let mut index = INDEX.to_owned();
    if variant == Variant::Development {
        let script = "<script type=\"module\" src=\"./development.js\"></script>\n</head>";
        index = index.replace(HEAD_END, script);
        router = router.route("/console/development.js", get(async || shown(SCRIPT, DEVELOPMENT)));
    }
    let asking = Bytes::from(index.replace(ASKS, "data-asks-for-token=\"yes\""));
    let index = Bytes::from(index);
    router
        .route("/", get(moved))
        .route("/console", get(moved))
        .route("/console/", get(async move || shown("text/html; charset=utf-8", if asks() { asking } else { index })))
        .route("/console/{file}", get(file))
}

async fn moved() -> impl IntoResponse {
    (StatusCode::TEMPORARY_REDIRECT, [(header::LOCATION, "console/")])
}

/// The files as they are served.
static SERVED: LazyLock<Vec<(&str, &str, Bytes)>> =
    LazyLock::new(|| FILES.iter().map(|(name, kind, text)| (*name, *kind, without_comments(name, text))).collect());

/// The file without its lines of comments, a tenth of its size. The other lines keep their numbers.
fn without_comments(name: &str, text: &'static str) -> Bytes {
    if name == VENDORED {
        return text.into();
    }
    let is_comment = |line: &str| {
        let text = line.trim_start();
        // A line that begins with an asterisk continues a comment if it is indented.
        text.starts_with("//") || text.starts_with("/*") || (text.len() < line.len() && text.starts_with('*'))
    };
    let lines = text.lines().map(|line| if is_comment(line) { "" } else { line });
    lines.flat_map(|line| [line, "\n"]).collect::<String>().into()
}

async fn file(Path(name): Path<String>) -> Result<Response, Problem> {
    let (_, content_type, text) = SERVED
        .iter()
        .find(|(known, ..)| *known == name)
        .ok_or_else(|| Problem::new(StatusCode::NOT_FOUND, "unknown-path", "the console has no such file"))?;
    Ok(shown(content_type, text.clone()))
}

fn shown(content_type: &'static str, body: impl Into<Bytes>) -> Response {
    let headers: [(HeaderName, &str); 6] = [
        (header::CONTENT_TYPE, content_type),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::REFERRER_POLICY, "no-referrer"),
        // Files of two releases must not be mixed.
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (headers, body.into()).into_response()
}

#[cfg(test)]
mod tests {
    use ring::digest::{SHA256, digest};

    use super::*;

    /// Maximum size of all files together, in bytes.
    const MOST: usize = 140_000;
    /// SHA-256 of `preact.js`: `preact/standalone.module.js` of the npm package htm 3.1.1, see
    /// `page/preact.LICENSE.txt`.
    const DIGEST: &str = "72284e8e9079c87817145df1110f74e8a2aa040b2fc384922e18dfcb46fc1fd7";

    #[test]
    fn the_page_is_small_and_names_no_other_origin() {
        let size = INDEX.len() + SERVED.iter().map(|(.., text)| text.len()).sum::<usize>();
        assert!(size <= MOST, "{size} bytes");
        assert!(INDEX.contains(ASKS));
        for (name, _, text) in FILES {
            let links: Vec<_> = text.match_indices("://").map(|(at, _)| &text[at.saturating_sub(5)..]).collect();
            // Names of XML namespaces.
            let foreign = links.iter().any(|link| !link.contains("http://www.w3.org/"));
            assert!(!foreign, "{name}");
        }
    }

    #[test]
    fn the_vendored_module_is_the_published_one() {
        let (.., text) = SERVED.iter().find(|(name, ..)| *name == VENDORED).expect("it is served");
        let byte = |at| u8::from_str_radix(&DIGEST[at..at + 2], 16).expect("hexadecimal digits");
        let expected: Vec<u8> = (0..DIGEST.len()).step_by(2).map(byte).collect();
        assert_eq!(digest(&SHA256, text.as_ref()).as_ref(), &expected[..]);
    }

    #[test]
    fn every_file_that_a_file_names_is_served() {
        let served = |name: &str| FILES.iter().any(|(known, ..)| *known == name);
        for (name, _, text) in FILES.iter().chain(&[("index.html", "", INDEX)]) {
            for part in text.split("\"./").skip(1) {
                let target = part.split('"').next().unwrap_or_default();
                assert!(served(target), "{name} names {target}");
            }
        }
    }
}
