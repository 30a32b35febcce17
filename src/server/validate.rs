//! `headcount validate`: finds the mistakes of a configuration before a server is started with it.

use super::config::{LoadError, Loaded};
use super::limits;
use super::serve::check_admin;
use super::state;
use crate::admin;
use crate::config::{AppliesTo, Carrier, Config, ConfigError, LimitStore, MissingToken, Settings, Unverified};
use crate::fingerprint::FingerprintKey;
use crate::redis_link::RedisConnection;
use crate::ring::codec::Codec;
use crate::round::{Identity, Reply, Request};
use crate::sync::{FilterStore, RedisStore};
use crate::time::{Slot, Timestamp};
use crate::token_source::TokenSource;
use redis::InfoDict;
use std::fmt;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// The time limit for an answer of Redis.
const PATIENCE: Duration = Duration::from_secs(5);

/// The clocks of this machine and of Redis may differ by this much without a warning.
const CLOCK: Duration = Duration::from_secs(2);

/// A configuration that can be used.
pub struct Validated {
    config: Config,
    settings: Settings,
    /// Warnings about settings that are valid, but may not do what they seem to do.
    warnings: Vec<String>,
}

impl Validated {
    /// Checks a configuration as `serve` does, without starting, writing or connecting to anything.
    ///
    /// # Errors
    /// The first [`ConfigError`].
    pub fn check(config: &Config) -> Result<(), ConfigError> {
        check(config).map(drop)
    }

    /// Checks a loaded configuration as [`Validated::check`] does, and collects its warnings.
    ///
    /// # Errors
    /// [`LoadError`] names the file or variable, the key, the value found, and what is allowed.
    pub fn of(loaded: &Loaded) -> Result<Self, LoadError> {
        let config = loaded.config.clone();
        let settings = check(&config).map_err(|error| loaded.locate(error))?;
        state::check_file(&config).map_err(|error| loaded.locate(error))?;
        let mut warnings = warnings(&config);
        warnings.extend(config.admission.max_active_users.and_then(|max| settings.capacity_warning(max)));
        warnings.extend(state::choose(&mut config.clone()).err());
        Ok(Self { config, settings, warnings })
    }

    /// Returns warnings about settings that are valid, but may not do what they seem to do.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Returns what an operator should know about this configuration, though nothing is wrong with it.
    pub fn note(&self) -> Option<&'static str> {
        self.config.admin.token_file.is_none().then_some(
            "there is no admin.token_file: every user of this machine is an operator. If a proxy on this machine leads \
             to admin.listen and adds no Forwarded, X-Forwarded-* or Via header, every client of the proxy is \
             an operator, too",
        )
    }

    /// Returns all keys with their effective values, as TOML; secrets are redacted.
    pub fn effective(&self) -> String {
        toml::to_string(&self.config).unwrap_or_else(|error| format!("# cannot be shown: {error}\n"))
    }

    /// Checks the Redis of the configuration, if there is one.
    ///
    /// # Errors
    /// [`ConfigError`] if the URL or a certificate cannot be used.
    pub fn look_at_redis(&self) -> Result<Option<RedisFindings>, ConfigError> {
        let namespace = self.config.namespace();
        self.config.redis.as_ref().map(|redis| RedisFindings::at(redis, &namespace, &self.settings)).transpose()
    }
}

fn check(config: &Config) -> Result<Settings, ConfigError> {
    check_admin(config)?;
    check_listeners(config)?;
    if config.fleet.is_some() && config.redis.is_none() {
        return Err(ConfigError::FleetWithoutStore);
    }
    admin::check_access(&config.admin, config.admin.listen.ip())?;
    let key = match config.token.fingerprint_key()? {
        Some(key) => key,
        None if config.joins_fleet() => return Err(ConfigError::SecretMissing),
        // A placeholder: a server generates the real key at its first start, and keeps it beside the snapshot.
        None => FingerprintKey::new(&[0; 16]).expect("sixteen bytes are a key"),
    };
    let settings = config.check(key)?;
    // Reads the URL and the certificates, without connecting.
    config.redis.as_ref().map(RedisConnection::configured).transpose()?;
    limits::check(config)?;
    Ok(settings)
}

