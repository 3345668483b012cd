//! Links that are refused or replaced, and errors that are counted, on the paused clock.

use metrics_exporter_prometheus::PrometheusBuilder;
use punctual_model::{Links, Server};
use redis::ErrorKind;
use tokio::time::{advance, sleep};

use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn start() -> (Arc<Server>, Arc<Links>, Arc<Upstream>) {
    let server = Server::new(|| 0);
    let links = Links::new(&server, 1);
    (server, links.clone(), Arc::new(Upstream::from(links)))
}

/// The number of the link that answers.
async fn ping(connection: &Connection) -> Result<u64, StoreError> {
    connection.run_on_link::<String>(&redis::cmd("PING")).await.map(|(_, link)| link)
}

#[tokio::test(start_paused = true)]
async fn links_to_a_server_that_is_not_the_master_are_replaced() {
    let (_, _, upstream) = start();
    let connection = || Arc::new(Connection::to(upstream.clone(), SECOND));
    let (one, two, three) = (connection(), connection(), connection());
    assert_eq!(ping(&one).await, Ok(1));
    sleep(2 * SECOND).await;
    one.lost_master(Instant::now());
    assert_eq!(ping(&one).await, Ok(2));
    // The second one may still lead to the former master, which the first one cannot know.
    sleep(SECOND / 10).await;
    assert_eq!(ping(&two).await, Ok(1));
    sleep(SECOND / 10).await;
    assert_eq!(ping(&three).await, Ok(1));
    sleep(2 * SECOND).await;
    Servers::from(three.clone()).found_master(7).await;
    assert_eq!(ping(&two).await, Ok(1), "another link leads to a master");
    Servers::from(three.clone()).found_master(1).await;
    assert_eq!((ping(&two).await, ping(&three).await), (Ok(2), Ok(1)));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_refuses_links_is_tried_ten_times_a_second() {
    let (_, links, upstream) = start();
    let connection = Connection::to(upstream, SECOND);
    links.set_faults(LinkFaults { down: true, ..LinkFaults::default() });
    unavailable(ping(&connection).await);
    links.set_faults(LinkFaults::default());
    advance(Duration::from_millis(99)).await;
    unavailable(ping(&connection).await);
    advance(Duration::from_millis(1)).await;
    assert_eq!(ping(&connection).await, Ok(1));
}

#[tokio::test(start_paused = true)]
async fn errors_are_counted_by_kind_also_those_within_a_bundle() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let _recording = ::metrics::set_default_local_recorder(&recorder);
    let (server, _, upstream) = start();
    server.reply_with(|command| (command[0] == "GET").then(|| Reply::error("READONLY a replica")));
    let connection = Connection::to(upstream, SECOND);
    let count = |kind: &str| {
        let (page, begin) = (recorder.handle().render(), format!("punctual_redis_errors_total{{kind=\"{kind}\"}} "));
        page.lines().find_map(|line| line.strip_prefix(&begin)).map(str::to_owned)
    };
    assert_eq!((ping(&connection).await, count("readonly").as_deref()), (Ok(1), Some("0")));
    sleep(2 * SECOND).await;
    let (kind, _) = unavailable(connection.run::<String>(redis::cmd("GET").arg("k")).await);
    assert_eq!((kind, count("readonly").as_deref()), ("readonly", Some("1")));
    assert_eq!(ping(&connection).await, Ok(2), "another server may be the master");
    sleep(2 * SECOND).await;
    connection.failed(&classify_line("LOADING wait"), Instant::now());
    assert_eq!((count("loading").as_deref(), ping(&connection).await), (Some("1"), Ok(3)));
}

#[test]
fn a_link_that_broke_or_gave_a_wrong_answer_is_lost() {
    for (kind, is_lost) in [(ErrorKind::Io, true), (ErrorKind::Parse, true), (ErrorKind::UnexpectedReturnType, false)] {
        assert_eq!(CommandFailure::of(&RedisError::from((kind, "text"))).link_lost, is_lost, "{kind:?}");
    }
}
