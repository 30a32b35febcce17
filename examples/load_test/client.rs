//! The players' HTTP: one client for all, connections kept alive.

use axum::body::Bytes;
use axum::http::{Request, Response, StatusCode, header};
use crossbeam_channel::Sender;
use headcount::players::{Answer, Visit};
use http_body_util::{BodyExt, Empty};
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use std::fmt::Display;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tokio::runtime::Handle;

const TICKET: &str = "x-headcount-ticket";

/// The time limit for an answer.
pub const PATIENCE: Duration = Duration::from_secs(10);

pub struct Client {
    http: hyper_util::client::legacy::Client<HttpConnector, Empty<Bytes>>,
    servers: Vec<String>,
    runtime: Handle,
}

/// The result of a request. Times are real time since the start.
#[derive(Debug, Clone, Copy)]
pub struct Answered {
    pub visit: Visit,
    pub sent: Duration,
    pub at: Duration,
    pub answer: Answer,
}

impl Client {
    /// A client for these servers, its connections driven by the runtime that this is called on.
    pub fn new(servers: &[SocketAddr]) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let http = hyper_util::client::legacy::Client::builder(TokioExecutor::new()).build(connector);
        let servers = servers.iter().map(|address| format!("http://{address}/")).collect();
        Self { http, servers, runtime: Handle::current() }
    }

    /// Sends a player's request, with the ticket that the player shows. Returns the answer, and the next ticket.
    pub fn ask<P: Display>(
        &self,
        server: usize,
        player: P,
        ticket: Option<&str>,
    ) -> impl Future<Output = (Answer, Option<String>)> + Send + use<P> {
        let mut request = Request::get(&self.servers[server]).header(header::AUTHORIZATION, format!("Bearer {player}"));
        if let Some(ticket) = ticket {
            request = request.header(TICKET, ticket);
        }
        let asked = self.http.request(request.body(Empty::new()).expect("a request of known good parts"));
        async {
            match tokio::time::timeout(PATIENCE, asked).await {
                Ok(Ok(response)) => read(response).await,
                _ => (Answer::Lost, None),
            }
        }
    }

    /// Sends a player's request; the answer goes to the channel.
    pub fn send<E: From<Answered> + Send + 'static>(&self, visit: Visit, started: Instant, answers: &Sender<E>) {
        let asked = self.ask(visit.server, visit.player, None);
        let answers = answers.clone();
        let sent = started.elapsed();
        self.runtime.spawn(async move {
            let (answer, _) = asked.await;
            // The run may have ended.
            let _ = answers.send(Answered { visit, sent, at: started.elapsed(), answer }.into());
        });
    }
}

async fn read<B: axum::body::HttpBody + Unpin>(response: Response<B>) -> (Answer, Option<String>) {
    let (parts, body) = response.into_parts();
    // Read to the end, so that the connection can be reused.
    if body.collect().await.is_err() {
        return (Answer::Lost, None);
    }
    let text = |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok());
    let answer = match (parts.status, text("retry-after").and_then(|text| text.parse().ok())) {
        (StatusCode::OK, _) => Answer::Admitted,
        // Whole seconds of the fleet's own time, which is the players' time.
        (StatusCode::TOO_MANY_REQUESTS, Some(seconds)) => {
            Answer::Rejected { retry_after: Duration::from_secs(seconds) }
        }
        _ => Answer::Lost,
    };
    (answer, text(TICKET).map(str::to_owned))
}
