//! Equal lines: the first is written at once; further ones in the same minute are counted.

use std::{collections::BTreeMap, time::Duration};

use tokio::time::Instant;

/// Minimum time between two equal lines.
const INTERVAL: Duration = Duration::from_mins(1);
/// Number of lines that are compared, and the maximum bytes of each: 1 MiB in all. Further and longer lines are always
/// written.
const MAX_LINES: usize = 256;
const MAX_BYTES: usize = 4096;

/// The lines of the last minute, by their text without the time.
#[derive(Debug, Default)]
pub struct Repeats(BTreeMap<Vec<u8>, Repeat>);

#[derive(Debug)]
struct Repeat {
    written: Instant,
    /// Repetitions since `written`.
    count: u64,
    /// The time of the latest repetition, as text.
    time: Vec<u8>,
}

impl Repeats {
    /// Counts the line, and returns true, if it repeats a line of the last minute.
    pub fn is_repeat(&mut self, line: &[u8], now: Instant) -> bool {
        let (time, text) = parts(line);
        if let Some(repeat) = self.0.get_mut(text) {
            repeat.count += 1;
            time.clone_into(&mut repeat.time);
            return true;
        }
        if text.len() > MAX_BYTES {
            return false;
        }
        if self.0.len() == MAX_LINES {
            let once = self.0.iter().filter(|(_, repeat)| repeat.count == 0);
            let Some(oldest) = once.min_by_key(|(_, repeat)| repeat.written).map(|(text, _)| text.clone()) else {
                return false;
            };
            self.0.remove(&oldest);
        }
        self.0.insert(text.to_owned(), Repeat { written: now, count: 0, time: time.to_owned() });
        false
    }

    /// The counted lines, each with its count, after their minute; `all`: at once.
    pub fn due(&mut self, now: Instant, all: bool) -> Vec<Vec<u8>> {
        let is_due = |repeat: &Repeat| all || now >= repeat.written + INTERVAL;
        let mut lines = Vec::new();
        self.0.retain(|text, repeat| {
            if !is_due(repeat) {
                return true;
            }
            if repeat.count == 0 {
                return false;
            }
            lines.push(counted(&repeat.time, text, repeat.count));
            (repeat.written, repeat.count) = (now, 0);
            !all
        });
        lines
    }

    /// The next time at which `due` has lines.
    pub fn next_due(&self) -> Option<Instant> {
        self.0.values().map(|repeat| repeat.written + INTERVAL).min()
    }

    /// Whether a line was counted and not written.
    pub fn any(&self) -> bool {
        self.0.values().any(|repeat| repeat.count > 0)
    }
}

/// The time at the beginning of a line, and the rest.
fn parts(line: &[u8]) -> (&[u8], &[u8]) {
    let end = if is_json(line) { b',' } else { b' ' };
    line.split_at(line.iter().position(|byte| *byte == end).unwrap_or(0))
}

fn is_json(line: &[u8]) -> bool {
    line.starts_with(b"{")
}

fn counted(time: &[u8], text: &[u8], count: u64) -> Vec<u8> {
    let (end, repeated) = if is_json(time) {
        ("}\n", format!(",\"repeated\":{count}}}\n"))
    } else {
        ("\n", format!(" repeated={count}\n"))
    };
    [time, text.strip_suffix(end.as_bytes()).unwrap_or(text), repeated.as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strings(lines: Vec<Vec<u8>>) -> Vec<String> {
        lines.into_iter().map(|line| String::from_utf8(line).unwrap()).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn equal_lines_are_one_at_once_and_a_count_a_minute() {
        let (mut repeats, begun) = (Repeats::default(), Instant::now());
        assert!(!repeats.is_repeat(b"10:00  WARN a n=1\n", begun));
        assert!(!repeats.is_repeat(b"10:00  WARN a n=2\n", begun));
        for second in 1..4 {
            let line = format!("10:0{second}  WARN a n=1\n");
            assert!(repeats.is_repeat(line.as_bytes(), begun + Duration::from_secs(second)));
        }
        assert_eq!(repeats.next_due(), Some(begun + INTERVAL));
        assert!(repeats.due(begun + INTERVAL / 2, false).is_empty());
        assert_eq!(strings(repeats.due(begun + INTERVAL, false)), ["10:03  WARN a n=1 repeated=3\n"]);
        assert!(repeats.is_repeat(b"10:04  WARN a n=1\n", begun + INTERVAL), "still within a minute of a line");
        assert_eq!(strings(repeats.due(begun + INTERVAL, true)), ["10:04  WARN a n=1 repeated=1\n"]);
        assert!(!repeats.any() && repeats.next_due().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn json_stays_json_and_many_different_lines_are_bounded() {
        let (mut repeats, now) = (Repeats::default(), Instant::now());
        let line = br#"{"timestamp":"10:00","level":"WARN","message":"a"}"#;
        let line = [&line[..], b"\n"].concat();
        assert!(!repeats.is_repeat(&line, now) && repeats.is_repeat(&line, now));
        for n in 0..2 * MAX_LINES {
            assert!(!repeats.is_repeat(format!("10:00 line {n}\n").as_bytes(), now));
            assert!(repeats.0.len() <= MAX_LINES);
        }
        let expected = r#"{"timestamp":"10:00","level":"WARN","message":"a","repeated":1}"#;
        assert_eq!(strings(repeats.due(now, true)), [format!("{expected}\n")]);
        assert!(!repeats.is_repeat(&vec![b'x'; MAX_BYTES + 1], now) && repeats.0.is_empty(), "a long one is not kept");
    }
}
