//! Wake-ups: published by scripts, and passed on to the signals of a subscription.

use punctual_model::LinkFaults;

use super::{super::connection::Upstream, *};
use crate::{log_lines::LogLines, store::WakeReason};

/// The reason of the notification that a signal has now.
async fn reason(signal: &WakeSignal) -> Option<WakeReason> {
    // Messages arrive within the same moment of the paused clock.
    tokio::time::timeout(Duration::from_millis(1), signal.notified()).await.ok()
}

fn listener(redis: &Simulated) -> Arc<WakeListener> {
    let upstream = Arc::new(Upstream::from(redis.links.clone()));
    Arc::new(WakeListener::new(connection::Topology::Single(upstream)))
}

fn run(listener: &Arc<WakeListener>) -> tokio::task::JoinHandle<()> {
    let listener = listener.clone();
    tokio::spawn(async move { listener.run().await })
}

#[tokio::test(start_paused = true)]
async fn a_signal_hears_of_its_partition_until_it_is_forgotten() {
    let redis = Simulated::start([route()]).await;
    let listener = listener(&redis);
    let subscriptions = listener.subscriptions();
    let (one, two) = (listener.signal(simulated::PREFIX, &partition()), Arc::<WakeSignal>::default());
    listener.also_notify(simulated::PREFIX, &partition(), &two);
    let running = run(&listener);
    sleep(Duration::from_millis(10)).await;
    assert!(one.is_listening() && two.is_listening() && *subscriptions.borrow() == 1);
    assert_eq!(
        (reason(&one).await, reason(&two).await),
        (Some(WakeReason::Subscription), Some(WakeReason::Subscription))
    );
    redis.schedule(&["a"]).await;
    assert_eq!(
        (reason(&one).await, reason(&two).await),
        (Some(WakeReason::HeadEarlier), Some(WakeReason::HeadEarlier))
    );
    redis.store.wake_all(&partition()).await.unwrap();
    assert_eq!(reason(&one).await, Some(WakeReason::Overdue));
    reason(&two).await;

    listener.forget(std::slice::from_ref(&one));
    sleep(Duration::from_millis(10)).await;
    redis.store.wake_all(&partition()).await.unwrap();
    assert_eq!((reason(&one).await, reason(&two).await), (None, Some(WakeReason::Overdue)));
    running.abort();
}

#[tokio::test(start_paused = true)]
async fn a_source_hears_of_its_channels_until_it_is_forgotten() {
    let redis = Simulated::start([route()]).await;
    let listener = listener(&redis);
    let own = listener.signal(simulated::PREFIX, &partition());
    let source = Arc::<WakeSignal>::default();
    listener.notify_on(vec!["one".to_owned(), "two".to_owned()], &source);
    let running = run(&listener);
    sleep(Duration::from_millis(10)).await;
    assert!(source.is_listening());
    reason(&source).await;
    reason(&own).await;
    for channel in ["one", "two"] {
        redis.execute(&["PUBLISH", channel, "zadd"]);
        assert_eq!((reason(&source).await, reason(&own).await), (Some(WakeReason::HeadEarlier), None), "{channel}");
    }
    redis.execute(&["PUBLISH", "three", "zadd"]);
    assert_eq!(reason(&source).await, None);
    listener.forget_source(&[&source]);
    sleep(Duration::from_millis(10)).await;
    redis.execute(&["PUBLISH", "one", "zadd"]);
    assert_eq!(reason(&source).await, None);
    // Added while it runs.
    listener.notify_on(vec!["three".to_owned()], &source);
    sleep(Duration::from_millis(10)).await;
    reason(&source).await;
    redis.execute(&["PUBLISH", "three", "zadd"]);
    assert_eq!(reason(&source).await, Some(WakeReason::HeadEarlier));
    let added = Arc::<WakeSignal>::default();
    listener.notify_on(vec!["four".to_owned()], &added);
    assert_eq!((reason(&added).await, added.is_listening()), (Some(WakeReason::Subscription), true));
    running.abort();
}

#[tokio::test(start_paused = true)]
async fn a_lost_subscription_is_known_and_made_again() {
    let redis = Simulated::start([route()]).await;
    let listener = listener(&redis);
    let subscriptions = listener.subscriptions();
    let signal = listener.signal(simulated::PREFIX, &partition());
    let (log, _collecting) = LogLines::collect();
    let running = run(&listener);
    sleep(Duration::from_millis(10)).await;
    reason(&signal).await;
    redis.links.set_faults(LinkFaults { down: true, ..LinkFaults::default() });
    sleep(Duration::from_secs(10)).await;
    let lines = log.take();
    assert!(matches!(&lines[..], [line] if line.contains("wake-ups do not arrive")), "once: {lines:?}");
    assert!(!signal.is_listening());
    assert_eq!(reason(&signal).await, Some(WakeReason::Subscription));
    assert_eq!(reason(&signal).await, None, "once");
    redis.links.set_faults(LinkFaults::default());
    sleep(Duration::from_secs(1)).await;
    assert!(signal.is_listening() && *subscriptions.borrow() == 2);
    assert_eq!(reason(&signal).await, Some(WakeReason::Subscription));
    running.abort();
}

