//! Loads messages into a paused route, restarts punctual, and resumes the route.

use std::{
    fs,
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use crate::{Options, Run, api::call, process::Process};

/// Interval of polls for conditions without an event.
const POLL: Duration = Duration::from_millis(20);
/// Maximum time of a start, and of settling after the last request.
const PATIENCE: Duration = Duration::from_secs(20);
/// Messages of one scheduling call.
const LOAD: u64 = 1000;

pub fn measure(binary: &Path, options: &Options) -> Run {
    let directory = Directory::new();
    let mut receiver = Process::own(&["receiver"]);
    let address = receiver.hear().concat();
    let (redis_port, port) = (free_port(), free_port());
    let redis = redis(redis_port, &directory.0);
    let messages = options.messages;
    let in_flight = options.max_in_flight.map(|count| format!("max_in_flight: {count}")).unwrap_or_default();
    let configuration = format!(
        "redis: {{ url: 'redis://127.0.0.1:{redis_port}/0' }}
server: {{ listen: '127.0.0.1:{port}' }}
sinks: {{ hook: {{ type: http, url: 'http://{address}/due'{} }} }}
routes: {{ orders: {{ sink: hook, {in_flight} }} }}
",
        options.sink
    );
    fs::write(directory.0.join("punctual.yaml"), configuration).expect("a file");

    load(&start(binary, &directory.0, port), port, messages);
    // A new process, so that its memory is that of the drain.
    let punctual = start(binary, &directory.0, port);
    receiver.say(&format!("expect {messages}"));
    receiver.hear();
    let cpu = || [&punctual, &redis].map(Process::cpu);
    let (before, receiver_before) = (cpu(), receiver.cpu());
    call(port, "POST", "/v1/routes/orders/resume", "").expect("resumed");
    let done = receiver.hear();
    wait(|| counts(port).is_ok_and(|counts| counts == [0, 0]));
    let after = cpu();
    let cpu = vec![
        ("punctual", after[0] - before[0]),
        ("redis", after[1] - before[1]),
        ("receiver", receiver.cpu() - receiver_before),
    ];
    let name = binary.file_name().unwrap_or_default().to_string_lossy();
    Run::new(&name, messages, &done, cpu, punctual.peak_rss())
}

fn load(_punctual: &Process, port: u16, messages: u64) {
    call(port, "POST", "/v1/routes/orders/pause", "").expect("paused");
    let payload = "x".repeat(98);
    for start in (0..messages).step_by(LOAD as usize) {
        let message = |n| format!("{{\"id\":\"order-{n:010}\",\"payload\":\"{payload}\"}}");
        let body: Vec<String> = (start..messages.min(start + LOAD)).map(message).collect();
        call(port, "POST", "/v1/routes/orders/messages", &format!("[{}]", body.join(","))).expect("scheduled");
    }
}

/// Number of messages pending and in flight.
fn counts(port: u16) -> Result<[u64; 2], String> {
    let route = call(port, "GET", "/v1/routes/orders", "")?;
    let number = |name: &str| {
        let (_, rest) = route.split_once(&format!("\"{name}\":")).ok_or("no such count")?;
        let digits: String = rest.trim_start().chars().take_while(char::is_ascii_digit).collect();
        digits.parse::<u64>().map_err(|error| error.to_string())
    };
    Ok([number("pending")?, number("unack")?])
}

fn start(binary: &Path, directory: &Path, port: u16) -> Process {
    let binary = fs::canonicalize(binary).expect("the path of a punctual");
    let log = fs::File::create(directory.join("punctual.log")).expect("a file");
    let mut command = Command::new(binary);
    let process = Process::start(command.args(["serve", "-c", "punctual.yaml"]).current_dir(directory).stderr(log));
    wait(|| call(port, "GET", "/readyz", "").is_ok());
    process
}

fn redis(port: u16, directory: &Path) -> Process {
    let mut command = Command::new("redis-server");
    command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "yes"]);
    let process =
        Process::start(command.arg("--dir").arg(directory).args(["--logfile", "redis.log"]).stderr(Stdio::null()));
    wait(|| std::net::TcpStream::connect(("127.0.0.1", port)).is_ok());
    process
}

fn wait(done: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < deadline, "not within {PATIENCE:?}");
        sleep(POLL);
    }
}

fn free_port() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    listener.local_addr().expect("an address").port()
}

/// A temporary directory, removed on drop.
struct Directory(PathBuf);

impl Directory {
    fn new() -> Self {
        let path = std::env::temp_dir().join(format!("http-drain-{}-{}", std::process::id(), free_port()));
        fs::create_dir(&path).expect("a directory");
        Self(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
