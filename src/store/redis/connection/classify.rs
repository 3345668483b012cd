//! Classifies errors of Redis: the server cannot serve at present, a key holds another type, or this request is
//! refused.

use redis::{ErrorKind, RedisError};

use super::{NO_ANSWER, NO_LINK, ServerAddress};
use crate::store::StoreError;

/// Codes of error replies that mean a state of the server, and the label they are counted under.
const SERVER_STATES: [(&str, &str); 16] = [
    ("OOM", "oom"),
    ("MISCONF", "misconf"),
    ("READONLY", "readonly"),
    ("LOADING", "loading"),
    ("BUSY", "busy"),
    ("MASTERDOWN", "masterdown"),
    ("CLUSTERDOWN", CLUSTER_DOWN),
    ("TRYAGAIN", TRY_AGAIN),
    ("CROSSSLOT", CROSS_SLOT),
    ("MOVED", MOVED),
    ("ASK", ASK),
    ("NOREPLICAS", NO_REPLICAS),
    ("NOAUTH", "auth"),
    ("WRONGPASS", "auth"),
    ("NOPERM", "noperm"),
    ("UNKILLABLE", "busy"),
];

/// Beginnings of the error replies of Redis 7.0 and later to a script of a user who lacks a right; some of these
/// replies have the code NOPERM instead.
const DENIED_IN_SCRIPT: [&str; 2] = ["ERR The user executing the script can't ", "ERR ACL failure in script"];

/// Part of the error reply to a script that calls a command which this server has under another name, or not at all.
const RENAMED: &str = "Unknown Redis command called from";

/// The kind when too few replicas are in sync.
pub const NO_REPLICAS: &str = "noreplicas";
/// Kinds of errors that only a server in cluster mode returns.
const CLUSTER_DOWN: &str = "clusterdown";
const TRY_AGAIN: &str = "tryagain";
const CROSS_SLOT: &str = "crossslot";
const MOVED: &str = "moved";
const ASK: &str = "ask";
/// Kinds of errors of a server that is not the master, or not yet: another server may be behind its address.
const NO_MASTER: [&str; 3] = ["readonly", "masterdown", "loading"];
/// Parts of the answer to a command that the server does not know, or knows only with other arguments (HELLO before
/// 6.2).
const UNKNOWN: [&str; 2] = ["unknown command", "wrong number of arguments"];

/// The other kinds of `classify` and of a connection.
const OTHER_KINDS: [&str; 5] = [NO_ANSWER, NO_LINK, IO, "reply", "other"];
/// The kind of a link that broke.
const IO: &str = "io";

/// Every kind of error that is counted.
pub fn kinds() -> impl Iterator<Item = &'static str> {
    SERVER_STATES.iter().map(|(_, kind)| *kind).chain(OTHER_KINDS)
}

/// Whether the server is not the master: another one may be behind its address.
pub fn is_no_master(error: &StoreError) -> bool {
    matches!(error, StoreError::Unavailable { kind, .. } if NO_MASTER.contains(kind))
}

/// Whether the server is loading its data, and answers afterwards.
pub fn is_loading(error: &StoreError) -> bool {
    matches!(error, StoreError::Unavailable { kind: "loading", .. })
}

/// Whether only a server in cluster mode returns this error.
pub fn is_of_cluster(error: &StoreError) -> bool {
    matches!(error, StoreError::Unavailable { kind: CLUSTER_DOWN | TRY_AGAIN | CROSS_SLOT | MOVED | ASK, .. })
}

/// Whether the cluster cannot run the command at present: the slot has no primary, or only some of its keys were moved.
pub fn is_cluster_down(error: &StoreError) -> bool {
    matches!(error, StoreError::Unavailable { kind: CLUSTER_DOWN | TRY_AGAIN, .. })
}

/// The server to which a cluster redirects a command, with the slot if that server owns it (MOVED). `asked`: the host
/// that answered, used if the redirection names no host.
pub fn redirection(error: &StoreError, asked: &str) -> Option<(ServerAddress, Option<u16>)> {
    let StoreError::Unavailable { kind: kind @ (MOVED | ASK), text } = error else { return None };
    let mut words = text.rsplit(' ');
    let (place, slot) = (words.next()?, words.next()?);
    let (host, port) = place.rsplit_once(':')?;
    let host = if host.is_empty() { asked } else { host.trim_start_matches('[').trim_end_matches(']') };
    let address = ServerAddress { host: host.to_owned(), port: port.parse().ok()? };
    Some((address, if *kind == MOVED { Some(slot.parse().ok()?) } else { None }))
}

