//! All metrics: names, labels and descriptions.
//!
//! Handles that are used per message are made once (`RouteMetrics`, `SinkMetrics`); other metrics are looked up once
//! per batch. Label values come only from the configuration and from fixed sets. So every counter starts at 0 when its
//! subject is made, and `rate()` sees its first increment.

mod handles;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use metrics::{counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram};
use parking_lot::Mutex;

pub use self::handles::{RouteMetrics, SinkMetrics, SourceMetrics};
use crate::{message::DeadReason, time::wall_millis};

pub const LATENESS: &str = "punctual_delivery_lateness_seconds";
pub const SINK_SEND: &str = "punctual_sink_send_seconds";
pub const REDIS_SCRIPT: &str = "punctual_redis_script_seconds";
pub const API_SECONDS: &str = "punctual_api_request_seconds";

const SCHEDULED: &str = "punctual_messages_scheduled_total";
pub const DELIVERED: &str = "punctual_messages_delivered_total";
const RETRIED: &str = "punctual_messages_retried_total";
const DEAD: &str = "punctual_messages_dead_total";
const CANCELLED: &str = "punctual_messages_cancelled_total";
const REDRIVEN: &str = "punctual_messages_redriven_total";
const DEAD_EVICTED: &str = "punctual_dead_evicted_total";
const DEAD_FORWARDED: &str = "punctual_dead_forwarded_total";
const DEAD_UNFORWARDED: &str = "punctual_dead_unforwarded";
const HISTORY: &str = "punctual_history_entries";
const PURGED: &str = "punctual_messages_purged_total";
const RELEASED: &str = "punctual_messages_released_total";
pub const FAILURES: &str = "punctual_delivery_failures_total";
const LEASES_EXPIRED: &str = "punctual_leases_expired_total";
const LEASES_CUT: &str = "punctual_leases_cut_total";
const RESTORED: &str = "punctual_messages_restored_total";
const STALE: &str = "punctual_stale_settlements_total";
const PENDING: &str = "punctual_pending_messages";
const DUE: &str = "punctual_due_messages";
const UNACKED: &str = "punctual_unacked_messages";
const DEAD_GAUGE: &str = "punctual_dead_messages";
const IN_FLIGHT: &str = "punctual_in_flight_messages";
const NEXT_DUE: &str = "punctual_next_due_timestamp_seconds";
const OLDEST_OVERDUE: &str = "punctual_oldest_overdue_seconds";
const RETRYING: &str = "punctual_retrying_messages";
const PAUSED: &str = "punctual_route_paused";
const DUE_WITHIN: &str = "punctual_due_within_messages";
const STORED: &str = "punctual_stored_bytes";
const FLOW_WAITING: &str = "punctual_flow_waiting_messages";
const FLOW_KEYS: &str = "punctual_flow_keys";
pub const FLOW_WAIT: &str = "punctual_flow_wait_seconds";
const SCHEDULE_RUNS: &str = "punctual_schedule_runs_total";
const SCHEDULE_NEXT: &str = "punctual_schedule_next_timestamp_seconds";
const SCHEDULE_DELIVERED: &str = "punctual_schedule_last_delivered_timestamp_seconds";
const LIMIT_USED: &str = "punctual_limit_used_ratio";
const SINK_UP: &str = "punctual_sink_up";
const SINK_ATTEMPTS: &str = "punctual_sink_attempts_total";
const HTTP_RESPONSES: &str = "punctual_http_responses_total";
const REDIS_UP: &str = "punctual_redis_up";
const REDIS_MEMORY: &str = "punctual_redis_memory_bytes";
const REDIS_MAX_MEMORY: &str = "punctual_redis_max_memory_bytes";
const READY: &str = "punctual_ready";
const API_REQUESTS: &str = "punctual_api_requests_total";
const AUTH_FAILURES: &str = "punctual_auth_failures_total";
const LOG_LINES_DROPPED: &str = "punctual_log_lines_dropped_total";
const BREAKER: &str = "punctual_sink_breaker_state";
const DOMAINS_DOWN: &str = "punctual_sink_domains_down";
const RELOAD_SUCCESSFUL: &str = "punctual_config_last_reload_successful";
const RELOAD_TIME: &str = "punctual_config_last_reload_success_timestamp_seconds";
const CONFIG_DIGEST: &str = "punctual_config_digest";
const RESTART_REQUIRED: &str = "punctual_config_restart_required";
const BUILD_INFO: &str = "punctual_build_info";
const WAKEUPS: &str = "punctual_wakeups_total";
const WAKEUPS_DENIED: &str = "punctual_wakeups_denied_total";
const REDIS_ERRORS: &str = "punctual_redis_errors_total";
const SOURCE_TAKEN: &str = "punctual_source_taken_total";
const SOURCE_INVALID: &str = "punctual_source_invalid_total";
const SOURCE_CONFLICTS: &str = "punctual_source_conflicts_total";
const SOURCE_KNOWN: &str = "punctual_source_known_total";
const SOURCE_SKIPPED: &str = "punctual_source_skipped_total";
const SOURCE_NEAR_LIMIT: &str = "punctual_source_near_delivery_limit_total";
const SOURCE_RESETS: &str = "punctual_source_offset_resets_total";
const SOURCE_UP: &str = "punctual_source_up";
const SOURCE_DEPTH: &str = "punctual_source_depth_messages";
const SPANS_EXPORTED: &str = "punctual_spans_exported_total";
const SPANS_DROPPED: &str = "punctual_spans_dropped_total";

