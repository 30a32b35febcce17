//! The store in PostgreSQL or YugabyteDB: token buckets that a fleet shares. The database decides in one statement.
//!
//! The *exact* form is the arithmetic of [`Gcra`] in SQL. It grants permits only after it has locked the row and then
//! read the database's clock once. It returns the state that it found, from which the code of the memory store makes
//! the answer. The *as_published* form is the function published for YugabyteDB, with all its peculiarities. Both are
//! in `sql/postgres/`.

use super::sql::{CONNECTIONS, Deadline, INSTALL_WITHIN, MAX_NAME, SqlError, WITHIN, stored_key};
use crate::config::Secret;
use crate::limit::answer::{Answer, AnsweredBy, RefusalReason, Reservation, Verdict};
use crate::limit::ask::{Ask, Cost, Mode};
use crate::limit::limiter_store::{LimiterStore, LimiterStoreError, StoreKey};
use crate::limit::policy::{Arithmetic, Gcra, OnStepBack, Paid, Policy, Question, Start};
use crate::limit::rate::Rate;
use crate::limit::step::Step;
use crate::limit::{nanos, yugabyte};
use crate::store_error::StoreError;
use deadpool_postgres::{Hook, HookError, Manager, ManagerConfig, Object, Pool, PoolError, RecyclingMethod, Runtime};
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio_postgres::config::SslMode;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Config, NoTls, Row};

/// The version of the schema that this program installs.
const VERSION: i32 = 3;

/// The statements that install the schema, and repair a partial one.
const SCHEMA: [&str; 4] = [
    include_str!("../../../sql/postgres/schema.sql"),
    include_str!("../../../sql/postgres/convert_state.sql"),
    include_str!("../../../sql/postgres/ask.sql"),
    include_str!("../../../sql/postgres/rate_limiting_token_bucket_request.sql"),
];

/// Checks whether the schema is complete, so that a user without the right to create it can call `install`, too.
const IS_COMPLETE: &str = "select to_regclass('headcount.buckets') is not null \
    and to_regclass('headcount.rate_limiting_token_bucket') is not null and to_regclass('headcount.purge_place') is \
    not null and to_regprocedure('headcount.convert_state(bigint, bigint, bigint, bigint, bigint, bigint, bigint)') \
    is not null and to_regprocedure('headcount.ask(bytea, bigint, bigint, bigint, bigint, boolean, bigint)') is not \
    null and to_regprocedure('headcount.rate_limiting_token_bucket_request(bytea, bigint, bigint, boolean, bigint)') \
    is not null";

/// The number of our advisory lock: "headcount" in ASCII, cut to eight bytes.
const INSTALLING: i64 = 0x6865_6164_636f_756e;

const ASK: &str = "select now_ns, was_tat, was_as_of, granted from headcount.ask($1, $2, $3, $4, $5, $6, $7)";
const ASK_AS_PUBLISHED: &str = "select headcount.rate_limiting_token_bucket_request($1, $2, $3, $4, $5)";
const SET_EXACT: &str = include_str!("../../../sql/postgres/set_exact.sql");
const SET_AS_PUBLISHED: &str = include_str!("../../../sql/postgres/set_as_published.sql");
const LOCK: &str = include_str!("../../../sql/postgres/lock.sql");
const PURGE: &str = include_str!("../../../sql/postgres/purge.sql");

/// The number of rows that one statement of a purge reads.
const LOOKS: i64 = 1000;

/// The result of one statement of a purge.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Purged {
    pub(crate) forgotten: u64,
    /// Whether the statement reached the end of the table.
    pub(crate) was_last: bool,
}

/// The longest burst and the longest wait, in nanoseconds: 73 years each. Their sum with a time before the year 2116
/// fits a `bigint`.
const MOST_NANOS: u64 = 1 << 61;

/// An operation on a connection. It is a function, because it may be repeated.
type Work<A, T> = for<'a> fn(&'a mut Object, &'a A) -> Working<'a, T>;
type Working<'a, T> = Pin<Box<dyn Future<Output = Result<T, tokio_postgres::Error>> + Send + 'a>>;

/// A database with token buckets. Clones share its connections.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use headcount::limit::{Ask, Postgres, Rate};
/// use std::time::Duration;
/// let store = Postgres::open("postgres://limits:secret@db.internal/app")?;
/// store.install().await?;
/// let login = store.yugabyte(Rate::per_second(2), Duration::from_secs(60))?.named("login")?;
/// let answer = login.ask("alice", Ask::ONE).await?;
/// assert!(answer.is_allowed() && answer.limit == 120);
/// # Ok(()) }
/// ```
///
/// # YugabyteDB
/// The SQL was tested on PostgreSQL 15, and not on YugabyteDB itself. The differences there:
/// - Under its snapshot isolation, and wherever read committed is not turned on (`yb_enable_read_committed_isolation`),
///   a conflicting statement does not wait but fails (40001), also in the exact form. Both forms retry, so the answers
///   are correct, but a frequently used key needs more attempts.
/// - Releases built on PostgreSQL 11 give `extract(epoch ..)` as double precision, not numeric. The exact form reads
///   microseconds from it, which double precision holds. The published form rounds a half to the even neighbor there:
///   [`Rounding::HalfEven`].
/// - [`install`](Self::install) takes an advisory lock, which older releases lack. There, run the four files that
///   define the schema, `sql/postgres/{schema,convert_state,ask,rate_limiting_token_bucket_request}.sql`, and insert
///   the version (3) by hand.
///
/// # Behind a pooler
/// Statements are prepared, and the session is set up, once per connection. So PgBouncer must pool sessions, not
/// transactions.
///
/// # TLS
/// TLS is not supported: a URL with `sslmode=require` is refused. Keep the database in a private network, or connect
/// through a local proxy.
#[derive(Clone)]
pub struct Postgres {
    pool: Pool,
    within: Duration,
}