/// Whether the server may be down, or not the primary any more.
pub fn is_lost(error: &StoreError) -> bool {
    matches!(error, StoreError::Unavailable { kind: NO_ANSWER | NO_LINK | IO, .. }) || is_no_master(error)
}

/// Whether the user has no right to the command, or the server does not know it.
pub fn is_denied(error: &StoreError) -> bool {
    match error {
        StoreError::Unavailable { kind: "noperm", .. } => true,
        StoreError::Unavailable { kind: "other", text } => UNKNOWN.iter().any(|part| text.contains(part)),
        _ => false,
    }
}

/// Whether the user has the right to the command, but not to its key.
pub fn is_denied_key(error: &StoreError) -> bool {
    matches!(error, StoreError::Unavailable { kind: "noperm", text } if !text.contains("permissions to run the"))
}

/// Distinguishes a state of the server from a refusal of this one request.
pub fn classify(error: &RedisError) -> StoreError {
    let text = without_arguments(error.to_string());
    let unavailable = |kind| StoreError::Unavailable { kind, text: text.clone() };
    match error.kind() {
        ErrorKind::Io => return unavailable(if error.is_timeout() { NO_ANSWER } else { IO }),
        ErrorKind::AuthenticationFailed => return unavailable("auth"),
        ErrorKind::UnexpectedReturnType | ErrorKind::Parse => return unavailable("reply"),
        _ => {}
    }
    let detail = error.detail().unwrap_or_default();
    let reply = format!("{} {detail}", error.code().unwrap_or_default());
    let code = code_of(&reply);
    if code == "PUNCTUAL" {
        let (slug, text) = detail.split_once(' ').unwrap_or((detail, ""));
        return StoreError::Refused { slug: slug.to_owned(), text: text.to_owned() };
    }
    if code == "NOSCRIPT" {
        return StoreError::Refused { slug: "noscript".to_owned(), text };
    }
    if code == "WRONGTYPE" {
        return StoreError::WrongType { text };
    }
    if DENIED_IN_SCRIPT.iter().any(|begin| reply.starts_with(begin)) || reply.contains(RENAMED) {
        return unavailable("noperm");
    }
    match SERVER_STATES.iter().find(|(name, _)| *name == code) {
        Some((_, kind)) => unavailable(kind),
        None => unavailable("other"),
    }
}

/// Classifies the text of an error reply, with or without the dash of the protocol.
pub fn classify_line(line: &str) -> StoreError {
    let line = line.strip_prefix('-').unwrap_or(line).replace(['\r', '\n'], " ");
    match redis::parse_redis_value(format!("-{line}\r\n").as_bytes()) {
        Ok(redis::Value::ServerError(error)) => classify(&error.into()),
        _ => StoreError::Unavailable { kind: "reply", text: line },
    }
}

/// Removes the arguments of a command that Redis does not know (a renamed RPUSH, for example): Redis repeats them, and
/// they can contain a payload.
fn without_arguments(mut text: String) -> String {
    if let Some(at) = text.find(", with args beginning with") {
        text.truncate(at);
    }
    text
}