/// Checks that the two listeners do not need the same port.
fn check_listeners(config: &Config) -> Result<(), ConfigError> {
    let (checks, admin) = (config.server.listen, config.admin.listen);
    // [::] is all addresses, and 0.0.0.0 those of IPv4.
    let includes = |all: IpAddr, one: IpAddr| all == one || all.is_unspecified() && (all.is_ipv6() || one.is_ipv4());
    let overlap = includes(checks.ip(), admin.ip()) || includes(admin.ip(), checks.ip());
    if checks.port() == admin.port() && checks.port() != 0 && overlap {
        let expected = "server.listen has this port, too; give each its own";
        return Err(ConfigError::Value { key: "admin.listen", found: admin.to_string(), expected });
    }
    Ok(())
}

fn warnings(config: &Config) -> Vec<String> {
    let mut warnings = Vec::new();
    let knows_no_paths = config.server.trusted_proxies.is_empty();
    if knows_no_paths && !(config.route.is_empty() && config.admission.exempt_paths.is_empty()) {
        warnings.push(
            "server.trusted_proxies is empty: only Envoy sends the path of a request; behind other proxies, \
             [[route]] and admission.exempt_paths have no effect; list the proxies' addresses"
                .into(),
        );
    }
    if config.redis.is_some() && config.fleet.as_ref().is_none_or(|fleet| fleet.expected_nodes == 1) {
        warnings.push(
            "fleet.expected_nodes is 1: a server that starts while Redis is away admits all of max_active_users by \
             itself; set it to the number of your servers"
                .into(),
        );
    }
    let has_browsers = config.token.from.iter().any(|source| matches!(source, TokenSource::Cookie(_)));
    if has_browsers && config.line.enabled && config.line.carry == Carrier::Header {
        warnings.push(
            "line.carry is \"header\", and tokens come in cookies: a browser keeps no header, so it loses its place \
             with each try; set line.carry to \"cookie:ticket\""
                .into(),
        );
    }
    if let Some(redis) = &config.redis {
        let url = redis.url.as_ref().map_or("", |url| url.expose()).to_ascii_lowercase();
        let has_tls = redis.tls && !redis.sentinels.is_empty() || url.starts_with("rediss-sentinel:");
        if has_tls && !redis.sentinel_tls {
            warnings.push(
                "redis.sentinel_tls is false: the sentinels are asked without TLS, so somebody on the way can name \
                 another master, which then gets the password of Redis; set it to true if the sentinels speak TLS"
                    .into(),
            );
        }
    }
    if config.admin.token_file.is_none() && config.admin.allow_proxied {
        warnings.push(
            "admin.allow_proxied is true, and there is no admin.token_file: everybody who reaches the proxy is an \
             operator"
                .into(),
        );
    }
    let passes_unverified = config.token.jwt.as_ref().is_some_and(|jwt| jwt.unverified == Unverified::MissingToken);
    if passes_unverified && config.admission.missing_token != MissingToken::Reject {
        let house = if config.admission.missing_token == MissingToken::Admit { "a full" } else { "an open" };
        warnings.push(format!(
            "token.jwt.unverified is \"missing-token\": with a token that headcount cannot verify and the backend \
             accepts, a user passes {house} house without a seat; set it, or admission.missing_token, to \"reject\""
        ));
    }
    warnings.extend(config.token.warning().map(str::to_owned));
    if config.has_only_limits() {
        warnings.push("there is no admission.max_active_users: requests are limited, and everybody is admitted".into());
    }
    let of_all = config.limit.iter().filter(|limit| limit.applies_to == AppliesTo::All);
    for limit in of_all.rev().skip(1).filter(|limit| limit.store == LimitStore::Mysql) {
        warnings.push(format!(
            "limit {}: requests that a later limit refuses stay charged here, because MySQL takes nothing back; list \
             it last",
            limit.name
        ));
    }
    for limit in &config.limit {
        let of_limit = limit.warnings(&config.server.trusted_proxies);
        warnings.extend(of_limit.into_iter().map(|warning| format!("limit {}: {warning}", limit.name)));
    }
    warnings
}