/// Configures a [`Postgres`].
///
/// ```
/// use headcount::limit::Postgres;
/// use std::time::Duration;
/// let url = "postgres://limits:secret@db.internal/app";
/// let store = Postgres::builder(url).max_connections(4).within(Duration::from_millis(50)).open()?;
/// assert_eq!(store.connections(), 0, "it connects when it is asked");
/// let error = Postgres::open(format!("{url}?sslmode=require")).unwrap_err().to_string();
/// assert!(error.contains("does not support TLS") && !error.contains("secret"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct PostgresBuilder {
    url: Secret,
    connections: usize,
    within: Duration,
}

impl PostgresBuilder {
    /// Limits the number of connections, to one or more. The default is 10.
    #[must_use]
    pub fn max_connections(mut self, connections: usize) -> Self {
        self.connections = connections.max(1);
        self
    }

    /// Sets the time limit of an answer, including the wait for a free connection and all retries. The default is one
    /// second. After the same time, the database cancels a statement.
    #[must_use]
    pub fn within(mut self, within: Duration) -> Self {
        self.within = within;
        self
    }

    /// Reads the URL. Does not connect.
    ///
    /// # Errors
    /// [`SqlError::Url`].
    pub fn open(self) -> Result<Postgres, SqlError> {
        let refused = |why: String| SqlError::Url { found: self.url.redacted_url(), why };
        let mut config: Config = self.url.expose().parse().map_err(|error| refused(chain(&error)))?;
        if config.get_ssl_mode() == SslMode::Require {
            return Err(refused("this store does not support TLS; remove sslmode=require".into()));
        }
        if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
            return Err(refused("it names no host; write postgres://user:password@host/database".into()));
        }
        config.ssl_mode(SslMode::Disable);
        if config.get_application_name().is_none() {
            config.application_name("headcount");
        }
        let millis = self.within.as_millis().clamp(1, i32::MAX as u128);
        let session = format!(
            "set statement_timeout = {millis}; set idle_in_transaction_session_timeout = {millis}; \
             set default_transaction_isolation = 'read committed'"
        );
        let prepare = Hook::async_fn(move |client, _| {
            let session = session.clone();
            Box::pin(async move { client.batch_execute(&session).await.map_err(HookError::Backend) })
        });
        let manager = ManagerConfig { recycling_method: RecyclingMethod::Fast };
        let pool = Pool::builder(Manager::from_config(config, NoTls, manager))
            .max_size(self.connections)
            .runtime(Runtime::Tokio1)
            .post_create(prepare)
            .build()
            .map_err(|error| refused(error.to_string()))?;
        Ok(Postgres { pool, within: self.within })
    }
}

impl Postgres {
    /// Creates a store from a URL such as `postgres://user:password@host:port/database`, or from `key=value` pairs. A
    /// `host` that begins with a slash is the directory of a Unix socket. Does not connect yet.
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
    pub fn builder(url: impl Into<String>) -> PostgresBuilder {
        PostgresBuilder { url: Secret::new(url), connections: CONNECTIONS, within: WITHIN }
    }

    /// Creates the schema `headcount` in the database, or upgrades an older one. Does nothing if the schema is current.
    /// Several servers may call it at the same time, at each start. Before an upgrade, stop programs that know only the
    /// older version: they would write rows without a policy.
    ///
    /// The first caller must be allowed to create a schema. All others need only `usage` of the schema `headcount`, and
    /// `select, insert, update, delete` on its tables.
    ///
    /// # Errors
    /// [`SqlError::NewerSchema`]; [`SqlError::Store`].
    ///
    /// # Cost
    /// The call may take up to 30 s while another server installs.
    pub async fn install(&self) -> Result<(), SqlError> {
        let deadline = Deadline::new(INSTALL_WITHIN);
        let mut lease = self.connect(&deadline).await?;
        let installed = deadline.wait_for("end of the installation", install(lease.client())).await?;
        // After a failure within a transaction, the connection is not used again.
        installed.map(|()| lease.give_back())
    }

    /// Returns buckets of the exact form. Their burst is the number of permits that come in one `window`. With
    /// [`Bucket::as_published`], they use the published function.
    ///
    /// # Errors
    /// [`SqlError::Policy`] if the rate is zero, or the window is longer than 73 years.
    pub fn yugabyte(&self, rate: Rate, window: Duration) -> Result<Bucket, SqlError> {
        let mut bucket = self.bucket(yugabyte(rate, window)?)?;
        bucket.window = window;
        Ok(bucket)
    }

