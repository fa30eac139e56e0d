//! All combinations of several values per option.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    backend::{Kind, SwitchError, Switches, Wait},
    configuration::{Config, Pin},
    workload::{Locality, Mix, Pace, Popularity, ValueSize, Workload, WorkloadError},
};

/// Combinations, at most.
const CONFIGS_MAX: usize = 10_000;

/// The values of each option. An empty list means the default.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Axes {
    /// What all combinations share, and the default of every list about the workload.
    pub workload: Workload,
    /// See [`Config::backend`]; by default [`Kind::contestants`].
    pub backends: Vec<Kind>,
    /// See [`Config::wait`]; by default the backend's.
    pub waits: Vec<Wait>,
    /// See [`Config::pin`].
    pub pins: Vec<Pin>,
    /// Name of the NIC, for backends that use one.
    pub nic: String,
    /// What is set about it, by environment variable.
    pub nic_knobs: BTreeMap<String, String>,
    /// See [`Config::hosts`].
    pub hosts: u16,
    /// See [`Config::counters`].
    pub counters: bool,
    /// Values by switch.
    pub switches: BTreeMap<String, Vec<String>>,
    /// See [`Workload::ranks`].
    pub ranks: Vec<u16>,
    /// See [`Workload::daemon_threads`].
    pub daemon_threads: Vec<u16>,
    /// See [`Workload::clients_per_rank`].
    pub clients_per_rank: Vec<u16>,
    /// See [`Workload::queue_depth`].
    pub queue_depths: Vec<u32>,
    /// See [`Workload::keys`].
    pub keys: Vec<u64>,
    /// See [`Workload::mix`].
    pub mixes: Vec<Mix>,
    /// See [`Workload::popularity`].
    pub popularities: Vec<Popularity>,
    /// See [`Workload::locality`].
    pub localities: Vec<Locality>,
    /// See [`Workload::value_size`].
    pub value_sizes: Vec<ValueSize>,
    /// See [`Workload::pace`].
    pub paces: Vec<Pace>,
}

/// Why there is no grid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GridError {
    /// A combination makes no sense.
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    /// A switch does.
    #[error(transparent)]
    Switch(#[from] SwitchError),
    /// A backend that was asked for needs what this machine has not.
    #[error("backend {backend}: {reason}")]
    Missing {
        /// The backend.
        backend: Kind,
        /// What it needs, and the remedy.
        reason: String,
    },
    /// No chosen backend has this switch.
    #[error("no chosen backend has a switch `{name}`; they have: {known}")]
    NobodysSwitch {
        /// As it was given.
        name: String,
        /// Names of the switches that they have.
        known: String,
    },
    /// Too many combinations.
    #[error("{0} combinations are more than {CONFIGS_MAX}; shorten some lists")]
    Large(usize),
}

impl Axes {
    /// All combinations, each once; backends vary fastest, so that rivals are measured one after the
    /// other.
    ///
    /// # Errors
    ///
    /// [`GridError`].
    pub fn configs(&self) -> Result<Vec<Config>, GridError> {
        let backends = match &self.backends[..] {
            [] => Kind::contestants(),
            named => distinct(named),
        };
        for &backend in &backends {
            if let Some(reason) = backend.missing() {
                return Err(GridError::Missing { backend, reason });
            }
        }
        for name in self.switches.keys() {
            let is_known = |kind: &Kind| kind.switches().iter().any(|switch| switch.name == name);
            if !backends.iter().any(is_known) {
                let known = backends.iter().flat_map(|kind| kind.switches());
                let known: BTreeSet<_> = known.map(|switch| switch.name).collect();
                let known = Vec::from_iter(known).join(", ");
                return Err(GridError::NobodysSwitch { name: name.clone(), known });
            }
        }
        let mut configs = Vec::new();
        for workload in self.workloads()? {
            workload.validate()?;
            for &backend in &backends {
                self.add_backend(&workload, backend, &mut configs)?;
            }
            if configs.len() > CONFIGS_MAX {
                return Err(GridError::Large(configs.len()));
            }
        }
        Ok(configs)
    }

    fn workloads(&self) -> Result<Vec<Workload>, GridError> {
        let lens = [
            self.ranks.len(),
            self.daemon_threads.len(),
            self.value_sizes.len(),
            self.keys.len(),
            self.mixes.len(),
            self.popularities.len(),
            self.paces.len(),
            self.localities.len(),
            self.queue_depths.len(),
            self.clients_per_rank.len(),
        ];
        // Before they are made: a few long lists make more than there is memory for.
        let count = lens.iter().fold(1_usize, |count, &len| count.saturating_mul(len.max(1)));
        if count > CONFIGS_MAX {
            return Err(GridError::Large(count));
        }
        let mut all = vec![self.workload.clone()];
        vary(&mut all, &self.ranks, |workload, ranks| workload.ranks = ranks);
        vary(&mut all, &self.daemon_threads, |workload, n| workload.daemon_threads = n);
        vary(&mut all, &self.value_sizes, |workload, size| workload.value_size = size);
        vary(&mut all, &self.keys, |workload, keys| workload.keys = keys);
        vary(&mut all, &self.mixes, |workload, mix| workload.mix = mix);
        vary(&mut all, &self.popularities, |workload, popularity| {
            workload.popularity = popularity;
        });
        vary(&mut all, &self.paces, |workload, pace| workload.pace = pace);
        vary(&mut all, &self.localities, |workload, locality| workload.locality = locality);
        vary(&mut all, &self.queue_depths, |workload, depth| workload.queue_depth = depth);
        vary(&mut all, &self.clients_per_rank, |workload, n| workload.clients_per_rank = n);
        Ok(all)
    }

