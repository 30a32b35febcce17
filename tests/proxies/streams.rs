//! Clients that speak HTTP/2: many requests at once on each connection.

use http_body_util::Empty;
use hyper::body::Bytes;
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::net::SocketAddr;
use tokio::net::TcpSocket;
use tokio::task::JoinSet;

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
        let socket = TcpSocket::new_v4().expect("a socket");
        // One client each: a recipe may limit the requests of a client a second.
        socket.bind(([127, 0, 1, nth as u8], 0).into()).expect("an address of this machine");
        let socket = socket.connect(at).await.expect("the proxy listens");
        let (sender, connection) =
            handshake(TokioExecutor::new(), TokioIo::new(socket)).await.expect("the proxy speaks HTTP/2");
        tokio::spawn(connection);
        for token in tokens.iter().copied().cycle().take(streams) {
            answers.spawn(one(sender.clone(), at, token));
        }
    }
    answers.join_all().await
}

async fn one(mut sender: SendRequest<Empty<Bytes>>, at: SocketAddr, token: &'static str) -> (&'static str, u16) {
    let request = http::Request::get(format!("http://{at}/play"))
        .header("authorization", format!("Bearer {token}"))
        .body(Empty::new())
        .expect("a request");
    let answer = async {
        sender.ready().await?;
        sender.send_request(request).await
    };
    (token, answer.await.map_or(0, |answer| answer.status().as_u16()))
}
