//! Which server the sentinels name, and when another one is believed.

use super::{super::mastership::Mastership, *};

/// The server that a sentinel names.
type Named = Arc<Mutex<Option<ServerAddress>>>;

async fn sentinel(named: Option<&Peer>) -> (Peer, Named) {
    let named: Named = Arc::new(Mutex::new(named.map(|peer| peer.address.clone())));
    let answer = named.clone();
    let replies = move |command: &str| {
        let known = || answer.lock().clone().map_or(Reply::Nil, |one| name(&one));
        (command == "SENTINEL GET-MASTER-ADDR-BY-NAME main").then(known)
    };
    (Peer::start(replies).await, named)
}

fn name(address: &ServerAddress) -> Reply {
    Reply::Array(vec![Reply::bulk(&*address.host), Reply::bulk(address.port.to_string())])
}

/// A server that reports this role, and answers GET with it.
async fn server(role: &'static str) -> Peer {
    Peer::start(move |command| match command {
        "ROLE" => Some(Reply::Array(vec![Reply::bulk(role), Reply::Int(0)])),
        "GET k" => Some(Reply::bulk(role)),
        _ => None,
    })
    .await
}

fn of(sentinels: &[&Peer]) -> Sentinels {
    let endpoints: Vec<_> = sentinels.iter().map(|one| one.endpoint()).collect();
    Sentinels::new(&endpoints, "main", &endpoints[0]).unwrap()
}

/// The beginning of the question for the master.
const QUESTION: &str = "SENTINEL";
const LONGEST: Duration = Duration::from_secs(1);

#[tokio::test]
async fn the_master_is_a_named_server_with_that_role_and_its_sentinel_is_asked_first_from_then_on() {
    let (old, new) = (server("slave").await, server("master").await);
    let (first, _) = sentinel(Some(&old)).await;
    let (second, _) = sentinel(Some(&old)).await;
    let (third, _) = sentinel(None).await;
    let (fourth, _) = sentinel(Some(&new)).await;
    let all = [&first, &second, &third, &fourth];
    let (sentinels, mastership) = (of(&all), Mastership::default());
    assert_eq!(sentinels.found(), None);
    let (client, _) = sentinels.master(&mastership, LONGEST).await.unwrap();
    assert_eq!(sentinels.found().as_ref(), Some(&new.address));
    assert_eq!(ServerAddress::of(client.get_connection_info()).as_ref(), Some(&new.address));
    assert_eq!((old.count("ROLE"), new.count("ROLE")), (1, 1), "two sentinels name the old one");

    let made = Instant::now();
    sentinels.master(&mastership, LONGEST).await.unwrap();
    assert_eq!(all.map(|one| one.count(QUESTION)), [1, 1, 1, 2]);
    assert!(!is_over(mastership.deposed(made)), "it is the same one");
    let answers: Vec<_> = sentinels.answers().await.into_iter().map(Result::ok).collect();
    let [old, new] = [&old, &new].map(|one| Some(one.address.clone()));
    assert_eq!(answers, [old.clone(), old, None, new]);
}

#[tokio::test]
async fn without_a_master_the_error_names_the_server_and_its_role_or_the_sentinel() {
    for (role, expected) in [
        (Reply::Array(vec![Reply::bulk("slave")]), "the sentinels name it, but its role is slave"),
        (Reply::Array(vec![]), "a role that is none"),
        (Reply::error("NOPERM no ROLE"), "no ROLE"),
    ] {
        let role = Arc::new(role);
        let refused = Peer::start(move |command| (command == "ROLE").then(|| (*role).clone())).await;
        let (one, _) = sentinel(Some(&refused)).await;
        let (kind, text) = unavailable(of(&[&one]).master(&Mastership::default(), LONGEST).await.map(|_| ()));
        let address = format!("{}: ", refused.address);
        assert!(kind == NO_LINK && text.starts_with(&address) && text.contains(expected), "{expected}: {text}");
    }
    let (one, _) = sentinel(None).await;
    let (kind, text) = unavailable(of(&[&one]).master(&Mastership::default(), LONGEST).await.map(|_| ()));
    assert!(kind == NO_LINK && text.contains("it knows no primary `main`"), "{text}");
}

/// A message of a change, when the sentinel has a subscriber.
async fn publish(sentinel: &Peer, channel: &str) {
    let message = ["PUBLISH", channel, "changed"].map(|word| word.as_bytes().to_vec());
    until("the sentinel is followed", || sentinel.server.execute(&message) == Reply::Int(1)).await;
}

#[tokio::test]
async fn another_master_is_believed_when_more_sentinels_name_it_than_the_old_one() {
    let (old, new) = (server("master").await, server("master").await);
    let mut peers = Vec::new();
    for _ in 0..4 {
        peers.push(sentinel(Some(&old)).await);
    }
    let all: Vec<_> = peers.iter().map(|(peer, _)| peer).collect();
    let upstream = Arc::new(Upstream::from(of(&all)));
    let topology = Topology::Single(upstream.clone());
    let servers = topology.servers(SOON);
    assert_eq!(get(&servers).await, Ok(Some("master".into())));
    let found = || topology.sentinels().and_then(Sentinels::found).unwrap();
    assert_eq!(found(), old.address);

    let followed = topology.clone();
    let asked = || all.iter().map(|peer| peer.count(QUESTION)).collect::<Vec<_>>();
    let before = asked();
    let following = tokio::spawn(async move { followed.follow().await });
    until("each is followed", || asked().iter().zip(&before).all(|(now, before)| now > before)).await;
    // One of four, then half of them: those may be cut off with a server that was the master before.
    for (place, channel) in [(0, "+switch-master"), (1, "+promoted-slave")] {
        *peers[place].1.lock() = Some(new.address.clone());
        // The second question to the others follows the decision after the first one.
        for _ in 0..2 {
            let before = peers[3].0.count(QUESTION);
            publish(&peers[place].0, channel).await;
            until("the others are asked", || peers[3].0.count(QUESTION) > before).await;
        }
        assert_eq!(found(), old.address, "{place}");
    }
    // The old one does not answer, and a call waits for it.
    old.freeze();
    let received = old.received();
    let waiting = getting(&servers);
    until("the call is sent", || old.received() > received).await;
    *peers[2].1.lock() = Some(new.address.clone());
    publish(&peers[2].0, "+switch-master").await;
    let (kind, text) = unavailable(waiting.await.unwrap());
    assert!(kind == NO_ANSWER && text.contains("another server became the primary"), "{text}");
    assert_eq!(found(), new.address);
    assert_eq!(get(&servers).await, Ok(Some("master".into())));
    assert_eq!(new.count("GET"), 1);
    following.abort();
}
