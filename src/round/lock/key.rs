//! A state as bytes, so that equal states have equal bytes.

use super::stage::Server;
use super::store::Store;
use super::{Left, SERVERS, World};
use crate::ring::Recorded;
use crate::ring::codec::Covers;
use crate::ring::news::decode;
use crate::round::news::number_of;
use crate::round::{LOG_ID_BYTES, Publish, Request, Version, Versions};
use crate::time::Slot;
use std::collections::HashMap;

/// Returns the state as bytes, with the servers in this order.
pub(super) fn of(world: &World, order: &[usize; SERVERS], versions: Versions) -> Vec<u8> {
    let rename = versions == Versions::Unique;
    let mut key = Key { world, bytes: Vec::new(), names: HashMap::new(), logs: HashMap::new(), rename };
    let Left { tokens, turns, flushes, copies, failovers, late_writes, late_beats, lost_logs } = world.left;
    let left = [tokens as u8, turns as u8, flushes, copies, failovers, late_writes, late_beats, lost_logs];
    key.bytes.extend(left);
    key.bytes.push(u8::from(world.has_lost));
    key.store(&world.store, order);
    key.option(world.copy.as_ref(), |key, copy| key.store(copy, order));
    key.option(world.late.as_ref(), Key::publish);
    key.option(world.late_beat.as_ref(), |key, (place, request)| {
        key.bytes.push(order.iter().position(|at| at == place).expect("a server") as u8);
        key.request(request);
    });
    order.iter().for_each(|&place| key.server(&world.servers[place]));
    key.bytes
}

struct Key<'w> {
    world: &'w World,
    bytes: Vec<u8>,
    names: HashMap<&'w str, u8>,
    /// The numbers of logs, and what they are called here.
    logs: HashMap<u64, u8>,
    rename: bool,
}

