//! The store in Redis: one key per minute, six small keys, and the news logs of the two newest minutes.
//!
//! A minute's key is a hash with the fields `ts` and `value`. A script compares `ts` and writes both. For large filters
//! the key is a string instead: `ts`, a line feed, and `value`. Then a plain `SET` *stages* the value under a key of
//! the writer's own, and the script only compares versions and renames keys, so that no value passes through Lua.
//!
//! Every key is named `headcount:{namespace}:generation:…`, so that servers with different parameters never mix, and
//! all keys of a namespace share one hash tag. Only `headcount:{namespace}:generations` has no generation: there the
//! generations notice each other.

use super::FilterStore;
use crate::config::ConfigError;
use crate::line::{ClassView, EPOCHS, LineArrivals, LineChange, LineOfClass, LineRequest, LineView};
use crate::redis_link::{RedisConnection, Route, is_read_only, refused_write, run_script};
use crate::ring::codec::most_bytes_beside;
use crate::round::{
    Entry, EpochStart, Gap, Identity, LogPart, LogRequest, Looked, LookedBeside, MOST_LOG_BYTES, MOST_NEWS_BYTES,
    MOST_OVERRIDE_BYTES, Node, OtherGeneration, Outgoing, OutgoingOverride, OwnRecords, Publish, Published, Reply,
    Request, SeatReply, SeatRequest, Stored, Version,
};
use crate::store_error::StoreError;
use crate::time::{Slot, Timestamp};
use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisError, RedisWrite, Script, Value};
use std::io::Write;
use std::sync::LazyLock;
use std::time::Duration;

static LOOK: LazyLock<Script> =
    LazyLock::new(|| Script::new(concat!(include_str!("../../lua/versions.lua"), include_str!("../../lua/look.lua"))));
static LOOK_BESIDE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(concat!(include_str!("../../lua/versions.lua"), include_str!("../../lua/look_beside.lua")))
});
static WRITE: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("../../lua/write.lua")));
static PLACE: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("../../lua/place.lua")));
static SINCE: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("../../lua/since.lua")));
static EXCHANGE_NEWS: LazyLock<Script> = LazyLock::new(|| {
    Script::new(concat!(include_str!("../../lua/seats.lua"), include_str!("../../lua/exchange_news.lua")))
});
/// The same for servers whose newcomers wait in a line. Each call of a script makes all its functions anew, so the
/// others do without those of the line.
static EXCHANGE_NEWS_AND_LINE: LazyLock<Script> = LazyLock::new(|| {
    Script::new(concat!(
        include_str!("../../lua/seats.lua"),
        include_str!("../../lua/line.lua"),
        include_str!("../../lua/exchange_news.lua")
    ))
});
static OVERRIDE: LazyLock<Script> = LazyLock::new(|| Script::new(include_str!("../../lua/override.lua")));

/// Stands for the version of a value that was not written by a server.
const NO_VALUE_OF_OURS: &str = "!";

/// Before it uploads a filter of at least this size, a server asks whether the minute was written since it was read.
/// The size is that of the filter itself, empty or full, so that the number of calls does not depend on the load.
const WORTH_ASKING_BYTES: usize = 256 << 10;

/// Values of filters of at least this size are staged. As an argument of a script, a value of 512 KiB takes Redis 0.9
/// ms, and one of 4 MB 7 ms (`cargo test --features full --test redis costs_redis -- --nocapture`). Staged, these
/// values take 0.2 and 1.5 ms, but three commands (compare, `SET`, rename) instead of one. So smaller values are not
/// staged. The size is that of the filter itself, empty or full, so that neither the layout nor the number of commands
/// depends on the load.
const STAGED_FROM_BYTES: usize = 512 << 10;

/// A staged value expires after this time if its server died before putting it in place.
const STAGED_FOR: Duration = Duration::from_secs(10);

/// The largest number of values that a server stages at a time: as many as a regular round publishes.
const STAGED_AT_ONCE: usize = 2;

/// The length of the longest version and the line feed after it.
const MOST_HEAD_BYTES: usize = 65;

/// How a minute's version and value are stored. All servers of a generation have filters of the same size, and so the
/// same layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Layout {
    /// A hash `{ ts, value }`.
    Hash,
    /// A string: `ts`, a line feed, `value`.
    String,
}

impl Layout {
    fn of(identity: &Identity) -> Self {
        if identity.filter_bytes < STAGED_FROM_BYTES { Self::Hash } else { Self::String }
    }

    /// Returns the name that `look.lua` expects.
    fn as_str(self) -> &'static str {
        match self {
            Self::Hash => "hash",
            Self::String => "string",
        }
    }
}

