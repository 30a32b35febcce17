//! File descriptors: each connection needs one, and the number per process is limited.

use super::listener::MAX_ADMIN_CONNECTIONS;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The largest number of connections for checks. A proxy keeps some dozens open, and an application as many as it has
/// threads.
const MOST_CHECKS: u64 = 4096;

/// The files that a server has open besides its listeners' connections: stores, snapshot, log.
const OTHERS: u64 = 128;

/// Returns how many connections for checks are allowed, so that neither they nor the admin's connections use up all
/// file descriptors. If this process's soft limit is too low, raises it as far as needed and as the hard limit allows.
pub(super) fn most_checks() -> usize {
    let wanted = MOST_CHECKS + MAX_ADMIN_CONNECTIONS as u64 + OTHERS;
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let mut allowed = current.unwrap_or(u64::MAX);
    if allowed < wanted {
        let raised = maximum.unwrap_or(u64::MAX).min(wanted);
        if setrlimit(Resource::Nofile, Rlimit { current: Some(raised), maximum }).is_ok() {
            allowed = raised;
        }
    }
    let most = share(allowed);
    if most < MOST_CHECKS as usize {
        tracing::warn!(
            files = allowed,
            connections = most,
            "the limit of open files is low: only this many checks can connect at once; raise it (ulimit -n, \
             LimitNOFILE)"
        );
    }
    most
}

/// Returns how many of `allowed` file descriptors checks may use.
fn share(allowed: u64) -> usize {
    allowed.saturating_sub(MAX_ADMIN_CONNECTIONS as u64 + OTHERS).max(allowed / 4).clamp(1, MOST_CHECKS) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checks_leave_something_to_the_others() {
        for (allowed, checks) in [(1 << 20, 4096), (4352, 4096), (1024, 768), (300, 75), (0, 1)] {
            assert_eq!(share(allowed), checks, "{allowed}");
        }
    }
}
