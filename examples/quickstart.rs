//! An axum service with one seat, and its admin page beside it.

use axum::{Router, routing::get};
use headcount::Headcount;
use std::net::SocketAddr;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let headcount = Headcount::builder().max_active_users(1).start()?;
    let app = Router::new()
        .route("/", get(|| async { "you are in\n" }))
        .layer(headcount.layer())
        .nest_service("/admin", headcount.admin_router()?);
    let address = std::env::args().nth(1).unwrap_or("127.0.0.1:8080".into());
    let listener = tokio::net::TcpListener::bind(address).await?;
    println!("http://{}", listener.local_addr()?);
    axum::serve(listener, app.into_make_service_with_connect_info::<SocketAddr>()).await?;
    Ok(())
}