/// Upper bounds in seconds, from a millisecond to an hour.
pub const BUCKETS: [f64; 15] =
    [0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0, 600.0, 3600.0];

/// Registers the descriptions of the metrics. Call once, after the recorder is installed.
pub fn describe() {
    describe_counter!(SCHEDULED, "Messages accepted, by route and way in");
    describe_counter!(DELIVERED, "Messages confirmed by their sink");
    describe_counter!(RETRIED, "Failed attempts that led to a later one");
    describe_counter!(DEAD, "Messages given up, by reason");
    describe_counter!(CANCELLED, "Messages cancelled while pending");
    describe_counter!(REDRIVEN, "Dead messages sent on their way again");
    describe_counter!(PURGED, "Dead messages deleted");
    describe_counter!(
        DEAD_EVICTED,
        "Dead messages deleted by `dead.max_age` or `dead.max_count` of their route, by reason"
    );
    describe_counter!(DEAD_FORWARDED, "Dead messages forwarded to the route of `dead.forward`");
    describe_gauge!(HISTORY, "Ended messages that are kept");
    describe_gauge!(DEAD_UNFORWARDED, "Dead messages that are not forwarded yet");
    describe_counter!(RELEASED, "Claims given back unsent or undecided, nothing counted");
    describe_counter!(FAILURES, "Attempts that were not confirmed, by kind");
    describe_counter!(LEASES_EXPIRED, "Leases that ended unsettled: crashes");
    describe_counter!(LEASES_CUT, "Leases ended early: the clock of redis had stepped back behind their claim");
    describe_counter!(RESTORED, "Messages found in no set of Redis, and made pending again");
    describe_counter!(STALE, "Settlements refused because the claim was no longer current");
    describe_counter!(WAKEUPS, "Times a scheduler woke, by reason");
    describe_counter!(
        WAKEUPS_DENIED,
        "Connections to redis, one at each start and reconnect, whose user may not PUBLISH: wake-ups do not leave"
    );
    describe_counter!(REDIS_ERRORS, "Failed Redis commands, by kind");
    describe_counter!(SOURCE_TAKEN, "Messages that a source took and Redis has");
    describe_counter!(
        SOURCE_INVALID,
        "Messages that a source could not understand, or larger than the route's limit: they are dead letters"
    );
    describe_counter!(SOURCE_CONFLICTS, "Messages whose id was live with other content: they got another id");
    describe_counter!(SOURCE_KNOWN, "Messages that were taken before: live, or remembered, they changed nothing");
    describe_counter!(
        SOURCE_SKIPPED,
        "Messages that a source left out: overdue by more than `max_overdue`, or larger than 16 MiB"
    );
    describe_counter!(
        SOURCE_NEAR_LIMIT,
        "Deliveries of RabbitMQ that had come back ten times or more: a quorum queue drops them at its delivery limit"
    );
    describe_counter!(
        SOURCE_RESETS,
        "Partitions of Kafka with offsets that began again: the topic was deleted and created again, or its log was cut"
    );
    describe_gauge!(SOURCE_UP, "1 while a source takes messages; 0 while it cannot, or has not begun");
    describe_gauge!(
        SOURCE_DEPTH,
        "Messages that wait in a source's system. Kafka: in this instance's partitions, sum it. Others: take the maximum"
    );
    describe_histogram!(LATENESS, "Confirmation time minus the later of due time and acceptance, on Redis' clock");
    describe_histogram!(SINK_SEND, "Time from sending to the outcome of one message");
    describe_histogram!(REDIS_SCRIPT, "Time of one script call, round trip included");
    describe_gauge!(PENDING, "Messages waiting, the due ones included");
    describe_gauge!(DUE, "Messages waiting that are due");
    describe_gauge!(UNACKED, "Messages claimed by any instance");
    describe_gauge!(DEAD_GAUGE, "Dead messages kept");
    describe_gauge!(IN_FLIGHT, "Messages that this instance has claimed, without an outcome yet");
    describe_gauge!(NEXT_DUE, "Due time of the head of the queue, seconds since the epoch");
    describe_gauge!(OLDEST_OVERDUE, "How long the oldest message has been due, a retry since its own time");
    describe_gauge!(RETRYING, "Messages waiting or claimed that failed or crashed before");
    describe_gauge!(PAUSED, "1 while the route is paused, else 0");
    describe_gauge!(DUE_WITHIN, "Messages waiting that come due within the horizon, overdue ones included");
    describe_counter!(SCHEDULE_RUNS, "Occurrences of a schedule that ended on this instance, by result");
    describe_gauge!(SCHEDULE_NEXT, "Next occurrence of a schedule, as this instance planned or read it last");
    describe_gauge!(SCHEDULE_DELIVERED, "Latest delivery of an occurrence by this instance");
    describe_gauge!(FLOW_WAITING, "Due messages that wait for their flow; only of routes with flows");
    describe_gauge!(FLOW_KEYS, "Flows for which messages wait; only of routes with flows");
    describe_histogram!(FLOW_WAIT, "Time from the due time of a message to the time at which its flow let it leave");
    describe_gauge!(STORED, "Stored bodies of pending and in-flight messages");
    describe_gauge!(LIMIT_USED, "Used part of `limits.messages` and `limits.bytes`, of the fullest partition");
    describe_gauge!(SINK_UP, "1 while the breaker of the sink is closed, else 0");
    describe_counter!(SINK_ATTEMPTS, "Attempts of a sink, by outcome");
    describe_counter!(HTTP_RESPONSES, "Replies of HTTP endpoints, by status");
    describe_gauge!(REDIS_UP, "1 while Redis answers, else 0");
    describe_gauge!(
        REDIS_MEMORY,
        "Memory of Redis that counts for its maxmemory; of a cluster, of the fullest primary"
    );
    describe_gauge!(REDIS_MAX_MEMORY, "maxmemory of that server; absent when it has none");
    describe_gauge!(READY, "1 while messages are accepted and delivered, as /readyz says, else 0");
    describe_counter!(API_REQUESTS, "Calls of the API, by call and status");
    describe_histogram!(API_SECONDS, "Time of a call of the API, until the head of the reply");
    describe_counter!(AUTH_FAILURES, "Calls of the API without a known token");
    metrics::counter!(AUTH_FAILURES).increment(0);
    describe_counter!(
        LOG_LINES_DROPPED,
        "Lines of the log that were not written: no reader, a slow one, or a full disk"
    );
    counter!(LOG_LINES_DROPPED).increment(0);
    describe_counter!(SPANS_EXPORTED, "Spans that the collector accepted");
    describe_counter!(SPANS_DROPPED, "Spans that were lost, by reason: queue (full), export (failed), rejected");
    metrics_process::Collector::default().describe();
    describe_gauge!(BREAKER, "0 closed, 1 half-open, 2 open");
    describe_gauge!(DOMAINS_DOWN, "Failure domains that are down while the sink is up");
    describe_config();
    describe_gauge!(BUILD_INFO, "1, with the version as label");
    gauge!(BUILD_INFO, "version" => env!("CARGO_PKG_VERSION")).set(1.0);
}

