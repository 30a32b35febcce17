//! A game's backend: players log in, get a token, and play a match over a WebSocket; the number of players is limited.
//!
//! ```sh
//! head -c 32 /dev/urandom | base64 > game.key
//! cargo run --features full --example game_backend -- game.key 2 127.0.0.1:8080
//! curl -H 'content-type: application/json' -d '{"name":"alice","password":"open sesame"}' http://127.0.0.1:8080/login
//! curl -H 'authorization: Bearer …' http://127.0.0.1:8080/lobby
//! ```

use axum::extract::ws::{WebSocket, WebSocketUpgrade};
use axum::extract::{Extension, Json, State};
use axum::http::StatusCode;
use axum::response::Response;
use axum::routing::{get, post};
use axum::{Router, serve};
use headcount::config::{Carrier, LimitKey};
use headcount::layer::{Limit, Subject};
use headcount::limit::{Limiter, Memory, sliding_log};
use headcount::{Headcount, Presence};
use jsonwebtoken::{EncodingKey, Header, encode, get_current_timestamp};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

#[derive(serde::Deserialize)]
struct Login {
    name: String,
    password: String,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [key_file, max_players, address, more @ ..] = &arguments[..] else {
        return Err("usage: game_backend KEY_FILE MAX_PLAYERS ADDRESS [WINDOW]; see the top of the example".into());
    };
    let window = more.first().map_or(Ok(Duration::from_secs(30 * 60)), |window| humantime::parse_duration(window))?;
    // A player is identified by the `sub` of a token, which only the owner of the key can sign.
    // Players who have to wait come in by the order of their arrival: the game keeps the header X-Headcount-Ticket of a
    // refusal, and shows it with the next try.
    let headcount = Headcount::builder()
        .max_active_users(max_players.parse()?)
        .window(window)
        .jwt_keys([key_file])
        .line(Carrier::Header)
        .start()?;

    // Limits guesses of passwords: five attempts a minute from an address. A login is not yet a player, so it needs no
    // seat.
    let attempts = Limiter::new("login", Memory::new(sliding_log(5, Duration::from_secs(60)))?);
    let attempts = Limit::new(attempts, LimitKey::ClientIp).period(Duration::from_secs(60));
    let key = std::fs::read(key_file)?;
    let key = EncodingKey::from_secret(key.strip_suffix(b"\n").unwrap_or(&key));
    let login =
        Router::new().route("/login", post(login)).with_state(Arc::new(key)).layer(headcount.limit_layer([attempts]));

    let game = Router::new().route("/lobby", get(lobby)).route("/match", get(play)).layer(headcount.layer());

    let app = Router::new()
        .route("/healthz", get(|| async { "healthy\n" }))
        .merge(login)
        .merge(game)
        // Without a bearer token, the admin page answers only on loopback, and changes nothing.
        .nest_service("/admin", headcount.admin_router()?);
    let listener = tokio::net::TcpListener::bind(address).await?;
    println!("http://{}", listener.local_addr()?);
    let draining = headcount.clone();
    let stopped = async move {
        let _ = tokio::signal::ctrl_c().await;
        draining.drain();
    };
    serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).with_graceful_shutdown(stopped).await?;
    headcount.stop().await;
    Ok(())
}

/// Returns a token for a quarter of an hour. A player who logs in again gets another token and stays the same player.
async fn login(State(key): State<Arc<EncodingKey>>, Json(login): Json<Login>) -> Result<String, StatusCode> {
    if login.password != "open sesame" {
        return Err(StatusCode::UNAUTHORIZED);
    }
    let claims = serde_json::json!({ "sub": login.name, "exp": get_current_timestamp() + 15 * 60 });
    encode(&Header::default(), &claims, &key).map_err(|_| StatusCode::INTERNAL_SERVER_ERROR)
}

async fn lobby(Extension(Subject(name)): Extension<Subject>) -> String {
    format!("welcome, {name}\n")
}

/// A match is one WebSocket, however long it lasts: its player stays active until it ends.
async fn play(upgrade: WebSocketUpgrade, Extension(presence): Extension<Arc<Presence>>) -> Response {
    upgrade.on_upgrade(async move |socket| {
        run_match(socket).await;
        drop(presence);
    })
}

async fn run_match(mut socket: WebSocket) {
    while let Some(Ok(message)) = socket.recv().await {
        if socket.send(message).await.is_err() {
            return;
        }
    }
}
