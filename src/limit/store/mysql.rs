//! The store in MySQL or MariaDB: a moving window in which every attempt is a numbered row, so each key has a history.
//!
//! A *zone* is a use case with a limit: a number of permits in a number of seconds. A *bucket* is a key in a zone. The
//! stored procedure `check_velocity` locks the bucket, counts, and inserts, in one transaction; see `sql/mysql/`.
//!
//! # Source
//! Shrey Agarwal, "Rate Limiting in Distributed System Using Mysql for high cardinality".

use super::sql::{CONNECTIONS, Deadline, INSTALL_WITHIN, SqlError, WITHIN, stored_key};
use crate::config::Secret;
use crate::limit::answer::{Answer, AnsweredBy, RefusalReason, Reservation, Verdict};
use crate::limit::ask::{Ask, Cost, Mode};
use crate::limit::limiter_store::{LimiterStore, LimiterStoreError, StoreKey};
use crate::limit::step::Step;
use crate::store_error::StoreError;
use mysql_async::prelude::Queryable;
use mysql_async::{
    Conn, DriverError, Error, IsolationLevel, Opts, OptsBuilder, Params, Row, ServerError,
    Transaction as DbTransaction, TxOpts, Value,
};
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// The version of the schema that this program installs.
const VERSION: u32 = 2;

const TABLES: [&str; 4] = [
    include_str!("../../../sql/mysql/version.sql"),
    include_str!("../../../sql/mysql/zones.sql"),
    include_str!("../../../sql/mysql/bucket_locks.sql"),
    include_str!("../../../sql/mysql/transactions.sql"),
];

const PROCEDURES: [(&str, &str); 3] = [
    ("headcount_decide", include_str!("../../../sql/mysql/decide.sql")),
    ("headcount_ask", include_str!("../../../sql/mysql/ask.sql")),
    ("check_velocity", include_str!("../../../sql/mysql/check_velocity.sql")),
];

/// The comment that marks a procedure as ours.
const OURS: &str = "headcount";

const ASK: &str = "CALL headcount_ask(?, ?, ?, ?, ?)";

/// The largest number of transactions that one statement deletes, so that it does not hold locks for long.
const BATCH: u32 = 500;

/// The time limit for closing a connection that is dropped in the middle of an answer.
const CLOSE_WITHIN: Duration = Duration::from_millis(200);

/// An operation on a connection. It is a function and not a future, because it may be repeated.
type Work<A, T> = for<'a> fn(&'a mut Conn, &'a A) -> Working<'a, T>;
type Working<'a, T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send + 'a>>;

/// A database with zones. Clones share its connections.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use headcount::limit::{Ask, Mysql};
/// use std::time::Duration;
/// let store = Mysql::open("mysql://limits:secret@db.internal/app")?;
/// store.install().await?;
/// store.set_zone(1, 5, Duration::from_secs(60)).await?;
/// let login = store.velocity(1);
/// let answer = login.ask("alice", Ask::ONE).await?;
/// println!("attempt {:?}, {} left", answer.transaction, answer.remaining);
/// for attempt in login.history("alice", 10).await? {
///     println!("{attempt:?}");
/// }
/// # Ok(()) }
/// ```
///
/// # What grows
/// Each attempt, allowed or blocked, is a row until [`purge`](Self::purge) deletes it. Call `purge` regularly, as
/// `headcount serve` does. Each attempt counts the rows of its key in the window, so this store is for limits of some
/// thousands per window, not of millions.
///
/// # What the tables hold
/// Times are UTC in whole seconds (`created_at`), windows are seconds (`window_s`), and neither depends on the time
/// zone of the server or of the session. `headcount_zones.description` is for people: see
/// [`describe_zone`](Self::describe_zone). `sql/mysql/` documents every column.
///
/// # Servers
/// MySQL 8.0.1 or later, or MariaDB 10.6 or later. It was tested on MariaDB 10.11.
///
/// # After a crash
/// An attempt that the server has acknowledged still counts after a crash of the server, if it was written to disk.
/// With `innodb_flush_log_at_trx_commit = 0`, a crash can lose the attempts of the last second.
///
/// # TLS
/// TLS is not supported: a URL with `require_ssl=true` is refused. Keep the database in a private network, or connect
/// through a local proxy.
#[derive(Clone)]
pub struct Mysql {
    pool: Arc<Pool>,
    within: Duration,
}

/// Configures a [`Mysql`].
///
/// ```
/// use headcount::limit::Mysql;
/// use std::time::Duration;
/// let url = "mysql://limits:secret@db.internal/app";
/// let store = Mysql::builder(url).max_connections(4).within(Duration::from_millis(50)).open()?;
/// assert_eq!(store.connections(), 0, "it connects when it is asked");
/// let error = Mysql::open(format!("{url}?require_ssl=true")).unwrap_err().to_string();
/// assert!(error.contains("does not support TLS") && !error.contains("secret"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct MysqlBuilder {
    url: Secret,
    connections: usize,
    within: Duration,
}