fn describe_config() {
    describe_gauge!(RELOAD_SUCCESSFUL, "1 if the configuration was valid when it was read last, else 0");
    describe_gauge!(RELOAD_TIME, "Time at which a valid configuration was read last, seconds since the epoch");
    describe_gauge!(
        CONFIG_DIGEST,
        "Digest of the latest valid configuration as a number: equal on instances with equal settings"
    );
    describe_gauge!(
        RESTART_REQUIRED,
        "1 while settings that were read again take effect at the next start only, else 0"
    );
}

/// `depth`: `None` if unknown.
pub fn source(source: &str, kind: &'static str, is_running: bool, depth: Option<u64>) {
    gauge!(SOURCE_UP, "source" => source.to_owned()).set(u8::from(is_running));
    #[expect(clippy::cast_precision_loss, reason = "a gauge is a float")]
    gauge!(SOURCE_DEPTH, "source" => source.to_owned(), "type" => kind)
        .set(depth.map_or(f64::NAN, |depth| depth as f64));
}

/// Counts dead letters outside of the scheduler, which uses `RouteMetrics::dead`.
pub fn dead(route: &str, reason: DeadReason, count: u64) {
    counter!(DEAD, "route" => route.to_owned(), "reason" => reason.as_str()).increment(count);
}

