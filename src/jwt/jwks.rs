//! Key sets from a URL: fetched at the start, and then regularly in the background.

use super::{Key, Verifier};
use crate::secret::Secret;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{oneshot, watch};
use tokio::time::sleep;
use ureq::http::Uri;
use ureq::tls::{Certificate, RootCerts, TlsConfig};

/// The interval of fetches. An issuer should publish a new key this long before using it.
const PERIOD: Duration = Duration::from_secs(300);

/// The pause after a failed fetch; each further failure doubles it.
const FIRST_RETRY: Duration = Duration::from_secs(1);

/// The longest pause between two attempts until the first set has been fetched.
const LONGEST_WITHOUT: Duration = Duration::from_secs(5);

/// The time limit of a fetch.
const TIME_LIMIT: Duration = Duration::from_secs(5);

/// The size of the largest set that is read.
const MOST_BYTES: u64 = 256 << 10;

/// The URL of a set: `https://`, or `http://` on this machine. Without TLS, a party on the network path could replace
/// the keys, and then name any user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KeySetUrl(Uri);

impl KeySetUrl {
    /// Parses and checks a URL. The error says what is wrong with it.
    pub(crate) fn parse(url: &str) -> Result<Self, &'static str> {
        let uri: Uri = url.parse().map_err(|_| "it is not a URL")?;
        let host = uri.host().ok_or("it is not a URL")?;
        if uri.authority().is_some_and(|authority| authority.as_str().contains('@')) {
            return Err("it contains a user name");
        }
        let is_here = host == "localhost"
            || host.trim_matches(['[', ']']).parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback());
        match uri.scheme_str() {
            Some("https") => Ok(Self(uri)),
            Some("http") if is_here => Ok(Self(uri)),
            Some("http") => Err("over plain http anybody on the network path could replace the keys"),
            _ => Err("it is neither https:// nor, on this machine, http://"),
        }
    }

    /// Removes the secrets of the URL from a message that may quote it.
    fn hide_in(&self, words: &str) -> String {
        words.replace(&self.0.to_string(), &self.to_string())
    }

    /// Fetches the set. Returns its public keys, and the number of shared secrets (`oct`) in it, which are not used.
    /// Blocks the thread.
    fn fetch(&self) -> Result<(Vec<Key>, usize), String> {
        let roots = rustls_native_certs::load_native_certs().certs;
        let roots: Vec<_> = roots.iter().map(|root| Certificate::from_der(root).to_owned()).collect();
        let tls = TlsConfig::builder()
            .root_certs(RootCerts::Specific(Arc::new(roots)))
            .unversioned_rustls_crypto_provider(Arc::new(tokio_rustls::rustls::crypto::ring::default_provider()))
            .build();
        let is_plain = self.0.scheme_str() == Some("http");
        let mut config = ureq::Agent::config_builder().tls_config(tls).https_only(!is_plain);
        if is_plain {
            // The request must not leave this machine.
            config = config.proxy(None).max_redirects(0);
        }
        let agent = config
            .timeout_global(Some(TIME_LIMIT))
            .user_agent(concat!("headcount/", env!("CARGO_PKG_VERSION")))
            .build()
            .new_agent();
        let mut answer = agent.get(self.0.clone()).call().map_err(|error| error.to_string())?;
        let json =
            answer.body_mut().with_config().limit(MOST_BYTES).read_to_vec().map_err(|error| error.to_string())?;
        Key::in_fetched_set(&json).map_err(|why| format!("what it answered {why}"))
    }
}

impl std::fmt::Display for KeySetUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // A query may contain a secret.
        f.write_str(&Secret::new(self.0.to_string()).redacted_url())
    }
}

/// Fetches the set regularly until `stop` is set. If a fetch fails, the last set stays in use.
pub(crate) async fn keep_fresh(verifier: Arc<Verifier>, mut stop: watch::Receiver<bool>) {
    let Some(url) = verifier.url().cloned() else { return };
    let mut retry = FIRST_RETRY;
    let mut was_well = true;
    let mut secrets_before = 0;
    loop {
        let fetched = tokio::select! {
            _ = stop.wait_for(|stop| *stop) => return,
            fetched = in_a_thread(url.clone()) => fetched,
        };
        let rest = match fetched {
            Ok((keys, secrets)) => {
                if secrets > secrets_before {
                    tracing::warn!(%url, secrets, "the key set publishes secrets (kty \"oct\"); they verify nothing \
                        here");
                }
                secrets_before = secrets;
                if !was_well || !verifier.has_all_keys() {
                    tracing::info!(%url, keys = keys.len(), "the key set was fetched");
                }
                verifier.replace_set(keys);
                (retry, was_well) = (FIRST_RETRY, true);
                PERIOD
            }
            Err(why) => {
                let why = url.hide_in(&why);
                if was_well {
                    let kept = if verifier.has_all_keys() {
                        "the last one stays in use"
                    } else {
                        "no token can be verified with it"
                    };
                    tracing::error!(%url, %why, "the key set of token.jwt.jwks_url cannot be fetched; {kept}");
                }
                was_well = false;
                let rest = retry;
                // Until there are keys, no token can be verified, so the pauses stay short.
                retry = (2 * retry).min(if verifier.has_all_keys() { PERIOD } else { LONGEST_WITHOUT });
                rest
            }
        };
        tokio::select! {
            _ = stop.wait_for(|stop| *stop) => return,
            () = sleep(rest) => {}
        }
    }
}

/// Fetches the set on a thread of its own. It uses no blocking task of the runtime, because a program that stops would
/// wait for that task.
async fn in_a_thread(url: KeySetUrl) -> Result<(Vec<Key>, usize), String> {
    let (done, fetched) = oneshot::channel();
    let thread = std::thread::Builder::new().name("headcount-jwks".into());
    let fetch = move || {
        // The receiver may be gone.
        let _ = done.send(url.fetch());
    };
    thread.spawn(fetch).map_err(|error| error.to_string())?;
    fetched.await.unwrap_or_else(|_| Err("the fetch panicked".into()))
}
