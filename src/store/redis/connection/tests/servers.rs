//! Calls to a cluster: redirections, and servers that do not answer.

use super::*;

const TIMEOUT: Duration = Duration::from_secs(5);

/// The slot of `k`, in which all calls of these tests are.
fn slot() -> u16 {
    slot_of(b"k")
}

fn servers(cluster: &Arc<Cluster>) -> Servers {
    Servers::of_cluster(cluster.clone(), TIMEOUT)
}

/// Redirections to other servers, which are known after their start.
#[derive(Clone, Default)]
struct Redirections(Arc<Mutex<Vec<Option<String>>>>);

impl Redirections {
    /// Servers of which each answers GET with its place, or with an error of this list.
    async fn start<const N: usize>() -> (Members, Self) {
        let redirections = Self::default();
        redirections.0.lock().resize(N, None);
        let members = Members::start::<N>().await;
        for (place, peer) in members.peers.iter().enumerate() {
            let (errors, named) = (redirections.clone(), members.named[place].clone());
            peer.replies(move |command| match command {
                "GET k" => {
                    let error = errors.0.lock()[place].clone();
                    Some(error.map_or_else(|| Reply::bulk(place.to_string()), Reply::error))
                }
                "ASKING" => Some(Reply::ok()),
                _ => map(&named, command),
            });
        }
        (members, redirections)
    }

    fn set(&self, place: usize, error: impl Into<String>) {
        self.0.lock()[place] = Some(error.into());
    }

    fn clear(&self, place: usize) {
        self.0.lock()[place] = None;
    }
}

#[tokio::test]
async fn a_moved_slot_is_known_from_then_on_and_an_asked_one_is_not() {
    let (members, redirections) = Redirections::start::<3>().await;
    let cluster = members.cluster();
    let servers = servers(&cluster);
    let generations = servers.generations();
    assert!(servers.single().is_none() && servers.cluster().is_some());
    assert_eq!(get(&servers).await, Ok(Some("0".into())));
    redirections.set(0, format!("ASK {} {}", slot(), members.address(1)));
    assert_eq!(get(&servers).await, Ok(Some("1".into())));
    assert_eq!(members.peers[1].count("ASKING"), 1);
    redirections.set(0, format!("MOVED {} {}", slot(), members.address(2)));
    let (value, link) = servers.run_on_link::<String>("k", redis::cmd("GET").arg("k")).await.unwrap();
    assert_eq!((&*value, link.generation, *generations.borrow()), ("2", 3, 3));
    assert_eq!(get(&servers).await, Ok(Some("2".into())));
    assert_eq!([0, 1, 2].map(|place| members.peers[place].count("GET")), [3, 1, 2]);
    assert_eq!(members.peers[2].count("ASKING"), 0);
}

#[tokio::test]
async fn three_redirections_are_followed_without_a_pause() {
    let (members, redirections) = Redirections::start::<4>().await;
    let cluster = members.cluster();
    let servers = servers(&cluster);
    let begun = Instant::now();
    loop {
        cluster.moved(slot(), members.address(0).clone());
        for place in 0..3 {
            redirections.set(place, format!("MOVED {} {}", slot(), members.address(place + 1)));
        }
        let sent = Instant::now();
        assert_eq!(get(&servers).await, Ok(Some("3".into())));
        // A busy machine can make one slow.
        if sent.elapsed() < Duration::from_millis(50) {
            break;
        }
        assert!(begun.elapsed() < SOON);
    }
}

#[tokio::test]
async fn servers_that_disagree_are_asked_at_intervals_until_the_end_of_the_call() {
    let (members, redirections) = Redirections::start::<2>().await;
    for (place, other) in [(0, 1), (1, 0)] {
        redirections.set(place, format!("MOVED {} {}", slot(), members.address(other)));
    }
    let servers = Servers::of_cluster(members.cluster(), Duration::from_millis(500));
    let begun = Instant::now();
    unavailable(get(&servers).await);
    assert!(begun.elapsed() >= Duration::from_millis(450), "{:?}", begun.elapsed());
    // Three at once, and then one every 50 ms.
    let calls = members.peers.iter().map(|peer| peer.count("GET")).sum::<usize>();
    assert!((2..=15).contains(&calls), "{calls}");
}

