//! Prints the figures.

use crate::Run;

impl Run {
    /// `done`: the words that the endpoint printed.
    pub fn new(name: &str, messages: u64, done: &[String], cpu: Vec<(&'static str, f64)>, peak_rss: f64) -> Self {
        let seconds = done[1].parse().expect("seconds");
        let connections = done[2].parse().expect("a number");
        Self { name: name.to_owned(), messages, seconds, connections, cpu, peak_rss }
    }

    fn rate(&self) -> f64 {
        self.messages as f64 / self.seconds
    }

    /// CPU microseconds per message.
    fn micros(&self, cpu: f64) -> f64 {
        cpu * 1e6 / self.messages as f64
    }
}

pub fn line(run: &Run) -> String {
    let cpu: Vec<String> = run.cpu.iter().map(|(name, cpu)| format!("{name} {:.1}", run.micros(*cpu))).collect();
    format!(
        "{:<16} {:>8.0}/s  {:>5} connections  {:>5.0} MiB  us per message: {}",
        run.name,
        run.rate(),
        run.connections,
        run.peak_rss,
        cpu.join(", ")
    )
}

/// Prints medians by name. Ratios are relative to the first name: of the rates, and of the CPU time of all processes.
pub fn print(runs: &[Run]) {
    let mut names: Vec<&str> = Vec::new();
    for run in runs {
        if !names.contains(&run.name.as_str()) {
            names.push(&run.name);
        }
    }
    let medians = |name: &str, of: &dyn Fn(&Run) -> f64| {
        let mut values: Vec<f64> = runs.iter().filter(|run| run.name == name).map(of).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    let all_cpu = |run: &Run| run.micros(run.cpu.iter().map(|(_, cpu)| cpu).sum());
    println!(
        "\n{:<16} {:>9} {:>6} {:>12} {:>9} {:>10} {:>9}",
        "medians", "rate/s", "ratio", "connections", "peak MiB", "us/message", "CPU ratio"
    );
    for name in &names {
        let (rate, cpu) = (medians(name, &Run::rate), medians(name, &all_cpu));
        let (plain_rate, plain_cpu) = (medians(names[0], &Run::rate), medians(names[0], &all_cpu));
        println!(
            "{name:<16} {rate:>9.0} {:>6.2} {:>12.0} {:>9.0} {cpu:>10.1} {:>9.2}",
            rate / plain_rate,
            medians(name, &|run| run.connections as f64),
            medians(name, &|run| run.peak_rss),
            plain_cpu / cpu
        );
    }
}
