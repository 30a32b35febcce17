//! Limiters applied to requests: the key of a request, the paths, and the headers that tell a client its quota.

use super::caller::Caller;
use super::limited::Limited;
use super::quota::Quotas;
use super::request::RequestInfo;
use crate::config::{ConfigError, Enforcement, LimitKey, MUST_BE_PATH, OnMissingKey, PathPatterns, canonical_path};
#[cfg(feature = "server")]
use crate::headcount::ExplainedLimit;
use crate::headcount::Headcount;
use crate::limit::{Answer, Ask, CombinedAnswer, Granted, Limiter, SilentStore};
use http::{HeaderMap, Method};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// A limiter, and how a request gets its key. Requests with the same key are counted together.
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
    key: Key,
    on_missing_key: OnMissingKey,
    /// The paths to which the limit applies; `None` means all paths.
    routes: Option<PathPatterns>,
    max_wait: Option<Duration>,
    period: Option<Duration>,
    /// Whether an error in the limiter's configuration was logged.
    logged: Arc<AtomicBool>,
}

/// How a request gets its key.
#[derive(Clone)]
enum Key {
    Configured(LimitKey),
    Computed(Arc<KeyOf>),
}

type KeyOf = dyn Fn(&LimitRequest<'_>) -> Option<Vec<u8>> + Send + Sync;

/// The facts of a request from which a limit's key is made.
///
/// ```
/// use headcount::layer::{Limit, LimitRequest};
/// use headcount::limit::{Limiter, Memory, Rate, token_bucket};
/// let limiter = Limiter::new("reports", Memory::new(token_bucket(Rate::per_minute(5), 5))?);
/// // A tenant's reports, each tenant by itself.
/// let reports = Limit::by(limiter, |request: &LimitRequest<'_>| {
///     let path = request.path().filter(|path| path.starts_with("/reports/"))?;
///     Some([request.headers().get("x-tenant")?.as_bytes(), path.as_bytes()].concat())
/// });
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct LimitRequest<'r> {
    info: &'r RequestInfo<'r>,
    client_ip: Option<IpAddr>,
}

impl<'r> LimitRequest<'r> {
    /// Returns the method.
    pub fn method(&self) -> &'r Method {
        self.info.method
    }

    /// Returns the path, with or without a query; `None` if a proxy does not tell it.
    pub fn path(&self) -> Option<&'r str> {
        self.info.path
    }

    /// Returns the headers.
    pub fn headers(&self) -> &'r HeaderMap {
        self.info.headers
    }

    /// Returns an extension of the request by its type, such as an account that an outer layer has found; `None` if
    /// there is none.
    pub fn extension<T: Clone + Send + Sync + 'static>(&self) -> Option<&'r T> {
        self.info.extensions?.get()
    }

    /// Returns the client's address, according to `server.trusted_proxies`; `None` if the address of the connection is
    /// unknown.
    pub fn client_ip(&self) -> Option<IpAddr> {
        self.client_ip
    }
}

/// A part of a request's key.
enum Part {
    Is(Vec<u8>),
    /// The request lacks it.
    Missing,
    /// The caller, on whom the part depends, is not known yet.
    Unknown,
}

/// The key of a request, or how the limit treats a request without one.
enum Found {
    Key(Vec<u8>),
    NotLimited,
    Denied,
}

/// Stands for a missing part of a key. No address or hash looks like it.
const MISSING: &[u8] = b"missing";
/// Stands for a part that has several values, or that could be read in several ways.
const ANY: &[u8] = b"any";

impl Limit {
    /// Creates a limit that counts requests by this key.
    pub fn new(limiter: Limiter, key: LimitKey) -> Self {
        Self::of(limiter, Key::Configured(key))
    }