#[tokio::test(start_paused = true)]
async fn a_user_without_the_right_to_publish_is_known() {
    let redis = Simulated::start([route()]).await;
    assert_eq!(redis.store.may_wake().await, Ok(true));
    redis.server.reply_with(|command| {
        (command[0] == "PUBLISH").then(|| Reply::error("NOPERM no permissions to access one of the channels"))
    });
    assert_eq!(redis.store.may_wake().await, Ok(false));
    assert_eq!(redis.store.wake_all(&partition()).await, Ok(()));
    redis.server.reply_with(|command| (command[0] == "PUBLISH").then(|| Reply::error("LOADING wait")));
    assert!(redis.store.may_wake().await.is_err());
    // Without a route there is nothing to wake.
    assert_eq!(redis.store.serving([]).may_wake().await, Ok(true));
}

#[tokio::test(start_paused = true)]
async fn a_subscription_without_an_answer_is_logged_with_the_time_that_was_waited() {
    let redis = Simulated::start([route()]).await;
    let listener = listener(&redis);
    listener.signal(simulated::PREFIX, &partition());
    let (log, _collecting) = LogLines::collect();
    let running = run(&listener);
    sleep(Duration::from_millis(10)).await;
    assert_eq!(log.take(), [""; 0]);
    redis.links.set_faults(LinkFaults { latency: Duration::from_hours(1000), ..LinkFaults::default() });
    listener.signal(simulated::PREFIX, &Partition { count: 2, ..partition() });
    sleep(Duration::from_secs(3)).await;
    let lines = log.take();
    assert!(matches!(&lines[..], [line] if line.contains("error=\"no answer in 2s\"")), "{lines:?}");
    running.abort();
}

#[tokio::test(start_paused = true)]
async fn refused_channels_of_a_source_are_logged_once_and_do_not_affect_partitions() {
    let redis = Simulated::start([route()]).await;
    redis.server.reply_with(|command| {
        let denied = || Reply::error("NOPERM no permissions to access one of the channels");
        (command[0] == "SUBSCRIBE" && command[1] == "theirs").then(denied)
    });
    let listener = listener(&redis);
    let (own, source) = (listener.signal(simulated::PREFIX, &partition()), Arc::<WakeSignal>::default());
    listener.notify_on(vec!["theirs".to_owned()], &source);
    let (log, _collecting) = LogLines::collect();
    let running = run(&listener);
    sleep(Duration::from_millis(10)).await;
    assert!(own.is_listening() && !source.is_listening());
    let lines = log.take();
    assert!(matches!(&lines[..], [line] if line.contains("they are polled every `poll`")), "{lines:?}");
    // Another subscription, which is refused again.
    redis.links.end_all();
    sleep(Duration::from_secs(1)).await;
    assert!(own.is_listening() && !source.is_listening());
    let lines = log.take();
    assert!(matches!(&lines[..], [line] if line.contains("the connection was lost")), "{lines:?}");
    running.abort();
}

#[tokio::test(start_paused = true)]
async fn a_subscription_of_few_sleepers_is_checked_more_often() {
    let redis = Simulated::start([]).await;
    let pings = Arc::new(Mutex::new(0));
    let counted = pings.clone();
    redis.server.reply_with(move |command| {
        *counted.lock() += u32::from(command[0] == "PING");
        None
    });
    let listener = listener(&redis);
    let running = run(&listener);
    // Every 3 s or every 8 s.
    let is_often = async || {
        *pings.lock() = 0;
        sleep(Duration::from_secs(24)).await;
        let count = *pings.lock();
        assert!((2..=3).contains(&count) || (7..=8).contains(&count), "{count}");
        count > 3
    };
    let sleep_in = |index| listener.signal(simulated::PREFIX, &Partition { index, count: 9, ..partition() });
    // A source counts as two partitions.
    let source = Arc::<WakeSignal>::default();
    listener.notify_on(vec!["theirs".to_owned()], &source);
    sleep_in(0);
    assert!(is_often().await, "three");
    let fourth = sleep_in(1);
    assert!(!is_often().await, "four");
    listener.forget(&[fourth]);
    assert!(is_often().await, "three");
    let more = [2, 3, 4].map(sleep_in);
    listener.forget_source(&[&source]);
    assert!(!is_often().await, "four");
    listener.forget(&more[..1]);
    assert!(is_often().await, "three");
    running.abort();
}