    /// Returns buckets of a policy [`Gcra`] with [`Paid::Before`], [`Start::Full`] and [`OnStepBack::Hold`], such as
    /// [`token_bucket`](crate::limit::token_bucket), [`leaky_bucket`](crate::limit::leaky_bucket) and
    /// [`leaky_queue`](crate::limit::leaky_queue).
    ///
    /// A row contains the policy of its last request. A request with another policy converts the row: what was used
    /// counts against the new limit, see [the rule](crate::limit#when-a-limit-changes), and then the new rate applies.
    ///
    /// # Errors
    /// [`SqlError::NotHere`] for a [`Gcra`] with other settings; [`SqlError::Policy`] for an invalid one, or a burst of
    /// more than 73 years.
    pub fn bucket(&self, policy: Gcra) -> Result<Bucket, SqlError> {
        Policy::Gcra(policy.clone()).check()?;
        match &policy {
            tat if tat.paid != Paid::Before => return Err(SqlError::NotHere("this one is paid after")),
            tat if tat.start != Start::Full => return Err(SqlError::NotHere("this one starts empty")),
            tat if tat.on_step_back != OnStepBack::Hold => return Err(SqlError::NotHere("this one recounts time")),
            tat if tat.span > MOST_NANOS => {
                return Err(crate::limit::PolicyError::TooLong { rate: tat.rate }.into());
            }
            _ => {}
        }
        let window = Duration::from_nanos(policy.span);
        Ok(Bucket { store: self.clone(), policy, window, form: Form::Exact, name: Arc::from("") })
    }

    /// Deletes at most `at_most` keys of the exact form that would be answered like new ones, and returns how many were
    /// deleted. Without purges, the table keeps a row for every key forever; `headcount serve` purges regularly. Rows
    /// of the as_published form stay, because they do not show when they are full.
    ///
    /// A purge begins where the last one ended, reads to the end of the table, and then continues at the beginning of
    /// the table. Each statement reads 1,000 rows. Several servers may purge at the same time. They share the work: a
    /// purge ends if a statement of another purge is running when it begins one of its own.
    ///
    /// # Errors
    /// [`SqlError::Store`]; what was deleted before stays deleted.
    pub async fn purge(&self, at_most: u32) -> Result<u64, SqlError> {
        let (mut forgotten, mut ends) = (0, 0);
        // First to the end of the table, then from its beginning.
        while forgotten < u64::from(at_most) && ends < 2 {
            let Some(purged) = self.purge_some(at_most - forgotten as u32).await? else { break };
            forgotten += purged.forgotten;
            ends += u32::from(purged.was_last);
        }
        Ok(forgotten)
    }

    /// Runs one statement of a purge; `None` while another server purges.
    pub(crate) async fn purge_some(&self, at_most: u32) -> Result<Option<Purged>, SqlError> {
        let purged = self.run(at_most, |client, at_most| {
            Box::pin(async move {
                let statement = client.prepare_cached(PURGE).await?;
                client.query_one(&statement, &[&LOOKS, &i64::from(*at_most)]).await
            })
        });
        let row = purged.await?;
        let [looks, forgotten] = [1, 2].map(|column| row.get::<_, i64>(column));
        let purged = Purged { forgotten: forgotten.unsigned_abs(), was_last: looks < LOOKS };
        Ok(row.get::<_, bool>(0).then_some(purged))
    }

    /// Returns the current number of connections, in use or idle.
    pub fn connections(&self) -> usize {
        self.pool.status().size
    }

    async fn connect(&self, deadline: &Deadline) -> Result<Lease, StoreError> {
        let connected = deadline.wait_for("free connection", self.pool.get()).await?;
        connected.map(Lease::of).map_err(|error| match error {
            PoolError::Backend(error) | PoolError::PostCreateHook(HookError::Backend(error)) => classify(&error),
            error => StoreError::unavailable(error),
        })
    }

    /// Runs an operation. Repeats it after a conflict with other sessions, or if an idle connection was lost.
    async fn run<A, T>(&self, about: A, work: Work<A, T>) -> Result<T, SqlError> {
        let mut deadline = Deadline::new(self.within);
        let mut lost_one = false;
        loop {
            let mut lease = self.connect(&deadline).await?;
            let error = match deadline.wait_for("answer", work(lease.client(), &about)).await? {
                Ok(done) => {
                    lease.give_back();
                    return Ok(done);
                }
                Err(error) => error,
            };
            let code = error.code();
            if (error.is_closed() || code.is_some_and(is_shutdown)) && !lost_one {
                // The connection was idle while the server stopped, and possibly started again.
                lost_one = true;
                self.pool.retain(|client, _| !client.is_closed());
                continue;
            }
            if code.is_some_and(is_conflict) {
                lease.give_back();
                deadline.pause(classify(&error)).await?;
                continue;
            }
            if code == Some(&SqlState::QUERY_CANCELED) {
                lease.give_back();
            }
            return Err(classify(&error).into());
        }
    }
}

