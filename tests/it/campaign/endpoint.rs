//! An HTTP endpoint that records every request with its reply, and misbehaves on demand.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex},
    time::Duration,
};

use socket2::SockRef;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
    runtime::Runtime,
    select,
    sync::watch,
    time::sleep,
};

use super::{
    history::{Arrival, Reply},
    payload,
    random::Random,
};
use crate::support::{port::Port, receiver::wall_clock};

/// A reply that takes longer may come after the timeout of the sink, in milliseconds. Half of that can pass before a message is
/// sent, and the rest is room for a busy machine: with 800 a reply after 738 ms came too late once.
const IN_TIME: u64 = 600;
/// A message with this header is rejected.
pub const REJECT: &str = "x-reject";
/// Share of the requests that take a while although nothing is wrong, in percent, and those that hold a flow: so some tens of
/// messages are in flight at any time.
const LONG: u64 = 30;
const LONG_IN_ORDER: u64 = 3;
/// In milliseconds, so that they are in time.
const LONG_REPLY: [u64; 2] = [250, 550];
/// The header with the version of the message.
pub const VERSION: &str = "x-version";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behaviour {
    Fine,
    Status(u16),
    /// 429 with a `Retry-After` of a second.
    Throttle,
    /// Reads the request and replies nothing, as long as it lasts.
    Hang,
    /// As `Hang` for the messages of this route, and as `Fine` for others.
    HangFor(&'static str),
    /// Reads the request and resets the connection.
    Reset,
    /// Replies, then closes the connection without having announced it.
    Close,
    /// Replies after this time.
    Slow(Duration),
    /// Replies with header lines that are folded, repeated and without a name.
    OddHead,
    /// Sends its reply byte by byte.
    Drip,
}

/// It runs on a thread of its own, so that a busy campaign does not make it late.
pub struct Endpoint {
    port: u16,
    shared: Arc<Shared>,
    /// `None` only while it is dropped.
    server: Option<Runtime>,
}

struct Shared {
    behaviour: watch::Sender<Behaviour>,
    arrivals: Mutex<Vec<Arrival>>,
    /// Messages that are no longer rejected.
    pardoned: Mutex<HashSet<String>>,
}

/// Ends rejections.
#[derive(Clone)]
pub struct Pardons(Arc<Shared>);

impl Pardons {
    pub fn pardon(&self, id: &str) {
        self.0.pardoned.lock().expect("no panic under this lock").insert(id.to_owned());
    }
}

struct Request {
    head: String,
    body: Vec<u8>,
}

impl Endpoint {
    pub fn start() -> Self {
        let shared = Arc::new(Shared {
            behaviour: watch::Sender::new(Behaviour::Fine),
            arrivals: Mutex::default(),
            pardoned: Mutex::default(),
        });
        let server = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let server = server.expect("a runtime");
        let port = Port::reserve();
        let listener = {
            let _context = server.enter();
            port.listen()
        };
        let taking = Arc::clone(&shared);
        server.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, Arc::clone(&taking)));
            }
        });
        Self { port: port.number(), shared, server: Some(server) }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn pardons(&self) -> Pardons {
        Pardons(Arc::clone(&self.shared))
    }

    pub fn behave(&self, behaviour: Behaviour) {
        self.shared.behaviour.send_replace(behaviour);
    }

    /// Whether all of these were confirmed.
    pub fn has(&self, ids: &[String]) -> bool {
        let arrivals = self.shared.arrivals.lock().expect("no panic under this lock");
        let is_confirmed = |arrival: &&Arrival| matches!(arrival.reply, Reply::Status(200) | Reply::Late(200));
        let confirmed: HashSet<&str> = arrivals.iter().filter(is_confirmed).map(|arrival| &*arrival.id).collect();
        ids.iter().all(|id| confirmed.contains(&**id))
    }

    /// Takes what arrived so far.
    pub fn take(&self) -> Vec<Arrival> {
        std::mem::take(&mut self.shared.arrivals.lock().expect("no panic under this lock"))
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        if let Some(server) = self.server.take() {
            server.shutdown_background();
        }
    }
}

