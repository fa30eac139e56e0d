//! Constants of profiles by their names.

use super::{DelegationProfile, Profile, TwoRankProfile};
use crate::world::Time;

/// A profile whose constants have names. Times of [`Profile`] are in ns.
pub trait Constants: Clone {
    /// Every constant, in the order of its profile.
    fn constants(&self) -> Vec<(&'static str, f64)>;

    /// Sets a constant; returns whether there is one of this name.
    fn set(&mut self, name: &str, value: f64) -> bool;

    /// What the machine has a number of, which no fit changes: units, places, clients. Each with its greatest value.
    fn counts(&mut self) -> Vec<(&'static str, CountField<'_>, u32)>;
}

/// A count inside a profile.
#[derive(Debug)]
pub enum CountField<'a> {
    /// Of clients, items, READs.
    Number(&'a mut u32),
    /// Of parts of a NIC.
    Size(&'a mut usize),
}

impl CountField<'_> {
    fn set(self, value: u32) {
        match self {
            Self::Number(field) => *field = value,
            Self::Size(field) => *field = value as usize,
        }
    }
}

/// A constant that is not set.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum BadConstant {
    /// There is none of this name.
    #[error("`{name}` is no constant of this profile; it has {known}")]
    Unknown {
        /// As it was called.
        name: String,
        /// Names of all.
        known: String,
    },
    /// A count that is no whole number, or none that a simulation gets done with.
    #[error("{name} = {value} is no count of these: choose a whole number from 1 to {most}")]
    NoCount {
        /// The count.
        name: String,
        /// As it was to be.
        value: f64,
        /// The largest value.
        most: u32,
    },
    /// A cache whose set is larger than all of it.
    #[error(
        "cache_ways = {ways} places of a set are more than cache_contexts = {contexts}: choose fewer ways first"
    )]
    WaysBeyondCache {
        /// Places of a set.
        ways: usize,
        /// Places of the cache.
        contexts: usize,
    },
    /// A value that is nothing of the kind.
    #[error("{name} = {value} is too far from {usual}: choose a value from {least} to {most}")]
    OutOfRange {
        /// The constant.
        name: String,
        /// As it was to be.
        value: f64,
        /// As it is.
        usual: f64,
        /// The smallest value.
        least: f64,
        /// The largest value.
        most: f64,
    },
}

/// Values may differ from those of a profile by this factor, so that simulations come to an end.
const FACTOR_MAX: f64 = 100.0;

/// Clients of a node, at most.
const CLIENTS_MAX: u32 = 1000;
/// Processing units, items of a turn and places of a set, at most.
const PARTS_MAX: u32 = 1 << 12;
/// Contexts and READs, at most.
const CONTEXTS_MAX: u32 = 1 << 20;

/// `profile` with another value of a constant or of a count.
///
/// # Errors
///
/// If there is neither of this name, if a constant's value differs from it by a factor of more than 100, or if a count is
/// not whole or out of its range.
pub fn with_constant<P: Constants>(profile: &P, name: &str, value: f64) -> Result<P, BadConstant> {
    let mut changed = profile.clone();
    if let Some((_, field, most)) = changed.counts().into_iter().find(|(known, ..)| *known == name)
    {
        field.set(whole(value, most).ok_or(BadConstant::NoCount {
            name: name.into(),
            value,
            most,
        })?);
        check_cache(&mut changed)?;
        return Ok(changed);
    }
    let constants = profile.constants();
    let Some((_, usual)) = constants.iter().copied().find(|(known, _)| *known == name) else {
        let counts = changed.counts().into_iter().map(|(known, ..)| known);
        let known: Vec<_> = constants.iter().map(|(known, _)| *known).chain(counts).collect();
        return Err(BadConstant::Unknown { name: name.to_owned(), known: known.join(", ") });
    };
    let (least, most) = (usual / FACTOR_MAX, usual * FACTOR_MAX);
    if !(least..=most).contains(&value) {
        return Err(BadConstant::OutOfRange { name: name.to_owned(), value, usual, least, most });
    }
    changed.set(name, value);
    Ok(changed)
}

/// `value` as a count up to `most`.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "whole and in range")]
fn whole(value: f64, most: u32) -> Option<u32> {
    let is_count = value.fract() == 0.0 && (1.0..=f64::from(most)).contains(&value);
    is_count.then_some(value as u32)
}

