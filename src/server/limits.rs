//! The limiters of `[[limit]]`, in their stores.

#[cfg(any(feature = "postgres", feature = "mysql"))]
use super::purge::{self, Batch, keep_purging};
use crate::config::{self, Algorithm, AppliesTo, Config, ConfigError, LimitStore};
use crate::headcount::Headcount;
#[cfg(any(feature = "postgres", feature = "mysql"))]
use crate::headcount::LimitDatabase;
use crate::layer::{Limit, RequestLimits};
use crate::limit::{
    Limiter, Memory, OnStoreError, Policy, PolicyError, Rate, Redis, Store, fixed_window, guava_warming_up,
    leaky_bucket, leaky_queue, nginx, sliding_counter, sliding_log, token_bucket, velocity,
};
use crate::redis_link::RedisConnection;
use std::time::Duration;

/// Opens the stores of the configured limits and makes the limiters. A background task for each database installs its
/// schema, with retries until the database answers; until then `on_store_error` decides. Then the task purges the
/// database.
///
/// # Errors
/// [`ConfigError`] if a limit is invalid.
pub(super) fn open(config: &Config, headcount: &Headcount) -> Result<RequestLimits, ConfigError> {
    let stores = Stores::open(config)?;
    let mut limits = RequestLimits::default();
    for limit in &config.limit {
        for warning in limit.warnings(&config.server.trusted_proxies) {
            tracing::warn!(limit = limit.name, "{warning}");
        }
        let limiter = stores.limit(limit)?;
        match limit.applies_to {
            AppliesTo::All => limits.requests.add(limiter, headcount),
            AppliesTo::Newcomers => limits.newcomers.add(limiter, headcount),
            AppliesTo::Refused => limits.refusals.add(limiter, headcount),
        }
    }
    stores.install(config, headcount)?;
    Ok(limits)
}

/// Makes every limiter like [`open`], without connecting to anything.
///
/// # Errors
/// [`ConfigError`] if a limit is invalid.
pub(super) fn check(config: &Config) -> Result<(), ConfigError> {
    let stores = Stores::open(config)?;
    config.limit.iter().try_for_each(|limit| stores.limit(limit).map(drop))
}

/// The stores; each exists if a limit needs it.
#[derive(Default)]
struct Stores {
    redis: Option<(RedisConnection, String)>,
    #[cfg(feature = "postgres")]
    postgres: Option<crate::limit::Postgres>,
    #[cfg(feature = "mysql")]
    mysql: Option<crate::limit::Mysql>,
}

impl Stores {
    fn open(config: &Config) -> Result<Self, ConfigError> {
        let mut stores = Self::default();
        let needs = |store| config.limit.iter().any(|limit| limit.store == store);
        // All limits of a database share a pool. The database itself ends a statement after the longest of their time
        // limits.
        #[cfg(any(feature = "postgres", feature = "mysql"))]
        let within = |store| {
            let limits = config.limit.iter().filter(|limit| limit.store == store);
            limits.map(|limit| limit.within).max().unwrap_or_default()
        };
        if let (true, Some(redis)) = (needs(LimitStore::Redis), &config.redis) {
            stores.redis = Some((RedisConnection::configured(redis)?, config.namespace()));
        }
        if let (true, Some(_database)) = (needs(LimitStore::Postgres), &config.postgres) {
            #[cfg(feature = "postgres")]
            {
                stores.postgres = Some(open_postgres(_database, within(LimitStore::Postgres), CONNECTIONS)?);
            }
            #[cfg(not(feature = "postgres"))]
            return Err(ConfigError::Feature { key: "postgres.url", feature: "postgres" });
        }
        if let (true, Some(_database)) = (needs(LimitStore::Mysql), &config.mysql) {
            #[cfg(feature = "mysql")]
            {
                stores.mysql = Some(open_mysql(_database, within(LimitStore::Mysql), CONNECTIONS)?);
            }
            #[cfg(not(feature = "mysql"))]
            return Err(ConfigError::Feature { key: "mysql.url", feature: "mysql" });
        }
        Ok(stores)
    }

