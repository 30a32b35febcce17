//! The way to the server that holds a key.

use super::Links;
use super::cluster::Cluster;
use super::link::{Failure, RedisLink};
#[cfg(feature = "server")]
use super::place::Place;
use crate::store_error::StoreError;
use redis::RedisError;
use redis::aio::MultiplexedConnection;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// The way to the server that holds a key, and all keys with the same part in braces.
#[derive(Clone, Copy)]
pub(crate) struct Route<'c> {
    links: &'c Links,
    /// The key's slot of a cluster.
    slot: u16,
}

impl<'c> Route<'c> {
    pub(super) fn new(links: &'c Links, slot: u16) -> Self {
        Self { links, slot }
    }

    /// Connects to the server if there is no connection to it; see [`RedisLink::connect`].
    pub(crate) async fn connect(&self, within: Duration) -> Result<(), StoreError> {
        match self.links {
            Links::One(link) => link.connect(within).await,
            Links::Cluster(cluster) => cluster.connect(self.slot, Instant::now() + within).await.map(drop),
        }
    }

    /// Runs commands on the current connection. If the key has moved to another node of the cluster, they are run once
    /// more, there.
    pub(crate) async fn run<T, F, R>(&self, within: Duration, commands: F) -> Result<T, StoreError>
    where
        F: Fn(MultiplexedConnection) -> R + Send + Sync,
        R: Future<Output = Result<T, RedisError>> + Send,
        T: Send,
    {
        match self.links {
            Links::One(link) => link.run(within, commands).await.map_err(Failure::of_one),
            Links::Cluster(cluster) => {
                let link = cluster.link_of(self.slot).ok_or_else(|| StoreError::unavailable("not connected"))?;
                self.run_in(cluster, link, within, commands).await
            }
        }
    }

    /// Connects if necessary and runs commands, both within one time limit.
    pub(crate) async fn call<T, F, R>(&self, within: Duration, commands: F) -> Result<T, StoreError>
    where
        F: Fn(MultiplexedConnection) -> R + Send + Sync,
        R: Future<Output = Result<T, RedisError>> + Send,
        T: Send,
    {
        let deadline = Instant::now() + within;
        self.connect(within).await?;
        self.run(deadline.saturating_duration_since(Instant::now()), commands).await
    }

    async fn run_in<T, F, R>(
        &self,
        cluster: &Cluster,
        link: Arc<RedisLink>,
        within: Duration,
        commands: F,
    ) -> Result<T, StoreError>
    where
        F: Fn(MultiplexedConnection) -> R + Send + Sync,
        R: Future<Output = Result<T, RedisError>> + Send,
        T: Send,
    {
        let deadline = Instant::now() + within;
        let left = || deadline.saturating_duration_since(Instant::now());
        let owner = match link.run(within, &commands).await {
            Err(Failure { moved_to: Some(owner), .. }) => owner,
            ended => return ended.map_err(|failure| failure.error),
        };
        let link = cluster.learn(self.slot, owner);
        link.connect(left()).await?;
        link.run(left(), &commands).await.map_err(Failure::of_moving)
    }

    /// Drops the connection before the next call; commands in progress may still read from it.
    pub(crate) fn reconnect_before_next_call(&self) {
        if let Some(link) = self.link() {
            link.reconnect_before_next_call();
        }
    }

    /// Allows answers with values of this size in bytes, in addition to the usual size.
    pub(crate) fn expect_values_of(&self, bytes: usize) {
        match self.links {
            Links::One(link) => link.dialer().expect_values_of(bytes),
            Links::Cluster(cluster) => cluster.dialer().expect_values_of(bytes),
        }
    }

    /// Returns the server of the current connection, or of the last one.
    pub(crate) fn server(&self) -> Option<String> {
        self.link()?.server().map(|server| server.to_string())
    }

    /// Returns the same server, and why it is this one.
    #[cfg(feature = "server")]
    pub(crate) fn server_and_why(&self) -> Option<String> {
        let (link, server) = (self.link()?, self.server()?);
        Some(match (self.links, link.place()) {
            (Links::Cluster(_), _) => format!("{server}, which owns slot {} of the cluster", self.slot),
            (Links::One(_), Place::Master(_)) => format!("{server}, which the sentinels name as {}", link.place()),
            (Links::One(_), Place::One(_)) => server,
        })
    }

    fn link(&self) -> Option<Arc<RedisLink>> {
        match self.links {
            Links::One(link) => Some(Arc::clone(link)),
            Links::Cluster(cluster) => cluster.link_of(self.slot),
        }
    }
}
