//! A small TCP proxy that lets pass, delays, throttles, swallows or cuts what goes through it.

use std::net::SocketAddr;
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
}

impl Proxy {
    /// Stands before `target` until it is dropped.
    pub fn start(runtime: &Handle, target: SocketAddr) -> Self {
        let (weather, weathers) = watch::channel(Weather::Clear);
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("a free port");
        let address = listener.local_addr().expect("a bound listener has an address");
        runtime.spawn(async move {
            let mut ended = weathers.clone();
            loop {
                tokio::select! {
                    accepted = listener.accept() => {
                        let Ok((client, _)) = accepted else { continue };
                        tokio::spawn(carry(client, target, weathers.clone()));
                    }
                    // The proxy is gone.
                    () = async { while ended.changed().await.is_ok() {} } => return,
                }
            }
        });
        Self { address, weather }
    }

    pub fn is(&self, weather: Weather) {
        self.weather.send_replace(weather);
    }
}

async fn carry(client: TcpStream, target: SocketAddr, mut weathers: watch::Receiver<Weather>) {
    if *weathers.borrow() == Weather::Cut {
        return;
    }
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