/// The store of a fleet in Redis. It connects with the first round.
///
/// ```no_run
/// use headcount::limit::{Limiter, Redis, sliding_log};
/// use headcount::{Headcount, RedisStore};
/// # use std::time::Duration;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (headcount, _worker) = Headcount::builder().max_active_users(10).secret("the key of our fleet").build()?;
/// let store = RedisStore::open("redis://127.0.0.1:6379/0", "shop")?;
/// // One connection for the fleet's news and for limiters.
/// let login = Redis::new(store.connection(), "login", sliding_log(5, Duration::from_secs(60)))?;
/// let login = Limiter::new("login", login);
/// tokio::spawn(headcount.sync_with(store).run());
/// # Ok(()) }
/// ```
pub struct RedisStore {
    connection: RedisConnection,
    namespace: String,
}

impl RedisStore {
    /// Creates a store at a URL such as `redis://127.0.0.1:6379/0`. Servers of one namespace share their active users.
    ///
    /// # Errors
    /// [`ConfigError::RedisUrl`] if the URL cannot be used.
    pub fn open(url: &str, namespace: &str) -> Result<Self, ConfigError> {
        Ok(Self::on(&RedisConnection::open(url)?, namespace))
    }

    /// Creates a store on a connection that limiters may use, too.
    pub fn on(connection: &RedisConnection, namespace: &str) -> Self {
        Self { connection: connection.clone(), namespace: namespace.to_owned() }
    }

    /// Returns the connection, for limiters.
    pub fn connection(&self) -> &RedisConnection {
        &self.connection
    }

    fn key(&self, identity: &Identity, name: &str) -> String {
        self.key_of(identity.generation, name)
    }

    fn key_of(&self, generation: u64, name: &str) -> String {
        format!("headcount:{{{}}}:{generation:016x}:{name}", self.namespace)
    }

    /// Returns the key of the line with these classes. It is the same for all generations, so that a deploy keeps the
    /// mark.
    fn line_key(&self, id: u64) -> String {
        let line = format!("headcount:{{{}}}:line", self.namespace);
        if id == 0 { line } else { format!("{line}:{id:016x}") }
    }

    fn slot_key(&self, identity: &Identity, slot: Slot) -> String {
        self.key(identity, &format!("slot:{slot}"))
    }

    /// Returns the key for this server's staged value number `number`.
    fn staged_key(&self, identity: &Identity, number: usize) -> String {
        self.key(identity, &format!("staged:{}:{number}", identity.instance_id))
    }

