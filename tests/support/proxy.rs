//! A small TCP proxy that lets pass, delays, throttles, swallows or cuts what goes through it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::sleep;

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
    /// How many connections there have been, and are.
    connections: Arc<Connections>,
}

#[derive(Debug, Default)]
struct Connections {
    made: AtomicU64,
    ended: AtomicU64,
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
                            carry(client, targets, weathers).await;
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
        self.connections_made().saturating_sub(self.connections.ended.load(Relaxed))
    }

    pub fn is(&self, weather: Weather) {
        self.weather.send_replace(weather);
    }
}

async fn carry(client: TcpStream, mut targets: watch::Receiver<SocketAddr>, mut weathers: watch::Receiver<Weather>) {
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
    tokio::select! {
        () = pour(from_client, to_server, there) => {}
        () = pour(from_server, to_client, back) => {}
        () = cut => {}
        _ = targets.changed() => {}
    }
}

async fn pour(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    weathers: watch::Receiver<Weather>,
) {
    let mut bytes = vec![0; 16 << 10];
    loop {
        let most = if let Weather::Slow(_) = *weathers.borrow() { 64 } else { bytes.len() };
        let Ok(length @ 1..) = from.read(&mut bytes[..most]).await else { return };
        // What was on its way is lost, too.
        let weather = *weathers.borrow();
        match weather {
            Weather::Clear | Weather::Cut => {}
            Weather::Late(delay) => sleep(delay).await,
            Weather::Slow(bytes_per_second) => {
                sleep(Duration::from_secs_f64(length as f64 / bytes_per_second as f64)).await;
            }
            Weather::Swallowed => continue,
        }
        if to.write_all(&bytes[..length]).await.is_err() {
            return;
        }
    }
}