impl fmt::Debug for Postgres {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Postgres").field("connections", &self.connections()).field("within", &self.within).finish()
    }
}

/// A connection in use. If its work was not finished, because the caller's time ran out or the caller went away, it is
/// closed: otherwise its next user would have to wait for the abandoned statement.
struct Lease(Option<Object>);

impl Lease {
    fn of(client: Object) -> Self {
        Self(Some(client))
    }

    fn client(&mut self) -> &mut Object {
        self.0.as_mut().expect("a lease holds its connection until it ends")
    }

    fn give_back(mut self) {
        drop(self.0.take());
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(client) = self.0.take() {
            drop(Object::take(client));
        }
    }
}

async fn install(client: &mut Object) -> Result<(), SqlError> {
    let broken = |error: tokio_postgres::Error| SqlError::from(classify(&error));
    let transaction = client.transaction().await.map_err(broken)?;
    let millis = INSTALL_WITHIN.as_millis();
    transaction.batch_execute(&format!("set local statement_timeout = {millis}")).await.map_err(broken)?;
    transaction.execute("select pg_advisory_xact_lock($1)", &[&INSTALLING]).await.map_err(broken)?;
    let exists = "select to_regclass('headcount.schema_version') is not null";
    let mut found = None;
    if transaction.query_one(exists, &[]).await.map_err(broken)?.get(0) {
        let version =
            transaction.query_opt("select version from headcount.schema_version", &[]).await.map_err(broken)?;
        found = version.map(|row| row.get::<_, i32>(0));
    }
    match found {
        Some(found) if found > VERSION => {
            return Err(SqlError::NewerSchema { found: found.unsigned_abs(), known: VERSION.unsigned_abs() });
        }
        Some(VERSION) if transaction.query_one(IS_COMPLETE, &[]).await.map_err(broken)?.get(0) => return Ok(()),
        _ => {}
    }
    for statements in SCHEMA {
        transaction.batch_execute(statements).await.map_err(broken)?;
    }
    let note = "insert into headcount.schema_version (version) values ($1) on conflict (one) do update set version = \
                excluded.version";
    transaction.execute(note, &[&VERSION]).await.map_err(broken)?;
    transaction.commit().await.map_err(broken)
}

/// The arithmetic of a [`Bucket`].
///
/// ```
/// use headcount::limit::{Form, Postgres, Rate, Rounding};
/// use std::time::Duration;
/// let store = Postgres::open("postgres://limits:secret@db.internal/app")?;
/// let bucket = store.yugabyte(Rate::per_second(2), Duration::from_secs(60))?;
/// assert_eq!(bucket.form(), Form::Exact);
/// let as_published = bucket.as_published(Rounding::HalfAway)?;
/// assert_eq!(as_published.form(), Form::AsPublished(Rounding::HalfAway));
/// // The published function counts in whole tokens per second.
/// assert!(store.yugabyte(Rate::per_minute(5), Duration::from_secs(60))?.as_published(Rounding::HalfAway).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// The arithmetic of the memory store: times are whole nanoseconds, and refusals cost no permits. To grant permits,
    /// it locks the row and then reads the clock once.
    Exact,
    /// The published function, with all its peculiarities; see [`Bucket::as_published`].
    AsPublished(Rounding),
}

/// How the published function rounds half a token.
///
/// ```no_run
/// # async fn example(store: headcount::limit::Postgres) -> Result<(), headcount::limit::SqlError> {
/// use headcount::limit::{Ask, Rate, Rounding};
/// use std::time::Duration;
/// for (rounding, is_allowed) in [(Rounding::HalfAway, false), (Rounding::HalfEven, true)] {
///     let bucket = store.yugabyte(Rate::per_second(1), Duration::from_secs(10))?.as_published(rounding)?;
///     bucket.at(Duration::from_secs(60)).set("alice", 0).await?;
///     // Half a token has come, and one is taken: -½ is rounded to -1, or to 0.
///     let answer = bucket.at(Duration::from_millis(60_500)).ask("alice", Ask::ONE).await?;
///     assert_eq!(answer.is_allowed(), is_allowed);
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rounding {
    /// Away from zero, as in PostgreSQL 14 and later, whose `extract` returns `numeric`.
    HalfAway,
    /// To the even neighbor, as in PostgreSQL before 14 and YugabyteDB 2, whose `extract` returns double precision.
    HalfEven,
}

/// A limiter in a PostgreSQL database. Clones are handles to one limiter. See [`Postgres::yugabyte`].
///
/// For the same requests at the same times, the exact form answers as [`Memory`](crate::limit::Memory) with the same
/// policy does, to the nanosecond. The database's clock has microseconds. A wait or a burst lasts at most 73 years.
///
/// ```no_run
/// # async fn example(store: headcount::limit::Postgres) -> Result<(), headcount::limit::SqlError> {
/// use headcount::limit::{Ask, Rate, token_bucket};
/// let exports = store.bucket(token_bucket(Rate::per_hour(100), 100))?.named("exports")?;
/// let answer = exports.ask("alice", Ask::permits(30)).await?;
/// if answer.is_allowed() {
///     // It came to ten rows only.
///     exports.refund("alice", 20).await?;
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct Bucket {
    store: Postgres,
    policy: Gcra,
    window: Duration,
    form: Form,
    name: Arc<str>,
}

