//! The store in PostgreSQL, or YugabyteDB: token buckets that a fleet shares, decided by the server in one statement.
//!
//! The *exact* form is the arithmetic of [`Gcra`] in SQL: the row is locked, the server's clock is read once, and the
//! state that was found comes back, so that the answer is worded by the same code as the memory store's. The
//! *as_published* form is the function published for YugabyteDB, with its quirks; see `sql/postgres/` for both.

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

/// The schema that this program installs.
const VERSION: i32 = 3;

/// What installs it, and mends what is missing of it.
const SCHEMA: [&str; 4] = [
    include_str!("../../../sql/postgres/schema.sql"),
    include_str!("../../../sql/postgres/convert_state.sql"),
    include_str!("../../../sql/postgres/ask.sql"),
    include_str!("../../../sql/postgres/rate_limiting_token_bucket_request.sql"),
];

/// Whether all of it is there, so that whoever may not create anything may still call `install`.
const IS_COMPLETE: &str = "select to_regclass('headcount.buckets') is not null \
    and to_regclass('headcount.rate_limiting_token_bucket') is not null \
    and to_regclass('headcount.purge_place') is not null \
    and to_regprocedure('headcount.convert_state(bigint, bigint, bigint, bigint, bigint, bigint, bigint)') is not null \
    and to_regprocedure('headcount.ask(bytea, bigint, bigint, bigint, bigint, boolean, bigint)') is not null \
    and to_regprocedure('headcount.rate_limiting_token_bucket_request(bytea, bigint, bigint, boolean, bigint)') is \
    not null";

/// The number that stands for our installation among the database's advisory locks: "headcount" in ASCII, the end cut
/// off.
const INSTALLING: i64 = 0x6865_6164_636f_756e;

const ASK: &str = "select now_ns, was_tat, was_as_of, granted from headcount.ask($1, $2, $3, $4, $5, $6, $7)";
const ASK_FAITHFUL: &str = "select headcount.rate_limiting_token_bucket_request($1, $2, $3, $4, $5)";
const SET_EXACT: &str = include_str!("../../../sql/postgres/set_exact.sql");
const SET_FAITHFUL: &str = include_str!("../../../sql/postgres/set_faithful.sql");
const LOCK: &str = include_str!("../../../sql/postgres/lock.sql");
const PURGE: &str = include_str!("../../../sql/postgres/purge.sql");

/// Rows that one statement of a purge looks at.
const LOOKS: i64 = 1000;

/// What one statement of a purge has done.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Purged {
    pub(crate) forgotten: u64,
    /// Whether it came to the end of the table.
    pub(crate) was_last: bool,
}

/// A burst and a wait last at most half of what a `bigint` of nanoseconds still has before it, each: 73 years.
const MOST_NANOS: u64 = 1 << 61;

/// What is done on a connection, about something: a function, because it may be done again.
type Work<A, T> = for<'a> fn(&'a mut Object, &'a A) -> Working<'a, T>;
type Working<'a, T> = Pin<Box<dyn Future<Output = Result<T, tokio_postgres::Error>> + Send + 'a>>;

/// A database that holds buckets. Clones share its connections.
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
/// The SQL is PostgreSQL's; it was run on PostgreSQL 15 and not on YugabyteDB itself. What is different there:
/// - Under its snapshot isolation, and wherever read committed is not turned on (`yb_enable_read_committed_isolation`),
///   a conflict is not waited for but reported (40001), also to the exact form. Both forms try again, so answers stay
///   right; a hot key costs more attempts.
/// - Releases built on PostgreSQL 11 give `extract(epoch ..)` as double precision, not numeric. The exact form reads
///   microseconds from it, which double precision holds; the published form rounds a half to the even neighbour there:
///   [`Rounding::HalfEven`].
/// - [`install`](Self::install) takes an advisory lock, which older releases lack: run the four files that define the
///   schema, `sql/postgres/{schema,convert_state,ask,rate_limiting_token_bucket_request}.sql`, and insert the version
///   (3) by hand there.
///
/// # Behind a pooler
/// Statements are prepared and the session is set up once per connection: PgBouncer must pool sessions, not
/// transactions.
///
/// # TLS
/// This build speaks none: a URL with `sslmode=require` is refused. Keep the database in a private network, or reach it
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
/// assert!(error.contains("no TLS") && !error.contains("secret"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct PostgresBuilder {
    url: Secret,
    connections: usize,
    within: Duration,
}

impl PostgresBuilder {
    /// Sets the most connections, at least one. The default is 10.
    #[must_use]
    pub fn max_connections(mut self, connections: usize) -> Self {
        self.connections = connections.max(1);
        self
    }

