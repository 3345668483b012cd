//! How commands find the API, and which rights they need.

use std::time::Duration;

use super::Scene;
use crate::{
    program::eventually,
    support::{RedisServer, command::Workplace, punctual::Punctual},
};

const TOKENS: &str = "server: { auth: { tokens: [{ token: reader-0123456789, rights: [read] }, { token: writer-0123456789, rights: [schedule] }] } }\n";

#[tokio::test]
async fn a_token_comes_from_an_option_a_file_or_the_environment() {
    let scene = Scene::with(TOKENS).await;
    scene.refused(&["list", "web"], 1, "PUNCTUAL_TOKEN").await;
    scene.done(&["list", "web", "--token", "reader-0123456789"]).await;
    std::fs::write(scene.punctual.path("token"), "reader-0123456789\n").unwrap();
    scene.done(&["list", "web", "--token-file", "token"]).await;
    scene.refused(&["list", "web", "--token-file", "missing"], 2, "--token-file: missing").await;
    let with = |variable: &str, value: &str| vec![(variable.to_owned(), value.to_owned())];
    let environment =
        [with("PUNCTUAL_TOKEN", "reader-0123456789"), with("PUNCTUAL_URL", &scene.punctual.url(""))].concat();
    let directory = tempfile::tempdir().unwrap();
    let ended = crate::support::command::run(directory.path(), &environment, &["list", "web"], b"").await;
    assert_eq!(ended.code, Some(0), "{ended:?}");

    let reader = ["--token", "reader-0123456789"];
    scene
        .refused(&[&["schedule", "web", "--payload", "x"], &reader[..]].concat(), 1, "lacks the right `schedule`")
        .await;
    scene
        .refused(&[&["dead", "purge", "web", "--all", "--yes"], &reader[..]].concat(), 1, "lacks the right `admin`")
        .await;
    scene.refused(&[&["pause", "web", "--yes"], &reader[..]].concat(), 1, "lacks the right `admin`").await;
    let writer = ["--token", "writer-0123456789"];
    scene.done(&[&["schedule", "web", "--payload", "x"], &writer[..]].concat()).await;
    scene.refused(&[&["status"], &writer[..]].concat(), 1, "lacks the right `read`").await;
}

#[tokio::test]
async fn a_unix_socket_is_found_by_the_configuration_and_by_its_url() {
    let redis = RedisServer::start().await;
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("api.sock");
    let url = format!("unix:{}", socket.display());
    let punctual =
        Punctual::spawn(&format!("redis: {{ url: '{}' }}\n", redis.url()), &[("PUNCTUAL__SERVER__LISTEN", &url)]);
    let status = eventually("it answers", Duration::from_secs(20), async || {
        let ended = punctual.command(&["status", "-c", "punctual.yaml"]).await;
        (ended.code == Some(0)).then_some(ended)
    })
    .await;
    assert!(status.out.contains(&format!("at {url}: ready")), "{status:?}");
    let workplace = Workplace::with("");
    for url in [url.clone(), format!("unix://{}", socket.display())] {
        let ended = workplace.run(&["health", "--url", &url]).await;
        assert_eq!(ended.code, Some(0), "{ended:?}");
    }
    assert_eq!(workplace.run(&["health", "--url", "unix:relative"]).await.code, Some(2));
}

#[tokio::test]
async fn the_address_is_read_from_a_configuration_that_lacks_its_secrets() {
    let scene = Scene::start().await;
    let listen = scene.punctual.url("").replace("http://", "");
    let workplace = Workplace::with(&format!(
        "server: {{ listen: '{listen}', auth: {{ tokens: ['${{MISSING_TOKEN}}'] }} }}\n\
         sinks: {{ hook: {{ type: http, url: 'http://a/', signing_secrets: ['${{file:/none}}'] }} }}\nunknown: 1\n"
    ));
    assert_eq!(workplace.run(&["check"]).await.code, Some(2), "`serve` would refuse it");
    let ended = workplace.run(&["status"]).await;
    assert_eq!(ended.code, Some(0), "{ended:?}");

    let wrong = Workplace::with("server: { listen: here }\n").run(&["status"]).await;
    assert!(wrong.code == Some(2) && wrong.error.contains("server.listen: `here` is not an address"), "{wrong:?}");
    let missing = Workplace::with("").run(&["status", "-c", "missing.yaml"]).await;
    assert!(missing.code == Some(2) && missing.error.contains("missing.yaml"), "{missing:?}");
}

#[tokio::test]
async fn a_token_or_a_url_that_cannot_be_used_is_refused_and_not_shown() {
    let scene = Scene::start().await;
    for token in ["s3cret\u{1}word", "s3cret\nword", "s3crét"] {
        let ended = scene.run(&["list", "web", "--token", token]).await;
        assert_eq!(ended.code, Some(2), "{ended:?}");
        assert!(ended.error.contains("--token") && !ended.error.contains("s3cr"), "{ended:?}");
    }
    for url in
        ["http://:s3cret@127.0.0.1:1", "http://me:s3cret@127.0.0.1:1", "http://me:s3cret@a:b", "ftp://me:s3cret@a"]
    {
        let ended = scene.run(&["list", "web", "--url", url]).await;
        assert_eq!(ended.code, Some(2), "{ended:?}");
        assert!(ended.error.contains("URL") && !ended.error.contains("s3cret"), "{ended:?}");
    }
}
