//! Names of services and methods, and the numbers that they stand for.

use crate::message::{DAEMON, DESCRIPTION_BYTES_MAX, MethodRecord};
use zerocopy::{FromBytes as _, IntoBytes as _};

/// Longest name of a service.
pub const NAME_BYTES_MAX: usize = 255;

/// A name that another process chose, for a terminal or a log: each control character, and each byte that is no text, is
/// replaced.
#[must_use]
pub fn printable(name: &[u8]) -> String {
    let name = String::from_utf8_lossy(name);
    name.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// FNV-1a of 64 bits: small, the same everywhere, and part of what nodes tell each other.
#[must_use]
pub const fn hash(text: &[u8]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut index = 0;
    while index < text.len() {
        hash = (hash ^ text[index] as u64).wrapping_mul(0x0000_0100_0000_01b3);
        index += 1;
    }
    hash
}

/// The number that a service of this name has: never 0. Two names may share one; the daemon refuses the
/// second, whose service then needs a number of its own.
#[must_use]
pub const fn service_number(name: &str) -> u16 {
    let number = folded(hash(name.as_bytes()));
    if number == DAEMON { 1 } else { number }
}

/// The number that a method of this name has.
#[must_use]
pub const fn method_number(name: &str) -> u16 {
    folded(hash(name.as_bytes()))
}

const fn folded(hash: u64) -> u16 {
    let word = hash ^ (hash >> 32);
    ((word ^ (word >> 16)) & 0xffff) as u16
}

/// The name of a service, and the fingerprint of the types of each of its methods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Description {
    /// Its name; empty if it has none.
    pub name: String,
    /// Its methods, with fingerprints of their types.
    pub methods: Vec<MethodRecord>,
}

impl Description {
    /// As it travels: the name, and the table.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = self.name.as_bytes().to_vec();
        bytes.extend_from_slice(self.methods.as_bytes());
        bytes
    }

    /// What a node answers to a question for a service: length of the name, name, table. `None` if it is
    /// none.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (length, rest) = bytes.split_first_chunk()?;
        let (name, table) = rest.split_at_checked(u16::from_le_bytes(*length).into())?;
        let methods = <[MethodRecord]>::ref_from_bytes(table).ok()?.to_vec();
        Some(Self { name: std::str::from_utf8(name).ok()?.to_owned(), methods })
    }

    /// Whether it may be told to a daemon.
    pub(crate) fn fits(&self) -> bool {
        self.name.len() <= NAME_BYTES_MAX && self.encode().len() <= DESCRIPTION_BYTES_MAX
    }

    /// The method of this number in a table that has one with another fingerprint.
    #[must_use]
    pub fn mismatch(&self, expected: &[MethodRecord]) -> Option<u16> {
        let differs = |wanted: &&MethodRecord| {
            self.methods.iter().any(|known| {
                known.method == wanted.method && known.fingerprint != wanted.fingerprint
            })
        };
        expected.iter().find(differs).map(|record| record.method.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_steer_a_terminal() {
        assert_eq!(printable(b"\x1b[2Jmeta\ndata\xff"), "?[2Jmeta?data\u{fffd}");
    }

    #[test]
    fn numbers_of_names_never_change() {
        assert_eq!(hash(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(hash(b"a"), 0xaf63_dc4c_8601_ec8c);
        assert_eq!(service_number("metadata"), folded(hash(b"metadata")));
        assert_ne!(method_number("stat"), method_number("create"));
        let zero = (0..200_000).map(|n| n.to_string()).find(|name| method_number(name) == 0);
        assert_eq!(service_number(&zero.expect("one of 65,536 is 0")), 1);
    }

    #[test]
    fn descriptions_survive_their_way_and_tell_what_differs() {
        let record = |method: u16, fingerprint: u64| MethodRecord {
            method: method.into(),
            reserved: [0; 6],
            fingerprint: fingerprint.into(),
        };
        let told =
            Description { name: "metadata".into(), methods: vec![record(1, 7), record(2, 8)] };
        let mut bytes = 8u16.to_le_bytes().to_vec();
        bytes.extend(told.encode());
        assert_eq!(Description::decode(&bytes), Some(told.clone()));
        assert_eq!(Description::decode(&bytes[..bytes.len() - 1]), None);
        assert_eq!(Description::decode(&[9, 0, b'x']), None);
        assert_eq!(told.mismatch(&[record(1, 7), record(3, 9)]), None, "a newer caller is served");
        assert_eq!(told.mismatch(&[record(1, 7), record(2, 9)]), Some(2));
    }
}
