//! What limits leave behind in databases is deleted all the time: keys that are as new, attempts that no longer count.

use crate::headcount::{Headcount, LimitDatabase};
use crate::limit::SqlError;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// How long a purge's statement may take. It has a connection of its own, so no request waits for it.
pub(super) const WITHIN: Duration = Duration::from_secs(10);

/// How long the purge rests when nothing is left to delete, or when the database does not answer.
const REST: Duration = Duration::from_secs(5);

/// How long it rests between two batches, in times of what the last batch took.
const RESTS: u32 = 2;

const SHORTEST_REST: Duration = Duration::from_millis(5);

/// What one batch has done.
pub(super) struct Batch {
    pub(super) rows: u64,
    /// Whether there may be more.
    pub(super) is_full: bool,
}

/// Purges batch after batch for as long as the server runs; logs the first failure, and the first success after it.
pub(super) async fn keep_purging<F>(headcount: Headcount, database: LimitDatabase, purge: impl Fn() -> F)
where
    F: Future<Output = Result<Batch, SqlError>>,
{
    let mut fails = false;
    loop {
        let begun = Instant::now();
        let batch = purge().await;
        headcount.count_purge(database, batch.as_ref().map_or(None, |batch| Some(batch.rows)));
        if let (Err(error), false) = (&batch, fails) {
            tracing::warn!(%error, "the database of [{database}] is not purged: it grows until it is");
        }
        if batch.is_ok() && fails {
            tracing::info!("the database of [{database}] is purged again");
        }
        fails = batch.is_err();
        let is_full = batch.is_ok_and(|batch| batch.is_full);
        // So that servers that started together do not purge at the same moments.
        let rest = REST.mul_f64(0.5 + fastrand::f64());
        sleep(if is_full { (begun.elapsed() * RESTS).clamp(SHORTEST_REST, rest) } else { rest }).await;
    }
}