    /// Returns the way to the server that holds the keys of the namespace.
    fn route(&self) -> Route<'_> {
        self.connection.route(&self.generations_key())
    }

    fn generations_key(&self) -> String {
        format!("headcount:{{{}}}:generations", self.namespace)
    }

    async fn look(
        &self,
        mut connection: MultiplexedConnection,
        identity: &Identity,
        slots: &[Slot],
        names: usize,
        (wants, beats): (bool, bool),
    ) -> Result<Vec<Value>, RedisError> {
        let mut look = LOOK.prepare_invoke();
        look.key(self.key(identity, "fleet")).key(self.key(identity, "nodes"));
        look.key(self.key(identity, "override")).key(self.generations_key());
        look.key(self.key(identity, "wanting"));
        for &slot in slots {
            look.key(self.slot_key(identity, slot));
        }
        look.arg(&identity.instance_id).arg(millis(identity.alive_for)).arg(millis(identity.keep_for));
        look.arg(format!("{:016x}", identity.generation)).arg(&identity.node).arg(names);
        look.arg(Layout::of(identity).as_str()).arg(u8::from(wants)).arg(MOST_OVERRIDE_BYTES);
        look.arg(u8::from(beats));
        run_script(&LOOK, &look, &mut connection).await
    }

    async fn fetch(
        &self,
        mut connection: MultiplexedConnection,
        identity: &Identity,
        slots: &[Slot],
    ) -> Result<Vec<Stored>, RedisError> {
        match Layout::of(identity) {
            Layout::Hash => self.fetch_hashes(&mut connection, identity, slots).await,
            Layout::String => self.fetch_strings(&mut connection, identity, slots).await,
        }
    }

    async fn fetch_hashes(
        &self,
        connection: &mut MultiplexedConnection,
        identity: &Identity,
        slots: &[Slot],
    ) -> Result<Vec<Stored>, RedisError> {
        let mut fetch = redis::pipe();
        for &slot in slots {
            fetch.cmd("HMGET").arg(self.slot_key(identity, slot)).arg("ts").arg("value");
        }
        // A key of another type makes its own command fail. It must not make the others fail.
        let answers: Vec<Value> = fetch.ignore_errors().query_async(connection).await?;
        let mut stored = Vec::with_capacity(slots.len());
        for (&slot, answer) in slots.iter().zip(answers) {
            stored.extend(read_stored_hash(slot, answer)?);
        }
        Ok(stored)
    }

    /// Fetches all values with one command. `MGET` returns nil both for a missing key and for one of another type. A
    /// `GET` tells them apart.
    async fn fetch_strings(
        &self,
        connection: &mut MultiplexedConnection,
        identity: &Identity,
        slots: &[Slot],
    ) -> Result<Vec<Stored>, RedisError> {
        let mut fetch = redis::cmd("MGET");
        for &slot in slots {
            fetch.arg(self.slot_key(identity, slot));
        }
        let answers: Vec<Value> = fetch.query_async(connection).await?;
        let mut stored = Vec::with_capacity(slots.len());
        for (&slot, mut answer) in slots.iter().zip(answers) {
            if answer == Value::Nil {
                let mut again = redis::pipe();
                again.cmd("GET").arg(self.slot_key(identity, slot));
                let answers: Vec<Value> = again.ignore_errors().query_async(connection).await?;
                answer = answers.into_iter().next().unwrap_or(Value::Nil);
            }
            stored.extend(read_stored_string(slot, answer)?);
        }
        Ok(stored)
    }

    async fn look_beside(
        &self,
        mut connection: MultiplexedConnection,
        identity: &Identity,
        generation: u64,
        slots: &[Slot],
        names: usize,
    ) -> Result<Vec<Value>, RedisError> {
        let mut look = LOOK_BESIDE.prepare_invoke();
        look.key(self.key_of(generation, "nodes")).key(self.key_of(generation, "wanting"));
        for slot in slots {
            look.key(self.key_of(generation, &format!("slot:{slot}")));
        }
        look.arg(millis(identity.alive_for)).arg(names);
        run_script(&LOOK_BESIDE, &look, &mut connection).await
    }

    /// Fetches another generation's values. Their layout is not known, so each key is read as a hash and as a string,
    /// and one of the two commands fails.
    async fn fetch_beside(
        &self,
        mut connection: MultiplexedConnection,
        generation: u64,
        slots: &[Slot],
    ) -> Result<Vec<Stored>, RedisError> {
        let mut fetch = redis::pipe();
        for slot in slots {
            let key = self.key_of(generation, &format!("slot:{slot}"));
            fetch.cmd("HMGET").arg(&key).arg("ts").arg("value").cmd("GET").arg(&key);
        }
        let answers: Vec<Value> = fetch.ignore_errors().query_async(&mut connection).await?;
        let mut stored = Vec::with_capacity(slots.len());
        let mut answers = answers.into_iter();
        for &slot in slots {
            let (Some(hash), Some(string)) = (answers.next(), answers.next()) else { break };
            let string = error_unless_wrong_type(string)?;
            let is_string = matches!(string, Value::BulkString(_));
            stored.extend(if is_string { read_stored_string(slot, string)? } else { read_stored_hash(slot, hash)? });
        }
        Ok(stored)
    }

    async fn exchange_news(
        &self,
        mut connection: MultiplexedConnection,
        identity: &Identity,
        logs: &[LogRequest],
        seats: &SeatRequest,
        line: Option<&LineRequest>,
    ) -> Result<Vec<Value>, RedisError> {
        let script = if line.is_some() { &EXCHANGE_NEWS_AND_LINE } else { &EXCHANGE_NEWS };
        let mut exchange = script.prepare_invoke();
        exchange.key(self.key(identity, "seats")).arg(&identity.instance_id).arg(millis(identity.alive_for));
        exchange.arg(epoch_name(seats.epoch)).arg(epoch_name(seats.new_epoch)).arg(seats.number).arg(seats.answered);
        exchange.arg(seats.read).arg(seats.valued).arg(seats.unused).arg(seats.unpublished).arg(u8::from(seats.shares));
        exchange.arg(u8::from(seats.reads_logs));
        exchange.arg(seats.room.map_or_else(String::new, |room| room.to_string()));
        exchange.arg(seats.demand).arg(seats.rounding.to_string());
        exchange.arg(seats.newcomers_per_minute.map_or_else(String::new, |most| most.to_string())).arg(seats.taken);
        exchange.arg(millis(seats.lasts_for)).arg(seats.minute.as_millis());
        exchange.arg(MOST_NEWS_BYTES).arg(MOST_LOG_BYTES).arg(logs.len());
        for LogRequest { slot, name, id, new_id, read_to, last_read, entry, newcomers, keep_for } in logs {
            exchange.key(self.key(identity, &format!("news:{slot}:{name:016x}")));
            exchange.arg(id.as_slice()).arg(*read_to).arg(last_read.as_slice()).arg(entry).arg(*newcomers);
            exchange.arg(keep_for.map_or_else(String::new, |time| millis(time).to_string()));
            exchange.arg(if entry.is_empty() { &[][..] } else { new_id.as_slice() });
        }
        if let Some(LineRequest { id, classes, changes, arrivals, epoch, gathers }) = line {
            let key = self.line_key(*id);
            exchange.key(&key).arg(*epoch).arg(u8::from(*gathers));
            exchange.arg(classes.len()).arg(changes.len()).arg(arrivals.len());
            exchange.key(format!("{key}:arrivals"));
            for epoch in epoch.saturating_sub(1)..epoch.saturating_sub(1) + EPOCHS {
                exchange.key(format!("{key}:{epoch}"));
            }
            for LineOfClass { weight, served, mark } in classes {
                exchange.arg(*weight).arg(*served).arg(*mark);
            }
            for LineChange { epoch, class, bin, by } in changes {
                let bin = bin.map_or_else(|| "c".to_owned(), |bin| bin.to_string());
                exchange.arg(*epoch).arg(of_class(*class, bin)).arg(*by);
            }
            for LineArrivals { class, part, by } in arrivals {
                exchange.arg(of_class(*class, part.to_string())).arg(*by);
            }
        }
        run_script(script, &exchange, &mut connection).await
    }

    async fn publish(
        &self,
        mut connection: MultiplexedConnection,
        identity: &Identity,
        publish: &Publish,
    ) -> Result<Published, RedisError> {
        let since = match publish.since {
            Some(since) => self.record_since(&mut connection, identity, since, &publish.known_beside).await?,
            None => None,
        };
        if let Some(override_) = &publish.override_ {
            self.store_override(&mut connection, identity, override_).await?;
        }
        let written = match Layout::of(identity) {
            Layout::Hash => self.write_hashes(&mut connection, identity, &publish.minutes).await?,
            Layout::String => self.write_strings(&mut connection, identity, &publish.minutes).await?,
        };
        Ok(Published { written, since })
    }

    async fn write_hashes(
        &self,
        connection: &mut MultiplexedConnection,
        identity: &Identity,
        minutes: &[Outgoing],
    ) -> Result<Vec<bool>, RedisError> {
        let mut written = Vec::with_capacity(minutes.len());
        for (place, minute) in minutes.iter().enumerate() {
            let lost = place == 0 && self.is_already_lost(connection, identity, minute).await?;
            written.push(!lost && self.write(connection, identity, minute).await?);
        }
        Ok(written)
    }

    /// Asks which minutes are unchanged since they were read, stages the values of those, and puts them in place.
    async fn write_strings(
        &self,
        connection: &mut MultiplexedConnection,
        identity: &Identity,
        minutes: &[Outgoing],
    ) -> Result<Vec<bool>, RedisError> {
        if minutes.is_empty() {
            return Ok(Vec::new());
        }
        let all: Vec<_> = minutes.iter().collect();
        let mut written = self.place(connection, identity, &all, &[]).await?;
        written.resize(minutes.len(), false);
        let unchanged: Vec<_> = (0..minutes.len()).filter(|&at| written[at]).collect();
        for places in unchanged.chunks(STAGED_AT_ONCE) {
            let staged: Vec<_> = (0..places.len()).map(|number| self.staged_key(identity, number)).collect();
            let chosen: Vec<_> = places.iter().map(|&at| &minutes[at]).collect();
            for (minute, key) in chosen.iter().zip(&staged) {
                stage(minute, key).query_async::<()>(connection).await?;
            }
            let placed = self.place(connection, identity, &chosen, &staged).await?;
            for (number, &at) in places.iter().enumerate() {
                written[at] = placed.get(number).is_some_and(|&placed| placed);
            }
        }
        Ok(written)
    }

    async fn place(
        &self,
        connection: &mut MultiplexedConnection,
        identity: &Identity,
        minutes: &[&Outgoing],
        staged: &[String],
    ) -> Result<Vec<bool>, RedisError> {
        let mut place = PLACE.prepare_invoke();
        for minute in minutes {
            place.key(self.slot_key(identity, minute.slot));
        }
        for key in staged {
            place.key(key);
        }
        place.arg(millis(identity.keep_for));
        for minute in minutes {
            place.arg(minute.after.as_ref().map_or("", |after| after.0.as_str())).arg(&minute.version.0);
        }
        run_script(&PLACE, &place, connection).await
    }

    /// Returns whether the stored version is not the one that was read, so that a write would lose. The caller asks
    /// before a large upload of the first minute. This is usually the current minute, which all servers write. Without
    /// this request, half of the traffic would be uploads that lose. A small upload is not worth the request; for it,
    /// the result is always `false`.
    async fn is_already_lost(
        &self,
        connection: &mut MultiplexedConnection,
        identity: &Identity,
        minute: &Outgoing,
    ) -> Result<bool, RedisError> {
        let after = minute.after.as_ref().map(|after| after.0.as_bytes());
        if identity.filter_bytes < WORTH_ASKING_BYTES || after == Some(NO_VALUE_OF_OURS.as_bytes()) {
            return Ok(false);
        }
        let key = self.slot_key(identity, minute.slot);
        let version: Option<Vec<u8>> = redis::cmd("HGET").arg(key).arg("ts").query_async(connection).await?;
        Ok(version.as_deref() != after)
    }

    async fn write(
        &self,
        connection: &mut MultiplexedConnection,
        identity: &Identity,
        minute: &Outgoing,
    ) -> Result<bool, RedisError> {
        let after = minute.after.as_ref().map_or("", |after| after.0.as_str());
        let mut write = WRITE.key(self.slot_key(identity, minute.slot));
        write.arg(after).arg(&minute.version.0).arg(&minute.value).arg(millis(identity.keep_for));
        run_script(&WRITE, &write, connection).await
    }

    async fn record_since(
        &self,
        connection: &mut MultiplexedConnection,
        identity: &Identity,
        since: EpochStart,
        known_beside: &[u64],
    ) -> Result<Option<Slot>, RedisError> {
        let mut record = SINCE.key(self.key(identity, "fleet"));
        record.key(self.generations_key()).arg(since.slot.0).arg(u8::from(since.claimed));
        record.arg(millis(identity.keep_for));
        for generation in std::iter::once(&identity.generation).chain(known_beside) {
            record.arg(format!("{generation:016x}"));
        }
        let recorded: String = run_script(&SINCE, &record, connection).await?;
        Ok(recorded.parse().ok().map(Slot))
    }

    async fn store_override(
        &self,
        connection: &mut MultiplexedConnection,
        identity: &Identity,
        override_: &OutgoingOverride,
    ) -> Result<(), RedisError> {
        let mut store = OVERRIDE.key(self.key(identity, "override"));
        store.arg(override_.after.as_deref().unwrap_or_default()).arg(override_.value.as_deref().unwrap_or_default());
        store.arg(millis(identity.keep_for)).arg(MOST_OVERRIDE_BYTES);
        let _: bool = run_script(&OVERRIDE, &store, connection).await?;
        Ok(())
    }
}

