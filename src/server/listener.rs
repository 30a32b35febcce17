//! A listener that serves a router until it is told to stop.
//!
//! Each connection is a task of its own: a handler that panics ends its connection, without an answer, and nothing else.

use axum::Router;
use axum::serve::ListenerExt;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::sleep;

/// How long requests in flight may take once the server stops.
const DRAIN: Duration = Duration::from_millis(250);

pub(super) struct Listener {
    listener: TcpListener,
    address: SocketAddr,
}

impl Listener {
    pub(super) async fn bind(address: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        Ok(Self { address: listener.local_addr()?, listener })
    }

    /// Where it listens, also if the system chose the port.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `stop` says so, then lets requests in flight finish for a moment.
    pub(super) async fn serve(self, router: Router, stop: watch::Receiver<bool>) {
        // Answers are small and waited for: they must not wait for an acknowledgement.
        let listener = self.listener.tap_io(|connection| {
            let _ = connection.set_nodelay(true);
        });
        let service = router.into_make_service_with_connect_info::<SocketAddr>();
        let server = axum::serve(listener, service).with_graceful_shutdown(stopped(stop.clone()));
        let deadline = async {
            stopped(stop).await;
            sleep(DRAIN).await;
        };
        tokio::select! {
            _ = server => {}
            () = deadline => tracing::warn!(address = %self.address, "requests were still in flight"),
        }
    }
}

async fn stopped(mut stop: watch::Receiver<bool>) {
    // An error means that the sender is gone, which is a stop as well.
    let _ = stop.wait_for(|stop| *stop).await;
}
