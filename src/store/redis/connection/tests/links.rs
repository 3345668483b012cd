//! Links that are not made, and commands on links that end.

use redis::{ConnectionAddr, IntoConnectionInfo};

use super::{super::link::open, *};

const TIMEOUT: Duration = Duration::from_millis(500);

fn url(scheme: &str, address: &ServerAddress) -> RedisEndpoint {
    RedisEndpoint {
        url: format!("{scheme}://{address}").into(),
        username: None,
        password: None,
        tls: TlsFiles::default(),
    }
}

#[tokio::test]
async fn a_server_without_tls_is_named_as_the_cause_of_a_handshake_without_end() {
    // It accepts connections, and says nothing.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = ServerAddress { host: "127.0.0.1".into(), port: silent.local_addr().unwrap().port() };
    let may_not_speak = "the server may not speak TLS";
    for (scheme, is_hint) in [("rediss", true), ("redis", false)] {
        let client = client(&url(scheme, &address)).unwrap();
        if is_hint {
            let (kind, text) = unavailable(open(&client, TIMEOUT).await.map(|_| ()));
            assert!(
                kind == NO_LINK && text.starts_with("no link in 500ms: ") && text.contains(may_not_speak),
                "{text}"
            );
        }
        let connection = Connection::new(client, TIMEOUT);
        let (kind, text) = unavailable(connection.run::<String>(&redis::cmd("PING")).await);
        assert_eq!((kind == NO_LINK, text.contains(may_not_speak)), (is_hint, is_hint), "{scheme}: {text}");
        // The command ends before the attempt to connect does.
        let deadline = Instant::now() + TIMEOUT / 5;
        let (_, text) = unavailable(connection.run_by::<String>(&redis::cmd("PING"), deadline).await);
        assert_eq!(text.contains(may_not_speak), is_hint, "{scheme}: {text}");
    }
}

#[tokio::test]
async fn a_refused_connection_is_distinguished_from_a_late_one() {
    let address = {
        let closed = TcpListener::bind("127.0.0.1:0").await.unwrap();
        ServerAddress { host: "127.0.0.1".into(), port: closed.local_addr().unwrap().port() }
    };
    let connection = Connection::new(client(&url("redis", &address)).unwrap(), TIMEOUT);
    let (kind, text) = unavailable(connection.run::<String>(&redis::cmd("PING")).await);
    assert!(kind == "io" && text.contains("refused"), "{kind}: {text}");
}

#[test]
fn another_server_has_the_tls_of_the_first_and_a_database_is_that_of_the_url() {
    let other = ServerAddress { host: "b".into(), port: 2 };
    let addr = |url: &str| {
        let info = other.client(&url.into_connection_info().unwrap()).unwrap().get_connection_info().clone();
        info.addr().clone()
    };
    assert_eq!(addr("redis://a:1"), ConnectionAddr::Tcp("b".into(), 2));
    let ConnectionAddr::TcpTls { host, port, insecure, .. } = addr("rediss://a:1") else { panic!("without TLS") };
    assert_eq!((&*host, port, insecure), ("b", 2, false));
    for (url, database) in [("redis://a", 0), ("redis://a/3", 3)] {
        assert_eq!(Upstream::from(redis::Client::open(url).unwrap()).database(), database, "{url}");
    }
    assert!(Upstream::from(redis::Client::open("redis://a").unwrap()).sentinels().is_none());
}

#[tokio::test]
async fn a_command_for_one_link_is_not_sent_on_another() {
    let peer = Peer::start(|command| (command == "GET wrong").then(|| Reply::error("ERR wrong"))).await;
    let connection = Connection::new(client(&peer.endpoint()).unwrap(), SOON);
    let (_, generation) = connection.run_on_link::<String>(&redis::cmd("PING")).await.unwrap();
    let ping = redis::cmd("PING");
    assert_eq!(connection.run_over::<String>(generation, &ping).await, Ok(Some("PONG".into())));
    let wrong = connection.run_over::<String>(generation, redis::cmd("GET").arg("wrong")).await;
    assert_eq!(unavailable(wrong).0, "other");
    peer.links.end_all();
    // The connection notices its end after a while. Until then a command fails.
    let begun = Instant::now();
    while connection.run_on_link::<String>(&ping).await.is_ok_and(|(_, on)| on == generation) {
        assert!(begun.elapsed() < SOON);
    }
    while connection.run_on_link::<String>(&ping).await.is_err() {
        assert!(begun.elapsed() < SOON);
    }
    let pings = peer.count("PING");
    assert_eq!(connection.run_over::<String>(generation, &ping).await, Ok(None));
    assert_eq!(peer.count("PING"), pings);
}

#[tokio::test]
async fn a_rehearsal_without_all_answers_fails() {
    let peer = Peer::start(|_| None).await;
    let links = peer.links.clone();
    let is_cut = Arc::new(Mutex::new(false));
    let cuts = is_cut.clone();
    peer.replies(move |command| match command {
        "MULTI" => {
            let before = if *cuts.lock() { 1.0 } else { 0.0 };
            links.set_faults(LinkFaults { before, ..LinkFaults::default() });
            Some(Reply::ok())
        }
        "GET a" => Some(Reply::Status("QUEUED".into())),
        "GET b" => Some(Reply::error("NOPERM User has no permissions to run the 'get' command")),
        _ => None,
    });
    let connection = Connection::new(client(&peer.endpoint()).unwrap(), SOON);
    let commands = ["a", "b", "a"].map(|key| redis::cmd("GET").arg(key).clone());
    let answers = connection.rehearse(&commands).await.unwrap();
    assert_eq!(answers.iter().map(Option::is_some).collect::<Vec<_>>(), [false, true, false]);
    *is_cut.lock() = true;
    assert_eq!(unavailable(connection.rehearse(&commands).await).0, "io");
}