impl MysqlBuilder {
    /// Limits the number of connections, to one or more. The default is 10.
    #[must_use]
    pub fn max_connections(mut self, connections: usize) -> Self {
        self.connections = connections.clamp(1, Semaphore::MAX_PERMITS);
        self
    }

    /// Sets the time limit of an answer, including the wait for a free connection and all retries. The default is one
    /// second. The database also limits the wait for a lock to this time, rounded up to whole seconds.
    #[must_use]
    pub fn within(mut self, within: Duration) -> Self {
        self.within = within;
        self
    }

    /// Reads the URL. Does not connect.
    ///
    /// # Errors
    /// [`SqlError::Url`].
    pub fn open(self) -> Result<Mysql, SqlError> {
        let refused = |why: String| SqlError::Url { found: self.url.redacted_url(), why };
        let opts = Opts::from_url(self.url.expose()).map_err(|error| refused(error.to_string()))?;
        if opts.db_name().is_none_or(str::is_empty) {
            return Err(refused("it does not name a database; write mysql://user:password@host/database".into()));
        }
        if opts.ssl_opts().is_some() {
            return Err(refused("this store does not support TLS; remove require_ssl=true".into()));
        }
        let seconds = self.within.as_secs() + u64::from(self.within.subsec_nanos() > 0);
        let millis = self.within.as_millis().clamp(1, i32::MAX as u128);
        // MariaDB and MySQL have different settings for a statement's time. Each is in a comment that the other server
        // skips. MySQL's limits only `SELECT` statements. Neither limits procedures; their waits for locks are limited
        // by `innodb_lock_wait_timeout`.
        let session = format!(
            "SET SESSION innodb_lock_wait_timeout = {}, SESSION autocommit = 1 /*M!100100 , SESSION \
             max_statement_time = {} */ /*!80000 , SESSION max_execution_time = {millis} */",
            seconds.clamp(1, 1_073_741_824),
            millis as f64 / 1000.0,
        );
        let opts = OptsBuilder::from_opts(opts)
            .prefer_socket(false)
            .tcp_nodelay(true)
            .tcp_keepalive(Some(Duration::from_secs(30)))
            .init(vec![session]);
        let free = Arc::new(Semaphore::new(self.connections));
        let pool = Pool {
            opts: opts.into(),
            free,
            idle: Mutex::default(),
            open: Arc::default(),
            purged_up_to: Mutex::default(),
        };
        Ok(Mysql { pool: Arc::new(pool), within: self.within })
    }
}

impl Mysql {
    /// Creates a store from a URL such as `mysql://user:password@host:port/database`, with `?socket=/path` for a Unix
    /// socket. Does not connect yet.
    ///
    /// # Errors
    /// [`SqlError::Url`].
    pub fn open(url: impl Into<String>) -> Result<Self, SqlError> {
        Self::builder(url).open()
    }

    /// Returns this store, on the same connections, with another time limit for each call.
    #[cfg(feature = "server")]
    pub(crate) fn with_time_limit(&self, within: Duration) -> Self {
        Self { within, ..self.clone() }
    }

    /// Returns a builder for a store.
    pub fn builder(url: impl Into<String>) -> MysqlBuilder {
        MysqlBuilder { url: Secret::new(url), connections: CONNECTIONS, within: WITHIN }
    }

    /// Creates tables and procedures in the database, or upgrades older ones. Does nothing if they are current. All
    /// names begin with `headcount_`, except `check_velocity`. Several servers may call it at the same time, at each
    /// start. The call may take up to 30 s while another server installs.
    ///
    /// The first caller must be allowed to create tables and routines. All others need only `SELECT, INSERT, UPDATE,
    /// DELETE, EXECUTE` on the database.
    ///
    /// # Errors
    /// [`SqlError::NewerSchema`]; [`SqlError::NameTaken`] if another program owns a procedure of such a name, which
    /// stays unchanged; [`SqlError::Store`].
    pub async fn install(&self) -> Result<(), SqlError> {
        let deadline = Deadline::new(INSTALL_WITHIN);
        let mut lease = self.pool.lease(&deadline).await?;
        // The connection is closed afterward, which releases the lock in any case.
        deadline.wait_for("end of the installation", install(lease.conn())).await?
    }

