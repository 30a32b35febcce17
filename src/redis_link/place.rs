//! Where to connect to.

use super::address::Address;
use super::dial::{Connection, Dialer};
use super::in_time::in_time;
use super::sentinel::{Sentinels, ensure_master};
use crate::store_error::StoreError;
use std::fmt;
use tokio::time::Instant;

/// Where to connect to. It is asked anew before each connection.
pub(super) enum Place {
    /// This server.
    One(Address),
    /// The master that the sentinels name.
    Master(Sentinels),
}

impl Place {
    /// Finds the server, connects to it, and logs in.
    ///
    /// # Errors
    /// [`StoreError`] names the server or the sentinel, and what went wrong.
    pub(super) async fn dial(&self, dialer: &Dialer, deadline: Instant) -> Result<(Address, Connection), StoreError> {
        match self {
            Self::One(server) => Ok((server.clone(), dialer.dial(server, deadline).await?)),
            Self::Master(sentinels) => {
                let master = sentinels.find_master(deadline).await?;
                let mut line = dialer.dial(&master, deadline).await.map_err(|error| error.at(&master))?;
                in_time(deadline, "the server does not say its role", ensure_master(&mut line, &master)).await??;
                Ok((master, line))
            }
        }
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
