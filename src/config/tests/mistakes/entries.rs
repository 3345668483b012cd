//! Mistakes in sources and routes.

/// Settings of a source with one mistake, and the report.
pub const SOURCE_MISTAKES: &[(&str, &str)] = &[
    ("type: sorted_set", "1.yaml:1:11: sources.a.key: is missing"),
    (
        "type: sorted_set, key: 'punctual:routes'",
        "1.yaml:1:33: sources.a.key: `punctual:routes` is one of punctual's own keys",
    ),
    (
        "type: sorted_set, unit: days, key: b",
        "1.yaml:1:33: sources.a.unit: `days` is unknown: known: seconds, milliseconds",
    ),
    ("type: sorted_set, url: 'redis://b', key: b", "1.yaml:1:33: sources.a.url: `url` is unknown"),
    ("type: sorted_set, payload: hash, key: b", "1.yaml:1:11: sources.a.hash_prefix: is missing"),
    ("type: sorted_set, payload: hash, hash_prefix: '', key: b", "1.yaml:1:48: sources.a.hash_prefix: is missing"),
    (
        "type: sorted_set, hash_prefix: c, key: b",
        "1.yaml:1:33: sources.a.hash_prefix: does nothing without `payload: hash`",
    ),
    (
        "type: sorted_set, payload: hash, hash_prefix: '{a', key: b",
        "1.yaml:1:48: sources.a.hash_prefix: must not begin with `{`: so do punctual's own keys",
    ),
    ("type: sorted_set, poll: 0s, key: b", "1.yaml:1:33: sources.a.poll: `0s` is not within 10ms .. 5m"),
    ("type: delayqueue", "1.yaml:1:11: sources.a.name: is missing"),
    (
        "type: delayqueue, name: b, hash_tag: true, prefix: punctual",
        "1.yaml:1:58: sources.a.prefix: with a hash tag, keys of this prefix are punctual's own",
    ),
    ("type: rabbitmq, url: 'amqp://b'", "1.yaml:1:11: sources.a.queue: is missing"),
    ("type: rabbitmq, url: 'http://b', queue: c", "1.yaml:1:31: sources.a.url: has the scheme `http`"),
    (
        "type: rabbitmq, prefetch: 0, url: 'amqp://b', queue: c",
        "1.yaml:1:31: sources.a.prefetch: `0` is not within 1 .. 65535",
    ),
    (
        "type: rabbitmq, backoff: {factor: 0}, url: 'amqp://b', queue: c",
        "1.yaml:1:41: sources.a.backoff.factor: 0 is not within 1 .. 100",
    ),
    (
        "type: kafka, sasl: {username: d}, brokers: 'b:1', topics: c, group_id: e",
        "1.yaml:1:35: sources.a.sasl.username: would leave without TLS, with its password",
    ),
    ("type: kafka, brokers: 'b:1', topics: c", "1.yaml:1:11: sources.a.group_id: is missing"),
    ("type: kafka, brokers: 'b:1', group_id: c", "1.yaml:1:11: sources.a.topics: is missing"),
    (
        "type: kafka, topics: 'b c', brokers: 'b:1', group_id: c",
        "1.yaml:1:28: sources.a.topics.0: `b c` is not 1 to 249",
    ),
    (
        "type: kafka, options: {enable.auto.commit: true}, topics: b, brokers: 'b:1', group_id: c",
        "1.yaml:1:38: sources.a.options.enable.auto.commit: cannot be set: an offset is committed once Redis has",
    ),
];