    fn add_backend(
        &self,
        workload: &Workload,
        backend: Kind,
        configs: &mut Vec<Config>,
    ) -> Result<(), GridError> {
        let mut given = vec![BTreeMap::new()];
        for switch in backend.switches() {
            let values = self.switches.get(switch.name).cloned().unwrap_or_default();
            vary(&mut given, &values, |given, value| {
                given.insert(switch.name.to_owned(), value);
            });
        }
        let (nic, nic_knobs) = if backend.uses_nic() {
            (self.nic.clone(), self.nic_knobs.clone())
        } else {
            ("none".to_owned(), BTreeMap::new())
        };
        for given in given {
            let switches = Switches::resolve(backend.name(), backend.switches(), &given)?;
            for &wait in &or_default(&self.waits, &[backend.default_wait()]) {
                for &pin in &or_default(&self.pins, &[Pin::Node]) {
                    configs.push(Config {
                        backend,
                        wait,
                        pin,
                        nic: nic.clone(),
                        nic_knobs: nic_knobs.clone(),
                        hosts: self.hosts,
                        counters: self.counters,
                        switches: switches.clone(),
                        workload: workload.clone(),
                    });
                }
            }
        }
        Ok(())
    }
}

/// Each of `all` with each of `values`; as they are if there are none.
fn vary<T: Clone, V: Clone + PartialEq>(all: &mut Vec<T>, values: &[V], set: impl Fn(&mut T, V)) {
    if values.is_empty() {
        return;
    }
    let before = std::mem::take(all);
    for one in before {
        for value in distinct(values) {
            let mut one = one.clone();
            set(&mut one, value);
            all.push(one);
        }
    }
}

fn or_default<T: Clone + PartialEq>(values: &[T], default: &[T]) -> Vec<T> {
    distinct(if values.is_empty() { default } else { values })
}

/// The values in their order, each once.
fn distinct<T: Clone + PartialEq>(values: &[T]) -> Vec<T> {
    let is_first = |(at, value): &(usize, &T)| !values[..*at].contains(value);
    values.iter().enumerate().filter(is_first).map(|(_, value)| value.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_lists_mean_the_default_of_every_backend() {
        let configs = Axes::default().configs().unwrap();
        assert_eq!(configs.len(), Kind::contestants().len());
        assert_eq!(configs[0].workload, Workload::default());
    }

    #[test]
    fn pitfall_30_lists_multiply_and_every_combination_is_there_once() {
        let axes = Axes {
            backends: vec![Kind::Tcp],
            clients_per_rank: vec![1, 2, 4, 8],
            queue_depths: vec![1, 4, 32],
            localities: vec![Locality::Natural, Locality::Local, Locality::Remote],
            waits: vec![Wait::Block, Wait::Spin],
            switches: BTreeMap::from([("write".into(), vec!["turn".into(), "call".into()])]),
            ..Axes::default()
        };
        let configs = axes.configs().unwrap();
        assert_eq!(configs.len(), 4 * 3 * 3 * 2 * 2);
        for (index, config) in configs.iter().enumerate() {
            assert!(!configs[..index].contains(config), "{config:?}");
        }
    }

    #[test]
    fn a_value_that_is_given_twice_is_measured_once() {
        let axes = Axes {
            backends: vec![Kind::Tcp, Kind::Tcp],
            queue_depths: vec![4, 1, 4],
            pins: vec![Pin::None, Pin::None],
            waits: vec![Wait::Spin; 3],
            switches: BTreeMap::from([("write".into(), vec!["turn".into(), "turn".into()])]),
            ..Axes::default()
        };
        let depths = axes.configs().unwrap().into_iter().map(|config| config.workload.queue_depth);
        assert_eq!(depths.collect::<Vec<_>>(), [4, 1]);
    }

    #[test]
    fn lists_that_multiply_beyond_all_memory_are_refused() {
        let axes = Axes {
            queue_depths: (1..=4096).collect(),
            keys: (1..=100_000).collect(),
            clients_per_rank: (1..=4096).collect(),
            ..Axes::default()
        };
        let count = 4096 * 100_000 * 4096;
        assert_eq!(axes.configs(), Err(GridError::Large(count)));
    }

    #[test]
    fn nonsense_and_excess_are_refused() {
        let axes = Axes { ranks: vec![2, 0], ..Axes::default() };
        assert!(matches!(axes.configs(), Err(GridError::Workload(_))));
        let switches = BTreeMap::from([("colour".into(), vec!["red".into()])]);
        let axes =
            Axes { backends: vec![Kind::Tcp, Kind::Delegation], switches, ..Axes::default() };
        let error = axes.configs().unwrap_err().to_string();
        let of_delegation = Kind::Delegation.switches().iter().all(|s| error.contains(s.name));
        assert!(error.contains("`colour`; they have: ") && of_delegation, "{error}");
        let switches = BTreeMap::from([("write".into(), vec!["red".into()])]);
        let axes = Axes { backends: vec![Kind::Tcp], switches, ..Axes::default() };
        assert!(matches!(axes.configs(), Err(GridError::Switch(_))));
        let axes = Axes {
            queue_depths: (1..=200).collect(),
            keys: (1000..1060).collect(),
            ..Axes::default()
        };
        assert!(matches!(axes.configs(), Err(GridError::Large(_))));
    }
}
