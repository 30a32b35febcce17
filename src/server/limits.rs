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

/// Opens the stores that limits name, and makes the limiters. A database that does not answer now may do so later: until
/// then `on_store_error` answers.
///
/// # Errors
/// [`ConfigError`] for a limit that makes no sense.
pub(super) async fn open(config: &Config, headcount: &Headcount) -> Result<CheckLimits, ConfigError> {
    let stores = Stores::open(config).await?;
    let mut limits = CheckLimits { newcomers: Limits::default(), all: Limits::default() };
    for limit in &config.limit {
        let list = match limit.applies_to {
            AppliesTo::All => &mut limits.all,
            AppliesTo::Newcomers => &mut limits.newcomers,
        };
        list.add(stores.limit(limit).await?, headcount);
    }
    Ok(limits)
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
    async fn open(config: &Config) -> Result<Self, ConfigError> {
        let mut stores = Self::default();
        let needs = |store| config.limit.iter().any(|limit| limit.store == store);
        if let (true, Some(redis)) = (needs(LimitStore::Redis), &config.redis) {
            stores.redis = Some((RedisConnection::configured(redis)?, redis.namespace.clone()));
        }
        if let (true, Some(_database)) = (needs(LimitStore::Postgres), &config.postgres) {
            #[cfg(feature = "postgres")]
            {
                let store = crate::limit::Postgres::open(_database.url.expose());
                let store = store.map_err(|error| database("postgres.url", &error))?;
                if let Err(error) = store.install().await {
                    tracing::error!(%error, "the database of [postgres] is not ready; on_store_error answers");
                }
                stores.postgres = Some(store);
            }
            #[cfg(not(feature = "postgres"))]
            return Err(ConfigError::Feature { key: "postgres.url", feature: "postgres" });
        }
        if let (true, Some(_database)) = (needs(LimitStore::Mysql), &config.mysql) {
            #[cfg(feature = "mysql")]
            {
                let store = crate::limit::Mysql::open(_database.url.expose());
                let store = store.map_err(|error| database("mysql.url", &error))?;
                if let Err(error) = store.install().await {
                    tracing::error!(%error, "the database of [mysql] is not ready; on_store_error answers");
                }
                stores.mysql = Some(store);
            }
            #[cfg(not(feature = "mysql"))]
            return Err(ConfigError::Feature { key: "mysql.url", feature: "mysql" });
        }
        Ok(stores)
    }

    async fn limit(&self, limit: &config::Limit) -> Result<Limit, ConfigError> {
        let no_policy = |error: &PolicyError| ConfigError::Limit { name: limit.name.clone(), why: error.to_string() };
        let policy = policy(limit).map_err(|error| no_policy(&error))?;
        let here = || Memory::new(policy.clone()).map_err(|error| no_policy(&error));
        let limiter = Limiter::new(&limit.name, self.store(limit, &policy).await?).shadow(limit.shadow);
        let limiter = limiter.on_store_error(match limit.on_store_error {
            config::OnStoreError::Allow => OnStoreError::Allow,
            config::OnStoreError::Deny => OnStoreError::Deny,
            config::OnStoreError::Local => OnStoreError::Local(here()?),
        });
        let mut applied = Limit::new(limiter, limit.key.clone()).period(limit.rate.time);
        if !limit.routes.is_empty() {
            applied = applied.routes(&limit.routes)?;
        }
        Ok(match limit.max_wait {
            Some(max_wait) => applied.max_wait(max_wait),
            None => applied,
        })
    }

    async fn store(&self, limit: &config::Limit, policy: &Policy) -> Result<Store, ConfigError> {
        let refused = |why: String| ConfigError::Limit { name: limit.name.clone(), why };
        match limit.store {
            LimitStore::Memory => {}
            LimitStore::Redis => {
                if let Some((connection, namespace)) = &self.redis {
                    let redis = Redis::builder(connection, &limit.name, policy.clone()).namespace(namespace).build();
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
                    let rate = u32::try_from(limit.rate.permits).unwrap_or(u32::MAX);
                    match store.set_zone(zone, rate, limit.rate.time).await {
                        Ok(()) => {}
                        Err(error @ crate::limit::SqlError::Zone { .. }) => return Err(refused(error.to_string())),
                        Err(error) => {
                            tracing::error!(limit = limit.name, %error, "its zone could not be set; it is as it was");
                        }
                    }
                    return Ok(store.velocity(zone).into());
                }
            }
        }
        Memory::new(policy.clone()).map(Store::from).map_err(|error| refused(error.to_string()))
    }
}

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
