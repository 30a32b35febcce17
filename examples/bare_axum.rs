//! An axum handler and nothing else: `benches/endpoint.sh` compares `headcount serve` with it.

use axum::{Router, routing::any};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let app = Router::new().fallback(any(|| async { "hello\n" }));
    let listener = tokio::net::TcpListener::bind(std::env::args().nth(1).unwrap_or("127.0.0.1:0".into())).await?;
    println!("http://{}", listener.local_addr()?);
    axum::serve(axum::serve::ListenerExt::tap_io(listener, |stream| _ = stream.set_nodelay(true)), app).await?;
    Ok(())
}
