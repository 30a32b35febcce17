//! The store in Redis: one script, and one round trip, per question or list of questions.
//!
//! The clock is the Redis server's. A key expires once it would be answered like a new one. Its name is
//! `headcount:limit:{key}:namespace:limiter`. The part in braces decides which node of a cluster stores the key. All
//! keys of a list that is asked as one step have the list's first key in this place, so one node stores them all.

mod denied;
mod wire;

use crate::limit::answer::{Answer, Reservation};
use crate::limit::ask::{Ask, Cost, Mode};
use crate::limit::limiter_store::{LimiterStore, LimiterStoreError, StoreKey};
use crate::limit::policy::{Policy, PolicyError};
use crate::limit::step::Step;
use crate::redis_link::{RedisConnection, run_script};
use crate::store_error::StoreError;
use crate::time::{Clock, SystemClock};
use denied::{Asked, Denied};
use parking_lot::RwLock;
use redis::Script;
use std::borrow::Cow;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

/// Joins the files of the script. Each policy is a Lua table, which a call creates only if it needs the policy: to
/// create all of them would take some microseconds.
macro_rules! script {
    ($($policy:literal),*) => {
        concat!(
            include_str!("../../../lua/limit.lua"),
            include_str!("../../../lua/limit/numbers.lua"),
            "local function make(policy)\n",
            $("if policy == '", $policy, "' \
                then\n", include_str!(concat!("../../../lua/limit/", $policy, ".lua")), "end\n",)*
            "end\n",
            include_str!("../../../lua/limit/step.lua"),
        )
    };
}

static LIMIT: LazyLock<Script> =
    LazyLock::new(|| Script::new(script!("gcra", "periodic_refill", "sliding_counter", "sliding_log", "warm_up")));

/// The default time limit of a call.
const TIME_LIMIT: Duration = Duration::from_millis(100);

/// The default of [`RedisBuilder::deny_cache`].
const DENY_CACHE: usize = 10_000;

/// A limiter in Redis, shared by all processes that use the same namespace and name. Clones are handles of one limiter.
///
/// ```no_run
/// use headcount::RedisConnection;
/// use headcount::limit::{Ask, Rate, Redis, token_bucket};
/// # async fn login() -> Result<(), Box<dyn std::error::Error>> {
/// let connection = RedisConnection::open("redis://127.0.0.1:6379/0")?;
/// let limiter = Redis::new(&connection, "login", token_bucket(Rate::per_minute(5), 5))?;
/// let answer = limiter.ask("alice", Ask::ONE).await?;
/// if !answer.is_allowed() {
///     println!("again in {:?}", answer.retry());
/// }
/// # Ok(())
/// # }
/// ```
///
/// # What a call costs
/// One round trip, or none if the same question was refused and the refusal still holds (see
/// [`RedisBuilder::deny_cache`]).
///
/// # When Redis does not answer
/// Each call ends with an error within its [time limit](RedisBuilder::time_limit). The permits may still have been
/// charged.
///
/// # Foreign values
/// A key whose value is not a state of this kind of policy (written by another program, truncated, or of another kind)
/// counts as a key that was never asked for. The value is replaced when permits are charged.
#[derive(Clone)]
pub struct Redis {
    shared: Arc<Shared>,
    /// The policy of a handle from [`Redis::with_policy`], which replaces the shared one; `None` in other handles.
    own: Option<Arc<InForce>>,
}

struct Shared {
    connection: RedisConnection,
    namespace: String,
    name: String,
    in_force: RwLock<Arc<InForce>>,
    shards: u16,
    time_limit: Duration,
    denied: Denied,
    clock: Arc<dyn Clock>,
}

/// The policy of each shard, and the text by which the script knows it.
struct InForce {
    policy: Policy,
    words: String,
}

impl InForce {
    fn new<P>(policy: P, shards: u16) -> Result<Self, PolicyError>
    where
        P: TryInto<Policy>,
        P::Error: Into<PolicyError>,
    {
        let whole = policy.try_into().map_err(Into::into)?;
        whole.check()?;
        let policy = if shards == 1 { Some(whole) } else { whole.part(shards.into()) };
        let policy = policy.ok_or(PolicyError::Shards { shards })?;
        policy.check()?;
        Ok(Self { words: policy.redis_words()?, policy })
    }
}

