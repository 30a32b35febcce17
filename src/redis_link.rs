//! The connections to Redis: to one server, to the master that Sentinels name, or to the nodes of a cluster.
//!
//! `target` reads the configuration. `place` says where to connect to, with the help of `sentinel`. `dial` connects.
//! `link` keeps one connection, and decides when to drop it. `cluster` knows which link leads to which key, and `route`
//! is the way to one key. `script` runs scripts.

mod address;
mod ask_several;
mod classify;
mod cluster;
mod dial;
mod in_time;
mod link;
mod place;
mod route;
mod script;
mod sentinel;
mod target;
#[cfg(feature = "tls")]
mod tls;

use crate::config::{self, ConfigError, Secret};
use cluster::Cluster;
use link::RedisLink;
use place::Place;
use sentinel::Sentinels;
use std::sync::Arc;
use target::Target;

pub(crate) use classify::{is_read_only, refused_write};
pub(crate) use route::Route;
pub(crate) use script::run_script;

/// A connection to Redis that the store of filters and the limiters may share. Clones are handles to one connection.
///
/// The connection is made when it is first needed, and again after it has failed. There is never more than one; with
/// Redis Cluster, never more than one to each node.
///
/// ```no_run
/// use headcount::limit::{Rate, Redis, token_bucket};
/// use headcount::{RedisConnection, RedisStore};
/// let connection = RedisConnection::open("redis://127.0.0.1:6379/0")?;
/// let seats = RedisStore::on(&connection, "shop");
/// let logins = Redis::new(&connection, "login", token_bucket(Rate::per_minute(5), 5))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct RedisConnection {
    links: Arc<Links>,
}

enum Links {
    One(Arc<RedisLink>),
    Cluster(Cluster),
}

impl RedisConnection {
    /// Creates a connection to a URL such as `redis://127.0.0.1:6379/0`, or `rediss://…` for TLS with the system's
    /// certificate authorities. Does not connect yet.
    ///
    /// # Errors
    /// [`ConfigError::RedisUrl`].
    pub fn open(url: &str) -> Result<Self, ConfigError> {
        Self::configured(&config::Redis { url: Some(Secret::new(url)), ..config::Redis::default() })
    }

    /// Creates the connection that `[redis]` describes: its servers, passwords and, for TLS, certificates. Reads the
    /// files, and does not connect yet.
    ///
    /// # Errors
    /// [`ConfigError`] names the key or the file, and what is allowed.
    pub fn configured(redis: &config::Redis) -> Result<Self, ConfigError> {
        let one = |place, dialer| Links::One(Arc::new(RedisLink::new(place, Arc::new(dialer))));
        let links = match Target::read(redis)? {
            Target::One { server, dialer } => one(Place::One(server), dialer),
            Target::Sentinels { sentinels, to_sentinels, master, dialer } => {
                one(Place::Master(Arc::new(Sentinels::new(sentinels, to_sentinels, &master))), dialer)
            }
            Target::Cluster { nodes, dialer } => Links::Cluster(Cluster::new(nodes, dialer)),
        };
        Ok(Self { links: Arc::new(links) })
    }

    /// Returns the way to the server that holds this key.
    pub(crate) fn route(&self, key: &str) -> Route<'_> {
        Route::new(&self.links, cluster::slot_of(key.as_bytes()))
    }

    /// Returns how many connections were made so far.
    pub(crate) fn connections(&self) -> u64 {
        match &*self.links {
            Links::One(link) => link.connections(),
            Links::Cluster(cluster) => cluster.connections(),
        }
    }

    /// Returns whether both are handles to one connection.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.links, &other.links)
    }
}

impl std::fmt::Debug for RedisConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The URL may hold a password.
        f.debug_struct("RedisConnection").finish_non_exhaustive()
    }
}
