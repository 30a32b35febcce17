//! The model of the store: a compare-and-set per minute, like `lua/write.lua`, the real code of the news logs, and of
//! the ledger only which servers read the logs.

use super::{Mutant, SERVERS};
use crate::round::logs::{Logs, exchange_news};
use crate::round::{
    Entry, LOG_ID_BYTES, LogRequest, Looked, Outgoing, Published, Reply, Request, SeatReply, Stored, Version,
};
use crate::time::{Slot, Timestamp};
use std::collections::BTreeMap;

#[derive(Clone, Default)]
pub(super) struct Store {
    /// Each value has a version.
    pub(super) values: BTreeMap<Slot, (Version, Vec<u8>)>,
    pub(super) logs: Logs,
    /// Whether each server has said with its last beat that it reads the logs.
    pub(super) readers: [bool; SERVERS],
}

impl Store {
    /// Answers a request of the server at `place`.
    pub(super) fn answer(&mut self, place: usize, request: Request, time: Timestamp, mutant: Mutant) -> Reply {
        match request {
            Request::Look { slots, .. } => Reply::Looked(self.look(&slots, time)),
            Request::Fetch { slots } => Reply::Fetched(slots.iter().filter_map(|&slot| self.fetch(slot)).collect()),
            Request::Publish(publish) => {
                let written = publish.minutes.into_iter().map(|minute| self.write(minute)).collect();
                Reply::Published(Published { written, since: None })
            }
            Request::Leave => Reply::Left,
            Request::LookBeside { .. } | Request::FetchBeside { .. } => unreachable!("there is one generation"),
            Request::ExchangeNews { logs, seats, .. } => {
                self.readers[place] = seats.reads_logs;
                let says_so = |reads: &&bool| **reads || mutant == Mutant::LazyBesideOthers;
                let readers = self.readers.iter().filter(says_so).count() as u64;
                let reply = SeatReply { epoch: 1, is_quiet: true, servers: SERVERS as u64, readers, ..<_>::default() };
                let answer = |mut log: LogRequest| {
                    if mutant == Mutant::LastBytesUnchecked {
                        log.last_read = self.bytes_before(log.slot, log.read_to).unwrap_or(log.last_read);
                    }
                    exchange_news(&mut self.logs, log, time)
                };
                let logs = logs.into_iter().map(answer).collect();
                Reply::News { logs, seats: Some(reply), line: None }
            }
        }
    }

    /// The last bytes of a minute's log before a position.
    fn bytes_before(&self, slot: Slot, position: u64) -> Option<[u8; 8]> {
        let read = self.logs.get(&slot)?.bytes.get(LOG_ID_BYTES..usize::try_from(position).ok()?)?;
        read.last_chunk().copied()
    }

    fn look(&self, slots: &[Slot], time: Timestamp) -> Looked {
        let entry = |(version, value): &(Version, Vec<u8>)| Entry { version: version.clone(), bytes: value.len() };
        Looked {
            time,
            minutes: slots.iter().map(|slot| self.values.get(slot).map(entry)).collect(),
            since: None,
            last_heartbeat: None,
            gap: None,
            override_: None,
            nodes: SERVERS as u64,
            wanting: 0,
            without_beats: false,
            named: Vec::new(),
            other_generations: Vec::new(),
            has_more_generations: false,
            write_refused: None,
            before: None,
        }
    }

    fn fetch(&self, slot: Slot) -> Option<Stored> {
        self.values.get(&slot).map(|(version, value)| Stored { slot, version: version.clone(), value: value.clone() })
    }

    fn write(&mut self, minute: Outgoing) -> bool {
        let unchanged = self.values.get(&minute.slot).map(|(version, _)| version) == minute.after.as_ref();
        if unchanged {
            self.values.insert(minute.slot, (minute.version, minute.value));
        }
        unchanged
    }
}
