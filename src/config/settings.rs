//! A checked configuration.

#[cfg(feature = "jwt")]
use super::Unverified;
use super::window::MIN_CAPACITY;
use super::{
    AppliesTo, Carrier, Config, ConfigError, Enforcement, Limit, LineClasses, MissingToken, NewsEvery, Opening,
    RetryAfter,
};
#[cfg(feature = "tower")]
use super::{Routes, TrustedProxies};
use crate::bloom::Shape;
use crate::fingerprint::FingerprintKey;
use crate::line::{Openings, Tickets};
use crate::pass::Passes;
use crate::room::RoomSettings;
#[cfg(feature = "tower")]
use crate::token_source::{OnConflict, TokenSource};
use std::time::Duration;

/// The version of the format of stored values and of the protocol between servers. It is part of the generation.
const FORMAT: u64 = 6;

/// A checked configuration.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) room: RoomSettings,
    pub(crate) enforcement: Enforcement,
    pub(crate) retry_after: RetryAfter,
    pub(crate) missing_token: MissingToken,
    #[cfg(feature = "tower")]
    pub(crate) routes: Routes,
    pub(crate) slot_length: Duration,
    /// The number of full minutes in the window, without the current one.
    pub(crate) slots: usize,
    pub(crate) capacity: u64,
    pub(crate) shape: Shape,
    #[cfg(feature = "tower")]
    pub(crate) sources: Vec<TokenSource>,
    /// What to do if the sources hold different tokens.
    #[cfg(feature = "tower")]
    pub(crate) on_conflict: OnConflict,
    /// The verifier of tokens, and the treatment of a token that it cannot verify.
    #[cfg(feature = "jwt")]
    pub(crate) jwt: Option<(std::sync::Arc<crate::jwt::Verifier>, Unverified)>,
    #[cfg(feature = "tower")]
    pub(crate) trusted_proxies: TrustedProxies,
    pub(crate) key: FingerprintKey,
    pub(crate) earlier_keys: Vec<FingerprintKey>,
    pub(crate) pass_issuer: Option<Passes>,
    /// How passes are sent.
    #[cfg(feature = "tower")]
    pub(crate) pass: Option<super::Pass>,
    /// The issuer of tickets, and how they are sent, if newcomers wait in a line.
    pub(crate) line: Option<(Tickets, Carrier)>,
    /// The classes of newcomers who wait in the line. There is at least one.
    pub(crate) line_classes: LineClasses,
    pub(crate) openings: Openings,
    #[cfg(feature = "tower")]
    pub(crate) waiting_page: std::sync::Arc<crate::waiting_page::WaitingPage>,
    /// A hash of everything that servers must share to merge their filters: format, shape, window and key.
    pub(crate) generation: u64,
    /// The name of this server.
    pub(crate) node: String,
    pub(crate) sync_every: Duration,
    pub(crate) news_every: NewsEvery,
    pub(crate) refusal_delay: Option<Duration>,
    /// The most refusals that wait at the same time.
    pub(crate) max_delayed: u64,
}

impl Settings {
    /// Returns how long a server counts as alive after its last look.
    pub(crate) fn alive_for(&self) -> Duration {
        (5 * self.sync_every).max(Duration::from_secs(3))
    }

    /// Returns how long a server that is silent keeps its seats. It is long enough for rounds that succeed to publish
    /// newcomers whom the ledger has not been told.
    pub(crate) fn lease_lasts_for(&self) -> Duration {
        (5 * self.sync_every).max(Duration::from_millis(2500))
    }

    /// Returns how long the store keeps what servers write: a window, and two minutes in case clocks differ.
    pub(crate) fn keep_for(&self) -> Duration {
        (self.slot_length * self.slots as u32 + 2 * self.slot_length).max(Duration::from_secs(60))
    }

    /// Returns a warning if this X is above half of the capacity. False positives rise steeply there.
    pub(crate) fn capacity_warning(&self, max_active_users: u64) -> Option<String> {
        (max_active_users > self.capacity / 2).then(|| {
            let ratio = self.shape.false_positive_ratio(max_active_users as f64);
            format!(
                "max_active_users = {max_active_users} is above half of window.capacity ({}): with so many active \
                 users, {:.2} of 100,000 newcomers are taken for active ones (false positive ratio {ratio:.1e}); set \
                 window.capacity to twice max_active_users",
                self.capacity,
                ratio * 100_000.0
            )
        })
    }