impl<'w> Key<'w> {
    fn option<T: ?Sized>(&mut self, value: Option<&'w T>, write: impl FnOnce(&mut Self, &'w T)) {
        self.bytes.push(u8::from(value.is_some()));
        if let Some(value) = value {
            write(self, value);
        }
    }

    fn version(&mut self, version: &'w Version) {
        if self.rename {
            let next = self.names.len() as u8;
            self.bytes.push(*self.names.entry(&version.0).or_insert(next));
        } else {
            self.bytes.extend(version.0.as_bytes());
            self.bytes.push(b' ');
        }
    }

    fn log_id(&mut self, id: [u8; LOG_ID_BYTES]) {
        self.log_number(number_of(id));
    }

    fn log_number(&mut self, number: u64) {
        let next = self.logs.len() as u8;
        let named = if number == 0 { u8::MAX } else { *self.logs.entry(number).or_insert(next) };
        self.bytes.push(named);
    }

    fn covers(&mut self, covers: Covers) {
        match covers {
            Covers::Nothing => self.bytes.push(0),
            Covers::Minute => self.bytes.push(1),
            Covers::MinuteWithLog(number) => {
                self.bytes.push(2);
                self.log_number(number);
            }
        }
    }

    fn slots(&mut self, slots: impl ExactSizeIterator<Item = Slot>) {
        self.bytes.push(slots.len() as u8);
        slots.for_each(|slot| self.slot(slot));
    }

    fn slot(&mut self, slot: Slot) {
        self.bytes.push(slot.0 as u8);
    }

    fn store(&mut self, store: &'w Store, order: &[usize; SERVERS]) {
        self.bytes.push(store.values.len() as u8);
        for (&slot, (version, value)) in &store.values {
            self.slot(slot);
            self.version(version);
            self.value(value);
        }
        self.bytes.push(store.logs.len() as u8);
        for (&slot, log) in &store.logs {
            self.slot(slot);
            let (id, entries) = log.bytes.split_first_chunk().expect("an identity");
            self.log_id(*id);
            self.entries(slot, entries);
        }
        self.bytes.extend(order.iter().map(|&place| u8::from(store.readers[place])));
    }

    /// Writes the fingerprints of each entry. The other bytes are random.
    fn entries(&mut self, slot: Slot, mut entries: &[u8]) {
        let mac = self.world.servers[0].round.codec.mac();
        while let Some(entry) = decode(slot, entries, mac).expect("an entry that a server wrote") {
            self.bytes.push(entry.fingerprints.len() as u8);
            self.bytes.extend(entry.fingerprints.iter().flat_map(|fingerprint| fingerprint.0.to_le_bytes()));
            entries = &entries[entry.bytes..];
        }
        self.bytes.push(0);
    }

    /// Writes what the flags say and a hash of the payload (see `ring/codec.rs`). The MAC depends on the name of the
    /// version.
    fn value(&mut self, value: &[u8]) {
        self.covers(Covers::of_flags(u64::from_le_bytes(value[24..32].try_into().expect("eight bytes"))));
        self.bytes.extend(super::xxh3_128(&value[48..]).to_le_bytes());
    }

    fn publish(&mut self, publish: &'w Publish) {
        self.bytes.push(publish.minutes.len() as u8);
        let mut minutes: Vec<_> = publish.minutes.iter().collect();
        minutes.sort_by_key(|minute| minute.slot);
        for minute in minutes {
            self.slot(minute.slot);
            self.option(minute.after.as_ref(), Self::version);
            self.version(&minute.version);
            self.value(&minute.value);
        }
    }

    fn request(&mut self, request: &'w Request) {
        match request {
            Request::Look { slots, .. } => {
                self.bytes.push(1);
                self.slots(slots.iter().copied());
            }
            Request::Fetch { slots } => {
                self.bytes.push(2);
                self.slots(slots.iter().copied());
            }
            Request::Publish(publish) => {
                self.bytes.push(3);
                self.publish(publish);
            }
            Request::ExchangeNews { logs, seats, .. } => {
                self.bytes.extend([4, u8::from(seats.reads_logs), logs.len() as u8]);
                for log in logs {
                    self.slot(log.slot);
                    self.log_id(log.id);
                    self.log_id(if log.entry.is_empty() { [0; LOG_ID_BYTES] } else { log.new_id });
                    self.entries(log.slot, &log.entry);
                }
            }
            Request::Leave => unreachable!("no server leaves"),
            Request::LookBeside { .. } | Request::FetchBeside { .. } => unreachable!("there is one generation"),
        }
    }

    fn recorded(&mut self, recorded: &[Recorded]) {
        self.bytes.push(recorded.len() as u8);
        self.bytes.extend(recorded.iter().flat_map(|recorded| recorded.fingerprint().0.to_le_bytes()));
    }

    fn server(&mut self, server: &'w Server) {
        for minute in &server.minutes {
            self.bytes.extend(minute.words.iter().flat_map(|word| word.to_le_bytes()));
            self.bytes.extend([minute.lack as u8, minute.published_ones as u8]);
        }
        server.unsent.iter().for_each(|unsent| self.recorded(unsent));
        self.bytes.push(server.round.known.len() as u8);
        for (&slot, known) in &server.round.known {
            self.slot(slot);
            self.version(&known.entry.version);
            self.covers(known.covers);
        }
        let world = self.world;
        self.bytes.push(server.round.news.logs.len() as u8);
        for (&slot, log) in &server.round.news.logs {
            self.slot(slot);
            self.log_id(log.id);
            let is_same = server.read_of_log(&world.store, slot).is_some();
            let of_copy = world.copy.as_ref().is_some_and(|copy| server.read_of_log(copy, slot).is_some());
            let flags = [is_same, of_copy, log.is_refused, log.is_complete, log.is_shortened].map(u8::from);
            self.bytes.extend(flags);
            self.bytes.extend(log.read_to.to_le_bytes());
            self.bytes.push(log.restarts as u8);
            self.bytes.extend(log.read_at.map_or(u16::MAX, |at| at.as_millis() as u16).to_le_bytes());
        }
        let (readers, at) = server.round.readers_in_ledger();
        self.bytes.extend([readers as u8, at.map_or(u8::MAX, |at| at.as_millis() as u8)]);
        self.option(server.asks.as_ref(), Self::request);
    }
}
