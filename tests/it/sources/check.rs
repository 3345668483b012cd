//! `punctual check` of sources that need no Redis to be asked.

use crate::support::command::Workplace;

/// With the embedded Redis, which runs only while `serve` does.
fn workplace(source: &str) -> Workplace {
    Workplace::with(&format!(
        "redis: {{ url: embedded }}\nsinks: {{ jobs: {{ type: redis_list, key: jobs }} }}\n\
         routes: {{ jobs: {{ sink: jobs }} }}\nsources: {{ in: {{ route: jobs, {source} }} }}\n"
    ))
}

#[tokio::test]
async fn brokers_are_asked_before_the_embedded_redis_runs_too() {
    for source in [
        "type: kafka, brokers: '127.0.0.1:1', topics: t, group_id: g",
        "type: rabbitmq, url: 'amqp://127.0.0.1:1', queue: q",
    ] {
        let asked = workplace(source).run(&["check", "--connect"]).await;
        assert_eq!(asked.code, Some(1), "{asked:?}");
        let row = asked.out.lines().find(|line| line.starts_with("sources.in")).expect("a row");
        assert!(row.contains("refused") && asked.out.contains("redis       ok"), "{asked:?}");
    }
}

#[tokio::test]
async fn what_librdkafka_does_not_know_is_refused_without_asking_anybody() {
    let source = "type: kafka, brokers: '127.0.0.1:1', topics: t, group_id: g, options: { fetch.min.byte: 1 }";
    let refused = workplace(source).run(&["check"]).await;
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(refused.error.contains("sources.in") && refused.error.contains("fetch.min.byte"), "{refused:?}");
}
