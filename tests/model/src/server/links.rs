//! Links to a server, over which a client speaks the protocol, and the faults of the network.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, DuplexStream, ReadHalf, WriteHalf, duplex, split},
    sync::{mpsc, watch},
    time::{Instant, sleep_until},
};

use super::Server;
use crate::value::{Reply, take_command};

/// Bytes under way in each direction of a link.
const BUFFER: usize = 1 << 20;

/// Faults of links and of the scripts that are called over them.
#[derive(Clone, Copy, Debug, Default)]
pub struct LinkFaults {
    /// Share of the commands that end their link before they are carried out.
    pub before: f64,
    /// Share of the commands that end their link after they were carried out, without a reply.
    pub after: f64,
    /// Share of the commands after which the link is open but silent.
    pub silence: f64,
    /// Share of the scripts in which one command fails.
    pub errors: f64,
    /// Maximum latency of a command, and of its reply.
    pub latency: Duration,
    /// Links end, and no new ones are made.
    pub down: bool,
}

/// Makes links to one server.
pub struct Links {
    server: Arc<Server>,
    faults: Mutex<LinkFaults>,
    rng: Mutex<StdRng>,
    /// Incremented to end all links.
    ends: watch::Sender<u64>,
    received: AtomicU64,
}

/// The fate of one command.
enum Fate {
    Lost,
    Unanswered,
    Silent,
    Answered,
}

type Queue<T> = (mpsc::UnboundedSender<T>, mpsc::UnboundedReceiver<T>);

impl Links {
    pub fn new(server: &Arc<Server>, seed: u64) -> Arc<Self> {
        Arc::new(Self {
            server: Arc::clone(server),
            faults: Mutex::default(),
            rng: Mutex::new(StdRng::seed_from_u64(seed)),
            ends: watch::Sender::new(0),
            received: AtomicU64::new(0),
        })
    }

    pub fn set_faults(&self, faults: LinkFaults) {
        *self.faults.lock() = faults;
        if faults.down {
            self.end_all();
        }
    }

    /// Ends all links.
    pub fn end_all(&self) {
        self.ends.send_modify(|times| *times += 1);
    }

    /// Makes a link; `None`: the server refuses it.
    pub fn connect(self: &Arc<Self>) -> Option<DuplexStream> {
        if self.faults.lock().down {
            return None;
        }
        let (client, server) = duplex(BUFFER);
        let mut ends = self.ends.subscribe();
        let link = self.server.links.fetch_add(1, Ordering::Relaxed);
        let links = Arc::clone(self);
        tokio::spawn(async move {
            let (reader, writer) = split(server);
            let (commands, replies): (Queue<_>, Queue<_>) = (mpsc::unbounded_channel(), mpsc::unbounded_channel());
            tokio::select! {
                () = links.read(reader, &commands.0) => {}
                () = links.execute(link, commands.1, &replies.0) => {}
                () = write(writer, replies.1) => {}
                _ = ends.changed() => {}
            }
            links.server.end_link(link);
        });
        Some(client)
    }

