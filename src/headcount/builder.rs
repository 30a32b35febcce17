//! The builder of a controller. It has a method for each configuration key that applies inside a service.

use super::core::{Core, CoreParts, SampledVisits, codec_of};
use super::telemetry::Telemetry;
use super::{Headcount, Lifecycle, RoundFigures, Shared, WaitingRefusals, Worker};
use crate::config::{
    self, Carrier, Config, ConfigError, Enforcement, MissingToken, RetryAfter, Route, RouteClass, Secret, Settings,
};
use crate::fingerprint::{Fingerprint, FingerprintKey, MIN_KEY_BYTES};
use crate::line::OpeningOrder;
use crate::ring::Ring;
use crate::ring::codec::{Codec, Covers};
use crate::room::{FleetLink, OnOutage, Refill, Room, Sharing};
use crate::snapshot::{Loaded, Snapshot, create};
use crate::threads::{Receiver, bounded};
use crate::time::{Clock, FleetClock, Slot, SystemClock, Timestamp};
use crate::token_source::{OnConflict, TokenSource};
use crate::what_if::{CapacitySim, VISITS};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// The refresh channel holds this many entries. At full load, it fills in about 5 ms. While it is full, the thread that
/// decides applies the refresh itself.
const REFRESH_QUEUE: usize = 65_536;

/// Configures a controller. See [`Config`] for the meaning, bounds and default of each value.
///
/// ```
/// use headcount::{Headcount, config::Enforcement};
/// use std::time::Duration;
/// let (headcount, worker) = Headcount::builder()
///     .max_active_users(20_000)
///     .resume_ratio(0.85)
///     .enforcement(Enforcement::Shadow)
///     .window(Duration::from_secs(3600))
///     .build()?;
/// # Ok::<(), headcount::BuildError>(())
/// ```
#[derive(Clone, Default)]
#[must_use]
pub struct Builder {
    config: Config,
    clock: Option<Arc<dyn Clock>>,
    seed: Option<u64>,
    refresh_queue: Option<usize>,
    sharing: Sharing,
}

/// The error of [`Builder::build`] and [`Builder::start`].
///
/// ```
/// use headcount::{BuildError, ConfigError, Headcount};
/// match Headcount::builder().build() {
///     Err(BuildError::Config(ConfigError::MaxActiveUsersMissing)) => {}
///     _ => panic!("X has no default"),
/// }
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// A value is missing or outside its bounds, or a file cannot be read or created.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A background task could not be started.
    #[error("the {what} could not be started: {source}")]
    Start {
        /// The name of the task.
        what: &'static str,
        /// The error of the operating system or runtime.
        source: io::Error,
    },
}

impl From<Config> for Builder {
    fn from(config: Config) -> Self {
        Self { config, ..Self::default() }
    }
}

/// `[admission]`
impl Builder {
    /// Sets X, the largest number of active users.
    pub fn max_active_users(mut self, max_active_users: u64) -> Self {
        self.config.admission.max_active_users = Some(max_active_users);
        self
    }

    /// Sets the most newcomers whom all servers of the fleet together admit in a minute.
    pub fn newcomers_per_minute(mut self, newcomers_per_minute: u64) -> Self {
        self.config.admission.newcomers_per_minute = Some(newcomers_per_minute);
        self
    }

    /// Sets a fraction of X: throttling ends when the active users fall below it.
    pub fn resume_ratio(mut self, resume_ratio: f64) -> Self {
        self.config.admission.resume_ratio = resume_ratio;
        self
    }

    /// Sets what happens to seats that become free while throttling.
    pub fn refill(mut self, refill: Refill) -> Self {
        self.config.admission.refill = refill;
        self
    }

    /// Sets whether rejections are enforced.
    pub fn enforcement(mut self, enforcement: Enforcement) -> Self {
        self.config.admission.enforcement = enforcement;
        self
    }

