//! The daemon's knobs, the file that sets them, and the configuration that they make.

mod daemon;
mod file;
mod table;

use client::{Runtime, RuntimeError};

pub use self::daemon::{DaemonConfig, Incompatible, Start, WaitPolicy};
pub use self::{file::with_file, table::*};
pub use ::config::{Knob, Layers, Setting, SettingError, Settings};

/// The paths of the daemon that the settings name.
///
/// # Errors
///
/// [`RuntimeError::Name`] and [`RuntimeError::PathTooLong`].
pub fn runtime_of(settings: &Settings) -> Result<Runtime, RuntimeError> {
    let [folder, job, instance] = [&RUNTIME_DIR, &JOB, &INSTANCE].map(|knob| settings.text(knob));
    Runtime::configured(folder, job, instance)
}

/// As [`runtime_of`], for the daemon of this number among those that one launch starts on this host: all but the
/// first are instances, unless the settings name one.
///
/// # Errors
///
/// [`RuntimeError::Name`] and [`RuntimeError::PathTooLong`].
pub fn runtime_of_local(settings: &Settings, local_rank: u32) -> Result<Runtime, RuntimeError> {
    let [folder, job, instance] = [&RUNTIME_DIR, &JOB, &INSTANCE].map(|knob| settings.text(knob));
    let number = if local_rank == 0 { String::new() } else { local_rank.to_string() };
    Runtime::configured(folder, job, if instance.is_empty() { &number } else { instance })
}

#[cfg(test)]
mod tests {
    use std::env;

    use super::*;

    /// Clients read the environment by themselves, daemons by way of the knobs.
    #[test]
    fn clients_and_daemons_find_the_same_place() {
        let defaults = Layers::new(KNOBS.to_vec()).finish();
        let by_default = Runtime::from_lookup(|variable| {
            Some(env::var(variable).ok()).filter(|_| variable == "XDG_RUNTIME_DIR").flatten()
        });
        assert_eq!(by_default.unwrap(), runtime_of(&defaults).unwrap());
        let (mut layers, texts) = (Layers::new(KNOBS.to_vec()), ["/here", "a-job", "7"]);
        for (knob, text) in [RUNTIME_DIR, JOB, INSTANCE].iter().zip(texts) {
            layers = layers.flag(&knob.flag(), text).unwrap();
        }
        let told = Runtime::from_lookup(|variable| {
            let knobs = [RUNTIME_DIR, JOB, INSTANCE];
            let at = knobs.iter().position(|knob| knob.env == variable)?;
            Some(texts[at].to_owned())
        });
        assert_eq!(told.unwrap(), runtime_of(&layers.finish()).unwrap());
    }

    #[test]
    fn what_a_parent_gives_its_ranks_are_knobs() {
        let is_knob = |name: &&str| KNOBS.iter().any(|knob| knob.env == *name);
        assert!(bootstrap::fork::SET_BY_PARENT.iter().all(is_knob));
    }
}