/// Configures a [`Redis`].
///
/// ```
/// use headcount::RedisConnection;
/// use headcount::limit::{PolicyError, Redis, sliding_log};
/// use std::time::Duration;
/// let connection = RedisConnection::open("redis://127.0.0.1:6379/0")?;
/// let day = Duration::from_secs(24 * 3600);
/// let codes = Redis::builder(&connection, "codes", sliding_log(5, day)).namespace("shop").deny_cache(100_000);
/// assert!(codes.build().is_ok(), "nothing is connected yet");
/// let year = Redis::builder(&connection, "year", sliding_log(5, 365 * day)).build();
/// assert_eq!(year.unwrap_err(), PolicyError::TooLongForRedis { found: 365 * day });
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct RedisBuilder {
    connection: RedisConnection,
    name: String,
    policy: Result<Policy, PolicyError>,
    namespace: String,
    shards: u16,
    time_limit: Duration,
    deny_cache: usize,
    clock: Arc<dyn Clock>,
}

impl RedisBuilder {
    /// Sets the namespace, which separates programs that use one server. The default is `default`.
    #[must_use]
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = namespace.into();
        self
    }

    /// Splits each key into this many keys, its shards; the default is 1, no split. A question goes to one of them at
    /// random, and each has an equal part of the limit: of its permits, and of its rate. So a single key that is asked
    /// for more often than one core of Redis can answer is spread over the nodes of a cluster.
    ///
    /// The limit is never exceeded. But a question may be refused although other shards have permits left. The less a
    /// shard's burst, and the closer the questions come to the rate, the more often this happens; the book has figures.
    /// A question can get at most the permits of one shard. An answer describes the shard that was asked.
    ///
    /// Other processes need the same number. A limiter with shards cannot be asked in a list. A refund goes to a shard
    /// at random; what does not fit there is lost.
    #[must_use]
    pub fn shards(mut self, shards: u16) -> Self {
        self.shards = shards;
        self
    }

    /// Sets the time limit of a call, including connecting. The default is 100 ms.
    #[must_use]
    pub fn time_limit(mut self, time_limit: Duration) -> Self {
        self.time_limit = time_limit;
        self
    }

    /// Sets the most refusals that are remembered, rounded up to a multiple of 16. The default is 10,000; 0 remembers
    /// none.
    ///
    /// A refused question is answered from memory until its retry time, but for at most ten seconds. A peek,
    /// [`Ask::all`], a list, and a policy that records refusals always ask Redis. Permits that this limiter gives back
    /// (`cancel`, `refund`, `reset`) count at once. Permits that another process gives back count here only after that
    /// time. A question for more permits than the refused one gets the retry time of the refused one.
    #[must_use]
    pub fn deny_cache(mut self, refusals: usize) -> Self {
        self.deny_cache = refusals;
        self
    }

    /// Sets the clock for remembered refusals. Limits follow the Redis server's clock.
    #[must_use]
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    /// Builds the limiter; connects to nothing.
    ///
    /// # Errors
    /// [`PolicyError`] if the policy is invalid. It is [`PolicyError::TooLongForRedis`] for a burst, window, tick, gap
    /// or interval of more than 104 days, and [`PolicyError::Shards`] for a limit that has no such equal parts.
    pub fn build(self) -> Result<Redis, PolicyError> {
        let shared = Shared {
            connection: self.connection,
            namespace: self.namespace,
            name: self.name,
            in_force: RwLock::new(Arc::new(InForce::new(self.policy?, self.shards)?)),
            shards: self.shards,
            time_limit: self.time_limit,
            denied: Denied::new(self.deny_cache),
            clock: self.clock,
        };
        Ok(Redis { shared: Arc::new(shared), own: None })
    }
}

impl Redis {
    /// Creates a limiter with this name. Its windows and ticks begin at whole multiples of their length since the Unix
    /// epoch.
    ///
    /// # Errors
    /// As [`RedisBuilder::build`].
    pub fn new<P>(connection: &RedisConnection, name: impl Into<String>, policy: P) -> Result<Self, PolicyError>
    where
        P: TryInto<Policy>,
        P::Error: Into<PolicyError>,
    {
        Self::builder(connection, name, policy).build()
    }

