//! Where to connect to.

use super::address::Address;
use super::dial::{Connection, Dialer};
use super::in_time::in_time;
use super::sentinel::{Named, Role, Sentinels, Watch, ask_role};
use crate::store_error::StoreError;
use std::fmt;
use std::sync::Arc;
use tokio::time::Instant;

/// Where to connect to. It is asked anew before each connection.
pub(super) enum Place {
    /// This server.
    One(Address),
    /// The master that the sentinels name.
    Master(Arc<Sentinels>),
}

/// A server that was found, and a connection to it.
pub(super) struct Found {
    pub(super) server: Address,
    pub(super) line: Connection,
    /// `None` if nothing can replace the server.
    pub(super) watch: Option<Watch>,
}

impl Place {
    /// Finds the server, connects to it, and logs in.
    ///
    /// # Errors
    /// [`StoreError`] names the server or the sentinel, and what went wrong.
    pub(super) async fn dial(&self, dialer: &Dialer, deadline: Instant) -> Result<Found, StoreError> {
        match self {
            Self::One(server) => {
                Ok(Found { server: server.clone(), line: dialer.dial(server, deadline).await?, watch: None })
            }
            Self::Master(sentinels) => {
                let named = sentinels.find_master(deadline).await?;
                let (server, line) = match dial_for_role(dialer, &named.master, deadline).await? {
                    (line, Role::Master) => (named.master, line),
                    (_, Role::ReplicaOf(other)) => dial_successor(dialer, &named.master, other, deadline).await?,
                };
                let watch = sentinels.watch(Named { epoch: named.epoch, master: server.clone() });
                Ok(Found { server, line, watch: Some(watch) })
            }
        }
    }
}

async fn dial_for_role(dialer: &Dialer, server: &Address, deadline: Instant) -> Result<(Connection, Role), StoreError> {
    let mut line = dialer.dial(server, deadline).await.map_err(|error| error.at(server))?;
    let role = in_time(deadline, "the server does not say its role", ask_role(&mut line, server)).await??;
    Ok((line, role))
}

/// Connects to the master of which `named` has become a replica. The sentinels may take long to find out that somebody
/// else has demoted a master: with `down-after-milliseconds` of 1 s, 21 s.
async fn dial_successor(
    dialer: &Dialer,
    named: &Address,
    master: Address,
    deadline: Instant,
) -> Result<(Address, Connection), StoreError> {
    let says = format!("the sentinels name {named} as the master, which says that it is a replica of {master}");
    match dial_for_role(dialer, &master, deadline).await {
        Ok((line, Role::Master)) => Ok((master, line)),
        Ok((_, Role::ReplicaOf(another))) => {
            Err(StoreError::read_only(format_args!("{says}, and that one of {another}. The sentinels are asked again")))
        }
        Err(error) => Err(error.at(says)),
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::One(server) => write!(f, "{server}"),
            Self::Master(sentinels) => write!(f, "the master {}", sentinels.master()),
        }
    }
}
