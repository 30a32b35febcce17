//! Maps the errors of a Redis server to classes and to what has to be done.

use super::address::Address;
use crate::store_error::StoreError;
use redis::{ErrorKind, RedisError, ServerErrorKind};

/// Returns whether a server's refusal says that this node does not take writes.
pub(crate) fn is_read_only(refusal: &str) -> bool {
    refusal.contains("READONLY") || refusal.contains("read only replica")
}

/// Returns why a server refused a write although it still answers reads.
pub(crate) fn refused_write(refusal: &str) -> StoreError {
    if refusal.contains("OOM") {
        StoreError::full(format_args!("{refusal}. Raise maxmemory, or let Redis evict other keys"))
    } else if refusal.contains("NOPERM") || refusal.contains("ACL") {
        StoreError::refused(format_args!("{refusal}. Give the user of redis.url this permission"))
    } else {
        // READONLY; MISCONF, because of the disk; NOREPLICAS, because replicas are missing.
        StoreError::read_only(refusal)
    }
}

/// Returns the node that has the keys now, if the error says so. `asked` is the node that says it: it leaves its own
/// host out.
pub(super) fn moved_to(error: &RedisError, asked: Option<&Address>) -> Option<Address> {
    if error.kind() != ErrorKind::Server(ServerErrorKind::Moved) {
        return None;
    }
    let (host, port) = error.redirect_node()?.0.rsplit_once(':')?;
    let host = Some(host).filter(|host| !host.is_empty()).or(asked.and_then(Address::host))?;
    Some(Address::Tcp(host.to_owned(), port.parse().ok()?))
}

/// Returns whether the connection cannot be used any more after this error.
pub(super) fn is_final(error: &RedisError) -> bool {
    error.is_unrecoverable_error()
        || error.is_io_error()
        || error.kind() == ErrorKind::Server(ServerErrorKind::ReadOnly)
        // The node was cut off from the others of its cluster, which may have replaced it.
        || error.kind() == ErrorKind::Server(ServerErrorKind::ClusterDown)
        // If a script fails because the node is a replica, older servers report a script error. Only its text says
        // READONLY.
        || error.detail().is_some_and(is_read_only)
}

/// Returns what went wrong and what to do about it.
pub(super) fn error(error: &RedisError) -> StoreError {
    match error.kind() {
        _ if error.is_timeout() => return StoreError::timeout(error),
        ErrorKind::Parse if error.to_string().contains("end of input") => {
            return StoreError::unavailable("the connection ended in the middle of an answer");
        }
        ErrorKind::Parse | ErrorKind::UnexpectedReturnType => {
            // Omits the answer, which may contain anything.
            let words = error.to_string();
            return StoreError::corrupt(words.split(" (value was").next().unwrap_or_default());
        }
        ErrorKind::AuthenticationFailed | ErrorKind::InvalidClientConfig => {
            return StoreError::refused(format_args!("{error}. Is the password in redis.url right?"));
        }
        _ => {}
    }
    let words = error.detail().unwrap_or_default();
    let Some(code) = error.code() else { return StoreError::unavailable(error) };
    // Some servers repeat the arguments of a failed command, and one of them may be a password.
    let words = words.split(", with args beginning with").next().unwrap_or_default();
    let said = format!("{code} {}", words.trim_end_matches('.'));
    match code {
        "NOAUTH" => {
            StoreError::refused(format_args!("{said}. Put the password into redis.url: redis://:password@host"))
        }
        "WRONGPASS" => StoreError::refused(format_args!("{said}. Put the right user name and password into redis.url")),
        "NOPERM" => refused_write(&said),
        "DENIED" => StoreError::refused(said),
        // Whether this can be followed is known where the connection is kept.
        "MOVED" => StoreError::unavailable(said),
        "ASK" | "TRYAGAIN" => StoreError::unavailable(format_args!(
            "{said}. These keys are being moved to another node. This is tried again; if it lasts, see \
             redis-cli --cluster fix"
        )),
        "CLUSTERDOWN" => StoreError::unavailable(format_args!(
            "{said}. The cluster has lost too many nodes, or some slots have none: CLUSTER NODES shows which. This is \
             tried again"
        )),
        "OOM" | "READONLY" | "MISCONF" | "NOREPLICAS" => refused_write(&said),
        "WRONGTYPE" => StoreError::corrupt(said),
        "ERR" if is_read_only(words) || words.contains("OOM command") => refused_write(&said),
        "ERR"
            if ["unknown command", "DB index", "invalid password", "without any password", "AUTH"]
                .iter()
                .any(|sign| words.contains(sign)) =>
        {
            StoreError::refused(format_args!("{said}. See redis.url"))
        }
        // LOADING, MASTERDOWN, BUSY, EXECABORT, and other errors that pass by themselves.
        _ => StoreError::unavailable(said),
    }
}
