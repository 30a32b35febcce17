//! Purges the databases of limits: deletes attempts that no longer count, and keys that are answered like new ones.

use crate::headcount::{Headcount, LimitDatabase};
use crate::limit::SqlError;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// The time limit of a purge's statement. The purge has its own connection, so no request waits for it.
pub(super) const TIME_LIMIT: Duration = Duration::from_secs(10);

/// The average pause when nothing is left to delete, or when the database does not answer.
const IDLE_PAUSE: Duration = Duration::from_secs(5);

/// The pause between two batches, as a multiple of the time that the last batch took.
const PAUSE_FACTOR: u32 = 2;

const SHORTEST_PAUSE: Duration = Duration::from_millis(5);

/// The result of one batch.
pub(super) struct Batch {
    pub(super) rows: u64,
    /// Whether there may be more rows to delete.
    pub(super) is_full: bool,
}

/// Purges in batches for as long as the server runs. Logs the first failure, and the first success after it.
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
        // Random, so that servers that started together do not purge at the same time.
        let idle = IDLE_PAUSE.mul_f64(0.5 + fastrand::f64());
        let busy = (begun.elapsed() * PAUSE_FACTOR).clamp(SHORTEST_PAUSE, idle);
        sleep(if is_full { busy } else { idle }).await;
    }
}
