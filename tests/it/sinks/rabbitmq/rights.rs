//! Rights of the sink's user.

use crate::support::{RabbitMq, command::Workplace};

/// RabbitMQ answers a passive declare for any user before 4.3, and the default exchange cannot be declared at all.
#[tokio::test]
async fn check_reports_missing_write_permission_and_publishes_nothing() {
    let server = RabbitMq::shared().await;
    server.declare("writable", "").await;
    for (user, write) in [("mute", "^$"), ("writer", "^(writable|amq\\.default)$")] {
        server.create_user(user, "secret").await;
        // From 4.3 on a passive declare needs some right.
        server.permit(user, "^$", write, "^writable$").await;
    }
    for (exchange, name) in [("writable", "writable"), ("''", "amq.default")] {
        for (user, allowed) in [("mute", false), ("writer", true)] {
            let url = format!("amqp://{user}:secret@127.0.0.1:{}/%2f", server.port());
            let workplace = Workplace::with(&format!(
                "redis: {{ url: embedded }}\nsinks: {{ mq: {{ type: rabbitmq, url: '{url}', exchange: {exchange} }} }}\n"
            ));
            let ended = workplace.run(&["--json", "check", "--connect"]).await;
            let refused =
                ended.out.contains(&format!("access to exchange '{name}' in vhost '/' refused for user 'mute'"));
            assert_eq!((ended.code, refused), (Some(i32::from(!allowed)), !allowed), "{user}, {name}: {ended:?}");
        }
    }
    assert_eq!(server.depth("writable").await, Some(0));
}