    /// Returns whether some keys for the verification of tokens have not been fetched yet.
    pub(crate) fn waits_for_jwt_keys(&self) -> bool {
        #[cfg(feature = "jwt")]
        if let Some((verifier, _)) = &self.jwt {
            return !verifier.has_all_keys();
        }
        false
    }
}

impl Config {
    /// Checks the values, and computes what follows from them. `key` is the fingerprint key.
    pub(crate) fn check(&self, key: FingerprintKey) -> Result<Settings, ConfigError> {
        let max_active_users = self.max_active_users()?;
        let (slot_length, shape, capacity) = self.window.check(max_active_users)?;
        let fleet = self.fleet.clone().unwrap_or_default();
        let sync_every = fleet.check(slot_length)?;
        let news_every = fleet.check_news(sync_every)?;
        let slots = self.window.slots as usize;
        let earlier_keys = self.token.earlier_keys()?;
        let has_passes = self.pass.is_some();
        let pass_issuer = has_passes.then(|| Passes::new(&key, &earlier_keys, &fleet.namespace, slot_length, slots));
        let tickets = || Tickets::new(&key, &earlier_keys, &fleet.namespace);
        let line = self.line.enabled.then(|| (tickets(), self.line.carry.clone()));
        let line_classes = LineClasses::check(self)?;
        let openings = Opening::check_all(self, &key, &fleet.namespace)?;
        Limit::check_all(self)?;
        #[cfg(feature = "jwt")]
        let jwt = match &self.token.jwt {
            Some(jwt) => Some((std::sync::Arc::new(jwt.verifier(line_classes.claims())?), jwt.unverified)),
            None => None,
        };
        #[cfg(not(feature = "jwt"))]
        if let Some(jwt) = &self.token.jwt {
            match jwt.verifier()? {}
        }
        let sources = self.token.check()?;
        #[cfg(not(feature = "tower"))]
        drop(sources);
        let generation = [
            FORMAT,
            u64::from(shape.lines()),
            u64::try_from(slot_length.as_micros()).unwrap_or(u64::MAX),
            u64::from(self.window.slots),
            key.id(),
        ];
        Ok(Settings {
            room: self.admission.check(max_active_users, fleet.on_outage, fleet.expected_nodes)?,
            enforcement: if self.has_only_limits() { Enforcement::Off } else { self.admission.enforcement },
            retry_after: self.admission.retry_after,
            missing_token: self.admission.missing_token,
            #[cfg(feature = "tower")]
            routes: Routes::parse(&self.admission.exempt_paths, &self.route)?,
            slot_length,
            slots,
            capacity,
            shape,
            #[cfg(feature = "tower")]
            sources,
            #[cfg(feature = "tower")]
            on_conflict: self.token.on_conflict,
            #[cfg(feature = "jwt")]
            jwt,
            #[cfg(feature = "tower")]
            trusted_proxies: TrustedProxies::parse(&self.server.trusted_proxies)?,
            generation: xxhash_rust::xxh3::xxh3_64(generation.map(u64::to_le_bytes).as_flattened()),
            key,
            earlier_keys,
            pass_issuer,
            line,
            line_classes,
            openings,
            #[cfg(feature = "tower")]
            waiting_page: std::sync::Arc::new(self.line.page.check()?),
            #[cfg(feature = "tower")]
            pass: self.pass.clone(),
            node: fleet.node_name(),
            sync_every,
            news_every,
            refusal_delay: self.admission.refusal_delay,
            max_delayed: self.admission.max_delayed_or_default(),
        })
    }

    /// Returns whether this server shares its users with others.
    pub(crate) fn joins_fleet(&self) -> bool {
        self.fleet.is_some() || self.redis.is_some()
    }

    /// Returns the namespace in the keys of Redis: `default` without `[fleet]`.
    #[cfg(feature = "redis")]
    pub(crate) fn namespace(&self) -> String {
        self.fleet.clone().unwrap_or_default().namespace
    }

    /// Returns whether headcount is only a rate limiter: X is not set, and a `[[limit]]` has `applies_to = "all"`.
    /// Then every user is admitted.
    pub(crate) fn has_only_limits(&self) -> bool {
        let limits_all = |limit: &Limit| limit.applies_to == AppliesTo::All;
        self.admission.max_active_users.is_none() && self.limit.iter().any(limits_all)
    }

    /// Returns X. A configuration that has only limits gets a placeholder, which is not enforced.
    fn max_active_users(&self) -> Result<u64, ConfigError> {
        if self.has_only_limits() { Ok(MIN_CAPACITY / 2) } else { self.admission.checked_max_active_users() }
    }
}