    /// Sets the time limit of an answer, including the wait for a free connection and every attempt. The default is 1
    /// s. The server gives up statements after the same time.
    #[must_use]
    pub fn within(mut self, within: Duration) -> Self {
        self.within = within;
        self
    }

    /// Reads the URL; connects to nothing.
    ///
    /// # Errors
    /// [`SqlError::Url`].
    pub fn open(self) -> Result<Postgres, SqlError> {
        let refused = |why: String| SqlError::Url { found: self.url.redacted_url(), why };
        let mut config: Config = self.url.expose().parse().map_err(|error| refused(chain(&error)))?;
        if config.get_ssl_mode() == SslMode::Require {
            return Err(refused("this build speaks no TLS; remove sslmode=require".into()));
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
    /// A database by its URL, `postgres://user:password@host:port/database`, or as `key=value` pairs; a Unix socket's
    /// directory is a `host` that begins with a slash. Connects to nothing yet.
    ///
    /// # Errors
    /// [`SqlError::Url`].
    pub fn open(url: impl Into<String>) -> Result<Self, SqlError> {
        Self::builder(url).open()
    }

    /// Begins to configure a store.
    pub fn builder(url: impl Into<String>) -> PostgresBuilder {
        PostgresBuilder { url: Secret::new(url), connections: CONNECTIONS, within: WITHIN }
    }

    /// Creates the schema `headcount` in the database, or brings an older one up to this program's version; does
    /// nothing if it is there. May be called by everybody at once, at each start. Programs that know an older version
    /// only must be stopped before: they would write rows and not say under which policy.
    ///
    /// The first to call it must be allowed to create a schema. To all others it is enough to have `usage` of the
    /// schema `headcount` and `select, insert, update, delete` on its tables.
    ///
    /// # Errors
    /// [`SqlError::NewerSchema`]; [`SqlError::Store`]. It may take up to 30 s if somebody else is at it.
    pub async fn install(&self) -> Result<(), SqlError> {
        let deadline = Deadline::new(INSTALL_WITHIN);
        let mut lease = self.connect(&deadline).await?;
        let installed = deadline.wait_for("end of the installation", install(lease.client())).await?;
        // Whatever went wrong in the middle of a transaction, the connection is not used again.
        installed.map(|()| lease.give_back())
    }

    /// Buckets of the exact form for keys that may be granted `rate`, and at once what comes in `window`. With
    /// [`Bucket::as_published`], those of the published function.
    ///
    /// # Errors
    /// [`SqlError::Policy`] if the rate is zero.
    pub fn yugabyte(&self, rate: Rate, window: Duration) -> Result<Bucket, SqlError> {
        let mut bucket = self.bucket(yugabyte(rate, window)?)?;
        bucket.window = window;
        Ok(bucket)
    }

    /// Buckets of any policy [`Gcra`] that is paid before, full at the start, and does not recount time:
    /// [`token_bucket`](crate::limit::token_bucket), [`leaky_bucket`](crate::limit::leaky_bucket),
    /// [`leaky_queue`](crate::limit::leaky_queue) and their like.
    ///
    /// A row knows the policy that it was last asked under. Asked under another one, it is converted: what was used
    /// counts against the new limit, see [the rule](crate::limit#when-a-limit-changes), and from then on the new rate
    /// holds.
    ///
    /// # Errors
    /// [`SqlError::NotHere`] for another policy, [`SqlError::Policy`] for one that makes no sense.
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

    /// Forgets at most so many keys of the exact form that would be answered like new ones, and returns how many it
    /// forgot. Without it the table keeps a row for every key there ever was; `headcount serve` calls it all the time.
    /// Rows of the as_published form stay: they do not say when they are full.
    ///
    /// Looks at 1,000 rows in a statement, from where the last purge ended to the end of the table, and then from its
    /// beginning. Several may purge at once: they share the work, and one that meets another ends.
    ///
    /// # Errors
    /// [`SqlError::Store`]; what was forgotten before stays forgotten.
    pub async fn purge(&self, at_most: u32) -> Result<u64, SqlError> {
        let (mut forgotten, mut ends) = (0, 0);
        // From the place to the end, and from the beginning.
        while forgotten < u64::from(at_most) && ends < 2 {
            let Some(purged) = self.purge_some(at_most - forgotten as u32).await? else { break };
            forgotten += purged.forgotten;
            ends += u32::from(purged.was_last);
        }
        Ok(forgotten)
    }

    /// One statement of a purge; `None` while somebody else purges.
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

    /// How many connections there are at the moment, in use or not.
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

    /// Runs something, again if others came in its way, or if the connection turns out to have been lost meanwhile.
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
            if (error.is_closed() || code.is_some_and(is_goodbye)) && !lost_one {
                // It was idle while the server went away and perhaps came back.
                lost_one = true;
                self.pool.retain(|client, _| !client.is_closed());
                continue;
            }
            if code.is_some_and(is_clash) {
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

/// A connection in use. One whose work did not come to an end, because its caller ran out of time or went away, is
/// closed: its next user would wait for answers to questions that nobody asks any more.
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
    let note = "insert into headcount.schema_version (version) values ($1) \
                on conflict (one) do update set version = excluded.version";
    transaction.execute(note, &[&VERSION]).await.map_err(broken)?;
    transaction.commit().await.map_err(broken)
}

/// Which arithmetic a [`Bucket`] runs.
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
    /// As the memory store: the row locked, the clock read once, whole nanoseconds, refusals free.
    Exact,
    /// As published, quirks and all.
    AsPublished(Rounding),
}

/// What the published function makes of half a token.
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
    /// Away from zero, as PostgreSQL from 14 on does: its `extract` gives a `numeric`.
    HalfAway,
    /// To the even neighbour, as PostgreSQL before 14 and YugabyteDB 2 do: their `extract` gives double precision.
    HalfEven,
}

/// A limiter in a PostgreSQL database; clones are handles of one limiter. See [`Postgres::yugabyte`].
///
/// One that has been asked the same questions at the same times gives the same answers as
/// [`Memory`](crate::limit::Memory) with the same policy, to the nanosecond; the server's clock shows microseconds. A
/// wait, and a burst, last at most 73 years.
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
    /// A name, so that limiters in one database do not share their keys. Limiters of one name and form share them, on
    /// purpose or not.
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