/// Refuses a cache of which one set has more places than all of it.
fn check_cache(profile: &mut impl Constants) -> Result<(), BadConstant> {
    let size = |name: &str, counts: &[(&str, CountField<'_>, u32)]| {
        counts.iter().find_map(|(known, field, _)| match field {
            CountField::Size(size) if *known == name => Some(**size),
            _ => None,
        })
    };
    let counts = profile.counts();
    match (size("cache_ways", &counts), size("cache_contexts", &counts)) {
        (Some(ways), Some(contexts)) if ways > contexts => {
            Err(BadConstant::WaysBeyondCache { ways, contexts })
        }
        _ => Ok(()),
    }
}

macro_rules! constants {
    ($profile:ty: $($name:ident),*; $($count:ident to $most:ident),*) => {
        impl Constants for $profile {
            fn constants(&self) -> Vec<(&'static str, f64)> {
                vec![$((stringify!($name), self.$name)),*]
            }

            fn set(&mut self, name: &str, value: f64) -> bool {
                match name {
                    $(stringify!($name) => self.$name = value,)*
                    _ => return false,
                }
                true
            }

            fn counts(&mut self) -> Vec<(&'static str, CountField<'_>, u32)> {
                vec![$((stringify!($count), CountField::Number(&mut self.$count), $most)),*]
            }
        }
    };
}

constants!(DelegationProfile: turn, local, call, response, serve, completion, flush, cold, wqe, message, wire, jitter,
    client, client_jitter, ring, poll; clients to CLIENTS_MAX, warm_items to PARTS_MAX);
constants!(TwoRankProfile: turn, take, completion, serve, flush, doorbell, client, client_jitter, wqe, send_queue,
    one_way, jitter, pcie_read, program; clients to CLIENTS_MAX);

impl Profile {
    fn times(&mut self) -> [(&'static str, &mut Time); 14] {
        let Self { nic, wire, cpu, .. } = self;
        [
            ("issue", &mut nic.issue),
            ("complete", &mut nic.complete),
            ("respond", &mut nic.respond),
            ("connect", &mut nic.connect),
            ("disconnect_issue", &mut nic.disconnect_issue),
            ("disconnect_respond", &mut nic.disconnect_respond),
            ("payload_read", &mut nic.payload_read),
            ("doorbell", &mut nic.doorbell),
            ("completion", &mut nic.completion),
            ("refetch", &mut nic.refetch),
            ("context_miss", &mut nic.context_miss),
            ("wire", wire),
            ("turn", &mut cpu.turn),
            ("timed_turn", &mut cpu.timed_turn),
        ]
    }
}

impl Constants for Profile {
    fn constants(&self) -> Vec<(&'static str, f64)> {
        self.clone().times().map(|(name, time)| (name, time.as_ns())).to_vec()
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "some µs, in ps")]
    fn set(&mut self, name: &str, value: f64) -> bool {
        let Some((_, time)) = self.times().into_iter().find(|(known, _)| *known == name) else {
            return false;
        };
        *time = Time::from_ps((value * 1000.0) as u64);
        true
    }

    fn counts(&mut self) -> Vec<(&'static str, CountField<'_>, u32)> {
        let nic = &mut self.nic;
        vec![
            ("units", CountField::Size(&mut nic.units), PARTS_MAX),
            ("reads_max", CountField::Number(&mut nic.reads_max), CONTEXTS_MAX),
            ("cache_contexts", CountField::Size(&mut nic.cache_contexts), CONTEXTS_MAX),
            ("cache_ways", CountField::Size(&mut nic.cache_ways), PARTS_MAX),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::{CONNECT_IB, CONNECT_X7, TWO_RANK};

    fn all_can_be_set(profile: &impl Constants) {
        for (name, value) in profile.constants() {
            let changed = with_constant(profile, name, 2.0 * value).unwrap();
            let others = profile.constants().into_iter().zip(changed.constants());
            for ((of, before), (_, after)) in others {
                let expected = if of == name { 2.0 * before } else { before };
                assert!((after - expected).abs() < 1e-3, "{name}: {of} {before} {after}");
            }
        }
    }

    #[test]
    fn each_constant_is_set_by_its_name_and_nothing_else_is() {
        all_can_be_set(&CONNECT_X7);
        all_can_be_set(&TWO_RANK);
        all_can_be_set(&CONNECT_IB);
        let error = with_constant(&CONNECT_X7, "wqes", 1.0).unwrap_err();
        assert!(error.to_string().contains("wqe, message"), "{error}");
        for value in [0.0, -1.0, f64::NAN, f64::INFINITY, 1000.0] {
            let error = with_constant(&CONNECT_X7, "wqe", value).unwrap_err();
            assert!(matches!(error, BadConstant::OutOfRange { .. }), "{error}");
        }
    }

    /// Names and values of all counts.
    fn counts_of(profile: &impl Constants) -> Vec<(&'static str, usize)> {
        let mut profile = profile.clone();
        let value = |field: &CountField<'_>| match field {
            CountField::Number(number) => **number as usize,
            CountField::Size(size) => **size,
        };
        profile.counts().iter().map(|(name, field, _)| (*name, value(field))).collect()
    }

    fn all_counts_can_be_set(profile: &impl Constants) {
        for (name, _) in counts_of(profile) {
            let changed = with_constant(profile, name, 3.0).map(|it| counts_of(&it));
            let changed = if name == "cache_contexts" {
                assert!(changed.unwrap_err().to_string().contains("cache_ways = 4"), "too small");
                let fewer = with_constant(profile, "cache_ways", 3.0).unwrap();
                counts_of(&with_constant(&fewer, name, 3.0).unwrap())
            } else {
                changed.unwrap()
            };
            let is_changed = |of| of == name || (of, name) == ("cache_ways", "cache_contexts");
            let expected = |of, before| if is_changed(of) { 3 } else { before };
            for ((of, before), (_, after)) in counts_of(profile).into_iter().zip(changed) {
                assert_eq!(after, expected(of, before), "{name}: {of}");
            }
        }
    }

    #[test]
    fn each_count_is_set_by_its_name_and_only_to_a_count() {
        all_counts_can_be_set(&CONNECT_X7);
        all_counts_can_be_set(&TWO_RANK);
        all_counts_can_be_set(&CONNECT_IB);
        for value in [0.0, -1.0, 2.5, f64::NAN, f64::INFINITY, 1001.0] {
            let error = with_constant(&TWO_RANK, "clients", value).unwrap_err();
            assert!(error.to_string().contains("from 1 to 1000"), "{error}");
        }
        let error = with_constant(&CONNECT_IB, "cache_ways", 1351.0).unwrap_err();
        assert!(error.to_string().contains("cache_contexts = 1350"), "{error}");
        let error = with_constant(&CONNECT_X7, "units", 2.0).unwrap_err();
        assert!(error.to_string().contains("poll, clients, warm_items"), "{error}");
    }
}
