//! Runs the server from its start to its stop.

use super::check;
use super::config::{LoadError, Loaded};
use super::confirm;
use super::files;
use super::limits;
use super::listener::{Listener, MAX_ADMIN_CONNECTIONS, Purpose};
use super::state;
use super::supervisor;
use super::touch;
use crate::config::{Config, ConfigError};
use crate::headcount::{BuildError, Builder};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// The reason why the server did not run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The configuration cannot be used.
    #[error(transparent)]
    Config(#[from] LoadError),
    /// A listener cannot be opened.
    #[error("{key} = {address}: {source}. Another program may use the address; choose another, or port 0 for any")]
    Listen {
        /// The key of the address.
        key: &'static str,
        /// The address.
        address: SocketAddr,
        /// The reason.
        source: io::Error,
    },
    /// The operating system refused something else.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// The reason.
        source: io::Error,
    },
}

/// The default for the largest number of refusals that wait at a time. It is an eighth of the connections to headcount
/// that the recipes for Envoy and HAProxy allow. If waiting refusals held all these connections, checks of users who
/// are in would queue behind them.
const MOST_DELAYED_BEHIND_A_PROXY: u64 = 128;

/// Serves until a signal. Then it reports not ready, finishes the requests in progress, publishes what the store
/// lacks, and returns.
///
/// # Errors
/// [`ServeError`].
pub async fn serve(mut loaded: Loaded) -> Result<(), ServeError> {
    if let Err(warning) = state::choose(&mut loaded.config) {
        tracing::warn!("{warning}");
    }
    // A proxy asks over few connections: refusals that wait on them would delay the checks of users who are in.
    loaded.config.admission.max_delayed.get_or_insert(MOST_DELAYED_BEHIND_A_PROXY);
    let config = loaded.config.clone();
    check_admin(&config).map_err(|error| loaded.locate(error))?;
    let builder: Builder = config.clone().into();
    let headcount = builder.start().map_err(|error| match error {
        BuildError::Config(error) => ServeError::Config(loaded.locate(error)),
        BuildError::Start { what, source } => ServeError::System { what, source },
    })?;
    let admin_router =
        headcount.admin_router_on(Some(config.admin.listen.ip())).map_err(|error| loaded.locate(error))?;
    if config.has_only_limits() {
        tracing::warn!("there is no admission.max_active_users: requests are limited, and everybody is admitted");
    }
    let limits = Arc::new(limits::open(&config, &headcount).map_err(|error| loaded.locate(error))?);
    headcount.explain_limits(Arc::clone(&limits));
    let check = listen("server.listen", Purpose::Check, config.server.listen, files::most_checks()).await?;
    // A check that waits keeps its connection, so at most a quarter of the connections may wait.
    headcount.waiting_refusals().lower_max_waiting(files::most_checks() as u64 / 4);
    let admin = listen("admin.listen", Purpose::Admin, config.admin.listen, MAX_ADMIN_CONNECTIONS).await?;
    let signals = Signals::new().map_err(|source| ServeError::System { what: "cannot wait for signals", source })?;
    announce(&check, &admin);
    supervisor::tell_ready();
    tokio::spawn(supervisor::notify_watchdog(headcount.clone()));

    let (stop_check, check_stops) = watch::channel(false);
    let (stop_admin, admin_stops) = watch::channel(false);
    let checks = check::router(headcount.clone(), limits)
        .merge(confirm::router(headcount.clone()))
        .merge(touch::router(headcount.clone()));
    let check = tokio::spawn(check.serve(checks, headcount.clone(), check_stops));
    let admin = tokio::spawn(admin.serve(admin_router, headcount.clone(), admin_stops));
    let signals = signals.first().await;
    tracing::info!("stopping");
    supervisor::tell_stopping();
    let stop_everything = async {
        // The admin listener stays open to the end, because a load balancer asks there whether this server is ready.
        headcount.drain();
        stop_check.send_replace(true);
        let _ = check.await;
        headcount.stop().await;
        stop_admin.send_replace(true);
        let _ = admin.await;
    };
    tokio::select! {
        () = stop_everything => tracing::info!("stopped"),
        () = signals.second() => tracing::warn!("stopped at once by a second signal"),
    }
    Ok(())
}

/// Checks that the admin listener has a token, or that only this machine can reach it.
pub(super) fn check_admin(config: &Config) -> Result<(), ConfigError> {
    if config.admin.listen.ip().is_loopback() || config.admin.token_file.is_some() {
        return Ok(());
    }
    Err(ConfigError::Missing {
        key: "admin.token_file",
        why: "admin.listen is not a loopback address, so a file with a bearer token is needed; to make one: head -c \
              32 /dev/urandom | base64 > admin.token",
    })
}

async fn listen(key: &'static str, purpose: Purpose, address: SocketAddr, most: usize) -> Result<Listener, ServeError> {
    Listener::bind(purpose, address, most).await.map_err(|source| ServeError::Listen { key, address, source })
}

fn announce(check: &Listener, admin: &Listener) {
    let mut out = io::stdout().lock();
    // The reader may have closed the pipe.
    let _ = writeln!(out, "checks  http://{}/v1/check", check.address());
    let _ = writeln!(out, "admin   http://{}/", admin.address());
    let _ = out.flush();
}

/// Waits for SIGTERM or SIGINT: the first signal stops the server, the second ends it at once.
struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

impl Signals {
    fn new() -> io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    async fn first(mut self) -> Self {
        self.next().await;
        self
    }

    async fn second(mut self) {
        self.next().await;
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