    /// Spawns a task for each database. It creates missing tables and functions, sets the zones (the limits in MySQL),
    /// and then purges.
    fn install(&self, config: &Config, headcount: &Headcount) -> Result<(), ConfigError> {
        #[cfg(feature = "postgres")]
        if let (Some(store), Some(settings)) = (self.postgres.clone(), &config.postgres) {
            let (purged, headcount) = (open_postgres(settings, purge::TIME_LIMIT, 1)?, headcount.clone());
            let install = move || {
                let store = store.clone();
                async move { store.install().await }
            };
            let purge = move || {
                let purged = purged.clone();
                async move {
                    let some = purged.purge_some(u32::MAX).await?;
                    // `None` means that another server is purging.
                    let batch = some.map(|some| Batch { rows: some.forgotten, is_full: !some.was_last });
                    Ok(batch.unwrap_or(Batch { rows: 0, is_full: false }))
                }
            };
            tokio::spawn(async move {
                until_done(LimitDatabase::Postgres, install).await;
                keep_purging(headcount, LimitDatabase::Postgres, purge).await;
            });
        }
        #[cfg(feature = "mysql")]
        if let (Some(store), Some(settings)) = (self.mysql.clone(), &config.mysql) {
            let (purged, headcount) = (open_mysql(settings, purge::TIME_LIMIT, 1)?, headcount.clone());
            let in_mysql = config.limit.iter().filter(|limit| limit.store == LimitStore::Mysql);
            let zones: Vec<_> =
                in_mysql.filter_map(|limit| Some((limit.zone?, limit.rate, limit.name.clone()))).collect();
            let install = move || {
                let (store, zones) = (store.clone(), zones.clone());
                async move {
                    store.install().await?;
                    for (zone, rate, name) in zones {
                        let permits = u32::try_from(rate.permits).unwrap_or(u32::MAX);
                        store.set_zone(zone, permits, rate.time).await?;
                        store.describe_zone(zone, &name).await?;
                    }
                    Ok(())
                }
            };
            let purge = move || {
                let purged = purged.clone();
                async move {
                    let rows = purged.purge(Duration::ZERO, PURGED_AT_ONCE).await?;
                    Ok(Batch { rows, is_full: rows == u64::from(PURGED_AT_ONCE) })
                }
            };
            tokio::spawn(async move {
                until_done(LimitDatabase::Mysql, install).await;
                keep_purging(headcount, LimitDatabase::Mysql, purge).await;
            });
        }
        #[cfg(not(any(feature = "mysql", feature = "postgres")))]
        let _ = (config, headcount);
        Ok(())
    }

    fn limit(&self, limit: &config::Limit) -> Result<Limit, ConfigError> {
        let no_policy = |error: &PolicyError| ConfigError::Limit { name: limit.name.clone(), why: error.to_string() };
        let policy = policy(limit).map_err(|error| no_policy(&error))?;
        let here = || in_memory(limit, &policy).map_err(|error| no_policy(&error));
        let limiter = Limiter::new(&limit.name, self.store(limit, &policy)?).shadow(limit.shadow);
        let limiter = limiter.on_store_error(match limit.on_store_error {
            config::OnStoreError::Allow => OnStoreError::Allow,
            config::OnStoreError::Deny => OnStoreError::Deny,
            // A limit in memory needs no local substitute.
            config::OnStoreError::Local if limit.store == LimitStore::Memory => OnStoreError::Allow,
            config::OnStoreError::Local => OnStoreError::Local(here()?),
        });
        let applied = Limit::new(limiter, limit.key.clone()).on_missing_key(limit.on_missing_key);
        let mut applied = applied.period(limit.rate.time);
        if !limit.routes.is_empty() {
            applied = applied.routes(&limit.routes)?;
        }
        Ok(applied.max_wait(longest_wait(limit, &policy)))
    }

    fn store(&self, limit: &config::Limit, policy: &Policy) -> Result<Store, ConfigError> {
        let refused = |why: String| ConfigError::Limit { name: limit.name.clone(), why };
        match limit.store {
            LimitStore::Memory => {}
            LimitStore::Redis => {
                if let Some((connection, namespace)) = &self.redis {
                    let redis = Redis::builder(connection, &limit.name, policy.clone()).namespace(namespace);
                    let redis = redis.time_limit(limit.within).shards(limit.shards).build();
                    return redis.map(Store::from).map_err(|error| refused(error.to_string()));
                }
            }
            LimitStore::Postgres =>
            {
                #[cfg(feature = "postgres")]
                if let (Some(store), Policy::Gcra(bucket)) = (&self.postgres, policy) {
                    let store = store.with_time_limit(limit.within);
                    let bucket = store.bucket(bucket.clone()).and_then(|bucket| bucket.named(&limit.name));
                    return bucket.map(Store::from).map_err(|error| refused(error.to_string()));
                }
            }
            LimitStore::Mysql =>
            {
                #[cfg(feature = "mysql")]
                if let (Some(store), Some(zone)) = (&self.mysql, limit.zone) {
                    return Ok(store.with_time_limit(limit.within).velocity(zone).into());
                }
            }
        }
        in_memory(limit, policy).map(Store::from).map_err(|error| refused(error.to_string()))
    }
}

fn in_memory(limit: &config::Limit, policy: &Policy) -> Result<Memory, PolicyError> {
    Memory::builder(policy.clone()).max_keys(usize::try_from(limit.max_keys).unwrap_or(usize::MAX)).build()
}

/// Calls `install` until it succeeds. Logs the first failure, and the success.
#[cfg(any(feature = "postgres", feature = "mysql"))]
async fn until_done<F>(section: LimitDatabase, install: impl Fn() -> F)
where
    F: Future<Output = Result<(), crate::limit::SqlError>>,
{
    let mut was_told = false;
    while let Err(error) = install().await {
        if !was_told {
            tracing::error!(%error, "the database of [{section}] is not ready: on_store_error answers until it is");
        }
        was_told = true;
        tokio::time::sleep(INSTALL_AGAIN).await;
    }
    tracing::info!("the database of [{section}] is ready");
}

