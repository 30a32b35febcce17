//! Clients that speak HTTP/2: many requests at once on each connection.

use http_body_util::Empty;
use hyper::body::Bytes;
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::TcpSocket;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Asks for `/play` this often on each of this many connections, without waiting for answers. Each token asks on a
/// stream of every connection in turn. Returns the answers' tokens and statuses; a stream that is refused has status 0.
pub async fn ask(
    at: SocketAddr,
    connections: usize,
    streams: usize,
    tokens: &'static [&str],
) -> Vec<(&'static str, u16)> {
    let mut answers = JoinSet::new();
    for nth in 0..connections {
        let sender = connect(at, nth).await;
        for token in tokens.iter().copied().cycle().take(streams) {
            let sender = sender.clone();
            answers.spawn(async move { (token, one(sender, at, token).await) });
        }
    }
    answers.join_all().await
}

/// Asks for `/play` this often a second for this long, whether answers come or not, the nth time with the nth token.
/// Returns the status of each answer and how long it took, and how long the asking took.
pub async fn ask_steadily(
    at: SocketAddr,
    per_second: u32,
    lasting: Duration,
    token: impl Fn(usize) -> String,
) -> (Vec<(u16, Duration)>, Duration) {
    const CONNECTIONS: usize = 10;
    let mut senders = Vec::new();
    for nth in 0..CONNECTIONS {
        senders.push(connect(at, nth).await);
    }
    let mut answers = JoinSet::new();
    let began = Instant::now();
    let mut ticks = tokio::time::interval(Duration::from_secs(1) / per_second);
    let asks = (lasting.as_secs_f64() * f64::from(per_second)) as usize;
    for (nth, sender) in senders.iter().cycle().take(asks).enumerate() {
        ticks.tick().await;
        let (sender, token) = (sender.clone(), token(nth));
        let began = Instant::now();
        answers.spawn(async move { (one(sender, at, &token).await, began.elapsed()) });
    }
    let asked_for = began.elapsed();
    (answers.join_all().await, asked_for)
}

/// Connects as a client of its own: a recipe may limit the requests of a client a second.
async fn connect(at: SocketAddr, nth: usize) -> SendRequest<Empty<Bytes>> {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.bind(([127, 0, 1, nth as u8], 0).into()).expect("an address of this machine");
    let socket = socket.connect(at).await.expect("the proxy listens");
    let (sender, connection) =
        handshake(TokioExecutor::new(), TokioIo::new(socket)).await.expect("the proxy speaks HTTP/2");
    tokio::spawn(connection);
    sender
}

async fn one(mut sender: SendRequest<Empty<Bytes>>, at: SocketAddr, token: &str) -> u16 {
    let request = http::Request::get(format!("http://{at}/play"))
        .header("authorization", format!("Bearer {token}"))
        .body(Empty::new())
        .expect("a request");
    let answer = async {
        sender.ready().await?;
        sender.send_request(request).await
    };
    answer.await.map_or(0, |answer| answer.status().as_u16())
}
