//! `demo`.

use std::time::Duration;

use tokio::time::{Instant, timeout};

use crate::support::command::{self, Workplace};

#[tokio::test]
async fn the_demo_shows_ten_deliveries_and_leaves_nothing() {
    let temporary = tempfile::tempdir().unwrap();
    let environment = vec![
        ("TMPDIR".to_owned(), temporary.path().to_string_lossy().into_owned()),
        // It uses no settings of the user.
        ("PUNCTUAL__REDIS__URL".to_owned(), "redis://127.0.0.1:1".to_owned()),
    ];
    let started = Instant::now();
    let run = command::run(temporary.path(), &environment, &["demo"], b"");
    let ended = timeout(Duration::from_secs(20), run).await.expect("it ends");
    assert_eq!((ended.code, &*ended.error), (Some(0), ""), "{ended:?}");
    println!("demo: {:.1?}", started.elapsed());
    for n in 1..=10 {
        let line = ended.out.lines().find(|line| line.starts_with(&format!("http  demo-{n} ")));
        assert!(line.is_some_and(|line| line.contains(" ms  {\"n\":")), "{n}: {}", ended.out);
    }
    assert!(
        ended.out.contains("10 of 10 messages arrived by HTTP") && ended.out.ends_with("stopped\n"),
        "{}",
        ended.out
    );
    assert_eq!(temporary.path().read_dir().unwrap().count(), 0, "its directory is deleted");
}

#[tokio::test]
async fn without_a_redis_server_the_demo_says_what_to_install() {
    let environment = vec![("PATH".to_owned(), "/nonexistent".to_owned())];
    let directory = tempfile::tempdir().unwrap();
    let ended = command::run(directory.path(), &environment, &["demo", "--once"], b"").await;
    assert!(ended.code == Some(1) && ended.error.contains("install"), "{ended:?}");
    assert_eq!(Workplace::with("").run(&["demo", "--twice"]).await.code, Some(2));
}