    /// Begins to configure a limiter.
    ///
    /// ```no_run
    /// # use headcount::RedisConnection;
    /// use headcount::limit::{Redis, sliding_log};
    /// use std::time::Duration;
    /// # let connection = RedisConnection::open("redis://127.0.0.1:6379/0")?;
    /// let limiter = Redis::builder(&connection, "login", sliding_log(5, Duration::from_secs(60)))
    ///     .namespace("shop")
    ///     .time_limit(Duration::from_millis(50))
    ///     .build()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn builder<P>(connection: &RedisConnection, name: impl Into<String>, policy: P) -> RedisBuilder
    where
        P: TryInto<Policy>,
        P::Error: Into<PolicyError>,
    {
        RedisBuilder {
            connection: connection.clone(),
            name: name.into(),
            policy: policy.try_into().map_err(Into::into),
            namespace: "default".into(),
            shards: 1,
            time_limit: TIME_LIMIT,
            deny_cache: DENY_CACHE,
            clock: Arc::new(SystemClock::new()),
        }
    }

    /// Asks for permits for a key.
    ///
    /// # Errors
    /// [`StoreError`]. After a [timeout](StoreError::is_timeout) the permits may have been charged.
    ///
    /// # Cost
    /// One round trip, or none.
    pub async fn ask(&self, key: impl AsRef<[u8]>, ask: Ask) -> Result<Answer, StoreError> {
        self.view().ask(key, ask).await
    }

