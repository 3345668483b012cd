//! A private RabbitMQ node with an epmd of its own. A guardian shell stops both when this process ends, however
//! it does: the nodes that tests share are in statics, which are never dropped.

mod kept;

use std::{
    env,
    fmt::Write,
    fs,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{self, Child, Command, Stdio},
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use lapin::{
    BasicProperties, Channel, Connection, ConnectionProperties, ExchangeKind,
    options::{BasicGetOptions, ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions},
    types::FieldTable,
};
use punctual::{
    config::Period,
    connector::rabbitmq::RabbitMqSinkSettings,
    sink::template::{Allow, Place, Template},
    tls::TlsFiles,
};
use rustix::process::Signal;
use tokio::{
    io::AsyncWriteExt,
    sync::{Mutex, MutexGuard, OnceCell},
    time::{Instant, sleep, timeout},
};

use super::{Authority, port::Port, servers, signal};

/// Maximum duration of a start on a busy machine; an idle one takes 4 to 9 s.
const START: Duration = Duration::from_secs(90);
/// Maximum wait for one answer.
const ANSWER: Duration = Duration::from_secs(5);
/// Pause between two polls of a node that starts.
const POLL: Duration = Duration::from_millis(50);

pub struct RabbitMq {
    directory: PathBuf,
    ports: [u16; 4],
    /// Keep the ports for a node that is stopped and started again.
    _reserved: Vec<Port>,
    pub authority: Authority,
    node: Option<Child>,
    /// Acts when its input is closed. None for a node that outlives this process.
    _guardian: Option<Child>,
}

/// A message as a consumer gets it.
pub struct Got {
    pub id: String,
    pub properties: BasicProperties,
    pub payload: Vec<u8>,
}

impl RabbitMq {
    /// One for all tests that leave it as it is: that of the directory `PUNCTUAL_TEST_RABBITMQ_NODE`, or one that ends
    /// with this process.
    pub async fn shared() -> &'static Self {
        static NODE: OnceCell<RabbitMq> = OnceCell::const_new();
        NODE.get_or_init(|| async {
            match env::var_os("PUNCTUAL_TEST_RABBITMQ_NODE") {
                Some(directory) => Self::kept(directory.into()).await,
                None => Self::start().await,
            }
        })
        .await
    }

    /// One for all tests of messages that are larger than what it takes: 10,000 bytes, and headers of 8192 bytes.
    pub async fn small() -> &'static Self {
        static NODE: OnceCell<RabbitMq> = OnceCell::const_new();
        NODE.get_or_init(|| Self::start_with("max_message_size = 10000\nframe_max = 8192\n")).await
    }

    /// The node of the tests that stop it or raise its alarms. They use it in sequence; each leaves it running and
    /// calm.
    pub async fn troubled() -> MutexGuard<'static, Self> {
        static NODE: OnceCell<Mutex<RabbitMq>> = OnceCell::const_new();
        NODE.get_or_init(|| async { Mutex::new(Self::start().await) }).await.lock().await
    }

    pub fn port(&self) -> u16 {
        self.ports[0]
    }

    /// Asks every client for a certificate of `authority`.
    pub fn tls_port(&self) -> u16 {
        self.ports[1]
    }

    fn distribution_port(&self) -> u16 {
        self.ports[2]
    }

    fn epmd_port(&self) -> u16 {
        self.ports[3]
    }

    /// A sink's configuration; the routing key is the message's.
    pub fn config(&self, exchange: &str) -> RabbitMqSinkSettings {
        config(self.port(), exchange)
    }

    pub async fn connection(&self) -> Connection {
        self.connect().await.expect("the broker answers")
    }

    pub async fn channel(&self) -> Channel {
        self.connection().await.create_channel().await.expect("a channel")
    }

    /// A durable direct exchange.
    pub async fn declare_exchange(&self, name: &str) {
        self.declare_exchange_of(ExchangeKind::Direct, name).await;
    }

    /// A durable exchange.
    pub async fn declare_exchange_of(&self, kind: ExchangeKind, name: &str) {
        let options = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
        let channel = self.channel().await;
        channel.exchange_declare(name.into(), kind, options, FieldTable::default()).await.unwrap();
    }

    /// A user that may publish to `exchange` with the routing keys that `keys` (a regular expression) matches. Topic
    /// permissions hold for topic exchanges only.
    pub async fn add_user(&self, name: &str, exchange: &str, keys: &str) {
        self.create_user(name, name).await;
        self.permit(name, "", exchange, "").await;
        self.permit_topics(name, exchange, keys).await;
    }

    /// Without any right.
    pub async fn create_user(&self, name: &str, password: &str) {
        self.call_backend("add_user", &[name, password]).await;
    }

    /// Permissions in `/`: regular expressions of the names that the user may configure, write to and read from.
    pub async fn permit(&self, user: &str, configure: &str, write: &str, read: &str) {
        self.call_backend("set_permissions", &[user, "/", configure, write, read]).await;
    }

    /// `keys`: a regular expression of the routing keys with which the user may publish to a topic exchange.
    pub async fn permit_topics(&self, user: &str, exchange: &str, keys: &str) {
        self.call_backend("set_topic_permissions", &[user, "/", exchange, keys, ""]).await;
    }

    async fn call_backend(&self, function: &str, texts: &[&str]) {
        let binary =
            |text: &&str| format!("<<{}>>", text.bytes().map(|byte| byte.to_string()).collect::<Vec<_>>().join(","));
        let arguments: Vec<String> = texts.iter().chain(&["it"]).map(binary).collect();
        let done = self.eval(&format!("rabbit_auth_backend_internal:{function}({})", arguments.join(", "))).await;
        assert_eq!(done, "ok", "{function} {texts:?}");
    }

    /// A queue bound to `exchange` under `key`.
    pub async fn declare_queue(&self, name: &str, exchange: &str, key: &str, options: QueueDeclareOptions) {
        self.declare_queue_with(name, exchange, key, options, FieldTable::default()).await;
    }

    pub async fn declare_queue_with(
        &self,
        name: &str,
        exchange: &str,
        key: &str,
        options: QueueDeclareOptions,
        arguments: FieldTable,
    ) {
        let channel = self.channel().await;
        channel.queue_declare(name.into(), options, arguments).await.expect("a queue");
        let (options, none) = (QueueBindOptions::default(), FieldTable::default());
        channel.queue_bind(name.into(), exchange.into(), key.into(), options, none).await.expect("a binding");
    }

    /// A durable exchange and queue of this name, bound under `key`.
    pub async fn declare(&self, name: &str, key: &str) {
        self.declare_exchange(name).await;
        self.declare_queue(name, name, key, durable()).await;
    }

    /// Takes all that is in a queue.
    pub async fn drain(&self, queue: &str) -> Vec<Got> {
        let (channel, mut all) = (self.channel().await, Vec::new());
        let options = BasicGetOptions { no_ack: true };
        while let Some(message) = channel.basic_get(queue.into(), options).await.expect("a queue") {
            let message = message.delivery;
            all.push(Got {
                id: message.properties.message_id().as_ref().map(ToString::to_string).unwrap_or_default(),
                properties: message.properties,
                payload: message.data,
            });
        }
        all
    }

    /// How many messages are ready in a queue; `None` while the broker does not answer.
    pub async fn depth(&self, queue: &str) -> Option<u32> {
        let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        let asking = async {
            let connection = self.connect().await.ok()?;
            let channel = connection.create_channel().await.ok()?;
            Some(channel.queue_declare(queue.into(), options, FieldTable::default()).await.ok()?.message_count())
        };
        timeout(ANSWER, asking).await.ok()?
    }

    /// The value of an Erlang expression in the node. Takes milliseconds, and `rabbitmqctl` a second of processor time.
    async fn eval(&self, expression: &str) -> String {
        // The node refuses a second caller of one name, and each has the name `c17` unless told otherwise.
        static CALLS: AtomicUsize = AtomicUsize::new(0);
        let cookie = fs::read_to_string(self.directory.join(".erlang.cookie")).expect("a cookie");
        let mut command = self.with_environment(servers::erl_call());
        let caller = format!("c{}-{}", process::id(), CALLS.fetch_add(1, Ordering::Relaxed));
        command.args(["-sname", "punctual@localhost", "-h", &caller, "-c", &cookie, "-e"]);
        let mut command = tokio::process::Command::from(command);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut call = command.spawn().expect("erl_call is installed");
        let mut input = call.stdin.take().expect("a pipe");
        input.write_all(format!("{expression}.\n").as_bytes()).await.expect("it reads");
        drop(input);
        let output = timeout(START, call.wait_with_output()).await.expect("the node answers").expect("it ends");
        let text = String::from_utf8_lossy(&output.stdout);
        let value = text.trim().strip_prefix("{ok, ").and_then(|text| text.strip_suffix('}'));
        value.unwrap_or_else(|| panic!("{expression}: {text}")).to_owned()
    }

    /// `rabbitmqctl` with these words: what it printed. Fails when it does.
    pub async fn ctl(&self, words: &[&str]) -> String {
        let mut command = self.command("rabbitmqctl");
        command.args(["-q", "-n", "punctual@localhost"]).args(words);
        let output = tokio::process::Command::from(command).output().await.expect("rabbitmqctl is installed");
        assert!(output.status.success(), "rabbitmqctl {words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Runs a shell script that calls `$RABBITMQCTL`, with these arguments. Returns its output; fails when the script
    /// fails.
    pub async fn script(&self, script: &Path, arguments: &[&str]) -> String {
        let ctl = self.command("rabbitmqctl");
        let words = [ctl.get_program()].into_iter().chain(ctl.get_args()).map(|word| word.to_str().expect("UTF-8"));
        let words: Vec<_> = words.chain(["-n", "punctual@localhost"]).collect();
        let mut command = tokio::process::Command::new("sh");
        command.arg(script).args(arguments).env("RABBITMQCTL", words.join(" "));
        command.envs(ctl.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let output = command.output().await.expect("a shell");
        assert!(output.status.success(), "{}: {}", script.display(), String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Makes a classic queue hang: it keeps what it gets, and confirms nothing until `resume_queue`.
    pub async fn suspend_queue(&self, name: &str) {
        self.system_call("suspend", name).await;
    }

    pub async fn resume_queue(&self, name: &str) {
        self.system_call("resume", name).await;
    }

    async fn system_call(&self, function: &str, queue: &str) {
        let lookup = format!("rabbit_amqqueue:lookup(rabbit_misc:r(<<\"/\">>, queue, <<\"{queue}\">>))");
        self.eval(&format!("{{ok, Q}} = {lookup}, sys:{function}(amqqueue:get_pid(Q))")).await;
    }

    /// Major and minor.
    pub async fn version(&self) -> (u32, u32) {
        let text = self.eval("rabbit_misc:version()").await;
        let mut parts = text.trim_matches('"').split('.').map(|part| part.parse().expect("a version"));
        (parts.next().expect("a major version"), parts.next().expect("a minor version"))
    }

    /// Sets the timeout of consumers from now on, which the node checks twice a second.
    pub async fn set_consumer_timeout(&self, millis: u32) {
        for (name, millis) in [("channel_tick_interval", 500), ("consumer_timeout", millis)] {
            self.eval(&format!("application:set_env(rabbit, {name}, {millis})")).await;
        }
    }

    /// SIGTERM, and waits for its end.
    pub async fn stop(&mut self) {
        self.signal(Signal::TERM);
        let mut node = self.node.take().expect("it runs");
        let deadline = Instant::now() + START;
        while node.try_wait().expect("it can be waited for").is_none() {
            assert!(Instant::now() < deadline, "RabbitMQ did not stop within {START:?}");
            sleep(POLL).await;
        }
    }

    /// SIGSTOP: it keeps its connections and answers nothing.
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
    }

    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        signal::send(self.node.as_ref().expect("it runs").id(), signal);
    }

    /// As `kill -9` does it.
    pub fn kill(&mut self) {
        if let Some(mut node) = self.node.take() {
            let _ = node.kill();
            let _ = node.wait();
        }
    }

    /// Starts it (again) on the same ports and data, and waits until it takes logins.
    pub async fn restart(&mut self) {
        self.kill();
        let log = fs::File::create(self.directory.join("node.log")).expect("a log file");
        let node = self
            .command("rabbitmq-server")
            // Then the script becomes the node instead of its parent: one process id.
            .env("RUNNING_UNDER_SYSTEMD", "true")
            // The guardian ends it. A signal for the tests must not end a node that is kept.
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a second handle"))
            .stderr(log)
            .spawn()
            .expect("rabbitmq-server is installed");
        fs::write(self.directory.join("node.pid"), node.id().to_string()).expect("written");
        self.node = Some(node);
        self.answers().await;
    }

    /// Waits until it takes logins.
    async fn answers(&self) {
        let deadline = Instant::now() + START;
        // lapin itself waits for ever for a node that accepts and says nothing.
        while !matches!(timeout(ANSWER, self.connect()).await, Ok(Ok(_))) {
            assert!(Instant::now() < deadline, "RabbitMQ did not answer within {START:?}: {}", self.log());
            sleep(POLL).await;
        }
    }

    /// The output of its processes, and its own log.
    fn log(&self) -> String {
        let own = fs::read_dir(self.directory.join("log")).into_iter().flatten().flatten().map(|entry| entry.path());
        let mut all = String::new();
        for file in own.chain([self.directory.join("node.log")]) {
            let _ = writeln!(all, "{}:\n{}", file.display(), fs::read_to_string(&file).unwrap_or_default());
        }
        all
    }

    /// One of a test's own, for as long as the tests run.
    pub async fn start() -> Self {
        Self::start_with("").await
    }

    /// With more lines of `rabbitmq.conf`.
    pub async fn start_with(settings: &str) -> Self {
        Self::start_with_plugins("", settings).await
    }

    /// And with plugins, their names separated by commas.
    pub async fn start_with_plugins(plugins: &str, settings: &str) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory").keep();
        let server = Self::within(directory);
        let guardian = guardian(&server.directory, server.epmd_port());
        let mut server = Self { _guardian: Some(guardian), ..server };
        server.start_first(plugins, settings).await;
        server
    }

    /// Not started yet, on free ports.
    fn within(directory: PathBuf) -> Self {
        let reserved = [(); 4].map(|()| Port::reserve());
        Self {
            authority: Authority::within(&directory),
            directory,
            ports: reserved.each_ref().map(Port::number),
            _reserved: reserved.into(),
            node: None,
            _guardian: None,
        }
    }

    async fn start_first(&mut self, plugins: &str, settings: &str) {
        fs::write(self.directory.join("plugins"), format!("[{plugins}].")).expect("written");
        fs::write(self.directory.join("rabbitmq.conf"), self.settings() + settings).expect("written");
        self.restart().await;
    }

    fn settings(&self) -> String {
        format!(
            // Above what a source keeps: 16 MiB, which is also RabbitMQ 4's own limit.
            "max_message_size = 33554432\n\
             listeners.tcp.local = 127.0.0.1:{}\nlisteners.ssl.local = 127.0.0.1:{}\n\
             ssl_options.cacertfile = {}\nssl_options.certfile = {}\nssl_options.keyfile = {}\n\
             ssl_options.verify = verify_peer\nssl_options.fail_if_no_peer_cert = true\n",
            self.port(),
            self.tls_port(),
            self.authority.file("ca.pem").display(),
            self.authority.file("server.pem").display(),
            self.authority.file("server.key").display(),
        )
    }

    fn command(&self, program: &str) -> Command {
        self.with_environment(servers::rabbitmq(program))
    }

    fn with_environment(&self, mut command: Command) -> Command {
        let path = |name| self.directory.join(name);
        command
            .current_dir(&self.directory)
            .env("HOME", &self.directory)
            .env("ERL_EPMD_PORT", self.epmd_port().to_string())
            .env("RABBITMQ_NODENAME", "punctual@localhost")
            .env("RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS", "-kernel inet_dist_use_interface {127,0,0,1}")
            .env("RABBITMQ_DIST_PORT", self.distribution_port().to_string())
            .env("RABBITMQ_MNESIA_BASE", path("data"))
            .env("RABBITMQ_LOG_BASE", path("log"))
            .env("RABBITMQ_PID_FILE", path("pid"))
            .env("RABBITMQ_ENABLED_PLUGINS_FILE", path("plugins"))
            .env("RABBITMQ_CONFIG_FILE", path("rabbitmq.conf"));
        command
    }

    async fn connect(&self) -> lapin::Result<Connection> {
        let url = format!("amqp://127.0.0.1:{}/%2f", self.port());
        Connection::connect(&url, ConnectionProperties::default()).await
    }
}

/// As if the broker were at `port` of this machine.
pub fn config(port: u16, exchange: &str) -> RabbitMqSinkSettings {
    RabbitMqSinkSettings {
        url: format!("amqp://127.0.0.1:{port}/%2f").into(),
        username: None,
        password: None,
        tls: TlsFiles::default(),
        exchange: template(exchange),
        routing_key: None,
        allow: Allow::default(),
        timeout: Period(Duration::from_secs(10)),
    }
}

/// The setting `exchange`.
pub fn template(exchange: &str) -> Template {
    Template::parse(exchange, Place::Exchange).expect("a valid exchange")
}

/// The setting `routing_key`.
pub fn key(routing_key: &str) -> Template {
    Template::parse(routing_key, Place::RoutingKey).expect("a valid routing key")
}

pub fn durable() -> QueueDeclareOptions {
    QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() }
}

/// Runs epmd; once its input is closed, at the latest when this process ends, it kills what runs in `directory`,
/// and removes that.
fn guardian(directory: &Path, epmd: u16) -> Child {
    let script = r#"trap '' INT TERM
        epmd -address 127.0.0.1 -port "$2" &
        cat
        kill -9 $! $(cat "$1/node.pid")
        rm -rf "$1""#;
    Command::new("sh")
        .args(["-c", script, "guardian"])
        .arg(directory)
        .arg(epmd.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("a shell")
}
