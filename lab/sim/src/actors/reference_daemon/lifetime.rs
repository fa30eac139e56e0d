//! How long a daemon stays as quick as it is after a burst.

use super::{Load, Mutant, Simulation, real};
use crate::machine::DelegationProfile;

/// In which times a rate is looked at.
#[derive(Clone, Copy, Debug)]
pub struct Watch {
    /// The time of one look, in µs.
    pub look_us: f64,
    /// The end, in µs.
    pub end_us: f64,
}

/// The time from the start of a load to the first look whose rate `is_up` does not hold for, after one that it holds for, in µs;
/// `None`: it holds until the end. `is_up` is asked with calls per µs and node. Without a look that it holds for it is 0.
pub fn lasts_us(
    profile: &DelegationProfile,
    load: &Load,
    watch: Watch,
    seed: u64,
    is_up: impl Fn(f64) -> bool,
) -> Option<f64> {
    let mut simulation = Simulation::new(profile, load, Mutant::None, seed);
    let mut world = simulation.world();
    let (mut now, mut was_up) = (0.0, false);
    while now < watch.end_us {
        let before = simulation.counts.calls;
        simulation.advance(&mut world, now + watch.look_us);
        let calls = simulation.counts.calls - before;
        if is_up(real(calls) / watch.look_us / real(load.nodes as u64)) {
            was_up = true;
        } else if was_up {
            return Some(now);
        }
        now += watch.look_us;
    }
    (!was_up).then_some(0.0)
}