    /// Creates a zone, or changes its limit: `rate` permits in any `window` of whole seconds. Earlier attempts count
    /// against the new limit, see [the rule](crate::limit#when-a-limit-changes).
    ///
    /// # Errors
    /// [`SqlError::Zone`] unless the rate is from 1 to 2,147,483,647 and the window from 1 s to 68 years in whole
    /// seconds; [`SqlError::Store`].
    pub async fn set_zone(&self, zone: u32, rate: u32, window: Duration) -> Result<(), SqlError> {
        let refused = |why| Err(SqlError::Zone { rate, window, why });
        if rate == 0 {
            return refused("no request would ever be allowed; give at least one permit");
        }
        if rate > i32::MAX as u32 {
            return refused("no zone can have more than 2147483647 permits");
        }
        if window.is_zero() || window.subsec_nanos() != 0 {
            return refused("the window must be of whole seconds, at least one");
        }
        let seconds = match u32::try_from(window.as_secs()) {
            Ok(seconds) if seconds <= i32::MAX as u32 => seconds,
            _ => return refused("the window is longer than 68 years"),
        };
        const SET: &str = "INSERT INTO headcount_zones (id, rate, window_s) VALUES (?, ?, ?) ON DUPLICATE KEY UPDATE \
                   rate = ?, window_s = ?";
        let about = (zone, rate, seconds, rate, seconds);
        self.run(about, |conn, about| Box::pin(conn.exec_drop(SET, *about))).await
    }

    /// Describes a zone, for people who read the table `headcount_zones`. The text is cut after 255 characters. An
    /// unknown zone is ignored.
    ///
    /// # Errors
    /// [`SqlError::Store`].
    pub async fn describe_zone(&self, zone: u32, description: &str) -> Result<(), SqlError> {
        const DESCRIBE: &str = "UPDATE headcount_zones SET description = ? WHERE id = ?";
        let about = (description.chars().take(255).collect::<String>(), zone);
        self.run(about, |conn, about| Box::pin(conn.exec_drop(DESCRIBE, about.clone()))).await
    }

    /// Returns the limiter of a zone. If the zone does not exist, each ask fails with [`SqlError::UnknownZone`].
    pub fn velocity(&self, zone: u32) -> Velocity {
        Velocity { store: self.clone(), zone }
    }

    /// Returns the last attempts of a key in a zone, at most `at_most`, the newest first. Purged attempts are missing.
    ///
    /// # Errors
    /// [`SqlError::Store`].
    pub async fn history(&self, zone: u32, key: impl AsRef<[u8]>, at_most: u32) -> Result<Vec<Transaction>, SqlError> {
        const READ: &str = "SELECT id, blocked, permits, TIMESTAMPDIFF(SECOND, '1970-01-01', created_at) \
                    FROM headcount_transactions WHERE zone_id = ? AND bucket_key = ? ORDER BY id DESC LIMIT ?";
        let about = (zone, stored_key(key.as_ref()), at_most);
        let rows: Vec<Row> = self.run(about, |conn, about| Box::pin(conn.exec(READ, about.clone()))).await?;
        rows.into_iter().map(|row| Ok(Transaction::read(row)?)).collect()
    }

    /// Deletes at most `at_most` transactions that are older than `keep` and no longer count, in batches of 500. Also
    /// deletes the lock rows of keys without transactions. Returns how many transactions were deleted.
    ///
    /// Several servers may purge at the same time, and during requests: no statement waits for a locked row.
    ///
    /// # Errors
    /// [`SqlError::Store`]; the batches before the error stay deleted.
    pub async fn purge(&self, keep: Duration, at_most: u32) -> Result<u64, SqlError> {
        const ZONES: &str = "SELECT id, window_s FROM headcount_zones";
        let mut zones: Vec<(u32, u32)> = self.run((), |conn, ()| Box::pin(conn.query(ZONES))).await?;
        // The zones are purged in random order, so that a flood in one does not delay the others each time.
        fastrand::shuffle(&mut zones);
        let mut left = at_most;
        for (zone, window) in zones {
            // An attempt exactly as old as the window still counts.
            let keep = keep.as_secs().max(u64::from(window)).saturating_add(1).min(i32::MAX as u64);
            while left > 0 {
                let wanted = left.min(BATCH);
                let deleted = self.run((zone, keep, wanted), |conn, batch| Box::pin(purge_batch(conn, *batch))).await?;
                left -= deleted;
                if deleted < wanted {
                    self.purge_locks(zone).await?;
                    break;
                }
            }
        }
        Ok(u64::from(at_most - left))
    }

    /// Checks the next lock rows, and deletes those of keys without transactions. Such a row remains if a client
    /// disconnects before its attempt is recorded.
    async fn purge_locks(&self, zone: u32) -> Result<(), SqlError> {
        let after = self.pool.purged_up_to.lock().get(&zone).cloned().unwrap_or_default();
        let next =
            self.run((zone, after), |conn, (zone, after)| Box::pin(purge_some_locks(conn, *zone, after))).await?;
        self.pool.purged_up_to.lock().insert(zone, next);
        Ok(())
    }