    /// Sets the bounds of the `Retry-After` time of a rejection: whole seconds, uniformly distributed between the two.
    pub fn retry_after(mut self, min: Duration, max: Duration) -> Self {
        self.config.admission.retry_after = RetryAfter { min, max };
        self
    }

    /// Sets how long a refusal waits, because another server may have admitted this user just now. At most 1 s. With
    /// zero, refusals are sent at once.
    pub fn refusal_delay(mut self, delay: Duration) -> Self {
        self.config.admission.refusal_delay = Some(delay);
        self
    }

    /// Sets how many refusals may wait at a time. Further ones are sent at once, and so are refusals of which more than
    /// 5,000 a second would begin to wait.
    pub fn max_delayed(mut self, refusals: u64) -> Self {
        self.config.admission.max_delayed = Some(refusals);
        self
    }

    /// Sets how requests without a token are treated.
    pub fn missing_token(mut self, missing_token: MissingToken) -> Self {
        self.config.admission.missing_token = missing_token;
        self
    }

    /// Sets the paths that are always admitted: exact, or a prefix that ends in `/*`.
    pub fn exempt_paths(mut self, paths: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.config.admission.exempt_paths = paths.into_iter().map(Into::into).collect();
        self
    }
}

/// `[[route]]`
impl Builder {
    /// Adds a rule: requests to this path (exact, or a prefix that ends in `/*`) have this class. The first rule that
    /// matches applies.
    pub fn route(mut self, path: impl Into<String>, class: RouteClass) -> Self {
        self.config.route.push(Route { path: path.into(), class });
        self
    }
}

/// `[window]`
impl Builder {
    /// Sets the minimum time for which a token is remembered.
    pub fn window(mut self, length: Duration) -> Self {
        self.config.window.length = length;
        self
    }

    /// Sets the number of slots of the window.
    pub fn slots(mut self, slots: u32) -> Self {
        self.config.window.slots = slots;
        self
    }

    /// Sets how many distinct users per window the filters are sized for.
    pub fn capacity(mut self, capacity: u64) -> Self {
        self.config.window.capacity = Some(capacity);
        self
    }

    /// Sets the probability that an unseen token is taken for a seen one when the filters hold `capacity` users.
    pub fn false_positive_rate(mut self, rate: f64) -> Self {
        self.config.window.false_positive_rate = rate;
        self
    }
}

/// `[token]`
impl Builder {
    /// Sets where the token is read from. List only sources by which the service authenticates its users.
    pub fn token_sources(mut self, sources: impl IntoIterator<Item = TokenSource>) -> Self {
        self.config.token.from = sources.into_iter().collect();
        self
    }

    /// Sets how a request is treated if its sources hold different tokens.
    pub fn on_conflict(mut self, on_conflict: OnConflict) -> Self {
        self.config.token.on_conflict = on_conflict;
        self
    }

    /// Sets the fingerprint key, at least 16 bytes. All servers of a fleet share it.
    pub fn secret(mut self, secret: impl Into<String>) -> Self {
        self.config.token.secret = Some(Secret::new(secret));
        self
    }

    /// Sets the file that holds the fingerprint key.
    pub fn secret_file(mut self, file: impl Into<PathBuf>) -> Self {
        self.config.token.secret_file = Some(file.into());
        self
    }

    /// Sets the files of the fleet's earlier fingerprint keys. Users admitted under such a key stay active, and passes
    /// signed with it stay valid.
    pub fn earlier_secret_files(mut self, files: impl IntoIterator<Item = impl Into<PathBuf>>) -> Self {
        self.config.token.earlier_secret_files = files.into_iter().map(Into::into).collect();
        self
    }
}