impl FilterStore for RedisStore {
    fn name(&self) -> &'static str {
        "redis"
    }

    fn namespace(&self) -> &str {
        &self.namespace
    }

    async fn exchange(&self, identity: &Identity, request: Request, within: Duration) -> Result<Reply, StoreError> {
        let link = self.route();
        link.expect_values_of(2 * identity.filter_bytes);
        match request {
            Request::Look { slots, names, wants, beats } => {
                link.connect(within).await?;
                let look = |connection| self.look(connection, identity, &slots, names, (wants, beats));
                let answer = link.run(within, look).await?;
                let looked = read_look(answer, slots.len())?;
                if looked.write_refused.as_ref().is_some_and(|refusal| is_read_only(&refusal.to_string())) {
                    // This node has become a replica. By the next round, the host name may resolve to the new primary.
                    link.reconnect_before_next_call();
                }
                Ok(Reply::Looked(looked))
            }
            Request::Fetch { slots } => {
                let fetched = link.run(within, |connection| self.fetch(connection, identity, &slots)).await;
                fetched.map(Reply::Fetched)
            }
            Request::LookBeside { generation, slots, names } => {
                let look = |connection| self.look_beside(connection, identity, generation, &slots, names);
                let answer = link.run(within, look).await?;
                read_look_beside(answer, slots.len()).map(Reply::LookedBeside)
            }
            Request::FetchBeside { generation, slots } => {
                link.expect_values_of(2 * most_bytes_beside(identity.filter_bytes));
                let fetch = |connection| self.fetch_beside(connection, generation, &slots);
                link.run(within, fetch).await.map(Reply::Fetched)
            }
            Request::Publish(publish) => {
                let published = link.run(within, |connection| self.publish(connection, identity, &publish)).await;
                published.map(Reply::Published)
            }
            Request::ExchangeNews { logs, seats, line } => {
                link.expect_values_of(logs.len() * MOST_NEWS_BYTES);
                let exchange = |connection| self.exchange_news(connection, identity, &logs, &seats, line.as_deref());
                let mut answer = link.run(within, exchange).await?.into_iter();
                let seats = answer.next().map_or(Ok(None), read_seats)?;
                let logs = answer.by_ref().take(logs.len()).map(read_log_part).collect::<Result<_, _>>()?;
                let line = answer.next().and_then(read_line);
                Ok(Reply::News { logs, seats, line })
            }
            Request::Leave => {
                let (nodes, member) =
                    (self.key(identity, "nodes"), format!("{} {}", identity.instance_id, identity.node));
                let mut leave = redis::cmd("ZREM");
                leave.arg(nodes).arg(member);
                let leave = |mut connection| {
                    let leave = leave.clone();
                    async move { leave.query_async::<()>(&mut connection).await }
                };
                link.run(within, leave).await.map(|()| Reply::Left)
            }
        }
    }

    fn has_news_logs(&self) -> bool {
        true
    }

    fn connections(&self) -> u64 {
        self.connection.connections()
    }

    fn server(&self) -> Option<String> {
        self.route().server()
    }
}