pub fn leases_expired(route: &str, count: u64) {
    counter!(LEASES_EXPIRED, "route" => route.to_owned()).increment(count);
}

/// Starts the counters of a route at 0. `vias`: the values of the label `via`.
pub fn begin_queue(route: &str, vias: &[&str]) {
    for via in vias {
        scheduled(route, via, 0);
    }
    for name in [CANCELLED, REDRIVEN, PURGED] {
        counter!(name, "route" => route.to_owned()).increment(0);
    }
}

/// `via`: `api`, `dead`, or the name of a source.
pub fn scheduled(route: &str, via: &str, count: u64) {
    counter!(SCHEDULED, "route" => route.to_owned(), "via" => via.to_owned()).increment(count);
}

pub fn cancelled(route: &str, count: u64) {
    counter!(CANCELLED, "route" => route.to_owned()).increment(count);
}

pub fn redriven(route: &str, count: u64) {
    counter!(REDRIVEN, "route" => route.to_owned()).increment(count);
}

/// `reason`: age or count.
pub fn dead_evicted(route: &str, reason: &'static str, count: u64) {
    counter!(DEAD_EVICTED, "route" => route.to_owned(), "reason" => reason).increment(count);
}

pub fn dead_forwarded(route: &str, count: u64) {
    counter!(DEAD_FORWARDED, "route" => route.to_owned()).increment(count);
}

#[expect(clippy::cast_precision_loss, reason = "a gauge is a float")]
pub fn history_entries(route: &str, count: u64) {
    gauge!(HISTORY, "route" => route.to_owned()).set(count as f64);
}

#[expect(clippy::cast_precision_loss, reason = "a gauge is a float")]
pub fn dead_unforwarded(route: &str, count: u64) {
    gauge!(DEAD_UNFORWARDED, "route" => route.to_owned()).set(count as f64);
}

pub fn restored(route: &str, count: u64) {
    counter!(RESTORED, "route" => route.to_owned()).increment(count);
}

