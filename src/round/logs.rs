//! The news logs as a store in memory keeps them: like `lua/exchange_news.lua` in Redis. The model of the store in
//! `lock/` uses them, too.

use super::{LOG_ID_BYTES, LogPart, LogRequest, MOST_LOG_BYTES, MOST_NEWS_BYTES};
use crate::time::{Slot, Timestamp};
use std::collections::BTreeMap;

pub(crate) type Logs = BTreeMap<Slot, Log>;

/// A minute's news log: its identity and the entries.
#[derive(Debug, Clone)]
pub(crate) struct Log {
    pub(crate) bytes: Vec<u8>,
    pub(crate) until: Timestamp,
}

/// Reads and extends a minute's news log, as `exchange_news.lua` does.
pub(crate) fn exchange_news(logs: &mut Logs, request: LogRequest, now: Timestamp) -> LogPart {
    let LogRequest { slot, name: _, id, new_id, read_to, last_read, entry, newcomers: _, keep_for } = request;
    let until = keep_for.map(|time| now.plus(time));
    let mut part = LogPart { from: LOG_ID_BYTES as u64, ..LogPart::default() };
    if let Some(Log { bytes, .. }) = logs.get(&slot) {
        let read = usize::try_from(read_to).ok().and_then(|read_to| bytes.get(LOG_ID_BYTES..read_to));
        let is_ours = read.is_some_and(|read| read.last_chunk() == Some(&last_read));
        (part.id, part.from) = if is_ours { (Some(id), read_to) } else { (bytes.first_chunk().copied(), part.from) };
        part.bytes = bytes[part.from as usize..].iter().take(MOST_NEWS_BYTES).copied().collect();
    }
    if !entry.is_empty() {
        let new = || Log { bytes: new_id.to_vec(), until: until.unwrap_or(now) };
        let log = logs.entry(slot).or_insert_with(new);
        if log.bytes.len() < MOST_LOG_BYTES {
            part.id = part.id.or(Some(new_id));
            part.appended_at = Some(log.bytes.len() as u64);
            log.bytes.extend_from_slice(&entry);
        }
    }
    if let (Some(log), Some(until)) = (logs.get_mut(&slot), until) {
        log.until = log.until.min(until);
    }
    part
}