    /// The published function instead, for those who migrate from it: every quirk is kept. It takes one permit at a
    /// time and promises none that have yet to come.
    ///
    /// - The capacity is a bound *after* the take: an idle bucket yields one more than its capacity.
    /// - Tokens are whole: at 1/s, a client that asks each 0.6 s always passes, and one that asks each 1.2 s from an
    ///   empty bucket never does.
    /// - A refused request pays too.
    /// - The time at which a transaction began is stored, and the clock compared with it: among many who ask for one
    ///   key at once, waiting counts twice, and too many pass.
    ///
    /// It runs SERIALIZABLE and is tried again when the database reports a conflict, within the store's time.
    /// [`Answer::available`] is what the function returned.
    ///
    /// # Errors
    /// [`SqlError::NotWhole`] unless the rate is a whole number per second and the window one of seconds.
    pub fn as_published(mut self, rounding: Rounding) -> Result<Self, SqlError> {
        published(self.policy.rate, self.window)?;
        self.form = Form::AsPublished(rounding);
        Ok(self)
    }

    /// Which arithmetic it runs.
    pub fn form(&self) -> Form {
        self.form
    }

    /// Asks for a key. The time is the database server's.
    ///
    /// # Errors
    /// [`SqlError::Store`]; after a timeout it is unknown whether the permits were taken. [`SqlError::OnlyOne`] and
    /// [`SqlError::NoWaiting`] from the published form.
    ///
    /// # Cost
    /// One statement, in one round trip. What is granted holds a row lock until the server has written it; a refusal
    /// takes no lock and writes nothing.
    pub async fn ask(&self, key: impl AsRef<[u8]>, ask: Ask) -> Result<Answer, SqlError> {
        self.asked(key.as_ref(), ask, None).await
    }

    /// Takes a reservation back whose turn has not come. What was promised to later ones stays promised.
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

    /// Forgets a key: it is as if it had never been asked for.
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

    /// Puts a key where it has so many permits: for migrating from another limiter. To the exact form what is below
    /// zero is a debt, and what is above the limit is the limit; to the published form it is the number in the row.
    ///
    /// # Errors
    /// [`SqlError::Store`].
    pub async fn set(&self, key: impl AsRef<[u8]>, permits: i64) -> Result<(), SqlError> {
        self.put(key.as_ref(), permits, None).await
    }