    /// Returns the current number of connections, in use or idle.
    pub fn connections(&self) -> usize {
        Arc::strong_count(&self.pool.open) - 1
    }

    /// Runs an operation. Repeats it after a conflict with other sessions, or if an idle connection was lost.
    async fn run<A, T>(&self, about: A, work: Work<A, T>) -> Result<T, SqlError> {
        let mut deadline = Deadline::new(self.within);
        let mut lost_one = false;
        loop {
            let mut lease = self.pool.lease(&deadline).await?;
            let error = match deadline.wait_for("answer", work(lease.conn(), &about)).await? {
                Ok(done) => {
                    lease.give_back();
                    return Ok(done);
                }
                Err(error) => error,
            };
            if error.is_fatal() && !lost_one {
                // The connection was idle while the server stopped, and possibly started again.
                lost_one = true;
                self.pool.idle.lock().clear();
                continue;
            }
            if let Error::Server(ServerError { code, .. }) = &error {
                let again = is_conflict(*code);
                if again || *code == SIGNALLED {
                    lease.give_back();
                }
                if again {
                    deadline.pause(classify(&error)).await?;
                    continue;
                }
            }
            return Err(classify(&error).into());
        }
    }
}

impl fmt::Debug for Mysql {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mysql").field("connections", &self.connections()).field("within", &self.within).finish()
    }
}

/// A pool of idle connections, with a limit for the number of all connections.
///
/// The client library's own pool pings each connection before handing it out, which costs one more round trip. If the
/// caller leaves during the ping, that pool does not decrease its count of connections. So it runs out of connections
/// while the server stalls.
struct Pool {
    opts: Opts,
    free: Arc<Semaphore>,
    idle: Mutex<Vec<Open>>,
    /// Each connection holds a reference, too, so the reference count is one more than the number of connections.
    open: Arc<()>,
    /// For each zone, the key of the last lock row that the purge has checked; empty at the end of the zone.
    purged_up_to: Mutex<HashMap<u32, Vec<u8>>>,
}

/// A counted connection.
struct Open {
    conn: Conn,
    _counted: Arc<()>,
}

impl Pool {
    async fn lease(self: &Arc<Self>, deadline: &Deadline) -> Result<Lease, StoreError> {
        let free = Arc::clone(&self.free).acquire_owned();
        let slot = deadline.wait_for("free connection", free).await?;
        let slot = slot.map_err(|_| StoreError::unavailable("the store is closed"))?;
        let idle = self.idle.lock().pop();
        let open = match idle {
            Some(open) => open,
            None => {
                let counted = Arc::clone(&self.open);
                let connected = deadline.wait_for("connection", Conn::new(self.opts.clone())).await;
                Open { conn: connected?.map_err(|error| classify(&error))?, _counted: counted }
            }
        };
        Ok(Lease { pool: Arc::clone(self), held: Some((open, slot)) })
    }
}

/// A connection in use. If its work was not finished, because the caller's time ran out or the caller went away, it is
/// closed: otherwise its next user would read the answers to another request.
struct Lease {
    pool: Arc<Pool>,
    held: Option<(Open, OwnedSemaphorePermit)>,
}

impl Lease {
    fn conn(&mut self) -> &mut Conn {
        &mut self.held.as_mut().expect("a lease holds its connection until it ends").0.conn
    }

    fn give_back(mut self) {
        if let Some((open, slot)) = self.held.take() {
            self.pool.idle.lock().push(open);
            drop(slot);
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let Some((Open { conn, _counted: counted }, slot)) = self.held.take() else { return };
        // The permit is released only after the connection is closed, so that a stalled server does not get more and
        // more connections.
        let goodbye = async move {
            let _ = timeout(CLOSE_WITHIN, conn.disconnect()).await;
            drop((counted, slot));
        };
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(goodbye);
        }
    }
}

