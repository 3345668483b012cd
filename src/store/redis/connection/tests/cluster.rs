//! The map of a cluster: that of most servers, with redirections.

use super::*;

/// Answers that take up to 200 ms.
fn slow(peer: &Peer) {
    peer.links.set_faults(LinkFaults { latency: Duration::from_millis(200), ..LinkFaults::default() });
}

#[tokio::test]
async fn the_owner_is_that_which_more_than_half_of_the_servers_name_although_others_answer_first() {
    let members = Members::start::<5>().await;
    // Two are cut off with the first one.
    for place in 2..5 {
        *members.named[place].lock() = vec![members.address(4).clone()];
        slow(&members.peers[place]);
    }
    let cluster = members.cluster();
    assert_eq!(cluster.owner(7).await.as_deref(), Ok(members.address(4)));
    assert_eq!(cluster.map().primaries().len(), 1);
    let answers: Vec<_> = cluster.answers().await.iter().map(|map| map.as_ref().unwrap().owner(7).cloned()).collect();
    let [old, new] = [0, 4].map(|place| Some(Arc::new(members.address(place).clone())));
    assert_eq!(answers, [old.clone(), old, new.clone(), new.clone(), new]);
}

#[tokio::test]
async fn a_silent_server_is_waited_for_only_without_the_agreement_of_more_than_half() {
    let members = Members::start::<5>().await;
    members.peers[3].freeze();
    members.peers[4].freeze();
    let mut attempts = 0;
    let cluster = loop {
        let (cluster, begun) = (members.cluster(), Instant::now());
        assert_eq!(cluster.owner(7).await.as_deref(), Ok(members.address(0)));
        if begun.elapsed() < ANSWER_TIMEOUT {
            break cluster;
        }
        // On a busy machine, one of the others may be late.
        attempts += 1;
        assert!(attempts < 5, "{:?}", begun.elapsed());
    };

    // Three answer, and two of them agree: that is less than half of all.
    *members.named[0].lock() = vec![members.address(1).clone()];
    let begun = Instant::now();
    cluster.refresh(begun).await.unwrap();
    assert!(begun.elapsed() >= ANSWER_TIMEOUT, "{:?}", begun.elapsed());
    assert_eq!(cluster.map().owner(7).map(|one| &**one), Some(members.address(0)));
}

#[tokio::test]
async fn each_known_server_is_asked_once_in_a_round_and_rounds_are_100_ms_apart() {
    let members = Members::start::<3>().await;
    let cluster = members.cluster();
    let begun = Instant::now();
    cluster.refresh(begun).await.unwrap();
    cluster.refresh(begun).await.unwrap();
    // As soon as two of them agree, the answer of the third is not waited for.
    until("all are asked", || members.asked() == [1, 1, 1]).await;
    cluster.refresh(Instant::now()).await.unwrap();
    assert!(begun.elapsed() >= MIN_INTERVAL_OF_ROUNDS, "{:?}", begun.elapsed());
    until("all are asked again", || members.asked() == [2, 2, 2]).await;

    for peer in &members.peers {
        peer.refuse().await;
    }
    let seen = Instant::now();
    let error = cluster.refresh(seen).await.unwrap_err();
    assert_eq!(cluster.refresh(seen).await, Err(error), "that of the same round");
    assert_eq!(cluster.map().owner(7).map(|one| &**one), Some(members.address(0)), "the last map is kept");
}

/// As in the module: the least time between two rounds.
const MIN_INTERVAL_OF_ROUNDS: Duration = Duration::from_millis(100);

#[tokio::test]
async fn a_redirection_changes_one_slot_until_the_servers_are_asked() {
    let members = Members::start::<3>().await;
    let cluster = members.cluster();
    let [first, second] = [0, 1].map(|place| members.address(place));
    let owner = |slot| cluster.map().owner(slot).map(|one| (**one).clone());
    cluster.refresh(Instant::now()).await.unwrap();
    let mut maps = cluster.maps();
    maps.mark_unchanged();
    cluster.moved(7, second.clone());
    assert_eq!((owner(7), owner(8)), (Some(second.clone()), Some(first.clone())));
    assert!(maps.has_changed().unwrap());
    maps.mark_unchanged();
    cluster.moved(7, second.clone());
    assert!(!maps.has_changed().unwrap(), "that was known");
    cluster.refresh(Instant::now()).await.unwrap();
    assert_eq!(owner(7), Some(first.clone()));
}

#[tokio::test]
async fn a_suspicion_is_followed_by_questions_and_calls_to_a_former_primary_end() {
    let members = Members::start::<3>().await;
    let cluster = members.cluster();
    cluster.refresh(Instant::now()).await.unwrap();
    let following = tokio::spawn({
        let cluster = cluster.clone();
        async move { Topology::Cluster(cluster).follow().await }
    });
    let upstreams = [0, 1].map(|place| cluster.upstream(members.address(place)).unwrap());
    let made = Instant::now();
    assert!(!is_over(upstreams[0].deposed(made)), "no question without a suspicion");
    members.name(1);
    cluster.suspect();
    until("the map is new", || cluster.map().owner(7).is_some_and(|one| **one == *members.address(1))).await;
    assert!(is_over(upstreams[0].deposed(made)));
    assert!(!is_over(upstreams[1].deposed(made)));
    following.abort();
}