impl Bucket {
    /// Sets a name, so that limiters in one database do not share keys. Limiters with the same name and form do share
    /// them.
    ///
    /// # Errors
    /// [`SqlError::Name`] for more than 64 bytes, or a NUL.
    pub fn named(mut self, name: &str) -> Result<Self, SqlError> {
        if name.len() > MAX_NAME || name.contains('\0') {
            return Err(SqlError::Name { found: name.to_owned() });
        }
        self.name = name.into();
        Ok(self)
    }

    /// Uses the published function, for a migration from it, with all its peculiarities. It takes one permit at a time,
    /// and cannot reserve future ones.
    ///
    /// - The capacity is a bound *after* the take: an idle bucket yields one more than its capacity.
    /// - Tokens are whole: at 1/s, a client that asks every 0.6 s from a full bucket is always allowed. A client that
    ///   was refused, and then asks every 1.2 s, is never allowed again.
    /// - A refused request is charged, too.
    /// - The start time of the transaction is stored, and the clock is compared with it. With many concurrent requests
    ///   for one key, waiting time counts twice, and too many requests are allowed.
    ///
    /// It runs SERIALIZABLE, and is repeated after a conflict, within the store's time limit.
    /// [`Answer::available`] is the number that the function returned.
    ///
    /// # Errors
    /// [`SqlError::NotWhole`] unless the rate is a whole number of permits per second and the window a whole number of
    /// seconds, each from 1 to 2,147,483,647.
    pub fn as_published(mut self, rounding: Rounding) -> Result<Self, SqlError> {
        published(self.policy.rate, self.window)?;
        self.form = Form::AsPublished(rounding);
        Ok(self)
    }

    /// Returns the arithmetic that the bucket uses.
    pub fn form(&self) -> Form {
        self.form
    }

    /// Asks for permits for a key, at the time of the database server.
    ///
    /// # Errors
    /// [`SqlError::Store`]; after a timeout, the permits may have been taken. [`SqlError::OnlyOne`] and
    /// [`SqlError::NoWaiting`] from the published form.
    ///
    /// # Cost
    /// One statement, in one round trip. An allowed request holds a row lock until the database has written the row. In
    /// the exact form, a refusal takes no lock and writes nothing, unless the row contains another policy.
    pub async fn ask(&self, key: impl AsRef<[u8]>, ask: Ask) -> Result<Answer, SqlError> {
        self.asked(key.as_ref(), ask, None).await
    }

    /// Cancels a reservation whose turn has not come. Later reservations keep their turns.
    ///
    /// # Errors
    /// [`SqlError::Store`]; [`SqlError::OnlyOne`] from the published form, which gives nothing back.
    pub async fn cancel(&self, key: impl AsRef<[u8]>, reservation: &Reservation) -> Result<(), SqlError> {
        self.given_back(key.as_ref(), Back::Reservation(*reservation), None).await
    }

    /// Gives permits back, never above the limit.
    ///
    /// # Errors
    /// [`SqlError::Store`]; [`SqlError::OnlyOne`] from the published form, which gives nothing back.
    pub async fn refund(&self, key: impl AsRef<[u8]>, permits: u64) -> Result<(), SqlError> {
        self.given_back(key.as_ref(), Back::Permits(permits), None).await
    }

    /// Forgets a key, as if it had never been asked for.
    ///
    /// # Errors
    /// [`SqlError::Store`].
    pub async fn reset(&self, key: impl AsRef<[u8]>) -> Result<(), SqlError> {
        let forget = match self.form {
            Form::Exact => "delete from headcount.buckets where id = $1",
            Form::AsPublished(_) => "delete from headcount.rate_limiting_token_bucket where id = $1",
        };
        let about = (forget, self.id(key.as_ref()));
        self.store
            .run(about, |client, (forget, id)| Box::pin(async move { client.execute(*forget, &[id]).await }))
            .await
            .map(|_| ())
    }

    /// Sets the permits of a key, for a migration from another limiter. In the exact form, a negative number is a debt,
    /// and a number above the limit becomes the limit. In the published form, the number is stored as it is.
    ///
    /// # Errors
    /// [`SqlError::Store`].
    pub async fn set(&self, key: impl AsRef<[u8]>, permits: i64) -> Result<(), SqlError> {
        self.put(key.as_ref(), permits, None).await
    }

