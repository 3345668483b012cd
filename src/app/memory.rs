//! The memory of the process against the limit of its control group.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::instance::largest_message;
use crate::{api, config::Config};

/// Bytes of an instance without messages: 36 MiB at the peak of a drain (docs/performance.md), and what its connections
/// and the allocator need.
const PROCESS_BYTES: u64 = 64 << 20;

/// Bytes that a source of Kafka or RabbitMQ has read and not yet scheduled.
const SOURCE_BYTES: u64 = 16 << 20;

/// Copies of a message in flight: its own, and that of the client of a broker.
const COPIES: u64 = 2;

/// Bytes that an instance with this configuration can need.
fn needed(config: &Config) -> u64 {
    let routes = config.routes.len() as u64 * largest_message(config);
    let sources = config.sources.len() as u64 * SOURCE_BYTES;
    PROCESS_BYTES + api::MAX_MEMORY + sources + COPIES * (config.max_in_flight_bytes + routes)
}

/// Warns if the process can need more memory than its control group has: it would be killed.
pub fn check(config: &Config) {
    let (needed, limit) = (needed(config), limit(Path::new("/proc/self/cgroup"), Path::new("/sys/fs/cgroup")));
    if let Some(limit) = limit.filter(|limit| *limit < needed) {
        tracing::warn!(
            limit_mib = limit >> 20,
            needed_mib = needed.div_ceil(1 << 20),
            "the memory limit of this process is below what it can need: raise it, or lower max_in_flight_bytes or \
             server.max_payload"
        );
    }
}

/// The lowest limit of the control groups of the process, version 2 or 1.
fn limit(own: &Path, root: &Path) -> Option<u64> {
    let own = fs::read_to_string(own).ok()?;
    let groups = own.lines().filter_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        match (parts.next()?, parts.next()?) {
            ("", path) => Some((root.to_owned(), path, "memory.max")),
            ("memory", path) => Some((root.join("memory"), path, "memory.limit_in_bytes")),
            _ => None,
        }
    });
    groups.flat_map(|(root, path, file)| limits(&root, path, file)).min()
}

/// The limits of a group and of those above it. In a container the path can be that of the host, of which only the
/// root is mounted.
fn limits(root: &Path, path: &str, file: &str) -> Vec<u64> {
    let own: PathBuf = path.trim_start_matches('/').into();
    let read = |group: &Path| fs::read_to_string(root.join(group).join(file)).ok()?.trim().parse().ok();
    own.ancestors().filter_map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_limit_of_the_groups_counts() {
        let home = tempfile::tempdir().unwrap();
        let root = home.path();
        let own = root.join("own");
        let group = root.join("a/b");
        fs::create_dir_all(&group).unwrap();
        fs::write(&own, "1:name=systemd:/x\n0::/a/b\n").unwrap();
        assert_eq!(limit(&own, root), None);
        fs::write(group.join("memory.max"), "max\n").unwrap();
        assert_eq!(limit(&own, root), None);
        fs::write(root.join("a/memory.max"), "536870912\n").unwrap();
        assert_eq!(limit(&own, root), Some(512 << 20));
        fs::write(root.join("memory.max"), "1000\n").unwrap();
        assert_eq!(limit(&own, root), Some(1000));
        fs::create_dir(root.join("memory")).unwrap();
        fs::write(root.join("memory/memory.limit_in_bytes"), "77\n").unwrap();
        fs::write(&own, "5:memory:/of/the/host\n").unwrap();
        assert_eq!(limit(&own, root), Some(77));
        assert_eq!(limit(&root.join("none"), root), None);
    }
}
