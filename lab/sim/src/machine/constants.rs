//! Constants of profiles by their names.

use super::{DelegationProfile, Profile, TwoRankProfile};
use crate::world::Time;

/// A profile whose constants have names. Times of [`Profile`] are in ns.
pub trait Constants: Clone {
    /// Every constant, in the order of its profile.
    fn constants(&self) -> Vec<(&'static str, f64)>;

    /// Sets a constant; returns whether there is one of this name.
    fn set(&mut self, name: &str, value: f64) -> bool;
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

/// `profile` with another value of a constant.
///
/// # Errors
///
/// If there is no such constant, or the value differs from it by a factor of more than 100.
pub fn with_constant<P: Constants>(profile: &P, name: &str, value: f64) -> Result<P, BadConstant> {
    let constants = profile.constants();
    let Some((_, usual)) = constants.iter().copied().find(|(known, _)| *known == name) else {
        let known: Vec<_> = constants.iter().map(|(known, _)| *known).collect();
        return Err(BadConstant::Unknown { name: name.to_owned(), known: known.join(", ") });
    };
    let (least, most) = (usual / FACTOR_MAX, usual * FACTOR_MAX);
    if !(least..=most).contains(&value) {
        return Err(BadConstant::OutOfRange { name: name.to_owned(), value, usual, least, most });
    }
    let mut changed = profile.clone();
    changed.set(name, value);
    Ok(changed)
}

macro_rules! constants {
    ($profile:ty: $($name:ident),*) => {
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
        }
    };
}

constants!(DelegationProfile: turn, local, call, response, serve, completion, flush, cold, wqe, message, wire, jitter,
    client, client_jitter, ring, poll);
constants!(TwoRankProfile: turn, take, completion, serve, flush, doorbell, client, client_jitter, wqe, send_queue,
    one_way, jitter, pcie_read, program);

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
}