    /// Returns the limiter at a given time since the Unix epoch, for tests that do not sleep. The database uses that
    /// time instead of its clock; nothing else differs.
    pub fn at(&self, time: Duration) -> BucketAt<'_> {
        BucketAt { bucket: self, time }
    }

    /// Returns the id of a key's row. Names contain no NUL, so the first NUL ends the name.
    fn id(&self, key: &[u8]) -> Vec<u8> {
        let mut id = self.name.as_bytes().to_vec();
        id.push(0);
        id.extend(stored_key(key));
        id
    }

    async fn asked(&self, key: &[u8], ask: Ask, at: Option<Duration>) -> Result<Answer, SqlError> {
        match self.form {
            Form::Exact => self.ask_exact(self.id(key), ask, at).await,
            Form::AsPublished(rounding) => self.ask_as_published(self.id(key), ask, rounding, at).await,
        }
    }

    async fn ask_exact(&self, id: Vec<u8>, ask: Ask, at: Option<Duration>) -> Result<Answer, SqlError> {
        let mut question = Policy::Gcra(self.policy.clone()).question(ask);
        question.max_wait = question.max_wait.min(MOST_NANOS);
        let limit = self.policy.limit;
        let (permits, possible) = match question.cost {
            Cost::All if self.policy.rate.is_infinite() => (0, true),
            Cost::All => (-1, true),
            // A request that can never be allowed needs no lock.
            Cost::Permits(permits) => (bigint(permits.min(limit)), permits <= limit),
        };
        let take = possible && question.mode == Mode::Take;
        let (span, interval) = terms(&self.policy);
        let max_wait = bigint(if self.policy.rate.is_zero() { 0 } else { question.max_wait });
        let at = at.map(bounded);
        let about = (id, span, interval, permits, max_wait, take, at);
        let row = self.store.run(about, |client, (id, span, interval, permits, max_wait, take, at)| {
            Box::pin(async move {
                let statement = client.prepare_cached(ASK).await?;
                let arguments: [&(dyn ToSql + Sync); 7] = [id, span, interval, permits, max_wait, take, at];
                client.query_one(&statement, &arguments).await
            })
        });
        let row = row.await?;
        let found = Found::read(&row)?;
        let mut state = self.policy.state(found.tat, found.as_of);
        let answer: Answer = self.policy.ask(&mut state, found.now, Question { mode: Mode::Peek, ..question }).into();
        if possible && answer.is_allowed() != found.granted {
            return Err(
                StoreError::corrupt("the functions in the database do not match this program: call install()").into()
            );
        }
        Ok(if take { answer } else { Answer { reservation: Reservation::default(), ..answer } })
    }

    async fn ask_as_published(
        &self,
        id: Vec<u8>,
        ask: Ask,
        rounding: Rounding,
        at: Option<Duration>,
    ) -> Result<Answer, SqlError> {
        match ask.cost {
            Cost::Permits(1) => {}
            Cost::Permits(other) => return Err(SqlError::OnlyOne { asked: format!("{other} permits were") }),
            Cost::All => return Err(SqlError::OnlyOne { asked: "all permits were".into() }),
        }
        if ask.max_wait.is_some_and(|wait| !wait.is_zero()) {
            return Err(SqlError::NoWaiting("the published function"));
        }
        let (refill, window) = published(self.policy.rate, self.window)?;
        let half_even = rounding == Rounding::HalfEven;
        let at = at.map(micros);
        let end = match ask.mode {
            Mode::Take => "commit",
            Mode::Peek => "rollback",
        };
        let about = (id, refill, window, half_even, at, end);
        let left = self.store.run(about, |client, (id, refill, window, half_even, at, end)| {
            Box::pin(async move {
                let statement = client.prepare_cached(ASK_AS_PUBLISHED).await?;
                let arguments: [&(dyn ToSql + Sync); 5] = [id, refill, window, half_even, at];
                // Sent together: three round trips would keep the transaction open for longer.
                let (begun, row, ended) = tokio::join!(
                    biased;
                    client.batch_execute("begin isolation level serializable"),
                    client.query_one(&statement, &arguments),
                    client.batch_execute(end),
                );
                begun?;
                let left: i64 = row?.try_get(0)?;
                ended.map(|()| left)
            })
        });
        Ok(published_answer(left.await?, refill, window, rounding))
    }

    async fn given_back(&self, key: &[u8], what: Back, at: Option<Duration>) -> Result<(), SqlError> {
        if self.form != Form::Exact {
            return Err(SqlError::OnlyOne { asked: "a cancellation or a refund was".into() });
        }
        let about = (self.policy.clone(), self.id(key), at.map(bounded), what);
        let given_back = self.store.run(about, |client, (policy, id, at, what)| {
            Box::pin(async move {
                let transaction = client.transaction().await?;
                let (span, interval) = terms(policy);
                let Some(row) = transaction.query_opt(LOCK, &[id, &span, &interval, at]).await? else { return Ok(()) };
                let [tat, as_of, now] = [0, 1, 2].map(|column| u64::try_from(row.get::<_, i64>(column)).unwrap_or(0));
                let mut state = policy.state(tat, as_of);
                match what {
                    Back::Reservation(reservation) => policy.cancel(&mut state, now, reservation),
                    Back::Permits(permits) => policy.refund(&mut state, now, *permits),
                }
                let (tat, as_of) = Gcra::parts(&state);
                let update = "update headcount.buckets set tat = $2, as_of = $3, span_ns = $4, interval_ns = $5 where \
                              id = $1";
                transaction.execute(update, &[id, &bigint(tat), &bigint(as_of), &span, &interval]).await?;
                transaction.commit().await
            })
        });
        given_back.await
    }

    async fn put(&self, key: &[u8], permits: i64, at: Option<Duration>) -> Result<(), SqlError> {
        let id = self.id(key);
        match self.form {
            Form::Exact => {
                let missing = i128::from(self.policy.limit) - i128::from(permits);
                let missing = missing.max(0).saturating_mul(i128::from(self.policy.interval));
                let missing = i64::try_from(missing).unwrap_or(i64::MAX).min(bigint(2 * MOST_NANOS));
                let missing = if self.policy.rate.is_infinite() { 0 } else { missing };
                let (span, interval) = terms(&self.policy);
                let about = (id, missing, span, interval, at.map(bounded));
                let set = self.store.run(about, |client, (id, missing, span, interval, at)| {
                    Box::pin(async move { client.execute(SET_EXACT, &[id, missing, span, interval, at]).await })
                });
                set.await?;
            }
            Form::AsPublished(_) => {
                // As in the published function, tokens above the capacity are cut only after the next take.
                let tokens = permits.clamp(-bigint(MOST_NANOS), bigint(MOST_NANOS));
                let about = (id, tokens, at.map(micros));
                let set = self.store.run(about, |client, (id, tokens, at)| {
                    Box::pin(async move { client.execute(SET_AS_PUBLISHED, &[id, tokens, at]).await })
                });
                set.await?;
            }
        }
        Ok(())
    }
}