/// The findings about a Redis server.
pub struct RedisFindings {
    findings: Vec<Finding>,
}

enum Finding {
    Well(String),
    Warning(String),
    Error(String),
}

impl RedisFindings {
    fn at(redis: &crate::config::Redis, namespace: &str, settings: &Settings) -> Result<Self, ConfigError> {
        let connection = RedisConnection::configured(redis)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = match runtime {
            Ok(runtime) => runtime,
            Err(error) => return Ok(Self { findings: vec![Finding::Error(error.to_string())] }),
        };
        let mut live = Self { findings: Vec::new() };
        runtime.block_on(live.look(&connection, namespace, settings));
        Ok(live)
    }

    /// Returns whether headcount can use this Redis.
    pub fn is_well(&self) -> bool {
        !self.findings.iter().any(|finding| matches!(finding, Finding::Error(_)))
    }

    #[allow(clippy::disallowed_methods)] // The time of the round trip is shown, and decides nothing.
    async fn look(&mut self, connection: &RedisConnection, namespace: &str, settings: &Settings) {
        let route = connection.route(&format!("headcount:{{{namespace}}}:generations"));
        let call = |name: &'static str| {
            route.call(PATIENCE, move |mut connection| async move {
                redis::cmd(name).query_async::<redis::Value>(&mut connection).await
            })
        };
        if let Err(error) = call("PING").await {
            return self.findings.push(Finding::Error(format!("it cannot be reached: {error}")));
        }
        let began = Instant::now();
        let answer = call("PING").await;
        let took = began.elapsed();
        self.findings.push(match answer {
            Ok(_) => Finding::Well(format!(
                "reachable at {}; a round trip takes {:.1} ms",
                route.server_and_why().unwrap_or_default(),
                took.as_secs_f64() * 1000.0
            )),
            Err(error) => Finding::Error(error.to_string()),
        });