    /// Creates a limit that counts requests by the key that a function returns. `None` is a missing key; see
    /// [`on_missing_key`](Self::on_missing_key). The key leaves this process only as a keyed hash.
    pub fn by<F>(limiter: Limiter, key: F) -> Self
    where
        F: Fn(&LimitRequest<'_>) -> Option<Vec<u8>> + Send + Sync + 'static,
    {
        Self::of(limiter, Key::Computed(Arc::new(key)))
    }

    fn of(limiter: Limiter, key: Key) -> Self {
        let on_missing_key = OnMissingKey::default();
        Self { limiter, key, on_missing_key, routes: None, max_wait: None, period: None, logged: Arc::default() }
    }

    /// Sets how a request without the key is treated. By default all such requests are counted together.
    #[must_use]
    pub fn on_missing_key(mut self, on_missing_key: OnMissingKey) -> Self {
        self.on_missing_key = on_missing_key;
        self
    }

    /// Applies the limit to these paths only. Each is exact, or a prefix that ends in `/*`. A request whose path a
    /// backend could read as one of them also counts. For `/login`, such request paths are `/x/../login`, `//login`,
    /// `/%6cogin` and others.
    ///
    /// # Errors
    /// [`ConfigError`] for an invalid path.
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
            expected: MUST_BE_PATH,
        })?;
        self.routes = Some(patterns);
        Ok(self)
    }

    /// Sets the longest time for which a request is held back until permits are available. The default is the policy's,
    /// which is zero for most policies.
    #[must_use]
    pub fn max_wait(mut self, max_wait: Duration) -> Self {
        self.max_wait = Some(max_wait);
        self
    }

    /// Sets the period of the limit that the header `RateLimit-Policy` shows. By default the header shows none. This
    /// does not change the limiter.
    #[must_use]
    pub fn period(mut self, period: Duration) -> Self {
        self.period = Some(period);
        self
    }

    /// Returns the limiter.
    pub fn limiter(&self) -> &Limiter {
        &self.limiter
    }

    fn ask(&self, may_wait: bool) -> Ask {
        let max_wait = if may_wait { self.max_wait } else { Some(Duration::ZERO) };
        max_wait.map_or(Ask::ONE, |max_wait| Ask::ONE.max_wait(max_wait))
    }

    fn concerns(&self, info: &RequestInfo<'_>) -> bool {
        let covers = |routes: &PathPatterns| info.readings().is_some_and(|path| routes.may_cover(path));
        self.routes.as_ref().is_none_or(covers)
    }

    /// Returns whether the key depends on the caller.
    pub(super) fn needs_caller(&self) -> bool {
        matches!(&self.key, Key::Configured(key) if key.is_of_caller())
    }

    /// Returns what the limit would answer, without a charge; `None` if it does not apply.
    #[cfg(feature = "server")]
    pub(super) async fn explain(
        &self,
        headcount: &Headcount,
        info: &RequestInfo<'_>,
        caller: &Caller<'_>,
    ) -> Option<ExplainedLimit> {
        let unknown = |why: &str| Some(ExplainedLimit::unknown(self.limiter.name(), why));
        if self.routes.is_some() && info.path.is_none() {
            return unknown("it applies to some paths only, and the question names no path");
        }
        if !self.concerns(info) {
            return None;
        }
        let Key::Configured(key) = &self.key else { return unknown("the service computes its key") };
        for part in key.parts() {
            match part {
                LimitKey::ClientIp if info.peer.is_none() => {
                    return unknown("its key has the client's address, and the question names none");
                }
                LimitKey::Path if info.path.is_none() => {
                    return unknown("its key has the path, and the question names none");
                }
                LimitKey::Token if caller.token.is_none() => {
                    return unknown("its key has the token, and the question names none");
                }
                LimitKey::Header(_) | LimitKey::Method => {
                    return unknown("its key has a part of the request that cannot be asked about");
                }
                _ => {}
            }
        }
        match self.key(headcount, info, Some(caller)) {
            Found::NotLimited => None,
            Found::Denied => Some(ExplainedLimit::refuses(self.limiter.name())),
            Found::Key(key) => Some(match self.limiter.ask(&key, self.ask(true).peek()).await {
                Ok(answer) => {
                    ExplainedLimit::of(self.limiter.name(), answer.is_allowed(), answer.remaining, answer.retry())
                }
                Err(error) => ExplainedLimit::unknown(self.limiter.name(), &error.to_string()),
            }),
        }
    }

    /// Returns the key of a request. What a client has sent leaves this process only as a keyed hash.
    fn key(&self, headcount: &Headcount, info: &RequestInfo<'_>, caller: Option<&Caller<'_>>) -> Found {
        let parts: Vec<Part> = match &self.key {
            Key::Configured(key) => key.parts().iter().map(|part| self.part(part, headcount, info, caller)).collect(),
            Key::Computed(key) => {
                let client_ip = info.peer.map(|peer| headcount.client(peer, info.headers));
                let found = key(&LimitRequest { info, client_ip });
                vec![found.map_or(Part::Missing, |found| Part::Is(headcount.hashed(&found)))]
            }
        };
        let mut key = Vec::new();
        for part in &parts {
            let bytes = match (part, self.on_missing_key) {
                (Part::Is(bytes), _) => bytes,
                (Part::Unknown, _) | (Part::Missing, OnMissingKey::Allow) => return Found::NotLimited,
                (Part::Missing, OnMissingKey::Deny) => return Found::Denied,
                (Part::Missing, OnMissingKey::Shared) => MISSING,
            };
            if !key.is_empty() {
                key.push(b' ');
            }
            key.extend_from_slice(bytes);
        }
        Found::Key(key)
    }

    fn part(
        &self,
        part: &LimitKey,
        headcount: &Headcount,
        info: &RequestInfo<'_>,
        caller: Option<&Caller<'_>>,
    ) -> Part {
        let hashed = |bytes: &[u8]| Part::Is(headcount.hashed(bytes));
        let of_caller = |find: fn(&Caller<'_>) -> Option<Vec<u8>>| match caller {
            None => Part::Unknown,
            Some(caller) if caller.is_invalid => Part::Is(ANY.into()),
            Some(caller) => find(caller).map_or(Part::Missing, |found| hashed(&found)),
        };
        match part {
            LimitKey::Token => of_caller(|caller| Some(caller.token.or(caller.subject.as_deref())?.into())),
            LimitKey::Subject => of_caller(|caller| Some(caller.subject.as_deref()?.into())),
            LimitKey::ClientIp => {
                let Some(peer) = info.peer else {
                    self.log_once(if cfg!(feature = "axum") {
                        "the addresses of its clients are unknown: serve the router with \
                         into_make_service_with_connect_info::<SocketAddr>()"
                    } else {
                        "the addresses of its clients are unknown: enable the feature `axum` of headcount, or put a \
                         SocketAddr into the extensions of each request"
                    });
                    return Part::Missing;
                };
                Part::Is(network(headcount.client(peer, info.headers)))
            }
            LimitKey::Header(name) => {
                let mut values = info.headers.get_all(name).into_iter();
                let Some(first) = values.next() else { return Part::Missing };
                // The service may read any of several values, so all such requests are counted together.
                if values.all(|value| value == first) { hashed(first.as_bytes()) } else { Part::Is(ANY.into()) }
            }
            LimitKey::Path => match info.path {
                None => Part::Missing,
                Some(path) => {
                    // A path that a backend could read as one of the routes counts as that route.
                    let route =
                        self.routes.as_ref().zip(info.readings()).and_then(|(routes, path)| routes.exact_rule(path));
                    let path = route.or_else(|| canonical_path(path));
                    path.map_or(Part::Is(ANY.into()), |path| hashed(path.as_bytes()))
                }
            },
            LimitKey::Method => of_method(info.method).map_or(Part::Is(ANY.into()), |name| hashed(name.as_bytes())),
            // `All` cannot occur here, because a list cannot contain a list. It would act like `Constant`.
            LimitKey::Constant | LimitKey::All(_) => Part::Is(Vec::new()),
        }
    }

    /// Logs an error in the configuration, once per limit.
    fn log_once(&self, why: &str) {
        if !self.logged.swap(true, Relaxed) {
            tracing::error!(limiter = self.limiter.name(), "this limiter is misconfigured: {why}");
        }
    }
}