impl LimiterStore for Bucket {
    async fn execute(&self, key: StoreKey<'_>, step: Step) -> Result<Option<Answer>, LimiterStoreError> {
        match step {
            Step::Ask(ask) => return Ok(Some(self.ask(key.bytes, ask).await?)),
            Step::Cancel(reservation) => self.cancel(key.bytes, &reservation).await?,
            Step::Refund(permits) => self.refund(key.bytes, permits).await?,
            Step::Reset => self.reset(key.bytes).await?,
        }
        Ok(None)
    }
}

/// A [`Bucket`] at one moment; see [`Bucket::at`].
///
/// ```no_run
/// # async fn example(store: headcount::limit::Postgres) -> Result<(), headcount::limit::SqlError> {
/// use headcount::limit::{Ask, Rate, token_bucket};
/// use std::time::Duration;
/// let bucket = store.bucket(token_bucket(Rate::per_second(1), 5))?.named("story")?;
/// let at = |secs: u64| bucket.at(Duration::from_secs(1_800_000_000 + secs));
/// at(0).set("alice", -2).await?;
/// let refused = at(0).ask("alice", Ask::ONE).await?;
/// assert_eq!(refused.retry(), Some(Duration::from_secs(3)), "two that she owes, and the one that she asks for");
/// assert!(at(3).ask("alice", Ask::ONE).await?.is_allowed());
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy)]
pub struct BucketAt<'a> {
    bucket: &'a Bucket,
    time: Duration,
}

impl BucketAt<'_> {
    /// Asks at this time; see [`Bucket::ask`].
    ///
    /// # Errors
    /// [`SqlError`].
    pub async fn ask(&self, key: impl AsRef<[u8]>, ask: Ask) -> Result<Answer, SqlError> {
        self.bucket.asked(key.as_ref(), ask, Some(self.time)).await
    }

    /// Cancels at this time; see [`Bucket::cancel`].
    ///
    /// # Errors
    /// [`SqlError`].
    pub async fn cancel(&self, key: impl AsRef<[u8]>, reservation: &Reservation) -> Result<(), SqlError> {
        self.bucket.given_back(key.as_ref(), Back::Reservation(*reservation), Some(self.time)).await
    }

    /// Gives permits back at this time; see [`Bucket::refund`].
    ///
    /// # Errors
    /// [`SqlError`].
    pub async fn refund(&self, key: impl AsRef<[u8]>, permits: u64) -> Result<(), SqlError> {
        self.bucket.given_back(key.as_ref(), Back::Permits(permits), Some(self.time)).await
    }

    /// Sets the permits at this time; see [`Bucket::set`].
    ///
    /// # Errors
    /// [`SqlError`].
    pub async fn set(&self, key: impl AsRef<[u8]>, permits: i64) -> Result<(), SqlError> {
        self.bucket.put(key.as_ref(), permits, Some(self.time)).await
    }
}

/// The permits that are given back.
enum Back {
    Reservation(Reservation),
    Permits(u64),
}

/// The result of the exact form's function. Times are in nanoseconds since the Unix epoch.
struct Found {
    now: u64,
    tat: u64,
    as_of: u64,
    granted: bool,
}

impl Found {
    fn read(row: &Row) -> Result<Self, StoreError> {
        let time = |column: usize| {
            let value: i64 = row.try_get(column).map_err(|error| StoreError::corrupt(chain(&error)))?;
            u64::try_from(value)
                .map_err(|_| StoreError::corrupt(format_args!("the database returned a time of {value} ns")))
        };
        let granted = row.try_get(3).map_err(|error| StoreError::corrupt(chain(&error)))?;
        Ok(Self { now: time(0)?, tat: time(1)?, as_of: time(2)?, granted })
    }
}

