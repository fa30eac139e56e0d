//! The part of the store that one daemon thread serves. Nothing is allocated per call.

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
};

use crate::{
    codec::{
        Action, Answer, Request, Status, Version,
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
            assert_eq!(status, Status::Ok, "there is a slot for every key");
        }
        partition
    }

    /// Carries out the request in `bytes` and appends the answer's bytes to `to`.
    pub fn serve(&mut self, bytes: &[u8], to: &mut Vec<u8>) {
        match Request::read(bytes) {
            Ok(request) => self.carry_out(&request, to),
            Err(_) => {
                let (op, version) = (None, None);
                let status = Status::Malformed;
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
            _ if !is_ours => (Status::WrongShard, None),
            Action::Get if found.is_none() => (Status::NotFound, None),
            Action::Get => (Status::Ok, present),
            Action::Put { value } => (self.put_checked(key, value), None),
            Action::Delete => (self.delete(key), present),
            Action::Cas { expected, .. } if expected != present => (Status::Mismatch, present),
            Action::Cas { value, .. } => (self.put_checked(key, value), None),
        };
        let value = match (action, status, found) {
            (Action::Get, Status::Ok, Some(place)) => self.value(place),
            _ => &[],
        };
        Answer { op: Some(action.op()), status, tag, key, version, value }.write(to);
    }

    fn value(&self, place: Place) -> &[u8] {
        &self.values[place.slot as usize * self.slot_bytes..][..place.len_bytes as usize]
    }

    fn put_checked(&mut self, key: u64, value: &[u8]) -> Status {
        match value::peek(value) {
            Ok((claimed, version)) if claimed == key => self.put(key, value, version),
            _ => Status::Malformed,
        }
    }

    fn put(&mut self, key: u64, value: &[u8], version: Version) -> Status {
        let Ok(len_bytes) = u32::try_from(value.len()) else { return Status::NoRoom };
        if value.len() > self.slot_bytes {
            return Status::NoRoom;
        }
        let slot = match self.index.get(&key) {
            Some(place) => place.slot,
            None => match self.free.pop() {
                Some(slot) => slot,
                None => return Status::NoRoom,
            },
        };
        self.index.insert(key, Place { slot, len_bytes, version });
        let at = slot as usize * self.slot_bytes;
        self.values[at..at + value.len()].copy_from_slice(value);
        Status::Ok
    }

    fn delete(&mut self, key: u64) -> Status {
        match self.index.remove(&key) {
            Some(place) => {
                self.free.push(place.slot);
                Status::Ok
            }
            None => Status::NotFound,
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
        action: Action<'_>,
    ) -> (Status, Option<Version>, Vec<u8>) {
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
            let (status, version, value) = ask(&mut partition, key, Action::Get);
            assert_eq!((status, version), (Status::Ok, Some(INITIAL)));
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
        assert_eq!(ask(Action::Put { value: &one }).0, Status::Ok);
        assert_eq!(ask(Action::Get), (Status::Ok, Some(first), one.clone()));
        let cas = |expected, value| Action::Cas { expected, value };
        let refused = (Status::Mismatch, Some(first), Vec::new());
        assert_eq!(ask(cas(Some(second), &two)), refused);
        assert_eq!(ask(cas(None, &two)), refused);
        assert_eq!(ask(cas(Some(first), &two)).0, Status::Ok);
        assert_eq!(ask(Action::Delete), (Status::Ok, Some(second), Vec::new()));
        assert_eq!(ask(Action::Delete).0, Status::NotFound);
        assert_eq!(ask(Action::Get), (Status::NotFound, None, Vec::new()));
        assert_eq!(ask(cas(Some(first), &two)), (Status::Mismatch, None, Vec::new()));
        assert_eq!(ask(cas(None, &two)).0, Status::Ok);
    }

    #[test]
    fn what_does_not_fit_or_belong_changes_nothing() {
        let (mut partition, key) = (partition(), own_key());
        let foreign = (0..).map(key_of).find(|&key| topology().owner(key) == Shard(1)).unwrap();
        assert_eq!(ask(&mut partition, foreign, Action::Get).0, Status::WrongShard);
        let version = Version::of(ClientId(0), 1);
        let mut put = |key, value: &[u8]| ask(&mut partition, key, Action::Put { value }).0;
        assert_eq!(put(key, &value_of(key, version, 65)), Status::NoRoom);
        assert_eq!(put(key, &value_of(key + 1, version, 40)), Status::Malformed);
        assert_eq!(put(key, &[0; 3]), Status::Malformed);
        let new = (1000..).map(key_of).find(|&key| topology().owner(key) == Shard(0)).unwrap();
        assert_eq!(put(new, &value_of(new, version, 40)), Status::NoRoom);
        assert_eq!(ask(&mut partition, key, Action::Get).1, Some(INITIAL));
        let mut answer = Vec::new();
        partition.serve(&[0; HEAD_BYTES], &mut answer);
        assert_eq!(Answer::read(&answer).unwrap().status, Status::Malformed);
    }
}
