//! Writes numbers as the Redis script reads them.

use super::PolicyError;
use std::time::Duration;

/// The script computes with doubles, which are exact up to this number: 104 days in nanoseconds.
const EXACT: u64 = 1 << 53;

/// Returns a time in nanoseconds, or an error if the script cannot compute it exactly.
pub(super) fn time(nanos: u64) -> Result<u64, PolicyError> {
    if nanos > EXACT { Err(PolicyError::TooLongForRedis { found: Duration::from_nanos(nanos) }) } else { Ok(nanos) }
}

/// Returns a number of permits, or an error if the script cannot compute it exactly.
pub(super) fn permits(found: u64) -> Result<u64, PolicyError> {
    super::at_most(EXACT, found).map(|()| found)
}

/// Returns `1` for true and `0` for false.
pub(super) fn flag(is_set: bool) -> u8 {
    u8::from(is_set)
}
