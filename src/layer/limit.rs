//! Limiters as they are applied to requests: by which key, on which paths, and what a client is told of them.

use super::caller::Caller;
use super::judge::Asked;
use super::quota::Quotas;
use crate::config::{A_PATH, ConfigError, Enforcement, LimitKey, PathPatterns};
use crate::headcount::Headcount;
use crate::limit::{Answer, Ask, Granted, Joint, Limiter};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// A limiter, and whose requests it counts together.
///
/// ```
/// use headcount::Headcount;
/// use headcount::config::LimitKey;
/// use headcount::layer::Limit;
/// use headcount::limit::{Limiter, Memory, Rate, sliding_log, token_bucket};
/// use std::time::Duration;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (headcount, _worker) = Headcount::builder().max_active_users(20_000).build()?;
/// let logins = Limiter::new("login", Memory::new(sliding_log(5, Duration::from_secs(60)))?);
/// let newcomers = Limiter::new("newcomers", Memory::new(token_bucket(Rate::per_second(50), 100))?);
/// let app: axum::Router = axum::Router::new()
///     .layer(headcount.limit_layer([Limit::new(logins, LimitKey::ClientIp).routes(["/login"])?]))
///     .layer(headcount.layer().limit_newcomers(Limit::new(newcomers, LimitKey::Constant)));
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Limit {
    limiter: Limiter,
    key: LimitKey,
    /// `None`: all.
    routes: Option<PathPatterns>,
    max_wait: Option<Duration>,
    period: Option<Duration>,
    /// A mistake in the limiter's configuration was logged.
    told: Arc<AtomicBool>,
}

impl Limit {
    /// A limiter of all requests that show such a key.
    pub fn new(limiter: Limiter, key: LimitKey) -> Self {
        Self { limiter, key, routes: None, max_wait: None, period: None, told: Arc::default() }
    }

    /// For these paths alone: exact, or a prefix that ends in `/*`. A path that a backend could read as another one
    /// (`/x/../login`, `//login`, `/%6cogin`) may be any of them.
    ///
    /// # Errors
    /// [`ConfigError`] for a path that means nothing.
    ///
    /// ```
    /// # use headcount::{config::LimitKey, layer::Limit, limit::{Limiter, Memory, Rate, token_bucket}};
    /// let limiter = Limiter::new("login", Memory::new(token_bucket(Rate::per_second(1), 5))?);
    /// assert!(Limit::new(limiter.clone(), LimitKey::ClientIp).routes(["/login", "/oauth/*"]).is_ok());
    /// assert_eq!(Limit::new(limiter, LimitKey::ClientIp).routes(["login"]).err().unwrap().key(), "limit.routes");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn routes(mut self, routes: impl IntoIterator<Item = impl Into<String>>) -> Result<Self, ConfigError> {
        let routes: Vec<String> = routes.into_iter().map(Into::into).collect();
        let patterns = PathPatterns::parse(&routes).map_err(|found| ConfigError::Value {
            key: "limit.routes",
            found,
            expected: A_PATH,
        })?;
        self.routes = Some(patterns);
        Ok(self)
    }

    /// How long a request is held back at most until there is a permit; by default as the policy does it, which is mostly
    /// not at all.
    #[must_use]
    pub fn max_wait(mut self, max_wait: Duration) -> Self {
        self.max_wait = Some(max_wait);
        self
    }

    /// The time in which the limit's permits come, for the header `RateLimit-Policy`; it is left out unless said.
    #[must_use]
    pub fn period(mut self, period: Duration) -> Self {
        self.period = Some(period);
        self
    }

    /// The limiter.
    pub fn limiter(&self) -> &Limiter {
        &self.limiter
    }

    fn ask(&self) -> Ask {
        self.max_wait.map_or(Ask::ONE, |max_wait| Ask::ONE.max_wait(max_wait))
    }

    fn concerns(&self, path: Option<&str>) -> bool {
        self.routes.as_ref().is_none_or(|routes| path.is_some_and(|path| routes.may_match(path)))
    }

    /// Whether its key is the caller's.
    pub(super) fn needs_caller(&self) -> bool {
        matches!(self.key, LimitKey::Token | LimitKey::Subject)
    }

    /// The request's key. Whatever a client has sent leaves this process only as a keyed hash.
    fn key(&self, headcount: &Headcount, asked: &Asked<'_>, caller: &Caller<'_>) -> Option<Vec<u8>> {
        let settings = &headcount.shared.settings;
        let hashed = |bytes: &[u8]| format!("{:016x}", settings.key.hash(bytes)).into_bytes();
        match &self.key {
            LimitKey::Token => caller.token.or(caller.subject.as_deref()).map(|token| hashed(token.as_bytes())),
            LimitKey::Subject => caller.subject.as_deref().map(|subject| hashed(subject.as_bytes())),
            LimitKey::ClientIp => {
                let Some(peer) = asked.peer else {
                    self.tell_once(
                        "the address of its clients is not known: serve the router with \
                                    into_make_service_with_connect_info::<SocketAddr>()",
                    );
                    return None;
                };
                Some(network(settings.trusted_proxies.client(peer, asked.headers)))
            }
            LimitKey::Header(name) => {
                let mut values = asked.headers.get_all(name).into_iter();
                let first = values.next()?;
                // Of several nobody knows which one the service reads: all such requests are counted together.
                Some(if values.all(|value| value == first) { hashed(first.as_bytes()) } else { Vec::new() })
            }
            LimitKey::Constant => Some(Vec::new()),
        }
    }

    /// What somebody has to mend, once: requests come by the thousand.
    fn tell_once(&self, why: &str) {
        if !self.told.swap(true, Relaxed) {
            tracing::error!(limiter = self.limiter.name(), "this limiter cannot do its work: {why}");
        }
    }
}