#[tokio::test]
async fn a_slot_without_a_primary_is_waited_for_a_second() {
    for error in ["CLUSTERDOWN Hash slot not served", "TRYAGAIN Multiple keys"] {
        let (code, rest) = error.split_once(' ').unwrap();
        let (members, redirections) = Redirections::start::<3>().await;
        redirections.set(0, error);
        let servers = servers(&members.cluster());
        let begun = Instant::now();
        let (kind, text) = unavailable(get(&servers).await);
        assert!(begun.elapsed() >= Duration::from_secs(1) && begun.elapsed() < TIMEOUT, "{:?}", begun.elapsed());
        assert!(code.to_lowercase() == kind && text.ends_with(rest), "{text}");
        let calls = members.peers[0].count("GET");
        let waiting = getting(&servers);
        until("it was refused once", || members.peers[0].count("GET") > calls).await;
        redirections.clear(0);
        assert_eq!(waiting.await.unwrap(), Ok(Some("0".into())));
    }
}

#[tokio::test]
async fn a_call_that_was_not_sent_goes_to_the_new_owner() {
    let (members, _) = Redirections::start::<3>().await;
    let cluster = members.cluster();
    let servers = servers(&cluster);
    assert_eq!(get(&servers).await, Ok(Some("0".into())));
    members.peers[0].refuse().await;
    // The others still name it.
    let begun = Instant::now();
    let (_, text) = unavailable(get(&servers).await);
    assert!(text.starts_with(&format!("{}: ", members.address(0))) && begun.elapsed() < TIMEOUT, "{text}");
    members.name(1);
    assert_eq!(get(&servers).await, Ok(Some("1".into())));
}

#[tokio::test]
async fn only_an_error_that_may_come_from_a_lost_primary_makes_the_map_suspect() {
    let (members, redirections) = Redirections::start::<3>().await;
    let cluster = members.cluster();
    let servers = servers(&cluster);
    assert_eq!(get(&servers).await, Ok(Some("0".into())));
    assert!(!cluster.is_suspected());
    for (error, rest, is_suspected) in [
        ("ERR wrong", "wrong", false),
        ("NOPERM User has no permissions to run the 'get' command", "command", false),
        ("READONLY You can't write against a read only replica.", "replica.", true),
        ("LOADING Redis is loading", "loading", true),
    ] {
        redirections.set(0, error);
        let (_, text) = unavailable(get(&servers).await);
        assert!(text.ends_with(rest), "{text}");
        assert_eq!(cluster.is_suspected(), is_suspected, "{error}");
        let permitted = servers.run_if_permitted::<String>("k", redis::cmd("GET").arg("k")).await;
        assert_eq!(permitted.is_ok_and(|value| value.is_none()), error.starts_with("NOPERM"), "{error}");
        assert_eq!(cluster.is_suspected(), is_suspected, "{error}");
    }
    members.peers[0].freeze();
    let hasty = Servers::of_cluster(cluster.clone(), Duration::from_millis(300));
    assert_eq!(unavailable(get(&hasty).await).0, NO_ANSWER);
    assert!(cluster.is_suspected());
}

#[tokio::test]
async fn a_call_that_waits_asks_every_second_whether_another_server_is_the_primary() {
    let (members, _) = Redirections::start::<4>().await;
    let cluster = members.cluster();
    let servers = servers(&cluster);
    assert_eq!(get(&servers).await, Ok(Some("0".into())));
    until("all are asked", || members.asked() == [1; 4]).await;
    members.peers[0].freeze();
    let begun = Instant::now();
    let waiting = getting(&servers);
    until("they are asked", || members.asked()[1..] == [2; 3]).await;
    assert!(begun.elapsed() >= Duration::from_secs(1), "{:?}", begun.elapsed());
    members.name(1);
    let (kind, text) = unavailable(waiting.await.unwrap());
    assert!(kind == NO_ANSWER && text.contains("another server became the primary"), "{text}");
    assert!(begun.elapsed() >= 2 * Duration::from_secs(1), "{:?}", begun.elapsed());
    assert_eq!(members.asked()[1], 3);
    assert_eq!(get(&servers).await, Ok(Some("1".into())));
}
