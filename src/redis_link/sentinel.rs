//! Asks Redis Sentinels for the address of a master.
//!
//! The sentinels count the failovers of a master in its *configuration epoch*. A sentinel that was cut off from the
//! others may name the former master, with a lower epoch. So several sentinels are asked, and the highest epoch counts.
//!
//! A former master may not know for ten seconds that the sentinels have replaced it: it keeps its connections, and
//! takes writes that will be lost. So the sentinels are asked again while a connection is in use.
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
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

/// At most so many sentinels are learned from the others.
const MOST_LEARNED: usize = 16;

/// While a connection to the master is in use, one sentinel is asked in each period of this length.
const WATCHED_EVERY: Duration = Duration::from_secs(1);

/// The sentinels of one master.
pub(super) struct Sentinels {
    listed: Vec<Address>,
    /// Sentinels that the others have named.
    learned: Mutex<BTreeSet<Address>>,
    dialer: Arc<Dialer>,
    master: Arc<str>,
}

/// The master that the sentinels have named, and their epoch.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Named {
    pub(super) epoch: u64,
    pub(super) master: Address,
}

/// What one sentinel says.
struct Says {
    named: Named,
    sentinels: Vec<Address>,
}

/// Asks the sentinels in turn whether another master has replaced the one that they had named, until it is dropped.
pub(super) struct Watch {
    is_replaced: Arc<AtomicBool>,
    _task: JoinSet<()>,
}

impl Watch {
    /// Returns whether a sentinel has named another master.
    pub(super) fn is_replaced(&self) -> bool {
        self.is_replaced.load(Relaxed)
    }
}

impl Sentinels {
    pub(super) fn new(listed: Vec<Address>, dialer: Dialer, master: &str) -> Self {
        Self { listed, learned: Mutex::default(), dialer: Arc::new(dialer), master: master.into() }
    }

    /// Returns the name of the master.
    pub(super) fn master(&self) -> &str {
        &self.master
    }

    /// Returns the master, as the sentinel with the highest epoch knows it.
    ///
    /// # Errors
    /// [`StoreError`] if no sentinel answers, or none knows a master of this name.
    pub(super) async fn find_master(&self, deadline: Instant) -> Result<Named, StoreError> {
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
        let newest = answers.into_iter().map(|says| says.named).max_by_key(|named| named.epoch);
        newest.ok_or_else(|| StoreError::unavailable("no sentinel has answered"))
    }

    /// Begins to ask the sentinels whether they name another master than the one that is used, in a later epoch than
    /// the one in which it was found.
    pub(super) fn watch(self: &Arc<Self>, used: Named) -> Watch {
        let is_replaced = Arc::new(AtomicBool::new(false));
        let (sentinels, found, mut task) = (Arc::clone(self), Arc::clone(&is_replaced), JoinSet::new());
        task.spawn(async move {
            for sentinel in sentinels.listed.iter().cycle() {
                sleep(WATCHED_EVERY).await;
                // A sentinel that does not answer says nothing. The next one is asked.
                let said = timeout(WATCHED_EVERY, sentinels.ask_one(sentinel)).await;
                if said.is_ok_and(|said| said.is_ok_and(|now| used.is_replaced_by(&now))) {
                    found.store(true, Relaxed);
                    return;
                }
            }
        });
        Watch { is_replaced, _task: task }
    }

    async fn ask_one(&self, sentinel: &Address) -> Result<Named, StoreError> {
        let line = self.dialer.dial(sentinel, Instant::now() + WATCHED_EVERY).await?;
        Ok(ask(line, Arc::clone(&self.master)).await?.named)
    }
}

impl Named {
    /// Returns whether a sentinel that says `now` knows of a later failover.
    fn is_replaced_by(&self, now: &Self) -> bool {
        now.epoch > self.epoch && now.master != self.master
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
    let epoch = fields.get("config-epoch").and_then(|epoch| epoch.parse().ok()).unwrap_or_default();
    // For some seconds after a failover, the fields above hold the new epoch and the address of the former master.
    let mut command = redis::cmd("SENTINEL");
    let current = command.arg("GET-MASTER-ADDR-BY-NAME").arg(&*master).query_async(&mut line.connection).await;
    let current = current.ok().flatten().map(|(host, port)| Address::Tcp(host, port));
    let found = current.or_else(|| server(&fields));
    let found = found.ok_or_else(|| StoreError::corrupt("the sentinel names no address"))?;
    let mut command = redis::cmd("SENTINEL");
    // A user may not be allowed to ask this. The listed sentinels are known anyway.
    let others = command.arg("SENTINELS").arg(&*master).query_async::<Vec<Value>>(&mut line.connection).await;
    let others = others.unwrap_or_default().into_iter();
    let sentinels = others.filter_map(|other| server(&redis::from_redis_value(other).ok()?)).collect();
    Ok(Says { named: Named { epoch, master: found }, sentinels })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_master_of_a_later_epoch_replaces_the_one_that_was_named() {
        let named = |epoch, port| Named { epoch, master: Address::Tcp("a".into(), port) };
        for (now, is_replaced) in [
            (named(8, 2), true),
            (named(8, 1), false),
            (named(7, 1), false),
            // A sentinel that was cut off, or two that do not agree.
            (named(6, 2), false),
            (named(7, 2), false),
        ] {
            assert_eq!(named(7, 1).is_replaced_by(&now), is_replaced, "{now:?}");
        }
    }
}
