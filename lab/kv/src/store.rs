//! The part of the store that one daemon thread serves. Nothing is allocated per call.

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
};

use crate::{
    codec::{
        Answer, Request, StoreCommand, StoreStatus, Version,
        value::{self, INITIAL},
    },
    place::{Shard, Topology, key_of},
    rng::{Rng, mix64},
    workload::ValueSize,
};

/// Streams of the seed that clients use are numbered from 0; this one fills the store.
const FILL_STREAM: u64 = u64::MAX;

/// Where a value lies.
#[derive(Clone, Copy, Debug)]
struct Place {
    slot: u32,
    len_bytes: u32,
    version: Version,
}

/// One shard's keys and values.
#[derive(Debug)]
pub struct Partition {
    topology: Topology,
    shard: Shard,
    index: HashMap<u64, Place, BuildHasherDefault<KeyHasher>>,
    /// Slots of equal size.
    values: Vec<u8>,
    slot_bytes: usize,
    free: Vec<u32>,
}

impl Partition {
    /// The part of `shard`, with a value for each of its keys.
    ///
    /// # Panics
    ///
    /// If it would have more than 2³² keys.
    #[must_use]
    pub fn filled(topology: Topology, shard: Shard, size: ValueSize, seed: u64) -> Self {
        let keys = (0..topology.keys).map(key_of).filter(|&key| topology.owner(key) == shard);
        let keys = keys.collect::<Vec<_>>();
        let slots = u32::try_from(keys.len()).expect("a shard has fewer than 2^32 keys");
        let slot_bytes = size.max_bytes;
        let mut partition = Self {
            topology,
            shard,
            index: HashMap::with_capacity_and_hasher(keys.len(), BuildHasherDefault::default()),
            values: vec![0; keys.len() * slot_bytes],
            slot_bytes,
            free: (0..slots).rev().collect(),
        };
        let mut rng = Rng::new(seed, FILL_STREAM - u64::from(shard.0));
        let mut bytes = vec![0; slot_bytes];
        for key in keys {
            let filled = &mut bytes[..size.draw(&mut rng)];
            value::fill(filled, key, INITIAL);
            let status = partition.put(key, filled, INITIAL);
            assert_eq!(status, StoreStatus::Ok, "there is a slot for every key");
        }
        partition
    }

    /// Carries out the request in `bytes` and appends the answer's bytes to `to`.
    pub fn serve(&mut self, bytes: &[u8], to: &mut Vec<u8>) {
        match Request::read(bytes) {
            Ok(request) => self.carry_out(&request, to),
            Err(_) => {
                let (op, version) = (None, None);
                let status = StoreStatus::Malformed;
                Answer { op, status, tag: 0, key: 0, version, value: &[] }.write(to);
            }
        }
    }

    fn carry_out(&mut self, request: &Request<'_>, to: &mut Vec<u8>) {
        let Request { tag, key, action } = *request;
        let found = self.index.get(&key).copied();
        let present = found.map(|place| place.version);
        let is_ours = self.topology.owner(key) == self.shard;
        let (status, version) = match action {
            _ if !is_ours => (StoreStatus::WrongShard, None),
            StoreCommand::Get if found.is_none() => (StoreStatus::NotFound, None),
            StoreCommand::Get => (StoreStatus::Ok, present),
            StoreCommand::Put { value } => (self.put_checked(key, value), None),
            StoreCommand::Delete => (self.delete(key), present),
            StoreCommand::Cas { expected, .. } if expected != present => {
                (StoreStatus::Mismatch, present)
            }
            StoreCommand::Cas { value, .. } => (self.put_checked(key, value), None),
        };
        let value = match (action, status, found) {
            (StoreCommand::Get, StoreStatus::Ok, Some(place)) => self.value(place),
            _ => &[],
        };
        Answer { op: Some(action.op()), status, tag, key, version, value }.write(to);
    }

    fn value(&self, place: Place) -> &[u8] {
        &self.values[place.slot as usize * self.slot_bytes..][..place.len_bytes as usize]
    }

    fn put_checked(&mut self, key: u64, value: &[u8]) -> StoreStatus {
        match value::peek(value) {
            Ok((claimed, version)) if claimed == key => self.put(key, value, version),
            _ => StoreStatus::Malformed,
        }
    }

    fn put(&mut self, key: u64, value: &[u8], version: Version) -> StoreStatus {
        let Ok(len_bytes) = u32::try_from(value.len()) else { return StoreStatus::NoRoom };
        if value.len() > self.slot_bytes {
            return StoreStatus::NoRoom;
        }
        let slot = match self.index.get(&key) {
            Some(place) => place.slot,
            None => match self.free.pop() {
                Some(slot) => slot,
                None => return StoreStatus::NoRoom,
            },
        };
        self.index.insert(key, Place { slot, len_bytes, version });
        let at = slot as usize * self.slot_bytes;
        self.values[at..at + value.len()].copy_from_slice(value);
        StoreStatus::Ok
    }