async fn install(conn: &mut Conn) -> Result<(), SqlError> {
    let broken = |error: Error| SqlError::from(classify(&error));
    let seconds = INSTALL_WITHIN.as_secs();
    let patient = format!(
        "SET SESSION innodb_lock_wait_timeout = {seconds} /*M!100100 , SESSION max_statement_time = {seconds} */"
    );
    conn.query_drop(patient).await.map_err(broken)?;
    // The name of a lock is valid in the whole server, so this one contains a hash of the database's name.
    let lock = format!("SELECT GET_LOCK(CONCAT('headcount.install.', MD5(DATABASE())), {seconds})");
    let won: Option<Option<i64>> = conn.query_first(lock).await.map_err(broken)?;
    if won.flatten() != Some(1) {
        return Err(StoreError::timeout(format_args!(
            "another server's installation did not finish within {seconds} s"
        ))
        .into());
    }
    let exists = "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = \
                  'headcount_version'";
    let exists: Option<u32> = conn.query_first(exists).await.map_err(broken)?;
    let mut found: Option<u32> = None;
    if exists == Some(1) {
        found = conn.query_first("SELECT version FROM headcount_version").await.map_err(broken)?;
    }
    if let Some(found) = found.filter(|&found| found > VERSION) {
        return Err(SqlError::NewerSchema { found, known: VERSION });
    }
    if found == Some(VERSION) && is_complete(conn).await.map_err(broken)? {
        return Ok(());
    }
    let mut missing = Vec::new();
    for (name, procedure) in PROCEDURES {
        let comment = "SELECT routine_comment FROM information_schema.routines WHERE routine_schema = DATABASE() AND \
                       routine_type = 'PROCEDURE' AND routine_name = ?";
        let comment: Option<String> = conn.exec_first(comment, (name,)).await.map_err(broken)?;
        match comment.as_deref() {
            Some(OURS) if found == Some(VERSION) => {}
            None | Some(OURS) => missing.push((name, procedure)),
            // Another program may still call its own procedure.
            Some(_) => return Err(SqlError::NameTaken { procedure: name }),
        }
    }
    for table in TABLES {
        conn.query_drop(table).await.map_err(broken)?;
    }
    let described = "SELECT COUNT(*) FROM information_schema.columns WHERE table_schema = DATABASE() \
                     AND table_name = 'headcount_zones' AND column_name = 'description'";
    if conn.query_first(described).await.map_err(broken)? == Some(0) {
        let describe = "ALTER TABLE headcount_zones ADD COLUMN description VARCHAR(255) CHARACTER SET utf8mb4 NOT \
                        NULL DEFAULT ''";
        conn.query_drop(describe).await.map_err(broken)?;
    }
    for (name, procedure) in missing {
        conn.query_drop(format!("DROP PROCEDURE IF EXISTS {name}")).await.map_err(broken)?;
        conn.query_drop(procedure).await.map_err(broken)?;
    }
    if found != Some(VERSION) {
        let note = "INSERT INTO headcount_version (one, version) VALUES (1, ?) ON DUPLICATE KEY UPDATE version = ?";
        conn.exec_drop(note, (VERSION, VERSION)).await.map_err(broken)?;
    }
    Ok(())
}

/// Returns whether the schema is complete. Then `install` also works for a user who may not create the schema.
async fn is_complete(conn: &mut Conn) -> Result<bool, Error> {
    const COUNT: &str = "SELECT (SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = DATABASE() AND \
        table_name IN ('headcount_version', 'headcount_zones', 'headcount_bucket_locks', 'headcount_transactions')) + \
        (SELECT COUNT(*) FROM information_schema.routines WHERE routine_schema = DATABASE() AND routine_name IN \
            ('headcount_decide', 'headcount_ask', 'check_velocity'))";
    let there: Option<usize> = conn.query_first(COUNT).await?;
    Ok(there == Some(TABLES.len() + PROCEDURES.len()))
}

/// Deletes one batch of transactions, and returns their number.
///
/// Skips rows that another session has locked: they are deleted later, and no deadlock is possible. With read
/// committed, no gaps between rows are locked.
async fn purge_batch(conn: &mut Conn, (zone, keep, at_most): (u32, u64, u32)) -> Result<u32, Error> {
    let mut step = purge_step(conn).await?;
    let find = "SELECT id, bucket_key FROM headcount_transactions FORCE INDEX (oldest) WHERE zone_id = ? AND \
                created_at < TIMESTAMPADD(SECOND, -?, UTC_TIMESTAMP()) ORDER BY created_at LIMIT ? FOR UPDATE SKIP \
                LOCKED";
    let old: Vec<(u64, Vec<u8>)> = step.exec(find, (zone, keep, at_most)).await?;
    let (ids, mut keys): (Vec<_>, Vec<_>) = old.into_iter().map(|(id, key)| (id.to_string(), key)).unzip();
    if !ids.is_empty() {
        // `ORDER BY id` keeps the server from scanning a small table. The scan would wait for locked rows that are not
        // in the list.
        let named = format!("id IN ({}) ORDER BY id LIMIT {}", ids.join(","), ids.len());
        step.query_drop(format!("DELETE FROM headcount_transactions WHERE {named}")).await?;
    }
    keys.sort_unstable();
    keys.dedup();
    delete_unneeded_locks(&mut step, zone, &keys).await?;
    step.commit().await?;
    Ok(ids.len() as u32)
}

/// Purges a batch of lock rows whose keys follow `after`. Returns the last key, or an empty one at the end of the zone.
async fn purge_some_locks(conn: &mut Conn, zone: u32, after: &[u8]) -> Result<Vec<u8>, Error> {
    let mut step = purge_step(conn).await?;
    let find = "SELECT bucket_key FROM headcount_bucket_locks WHERE zone_id = ? AND bucket_key > ? \
                ORDER BY bucket_key LIMIT ?";
    let mut keys: Vec<Vec<u8>> = step.exec(find, (zone, after, BATCH)).await?;
    delete_unneeded_locks(&mut step, zone, &keys).await?;
    step.commit().await?;
    Ok(if keys.len() < BATCH as usize { Vec::new() } else { keys.pop().unwrap_or_default() })
}