/// The code of an error reply. For a command in a script, Redis before 7 puts up to three parts before the code: that a
/// script failed, the line in the script (sometimes twice), and the dash of the protocol.
fn code_of(reply: &str) -> &str {
    let mut rest = reply;
    if let Some((_, cause)) = rest.strip_prefix("ERR Error running script ").and_then(|rest| rest.split_once("): ")) {
        rest = cause;
    }
    while let Some(place) = rest.strip_prefix("@user_script:") {
        let place = place.trim_start();
        let Some(behind) = place.trim_start_matches(|c: char| c.is_ascii_digit()).strip_prefix(": ") else { break };
        rest = behind;
    }
    let rest = rest.strip_prefix('-').unwrap_or(rest);
    rest.split(' ').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(line: &str) -> &'static str {
        match classify_line(line) {
            StoreError::Unavailable { kind, .. } => kind,
            StoreError::WrongType { .. } => "wrong type",
            StoreError::Refused { .. } => "refused",
        }
    }

    #[test]
    fn errors_of_redis_6_2_are_told_apart_wherever_it_puts_the_code() {
        for (line, expected) in [
            (
                "ERR Error running script (call to f_5b9fb3410653a731f8ddfeff39a0c061f8ef9fa6): @user_script:123: \
                 WRONGTYPE Operation against a key holding the wrong kind of value",
                "wrong type",
            ),
            ("@user_script: 8: -OOM command not allowed when used memory > 'maxmemory'.", "oom"),
            (
                "ERR Error running script (call to f_5b9fb3410653a731f8ddfeff39a0c061f8ef9fa6): @user_script:20: \
                 @user_script: 20: -OOM command not allowed when used memory > 'maxmemory'.",
                "oom",
            ),
            ("@user_script: 12: -READONLY You can't write against a read only replica.", "readonly"),
            (
                "@user_script: 12: -MISCONF Redis is configured to save RDB snapshots, but it is currently not able to \
                 persist on disk.",
                "misconf",
            ),
            ("@user_script: 3: -NOPERM this user has no permissions to run the 'rpush' command", "noperm"),
            (
                "ERR Error running script (call to f_5b9fb3410653a731f8ddfeff39a0c061f8ef9fa6): @user_script:7: \
                 user_script:7: attempt to index a nil value",
                "other",
            ),
            ("WRONGTYPE Operation against a key holding the wrong kind of value", "wrong type"),
            ("OOM command not allowed when used memory > 'maxmemory'.", "oom"),
            ("BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.", "busy"),
            ("NOSCRIPT No matching script. Please use EVAL.", "refused"),
        ] {
            assert_eq!(kind(line), expected, "{line}");
        }
    }

    #[test]
    fn a_denied_or_unknown_command_is_distinguished_from_a_failed_one() {
        for (line, expected) in [
            ("NOPERM this user has no permissions to run the 'info' command", true),
            ("ERR unknown command 'HELLO', with args beginning with: ", true),
            ("ERR wrong number of arguments for 'hello' command", true),
            ("ERR syntax error", false),
            ("LOADING Redis is loading the dataset in memory", false),
        ] {
            assert_eq!(is_denied(&classify_line(line)), expected, "{line}");
        }
    }

    #[test]
    fn the_state_of_a_server_is_known_by_its_error() {
        for (line, no_master, loading, cluster, down) in [
            ("READONLY You can't write against a read only replica.", true, false, false, false),
            ("MASTERDOWN Link with MASTER is down", true, false, false, false),
            ("LOADING Redis is loading the dataset in memory", true, true, false, false),
            ("CLUSTERDOWN Hash slot not served", false, false, true, true),
            ("TRYAGAIN Multiple keys request during rehashing of slot", false, false, true, true),
            ("CROSSSLOT Keys in request don't hash to the same slot", false, false, true, false),
            ("MOVED 3999 127.0.0.1:6381", false, false, true, false),
            ("ASK 3999 127.0.0.1:6381", false, false, true, false),
            ("OOM command not allowed when used memory > 'maxmemory'.", false, false, false, false),
            ("PUNCTUAL absent no such message", false, false, false, false),
        ] {
            let error = classify_line(line);
            let found = (is_no_master(&error), is_loading(&error), is_of_cluster(&error), is_cluster_down(&error));
            assert_eq!(found, (no_master, loading, cluster, down), "{line}");
            assert_eq!(is_lost(&error), no_master, "{line}");
        }
        for (kind, lost) in [(NO_ANSWER, true), (NO_LINK, true), (IO, true), ("reply", false), ("other", false)] {
            assert_eq!(is_lost(&StoreError::Unavailable { kind, text: String::new() }), lost, "{kind}");
        }
    }

    #[test]
    fn errors_of_the_client_have_kinds_of_their_own() {
        for (error, expected) in [
            (RedisError::from((ErrorKind::Io, "broken pipe")), IO),
            (RedisError::from(std::io::Error::from(std::io::ErrorKind::TimedOut)), NO_ANSWER),
            (RedisError::from((ErrorKind::AuthenticationFailed, "wrong password")), "auth"),
            (RedisError::from((ErrorKind::UnexpectedReturnType, "not a number")), "reply"),
            (RedisError::from((ErrorKind::Parse, "not a reply")), "reply"),
            (RedisError::from((ErrorKind::Client, "closed")), "other"),
        ] {
            assert!(matches!(classify(&error), StoreError::Unavailable { kind, .. } if kind == expected), "{error}");
        }
    }

    #[test]
    fn a_denied_key_is_distinguished_from_a_denied_command() {
        for (line, expected) in [
            ("NOPERM this user has no permissions to run the 'rpush' command or its subcommand", false),
            ("NOPERM User limited has no permissions to run the 'rpush' command", false),
            ("NOPERM this user has no permissions to access one of the keys used as arguments", true),
            ("NOPERM No permissions to access a key", true),
            ("WRONGTYPE Operation against a key holding the wrong kind of value", false),
        ] {
            assert_eq!(is_denied_key(&classify_line(line)), expected, "{line}");
        }
    }

    #[test]
    fn errors_of_redis_7_0_are_told_apart() {
        for (line, expected) in [
            (
                "WRONGTYPE Operation against a key holding the wrong kind of value script: \
                 5b9fb3410653a731f8ddfeff39a0c061f8ef9fa6, on @user_script:123.",
                "wrong type",
            ),
            (
                "OOM command not allowed when used memory > 'maxmemory'. script: \
                 5b9fb3410653a731f8ddfeff39a0c061f8ef9fa6, on @user_script:8.",
                "oom",
            ),
            ("OOM command not allowed when used memory > 'maxmemory'.", "oom"),
            ("MISCONF Errors writing to the AOF file: No space left on device", "misconf"),
            ("LOADING Redis is loading the dataset in memory", "loading"),
            ("MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.", "masterdown"),
            ("CROSSSLOT Keys in request don't hash to the same slot", "crossslot"),
            ("MOVED 3999 127.0.0.1:6381", "moved"),
            ("CLUSTERDOWN Hash slot not served", "clusterdown"),
            ("TRYAGAIN Multiple keys request during rehashing of slot", "tryagain"),
            ("NOSCRIPT No matching script. Please use EVAL.", "refused"),
            (
                "ERR user_script:7: Script attempted to access nonexistent global variable 'x' script: \
                 5b9fb3410653a731f8ddfeff39a0c061f8ef9fa6, on @user_script:7.",
                "other",
            ),
            ("ERR unknown command 'WRONGTYPE'", "other"),
            (
                "ERR The user executing the script can't run this command or subcommand script: \
                 f7adf048576a96a0bb60ded77199bbcdda591429, on @user_script:1.",
                "noperm",
            ),
            ("ERR The user executing the script can't access at least one of the keys mentioned", "noperm"),
            ("ERR ACL failure in script: User punctual has no permissions to run the 'zadd' command", "noperm"),
            ("ERR Unknown Redis command called from script script: f7adf048576a96a0, on @user_script:1.", "noperm"),
            ("@user_script: 3: Unknown Redis command called from Lua script", "noperm"),
        ] {
            assert_eq!(kind(line), expected, "{line}");
        }
    }

    #[test]
    fn a_redirection_names_the_server_and_the_slot_that_it_has_for_good() {
        for (line, expected) in [
            ("MOVED 3999 127.0.0.1:6381", Some(("127.0.0.1:6381", Some(3999)))),
            ("MOVED 3999 :6381", Some(("asked:6381", Some(3999)))),
            ("MOVED 3999 ::1:6381", Some(("[::1]:6381", Some(3999)))),
            ("ASK 3999 node.example:6381", Some(("node.example:6381", None))),
            ("MOVED 3999", None),
            ("CLUSTERDOWN Hash slot not served", None),
        ] {
            let found = redirection(&classify_line(line), "asked").map(|(to, slot)| (to.to_string(), slot));
            assert_eq!(found, expected.map(|(to, slot)| (to.to_owned(), slot)), "{line}");
        }
    }

    #[test]
    fn a_refusal_of_a_script_keeps_its_slug_and_text() {
        let refused = StoreError::Refused { slug: "too-large".into(), text: "the payload takes 2 bytes".into() };
        assert_eq!(classify_line("PUNCTUAL too-large the payload takes 2 bytes"), refused);
    }
}
