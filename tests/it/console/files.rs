//! Files at `/console/`, and the setting that switches the console off.

use crate::support::{answer, http, punctual::Punctual};

const TOKENS: &str = "auth: { tokens: [secret-0123456789abcdef] }";

async fn started(server: &str) -> Punctual {
    Punctual::start(&format!("redis: {{ url: embedded }}\nserver: {{ {server} }}\n")).await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_is_open_and_strict_and_its_redirects_are_relative() {
    let client = http::client_without_redirects();
    for (server, asks) in [(TOKENS, "yes"), ("auth: none", "no")] {
        let punctual = started(server).await;
        for path in ["/", "/console"] {
            let moved = answer(client.get(punctual.url(path))).await;
            assert_eq!((moved.status, &moved.headers["location"]), (307, &"console/".parse().unwrap()), "{path}");
        }
        let page = answer(client.get(punctual.url("/console/"))).await;
        assert_eq!((page.status, &page.headers["content-type"]), (200, &"text/html; charset=utf-8".parse().unwrap()));
        assert!(page.text.contains(&format!("data-asks-for-token=\"{asks}\"")));
        let policy = page.headers["content-security-policy"].to_str().expect("text");
        for part in ["default-src 'none'", "script-src 'self'", "frame-ancestors 'none'", "trusted-types 'none'"] {
            assert!(policy.split("; ").any(|one| one == part), "{part}: {policy}");
        }
        assert!(!policy.contains("unsafe"), "{policy}");
        let script = answer(client.get(punctual.url("/console/app.js"))).await;
        assert_eq!(script.headers["content-type"], "text/javascript; charset=utf-8");
        assert_eq!(script.headers["x-content-type-options"], "nosniff");
        answer(client.get(punctual.url("/console/none.js"))).await.problem(404);
        answer(client.post(punctual.url("/console/"))).await.problem(405);
        // A link on another site may lead to the page: it holds nothing.
        let linked = client.get(punctual.url("/console/")).header("sec-fetch-site", "cross-site");
        assert_eq!(answer(linked).await.status, 200);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_can_be_switched_off() {
    for (server, status) in [(TOKENS, 401), ("auth: none", 404)] {
        let punctual = started(&format!("{server}, console: false")).await;
        for path in ["/", "/console", "/console/", "/console/app.js"] {
            answer(http::client().get(punctual.url(path))).await.problem(status);
        }
    }
}