/// `[token.jwt]`: headcount verifies the tokens. A claim in the token names the user, and all tokens with
/// the same name count as one user. All methods need the feature `jwt`.
impl Builder {
    /// Sets the key files: PEM public keys, JWKs and JWK Sets, and secrets of at least 32 bytes.
    pub fn jwt_keys(mut self, files: impl IntoIterator<Item = impl Into<PathBuf>>) -> Self {
        self.jwt().keys = files.into_iter().map(Into::into).collect();
        self
    }

    /// Sets the URL of a JWK Set. A controller made by [`Builder::start`] fetches the set at the start and every five
    /// minutes.
    pub fn jwks_url(mut self, url: impl Into<String>) -> Self {
        self.jwt().jwks_url = Some(Secret::new(url));
        self
    }

    /// Sets the claim that names the user.
    pub fn jwt_claim(mut self, claim: impl Into<String>) -> Self {
        self.jwt().claim = claim.into();
        self
    }

    /// Sets the issuer (`iss`) whose tokens are accepted.
    pub fn jwt_issuer(mut self, issuer: impl Into<String>) -> Self {
        self.jwt().issuer = Some(issuer.into());
        self
    }

    /// Sets the accepted audiences: a token must name one of them in `aud`.
    pub fn jwt_audience(mut self, audience: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.jwt().audience = audience.into_iter().map(Into::into).collect();
        self
    }

    /// Sets how a request with an unverifiable token is treated.
    pub fn unverified_jwt(mut self, unverified: config::Unverified) -> Self {
        self.jwt().unverified = unverified;
        self
    }

    /// Sets whether a token must have an expiry (`exp`); by default it must.
    pub fn jwt_require_exp(mut self, required: bool) -> Self {
        self.jwt().require_exp = required;
        self
    }

    fn jwt(&mut self) -> &mut config::Jwt {
        self.config.token.jwt.get_or_insert_default()
    }
}

/// `[pass]`
impl Builder {
    /// Sends a signed pass to each active user whom the layer or the check endpoint admits, and sets how it travels.
    pub fn pass_carrier(mut self, carrier: Carrier) -> Self {
        self.pass().carry = carrier;
        self
    }

    /// Sets whether the cookie that carries a pass is `Secure`. By default it is `Secure` only if the request came over
    /// TLS.
    pub fn secure_pass_cookie(mut self, secure: bool) -> Self {
        self.pass().secure = Some(secure);
        self
    }

    fn pass(&mut self) -> &mut config::Pass {
        self.config.pass.get_or_insert_default()
    }
}

/// `[line]`
impl Builder {
    /// Lets newcomers who are refused wait in a line, and sets how their tickets travel.
    pub fn line(mut self, carrier: Carrier) -> Self {
        self.config.line.enabled = true;
        self.config.line.carry = carrier;
        self
    }

    /// Adds a class of newcomers, who get seats in proportion to the weights of the classes. Needs
    /// [`line`](Self::line).
    pub fn line_class(mut self, class: config::LineClass) -> Self {
        self.config.line.class.push(class);
        self
    }

    /// Adds an opening: from `gather` before `at`, no newcomer is admitted, and each gets a place in the line. Then
    /// they are called in this order. Needs [`line`](Self::line).
    pub fn opening(mut self, at: Timestamp, gather: Duration, order: OpeningOrder) -> Self {
        self.config.opening.push(config::Opening { at, gather, order });
        self
    }

    /// Sets the page that browsers show to newcomers who are refused.
    #[cfg(feature = "tower")]
    pub fn line_page(mut self, page: config::LinePage) -> Self {
        self.config.line.page = page;
        self
    }
}

/// `[fleet]`, `[redis]`, `[snapshot]`, `[server]`, `[admin]`
impl Builder {
    /// Sets the URL of the fleet's Redis. The server then belongs to a fleet.
    pub fn redis_url(mut self, url: impl Into<String>) -> Self {
        self.redis().url = Some(Secret::new(url));
        self
    }

