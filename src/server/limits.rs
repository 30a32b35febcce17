//! The limiters of `[[limit]]`, in their stores.

use crate::config::{self, Algorithm, AppliesTo, Config, ConfigError, LimitStore};
use crate::headcount::Headcount;
use crate::layer::{Limit, Limits};
use crate::limit::{
    Limiter, Memory, OnStoreError, Policy, PolicyError, Rate, Redis, Store, fixed_window, guava_warming_up,
    leaky_bucket, leaky_queue, nginx, sliding_counter, sliding_log, token_bucket, velocity,
};
use crate::redis_link::RedisConnection;

/// What is asked of a request.
pub(super) struct CheckLimits {
    /// Before a newcomer takes a seat.
    pub(super) newcomers: Limits,
    /// When it is admitted.
    pub(super) all: Limits,
}

/// Opens the stores that limits name, and makes the limiters. Schemas are installed in the background, again and again until
/// it is done: a database that does not answer now may do so later, and until then `on_store_error` answers.
///
/// # Errors
/// [`ConfigError`] for a limit that makes no sense.
pub(super) fn open(config: &Config, headcount: &Headcount) -> Result<CheckLimits, ConfigError> {
    let stores = Stores::open(config)?;
    let mut limits = CheckLimits { newcomers: Limits::default(), all: Limits::default() };
    for limit in &config.limit {
        for doubt in limit.doubts(&config.server.trusted_proxies) {
            tracing::warn!(limit = limit.name, "{doubt}");
        }
        let list = match limit.applies_to {
            AppliesTo::All => &mut limits.all,
            AppliesTo::Newcomers => &mut limits.newcomers,
        };
        list.add(stores.limit(limit)?, headcount);
    }
    stores.install(config);
    Ok(limits)
}

/// Makes every limiter as [`open`] does, and connects to nothing.
///
/// # Errors
/// [`ConfigError`] for a limit that makes no sense.
pub(super) fn check(config: &Config) -> Result<(), ConfigError> {
    let stores = Stores::open(config)?;
    config.limit.iter().try_for_each(|limit| stores.limit(limit).map(drop))
}