/// Returns the name under which a method counts. HEAD counts as GET, because backends serve it as GET. Returns `None`
/// for methods outside RFC 9110 and RFC 5789, because many backends serve them like some other method.
fn of_method(method: &Method) -> Option<&'static str> {
    Some(match *method {
        Method::GET | Method::HEAD => "GET",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::PATCH => "PATCH",
        Method::DELETE => "DELETE",
        Method::OPTIONS => "OPTIONS",
        Method::CONNECT => "CONNECT",
        Method::TRACE => "TRACE",
        _ => return None,
    })
}

/// Returns the address, or the first 64 bits of an IPv6 address, which usually belong to one customer.
fn network(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.to_string().into_bytes(),
        // A client with IPv4 only, behind a translator (RFC 6052).
        IpAddr::V6(address) if address.segments()[..6] == [0x64, 0xff9b, 0, 0, 0, 0] => {
            let [.., a, b, c, d] = address.octets();
            Ipv4Addr::new(a, b, c, d).to_string().into_bytes()
        }
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            format!("{a:x}:{b:x}:{c:x}:{d:x}::/64").into_bytes()
        }
    }
}

/// A list of limits, in order.
#[derive(Clone, Default)]
pub(crate) struct Limits(Vec<Limit>);

/// The limits that apply to a request: the position of each, with the key of the request.
#[derive(Debug, Clone, Default)]
pub(crate) struct ApplicableLimits {
    keys: Vec<(usize, Vec<u8>)>,
    /// The first limit that refuses the request because the request lacks the limit's key.
    denied: Option<usize>,
}