/// Reads the reply of `look.lua`.
fn read_look(mut answer: Vec<Value>, slots: usize) -> Result<Looked, StoreError> {
    let named = match answer.pop_if(|last| matches!(last, Value::Array(_))) {
        Some(Value::Array(members)) => read_nodes(members),
        _ => Vec::new(),
    };
    let other_generations = match answer.pop_if(|last| matches!(last, Value::Array(_))) {
        Some(Value::Array(generations)) => read_other_generations(&generations),
        _ => Vec::new(),
    };
    let mut fields = Fields(answer.into_iter());
    let number = |text: String| text.parse::<u64>().ok();
    let seconds = number(fields.next()?).ok_or_else(|| StoreError::corrupt("the reply has no valid server time"))?;
    let micros = number(fields.next()?).unwrap_or_default();
    let since = number(fields.next()?).map(Slot);
    let last_heartbeat = number(fields.next()?).map(Timestamp::from_millis);
    let gap_from = number(fields.next()?).map(Timestamp::from_millis);
    let gap_to = number(fields.next()?).map(Timestamp::from_millis);
    let closed_by = fields.next()?;
    let gap = gap_from.zip(gap_to).map(|(from, to)| Gap { from, to, closed_by });
    let override_ = Some(fields.next_bytes()?).filter(|bytes| !bytes.is_empty());
    let nodes = number(fields.next()?).unwrap_or(1);
    let wanting = number(fields.next()?).unwrap_or_default();
    let write_refused =
        Some(fields.next()?).filter(|refusal| !refusal.is_empty()).map(|refusal| refused_write(&refusal));
    let records = [fields.next()?, fields.next()?, fields.next()?];
    let could_be_read = records.iter().all(|record| record != "!");
    let [looked, wanted, listed] = records.map(|text| number(text).map(Timestamp::from_millis));
    let before = could_be_read.then_some(OwnRecords { looked, wanted, listed });
    let has_more_generations = fields.next()? != "0";
    let without_beats = fields.next()? != "0";
    let minutes = fields.entries(slots)?;
    let time = Timestamp::from_micros(seconds.saturating_mul(1_000_000).saturating_add(micros));
    Ok(Looked {
        time,
        minutes,
        since,
        last_heartbeat,
        gap,
        override_,
        nodes,
        wanting,
        without_beats,
        named,
        other_generations,
        has_more_generations,
        write_refused,
        before,
    })
}