    /// For `rediss://`: sets a PEM file with the certificate of the authority that signed the Redis server's
    /// certificate. It is trusted in addition to the system's authorities. The server then belongs to a fleet.
    pub fn redis_ca_file(mut self, file: impl Into<PathBuf>) -> Self {
        self.redis().ca_file = Some(file.into());
        self
    }

    /// For `rediss://`: sets the PEM file of the client certificate. Needs [`Builder::redis_key_file`] too. The
    /// server then belongs to a fleet.
    pub fn redis_cert_file(mut self, file: impl Into<PathBuf>) -> Self {
        self.redis().cert_file = Some(file.into());
        self
    }

    /// Sets the PEM file of the client certificate's private key. The server then belongs to a fleet.
    pub fn redis_key_file(mut self, file: impl Into<PathBuf>) -> Self {
        self.redis().key_file = Some(file.into());
        self
    }

    /// Sets the name of the fleet: servers of one namespace share their users. The server then belongs to a fleet.
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.fleet().namespace = namespace.into();
        self
    }

    /// Sets the time between two rounds. The server then belongs to a fleet.
    pub fn sync_every(mut self, period: Duration) -> Self {
        self.fleet().sync_every = Some(period);
        self
    }

    /// Sets the time between two exchanges of news; zero turns them off. The server then belongs to a fleet.
    pub fn news_every(mut self, period: Duration) -> Self {
        self.fleet().news_every = Some(period);
        self
    }

    /// Sets which newcomers are admitted while the store is away. The server then belongs to a fleet.
    pub fn on_outage(mut self, on_outage: OnOutage) -> Self {
        self.fleet().on_outage = on_outage;
        self
    }

    /// Sets the number of servers of the fleet. It is used if the store does not answer for 3 s after the start and
    /// `on_outage` is `local`. Then the server admits as many newcomers as the largest of three numbers: X divided by
    /// the number of servers, 1 % of X, and 10. With this setting, the server belongs to a fleet.
    pub fn expected_nodes(mut self, nodes: u64) -> Self {
        self.fleet().expected_nodes = nodes;
        self
    }

    /// Sets the snapshot file of a server that runs alone; none by default.
    pub fn snapshot_file(mut self, file: impl Into<PathBuf>) -> Self {
        self.config.snapshot.file = Some(file.into());
        self
    }

    /// Sets the name of this server in its fleet. The server then belongs to a fleet.
    pub fn node(mut self, node: impl Into<String>) -> Self {
        self.fleet().node = Some(node.into());
        self
    }

    /// Sets the addresses and networks whose `X-Forwarded-*` and `X-Original-*` headers are trusted.
    pub fn trusted_proxies(mut self, proxies: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.config.server.trusted_proxies = proxies.into_iter().map(Into::into).collect();
        self
    }

    /// Sets the file that holds the bearer token of `admin_router`.
    pub fn admin_token_file(mut self, file: impl Into<PathBuf>) -> Self {
        self.config.admin.token_file = Some(file.into());
        self
    }

    /// Sets further host names under which `admin_router` answers.
    pub fn admin_hosts(mut self, hosts: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.config.admin.hosts = hosts.into_iter().map(Into::into).collect();
        self
    }

    /// Sets whether `/metrics` answers without the bearer token.
    pub fn open_metrics(mut self, open: bool) -> Self {
        self.config.admin.open_metrics = open;
        self
    }

    /// Allows requests to the admin router that came through a proxy, although no bearer token is configured. Then
    /// everybody who can reach the proxy is an operator.
    pub fn admin_allow_proxied(mut self, allowed: bool) -> Self {
        self.config.admin.allow_proxied = allowed;
        self
    }

    fn fleet(&mut self) -> &mut config::Fleet {
        self.config.fleet.get_or_insert_default()
    }

    fn redis(&mut self) -> &mut config::Redis {
        self.config.redis.get_or_insert_default()
    }
}