    /// Cancels a reservation whose turn has not come. Later reservations keep their turns, so permits on which they
    /// depend stay charged.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn cancel(&self, key: impl AsRef<[u8]>, reservation: &Reservation) -> Result<(), StoreError> {
        self.view().cancel(key, reservation).await
    }

    /// Gives permits back, never above the limit, for a request that cost less than it asked for.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn refund(&self, key: impl AsRef<[u8]>, permits: u64) -> Result<(), StoreError> {
        self.view().refund(key, permits).await
    }

    /// Forgets a key, as if it had never been asked for.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn reset(&self, key: impl AsRef<[u8]>) -> Result<(), StoreError> {
        self.view().reset(key).await
    }

    /// Changes the policy of this handle and its clones. Other processes need the same change.
    ///
    /// A key is converted when it is next asked for. What it has used counts against the new limit; see [the
    /// rule](crate::limit#when-a-limit-changes). With a policy of another kind the key starts anew. To convert a key at
    /// once, [`refund`](Self::refund) it zero permits.
    ///
    /// # Errors
    /// As [`RedisBuilder::build`]; the old policy stays in force then.
    pub fn change<P>(&self, policy: P) -> Result<(), PolicyError>
    where
        P: TryInto<Policy>,
        P::Error: Into<PolicyError>,
    {
        let in_force = Arc::new(InForce::new(policy, self.shared.shards)?);
        *self.shared.in_force.write() = in_force;
        self.shared.denied.clear();
        Ok(())
    }

    /// Returns a handle that asks for the same keys with another burst. Uses are nginx locations that share a zone, and
    /// tiers of users. Both policies must be a [`Gcra`](crate::limit::policy::Gcra) of the same rate above zero. The
    /// handle's refusals are not remembered. A later `change` does not affect the policy of the handle.
    ///
    /// # Errors
    /// As [`RedisBuilder::build`]; [`PolicyError::OtherKind`] if the policies cannot share keys.
    pub fn with_policy<P>(&self, policy: P) -> Result<Self, PolicyError>
    where
        P: TryInto<Policy>,
        P::Error: Into<PolicyError>,
    {
        let in_force = InForce::new(policy, self.shared.shards)?;
        if !in_force.policy.shares_keys_with(&self.shared.in_force.read().policy) {
            return Err(PolicyError::OtherKind);
        }
        Ok(Self { shared: Arc::clone(&self.shared), own: Some(Arc::new(in_force)) })
    }

    /// Returns the limiter at a given time since the Unix epoch instead of the server's time, for tests that do not
    /// sleep. Keys are then kept an hour longer, and refusals are not remembered.
    pub fn at(&self, time: Duration) -> RedisView<'_> {
        self.view().at(time)
    }

    /// Returns a view of the limiter's keys in lists that begin with `first_key`, to cancel, refund or reset what
    /// [`Redis::ask_all`] has granted.
    pub fn in_lists_of<'a>(&'a self, first_key: &'a (impl AsRef<[u8]> + ?Sized)) -> RedisView<'a> {
        self.view().in_lists_of(first_key)
    }

    /// Returns the connection, for other limiters and for the admission store.
    pub fn connection(&self) -> &RedisConnection {
        &self.shared.connection
    }

    /// Asks several limiters as one step: either all grant, or nothing is charged.
    ///
    /// Returns the answer of each. If one refuses, the others answer as if they had been asked alone, and are not
    /// charged. A policy that records refusals still records its own refusal.
    ///
    /// All limiters must share one connection. The first key decides which node of a cluster stores the keys of the
    /// list. A key that differs from the first key is **another key** than the same one asked for alone, or in a list
    /// with another first key: its permits are counted apart. So begin a list with the key that the others belong to.
    /// Limits by second, hour and day all use the same key. In a list of a customer and its users, the customer comes
    /// first.
    ///
    /// ```no_run
    /// # use headcount::RedisConnection;
    /// use headcount::limit::{Ask, Rate, Redis, token_bucket};
    /// # async fn send() -> Result<(), Box<dyn std::error::Error>> {
    /// # let connection = RedisConnection::open("redis://127.0.0.1:6379/0")?;
    /// let by_second = Redis::new(&connection, "by-second", token_bucket(Rate::per_second(5), 5))?;
    /// let by_hour = Redis::new(&connection, "by-hour", token_bucket(Rate::per_hour(1000), 1000))?;
    /// let answers = Redis::ask_all(&[(&by_second, "alice", Ask::ONE), (&by_hour, "alice", Ask::ONE)]).await?;
    /// let may_send = answers.iter().all(|answer| answer.is_allowed());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`StoreError`]; [refused](StoreError::is_refused) if the limiters do not share one connection, or if one of them
    /// has shards.
    ///
    /// # Cost
    /// One round trip.
    pub async fn ask_all<K: AsRef<[u8]>>(asks: &[(&Self, K, Ask)]) -> Result<Vec<Answer>, StoreError> {
        let views: Vec<_> = asks.iter().map(|(limiter, key, ask)| (limiter.view(), key, *ask)).collect();
        Self::ask_all_views(&views, None).await
    }

    /// Works as [`Redis::ask_all`] at a given time; see [`Redis::at`].
    ///
    /// # Errors
    /// As [`Redis::ask_all`].
    pub async fn ask_all_at<K: AsRef<[u8]>>(
        time: Duration,
        asks: &[(&Self, K, Ask)],
    ) -> Result<Vec<Answer>, StoreError> {
        let views: Vec<_> = asks.iter().map(|(limiter, key, ask)| (limiter.view(), key, *ask)).collect();
        Self::ask_all_views(&views, Some(time)).await
    }

    async fn ask_all_views<K: AsRef<[u8]>>(
        asks: &[(RedisView<'_>, K, Ask)],
        now: Option<Duration>,
    ) -> Result<Vec<Answer>, StoreError> {
        let Some((first, tag, _)) = asks.first() else { return Ok(Vec::new()) };
        let connection = &first.limiter.shared.connection;
        if asks.iter().any(|(view, ..)| !view.limiter.shared.connection.is(connection)) {
            return Err(StoreError::refused("the limiters of one list must share one connection"));
        }
        if asks.iter().any(|(view, ..)| view.limiter.shared.shards > 1) {
            return Err(StoreError::refused("a limiter with shards cannot be asked in a list"));
        }
        let mut call = Call::new("ask", now);
        let mut time_limit = Duration::MAX;
        for (view, key, ask) in asks {
            let shared = &view.limiter.shared;
            let (in_force, text) = view.limiter.in_force();
            let key = wire::key(&shared.namespace, &shared.name, tag.as_ref(), key.as_ref());
            call.add(key, text, wire::question(in_force.policy.question(*ask)));
            time_limit = time_limit.min(shared.time_limit);
        }
        let texts = call.send(connection, time_limit).await?;
        if texts.len() != asks.len() {
            return Err(StoreError::corrupt(format_args!("{} answers to {} questions", texts.len(), asks.len())));
        }
        texts.iter().zip(asks).map(|(text, (_, _, ask))| Ok(wire::answer(text)?.of(*ask))).collect()
    }

    fn view(&self) -> RedisView<'_> {
        RedisView { limiter: self, now: None, first_key: None }
    }

    /// Returns the policy of this handle, and its text for the script. For a handle from [`Redis::with_policy`], the
    /// text also contains the shared policy.
    fn in_force(&self) -> (Arc<InForce>, String) {
        let home = Arc::clone(&self.shared.in_force.read());
        match &self.own {
            None => (Arc::clone(&home), home.words.clone()),
            Some(own) => (Arc::clone(own), format!("{}/{}", own.words, home.words)),
        }
    }
}