/// Settings of a route with one mistake, for a sink `s` of timeout 10s, and the report.
pub const ROUTE_MISTAKES: &[(&str, &str)] = &[
    ("partitions: 0", "partitions: `0` is not within 1 .. 256"),
    ("partitions: 70000", "partitions: `70000` is not within 1 .. 256"),
    ("partitions: -1", "partitions: `-1` is not a whole number"),
    ("partitions: 1.5", "partitions: `1.5` is not a whole number"),
    ("lease: 2h", "lease: `2h` is not within 1s .. 1h"),
    ("lease: 10s 499ms", "lease: `10s 499ms` is too short for the timeout of its sink, 10s, and 500ms"),
    ("max_in_flight: 100001", "max_in_flight: `100001` is not within 1 .. 100000"),
    (
        "max_in_flight_bytes: 1MiB",
        "max_in_flight_bytes: `1MiB` is too small for one message: server.max_payload and 128KiB, 1152KiB",
    ),
    ("retry: {max_attempts: 0}", "retry.max_attempts: `0` is not within 1 .. "),
    ("retry: {initial: 0s}", "retry.initial: must be at least 1ms"),
    ("retry: {factor: 0.5}", "retry.factor: 0.5 is not within 1 .. 100"),
    ("retry: {factor: .nan}", "retry.factor: `.nan` is not a number"),
    ("retry: {max: 1ms}", "retry.max: must not be shorter than `initial`"),
    ("retry: {jitter: 2}", "retry.jitter: 2 is not within 0 .. 1"),
    ("retry: {jitter: []}", "retry.jitter: must be a number, not a list"),
    ("remember: {for: 721h}", "remember.for: `30days 1h` is not within 0s .. 30days"),
    ("remember: {max: 0, for: 1s}", "remember.max: `0` is not within 1 .. 10000000"),
    ("remember: {max: 5}", "remember.for: is missing: without it `max` means nothing"),
    ("window: 5", "window: must be a mapping or a list of mappings, not a number"),
    ("window: []", "window: is an empty list"),
    ("window:\n      from: '08:00'", "window.to: is missing"),
    ("window:\n      from: '08:00'\n      to: '08:00'", "window: has no length: `from` and `to` are equal"),
    ("window:\n      from: '24:00'\n      to: '08:00'", "window: begins at 24:00: write `from: \"00:00\"` and the"),
    ("window:\n      from: '08:00'\n      to: '09:00'\n      days: []", "window: has no days"),
    ("window: {from: '8:00', to: '09:00'}", "window.from: `8:00` is not a time of day such as \"08:00\""),
    ("window: {time_zone: Etc/Unknown, from: '08:00', to: '09:00'}", "window.time_zone: `Etc/Unknown` is not the IANA"),
    ("window: {to: '24:01', from: '08:00'}", "window.to: `24:01` is not a time of day"),
    ("window: [{to: '09:60', from: '08:00'}]", "window.0.to: `09:60` is not a time of day"),
    ("window: {zone: UTC, from: '08:00', to: '09:00'}", "window.zone: `zone` is unknown: known: days, from, to, "),
    (
        "window: {time_zone: Europe/Berlni, from: '08:00', to: '09:00'}",
        "window.time_zone: `Europe/Berlni` is not the IANA name of a time zone: did you mean `Europe/Berlin`?",
    ),
    ("limits: {messages: 0}", "limits.messages: `0` is not within 1 .. 1000000000"),
    ("limits: {messages: 7}\n    partitions: 8", "limits.messages: `7` is not within 8 .. 1000000000"),
    (
        "limits: {bytes: 2MiB}\n    partitions: 2",
        "limits.bytes: `2MiB` is too small for one message in each partition: server.max_payload and 128KiB, 2304KiB",
    ),
    ("limits: {bytes: 0}", "limits.bytes: `0` is too small for one message in each partition"),
    ("limits: {delay: 0s}", "limits.delay: `0s` is not within 1ms .. "),
    ("limits: {count: 5}", "limits.count: `count` is unknown"),
    ("dead: {max_age: 59s}", "dead.max_age: `59s` is not within 1m .. "),
    ("dead: {max_count: 0}", "dead.max_count: `0` is not within 1 .. 1000000000"),
    ("dead: 5", "dead: must be a mapping, not a number"),
    ("retry: 3", "retry: must be a mapping, not a number"),
    ("sinks: s", "sinks: `sinks` is unknown: did you mean `sink`?"),
];