/// Settings for tests and simulators.
impl Builder {
    /// Replaces the machine's clock.
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.clock = Some(Arc::new(clock));
        self
    }

    /// Sets the seed of all random number generators; random by default. With the same seed, secret, clock and calls,
    /// a controller behaves the same.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Sets the capacity of the refresh channel.
    #[cfg(any(test, feature = "testing"))]
    pub fn refresh_queue(mut self, length: usize) -> Self {
        self.refresh_queue = Some(length);
        self
    }

    /// Lets every server hand out all the room that it sees. For comparisons.
    #[cfg(any(test, feature = "testing"))]
    pub fn without_shares(self) -> Self {
        self.sharing(Sharing::None)
    }

    /// Sets how the room is divided into shares.
    #[cfg(any(test, feature = "testing"))]
    pub fn sharing(mut self, sharing: Sharing) -> Self {
        self.sharing = sharing;
        self
    }
}

impl Builder {
    /// Creates the controller and its worker. No thread is started: the caller calls [`Worker::run`] or
    /// [`Worker::tick`].
    ///
    /// # Errors
    /// Returns [`BuildError::Config`] if a value is missing or outside its bounds, or if a file cannot be read or
    /// created. The message names the key, the value found, and what is allowed.
    pub fn build(self) -> Result<(Headcount, Worker), BuildError> {
        let Self { config, clock, seed, refresh_queue, sharing } = self;
        let settings = config.check(fingerprint_key(&config)?)?;
        if let Some(warning) = config.token.warning() {
            tracing::warn!("{warning}");
        }
        let clock = clock.unwrap_or_else(|| Arc::new(SystemClock::new()));
        let codec = codec_of(&settings);
        let link = if config.joins_fleet() { FleetLink::Joining } else { FleetLink::Alone };
        let (snapshot, loaded) = match snapshot_file(&config) {
            Some(file) => open_snapshot(file, &codec, &settings)?,
            None => (None, Memory::Fresh),
        };
        let now = loaded.start(clock.wall());
        let fleet_clock = FleetClock::starting_at(now, clock.monotonic(), settings.slot_length);
        let current = Slot::at(now, settings.slot_length);
        let ring = remembering(Ring::new(settings.shape, settings.slots, current), link, loaded);
        let room = Room::new(settings.room, link, sharing, now);
        let mut rng = seed.map_or_else(fastrand::Rng::new, fastrand::Rng::with_seed);
        let (refreshes, due) = bounded(refresh_queue.unwrap_or(REFRESH_QUEUE).max(1));
        let (visits, simulation) = match settings.enforcement {
            Enforcement::Shadow => {
                let (sampled, simulation) = what_ifs(&settings);
                (Some(sampled), Some(simulation))
            }
            Enforcement::Enforce | Enforcement::Off => (None, None),
        };
        let started = clock.monotonic();
        let telemetry = Telemetry::new(&settings);
        let waiting_refusals = WaitingRefusals::new(settings.max_delayed);
        let parts = CoreParts { clock, fleet_clock, ring, room, now, refreshes, visits };
        let core = Core::new(settings, parts, &mut rng);
        let shared = Arc::new(Shared {
            config,
            core: Arc::new(core),
            rounds: Arc::new(RoundFigures::new()),
            telemetry,
            lifecycle: Lifecycle::new(started, link == FleetLink::Alone),
            waiting_refusals,
        });
        let worker = Worker::new(Arc::clone(&shared), due, simulation, snapshot.map(|snapshot| (snapshot, codec)));
        Ok((Headcount { shared }, worker))
    }
}

/// Makes the simulation of other values of X for shadow mode, and the channel of visits that feeds it.
fn what_ifs(settings: &Settings) -> (SampledVisits, (CapacitySim, Receiver<(Fingerprint, bool)>)) {
    let (sender, visits) = bounded(VISITS);
    let simulation = CapacitySim::new(settings.room, settings.slots);
    let sample = simulation.sample();
    (SampledVisits { sample, sender }, (simulation, visits))
}

