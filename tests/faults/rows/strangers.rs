//! A client that is not a server of the fleet writes into Redis.

use super::{bounds, heard};
use crate::Rig;
use crate::bench::{Bench, SECRET, Spec};
use crate::report::Finding;
use crate::support::request;
use headcount::fingerprint::FingerprintKey;
use headcount::internals::signed_override;
use headcount::time::Timestamp;
use headcount::{Override, OverrideMode, OverrideVersion};
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

/// Heartbeats of servers that do not exist.
const FORGED_SERVERS: usize = 20_000;

/// What a stranger writes, in turn.
#[derive(Debug, Clone, Copy)]
enum Lie {
    /// An override of mode `open`, with this version, and its author.
    Override(u64, Hand),
    /// An override of the operator that was withdrawn.
    OlderOverride,
    /// Heartbeats of 20,000 servers, and as many that report rejected newcomers.
    Servers,
    /// A former value of a minute.
    OlderValue,
}

/// The key that an override's proof was made with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hand {
    /// No proof, as before there were proofs.
    Nobodys,
    Strangers,
    /// The fleet's key for another namespace.
    Neighbours,
    /// The fleet's key: a faulty server of the fleet.
    Fleets,
}

impl Lie {
    fn all() -> Vec<Self> {
        let hands = [Hand::Nobodys, Hand::Strangers, Hand::Neighbours, Hand::Fleets];
        // No server's clock is there yet. A comparison as floating-point numbers takes the last two for equal.
        let versions = [1 << 53, 1 << 63, u64::MAX];
        let overrides = versions.map(|version| hands.map(|hand| Self::Override(version, hand)));
        let others = [Self::OlderOverride, Self::Servers, Self::OlderValue];
        overrides.into_iter().flatten().chain(others).collect()
    }
}

/// Row 49. A stranger writes into Redis while a crowd asks a full fleet: nothing of it takes effect, and the operator's
/// override does.
pub fn a_stranger_writes(rig: &Rig) -> Finding {
    let spec = Spec { servers: 3, max_active_users: 500, slot: 4 * SECOND, sync_every: SECOND / 5, ..Spec::default() };
    let bench = Bench::start(rig.runtime.handle(), spec);
    bench.fill();
    let players = bench.players_alone(rig.rate(1000.0));
    bench.wait_until("all servers to be in step", Bench::all_in_step);
    let mut stranger = Stranger::before(&bench);
    let surge = bench.surge(300.0);
    let lies = Lie::all();
    let mut found = Finding { repetitions: rig.times(20 * lies.len() as u64), ..Finding::default() };
    let mut slowest = Duration::ZERO;
    for turn in 0..found.repetitions {
        let lie = lies[turn as usize % lies.len()];
        // The stranger overwrites what other servers write in the meantime: the lie stays for three periods.
        for _ in 0..6 {
            stranger.tells(&bench, lie);
            bench.pass(bench.spec.sync_every / 2);
            for place in 0..3 {
                let status = bench.server(place).status();
                let (mode, nodes) = (status["override"]["mode"].clone(), status["sync"]["nodes"].clone());
                found.check(mode == "auto", || format!("{lie:?}: server {place} obeys it: {}", status["override"]));
                found.check(nodes == 3, || format!("{lie:?}: server {place} counts {nodes} servers"));
            }
        }
        if matches!(lie, Lie::Override(..)) {
            slowest = slowest.max(the_operators_word(&bench, &mut found, lie));
        }
    }
    drop((surge, players));
    let two_rounds = 4 * bench.spec.sync_every;
    found.check(slowest <= two_rounds, || {
        format!("the operator's override took {slowest:.1?}; at most {two_rounds:.1?}")
    });
    bounds::check(&mut found, &bench, "a stranger writes", bounds::calm(&bench.spec));
    found.remark = format!("the operator's override was everywhere after {slowest:.1?} at most");
    found.and(heard(&bench))
}

