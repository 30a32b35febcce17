//! Asks Redis Sentinels for the address of a master.
//!
//! The sentinels count the failovers of a master in its *configuration epoch*. A sentinel that was cut off from the
//! others may name the former master, with a lower epoch. So several sentinels are asked, and the highest epoch counts.
//!
//! Source: "Guidelines for Redis clients with support for Redis Sentinel", Redis documentation.

use super::address::Address;
use super::ask_several::ask_several;
use super::classify;
use super::dial::{Connection, Dialer};
use crate::store_error::StoreError;
use parking_lot::Mutex;
use redis::{RedisError, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tokio::time::Instant;

/// At most so many sentinels are learned from the others.
const MOST_LEARNED: usize = 16;

/// The sentinels of one master.
pub(super) struct Sentinels {
    listed: Vec<Address>,
    /// Sentinels that the others have named.
    learned: Mutex<BTreeSet<Address>>,
    dialer: Arc<Dialer>,
    master: Arc<str>,
}

/// What one sentinel says.
struct Says {
    epoch: u64,
    master: Address,
    sentinels: Vec<Address>,
}

impl Sentinels {
    pub(super) fn new(listed: Vec<Address>, dialer: Dialer, master: &str) -> Self {
        Self { listed, learned: Mutex::default(), dialer: Arc::new(dialer), master: master.into() }
    }

    /// Returns the name of the master.
    pub(super) fn master(&self) -> &str {
        &self.master
    }

    /// Returns the address of the master, as the sentinel with the highest epoch knows it.
    ///
    /// # Errors
    /// [`StoreError`] if no sentinel answers, or none knows a master of this name.
    pub(super) async fn find_master(&self, deadline: Instant) -> Result<Address, StoreError> {
        let all: BTreeSet<_> = self.learned.lock().iter().chain(&self.listed).cloned().collect();
        // The listed ones come first: learned ones may be gone.
        let learned = all.iter().filter(|sentinel| !self.listed.contains(sentinel));
        let servers: Vec<_> = self.listed.iter().chain(learned).cloned().collect();
        let master = Arc::clone(&self.master);
        let question = move |connection, _| ask(connection, Arc::clone(&master));
        let answers =
            ask_several(servers, &self.dialer, deadline, question).await.map_err(|error| error.at("sentinel"))?;
        let named = answers.iter().flat_map(|says| says.sentinels.iter().cloned());
        *self.learned.lock() = named.take(MOST_LEARNED).collect();
        let newest = answers.into_iter().max_by_key(|says| says.epoch);
        newest.map(|says| says.master).ok_or_else(|| StoreError::unavailable("no sentinel has answered"))
    }
}

async fn ask(mut line: Connection, master: Arc<str>) -> Result<Says, StoreError> {
    let mut command = redis::cmd("SENTINEL");
    let answer = command.arg("MASTER").arg(&*master).query_async(&mut line.connection).await;
    let fields: BTreeMap<String, String> = answer.map_err(|error: RedisError| {
        let is_unknown = error.detail().is_some_and(|words| words.contains("No such master"));
        if is_unknown {
            return StoreError::refused(format_args!("no master is named {master:?}: see redis.master"));
        }
        classify::error(&error)
    })?;
    let found = server(&fields).ok_or_else(|| StoreError::corrupt("the sentinel names no address"))?;
    let epoch = fields.get("config-epoch").and_then(|epoch| epoch.parse().ok()).unwrap_or_default();
    let mut command = redis::cmd("SENTINEL");
    // A user may not be allowed to ask this. The listed sentinels are known anyway.
    let others = command.arg("SENTINELS").arg(&*master).query_async::<Vec<Value>>(&mut line.connection).await;
    let others = others.unwrap_or_default().into_iter();
    let sentinels = others.filter_map(|other| server(&redis::from_redis_value(other).ok()?)).collect();
    Ok(Says { epoch, master: found, sentinels })
}

/// Returns the address in the fields that describe a server.
fn server(fields: &BTreeMap<String, String>) -> Option<Address> {
    let (host, port) = (fields.get("ip").filter(|host| !host.is_empty())?, fields.get("port")?.parse().ok()?);
    Some(Address::Tcp(host.clone(), port))
}

/// What a server says that it is.
pub(super) enum Role {
    Master,
    ReplicaOf(Address),
}

/// Asks a server for its role.
///
/// # Errors
/// [`StoreError`] if it refuses to say.
pub(super) async fn ask_role(line: &mut Connection, server: &Address) -> Result<Role, StoreError> {
    let role = redis::cmd("ROLE").query_async::<Vec<Value>>(&mut line.connection).await;
    let role = role.map_err(|error| match error.code() {
        Some("NOPERM") => StoreError::refused(format_args!("{error}. Grant the user of redis.user +role")),
        _ => classify::error(&error),
    })?;
    let word = |at: usize| redis::from_redis_value_ref::<String>(role.get(at)?).ok();
    match word(0).as_deref() {
        Some("master") => Some(Role::Master),
        Some("slave") => of_replica(word(1), word(2)),
        _ => None,
    }
    .ok_or_else(|| StoreError::corrupt(format_args!("{server} does not say its role")))
}

fn of_replica(host: Option<String>, port: Option<String>) -> Option<Role> {
    Some(Role::ReplicaOf(Address::Tcp(host?, port?.parse().ok()?)))
}