async fn serve(stream: TcpStream, shared: Arc<Shared>) {
    // Without it a reply in parts could wait for an acknowledgement.
    let _ = stream.set_nodelay(true);
    let mut stream = BufReader::new(stream);
    while let Some(request) = read(&mut stream).await {
        let began = wall_clock();
        let index = {
            let mut arrivals = shared.arrivals.lock().expect("no panic under this lock");
            arrivals.push(arrival(&request, began));
            arrivals.len() - 1
        };
        let id = own_id(&request);
        let mut ended = None;
        let (reply, goes_on) = answer(&mut stream, &request, &shared, &mut ended).await;
        let is_late = wall_clock() > began + IN_TIME;
        let reply = match reply {
            Reply::Status(status) if is_late => Reply::Late(status),
            reply => reply,
        };
        // The arrivals of a round may have been taken since.
        if let Some(arrival) = shared.arrivals.lock().expect("no panic under this lock").get_mut(index)
            && arrival.id == id
            && arrival.at == began
        {
            arrival.reply = reply;
            arrival.ended = ended;
        }
        if !goes_on {
            return;
        }
    }
}

/// How the request was answered, and whether the connection goes on. `ended`: when the answer began, or the sender was gone.
async fn answer(
    stream: &mut BufReader<TcpStream>,
    request: &Request,
    shared: &Shared,
    ended: &mut Option<u64>,
) -> (Reply, bool) {
    let mut behaviours = shared.behaviour.subscribe();
    let set = *behaviours.borrow_and_update();
    let behaviour = match set {
        Behaviour::HangFor(route) if request.header("punctual-route") == route => Behaviour::Hang,
        Behaviour::HangFor(_) => Behaviour::Fine,
        of_all => of_all,
    };
    let waiting = async {
        match behaviour {
            Behaviour::Hang => {
                let _ = behaviours.wait_for(|now| *now != set).await;
            }
            Behaviour::Slow(time) => sleep(time).await,
            Behaviour::Fine => sleep(own_time(request)).await,
            _ => {}
        }
    };
    let is_gone = select! {
        () = waiting => false,
        () = gone(stream) => true,
    };
    *ended = Some(wall_clock());
    if is_gone {
        return (Reply::Dropped, false);
    }
    let is_pardoned = || shared.pardoned.lock().expect("no panic under this lock").contains(own_id(request));
    let status = if request.header(REJECT) == "1" && !is_pardoned() { 422 } else { 200 };
    let plain = |status: u16| format!("HTTP/1.1 {status} Answer\r\ncontent-length: 0\r\n");
    let (status, head, goes_on) = match behaviour {
        Behaviour::Fine | Behaviour::Drip | Behaviour::Slow(_) => (status, plain(status), true),
        Behaviour::Status(status) => (status, plain(status), true),
        Behaviour::Throttle => (429, plain(429) + "retry-after: 1\r\n", true),
        Behaviour::Hang | Behaviour::HangFor(_) => return (Reply::Dropped, false),
        Behaviour::Reset => {
            let _ = SockRef::from(stream.get_ref()).set_linger(Some(Duration::ZERO));
            return (Reply::Dropped, false);
        }
        Behaviour::Close => (status, plain(status), false),
        Behaviour::OddHead => (status, plain(status) + "x-a: 1\r\n 2\r\nx-a: 3\r\nx-b : 4\r\nx-c:\r\n", true),
    };
    let reply = head + "\r\n";
    let written = if behaviour == Behaviour::Drip {
        drip(stream, &reply).await
    } else {
        let written = stream.write_all(reply.as_bytes()).await;
        written.map_or(0, |()| reply.len())
    };
    let line = reply.find('\n').unwrap_or_default();
    match written {
        all if all == reply.len() => (Reply::Status(status), goes_on),
        // The status line decides, if it arrived.
        part if part > line => (Reply::Late(status), false),
        _ => (Reply::Dropped, false),
    }
}