    /// How many commands came over all links, also those that are not executed yet.
    pub fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// Reads commands until the client ends the link.
    async fn read(
        &self,
        mut reader: ReadHalf<DuplexStream>,
        commands: &mpsc::UnboundedSender<(Instant, Vec<Vec<u8>>)>,
    ) {
        let (mut received, mut arrives) = (Vec::new(), Instant::now());
        while let Ok(1..) = reader.read_buf(&mut received).await {
            while let Some(command) = take_command(&mut received) {
                arrives = arrives.max(Instant::now() + self.latency());
                let _ = commands.send((arrives, command));
                self.received.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Executes commands until a fault ends the link.
    async fn execute(
        &self,
        link: u64,
        mut commands: mpsc::UnboundedReceiver<(Instant, Vec<Vec<u8>>)>,
        replies: &mpsc::UnboundedSender<(Instant, Reply)>,
    ) {
        let (messages, mut to_subscriber): Queue<Reply> = mpsc::unbounded_channel();
        let mut leaves = Instant::now();
        let mut is_resp3 = false;
        loop {
            let (arrives, command) = tokio::select! {
                biased;
                Some(message) = to_subscriber.recv() => {
                    leaves = leaves.max(Instant::now() + self.latency());
                    let _ = replies.send((leaves, if is_resp3 { message.pushed() } else { message }));
                    continue;
                }
                command = commands.recv() => match command {
                    Some(command) => command,
                    None => return,
                },
            };
            sleep_until(arrives).await;
            let (fate, share) = self.fate();
            if matches!(fate, Fate::Lost) {
                return;
            }
            is_resp3 |= command.starts_with(&[b"HELLO".to_vec(), b"3".to_vec()]);
            let is_push = is_resp3 && command[0].to_ascii_uppercase().ends_with(b"SUBSCRIBE");
            for reply in self.reply(link, &command, &messages, share) {
                leaves = leaves.max(Instant::now() + self.latency());
                let _ = replies.send((leaves, if is_push { reply.pushed() } else { reply }));
                if !matches!(fate, Fate::Answered) {
                    break;
                }
            }
            match fate {
                Fate::Unanswered => return,
                Fate::Silent => std::future::pending().await,
                Fate::Lost | Fate::Answered => {}
            }
        }
    }

    fn reply(
        &self,
        link: u64,
        command: &[Vec<u8>],
        messages: &mpsc::UnboundedSender<Reply>,
        fails_at: Option<f64>,
    ) -> Vec<Reply> {
        let name = command[0].to_ascii_uppercase();
        let confirmed = |kind: &str, channel: &[u8], count| {
            Reply::Array(vec![Reply::bulk(kind), Reply::bulk(channel), Reply::count(count)])
        };
        match &name[..] {
            b"SUBSCRIBE" | b"SSUBSCRIBE" => {
                if let Some(reply) = self.server.given(command) {
                    return vec![reply];
                }
                let is_sharded = name.len() > b"SUBSCRIBE".len();
                let subscribe = |channel: &Vec<u8>| {
                    let count = self.server.subscribe(link, channel, is_sharded, messages);
                    confirmed(if is_sharded { "ssubscribe" } else { "subscribe" }, channel, count)
                };
                command[1..].iter().map(subscribe).collect()
            }
            b"UNSUBSCRIBE" => {
                let unsubscribe = |channel: &Vec<u8>| {
                    let count = self.server.unsubscribe(link, channel, false);
                    confirmed("unsubscribe", channel, count)
                };
                command[1..].iter().map(unsubscribe).collect()
            }
            b"HELLO" if command.get(1).is_some_and(|version| version == b"3") => {
                vec![Reply::Array(vec![Reply::bulk("proto"), Reply::Int(3)])]
            }
            _ => {
                #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a small number")]
                let place = |commands: u32| fails_at.map(|share| (share * f64::from(commands)) as u32 + 1);
                vec![self.server.execute_failing(command, place)]
            }
        }
    }

    /// Draws the fate of a command, and the command of a script that fails, as a share of its commands.
    fn fate(&self) -> (Fate, Option<f64>) {
        let faults = *self.faults.lock();
        let mut rng = self.rng.lock();
        let share = rng.random_bool(faults.errors).then(|| rng.random());
        let fate = if rng.random_bool(faults.before) {
            Fate::Lost
        } else if rng.random_bool(faults.after) {
            Fate::Unanswered
        } else if rng.random_bool(faults.silence) {
            Fate::Silent
        } else {
            Fate::Answered
        };
        (fate, share)
    }

    fn latency(&self) -> Duration {
        let longest = self.faults.lock().latency;
        if longest.is_zero() { longest } else { longest.mul_f64(self.rng.lock().random()) }
    }
}

/// Writes replies when they arrive.
async fn write(mut writer: WriteHalf<DuplexStream>, mut replies: mpsc::UnboundedReceiver<(Instant, Reply)>) {
    let mut bytes = Vec::new();
    while let Some((at, reply)) = replies.recv().await {
        sleep_until(at).await;
        bytes.clear();
        reply.encode(&mut bytes);
        if writer.write_all(&bytes).await.is_err() {
            return;
        }
    }
}