async fn purge_step(conn: &mut Conn) -> Result<DbTransaction<'_>, Error> {
    let mut options = TxOpts::default();
    options.with_isolation_level(IsolationLevel::ReadCommitted);
    conn.start_transaction(options).await
}

/// Deletes the lock rows of those keys that have no transactions. A client that waits for a deleted row creates a new
/// one. A client that has locked its row has not recorded anything yet, and its row is skipped.
async fn delete_unneeded_locks(step: &mut DbTransaction<'_>, zone: u32, keys: &[Vec<u8>]) -> Result<(), Error> {
    let lock = "SELECT bucket_key FROM headcount_bucket_locks FORCE INDEX (PRIMARY)";
    let mut free = of_keys(step, lock, zone, keys, "FOR UPDATE SKIP LOCKED").await?;
    // Requests record only under the lock, which we hold now, so this query misses no transaction.
    let count = "SELECT DISTINCT bucket_key FROM headcount_transactions";
    let needed: HashSet<_> = of_keys(step, count, zone, &free, "").await?.into_iter().collect();
    free.retain(|key| !needed.contains(key));
    let in_order = format!("ORDER BY zone_id, bucket_key LIMIT {}", free.len());
    of_keys(step, "DELETE FROM headcount_bucket_locks", zone, &free, &in_order).await.map(drop)
}

/// Runs a statement on the rows of these keys, unless `keys` is empty. Returns the keys that it selects.
async fn of_keys(
    step: &mut DbTransaction<'_>,
    statement: &str,
    zone: u32,
    keys: &[Vec<u8>],
    end: &str,
) -> Result<Vec<Vec<u8>>, Error> {
    if keys.is_empty() {
        return Ok(Vec::new());
    }
    let values = [Value::from(zone)].into_iter().chain(keys.iter().map(Value::from)).collect();
    let marks = vec!["?"; keys.len()].join(",");
    let statement = format!("{statement} WHERE zone_id = ? AND bucket_key IN ({marks}) {end}");
    step.exec(statement, Params::Positional(values)).await
}

/// The moving window of a zone. Clones are handles to one limiter. See [`Mysql::velocity`].
///
/// Allows at most the zone's rate in any window, exactly, as [`velocity`](crate::limit::velocity) does in memory. Times
/// are whole seconds, an attempt exactly as old as the window still counts, and blocked attempts are stored and not
/// counted.
///
/// ```no_run
/// # async fn example(store: headcount::limit::Mysql) -> Result<(), headcount::limit::SqlError> {
/// use headcount::limit::Ask;
/// use std::time::Duration;
/// store.set_zone(7, 5, Duration::from_secs(60)).await?;
/// let login = store.velocity(7);
/// let answer = login.ask("alice", Ask::ONE).await?;
/// assert!(answer.limit == 5 && answer.transaction.is_some());
/// let look = login.ask("alice", Ask::ONE.peek()).await?;
/// assert_eq!(look.transaction, None, "a look is no attempt");
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct Velocity {
    store: Mysql,
    zone: u32,
}

impl Velocity {
    /// Asks for permits for a key, at the time of the database server. [`Answer::transaction`] is the number of the
    /// attempt, allowed or blocked. It is `None` for a peek, and for an ask for no permits.
    ///
    /// # Errors
    /// [`SqlError::UnknownZone`]. [`SqlError::NoWaiting`] with a `max_wait`, because a window cannot reserve future
    /// permits. [`SqlError::Store`]; after a timeout, the attempt may have been recorded.
    ///
    /// # Cost
    /// One `CALL`, in one round trip; in it a row lock, a count over the index of the attempts in the window, and an
    /// insert.
    pub async fn ask(&self, key: impl AsRef<[u8]>, ask: Ask) -> Result<Answer, SqlError> {
        self.asked(key.as_ref(), ask, None).await
    }

    /// Returns the last attempts of a key, the newest first; see [`Mysql::history`].
    ///
    /// # Errors
    /// [`SqlError::Store`].
    pub async fn history(&self, key: impl AsRef<[u8]>, at_most: u32) -> Result<Vec<Transaction>, SqlError> {
        self.store.history(self.zone, key, at_most).await
    }

