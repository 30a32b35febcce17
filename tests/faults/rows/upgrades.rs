//! Rolling upgrades and rollbacks between two builds: what docs/upgrading.md says, played with real processes.
//!
//! `./test upgrade` builds the other two programs.

use super::{bounds, heard};
use crate::Rig;
use crate::bench::{Bench, CAPACITY, EARLIER_KEYS, KEY, SECRET, Spec, X};
use crate::report::Finding;
use std::path::PathBuf;
use std::time::Duration;
use tempfile::NamedTempFile;

/// The programs that are not the tested one.
pub struct Builds {
    /// An earlier revision.
    pub earlier: PathBuf,
    /// The tested revision with another number of the format.
    pub other_format: PathBuf,
}

/// A program with its settings; `None` is the tested program.
#[derive(Default)]
struct Release {
    program: Option<PathBuf>,
    settings: Vec<(&'static str, String)>,
    /// Whether the servers of the release before cannot read what its servers write.
    is_unread: bool,
}

const NEW_KEY: &str = "another key of the fleet";

/// The version alone.
pub fn version(rig: &Rig) -> Finding {
    there_and_back(rig, |_| Vec::new())
}

/// The version and X, with a fixed capacity: one generation.
pub fn version_and_x(rig: &Rig) -> Finding {
    let with_x = |x: u64| vec![(CAPACITY, "16384".to_owned()), (X, x.to_string())];
    there_and_back(rig, |is_new| with_x(if is_new { 1200 } else { 1000 }))
}

/// The version and the capacity: two generations that read each other.
pub fn version_and_capacity(rig: &Rig) -> Finding {
    there_and_back(rig, |is_new| vec![(CAPACITY, if is_new { "65536" } else { "16384" }.to_owned())])
}

/// The version and the fleet's key. The new release names the former key, and the rollback names the new one.
pub fn version_and_key(rig: &Rig) -> Finding {
    let [first, second] = [SECRET, NEW_KEY].map(|key| {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        std::fs::write(file.path(), key).expect("a key");
        file
    });
    let names = |file: &NamedTempFile| (EARLIER_KEYS, file.path().display().to_string());
    let earlier = || Some(rig.builds().earlier.clone());
    let initial = Release { program: earlier(), ..Release::default() };
    let new =
        Release { settings: vec![(KEY, NEW_KEY.to_owned()), names(&first)], is_unread: true, ..Release::default() };
    let rolled_back = Release { program: earlier(), settings: vec![names(&second)], ..Release::default() };
    roll(rig, &[&initial, &new, &rolled_back])
}

/// The version, with another format: two generations that read each other, because the bytes of a value are the same.
pub fn format(rig: &Rig) -> Finding {
    let old = Release::default();
    let new = Release { program: Some(rig.builds().other_format.clone()), ..Release::default() };
    roll(rig, &[&old, &new, &old])
}

/// From the earlier build to the tested one, and back; `settings` tells what each release is configured with.
fn there_and_back(rig: &Rig, settings: impl Fn(bool) -> Vec<(&'static str, String)>) -> Finding {
    let program = Some(rig.builds().earlier.clone());
    let old = Release { program, settings: settings(false), ..Release::default() };
    let new = Release { settings: settings(true), ..Release::default() };
    roll(rig, &[&old, &new, &old])
}

/// Starts a fleet with the first release, fills it, and replaces its servers one after another by those of each further
/// release, while a crowd asks. No active user is rejected, and X holds.
fn roll(rig: &Rig, releases: &[&Release]) -> Finding {
    let mut bench = Bench::empty(rig.runtime.handle(), Spec { slots: 15, environment: Vec::new(), ..Spec::default() });
    let servers = bench.spec.servers;
    (0..servers).for_each(|place| _ = start(&mut bench, place, releases[0]));
    let mut slowest = Duration::ZERO;
    bench.fill();
    let crowd = bench.crowd(rig.rate(4000.0));
    bench.pass(bench.news());
    for release in &releases[1..] {
        for place in 0..servers {
            if release.is_unread {
                bench.origin.cut_off(0..place + 1);
            }
            let (status, _) = bench.stop(place);
            assert_eq!(status, Some(0), "a server that is told to stop ends with 0");
            slowest = slowest.max(start(&mut bench, place, release));
        }
        bench.origin.reunited();
        // Longer than a window: users that only the release before remembers are forgotten by then.
        bench.pass(bench.window() + bench.news());
    }
    drop(crowd);
    let mut found = Finding { repetitions: 1, ..Finding::default() };
    found.recovered(slowest);
    let tally = bench.origin.tally();
    found.check(tally.rejected > 0, || format!("nobody was rejected: {tally:?}"));
    found.check(tally.by_news > 0, || "nobody was known by news alone".into());
    bounds::check(&mut found, &bench, "an upgrade and a rollback", bounds::DEPLOY);
    found.and(heard(&bench))
}

/// Starts a server of a release, and sends the crowd to it as soon as it is ready. Returns how long that took.
fn start(bench: &mut Bench, place: usize, release: &Release) -> Duration {
    bench.program.clone_from(&release.program);
    let url = bench.url();
    bench.start_hidden(place, &release.settings, &url);
    let took = bench.wait_until("the server to be ready", |bench| bench.server(place).is_ready());
    bench.show(place);
    took
}