/// Returns tokens per second and seconds, the arguments of the published function.
fn published(rate: Rate, window: Duration) -> Result<(i64, i64), SqlError> {
    let refused = SqlError::NotWhole { rate, window };
    let per_second = rate.as_per_second().round();
    let seconds = window.as_secs();
    let max = i32::MAX as u64;
    let in_bounds = (1.0..=max as f64).contains(&per_second) && (1..=max).contains(&seconds);
    if !in_bounds || window.subsec_nanos() != 0 || Rate::per_second(per_second as u64) != rate {
        return Err(refused);
    }
    Ok((per_second as i64, bigint(seconds)))
}

/// Makes the answer from the result of the published function.
fn published_answer(left: i64, refill: i64, window: i64, rounding: Rounding) -> Answer {
    let capacity = refill * window;
    // A request is granted if tokens + elapsed · refill − 1 rounds to zero or more. The smallest such value is −½ with
    // `HalfEven`, and just above −½ with `HalfAway`.
    let wait_until_granted = |tokens: i64| {
        let halves = 1 - 2 * tokens;
        if halves <= 0 {
            return Duration::ZERO;
        }
        let (wanted, per) = (i128::from(halves) * 500_000, i128::from(refill));
        let just_above = rounding == Rounding::HalfAway && wanted % per == 0;
        let micros = (wanted + per - 1) / per + i128::from(just_above);
        Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX))
    };
    let next_in = wait_until_granted(left);
    let verdict =
        if left >= 0 { Verdict::Now } else { Verdict::Refused { retry: Some(next_in), because: RefusalReason::Used } };
    let missing = i128::from(capacity - left).max(0) * 1_000_000;
    let reset_after = u64::try_from((missing + i128::from(refill) - 1) / i128::from(refill)).unwrap_or(u64::MAX);
    Answer {
        verdict,
        // After a pause, one more request than the capacity is allowed.
        limit: capacity.unsigned_abs() + 1,
        remaining: u64::try_from(left).unwrap_or(0),
        available: left as f64,
        next_in,
        reset_after: Duration::from_micros(reset_after),
        answered_by: AnsweredBy::Store,
        transaction: None,
        reservation: Reservation::default(),
    }
}

/// Returns the policy as the arguments of the exact form's functions: span and interval in nanoseconds. A negative
/// interval means the rate zero.
fn terms(policy: &Gcra) -> (i64, i64) {
    let interval = bigint(policy.interval);
    (bigint(policy.span), if policy.rate.is_zero() { -interval } else { interval })
}

/// Converts a number to a `bigint`. Numbers above its range become its largest number.
fn bigint(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Converts a time since the Unix epoch to nanoseconds. Later times become the year 2116.
fn bounded(time: Duration) -> i64 {
    bigint(nanos(time).min(2 * MOST_NANOS))
}

fn micros(time: Duration) -> i64 {
    bounded(time) / 1000
}

/// Returns whether an error is a conflict, after which the operation is repeated.
fn is_conflict(code: &SqlState) -> bool {
    [&SqlState::T_R_SERIALIZATION_FAILURE, &SqlState::T_R_DEADLOCK_DETECTED, &SqlState::UNIQUE_VIOLATION]
        .contains(&code)
}

/// Returns whether the server ends the connection.
fn is_shutdown(code: &SqlState) -> bool {
    [&SqlState::ADMIN_SHUTDOWN, &SqlState::CRASH_SHUTDOWN].contains(&code)
}

fn classify(error: &tokio_postgres::Error) -> StoreError {
    let message = chain(error);
    let Some(code) = error.code() else {
        return if error.is_closed() || std::error::Error::source(error).is_some_and(|why| why.is::<std::io::Error>()) {
            StoreError::unavailable(message)
        } else if message.contains("invalid configuration") || message.contains("password") {
            StoreError::refused(message)
        } else if message.contains("deserializing") || message.contains("unexpected message") {
            StoreError::corrupt(message)
        } else {
            StoreError::unavailable(message)
        };
    };
    if [&SqlState::UNDEFINED_FUNCTION, &SqlState::UNDEFINED_TABLE, &SqlState::INVALID_SCHEMA_NAME].contains(&code) {
        return StoreError::refused(format_args!("the schema is missing, or a part of it: call install() ({message})"));
    }
    match &code.code()[..2] {
        "57" if *code == SqlState::QUERY_CANCELED => StoreError::timeout(message),
        "40" => StoreError::timeout(format_args!("conflicts with other transactions until the time limit: {message}")),
        _ if is_conflict(code) || *code == SqlState::LOCK_NOT_AVAILABLE => StoreError::timeout(message),
        // The login, the database, or the permissions are wrong.
        "28" | "3D" | "42" => StoreError::refused(message),
        "22" => StoreError::corrupt(message),
        _ => StoreError::unavailable(message),
    }
}

/// Returns an error with its causes, because the client library's own message may be just "db error".
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