    /// The limiter at a time of the caller's, counted from the Unix epoch: for tests, which are stories and do not
    /// sleep. It is handed to the database as the one argument that stands in for its clock; nothing else differs.
    pub fn at(&self, time: Duration) -> BucketAt<'_> {
        BucketAt { bucket: self, time }
    }

    /// Names have no NUL, so the first one ends the name.
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
            // What can never be had is not worth a lock.
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
            return Err(StoreError::corrupt("the database and this program do not count alike: call install()").into());
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
                let statement = client.prepare_cached(ASK_FAITHFUL).await?;
                let arguments: [&(dyn ToSql + Sync); 5] = [id, refill, window, half_even, at];
                // Sent in one go: three waits for the network would hold the transaction open for as long.
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
        Ok(faithful_answer(left.await?, refill, window, rounding))
    }

    async fn given_back(&self, key: &[u8], what: Back, at: Option<Duration>) -> Result<(), SqlError> {
        if self.form != Form::Exact {
            return Err(SqlError::OnlyOne { asked: "permits were given back, not".into() });
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
                let update = "update headcount.buckets \
                              set tat = $2, as_of = $3, span_ns = $4, interval_ns = $5 where id = $1";
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
                // As published, what is above the capacity is cut after the next take only.
                let tokens = permits.clamp(-bigint(MOST_NANOS), bigint(MOST_NANOS));
                let about = (id, tokens, at.map(micros));
                let set = self.store.run(about, |client, (id, tokens, at)| {
                    Box::pin(async move { client.execute(SET_FAITHFUL, &[id, tokens, at]).await })
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
    /// [`Bucket::ask`] at this moment.
    ///
    /// # Errors
    /// [`SqlError`].
    pub async fn ask(&self, key: impl AsRef<[u8]>, ask: Ask) -> Result<Answer, SqlError> {
        self.bucket.asked(key.as_ref(), ask, Some(self.time)).await
    }

    /// [`Bucket::cancel`] at this moment.
    ///
    /// # Errors
    /// [`SqlError`].
    pub async fn cancel(&self, key: impl AsRef<[u8]>, reservation: &Reservation) -> Result<(), SqlError> {
        self.bucket.given_back(key.as_ref(), Back::Reservation(*reservation), Some(self.time)).await
    }

    /// [`Bucket::refund`] at this moment.
    ///
    /// # Errors
    /// [`SqlError`].
    pub async fn refund(&self, key: impl AsRef<[u8]>, permits: u64) -> Result<(), SqlError> {
        self.bucket.given_back(key.as_ref(), Back::Permits(permits), Some(self.time)).await
    }

    /// [`Bucket::set`] at this moment.
    ///
    /// # Errors
    /// [`SqlError`].
    pub async fn set(&self, key: impl AsRef<[u8]>, permits: i64) -> Result<(), SqlError> {
        self.bucket.put(key.as_ref(), permits, Some(self.time)).await
    }
}

/// What is given back.
enum Back {
    Reservation(Reservation),
    Permits(u64),
}

/// What the exact form's function returned.
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
            u64::try_from(value).map_err(|_| StoreError::corrupt(format_args!("a time of {value} ns")))
        };
        let granted = row.try_get(3).map_err(|error| StoreError::corrupt(chain(&error)))?;
        Ok(Self { now: time(0)?, tat: time(1)?, as_of: time(2)?, granted })
    }
}

/// Tokens per second, and seconds, as the published function takes them.
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

/// Words what the published function left.
fn faithful_answer(left: i64, refill: i64, window: i64, rounding: Rounding) -> Answer {
    let capacity = refill * window;
    // Granted if tokens + elapsed · refill - 1 rounds to zero or more: from -1/2 on, or from just above it.
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
        // After a pause one more passes than the capacity.
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

/// The policy as the exact form's functions take it: span and interval, nanoseconds.
fn terms(policy: &Gcra) -> (i64, i64) {
    let interval = bigint(policy.interval);
    (bigint(policy.span), if policy.rate.is_zero() { -interval } else { interval })
}

/// A number as SQL knows it; what is larger is the largest.
fn bigint(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// A time as nanoseconds, until the year 2116.
fn bounded(time: Duration) -> i64 {
    bigint(nanos(time).min(2 * MOST_NANOS))
}

fn micros(time: Duration) -> i64 {
    bounded(time) / 1000
}

/// Whether two came in each other's way, so that trying again makes sense.
fn is_clash(code: &SqlState) -> bool {
    [&SqlState::T_R_SERIALIZATION_FAILURE, &SqlState::T_R_DEADLOCK_DETECTED, &SqlState::UNIQUE_VIOLATION]
        .contains(&code)
}

/// Whether the server ends the connection.
fn is_goodbye(code: &SqlState) -> bool {
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
        "40" => StoreError::timeout(format_args!("others came in the way until the time was up: {message}")),
        _ if is_clash(code) || *code == SqlState::LOCK_NOT_AVAILABLE => StoreError::timeout(message),
        // Who may log in, to which database, and what they may do there.
        "28" | "3D" | "42" => StoreError::refused(message),
        "22" => StoreError::corrupt(message),
        _ => StoreError::unavailable(message),
    }
}

/// An error with its causes: the client library's first line says as little as "db error".
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
