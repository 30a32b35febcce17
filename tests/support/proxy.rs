//! A small TCP proxy that lets pass, delays, throttles, swallows or cuts what goes through it.

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

/// What happens to bytes, either way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weather {
    Clear,
    /// Each piece arrives so much later.
    Late(Duration),
    /// So many bytes a second.
    Slow(u64),
    /// Taken in, and never handed on; connections stay open.
    Swallowed,
    /// Connections are closed, and new ones, too.
    Cut,
}

pub struct Proxy {
    pub address: SocketAddr,
    weather: watch::Sender<Weather>,
    target: watch::Sender<SocketAddr>,
    connections: Arc<Connections>,
}

/// What there has been.
#[derive(Debug, Default)]
struct Connections {
    made: AtomicU64,
    ended: AtomicU64,
    /// The most that were there at a time.
    most: AtomicU64,
    /// The most scripts that were called on one of them before anything came back.
    most_in_flight: AtomicU64,
}

/// One connection may be there before it is seen that the one before it has ended.
const OVERLAP: Duration = Duration::from_millis(50);

impl Connections {
    fn open(&self) -> u64 {
        self.made.load(Relaxed).saturating_sub(self.ended.load(Relaxed))
    }
}

impl Proxy {
    /// Stands before `target` until it is dropped.
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
                                () = carry(client, targets, weathers, &counted.most_in_flight) => {}
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

    /// Connections go to another server from now on; those that are there end.
    pub fn leads_to(&self, target: SocketAddr) {
        self.target.send_replace(target);
    }

    /// How many connections there have been.
    pub fn connections_made(&self) -> u64 {
        self.connections.made.load(Relaxed)
    }

    /// How many connections there are.
    pub fn connections_open(&self) -> u64 {
        self.connections.open()
    }

    /// The most connections that there were at a time since this was last asked.
    pub fn most_connections(&self) -> u64 {
        self.connections.most.swap(0, Relaxed)
    }

    /// The most scripts that were called on one connection before anything came back, since this was last asked: a
    /// round calls one at a time.
    pub fn most_in_flight(&self) -> u64 {
        self.connections.most_in_flight.swap(0, Relaxed)
    }

    pub fn is(&self, weather: Weather) {
        self.weather.send_replace(weather);
    }
}

async fn carry(
    client: TcpStream,
    mut targets: watch::Receiver<SocketAddr>,
    mut weathers: watch::Receiver<Weather>,
    most_in_flight: &AtomicU64,
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
        let scripts = bytes.windows(SCRIPT.len()).filter(|some| *some == SCRIPT).count() as u64;
        most_in_flight.fetch_max(in_flight.fetch_add(scripts, Relaxed) + scripts, Relaxed);
    };
    tokio::select! {
        // A client that is gone waits for nothing. What a server said before it went is handed on.
        () = pour(from_client, to_server, there, AtTheEnd::Drop, asked, |_| {}) => {}
        () = pour(from_server, to_client, back, AtTheEnd::HandOn, |_| {}, |_| in_flight.store(0, Relaxed)) => {}
        () = cut => {}
        _ = targets.changed() => {}
    }
}

const SCRIPT: &[u8] = b"EVALSHA\r\n";

/// What becomes of what is still on its way when its sender has ended.
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
    // So little waits that a slow way is slow for who sends, too.
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
                // Once it is over, what still waits goes at once.
                Weather::Slow(_) if *weathers.borrow() == Weather::Clear => {}
                Weather::Slow(bytes_per_second) => {
                    sleep(Duration::from_secs_f64(bytes.len() as f64 / bytes_per_second as f64)).await;
                }
                Weather::Swallowed => continue,
            }
            // What was on its way is lost, too.
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