        let key = format!("headcount:{{{namespace}}}:validate");
        let written = route.call(PATIENCE, |mut connection| {
            let key = key.clone();
            async move { WRITE.prepare_invoke().key(key).invoke_async::<(u64, u64)>(&mut connection).await }
        });
        match written.await {
            Ok((seconds, micros)) => {
                self.findings.push(Finding::Well("may run scripts, and read and write keys of the namespace".into()));
                self.clock(seconds, micros);
            }
            Err(error) => self.findings.push(Finding::Error(format!(
                "it refuses commands that the rounds need: {error}. Grant the user of redis.url ~headcount:* +@read \
                 +@write +@scripting +time +ping"
            ))),
        }
        self.other_generations(connection, namespace, settings).await;
        let info = route.call(PATIENCE, |mut connection| async move {
            redis::cmd("INFO").query_async::<InfoDict>(&mut connection).await
        });
        match info.await {
            Ok(info) => self.info(&info),
            Err(error) => {
                let said = format!("its eviction policy cannot be read: {error}");
                self.findings.push(Finding::Warning(said));
            }
        }
    }

    /// Finds other generations in the namespace, and whether servers of this configuration would know their users.
    async fn other_generations(&mut self, connection: &RedisConnection, namespace: &str, settings: &Settings) {
        let key = format!("headcount:{{{namespace}}}:generations");
        let mut newest = redis::cmd("ZREVRANGE");
        newest.arg(&key).arg(0).arg(15);
        let route = connection.route(&key);
        let generations = route.call(PATIENCE, |mut connection| {
            let newest = newest.clone();
            async move { newest.query_async::<Vec<String>>(&mut connection).await }
        });
        let Ok(generations) = generations.await else { return };
        let store = RedisStore::on(connection, namespace);
        for generation in generations {
            let Ok(generation) = u64::from_str_radix(&generation, 16) else { continue };
            if generation == settings.generation {
                continue;
            }
            self.findings.push(match read_beside(&store, settings, generation).await {
                Ok(None) => Finding::Well(
                    "servers with another capacity have used this namespace in the last window: their users are known \
                     here, and count against max_active_users"
                        .into(),
                ),
                Ok(Some(_)) => Finding::Well(
                    "servers with an earlier key have used this namespace in the last window: their users are known \
                     here, and only those servers admit newcomers until they have stopped"
                        .into(),
                ),
                Err(reason) => Finding::Warning(format!(
                    "servers with another window or key have used this namespace in the last window, and servers of \
                     this configuration do not know their users ({reason}): for one window, up to max_active_users \
                     more are admitted; if the key has changed, name the earlier key in token.earlier_secret_files"
                )),
            });
        }
    }

    #[allow(clippy::disallowed_methods)] // Two clocks are compared: this is one of them.
    fn clock(&mut self, seconds: u64, micros: u64) {
        let theirs = Duration::from_secs(seconds) + Duration::from_micros(micros);
        let ours = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let apart = ours.abs_diff(theirs);
        let said = format!("its clock and this machine's are {:.3} s apart", apart.as_secs_f64());
        self.findings.push(if apart <= CLOCK {
            Finding::Well(said)
        } else {
            Finding::Warning(format!(
                "{said}: the fleet uses the clock of Redis, but logs and the expiry of tokens do not"
            ))
        });
    }

    fn info(&mut self, info: &InfoDict) {
        let text = |key: &str| info.get::<String>(key).unwrap_or_default();
        let replicas = match text("connected_slaves").as_str() {
            "0" => "without replicas".to_owned(),
            "1" => "with 1 replica".to_owned(),
            replicas => format!("with {replicas} replicas"),
        };
        self.findings.push(match text("role").as_str() {
            "slave" => Finding::Error("it is a replica, which refuses writes: use the master instead".into()),
            _ => Finding::Well(format!("{}, a master {replicas}", engine(info))),
        });
        let (policy, most) = (text("maxmemory_policy"), info.get::<u64>("maxmemory").unwrap_or_default());
        self.findings.push(match (policy.as_str(), most) {
            (_, 0) => Finding::Well("no memory limit".into()),
            ("noeviction", most) => {
                Finding::Well(format!("at most {} MB of memory, and no key is evicted", most / 1_000_000))
            }
            (policy, most) => Finding::Warning(format!(
                "when {} MB are full it evicts keys ({policy}), filters of minutes among them; the servers then write \
                 them again. maxmemory-policy noeviction prevents that",
                most / 1_000_000
            )),
        });
    }
}

/// Returns the engine and its version. Others say which version of Redis they resemble, too.
fn engine(info: &InfoDict) -> String {
    let version = |key| info.get::<String>(key);
    let redis = version("redis_version").unwrap_or_default();
    let others = [("valkey_version", "Valkey"), ("dragonfly_version", "Dragonfly")];
    let other = others.into_iter().find_map(|(key, name)| Some(format!("{name} {}", version(key)?)));
    other.map_or_else(|| format!("version {redis}"), |other| format!("{other}, which speaks as Redis {redis}"))
}