    fn delete(&mut self, key: u64) -> StoreStatus {
        match self.index.remove(&key) {
            Some(place) => {
                self.free.push(place.slot);
                StoreStatus::Ok
            }
            None => StoreStatus::NotFound,
        }
    }
}

/// Keys are hashed already; the owner took the upper bits, so mix again.
#[derive(Debug, Default)]
struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(self.0 ^ u64::from(byte));
        }
    }

    fn write_u64(&mut self, key: u64) {
        self.0 = mix64(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{codec::HEAD_BYTES, place::ClientId};

    const SIZE: ValueSize = ValueSize { min_bytes: 32, max_bytes: 64 };

    fn topology() -> Topology {
        Topology { ranks: 2, daemon_threads: 1, clients_per_rank: 1, keys: 1000 }
    }

    fn partition() -> Partition {
        Partition::filled(topology(), Shard(0), SIZE, 1)
    }

    /// A key that shard 0 owns.
    fn own_key() -> u64 {
        (0..).map(key_of).find(|&key| topology().owner(key) == Shard(0)).unwrap()
    }

    fn ask(
        partition: &mut Partition,
        key: u64,
        action: StoreCommand<'_>,
    ) -> (StoreStatus, Option<Version>, Vec<u8>) {
        let (mut request, mut answer) = (Vec::new(), Vec::new());
        Request { tag: 5, key, action }.write(&mut request);
        partition.serve(&request, &mut answer);
        let answer = Answer::read(&answer).unwrap();
        assert_eq!((answer.op, answer.tag, answer.key), (Some(action.op()), 5, key));
        (answer.status, answer.version, answer.value.to_vec())
    }

    fn value_of(key: u64, version: Version, len_bytes: usize) -> Vec<u8> {
        let mut value = vec![0; len_bytes];
        value::fill(&mut value, key, version);
        value
    }

    #[test]
    fn every_key_has_a_value_at_first() {
        let mut partition = partition();
        let owned = (0..1000).map(key_of).filter(|&key| topology().owner(key) == Shard(0));
        for key in owned {
            let (status, version, value) = ask(&mut partition, key, StoreCommand::Get);
            assert_eq!((status, version), (StoreStatus::Ok, Some(INITIAL)));
            assert!((32..=64).contains(&value.len()));
            assert_eq!(value::read(&value), Ok((key, INITIAL)));
        }
    }

    #[test]
    fn put_get_delete_and_cas_do_what_they_say() {
        let (mut partition, key) = (partition(), own_key());
        let (first, second) = (Version::of(ClientId(0), 1), Version::of(ClientId(0), 2));
        let (one, two) = (value_of(key, first, 40), value_of(key, second, 33));
        let mut ask = |action| ask(&mut partition, key, action);
        assert_eq!(ask(StoreCommand::Put { value: &one }).0, StoreStatus::Ok);
        assert_eq!(ask(StoreCommand::Get), (StoreStatus::Ok, Some(first), one.clone()));
        let cas = |expected, value| StoreCommand::Cas { expected, value };
        let refused = (StoreStatus::Mismatch, Some(first), Vec::new());
        assert_eq!(ask(cas(Some(second), &two)), refused);
        assert_eq!(ask(cas(None, &two)), refused);
        assert_eq!(ask(cas(Some(first), &two)).0, StoreStatus::Ok);
        assert_eq!(ask(StoreCommand::Delete), (StoreStatus::Ok, Some(second), Vec::new()));
        assert_eq!(ask(StoreCommand::Delete).0, StoreStatus::NotFound);
        assert_eq!(ask(StoreCommand::Get), (StoreStatus::NotFound, None, Vec::new()));
        assert_eq!(ask(cas(Some(first), &two)), (StoreStatus::Mismatch, None, Vec::new()));
        assert_eq!(ask(cas(None, &two)).0, StoreStatus::Ok);
    }

    #[test]
    fn what_does_not_fit_or_belong_changes_nothing() {
        let (mut partition, key) = (partition(), own_key());
        let foreign = (0..).map(key_of).find(|&key| topology().owner(key) == Shard(1)).unwrap();
        assert_eq!(ask(&mut partition, foreign, StoreCommand::Get).0, StoreStatus::WrongShard);
        let version = Version::of(ClientId(0), 1);
        let mut put = |key, value: &[u8]| ask(&mut partition, key, StoreCommand::Put { value }).0;
        assert_eq!(put(key, &value_of(key, version, 65)), StoreStatus::NoRoom);
        assert_eq!(put(key, &value_of(key + 1, version, 40)), StoreStatus::Malformed);
        assert_eq!(put(key, &[0; 3]), StoreStatus::Malformed);
        let new = (1000..).map(key_of).find(|&key| topology().owner(key) == Shard(0)).unwrap();
        assert_eq!(put(new, &value_of(new, version, 40)), StoreStatus::NoRoom);
        assert_eq!(ask(&mut partition, key, StoreCommand::Get).1, Some(INITIAL));
        let mut answer = Vec::new();
        partition.serve(&[0; HEAD_BYTES], &mut answer);
        assert_eq!(Answer::read(&answer).unwrap().status, StoreStatus::Malformed);
    }
}