    /// Returns the limiter at a given time since the Unix epoch, for tests that do not sleep. The database uses that
    /// time instead of its clock; nothing else differs.
    pub fn at(&self, time: Duration) -> VelocityAt<'_> {
        VelocityAt { velocity: self, time }
    }

    async fn asked(&self, key: &[u8], ask: Ask, at: Option<Duration>) -> Result<Answer, SqlError> {
        if ask.max_wait.is_some_and(|wait| !wait.is_zero()) {
            return Err(SqlError::NoWaiting("a moving window of attempts"));
        }
        let permits = match ask.cost {
            Cost::All => Value::NULL,
            // The cap is above the rate of every zone, and fits the column.
            Cost::Permits(permits) => Value::UInt(permits.min(u64::from(u32::MAX))),
        };
        let take = ask.mode == Mode::Take && ask.cost != Cost::Permits(0);
        // The cap is the year 9000. The database's calendar ends in 9999.
        let at = at.map_or(Value::NULL, |at| Value::UInt(at.as_secs().min(221_845_392_000)));
        let arguments = Params::Positional(vec![self.zone.into(), stored_key(key).into(), permits, take.into(), at]);
        let asked = self.store.run(arguments, |conn, arguments| {
            Box::pin(async move {
                let mut sets = conn.exec_iter(ASK, arguments.clone()).await?;
                // There are three result sets: the lock row, the answer, and the end of the procedure. Any left unread
                // would reach the connection's next user.
                let mut last = None;
                while !sets.is_empty() {
                    let rows: Vec<Row> = sets.collect().await?;
                    last = rows.into_iter().next().or(last);
                }
                sets.drop_result().await?;
                Ok(last)
            })
        });
        match asked.await {
            Ok(Some(row)) => Ok(Found::read(row)?.answer(ask.cost)),
            Ok(None) => Err(StoreError::corrupt("headcount_ask returned no row").into()),
            Err(SqlError::Store(error)) if error.is_refused() && error.to_string().contains("unknown zone") => {
                Err(SqlError::UnknownZone { zone: self.zone })
            }
            Err(error) => Err(error),
        }
    }
}

impl LimiterStore for Velocity {
    async fn execute(&self, key: StoreKey<'_>, step: Step) -> Result<Option<Answer>, LimiterStoreError> {
        match step {
            Step::Ask(ask) => Ok(Some(self.ask(key.bytes, ask).await?)),
            // A zone undoes no transaction.
            _ => Err(LimiterStoreError::Unsupported),
        }
    }
}

/// A [`Velocity`] at one moment; see [`Velocity::at`].
///
/// ```no_run
/// # async fn example(store: headcount::limit::Mysql) -> Result<(), headcount::limit::SqlError> {
/// use headcount::limit::Ask;
/// use std::time::Duration;
/// store.set_zone(7, 1, Duration::from_secs(10)).await?;
/// let zone = store.velocity(7);
/// let at = |secs: u64| zone.at(Duration::from_secs(1_800_000_000 + secs));
/// assert!(at(0).ask("alice", Ask::ONE).await?.is_allowed());
/// let refused = at(10).ask("alice", Ask::ONE).await?;
/// assert_eq!(refused.retry(), Some(Duration::from_secs(1)), "an attempt as old as the window still counts");
/// assert!(at(11).ask("alice", Ask::ONE).await?.is_allowed());
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy)]
pub struct VelocityAt<'a> {
    velocity: &'a Velocity,
    time: Duration,
}

impl VelocityAt<'_> {
    /// Asks at this time; see [`Velocity::ask`].
    ///
    /// # Errors
    /// [`SqlError`].
    pub async fn ask(&self, key: impl AsRef<[u8]>, ask: Ask) -> Result<Answer, SqlError> {
        self.velocity.asked(key.as_ref(), ask, Some(self.time)).await
    }
}

/// A stored attempt.
///
/// ```no_run
/// # async fn example(store: headcount::limit::Mysql) -> Result<(), headcount::limit::SqlError> {
/// use headcount::limit::{Ask, Transaction};
/// let login = store.velocity(7);
/// let answer = login.ask("alice", Ask::ONE).await?;
/// let attempts: Vec<Transaction> = login.history("alice", 10).await?;
/// assert_eq!(Some(attempts[0].id), answer.transaction, "newest first");
/// let blocked = attempts.iter().filter(|attempt| attempt.blocked).count();
/// println!("{blocked} of her last {} attempts were blocked", attempts.len());
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Transaction {
    /// The number of the attempt. Later attempts of a key have higher numbers.
    pub id: u64,
    /// Whether the attempt was refused.
    pub blocked: bool,
    /// The number of permits of the attempt.
    pub permits: u32,
    /// The time of the attempt, in whole seconds since the Unix epoch.
    pub at: Duration,
}

impl Transaction {
    fn read(row: Row) -> Result<Self, StoreError> {
        let (id, blocked, permits, at): (u64, bool, u32, i64) =
            mysql_async::from_row_opt(row).map_err(StoreError::corrupt)?;
        Ok(Self { id, blocked, permits, at: Duration::from_secs(u64::try_from(at).unwrap_or(0)) })
    }
}

