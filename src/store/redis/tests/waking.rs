//! Wake-ups: published by scripts, and passed on to the signals of a subscription.

use punctual_model::LinkFaults;

use super::{super::connection::Upstream, *};
use crate::store::WakeReason;

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
    running.abort();
}

#[tokio::test(start_paused = true)]
async fn a_lost_subscription_is_known_and_made_again() {
    let redis = Simulated::start([route()]).await;
    let listener = listener(&redis);
    let subscriptions = listener.subscriptions();
    let signal = listener.signal(simulated::PREFIX, &partition());
    let running = run(&listener);
    sleep(Duration::from_millis(10)).await;
    reason(&signal).await;
    redis.links.set_faults(LinkFaults { down: true, ..LinkFaults::default() });
    sleep(Duration::from_secs(10)).await;
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