/// Each is there if a limit needs it.
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
        // One pool for all limits of a database: the most patient of them says how long.
        #[cfg(any(feature = "postgres", feature = "mysql"))]
        let within = |store| {
            let limits = config.limit.iter().filter(|limit| limit.store == store);
            limits.map(|limit| limit.within).max().unwrap_or_default()
        };
        if let (true, Some(redis)) = (needs(LimitStore::Redis), &config.redis) {
            stores.redis = Some((RedisConnection::configured(redis)?, redis.namespace.clone()));
        }
        if let (true, Some(_database)) = (needs(LimitStore::Postgres), &config.postgres) {
            #[cfg(feature = "postgres")]
            {
                let store =
                    crate::limit::Postgres::builder(_database.url.expose()).within(within(LimitStore::Postgres)).open();
                stores.postgres = Some(store.map_err(|error| database("postgres.url", &error))?);
            }
            #[cfg(not(feature = "postgres"))]
            return Err(ConfigError::Feature { key: "postgres.url", feature: "postgres" });
        }
        if let (true, Some(_database)) = (needs(LimitStore::Mysql), &config.mysql) {
            #[cfg(feature = "mysql")]
            {
                let store =
                    crate::limit::Mysql::builder(_database.url.expose()).within(within(LimitStore::Mysql)).open();
                stores.mysql = Some(store.map_err(|error| database("mysql.url", &error))?);
            }
            #[cfg(not(feature = "mysql"))]
            return Err(ConfigError::Feature { key: "mysql.url", feature: "mysql" });
        }
        Ok(stores)
    }

    /// Creates what is not there, and sets the zones.
    fn install(&self, config: &Config) {
        #[cfg(feature = "postgres")]
        if let Some(store) = self.postgres.clone() {
            tokio::spawn(until_done("postgres", move || {
                let store = store.clone();
                async move { store.install().await }
            }));
        }
        #[cfg(feature = "mysql")]
        if let Some(store) = self.mysql.clone() {
            let in_mysql = config.limit.iter().filter(|limit| limit.store == LimitStore::Mysql);
            let zones: Vec<_> = in_mysql.filter_map(|limit| Some((limit.zone?, limit.rate))).collect();
            tokio::spawn(until_done("mysql", move || {
                let (store, zones) = (store.clone(), zones.clone());
                async move {
                    store.install().await?;
                    for (zone, rate) in zones {
                        let permits = u32::try_from(rate.permits).unwrap_or(u32::MAX);
                        store.set_zone(zone, permits, rate.time).await?;
                    }
                    Ok(())
                }
            }));
        }
        #[cfg(not(feature = "mysql"))]
        let _ = config;
    }

    fn limit(&self, limit: &config::Limit) -> Result<Limit, ConfigError> {
        let no_policy = |error: &PolicyError| ConfigError::Limit { name: limit.name.clone(), why: error.to_string() };
        let policy = policy(limit).map_err(|error| no_policy(&error))?;
        let here = || in_memory(limit, &policy).map_err(|error| no_policy(&error));
        let limiter = Limiter::new(&limit.name, self.store(limit, &policy)?).shadow(limit.shadow);
        let limiter = limiter.on_store_error(match limit.on_store_error {
            config::OnStoreError::Allow => OnStoreError::Allow,
            config::OnStoreError::Deny => OnStoreError::Deny,
            config::OnStoreError::Local => OnStoreError::Local(here()?),
        });
        let mut applied = Limit::new(limiter, limit.key.clone()).period(limit.rate.time);
        if !limit.routes.is_empty() {
            applied = applied.routes(&limit.routes)?;
        }
        Ok(applied.max_wait(limit.max_wait))
    }

    fn store(&self, limit: &config::Limit, policy: &Policy) -> Result<Store, ConfigError> {
        let refused = |why: String| ConfigError::Limit { name: limit.name.clone(), why };
        match limit.store {
            LimitStore::Memory => {}
            LimitStore::Redis => {
                if let Some((connection, namespace)) = &self.redis {
                    let redis = Redis::builder(connection, &limit.name, policy.clone()).namespace(namespace);
                    let redis = redis.time_limit(limit.within).build();
                    return redis.map(Store::from).map_err(|error| refused(error.to_string()));
                }
            }
            LimitStore::Postgres =>
            {
                #[cfg(feature = "postgres")]
                if let (Some(store), Policy::Tat(bucket)) = (&self.postgres, policy) {
                    let bucket = store.bucket(bucket.clone()).and_then(|bucket| bucket.named(&limit.name));
                    return bucket.map(Store::from).map_err(|error| refused(error.to_string()));
                }
            }
            LimitStore::Mysql =>
            {
                #[cfg(feature = "mysql")]
                if let (Some(store), Some(zone)) = (&self.mysql, limit.zone) {
                    return Ok(store.velocity(zone).into());
                }
            }
        }
        in_memory(limit, policy).map(Store::from).map_err(|error| refused(error.to_string()))
    }
}

fn in_memory(limit: &config::Limit, policy: &Policy) -> Result<Memory, PolicyError> {
    Memory::builder(policy.clone()).max_keys(usize::try_from(limit.max_keys).unwrap_or(usize::MAX)).build()
}

/// Tries until it is done, and says once why it is not.
#[cfg(any(feature = "postgres", feature = "mysql"))]
async fn until_done<F>(section: &str, install: impl Fn() -> F)
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

/// How soon a database is asked again.
#[cfg(any(feature = "postgres", feature = "mysql"))]
const INSTALL_AGAIN: std::time::Duration = std::time::Duration::from_secs(2);

#[cfg(any(feature = "postgres", feature = "mysql"))]
fn database(key: &'static str, error: &crate::limit::SqlError) -> ConfigError {
    ConfigError::Value { key, found: error.to_string(), expected: "see the section's url in the README" }
}

/// The limit's arithmetic.
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