/// The result of `headcount_ask`, with times in seconds.
struct Found {
    blocked: bool,
    transaction: Option<u64>,
    rate: u64,
    window: u64,
    /// The permits that count after the attempt.
    held: u64,
    now: i64,
    /// The time of the attempt that must leave the window before there is room for this attempt. `None` if there is
    /// room, or never will be.
    room_after: Option<i64>,
    /// The time of the attempt that must leave the window before there is room for one more permit. `None` if there is
    /// room.
    next_after: Option<i64>,
    /// The time of the last attempt that counts; `None` if none counts.
    last: Option<i64>,
}

impl Found {
    fn read(row: Row) -> Result<Self, StoreError> {
        type Columns = (bool, Option<u64>, u64, u64, u64, i64, Option<i64>, Option<i64>, Option<i64>);
        let (blocked, transaction, rate, window, held, now, room_after, next_after, last): Columns =
            mysql_async::from_row_opt(row).map_err(StoreError::corrupt)?;
        Ok(Self { blocked, transaction, rate, window, held, now, room_after, next_after, last })
    }

    /// Returns how long an attempt of the time `at` still counts. It counts when it is exactly as old as the window,
    /// and leaves one second later.
    fn until_gone(&self, at: i64) -> Duration {
        let gone = at.saturating_add_unsigned(self.window).saturating_add(1);
        Duration::from_secs(u64::try_from(gone.saturating_sub(self.now)).unwrap_or(0))
    }

    fn answer(&self, cost: Cost) -> Answer {
        let above_capacity = matches!(cost, Cost::Permits(permits) if permits > self.rate);
        let verdict = match (self.blocked, above_capacity) {
            (false, _) => Verdict::Now,
            (true, true) => Verdict::Refused { retry: None, because: RefusalReason::AboveCapacity },
            (true, false) => {
                Verdict::Refused { retry: self.room_after.map(|at| self.until_gone(at)), because: RefusalReason::Used }
            }
        };
        let remaining = self.rate.saturating_sub(self.held);
        Answer {
            verdict,
            limit: self.rate,
            remaining,
            available: self.rate as f64 - self.held as f64,
            next_in: self.next_after.map_or(Duration::ZERO, |at| self.until_gone(at)),
            reset_after: self.last.map_or(Duration::ZERO, |at| self.until_gone(at)),
            answered_by: AnsweredBy::Store,
            transaction: self.transaction,
            reservation: Reservation::default(),
        }
    }
}

/// The code of an error that a procedure has signalled. With the SQL state [`LOCK_VANISHES`], a bucket lock could not
/// be taken. With any other state, the zone is unknown or another argument is invalid.
const SIGNALLED: u16 = 1644;

/// The SQL state for a bucket lock that was deleted again and again before the procedure could lock it.
const LOCK_VANISHES: &str = "45001";

/// Returns whether the operation conflicted with another one, so that it is worth repeating: a deadlock, a changed row,
/// or a row that another session inserted first.
fn is_conflict(code: u16) -> bool {
    matches!(code, 1213 | 1020 | 1062)
}

fn classify(error: &Error) -> StoreError {
    match error {
        Error::Server(ServerError { code, state, .. }) => match code {
            1146 | 1305 => {
                StoreError::refused(format_args!("the schema is missing, or a part of it: call install() ({error})"))
            }
            // A statement or its wait for a lock took too long, or conflicts lasted until the time limit.
            1205 | 1969 | 3024 | 1213 | 1020 | 1062 => StoreError::timeout(error),
            1044 | 1045 | 1049 | 1142 | 1143 | 1227 | 1370 | 1698 => StoreError::refused(error),
            &SIGNALLED if state == LOCK_VANISHES => StoreError::timeout(error),
            &SIGNALLED => StoreError::refused(error),
            _ if state.starts_with("42") || state.starts_with("28") => StoreError::refused(error),
            _ => StoreError::unavailable(error),
        },
        Error::Driver(DriverError::FromValue { .. } | DriverError::FromRow { .. } | DriverError::PacketOutOfOrder) => {
            StoreError::corrupt(error)
        }
        Error::Url(_) => StoreError::refused(error),
        Error::Driver(_) | Error::Io(_) | Error::Other(_) => StoreError::unavailable(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_that_vanishes_is_a_conflict_and_an_unknown_zone_a_mistake() {
        let signalled = |state: &str| {
            let (message, state) = (String::new(), state.to_owned());
            classify(&Error::Server(ServerError { code: SIGNALLED, message, state }))
        };
        assert!(!signalled(LOCK_VANISHES).is_refused(), "another attempt may succeed");
        assert!(signalled("45000").is_refused());
    }
}
