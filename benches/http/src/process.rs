//! A process of the measurement, killed on drop.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

/// Clock ticks per second in `/proc/PID/stat`: 100 on every Linux.
const TICKS: f64 = 100.0;

pub struct Process {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Process {
    pub fn start(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the program starts");
        let input = child.stdin.take().expect("piped");
        let output = BufReader::new(child.stdout.take().expect("piped"));
        Self { child, input, output }
    }

    /// This program with other arguments.
    pub fn own(arguments: &[&str]) -> Self {
        Self::start(Command::new(std::env::current_exe().expect("its path")).args(arguments))
    }

    pub fn say(&mut self, line: &str) {
        writeln!(self.input, "{line}").expect("it listens");
    }

    /// The words of the process's next output line.
    pub fn hear(&mut self) -> Vec<String> {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("text");
        assert!(!line.is_empty(), "the process has ended");
        line.split_whitespace().map(str::to_owned).collect()
    }

    /// User and system CPU seconds so far.
    pub fn cpu(&self) -> f64 {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id())).expect("it runs");
        // Fields after the name, which can contain spaces: from field 3 on; 14 and 15 are the times.
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let ticks = |at: usize| fields[at - 3].parse::<f64>().expect("a number");
        (ticks(14) + ticks(15)) / TICKS
    }

    /// The largest resident memory so far, in MiB.
    pub fn peak_rss(&self) -> f64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("the peak");
        line.trim().trim_end_matches(" kB").parse::<f64>().expect("a number") / 1024.0
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