/// Time that an endpoint takes for this request on its best days.
fn own_time(request: &Request) -> Duration {
    let attempt = format!("{} {}", request.header("punctual-id"), request.header("punctual-attempt"));
    let seed = attempt.bytes().fold(7, |sum: u64, byte| sum.wrapping_mul(1_099_511_628_211) ^ u64::from(byte));
    let mut random = Random::new(seed);
    let share = if matches!(request.header("punctual-route"), "ordered" | "ticks") { LONG_IN_ORDER } else { LONG };
    let millis = if random.chance(share) { random.between(LONG_REPLY[0], LONG_REPLY[1]) } else { 0 };
    Duration::from_millis(millis)
}

/// Returns when the sender has closed the connection.
async fn gone(stream: &mut BufReader<TcpStream>) {
    if stream.fill_buf().await.is_ok_and(|more| !more.is_empty()) {
        std::future::pending::<()>().await;
    }
}

/// Returns the number of bytes that were written.
async fn drip(stream: &mut BufReader<TcpStream>, reply: &str) -> usize {
    for (written, byte) in reply.bytes().enumerate() {
        if stream.write_all(&[byte]).await.is_err() {
            return written;
        }
        sleep(Duration::from_millis(2)).await;
    }
    reply.len()
}

/// `None`: the connection ended.
async fn read(stream: &mut BufReader<TcpStream>) -> Option<Request> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        if stream.read_until(b'\n', &mut head).await.ok()? == 0 {
            return None;
        }
    }
    let head = String::from_utf8(head).ok()?.to_ascii_lowercase();
    let mut request = Request { head, body: Vec::new() };
    request.body = vec![0; request.header("content-length").parse().ok()?];
    stream.read_exact(&mut request.body).await.ok()?;
    Some(request)
}

/// The id that the client gave: sources make ids of their own.
fn own_id(request: &Request) -> &str {
    if request.header("punctual-route").starts_with("from-") {
        let text = str::from_utf8(&request.body).unwrap_or_default();
        text.split('|').next().unwrap_or_default()
    } else {
        request.header("punctual-id")
    }
}

fn arrival(request: &Request, at: u64) -> Arrival {
    let route = request.header("punctual-route");
    let id = own_id(request);
    // Occurrences have the payload of their schedule.
    let name = id.split(['@', '~']).next().unwrap_or(id);
    let version = payload::version(name, &request.body);
    let number = |name: &str| request.header(name).parse().ok();
    // Members of sorted sets have no headers.
    let has_header = !matches!(route, "from-set" | "from-library");
    let expected = version.filter(|_| has_header).map(|version| version.to_string()).unwrap_or_default();
    let found = request.header(VERSION);
    let wrong = (found != expected).then(|| format!("header {VERSION} is `{found}`"));
    Arrival {
        id: id.to_owned(),
        version,
        attempt: number("punctual-attempt").and_then(|attempt: u64| attempt.try_into().ok()).unwrap_or_default(),
        due: number("punctual-due").unwrap_or_default(),
        since: at,
        at,
        ended: None,
        route: route.to_owned(),
        reply: Reply::Open,
        sender: request.sender(),
        wrong,
    }
}

impl Request {
    /// The instance that the path names.
    fn sender(&self) -> Option<usize> {
        let path = self.head.split_whitespace().nth(1)?;
        path.rsplit('/').next()?.parse().ok()
    }

    /// Empty without it.
    fn header(&self, name: &str) -> &str {
        let value = |line: &'_ str| -> Option<usize> {
            let (found, _) = line.split_once(':')?;
            (found == name).then_some(found.len() + 1)
        };
        self.head.lines().find_map(|line| value(line).map(|at| line[at..].trim())).unwrap_or_default()
    }
}