pub fn purged(route: &str, count: u64) {
    counter!(PURGED, "route" => route.to_owned()).increment(count);
}

/// Starts the error counters of these kinds at 0.
pub fn begin_redis_errors(kinds: impl IntoIterator<Item = &'static str>) {
    for kind in kinds {
        counter!(REDIS_ERRORS, "kind" => kind).increment(0);
    }
}

/// Called with each new connection of the keeper.
pub fn wakeups_denied(count: u64) {
    counter!(WAKEUPS_DENIED).increment(count);
}

pub fn redis_error(kind: &'static str) {
    counter!(REDIS_ERRORS, "kind" => kind).increment(1);
}

pub fn redis_script(script: &'static str, took: Duration) {
    histogram!(REDIS_SCRIPT, "script" => script).record(took.as_secs_f64());
}

/// The numbers of a route's queue at one scrape.
#[derive(Clone, Copy, Debug, Default)]
pub struct QueueGauges {
    pub pending: u64,
    pub due: u64,
    pub unacked: u64,
    pub dead: u64,
    /// Seconds since the epoch; `None` if no message is pending.
    pub next_due: Option<f64>,
    pub oldest_overdue: f64,
    pub retrying: u64,
    pub paused: bool,
    /// By horizon.
    pub due_within: [(&'static str, u64); 4],
    /// `None`: the route has no flows.
    pub waiting_for_flow: Option<u64>,
    pub waiting_flows: Option<u64>,
    pub stored_bytes: u64,
    /// By limit; `None` for limits that the route does not have.
    pub limits_used: [(&'static str, Option<f64>); 2],
}

#[expect(clippy::cast_precision_loss, reason = "a gauge is a float")]
pub fn queue(route: &str, gauges: QueueGauges) {
    let set = |name: &'static str, value: f64| gauge!(name, "route" => route.to_owned()).set(value);
    set(PENDING, gauges.pending as f64);
    set(DUE, gauges.due as f64);
    set(UNACKED, gauges.unacked as f64);
    set(DEAD_GAUGE, gauges.dead as f64);
    set(OLDEST_OVERDUE, gauges.oldest_overdue);
    // NaN when no message is pending: the page leaves out such samples.
    set(NEXT_DUE, gauges.next_due.unwrap_or(f64::NAN));
    set(RETRYING, gauges.retrying as f64);
    set(PAUSED, f64::from(u8::from(gauges.paused)));
    for (horizon, count) in gauges.due_within {
        gauge!(DUE_WITHIN, "route" => route.to_owned(), "horizon" => horizon).set(count as f64);
    }
    set(STORED, gauges.stored_bytes as f64);
    if let (Some(messages), Some(flows)) = (gauges.waiting_for_flow, gauges.waiting_flows) {
        set(FLOW_WAITING, messages as f64);
        set(FLOW_KEYS, flows as f64);
    }
    for (limit, used) in gauges.limits_used.into_iter().filter_map(|(limit, used)| Some((limit, used?))) {
        gauge!(LIMIT_USED, "route" => route.to_owned(), "limit" => limit).set(used);
    }
}

/// Removes the gauges that a route has with some settings only. The page leaves out samples that are NaN.
pub fn forget_optional(route: &str) {
    for name in [FLOW_WAITING, FLOW_KEYS, DEAD_UNFORWARDED, HISTORY] {
        gauge!(name, "route" => route.to_owned()).set(f64::NAN);
    }
    for limit in ["messages", "bytes"] {
        gauge!(LIMIT_USED, "route" => route.to_owned(), "limit" => limit).set(f64::NAN);
    }
}

/// The values of `SCHEDULE_NEXT`, in milliseconds.
static SHOWN_NEXT: Mutex<BTreeMap<String, u64>> = Mutex::new(BTreeMap::new());

/// Starts the counters of a schedule at 0.
pub fn begin_schedule(schedule: &str) {
    for result in ["delivered", "dead", "missed"] {
        schedule_runs(schedule, result, 0);
    }
}

fn schedule_runs(schedule: &str, result: &'static str, count: u64) {
    counter!(SCHEDULE_RUNS, "schedule" => schedule.to_owned(), "result" => result).increment(count);
}

/// At this moment.
pub fn schedule_delivered(schedule: &str) {
    schedule_runs(schedule, "delivered", 1);
    set_time(SCHEDULE_DELIVERED, schedule, Some(wall_millis().get()));
}

pub fn schedule_dead(schedule: &str) {
    schedule_runs(schedule, "dead", 1);
}

pub fn schedule_missed(schedule: &str, count: u64) {
    schedule_runs(schedule, "missed", count);
}

/// `at`: milliseconds since the epoch; `None`: it has ended, is paused or was deleted. The page leaves out such samples.
pub fn schedule_next(schedule: &str, at: Option<u64>) {
    let mut shown = SHOWN_NEXT.lock();
    match at {
        Some(at) => shown.insert(schedule.to_owned(), at),
        None => shown.remove(schedule),
    };
    set_time(SCHEDULE_NEXT, schedule, at);
}

/// Schedules with a next occurrence, which this instance shows.
pub fn schedules_shown() -> BTreeMap<String, u64> {
    SHOWN_NEXT.lock().clone()
}

#[expect(clippy::cast_precision_loss, reason = "a gauge is a float")]
fn set_time(name: &'static str, schedule: &str, at: Option<u64>) {
    gauge!(name, "schedule" => schedule.to_owned()).set(at.map_or(f64::NAN, |at| at as f64 / 1000.0));
}

/// Memory of the fullest server, in bytes. `max`: `None` without a maxmemory.
#[expect(clippy::cast_precision_loss, reason = "a gauge is a float")]
pub fn redis_memory(used: u64, max: Option<u64>) {
    gauge!(REDIS_MEMORY).set(used as f64);
    gauge!(REDIS_MAX_MEMORY).set(max.map_or(f64::NAN, |max| max as f64));
}

/// `redis`: Redis replies. `ready`: messages are accepted and delivered.
/// Records that the configuration was read, at this moment.
pub fn reloaded(is_valid: bool) {
    gauge!(RELOAD_SUCCESSFUL).set(u8::from(is_valid));
    if is_valid {
        #[expect(clippy::cast_precision_loss, reason = "milliseconds below 2^53 are exact in a float")]
        gauge!(RELOAD_TIME).set(wall_millis().get() as f64 / 1000.0);
    }
}

/// The latest valid configuration. `digest`: below 2^53.
#[expect(clippy::cast_precision_loss, reason = "numbers below 2^53 are exact in a float")]
pub fn config(digest: u64, needs_restart: bool) {
    gauge!(CONFIG_DIGEST).set(digest as f64);
    gauge!(RESTART_REQUIRED).set(u8::from(needs_restart));
}

pub fn health(redis: bool, ready: bool) {
    gauge!(REDIS_UP).set(u8::from(redis));
    gauge!(READY).set(u8::from(ready));
}

/// `call`: method and pattern of the path.
pub fn api_request(call: &Arc<str>, status: u16, took: Duration) {
    counter!(API_REQUESTS, "call" => call.clone(), "status" => status.to_string()).increment(1);
    histogram!(API_SECONDS, "call" => call.clone()).record(took.as_secs_f64());
}

pub fn log_lines_dropped(count: u64) {
    counter!(LOG_LINES_DROPPED).increment(count);
}

/// Starts the counters of spans at 0.
pub fn begin_spans() {
    spans_exported(0);
    for reason in ["queue", "export", "rejected"] {
        spans_dropped(reason, 0);
    }
}

pub fn spans_exported(count: u64) {
    counter!(SPANS_EXPORTED).increment(count);
}

/// `reason`: queue, export or rejected.
pub fn spans_dropped(reason: &'static str, count: u64) {
    counter!(SPANS_DROPPED, "reason" => reason).increment(count);
}

pub fn auth_failure() {
    counter!(AUTH_FAILURES).increment(1);
}
