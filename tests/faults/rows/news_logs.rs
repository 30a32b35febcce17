//! The news logs are lost, cut, repeated, full, or not those of the fleet; or half of the servers do not use them.

use super::{bounds, in_play};
use crate::Rig;
use crate::bench::{Bench, Spec};
use crate::report::Finding;
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

/// From here on nothing is appended to a log.
const FULL: usize = 64 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Damage {
    Lost,
    Cut,
    Repeated,
    /// Entries that no server of the fleet has written.
    Foreign,
    /// Another log of the same minute, which the fleet has written earlier.
    Older,
    Full,
    /// A list, where a string is expected.
    OfAnotherType,
    /// No log: two of five servers have no beats.
    HalfWithout,
}

const ALL: [Damage; 8] = [
    Damage::Lost,
    Damage::Cut,
    Damage::Repeated,
    Damage::Foreign,
    Damage::Older,
    Damage::Full,
    Damage::OfAnotherType,
    Damage::HalfWithout,
];

/// Row 52. It costs delay alone: the rounds bring the same news.
pub fn damaged(rig: &Rig) -> Finding {
    let spec = Spec { sync_every: SECOND / 5, ..Spec::default() };
    in_play(rig, &spec, rig.rate(1000.0), |bench| {
        let mut found = Finding { repetitions: rig.times(20) * ALL.len() as u64, ..Finding::default() };
        for _ in 0..rig.times(20) {
            for damage in ALL {
                let before = corrupt(bench);
                play(bench, damage);
                let refused = corrupt(bench).saturating_sub(before);
                let is_noticed = matches!(damage, Damage::Foreign | Damage::Older | Damage::Full);
                found.check(!is_noticed || refused > 0, || format!("{damage:?}: no server refused a log"));
            }
        }
        bench.wait_until("all servers to be in step", Bench::all_in_step);
        bounds::check(&mut found, bench, "news logs are damaged", bounds::calm(&bench.spec));
        found
    })
}

/// How many values and logs the servers have refused.
fn corrupt(bench: &Bench) -> u64 {
    (0..bench.spec.servers).filter_map(|place| bench.server(place).status()["sync"]["corrupt"].as_u64()).sum()
}

/// Damages the logs of two minutes, again and again.
fn play(bench: &mut Bench, damage: Damage) {
    let lasting = 2 * bench.spec.slot;
    match damage {
        Damage::HalfWithout => {
            for settings in [&[("HEADCOUNT__FLEET__NEWS_EVERY", "0s".to_owned())][..], &[]] {
                for place in 0..2 {
                    bench.stop(place);
                    bench.join(place, settings);
                }
                bench.pass(lasting);
            }
        }
        _ => {
            let mut redis = redis::Client::open(bench.redis.url()).unwrap().get_connection().unwrap();
            let until = bench.origin.now() + lasting;
            let mut older = std::collections::BTreeMap::new();
            while bench.origin.now() < until {
                let keys: Vec<String> = redis::cmd("KEYS").arg("headcount:*:news:*").query(&mut redis).unwrap();
                for key in keys {
                    damage_one(&mut redis, &key, damage, &mut older);
                }
                bench.pass(SECOND / 50);
            }
            if damage == Damage::OfAnotherType {
                // The next beat deletes it.
                bench.pass(SECOND / 5);
            }
        }
    }
}

/// Damages one log. `older` keeps the first version of each log that was seen.
fn damage_one(
    redis: &mut redis::Connection,
    key: &str,
    damage: Damage,
    older: &mut std::collections::BTreeMap<String, Vec<u8>>,
) {
    // The log may be of another type, or have expired.
    let Ok(log) = redis::cmd("GET").arg(key).query::<Vec<u8>>(redis) else { return };
    let write = |redis: &mut redis::Connection, bytes: &[u8]| {
        let _: redis::Value = redis::cmd("SET").arg(key).arg(bytes).arg("KEEPTTL").query(redis).unwrap();
    };
    match damage {
        Damage::Lost => drop(redis::cmd("DEL").arg(key).query::<redis::Value>(redis)),
        Damage::Cut => write(redis, &log[..log.len() * 2 / 3]),
        Damage::Repeated if log.len() > 16 && log.len() < 1 << 20 => {
            let entries = log[16..].repeat(10);
            let _: redis::Value = redis::cmd("APPEND").arg(key).arg(entries).query(redis).unwrap();
        }
        Damage::Foreign => {
            let _: redis::Value = redis::cmd("APPEND").arg(key).arg("x".repeat(100)).query(redis).unwrap();
        }
        Damage::Older => match older.get(key) {
            Some(older) => write(redis, older),
            None => drop(older.insert(key.to_owned(), log)),
        },
        Damage::Full if log.len() < FULL => {
            let _: redis::Value = redis::cmd("SETRANGE").arg(key).arg(FULL).arg("x").query(redis).unwrap();
        }
        Damage::OfAnotherType => {
            // In one step, because a server may create the log again.
            let mut replace = redis::pipe();
            replace.atomic().cmd("DEL").arg(key).cmd("RPUSH").arg(key).arg("x");
            let _: redis::Value = replace.query(redis).unwrap();
        }
        _ => {}
    }
}