impl LimiterStore for Redis {
    async fn execute(&self, key: StoreKey<'_>, step: Step) -> Result<Option<Answer>, LimiterStoreError> {
        let view = RedisView { first_key: key.list, ..self.view() };
        match step {
            Step::Ask(ask) => return Ok(Some(view.ask(key.bytes, ask).await?)),
            Step::Cancel(reservation) => view.cancel(key.bytes, &reservation).await?,
            Step::Refund(permits) => view.refund(key.bytes, permits).await?,
            Step::Reset => view.reset(key.bytes).await?,
        }
        Ok(None)
    }

    async fn ask_all(asks: &[(&Self, &[u8], Ask)]) -> Result<Vec<Answer>, LimiterStoreError> {
        Ok(Self::ask_all(asks).await?)
    }

    fn shares_connection_with(&self, other: &Self) -> bool {
        let has_shards = self.shared.shards > 1 || other.shared.shards > 1;
        !has_shards && self.shared.connection.is(&other.shared.connection)
    }
}

impl std::fmt::Debug for Redis {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Redis")
            .field("namespace", &self.shared.namespace)
            .field("name", &self.shared.name)
            .field("policy", &self.in_force().0.policy)
            .finish_non_exhaustive()
    }
}

/// A [`Redis`] at one moment, or its keys in a list; see [`Redis::at`] and [`Redis::in_lists_of`].
///
/// ```no_run
/// use headcount::limit::{Ask, Redis};
/// # async fn example(teams: Redis, users: Redis) -> Result<(), headcount::StoreError> {
/// use std::time::Duration;
/// let answers = Redis::ask_all(&[(&teams, "red", Ask::ONE), (&users, "alice", Ask::ONE)]).await?;
/// // Her key of this list is stored beside the list's first key. It is another key than `alice` asked for alone.
/// users.in_lists_of("red").cancel("alice", &answers[1].reservation).await?;
///
/// // A test chooses the times.
/// let at = |secs: u64| users.at(Duration::from_secs(1_800_000_000 + secs));
/// assert!(at(0).ask("bob", Ask::ONE).await?.is_allowed());
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy)]
pub struct RedisView<'a> {
    limiter: &'a Redis,
    now: Option<Duration>,
    first_key: Option<&'a [u8]>,
}

impl<'a> RedisView<'a> {
    /// Sets the time; see [`Redis::at`].
    #[must_use]
    pub fn at(self, time: Duration) -> Self {
        Self { now: Some(time), ..self }
    }

    /// Sets the first key of the list; see [`Redis::in_lists_of`].
    #[must_use]
    pub fn in_lists_of(self, first_key: &'a (impl AsRef<[u8]> + ?Sized)) -> Self {
        Self { first_key: Some(first_key.as_ref()), ..self }
    }

    /// Asks for permits for a key; see [`Redis::ask`].
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn ask(&self, key: impl AsRef<[u8]>, ask: Ask) -> Result<Answer, StoreError> {
        let (key, shared) = (key.as_ref(), &*self.limiter.shared);
        let (in_force, text) = self.limiter.in_force();
        let asked = self.asked(&in_force.policy, ask);
        let shard = if shared.shards > 1 { fastrand::u16(..shared.shards) } else { 0 };
        let sharded = self.sharded(key, shard);
        // The times of a refusal count from before the question was sent, so that it is never remembered for too long.
        let since = shared.clock.monotonic();
        let place = match asked.map(|asked| shared.denied.look(&sharded, asked, since)) {
            Some(Ok(answer)) => return Ok(answer),
            Some(Err(place)) => Some(place),
            None => None,
        };
        let mut call = Call::new("ask", self.now);
        call.add(self.key(key, shard), text, wire::question(in_force.policy.question(ask)));
        let texts = call.send(&shared.connection, shared.time_limit).await?;
        let [text] = texts.as_slice() else {
            return Err(StoreError::corrupt(format_args!("{} answers to one question", texts.len())));
        };
        let mut answer = wire::answer(text)?.of(ask);
        answer.reservation.shard = shard;
        if let (Some(asked), Some(place)) = (asked, place) {
            shared.denied.note(place, asked, &answer, since);
            if !Arc::ptr_eq(&in_force, &shared.in_force.read()) {
                // The policy has changed since the question.
                shared.denied.forget(&sharded);
            }
        }
        Ok(answer)
    }