/// The users that a single server knows when it starts.
enum Memory {
    /// There is no snapshot. A single server then knows that nobody was active. A server of a fleet learns from the
    /// store who was active.
    Fresh,
    /// The snapshot could not be read: it is unknown which users were active.
    Lost,
    /// The snapshot was read: these are its minutes.
    Kept(Loaded),
}

impl Memory {
    /// Returns the time at which the server starts. If the clock was set back since the snapshot was written, time
    /// continues from the snapshot, so that its users stay active.
    fn start(&self, wall: Timestamp) -> Timestamp {
        match self {
            Self::Kept(loaded) => wall.max(loaded.at),
            Self::Fresh | Self::Lost => wall,
        }
    }
}

fn remembering(mut ring: Ring, link: FleetLink, memory: Memory) -> Ring {
    if link != FleetLink::Alone {
        return ring;
    }
    let known = !matches!(memory, Memory::Lost);
    for slot in ring.slots() {
        ring.set_covered(slot, known);
    }
    if let Memory::Kept(loaded) = memory {
        for (slot, minute) in loaded.minutes {
            ring.merge(slot, 0, minute.filter.words());
            ring.set_covered(slot, minute.covers == Covers::Minute);
        }
    }
    ring
}

fn snapshot_file(config: &Config) -> Option<PathBuf> {
    let file = config.snapshot.file.clone().filter(|file| !file.as_os_str().is_empty());
    file.filter(|_| !config.joins_fleet())
}

fn open_snapshot(file: PathBuf, codec: &Codec, settings: &Settings) -> Result<(Option<Snapshot>, Memory), ConfigError> {
    let unusable = |source| ConfigError::Unreadable { key: "snapshot.file", file: file.clone(), source };
    let snapshot = Snapshot::open(file.clone(), codec, settings.key.clone()).map_err(unusable)?;
    let memory = match snapshot.load(codec, settings.slots + 1) {
        Ok(None) => Memory::Fresh,
        Ok(Some(loaded)) => Memory::Kept(loaded),
        Err(error) => {
            let aside = snapshot.set_aside().map_err(unusable)?;
            tracing::error!(
                file = %file.display(), kept_as = %aside.display(), %error,
                "the snapshot cannot be read; its users are forgotten, and up to max_active_users newcomers are \
                 admitted"
            );
            Memory::Lost
        }
    };
    Ok((Some(snapshot), memory))
}

/// Returns the configured key. A single server needs no configured key: without one, it uses a random key. If a
/// snapshot is configured, the random key is kept in a file in the snapshot's directory and read again at the next
/// start.
fn fingerprint_key(config: &Config) -> Result<FingerprintKey, ConfigError> {
    if let Some(key) = config.token.fingerprint_key()? {
        return Ok(key);
    }
    if config.joins_fleet() {
        return Err(ConfigError::SecretMissing);
    }
    let file = snapshot_file(config).map(|snapshot| snapshot.with_file_name("fingerprint.key"));
    let bytes = match &file {
        Some(file) => kept_key(file).map_err(|source| ConfigError::Unreadable {
            key: "snapshot.file",
            file: file.clone(),
            source,
        })?,
        None => random_key(),
    };
    FingerprintKey::new(&bytes)
        .map_err(|source| ConfigError::Secret { key: "snapshot.file: the fingerprint.key beside it", source })
}

fn kept_key(file: &Path) -> io::Result<Vec<u8>> {
    match fs::read(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            if let Some(directory) = file.parent() {
                fs::create_dir_all(directory)?;
            }
            create(file, &random_key())?;
            // If two servers start at once, both use the key of the one that created the file.
            fs::read(file)
        }
        other => other,
    }
}

fn random_key() -> Vec<u8> {
    let mut key = vec![0; 2 * MIN_KEY_BYTES];
    getrandom::fill(&mut key).expect("the operating system has randomness");
    key
}
