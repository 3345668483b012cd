//! Servers that the examples start.

use std::{collections::BTreeSet, fs, process::Stdio, time::Duration};

use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::Command,
    time::timeout,
};

/// Sources the stage of the examples, starts its broker, prints the process ids and waits until its input ends.
const SCRIPT: &str = r#". examples/stage.sh; start_rabbitmq >&2; echo "${running[@]}"; cat >/dev/null"#;

/// 127.0.0.1 and, mapped into IPv6, the same; `::1`.
const LOOPBACK: [&str; 3] = ["0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"];

#[tokio::test(flavor = "multi_thread")]
async fn the_broker_of_the_examples_and_its_distribution_hear_this_machine_only() {
    let mut script = Command::new("bash")
        .args(["-c", SCRIPT])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("bash runs");
    let mut line = String::new();
    let mut out = BufReader::new(script.stdout.take().expect("piped"));
    let read = timeout(Duration::from_mins(1), out.read_line(&mut line)).await;
    read.expect("the broker starts").expect("a line");
    let found: Vec<(String, BTreeSet<String>)> =
        line.split_whitespace().map(|pid| (pid.to_owned(), listening(pid))).collect();
    drop(script.stdin.take());
    timeout(Duration::from_mins(1), script.wait()).await.expect("the broker stops").expect("it was started");
    let count: usize = found.iter().map(|(_, addresses)| addresses.len()).sum();
    assert!(count >= 3, "epmd, AMQP and the distribution: {found:?}");
    for (pid, addresses) in &found {
        for address in addresses {
            let (host, _) = address.split_once(':').expect("a port");
            assert!(LOOPBACK.contains(&host), "process {pid} listens on {address}: {found:?}");
        }
    }
}

/// The addresses with ports, as the kernel writes them, on which a process listens.
fn listening(pid: &str) -> BTreeSet<String> {
    let sockets: BTreeSet<String> = fs::read_dir(format!("/proc/{pid}/fd"))
        .expect("the process lives")
        .filter_map(|entry| fs::read_link(entry.ok()?.path()).ok()?.to_str().map(str::to_owned))
        .collect();
    let mut addresses = BTreeSet::new();
    for table in ["tcp", "tcp6"] {
        for row in fs::read_to_string(format!("/proc/net/{table}")).unwrap_or_default().lines().skip(1) {
            let fields: Vec<&str> = row.split_whitespace().collect();
            // 0A: LISTEN
            if fields[3] == "0A" && sockets.contains(&format!("socket:[{}]", fields[9])) {
                addresses.insert(fields[1].to_owned());
            }
        }
    }
    addresses
}