/// Returns the name of a ledger of seats, as the scripts know it.
fn epoch_name(epoch: u64) -> String {
    format!("{epoch:016x}")
}

/// Reads what `exchange_news.lua` says of the ledger of seats.
fn read_seats(seats: Value) -> Result<Option<SeatReply>, StoreError> {
    if matches!(&seats, Value::Array(fields) if fields.is_empty()) {
        return Ok(None);
    }
    type Fields = (String, bool, u64, u64, u64, u64, u64, u64, u64, u64, bool);
    let read = redis::from_redis_value::<Fields>(seats).ok().and_then(|fields| {
        let (epoch, is_quiet, logged, valued, granted, pool, demand, servers, readers, lease_began, is_behind) = fields;
        let epoch = u64::from_str_radix(&epoch, 16).ok()?;
        let counts = SeatReply { logged, valued, granted, pool, demand, servers, readers, ..SeatReply::default() };
        Some(SeatReply { epoch, is_quiet, lease_began, is_behind, ..counts })
    });
    read.map(Some).ok_or_else(|| StoreError::corrupt("the ledger of seats cannot be read"))
}

/// Returns the name of a count of this class, as `line.lua` writes it.
fn of_class(class: u8, name: String) -> String {
    if class == 0 { name } else { format!("{class}:{name}") }
}

