//! Where the API listens: HTTPS, a Unix socket.

use std::{fs, net::SocketAddr, os::unix::fs::PermissionsExt, path::Path, time::Duration};

use rustix::process::{Signal, kill_process};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
};

use super::eventually;
use crate::support::{Authority, RedisServer, http, punctual::Punctual};

const MAX_WAIT: Duration = Duration::from_secs(10);

/// Trusts only `authority`, and opens a connection for each request.
fn client(authority: &Authority, address: SocketAddr) -> reqwest::Client {
    let certificate = reqwest::Certificate::from_pem(&fs::read(authority.file("ca.pem")).unwrap()).unwrap();
    reqwest::Client::builder()
        .tls_certs_only([certificate])
        .resolve("localhost", address)
        .pool_max_idle_per_host(0)
        .timeout(Duration::from_secs(5))
        .build()
        .unwrap()
}

async fn is_served(client: &reqwest::Client, address: SocketAddr) -> bool {
    let url = format!("https://localhost:{}/readyz", address.port());
    client.get(url).send().await.is_ok_and(|answer| answer.status() == 200)
}

#[tokio::test]
async fn https_is_served_and_sighup_reads_the_certificate_again() {
    // Installs the provider that clients need.
    let plain = http::client();
    let (redis, [old, new]) = (RedisServer::start().await, [Authority::new(), Authority::new()]);
    let mut punctual = Punctual::spawn(
        &format!(
            "redis: {{ url: '{}' }}\nserver: {{ tls: {{ cert_file: '{}', key_file: '{}' }} }}\n",
            redis.url(),
            old.file("server.pem").display(),
            old.file("server.key").display()
        ),
        &[],
    );
    let address: SocketAddr = punctual.url("").trim_start_matches("http://").parse().expect("an address");
    let [trusts_old, trusts_new] = [&old, &new].map(|authority| client(authority, address));
    let served = async |client: &reqwest::Client| is_served(client, address).await.then_some(());
    eventually("it is served", MAX_WAIT, async || served(&trusts_old).await).await;
    assert!(plain.get(punctual.url("/livez")).send().await.is_err(), "plain HTTP is no answer");
    assert!(!is_served(&trusts_new, address).await);

    fs::write(old.file("server.pem"), "no certificate").unwrap();
    kill_process(punctual.pid(), Signal::HUP).expect("it runs");
    eventually("it is logged", MAX_WAIT, async || punctual.log().contains("the old one stays").then_some(())).await;
    assert!(is_served(&trusts_old, address).await);

    for file in ["server.pem", "server.key"] {
        fs::copy(new.file(file), old.file(file)).unwrap();
    }
    kill_process(punctual.pid(), Signal::HUP).expect("it runs");
    eventually("the new one is served", MAX_WAIT, async || served(&trusts_new).await).await;
    assert!(!is_served(&trusts_old, address).await);
    assert_eq!(punctual.terminate().await.code, Some(0));
}

/// The whole answer, if there is one.
async fn ask(socket: &Path, method: &str, path: &str, body: &str) -> Option<String> {
    let mut stream = UnixStream::connect(socket).await.ok()?;
    let length = body.len();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut reply = String::new();
    stream.read_to_string(&mut reply).await.ok()?;
    Some(reply)
}

#[tokio::test]
async fn a_unix_socket_serves_its_group_and_takes_the_place_of_a_dead_one() {
    let (redis, directory) = (RedisServer::start().await, tempfile::tempdir().expect("a directory"));
    let socket = directory.path().join("api.sock");
    let configuration = format!(
        "redis: {{ url: '{}' }}\nsinks: {{ jobs: {{ type: redis_list, key: jobs }} }}\nroutes: {{ web: {{ sink: jobs }} }}\n",
        redis.url()
    );
    let listen = format!("unix:{}", socket.display());
    let environment = [("PUNCTUAL__SERVER__LISTEN", &*listen)];
    let ready = async || {
        let answer = ask(&socket, "GET", "/readyz", "").await?;
        answer.starts_with("HTTP/1.1 200").then_some(())
    };
    let mut first = Punctual::spawn(&configuration, &environment);
    eventually("it is ready", MAX_WAIT, ready).await;
    assert_eq!(fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o660);
    assert!(!first.log().contains("asks for no token"), "its mode keeps others out: {}", first.log());
    let answer = ask(&socket, "POST", "/v1/routes/web/messages", r#"{"payload":1,"delay":"1h"}"#).await;
    assert!(answer.as_ref().is_some_and(|answer| answer.starts_with("HTTP/1.1 201")), "{answer:?}");

    let mut second = Punctual::spawn(&configuration, &environment);
    assert_eq!(second.ended().await.code(), Some(1));
    assert!(second.log().contains("in use"), "{}", second.log());
    first.kill().await;
    assert!(socket.exists(), "a killed process leaves it");
    let mut third = Punctual::spawn(&configuration, &environment);
    eventually("it is ready again", MAX_WAIT, ready).await;
    assert_eq!(third.terminate().await.code, Some(0));
    assert!(!socket.exists(), "a stopped one does not");

    fs::write(&socket, "a file of someone else").unwrap();
    let mut fourth = Punctual::spawn(&configuration, &environment);
    assert_eq!(fourth.ended().await.code(), Some(1));
    assert_eq!(fs::read_to_string(&socket).unwrap(), "a file of someone else");
}