/// Reads the newest value of another generation. Returns the key that fits: `None` for the current one, or the index of
/// an earlier one. The error is the reason why the value cannot be read.
#[allow(clippy::disallowed_methods)] // The clock only says which minutes to ask for.
async fn read_beside(store: &RedisStore, settings: &Settings, generation: u64) -> Result<Option<usize>, String> {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let now = Timestamp::from_micros(u64::try_from(now.as_micros()).unwrap_or_default());
    let newest = Slot::at(now, settings.slot_length).plus(1);
    let slots: Vec<_> = (0..settings.slots as u64 + 2).map(|age| newest.minus(age)).collect();
    let identity = Identity {
        instance_id: "validate".into(),
        node: "validate".into(),
        generation: settings.generation,
        filter_bytes: settings.shape.bytes(),
        alive_for: settings.alive_for(),
        keep_for: Duration::from_secs(60),
    };
    let codec = Codec::new(settings.shape, settings.generation, &settings.key)
        .with_earlier_keys(&settings.earlier_keys)
        .in_namespace(store.namespace());
    let ask = async |request| store.exchange(&identity, request, PATIENCE).await.map_err(|error| error.to_string());
    let Reply::LookedBeside(looked) = ask(Request::LookBeside { generation, slots: slots.clone(), names: 0 }).await?
    else {
        return Err("the answer does not match the request".into());
    };
    let mut found = slots.into_iter().zip(looked.minutes).filter_map(|(slot, entry)| Some((slot, entry?.bytes)));
    let (slot, bytes) = found.next().ok_or("none of their minutes is stored")?;
    if bytes > codec.most_bytes_beside() {
        return Err(format!("their filters of {bytes} bytes are too large"));
    }
    let Reply::Fetched(stored) = ask(Request::FetchBeside { generation, slots: vec![slot] }).await? else {
        return Err("the answer does not match the request".into());
    };
    let value = stored.first().ok_or("none of their minutes is stored")?;
    let decoded =
        codec.decode_beside(generation, slot, &value.version.0, &value.value).map_err(|error| error.to_string())?;
    Ok(decoded.1)
}

/// Runs the commands of a round on a key of its own. The key is deleted at once, or expires within a second if a
/// command is refused.
static WRITE: std::sync::LazyLock<redis::Script> = std::sync::LazyLock::new(|| {
    redis::Script::new(
        "redis.call('DEL', KEYS[1]) redis.call('PEXPIRE', KEYS[1], 1000) redis.call('HSET', KEYS[1], 'ts', '1', \
         'value', '1') redis.call('PEXPIRE', KEYS[1], 1000) redis.call('HMGET', KEYS[1], 'ts', 'value') \
         redis.call('HGET', KEYS[1], 'ts') redis.call('HSTRLEN', KEYS[1], 'ts') redis.call('TYPE', KEYS[1]) \
         redis.call('HLEN', KEYS[1]) redis.call('HGETALL', KEYS[1]) redis.call('HDEL', KEYS[1], 'ts') \
         redis.call('HINCRBY', KEYS[1], 'count', 1) redis.call('HKEYS', KEYS[1]) \
         redis.call('DEL', KEYS[1]) redis.call('SET', KEYS[1], 'value', 'PX', 1000) redis.call('RENAME', KEYS[1], \
         KEYS[1]) redis.call('MGET', KEYS[1]) redis.call('GET', KEYS[1]) redis.call('GETRANGE', KEYS[1], 0, 1) \
         redis.call('STRLEN', KEYS[1]) redis.call('APPEND', KEYS[1], 'a') redis.call('DEL', KEYS[1]) \
         redis.call('ZADD', KEYS[1], 1, 'a') redis.call('PEXPIRE', KEYS[1], 1000) \
         redis.call('ZCOUNT', KEYS[1], 0, 1) redis.call('ZSCORE', KEYS[1], 'a') redis.call('PTTL', KEYS[1]) \
         redis.call('ZRANGE', KEYS[1], 0, 1) \
         redis.call('ZREVRANGE', KEYS[1], 0, 1) redis.call('ZREVRANGEBYSCORE', KEYS[1], 1, 0) redis.call('ZREM', \
         KEYS[1], 'b') redis.call('ZREMRANGEBYSCORE', KEYS[1], 0, 1) redis.call('DEL', KEYS[1]) \
         return redis.call('TIME')",
    )
});

impl fmt::Display for RedisFindings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.findings.iter().try_for_each(|finding| match finding {
            Finding::Well(said) => writeln!(f, "  ok       {said}"),
            Finding::Warning(said) => writeln!(f, "  warning  {said}"),
            Finding::Error(said) => writeln!(f, "  error    {said}"),
        })
    }
}