/// The pause between attempts to install a schema.
#[cfg(any(feature = "postgres", feature = "mysql"))]
const INSTALL_AGAIN: Duration = Duration::from_secs(2);

/// The number of connections to a database for requests. One more is used for purging.
#[cfg(any(feature = "postgres", feature = "mysql"))]
const CONNECTIONS: usize = 10;

/// The largest number of rows, one for each recorded attempt, that one batch of the purge deletes.
#[cfg(feature = "mysql")]
const PURGED_AT_ONCE: u32 = 500;

#[cfg(feature = "postgres")]
fn open_postgres(
    settings: &config::Database,
    within: Duration,
    connections: usize,
) -> Result<crate::limit::Postgres, ConfigError> {
    let store = crate::limit::Postgres::builder(settings.url.expose()).within(within).max_connections(connections);
    store.open().map_err(|error| database("postgres.url", &error))
}

#[cfg(feature = "mysql")]
fn open_mysql(
    settings: &config::Database,
    within: Duration,
    connections: usize,
) -> Result<crate::limit::Mysql, ConfigError> {
    let store = crate::limit::Mysql::builder(settings.url.expose()).within(within).max_connections(connections);
    store.open().map_err(|error| database("mysql.url", &error))
}

#[cfg(any(feature = "postgres", feature = "mysql"))]
fn database(key: &'static str, error: &crate::limit::SqlError) -> ConfigError {
    ConfigError::Value { key, found: error.to_string(), expected: "see the section's url in the README" }
}

/// Returns how long a request may wait for a limit. Some algorithms bound the wait themselves, by their burst.
fn longest_wait(limit: &config::Limit, policy: &Policy) -> Duration {
    match limit.algorithm {
        Algorithm::LeakyQueue | Algorithm::Nginx => limit.max_wait.min(Duration::from_nanos(policy.max_wait())),
        _ => limit.max_wait,
    }
}

/// Makes the policy of a limit.
fn policy(limit: &config::Limit) -> Result<Policy, PolicyError> {
    let config::Quota { permits, time } = limit.rate;
    let rate = Rate::new(permits, time);
    let burst = limit.burst.unwrap_or(permits);
    Ok(match limit.algorithm {
        Algorithm::TokenBucket => token_bucket(rate, burst).into(),
        Algorithm::LeakyBucket => leaky_bucket(rate, burst).into(),
        Algorithm::LeakyQueue => leaky_queue(rate, burst)?.into(),
        Algorithm::SlidingLog => sliding_log(permits, time).into(),
        Algorithm::SlidingCounter => sliding_counter(permits, time).into(),
        Algorithm::FixedWindow => fixed_window(permits, time).into(),
        Algorithm::WarmUp => guava_warming_up(rate, limit.warm_up).into(),
        Algorithm::Velocity => velocity(permits, time).into(),
        Algorithm::Nginx => nginx(rate).burst(limit.burst.unwrap_or(0)).try_into()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Otherwise a limit that denies would wait until the proxy admits.
    #[cfg(feature = "postgres")]
    #[tokio::test]
    async fn each_limit_in_a_database_has_its_own_time_limit() {
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("postgres://limits@{}/app", silent.local_addr().unwrap());
        let in_postgres = |name: &str, within| config::Limit {
            name: name.into(),
            within,
            store: LimitStore::Postgres,
            on_store_error: config::OnStoreError::Deny,
            ..config::Limit::default()
        };
        let limit =
            vec![in_postgres("pay", Duration::from_millis(50)), in_postgres("report", Duration::from_secs(600))];
        let postgres = Some(config::Database { url: config::Secret::new(url) });
        let config = Config { limit, postgres, ..Config::default() };
        let limit = Stores::open(&config).unwrap().limit(&config.limit[0]).unwrap();
        let answer = tokio::time::timeout(Duration::from_secs(60), limit.limiter().ask("k", crate::limit::Ask::ONE));
        assert!(!answer.await.expect("an answer in time").unwrap().is_allowed());
    }

    #[test]
    fn the_burst_of_a_queue_bounds_its_wait() {
        for (algorithm, burst, max_wait, expected) in [
            (Algorithm::Nginx, Some(2), 10, 2),
            (Algorithm::Nginx, None, 10, 0),
            (Algorithm::Nginx, Some(2), 1, 1),
            (Algorithm::LeakyQueue, Some(3), 10, 3),
            (Algorithm::TokenBucket, Some(3), 10, 10),
        ] {
            let (rate, max_wait) = ("1/s".parse().unwrap(), Duration::from_secs(max_wait));
            let limit = config::Limit { algorithm, burst, rate, max_wait, ..config::Limit::default() };
            let found = longest_wait(&limit, &policy(&limit).unwrap());
            assert_eq!(found, Duration::from_secs(expected), "{algorithm:?} {burst:?} {max_wait:?}");
        }
    }
}