    /// Cancels a reservation; see [`Redis::cancel`].
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn cancel(&self, key: impl AsRef<[u8]>, reservation: &Reservation) -> Result<(), StoreError> {
        let what = wire::reservation(&self.limiter.in_force().0.policy, reservation);
        self.give_back("cancel", key.as_ref(), reservation.shard.min(self.limiter.shared.shards - 1), what).await
    }

    /// Gives permits back; see [`Redis::refund`].
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn refund(&self, key: impl AsRef<[u8]>, permits: u64) -> Result<(), StoreError> {
        // Which shard has granted them is not known.
        let shard = fastrand::u16(..self.limiter.shared.shards);
        self.give_back("refund", key.as_ref(), shard, permits.to_string()).await
    }

    /// Forgets a key; see [`Redis::reset`].
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn reset(&self, key: impl AsRef<[u8]>) -> Result<(), StoreError> {
        let (shared, key) = (&*self.limiter.shared, key.as_ref());
        for shard in 0..shared.shards {
            let name = self.key(key, shard);
            let mut delete = redis::cmd("DEL");
            delete.arg(&name);
            let delete = |mut connection| {
                let delete = delete.clone();
                async move { delete.query_async::<()>(&mut connection).await }
            };
            let done = shared.connection.route(&name).call(shared.time_limit, delete).await;
            // Whether the call succeeded or not, a remembered refusal may be wrong now.
            shared.denied.forget(&self.sharded(key, shard));
            done?;
        }
        Ok(())
    }

    async fn give_back(&self, verb: &str, key: &[u8], shard: u16, what: String) -> Result<(), StoreError> {
        let shared = &*self.limiter.shared;
        let mut call = Call::new(verb, self.now);
        call.add(self.key(key, shard), self.limiter.in_force().1, what);
        let done = call.send(&shared.connection, shared.time_limit).await;
        shared.denied.forget(&self.sharded(key, shard));
        done.map(|_| ())
    }

    /// Returns the name of a key in Redis.
    fn key(&self, key: &[u8], shard: u16) -> String {
        let shared = &self.limiter.shared;
        let tag = self.sharded(self.first_key.unwrap_or(key), shard);
        wire::key(&shared.namespace, &shared.name, &tag, key)
    }

    /// Returns the key with its shard, if it has shards.
    fn sharded<'k>(&self, key: &'k [u8], shard: u16) -> Cow<'k, [u8]> {
        match self.limiter.shared.shards {
            1 => key.into(),
            _ => [key, b"#", shard.to_string().as_bytes()].concat().into(),
        }
    }

    /// Returns the question as the deny cache compares it; `None` if its refusal may not be remembered.
    fn asked(&self, policy: &Policy, ask: Ask) -> Option<Asked> {
        if self.limiter.own.is_some() || self.now.is_some() || self.first_key.is_some() || ask.mode == Mode::Peek {
            return None;
        }
        let Cost::Permits(cost) = ask.cost else { return None };
        let max_wait = match policy {
            Policy::SlidingLog(log) if log.records_refusals => return None,
            // The refusals of a sliding counter do not depend on the wait.
            Policy::SlidingCounter(_) => Duration::ZERO,
            _ => Duration::from_nanos(policy.question(ask).max_wait),
        };
        Some(Asked { cost, max_wait })
    }
}

/// One run of the script.
struct Call {
    keys: Vec<String>,
    arguments: Vec<String>,
}

impl Call {
    fn new(verb: &str, now: Option<Duration>) -> Self {
        Self { keys: Vec::new(), arguments: vec![verb.to_owned(), now.map_or_else(String::new, wire::instant)] }
    }

    fn add(&mut self, key: String, policy: String, what: String) {
        self.keys.push(key);
        self.arguments.extend([policy, what]);
    }

    async fn send(self, connection: &RedisConnection, time_limit: Duration) -> Result<Vec<String>, StoreError> {
        let send = async |mut connection| {
            let mut script = LIMIT.prepare_invoke();
            script.key(&self.keys).arg(&self.arguments);
            run_script(&LIMIT, &script, &mut connection).await
        };
        let first = self.keys.first().map_or("", String::as_str);
        connection.route(first).call(time_limit, send).await
    }
}