impl ApplicableLimits {
    pub(crate) fn is_empty(&self) -> bool {
        self.keys.is_empty() && self.denied.is_none()
    }

    pub(super) fn keys(&self) -> &[(usize, Vec<u8>)] {
        &self.keys
    }
}

impl Limits {
    /// Adds a limit, and shows it in the status.
    pub(crate) fn add(&mut self, limit: Limit, headcount: &Headcount) {
        headcount.show_limiter(&limit.limiter);
        self.0.push(limit);
    }

    /// Adds a limit that is part of admission. While admission is not enforced, the limit is in shadow mode.
    pub(crate) fn add_to_admission(&mut self, limit: Limit, headcount: &Headcount) {
        let limiter = match headcount.settings().enforcement {
            Enforcement::Enforce => limit.limiter.clone(),
            Enforcement::Shadow | Enforcement::Off => limit.limiter.clone().shadow(true),
        };
        self.add(Limit { limiter, ..limit }, headcount);
    }

    #[cfg(feature = "server")]
    pub(super) fn all(&self) -> &[Limit] {
        &self.0
    }

    /// Returns whether any limit of this request has a key that depends on the caller.
    pub(super) fn need_caller(&self, info: &RequestInfo<'_>) -> bool {
        self.0.iter().any(|limit| limit.needs_caller() && limit.concerns(info))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the limits that apply to a request. `caller` is `None` while the caller is unknown.
    pub(crate) fn applicable(
        &self,
        headcount: &Headcount,
        info: &RequestInfo<'_>,
        caller: Option<&Caller<'_>>,
    ) -> ApplicableLimits {
        let mut applicable = ApplicableLimits::default();
        for (place, limit) in self.0.iter().enumerate() {
            if !limit.concerns(info) {
                if info.path.is_none() {
                    limit.log_once("it has routes, and requests come without their path: see server.trusted_proxies");
                }
                continue;
            }
            match limit.key(headcount, info, caller) {
                Found::Key(key) => applicable.keys.push((place, key)),
                Found::Denied if limit.limiter.refuses() => {
                    applicable.denied.get_or_insert(place);
                }
                Found::Denied | Found::NotLimited => {}
            }
        }
        applicable
    }

    /// Asks limits that are all in memory, as one step and without waiting. If one refuses, none is charged.
    pub(crate) fn ask_here(&self, applicable: &ApplicableLimits, ask: Ask) -> Result<Quotas, Limited> {
        self.refuse_denied(applicable, ask)?;
        let step = &applicable.keys;
        let asks: Vec<_> = step.iter().map(|(place, key)| (&self.0[*place].limiter, key, ask)).collect();
        let combined = Limiter::ask_all_here(&asks);
        let mut quotas = Quotas::default();
        self.note(step, &combined, &mut quotas)
    }

    fn refuse_denied(&self, applicable: &ApplicableLimits, ask: Ask) -> Result<(), Limited> {
        let Some(place) = applicable.denied else { return Ok(()) };
        let limiter = &self.0[place].limiter;
        if ask != ask.peek() {
            limiter.count_refused();
        }
        Err(Limited { by: limiter.name().to_owned(), retry: None, quotas: Quotas::default() })
    }

    /// Gives one permit back to each limiter in this process.
    pub(super) fn give_back_here(&self, applicable: &ApplicableLimits) {
        applicable.keys.iter().for_each(|(place, key)| self.0[*place].limiter.refund_here(key, 1));
    }

    /// Returns whether a request may have to wait for one of these limits.
    #[cfg(feature = "server")]
    pub(crate) fn may_wait(&self, applicable: &ApplicableLimits) -> bool {
        let max_wait = |(place, _): &(usize, Vec<u8>)| self.0[*place].max_wait.unwrap_or_default();
        applicable.keys.iter().map(max_wait).any(|max_wait| !max_wait.is_zero())
    }

    /// Asks the limits in order, and waits for the request's turn. If `may_wait` is false, a limit refuses a request
    /// that would have to wait. Neighbouring limits that one store can charge together form a step (see `is_one_step`),
    /// which is charged as a whole or not at all. If one limit refuses, the limits of earlier steps get their permits
    /// back, so no limit stays charged. Limits in MySQL are an exception: MySQL takes no permits back.
    pub(crate) async fn ask(&self, applicable: &ApplicableLimits, may_wait: bool) -> Result<Quotas, Limited> {
        self.refuse_denied(applicable, Ask::ONE)?;
        let mut quotas = Quotas::default();
        let mut granted = Vec::new();
        let mut silent = SilentStore::default();
        for step in applicable.keys.chunk_by(|one, next| self.is_one_step(one, next)) {
            let asks: Vec<_> =
                step.iter().map(|(place, key)| (&self.0[*place].limiter, key, self.0[*place].ask(may_wait))).collect();
            let combined = match Limiter::wait_all_unless_silent(&asks, &mut silent).await {
                Ok(combined) => combined,
                Err(error) => {
                    self.0[step[0].0].log_once(&error.to_string());
                    Limiter::answer_all_without_store(&asks, &error)
                }
            };
            // If `granted` is dropped, after a refusal or with this future, the permits are given back.
            let noted = self.note(step, &combined, &mut quotas);
            granted.push(combined.until_kept());
            noted?;
        }
        granted.into_iter().for_each(Granted::keep);
        Ok(quotas)
    }

    /// Returns whether one step can ask both limits. In memory, it can. On one Redis connection, it can if the request
    /// has the same key in both. A step stores all its state beside its first key, so another second key would be
    /// counted apart from requests that ask for it alone. In a database, one step cannot ask both.
    fn is_one_step(&self, (one, one_key): &(usize, Vec<u8>), (next, next_key): &(usize, Vec<u8>)) -> bool {
        let (one, next) = (&self.0[*one].limiter, &self.0[*next].limiter);
        one.is_here() && next.is_here() || one.shares_store_with(next) && one_key == next_key
    }

    fn note(
        &self,
        step: &[(usize, Vec<u8>)],
        combined: &CombinedAnswer,
        quotas: &mut Quotas,
    ) -> Result<Quotas, Limited> {
        for ((place, _), answer) in step.iter().zip(&combined.answers) {
            let limit = &self.0[*place];
            quotas.add(limit.limiter.name(), answer, limit.period);
        }
        match combined.refused_by {
            None => Ok(quotas.clone()),
            Some(nth) => {
                let longest = combined.answers.iter().filter(|answer| !answer.is_allowed()).map(Answer::retry);
                // `None` means never, which is the longest.
                let retry = longest.reduce(|one, next| one.zip(next).map(|(one, next)| one.max(next))).flatten();
                Err(Limited { by: self.0[step[nth].0].limiter.name().to_owned(), retry, quotas: quotas.clone() })
            }
        }
    }
}

impl Headcount {
    fn client(&self, peer: IpAddr, headers: &HeaderMap) -> IpAddr {
        self.settings().trusted_proxies.client(peer, headers)
    }

    fn hashed(&self, bytes: &[u8]) -> Vec<u8> {
        format!("{:016x}", self.settings().key.hash(bytes)).into_bytes()
    }

    /// Shows a limiter in the [status](Headcount::status) and the metrics. An earlier limiter of the same name is
    /// replaced. The limiters of a layer and of `[[limit]]` are shown without this call.
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
        self.register_limiter(limiter.name(), Box::new(move || shown.status()));
    }
}