/// Reads what `exchange_news.lua` says of the line. A line that cannot be read is as good as none: then each server
/// calls its own waiters.
fn read_line(line: Value) -> Option<LineView> {
    let Value::Array(parts) = line else { return None };
    let mut parts = parts.into_iter();
    let is_open = redis::from_redis_value(parts.next()?).ok()?;
    Some(LineView { is_open, classes: parts.map(read_class).collect::<Option<_>>()? })
}

fn read_class(class: Value) -> Option<ClassView> {
    type Fields = (u64, u64, u64, u64, u64, String);
    let (mark, called, waiting, served, left, points) = redis::from_redis_value::<Fields>(class).ok()?;
    let point = |text: &str| {
        let (rank, before) = text.split_once(':')?;
        let (rank, before): (u64, u64) = (rank.parse().ok()?, before.parse().ok()?);
        (rank.max(before) < 1 << 53).then_some((rank, before))
    };
    let points = points.split_ascii_whitespace().map(point).collect::<Option<Vec<_>>>()?;
    let is_ascending = points.is_sorted_by(|(place, before), (next, until)| place <= next && before <= until);
    is_ascending.then_some(ClassView { mark, called, waiting, served, left, points })
}

/// Reads a part of the reply of `exchange_news.lua`.
fn read_log_part(part: Value) -> Result<LogPart, StoreError> {
    let (id, from, bytes, appended_at) = redis::from_redis_value::<(Vec<u8>, u64, Vec<u8>, u64)>(part)
        .map_err(|_| StoreError::corrupt("the reply to an exchange of news cannot be read"))?;
    let id = if id.is_empty() {
        None
    } else {
        Some(id.try_into().map_err(|_| StoreError::corrupt("a news log has no identity"))?)
    };
    Ok(LogPart { id, from, bytes, appended_at: Some(appended_at).filter(|&at| at > 0) })
}

/// Reads the reply of `look_beside.lua`.
fn read_look_beside(mut answer: Vec<Value>, slots: usize) -> Result<LookedBeside, StoreError> {
    let writers = match answer.pop_if(|last| matches!(last, Value::Array(_))) {
        Some(Value::Array(members)) => members.iter().filter_map(text).collect(),
        _ => Vec::new(),
    };
    let mut fields = Fields(answer.into_iter());
    let wanting = fields.next()?.parse().unwrap_or_default();
    Ok(LookedBeside { writers, wanting, minutes: fields.entries(slots)? })
}

/// The fields of the reply of `look.lua` or `look_beside.lua`, read from the front.
struct Fields(std::vec::IntoIter<Value>);

impl Fields {
    fn next(&mut self) -> Result<String, StoreError> {
        self.next_bytes().map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    }

    fn next_bytes(&mut self) -> Result<Vec<u8>, StoreError> {
        let field = self.0.next().ok_or_else(|| StoreError::corrupt("the reply to a look is too short"))?;
        Ok(match field {
            Value::BulkString(bytes) => bytes,
            Value::Int(number) => number.to_string().into_bytes(),
            _ => Vec::new(),
        })
    }

    /// Reads the versions and sizes of this many minutes.
    fn entries(&mut self, slots: usize) -> Result<Vec<Option<Entry>>, StoreError> {
        let mut entries = Vec::with_capacity(slots);
        for _ in 0..slots {
            let (version, bytes) = (self.next()?, self.next()?);
            let entry = || Entry { version: Version(version.clone()), bytes: bytes.parse().unwrap_or_default() };
            entries.push((!version.is_empty()).then(entry));
        }
        Ok(entries)
    }
}

fn text(value: &Value) -> Option<String> {
    redis::from_redis_value_ref(value).ok()
}

/// Reads generations, each followed by whether it is alive. Names that no server could have written are left out.
fn read_other_generations(generations: &[Value]) -> Vec<OtherGeneration> {
    let beside = |pair: &[Value]| {
        let name = text(pair.first()?)?;
        // Accepts only the notation of servers. In capital letters, this server's own generation would look like
        // another one.
        let generation = u64::from_str_radix(&name, 16).ok().filter(|it| format!("{it:016x}") == name)?;
        Some(OtherGeneration { generation, is_alive: text(pair.get(1)?)? == "1" })
    };
    generations.chunks(2).filter_map(beside).collect()
}

