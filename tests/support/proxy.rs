//! A small TCP proxy that forwards, delays, throttles, drops or cuts off what goes through it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, sleep_until};

/// What happens to bytes, in both directions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weather {
    Clear,
    /// Each piece arrives later by this time.
    Late(Duration),
    /// This many bytes a second.
    Slow(u64),
    /// Read, and never forwarded; connections stay open.
    Swallowed,
    /// Connections are closed, also new ones.
    Cut,
}

pub struct Proxy {
    pub address: SocketAddr,
    weather: watch::Sender<Weather>,
    target: watch::Sender<SocketAddr>,
    connections: Arc<Connections>,
}

/// Counts of connections and scripts.
#[derive(Debug, Default)]
struct Connections {
    made: AtomicU64,
    ended: AtomicU64,
    /// The most connections at a time.
    most: AtomicU64,
    /// The most scripts that were called on one connection before an answer.
    most_in_flight: AtomicU64,
    /// The HTTP requests of clients.
    requests: AtomicU64,
}

/// How long a connection must last to count for [`Proxy::most_connections`]: the end of the previous connection may be
/// noticed a little later than the new connection.
const OVERLAP: Duration = Duration::from_millis(50);

impl Connections {
    fn open(&self) -> u64 {
        self.made.load(Relaxed).saturating_sub(self.ended.load(Relaxed))
    }
}

impl Proxy {
    /// Forwards connections to `target` until it is dropped.
    pub fn start(runtime: &Handle, target: SocketAddr) -> Self {
        let (weather, weathers) = watch::channel(Weather::Clear);
        let (target, targets) = watch::channel(target);
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("a free port");
        let address = listener.local_addr().expect("a bound listener has an address");
        let connections = Arc::new(Connections::default());
        let counted = Arc::clone(&connections);
        runtime.spawn(async move {
            let mut ended = weathers.clone();
            loop {
                tokio::select! {
                    accepted = listener.accept() => {
                        let Ok((client, _)) = accepted else { continue };
                        counted.made.fetch_add(1, Relaxed);
                        let (weathers, targets, counted) = (weathers.clone(), targets.clone(), Arc::clone(&counted));
                        tokio::spawn(async move {
                            let most = async {
                                sleep(OVERLAP).await;
                                counted.most.fetch_max(counted.open(), Relaxed);
                                std::future::pending::<()>().await;
                            };
                            tokio::select! {
                                () = carry(client, targets, weathers, &counted) => {}
                                () = most => {}
                            }
                            counted.ended.fetch_add(1, Relaxed);
                        });
                    }
                    // The proxy is gone.
                    () = async { while ended.changed().await.is_ok() {} } => return,
                }
            }
        });
        Self { address, weather, target, connections }
    }

    /// From now on connections go to another server; existing ones are closed.
    pub fn leads_to(&self, target: SocketAddr) {
        self.target.send_replace(target);
    }

    /// The number of connections so far.
    pub fn connections_made(&self) -> u64 {
        self.connections.made.load(Relaxed)
    }

    /// The number of open connections.
    pub fn connections_open(&self) -> u64 {
        self.connections.open()
    }

    /// The most connections at a time since the last call.
    pub fn most_connections(&self) -> u64 {
        self.connections.most.swap(0, Relaxed)
    }

    /// The most scripts that were called on one connection before an answer, since the last call: a round calls one at
    /// a time.
    pub fn most_in_flight(&self) -> u64 {
        self.connections.most_in_flight.swap(0, Relaxed)
    }

    /// The HTTP requests so far, also of clients that have disconnected.
    pub fn requests_made(&self) -> u64 {
        self.connections.requests.load(Relaxed)
    }

    pub fn is(&self, weather: Weather) {
        self.weather.send_replace(weather);
    }
}

async fn carry(
    client: TcpStream,
    mut targets: watch::Receiver<SocketAddr>,
    mut weathers: watch::Receiver<Weather>,
    counts: &Connections,
) {
    if *weathers.borrow() == Weather::Cut {
        return;
    }
    let target = *targets.borrow_and_update();
    let Ok(server) = TcpStream::connect(target).await else { return };
    for stream in [&client, &server] {
        let _ = stream.set_nodelay(true);
    }
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let (there, back) = (weathers.clone(), weathers.clone());
    let cut = async {
        if weathers.wait_for(|weather| *weather == Weather::Cut).await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    let in_flight = AtomicU64::new(0);
    let asked = |bytes: &[u8]| {
        let count = |of: &[u8]| bytes.windows(of.len()).filter(|some| *some == of).count() as u64;
        counts.requests.fetch_add(count(HTTP_REQUEST), Relaxed);
        let scripts = count(SCRIPT);
        counts.most_in_flight.fetch_max(in_flight.fetch_add(scripts, Relaxed) + scripts, Relaxed);
    };
    tokio::select! {
        // The data of a client that disconnected does not wait. What a server sent before it disconnected is forwarded.
        () = pour(from_client, to_server, there, AtTheEnd::Drop, asked, |_| {}) => {}
        () = pour(from_server, to_client, back, AtTheEnd::HandOn, |_| {}, |_| in_flight.store(0, Relaxed)) => {}
        () = cut => {}
        _ = targets.changed() => {}
    }
}

const SCRIPT: &[u8] = b"EVALSHA\r\n";
const HTTP_REQUEST: &[u8] = b" HTTP/1.1\r\n";

/// What happens to data under way when its sender has disconnected.
enum AtTheEnd {
    Drop,
    HandOn,
}

async fn pour(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    weathers: watch::Receiver<Weather>,
    at_the_end: AtTheEnd,
    came: impl Fn(&[u8]),
    went: impl Fn(&[u8]),
) {
    // The buffer is small, so that the sender notices a slow path, too.
    let (on_its_way, mut pieces) = mpsc::channel::<(Instant, Weather, Vec<u8>)>(64);
    let seen = weathers.clone();
    let take = async move {
        let mut bytes = vec![0; 16 << 10];
        loop {
            let most = if let Weather::Slow(_) = *seen.borrow() { 64 } else { bytes.len() };
            let Ok(length @ 1..) = from.read(&mut bytes[..most]).await else { return };
            came(&bytes[..length]);
            let piece = (Instant::now(), *seen.borrow(), bytes[..length].to_vec());
            if on_its_way.send(piece).await.is_err() {
                return;
            }
        }
    };
    let hand_on = async {
        while let Some((taken, weather, bytes)) = pieces.recv().await {
            match weather {
                Weather::Clear | Weather::Cut => {}
                Weather::Late(delay) => sleep_until(taken + delay).await,
                // After the end of the fault, waiting data is forwarded at once.
                Weather::Slow(_) if *weathers.borrow() == Weather::Clear => {}
                Weather::Slow(bytes_per_second) => {
                    sleep(Duration::from_secs_f64(bytes.len() as f64 / bytes_per_second as f64)).await;
                }
                Weather::Swallowed => continue,
            }
            // Data that was under way is lost, too.
            if *weathers.borrow() == Weather::Swallowed {
                continue;
            }
            if to.write_all(&bytes).await.is_err() {
                return;
            }
            went(&bytes);
        }
    };
    let mut hand_on = std::pin::pin!(hand_on);
    tokio::select! {
        () = take => {}
        () = &mut hand_on => return,
    }
    if matches!(at_the_end, AtTheEnd::HandOn) {
        hand_on.await;
    }
}
