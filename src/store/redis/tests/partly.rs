//! A store on a cluster of three servers, of which some lose their data or do not answer.

use punctual_model::Keyspace;

use super::{
    super::{
        connection::{
            Servers,
            peers::{Members, map},
        },
        route::Registration,
        safety::SafetyError,
    },
    *,
};

/// Each server has some of them.
const PARTITIONS: u16 = 12;

async fn start() -> (Members, RedisStore) {
    let members = Members::start::<3>().await;
    members.spread();
    let servers = Servers::of_cluster(members.cluster(), Duration::from_secs(5));
    let store = RedisStore::new(servers, "p", [RouteSettings { partitions: PARTITIONS, ..route() }]);
    assert_eq!((store.is_registered().await, store.is_partly_open().await), (Ok(false), false));
    assert_eq!(registered(&store).await, [Registration::Created]);
    assert_eq!((store.is_registered().await, store.is_partly_open().await), (Ok(true), true));
    (members, store)
}

async fn registered(store: &RedisStore) -> Vec<Registration> {
    store.register().await.unwrap().routes.into_iter().map(|(_, registration)| registration).collect()
}

#[tokio::test]
async fn each_primary_is_asked_for_one_of_its_partitions() {
    let (members, store) = start().await;
    assert_eq!(store.one_on_each().count(), 3);
    for peer in &members.peers {
        let before = peer.count("GET");
        assert_eq!(store.is_registered().await, Ok(true));
        assert_eq!(peer.count("GET"), before + 1);
    }
    assert_eq!(registered(&store).await, [Registration::Kept]);
    let other = store.serving([RouteSettings { partitions: PARTITIONS + 1, ..route() }]);
    assert_eq!(other.is_registered().await, Ok(false));
    assert_eq!(store.serving([]).is_registered().await, Ok(true), "nothing to serve");
    assert!(!store.serving([]).is_partly_open().await);
}

#[tokio::test]
async fn a_server_that_lost_its_data_is_found_and_its_partitions_are_opened_again() {
    for place in 0..3 {
        let (members, store) = start().await;
        members.peers[place].server.keys(Keyspace::clear);
        assert_eq!((store.is_registered().await, store.is_partly_open().await), (Ok(false), false));
        let [again] = registered(&store).await[..] else { panic!("one route") };
        // One of the three also had the list of routes.
        assert!(matches!(again, Registration::Reopened | Registration::Created), "{again:?}");
        assert_eq!((store.is_registered().await, store.is_partly_open().await), (Ok(true), true));
    }
}

#[tokio::test]
async fn a_part_is_served_while_a_server_does_not_answer_unless_another_one_lost_its_data() {
    let (members, store) = start().await;
    members.peers[2].refuse().await;
    assert!(store.is_registered().await.is_err());
    assert!(store.is_partly_open().await);
    members.peers[0].server.keys(Keyspace::clear);
    assert!(!store.is_partly_open().await);
    for place in 0..2 {
        members.peers[place].refuse().await;
    }
    assert!(!store.is_partly_open().await, "none answers");
    assert!(!Simulated::start([route()]).await.store.is_partly_open().await, "not a cluster");
}

#[tokio::test]
async fn a_lost_list_of_routes_is_noticed_while_the_partitions_are_open() {
    let (members, store) = start().await;
    let delete = ["DEL", "p:routes"].map(|word| word.as_bytes().to_vec());
    let deleted = members.peers.iter().filter(|peer| peer.server.execute(&delete) == Reply::Int(1)).count();
    assert_eq!((deleted, store.is_partly_open().await), (1, true));
    assert_eq!(store.is_registered().await, Ok(false));
}

#[tokio::test]
async fn a_server_that_accepts_no_writes_has_no_open_partition() {
    let (members, store) = start().await;
    let named = members.named[1].clone();
    members.peers[1].replies(move |command| {
        if command.starts_with("HDEL") { Some(Reply::error("OOM command not allowed")) } else { map(&named, command) }
    });
    assert!(matches!(store.is_registered().await, Err(StoreError::Unavailable { kind: "oom", .. })));
}

/// Answers of one server to HELLO and INFO.
fn describe(members: &Members, place: usize, version: &'static str, used: u64) {
    let named = members.named[place].clone();
    members.peers[place].replies(move |command| match command {
        "HELLO" => {
            let facts = [["version", version], ["mode", "cluster"], ["role", "master"]];
            Some(Reply::Array(facts.into_iter().flatten().map(Reply::bulk).collect()))
        }
        "INFO memory" => {
            Some(Reply::bulk(format!("used_memory:{used}\r\nmaxmemory:1000\r\nmaxmemory_policy:noeviction\r\n")))
        }
        _ => map(&named, command),
    });
}

#[tokio::test]
async fn the_memory_of_a_cluster_is_that_of_its_fullest_server() {
    for (used, fullest) in [([100, 900, 500], 900), ([900, 100, 500], 900), ([1, 2, 3], 3)] {
        let (members, store) = start().await;
        for (place, used) in used.into_iter().enumerate() {
            describe(&members, place, "7.0.15", used);
        }
        let memory = store.check_safety(false).await.unwrap().memory.unwrap();
        assert_eq!((memory.used, memory.max), (fullest, Some(1000)));
    }
}

#[tokio::test]
async fn a_server_that_must_not_be_used_matters_more_than_one_that_is_down() {
    // The order in which they are asked is that of their ports.
    for old in 0..3 {
        let (members, store) = start().await;
        for place in 0..3 {
            describe(&members, place, if place == old { "6.0.20" } else { "7.0.15" }, 1);
        }
        let too_old = Err(SafetyError::TooOld { found: "6.0.20".into() });
        assert_eq!(store.check_safety(false).await, too_old);
        for place in (0..3).filter(|place| *place != old) {
            members.peers[place].refuse().await;
            assert_eq!(store.check_safety(false).await, too_old);
        }
        describe(&members, old, "7.0.15", 1);
        assert!(matches!(store.check_safety(false).await, Err(SafetyError::Store(_))));
    }
}

#[tokio::test]
async fn a_single_server_is_distinguished_from_a_cluster_that_does_not_answer() {
    let (members, store) = start().await;
    for (error, is_single) in
        [("ERR This instance has cluster support disabled", true), ("LOADING Redis is loading", false)]
    {
        for peer in &members.peers {
            peer.replies(move |command| (command == "CLUSTER SLOTS").then(|| Reply::error(error)));
        }
        let checked = store.check_safety(false).await;
        assert_eq!(checked == Err(SafetyError::NoCluster), is_single, "{checked:?}");
        assert!(checked.is_err(), "{error}");
    }
}