/// Reads members of the key `nodes`, each followed by its score, the time of the node's last look. Members that no
/// server could have written are left out.
fn read_nodes(members: Vec<Value>) -> Vec<Node> {
    let node = |pair: &[Value]| {
        let (member, looked) = (text(pair.first()?)?, text(pair.get(1)?)?);
        let (writer, name) = member.split_once(' ')?;
        let (writer, name) = (writer.to_owned(), name.to_owned());
        Some(Node { instance_id: writer, name, looked: Timestamp::from_millis(looked.parse::<f64>().ok()? as u64) })
    };
    members.chunks(2).filter_map(node).collect()
}

/// Reads the reply of `HMGET ts value`; `None` if there is no value.
fn read_stored_hash(slot: Slot, answer: Value) -> Result<Option<Stored>, RedisError> {
    type Field = Option<Vec<u8>>;
    Ok(match redis::from_redis_value::<(Field, Field)>(error_unless_wrong_type(answer)?) {
        Ok((None, None)) => None,
        Ok((Some(version), value)) if is_version(&version) => Some(stored(slot, &version, value.unwrap_or_default())),
        _ => Some(stored(slot, NO_VALUE_OF_OURS.as_bytes(), Vec::new())),
    })
}

/// Reads the reply of `GET`; `None` if there is no value.
fn read_stored_string(slot: Slot, answer: Value) -> Result<Option<Stored>, RedisError> {
    Ok(match redis::from_redis_value::<Option<Vec<u8>>>(error_unless_wrong_type(answer)?) {
        Ok(None) => None,
        Ok(Some(bytes)) if bytes.is_empty() => None,
        Ok(Some(mut bytes)) => {
            let head = bytes.iter().take(MOST_HEAD_BYTES).position(|&byte| byte == b'\n');
            Some(match head.filter(|&head| is_version(&bytes[..head])) {
                Some(head) => {
                    let value = bytes.split_off(head + 1);
                    stored(slot, &bytes[..head], value)
                }
                None => stored(slot, NO_VALUE_OF_OURS.as_bytes(), Vec::new()),
            })
        }
        Err(_) => Some(stored(slot, NO_VALUE_OF_OURS.as_bytes(), Vec::new())),
    })
}

/// Returns the error of a failed command, unless the key is of another type. No server has written such a key. Any
/// other error says nothing about the value.
fn error_unless_wrong_type(answer: Value) -> Result<Value, RedisError> {
    match answer {
        Value::ServerError(refusal) if refusal.code() != "WRONGTYPE" => Err(refusal.into()),
        answer => Ok(answer),
    }
}

fn stored(slot: Slot, version: &[u8], value: Vec<u8>) -> Stored {
    Stored { slot, version: Version(String::from_utf8_lossy(version).into_owned()), value }
}

/// Stages a minute's version and value under a key, for a short time.
fn stage(minute: &Outgoing, key: &str) -> Cmd {
    let mut set = redis::cmd("SET");
    set.arg(key);
    set.reserve_space_for_args([MOST_HEAD_BYTES + minute.value.len()]);
    let mut value = set.writer_for_next_arg();
    for part in [minute.version.0.as_bytes(), b"\n", &minute.value] {
        value.write_all(part).expect("writing to memory cannot fail");
    }
    drop(value);
    set.arg("PX").arg(millis(STAGED_FOR));
    set
}

/// Returns whether a server could have written this version.
fn is_version(version: &[u8]) -> bool {
    (1..=64).contains(&version.len()) && version.iter().all(|&byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_large_filters_are_strings() {
        let layout = |filter_bytes| {
            let (instance_id, node) = ("a".to_owned(), "a".to_owned());
            let second = Duration::from_secs(1);
            Layout::of(&Identity {
                instance_id,
                node,
                generation: 1,
                filter_bytes,
                alive_for: second,
                keep_for: second,
            })
        };
        assert_eq!(layout(STAGED_FROM_BYTES - 1), Layout::Hash);
        assert_eq!(layout(STAGED_FROM_BYTES), Layout::String);
    }

    #[test]
    fn a_store_says_its_namespace_and_connects_with_the_first_request() {
        let store = RedisStore::open("redis://127.0.0.1:1", "shop").unwrap();
        assert_eq!((store.name(), store.namespace(), store.connections()), ("redis", "shop", 0));
    }
}