/// Of IPv6 what one customer is given.
fn network(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.to_string().into_bytes(),
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            format!("{a:x}:{b:x}:{c:x}:{d:x}::/64").into_bytes()
        }
    }
}

/// A request that a limiter has refused.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Limited {
    /// The limiter's name.
    pub(crate) by: String,
    /// `None` is never.
    pub(crate) retry: Option<Duration>,
    pub(crate) quotas: Quotas,
}

/// Limits in their order.
#[derive(Clone, Default)]
pub(crate) struct Limits(Vec<Limit>);

/// The limits that concern a request, by their place, each with the request's key.
pub(crate) type Concerned = Vec<(usize, Vec<u8>)>;

impl Limits {
    /// While admission is not enforced, nobody is refused by a limiter either.
    pub(crate) fn add(&mut self, limit: Limit, headcount: &Headcount) {
        let Limit { limiter, .. } = &limit;
        let limiter = match headcount.shared.settings.enforcement {
            Enforcement::Enforce => limiter.clone(),
            Enforcement::Shadow | Enforcement::Off => limiter.clone().shadow(true),
        };
        headcount.show_limiter(&limiter);
        self.0.push(Limit { limiter, ..limit });
    }

    /// Whether a limit of this path is kept by caller.
    pub(super) fn need_caller(&self, path: Option<&str>) -> bool {
        self.0.iter().any(|limit| limit.needs_caller() && limit.concerns(path))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn concerned(&self, headcount: &Headcount, asked: &Asked<'_>, caller: &Caller<'_>) -> Concerned {
        let limits = self.0.iter().enumerate().filter(|(_, limit)| limit.concerns(asked.path));
        limits.filter_map(|(place, limit)| Some((place, limit.key(headcount, asked, caller)?))).collect()
    }

    /// Asks those in this process, all or nothing, and waits for nobody.
    pub(crate) fn ask_here(&self, concerned: &Concerned, ask: Ask) -> Result<Quotas, Limited> {
        let asks: Vec<_> = concerned.iter().map(|(place, key)| (&self.0[*place].limiter, key, ask)).collect();
        let joint = Limiter::ask_all_here(&asks);
        let mut quotas = Quotas::default();
        self.note(concerned, &joint, &mut quotas)
    }

    /// Asks in order, and waits for the request's turn. If one refuses, nothing is charged anywhere: in one store that is one
    /// step, in several what the earlier ones have charged is given back.
    pub(crate) async fn ask(&self, concerned: &Concerned) -> Result<Quotas, Limited> {
        let mut quotas = Quotas::default();
        let mut granted = Vec::new();
        for step in concerned.chunk_by(|one, next| self.is_one_step(one, next)) {
            let asks: Vec<_> =
                step.iter().map(|(place, key)| (&self.0[*place].limiter, key, self.0[*place].ask())).collect();
            let joint = match Limiter::wait_all(&asks).await {
                Ok(joint) => joint,
                Err(error) => {
                    self.0[step[0].0].tell_once(&error.to_string());
                    Limiter::answer_without_store(&asks, &error)
                }
            };
            // Dropped, by a refusal or with this future, it is given back.
            let noted = self.note(step, &joint, &mut quotas);
            granted.push(joint.until_kept());
            noted?;
        }
        granted.into_iter().for_each(Granted::keep);
        Ok(quotas)
    }

    /// In memory, lists of any keys; in Redis those of one key, which then is where it always is; in a database each alone.
    fn is_one_step(&self, (one, one_key): &(usize, Vec<u8>), (next, next_key): &(usize, Vec<u8>)) -> bool {
        let (one, next) = (&self.0[*one].limiter, &self.0[*next].limiter);
        one.is_here() && next.is_here() || one.shares_store_with(next) && one_key == next_key
    }

    fn note(&self, step: &[(usize, Vec<u8>)], joint: &Joint, quotas: &mut Quotas) -> Result<Quotas, Limited> {
        for ((place, _), answer) in step.iter().zip(&joint.answers) {
            let limit = &self.0[*place];
            quotas.add(limit.limiter.name(), answer, limit.period);
        }
        match joint.refused_by {
            None => Ok(quotas.clone()),
            Some(nth) => {
                let longest = joint.answers.iter().filter(|answer| !answer.is_allowed()).map(Answer::retry);
                // Never is the longest.
                let retry = longest.reduce(|one, next| one.zip(next).map(|(one, next)| one.max(next))).flatten();
                Err(Limited { by: self.0[step[nth].0].limiter.name().to_owned(), retry, quotas: quotas.clone() })
            }
        }
    }
}

impl Headcount {
    /// Shows a limiter's figures in the [status](Headcount::status) and the metrics, in the place of an earlier one of the
    /// same name. Those of a layer and of `[[limit]]` are shown by themselves.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use headcount::{Headcount, limit::{Ask, Limiter, Memory, Rate, token_bucket}};
    /// # let (headcount, _worker) = Headcount::builder().max_active_users(10).build()?;
    /// let chat = Limiter::new("chat", Memory::new(token_bucket(Rate::per_second(1), 5))?);
    /// headcount.show_limiter(&chat);
    /// chat.ask("alice", Ask::ONE).await?;
    /// let limits = headcount.status().limits;
    /// assert_eq!((limits[0].name.as_str(), limits[0].allowed), ("chat", 1));
    /// # Ok(()) }
    /// ```
    pub fn show_limiter(&self, limiter: &Limiter) {
        let shown = limiter.clone();
        self.shared.show_limiter(limiter.name(), Box::new(move || shown.status()));
    }
}
