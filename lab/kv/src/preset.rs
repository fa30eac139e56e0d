//! Grids that are known by name: what the documents show, by one command.

use std::collections::BTreeMap;

use crate::{
    backend::{Kind, Wait},
    configuration::Config,
    grid::{Axes, GridError},
    result::name_of,
    words::words,
    workload::Locality,
};

words! {
    /// One of them.
    Preset, "preset" {
        /// Delegation, direct and TCP, for every place that keys can have seen from the client, with few and many
        /// clients and calls.
        Places = "places",
        /// Every combination of the switches of copyrpc that change what the NIC is asked to do, where
        /// they matter: many calls to other nodes.
        Switches = "switches",
        /// Every way to flush and every way to wait, one call at a time and many.
        Policies = "policies",
    }
}

/// What is placed everywhere; others can be asked for.
const PLACED: [Kind; 3] = [Kind::Delegation, Kind::Direct, Kind::Tcp];

impl Preset {
    /// What it multiplies: lists that `given` leaves empty are filled in.
    fn axes(self, given: &Axes) -> Vec<Axes> {
        match self {
            Self::Places => vec![Axes {
                backends: or(&given.backends, &PLACED),
                clients_per_rank: or(&given.clients_per_rank, &[1, 2, 4, 8]),
                queue_depths: or(&given.queue_depths, &[1, 4, 32]),
                localities: or(&given.localities, &Locality::ALL),
                ..given.clone()
            }],
            Self::Switches => {
                let base = Axes {
                    backends: or(&given.backends, &[Kind::Direct]),
                    queue_depths: or(&given.queue_depths, &[32]),
                    localities: or(&given.localities, &[Locality::Remote]),
                    ..given.clone()
                };
                // The number of initiators is of DC alone.
                let varied = ["inline", "doorbells", "srq", "signal"];
                let rc = with_switches(&base, "rc", &varied);
                let dc =
                    with_switches(&base, "dc", &["inline", "doorbells", "srq", "signal", "dcis"]);
                vec![rc, dc]
            }
            Self::Policies => {
                let base = Axes {
                    backends: or(&given.backends, &[Kind::Delegation, Kind::Direct]),
                    queue_depths: or(&given.queue_depths, &[1, 32]),
                    localities: or(&given.localities, &[Locality::Remote]),
                    ..given.clone()
                };
                let mut flushes = base.clone();
                flushes.switches.entry("flush".into()).or_insert_with(|| values_of("flush"));
                vec![flushes, Axes { waits: or(&given.waits, &Wait::ALL), ..base }]
            }
        }
    }
}

/// All combinations of `presets`, each once.
///
/// # Errors
///
/// [`GridError`].
pub fn configs(presets: &[Preset], given: &Axes) -> Result<Vec<Config>, GridError> {
    let mut all = BTreeMap::new();
    let mut configs = Vec::new();
    for axes in presets.iter().flat_map(|preset| preset.axes(given)) {
        for config in axes.configs()? {
            if all.insert(name_of(&config), ()).is_none() {
                configs.push(config);
            }
        }
    }
    Ok(configs)
}

fn with_switches(base: &Axes, transport: &str, names: &[&str]) -> Axes {
    let mut switches = BTreeMap::from([("transport".to_owned(), vec![transport.to_owned()])]);
    switches.extend(names.iter().map(|&name| (name.to_owned(), values_of(name))));
    switches.extend(base.switches.clone());
    Axes { switches, ..base.clone() }
}

/// All values of a switch of copyrpc.
fn values_of(name: &str) -> Vec<String> {
    let switch = Kind::Direct.switches().iter().find(|switch| switch.name == name);
    switch.map_or(&[][..], |switch| switch.values).iter().map(|&value| value.to_owned()).collect()
}

fn or<T: Clone>(given: &[T], default: &[T]) -> Vec<T> {
    if given.is_empty() { default.to_vec() } else { given.to_vec() }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn configs_of(preset: Preset) -> Vec<Config> {
        configs(&[preset], &Axes::default()).unwrap()
    }

    #[test]
    fn places_are_the_whole_matrix() {
        let configs = configs_of(Preset::Places);
        assert_eq!(configs.len(), 3 * 4 * 3 * 3);
        for kind in PLACED {
            assert_eq!(configs.iter().filter(|config| config.backend == kind).count(), 36);
        }
    }

    /// Nobody varied these before explaining a slowdown.
    #[test]
    fn pitfall_30_switches_are_varied_with_each_other() {
        let configs = configs_of(Preset::Switches);
        assert_eq!(configs.len(), (1 + 2) * 2 * 2 * 2 * 3);
        for switch in ["transport", "inline", "doorbells", "srq", "signal", "dcis"] {
            let values: BTreeSet<_> =
                configs.iter().map(|config| config.switches.value(switch)).collect();
            assert_eq!(values.len(), values_of(switch).len(), "{switch}");
        }
    }

    #[test]
    fn policies_vary_flushing_and_waiting_and_hold_their_default_once() {
        let configs = configs_of(Preset::Policies);
        let (flushes, waits) = (values_of("flush").len(), Wait::ALL.len());
        assert_eq!(configs.len(), 2 * 2 * (flushes + waits - 1));
    }

    #[test]
    fn presets_together_hold_each_configuration_once_and_yield_to_options() {
        let all = configs(&Preset::ALL, &Axes::default()).unwrap();
        let names: BTreeSet<_> = all.iter().map(name_of).collect();
        assert_eq!(names.len(), all.len());
        let given = Axes { backends: vec![Kind::Tcp], ..Axes::default() };
        assert_eq!(configs(&[Preset::Places], &given).unwrap().len(), 36);
        assert_eq!("switches".parse(), Ok(Preset::Switches));
        assert!("all".parse::<Preset>().is_err());
    }
}