/// An override that admits no newcomers takes effect everywhere, and so does its end. Returns the slower of the two
/// times.
fn the_operators_word(bench: &Bench, found: &mut Finding, lie: Lie) -> Duration {
    let tell = |method: &str, body: &str| request(bench.server(0).admin, method, "/api/v1/override", &[], body).status;
    let everywhere = |mode: &str| {
        bench.wait_until("the operator's override", |bench| {
            (0..3).all(|place| bench.server(place).status()["override"]["mode"] == mode)
        })
    };
    let set = tell("PUT", r#"{"mode":"throttling","for":"1m"}"#);
    let closed = everywhere("throttling");
    let taken_back = tell("DELETE", "");
    found.check((set, taken_back) == (200, 200), || format!("{lie:?}: {set} and {taken_back} to the operator"));
    closed.max(everywhere("auto"))
}

/// A client that can read and write Redis.
struct Stranger {
    redis: redis::Connection,
    /// `headcount:{default}:generation`.
    prefix: String,
    generation: u64,
    older_override: Vec<u8>,
    older_value: (String, Vec<u8>),
    turns: u64,
}

impl Stranger {
    /// Reads what it will write again later.
    fn before(bench: &Bench) -> Self {
        let mut redis = redis::Client::open(bench.redis.url()).unwrap().get_connection().unwrap();
        let keys: Vec<String> = bench.redis.ask(&["KEYS", "headcount:*:fleet"]);
        let prefix = keys[0].trim_end_matches(":fleet").to_owned();
        let generation = prefix.rsplit(':').next().and_then(|hex| u64::from_str_radix(hex, 16).ok()).unwrap();
        let open = r#"{"mode":"open","for":"10m"}"#;
        let tell = |method: &str, body: &str| {
            assert_eq!(request(bench.server(0).admin, method, "/api/v1/override", &[], body).status, 200);
        };
        let key = format!("{prefix}:override");
        // Before the crowd starts: X does not bind while it is in force.
        tell("PUT", open);
        let mut older_override = Vec::new();
        bench.wait_until("the override in Redis", |_| {
            older_override = redis::cmd("HGET")
                .arg(&key)
                .arg("body")
                .query::<Option<Vec<u8>>>(&mut redis)
                .unwrap()
                .unwrap_or_default();
            !older_override.is_empty()
        });
        let everywhere = |what: &str, mode: &str| {
            bench
                .wait_until(what, |bench| (0..3).all(|place| bench.server(place).status()["override"]["mode"] == mode));
        };
        // A server that has not heard of it yet might otherwise obey it for a round after its end.
        everywhere("the override everywhere", "open");
        tell("DELETE", "");
        everywhere("its end everywhere", "auto");
        let mut stranger =
            Self { redis, prefix, generation, older_override, older_value: Default::default(), turns: 0 };
        stranger.reads_a_value(bench);
        stranger
    }

    /// Reads the value of the newest minute.
    fn reads_a_value(&mut self, bench: &Bench) {
        let mut keys: Vec<String> = bench.redis.ask(&["KEYS", "headcount:*:slot:*"]);
        keys.sort();
        let key = keys.pop().expect("a minute");
        let value: Option<Vec<u8>> = redis::cmd("HGET").arg(&key).arg("value").query(&mut self.redis).unwrap();
        self.older_value = (key, value.unwrap_or_default());
    }

    fn tells(&mut self, bench: &Bench, lie: Lie) {
        self.turns += 1;
        match lie {
            Lie::Override(version, hand) => {
                let body = self.open_for_all(bench, version, hand);
                self.hset("override", &[(b"body", &body)]);
            }
            Lie::OlderOverride => {
                let body = self.older_override.clone();
                self.hset("override", &[(b"body", &body)]);
            }
            Lie::Servers => {
                let (seconds, micros): (u64, u64) = bench.redis.ask(&["TIME"]);
                let now = seconds * 1000 + micros / 1000;
                let mut forge = redis::pipe();
                for (name, key) in [(" forged", "nodes"), ("", "wanting")] {
                    let add = forge.cmd("ZADD").arg(format!("{}:{key}", self.prefix));
                    for server in 0..FORGED_SERVERS {
                        add.arg(now).arg(format!("{server:048x}{name}"));
                    }
                }
                forge.exec(&mut self.redis).unwrap();
            }
            Lie::OlderValue => {
                let (key, value) = self.older_value.clone();
                let name = key.trim_start_matches(&self.prefix)[1..].to_owned();
                let version = format!("older-{}", self.turns);
                self.hset(&name, &[(b"ts", version.as_bytes()), (b"value", &value)]);
                if self.turns.is_multiple_of(6) {
                    self.reads_a_value(bench);
                }
            }
        }
    }

    fn hset(&mut self, name: &str, fields: &[(&[u8], &[u8])]) {
        let key = format!("{}:{name}", self.prefix);
        redis::cmd("HSET").arg(&key).arg(fields).exec(&mut self.redis).unwrap();
        redis::cmd("PEXPIRE").arg(&key).arg(60_000).exec(&mut self.redis).unwrap();
    }

    /// An override that admits everybody for an hour.
    fn open_for_all(&self, bench: &Bench, version: u64, hand: Hand) -> Vec<u8> {
        let (seconds, _): (u64, u64) = bench.redis.ask(&["TIME"]);
        let override_ = Override {
            version: OverrideVersion { number: version, writer: "zzz".into() },
            mode: OverrideMode::Open,
            max_active_users: None,
            newcomers_per_minute: None,
            until: Timestamp::from_millis(1000 * (seconds + 3600)),
            remembered_until: Timestamp::from_millis(1000 * (seconds + 3600)),
            by: Some("mallory".into()),
            reason: None,
            withdrawn: false,
            openings: headcount::SetOpenings::default(),
        };
        let key = |secret: &str| FingerprintKey::new(secret.as_bytes()).expect("a key");
        let sign =
            |secret: &str, namespace: &str| signed_override(&key(secret), namespace, self.generation, &override_);
        match hand {
            Hand::Nobodys => serde_json::to_vec(&override_).unwrap(),
            Hand::Strangers => sign("the key of a stranger", "default"),
            Hand::Neighbours => sign(SECRET, "another"),
            Hand::Fleets => sign(SECRET, "default"),
        }
    }
}
