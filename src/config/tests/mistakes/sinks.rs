//! Mistakes in sinks.

/// A file, and the one report it must lead to.
pub const SINK_MISTAKES: &[(&str, &str)] = &[
    ("sinks:\n  a:", "1.yaml:2:3: sinks.a: must be a mapping with a `type`"),
    ("sinks: {a: {url: 'http://b'}}", "1.yaml:1:9: sinks.a.type: is missing: one of http, kafka, redis_list, rabbitmq"),
    (
        "sinks: {a: {type: htp}}",
        "1.yaml:1:13: sinks.a.type: `htp` is unknown: did you mean `http`? known: http, kafka, redis_list, rabbitmq",
    ),
    ("sinks: {a: {type: http}}", "1.yaml:1:9: sinks.a.url: is missing"),
    ("sinks: {a: {type: redis_list}}", "1.yaml:1:9: sinks.a.key: is missing"),
    ("sinks: {a: {type: http, url: 'http://b', key: c}}", "1.yaml:1:42: sinks.a.key: `key` is unknown: "),
    ("sinks: {a: {type: http, url: b}}", "1.yaml:1:25: sinks.a.url: is not a URL such as https://"),
    ("sinks: {a: {type: http, url: 'ftp://b'}}", "1.yaml:1:25: sinks.a.url: has the scheme `ftp`; known: http, https"),
    ("sinks: {a: {type: http, url: 'http://b', timeout: 2h}}", "1.yaml:1:42: sinks.a.timeout: `2h` is not within"),
    (
        "sinks: {a: {type: http, url: 'http://b', signing_secrets: [whsec_c2VjcmV0]}}",
        "1.yaml:1:60: sinks.a.signing_secrets.0: has 6 bytes, Standard Webhooks asks for at least 24",
    ),
    (
        "sinks: {a: {type: http, url: 'http://b', headers: {'x y': c}}}",
        "1.yaml:1:52: sinks.a.headers.x y: `x y` is not a header name",
    ),
    (
        "sinks: {a: {type: http, url: 'http://b', headers: {Host: c}}}",
        "1.yaml:1:52: sinks.a.headers.Host: is a header that punctual or HTTP itself sets",
    ),
    (
        "sinks: {a: {type: http, url: 'http://b', headers: {x-A: c, x-a: d}}}",
        "1.yaml:1:60: sinks.a.headers.x-a: comes twice: header names have no case, and",
    ),
    (
        "sinks: {a: {type: http, url: 'http://b', headers: {X-A: c, X_a: d}}}",
        "1.yaml:1:60: sinks.a.headers.X_a: comes twice: header names have no case, and receivers may take `_` for `-`",
    ),
    ("sinks: {a b: {type: redis_list, key: c}}", "1.yaml:1:9: sinks.a b: `a b` is not a name: 1 to 64 of "),
    (
        "sinks: {a: {type: redis_list, key: '{{punctual:r:0/1}}:dead'}}",
        "1.yaml:1:31: sinks.a.key: `{punctual:r:0/1}:dead` is among punctual's own keys",
    ),
    ("sinks: {a: {type: redis_list, key: ''}}", "1.yaml:1:31: sinks.a.key: is empty"),
    (
        "sinks: {a: {type: redis_list, key: '{{punctual:r:{key}', allow: ['**'], url: 'redis://b'}}",
        "1.yaml:1:31: sinks.a.key: `{punctual:r:x` is among punctual's own keys",
    ),
    (
        "sinks: {a: {type: redis_list, key: '{jobs}'}}",
        "1.yaml:1:31: sinks.a.key: `{jobs}` is no placeholder; known: {key}, {route}, {header:NAME}; a brace that is \
         meant as such is doubled, `{{jobs}}` for `{jobs}`",
    ),
    ("sinks: {a: {type: redis_list, key: '{key'}}", "1.yaml:1:31: sinks.a.key: has a single `{`; known: {key}, "),
    (
        "sinks: {a: {type: redis_list, key: '{header:Host}', allow: ['*']}}",
        "1.yaml:1:31: sinks.a.key: header `Host` is reserved",
    ),
    (
        "sinks: {a: {type: redis_list, key: 'jobs:{key}'}}",
        "1.yaml:1:9: sinks.a.allow: is missing: patterns of what `key` may become, such as `*`",
    ),
    (
        "sinks: {a: {type: redis_list, key: jobs, allow: [jobs]}}",
        "1.yaml:1:42: sinks.a.allow: does nothing: `key` has no placeholders",
    ),
    (
        "sinks: {a: {type: redis_list, key: 'jobs:{key}', allow: ['jobs:*', 'job:*']}}",
        "1.yaml:1:68: sinks.a.allow.1: `job:*` matches nothing that `key` can become",
    ),
    ("sinks: {a: {type: redis_list, key: '{key}', allow: ['']}}", "1.yaml:1:53: sinks.a.allow.0: is empty"),
    (
        "sinks: {a: {type: http, url: 'http://b/{key}'}}",
        "1.yaml:1:9: sinks.a.allow: is missing: patterns of what `url` may become, such as `/**`",
    ),
    (
        "sinks: {a: {type: http, url: 'http://b/{key}', allow: ['http://b/*']}}",
        "1.yaml:1:56: sinks.a.allow.0: `http://b/*` matches nothing that `url` can become",
    ),
    (
        "sinks: {a: {type: http, url: 'http://b/', allow_slashes: true}}",
        "1.yaml:1:43: sinks.a.allow_slashes: does nothing: `url` has no placeholders",
    ),
    (
        "sinks: {a: {type: http, url: 'http://{key}/', allow: ['**']}}",
        "1.yaml:1:25: sinks.a.url: may have placeholders in its path and query only",
    ),
    (
        "sinks: {a: {type: http, url: 'http://b/{hunter2}', allow: ['**']}}",
        "1.yaml:1:25: sinks.a.url: has a brace that is no placeholder; known: {key}, {route}, {header:NAME}; ",
    ),
    ("sinks: {a: {type: redis_list, key: b, username: c}}", "1.yaml:1:39: sinks.a.username: needs an own `url`"),
    (
        "sinks: {a: {type: redis_list, key: b, url: embedded}}",
        "1.yaml:1:39: sinks.a.url: is not a URL such as redis://",
    ),
    (
        "redis: {cluster: {urls: ['redis://a:1']}}\nsinks: {a: {type: redis_list, key: b, url: embedded}}",
        "1.yaml:2:39: sinks.a.url: is not a URL such as redis://",
    ),
    ("sinks: {a: {type: kafka, topic: b}}", "1.yaml:1:9: sinks.a.brokers: is missing"),
    ("sinks: {a: {type: kafka, brokers: 'b:1'}}", "1.yaml:1:9: sinks.a.topic: is missing"),
    (
        "sinks: {a: {type: kafka, topic: b, brokers: [c]}}",
        "1.yaml:1:46: sinks.a.brokers.0: `c` is not a host and port such as localhost:9092",
    ),
    (
        "sinks: {a: {type: kafka, topic: b, brokers: ['c:1', 'http://d:1']}}",
        "1.yaml:1:53: sinks.a.brokers.1: `http://d:1` is not a host and port",
    ),
    (
        "sinks: {a: {type: kafka, brokers: 'b:1', topic: 'c d'}}",
        "1.yaml:1:42: sinks.a.topic: `c d` is not 1 to 249 of A-Za-z0-9._-",
    ),
    (
        "sinks: {a: {type: kafka, brokers: 'b:1', topic: 'due.{key}'}}",
        "1.yaml:1:9: sinks.a.allow: is missing: patterns of what `topic` may become, such as `*`",
    ),
    (
        "sinks: {a: {type: kafka, brokers: 'b:1', topic: 'due.{key}', allow: ['due:*']}}",
        "1.yaml:1:70: sinks.a.allow.0: `due:*` matches nothing that `topic` can become",
    ),
    (
        "sinks: {a: {type: kafka, topic: b, brokers: 'c:1', options: {acks: 1}}}",
        "1.yaml:1:62: sinks.a.options.acks: cannot be set: every in-sync replica must confirm",
    ),
    (
        "sinks: {a: {type: kafka, topic: b, brokers: 'c:1', options: {linger: 1}}}",
        "1.yaml:1:62: sinks.a.options.linger: `linger` is no property of librdkafka",
    ),
    (
        "sinks: {a: {type: kafka, topic: b, brokers: 'c:1', options: {compression.type: zip}}}",
        "1.yaml:1:62: sinks.a.options.compression.type: Invalid value \"zip\" for configuration property",
    ),
    (
        "sinks: {a: {type: kafka, topic: b, brokers: 'c:1', options: {linger.ms: [1]}}}",
        "1.yaml:1:62: sinks.a.options.linger.ms: must be text or a number, not a list",
    ),
    (
        "sinks: {a: {type: kafka, topic: b, brokers: 'c:1', sasl: {password: d}}}",
        "1.yaml:1:59: sinks.a.sasl.password: needs `username` too",
    ),
    (
        "sinks: {a: {type: kafka, topic: b, brokers: 'c:1', sasl: {username: d}, options: {security.protocol: SSL}}}",
        "1.yaml:1:59: sinks.a.sasl.username: needs a `security.protocol` with sasl in it",
    ),
    (
        "sinks: {a: {type: kafka, topic: b, brokers: 'c:1', sasl: {username: d, password: e}}}",
        "1.yaml:1:59: sinks.a.sasl.username: would leave without TLS, with its password: set `tls.ca_file` or, in `options`, \
         `security.protocol: sasl_ssl`; `sasl_plaintext` there means it",
    ),
    (
        "sinks: {a: {type: kafka, topic: b, brokers: 'c:1', tls: {key_file: /etc/hostname}}}",
        "1.yaml:1:58: sinks.a.tls.key_file: needs `cert_file` too",
    ),
    (
        "sinks: {a: {type: kafka, topic: b, brokers: 'c:1', sasl: {mechanism: SCRAM}}}",
        "1.yaml:1:59: sinks.a.sasl.mechanism: `SCRAM` is unknown: known: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512",
    ),
    ("sinks: {a: {type: rabbitmq, url: 'amqp://b'}}", "1.yaml:1:9: sinks.a.exchange: is missing"),
    ("sinks: {a: {type: rabbitmq, exchange: b}}", "1.yaml:1:9: sinks.a.url: is missing"),
    (
        "sinks: {a: {type: rabbitmq, exchange: b, url: 'http://c'}}",
        "1.yaml:1:42: sinks.a.url: has the scheme `http`; known: amqp, amqps",
    ),
    (
        "sinks: {a: {type: rabbitmq, exchange: b, url: 'amqp://c/'}}",
        "1.yaml:1:42: sinks.a.url: names the empty virtual host; the default one is `/%2f`",
    ),
    (
        "sinks: {a: {type: rabbitmq, exchange: b, url: 'amqp://c/d/e'}}",
        "1.yaml:1:42: sinks.a.url: has a `/` in its virtual host",
    ),
    (
        "sinks: {a: {type: rabbitmq, exchange: b, url: 'amqp://c?frame_max=1'}}",
        "1.yaml:1:42: sinks.a.url: has a parameter other than heartbeat, auth_mechanism",
    ),
    (
        "sinks: {a: {type: rabbitmq, exchange: b, url: 'amqp://c', tls: {ca_file: /etc/hostname}}}",
        "1.yaml:1:65: sinks.a.tls.ca_file: needs a URL with TLS: ",
    ),
    (
        "sinks: {a: {type: rabbitmq, exchange: b, url: 'amqp://c', routing_key: '{key}.{route}'}}",
        "1.yaml:1:9: sinks.a.allow: is missing: patterns of what `routing_key` may become, such as `*`",
    ),
    (
        "sinks: {a: {type: rabbitmq, exchange: 'b{key}', url: 'amqp://c', allow: ['b*']}}",
        "1.yaml:1:74: sinks.a.allow.0: `b*` matches nothing that `exchange/routing_key` can become",
    ),
    (
        "sinks: {a: {type: rabbitmq, exchange: 'b/{key}', url: 'amqp://c', allow: ['**']}}",
        "1.yaml:1:29: sinks.a.exchange: must not have a `/` beside a placeholder: `allow` splits there",
    ),
    (
        "sinks: {a: {type: rabbitmq, exchange: b, url: 'amqp://c', routing_key: \"d\\n\"}}",
        "1.yaml:1:59: sinks.a.routing_key: `d\\n` has a control character",
    ),
    (
        "sink_defaults: {http: 5}\nsinks: {a: {type: http, url: 'http://b'}}",
        "1.yaml:1:17: sink_defaults.http: must be a mapping, not a number",
    ),
];
