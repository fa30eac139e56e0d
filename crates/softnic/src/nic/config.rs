//! Settings of the software NIC, each with its environment variable.

use config::{Knob, KnobKind, Layers, SettingError, Settings};
use verbs::{LinkLayer, PortOptions};

use super::profile::AdapterProfile;

/// When the NIC does its work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Drive {
    /// In the doorbell, on the caller's thread. Timers and new connections advance when the program
    /// polls.
    #[default]
    Inline,
    /// On a thread of its own that watches doorbell records, like a device.
    Thread,
}

/// What an atomic of the NIC is atomic with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Atomics {
    /// Those of CPUs, too (`IBV_ATOMIC_GLOB`).
    #[default]
    Cpu,
    /// Others of NICs only (`IBV_ATOMIC_HCA`): what a CPU does meanwhile to the word may be lost.
    Nic,
}

/// What the user index of a completion names.
///
/// Source: rdma-core `providers/mlx5/cq.c`, `get_resp_ctx_v0` and `get_resp_cxt_v1`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CqeVersion {
    /// The SRQ that a receive came from; 0 without one.
    V0,
    /// The queue pair, also where the receive came from an SRQ.
    #[default]
    V1,
}

/// Settings of one software NIC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Which thread executes the send queues.
    pub drive: Drive,
    /// Seed of strict mode; `None`: off.
    pub strict: Option<u64>,
    /// Ports see each other if they have the same user, network namespace and fabric name.
    pub fabric: String,
    /// Link layer: InfiniBand ports are addressed by LID, Ethernet ports by GID (RoCE).
    pub link: LinkLayer,
    /// Address space for queues, in MiB; only what is used is allocated.
    pub card_mib: usize,
    /// What completions name as user index.
    pub cqe_version: CqeVersion,
    /// Device `soft` has one port, and each of its tables one row. All else is refused.
    pub options: PortOptions,
    /// What atomics are atomic with. The same for all ports of a fabric.
    pub atomics: Atomics,
    /// The adapter that it plays. The same for all ports of a fabric.
    pub profile: AdapterProfile,
    /// A send queue takes so long for each WQE, in ns, one after the other; 0: none takes any time.
    pub wqe_ns: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            drive: Drive::default(),
            strict: None,
            fabric: "default".into(),
            link: LinkLayer::InfiniBand,
            card_mib: 64,
            cqe_version: CqeVersion::default(),
            options: PortOptions::default(),
            atomics: Atomics::default(),
            profile: AdapterProfile::default(),
            wqe_ns: 0,
        }
    }
}

/// `inline` or `thread`: [`Config::drive`].
const DRIVE: Knob = Knob {
    env: "COPYRPC_SOFT_DRIVE",
    kind: KnobKind::Choice(&["inline", "thread"]),
    default: "inline",
    meaning: "the worker of the NIC: `inline` (the thread that rings) or `thread` (a NIC thread)",
};

/// [`Config::strict`].
const STRICT: Knob = Knob {
    env: "COPYRPC_SOFT_STRICT",
    kind: KnobKind::CountOrOff,
    default: "off",
    meaning: "`off`, or a seed: delay and shuffle what hardware may, refuse what hardware refuses",
};

/// [`Config::fabric`].
const FABRIC: Knob = Knob {
    env: "COPYRPC_SOFT_FABRIC",
    kind: KnobKind::Name { bytes_max: 32, marks: "-_" },
    default: "default",
    meaning: "name of the fabric; ports see each other only within one",
};

/// [`Config::link`].
const LINK: Knob = Knob {
    env: "COPYRPC_SOFT_LINK",
    kind: KnobKind::Choice(&["infiniband", "roce"]),
    default: "infiniband",
    meaning: "addressing: `infiniband` (LID) or `roce` (GID)",
};

/// [`Config::card_mib`].
const CARD_MIB: Knob = Knob {
    env: "COPYRPC_SOFT_CARD_MIB",
    kind: KnobKind::Count { min: 8, max: 4096 },
    default: "64",
    meaning: "address space for queues in MiB; only what is used is allocated",
};

/// [`Config::cqe_version`].
const CQE_VERSION: Knob = Knob {
    env: "COPYRPC_SOFT_CQE_VERSION",
    kind: KnobKind::Choice(&["0", "1"]),
    default: "1",
    meaning: "what completions name as user index: `0` (the SRQ, or 0), or `1` (the queue pair)",
};

/// [`Config::atomics`].
const ATOMICS: Knob = Knob {
    env: "COPYRPC_SOFT_ATOMICS",
    kind: KnobKind::Choice(&["cpu", "nic"]),
    default: "cpu",
    meaning: "what atomics are atomic with: those of CPUs too (`cpu`), or only others of NICs (`nic`), which is \
              all that much hardware promises",
};

/// [`Config::profile`].
const PROFILE: Knob = Knob {
    env: "COPYRPC_SOFT_PROFILE",
    kind: KnobKind::Choice(&["connectx", "vf", "adaptive-routing"]),
    default: "connectx",
    meaning: "the adapter that it plays: `connectx`; `vf`, with short queues, no atomics, and global route headers on \
              InfiniBand; or `adaptive-routing`, which places WRITEs that are under way in any order",
};

/// [`Config::wqe_ns`].
const WQE_TIME: Knob = Knob {
    env: "COPYRPC_SOFT_WQE_TIME",
    kind: KnobKind::Duration { min_ns: 0, max_ns: 1_000_000_000 },
    default: "0ns",
    meaning: "for experiments: a send queue takes so long for each WQE, one after the other",
};

/// Every setting.
pub const KNOBS: &[Knob] =
    &[DRIVE, STRICT, FABRIC, LINK, CARD_MIB, CQE_VERSION, ATOMICS, PROFILE, WQE_TIME];

impl Config {
    /// Defaults, overridden by what `lookup` finds for the variables in [`KNOBS`].
    ///
    /// # Errors
    ///
    /// [`SettingError`]: the first bad value.
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Result<Self, SettingError> {
        Ok(Self::from_settings(&Layers::new(KNOBS.to_vec()).environment(lookup)?.finish()))
    }

    /// The software NIC's part of `settings`.
    ///
    /// # Panics
    ///
    /// If `settings` were made of a table without [`KNOBS`].
    #[must_use]
    pub fn from_settings(settings: &Settings) -> Self {
        Self {
            drive: match settings.text(&DRIVE) {
                "thread" => Drive::Thread,
                _ => Drive::Inline,
            },
            strict: settings.number_if_set(&STRICT),
            fabric: settings.text(&FABRIC).to_owned(),
            link: match settings.text(&LINK) {
                "roce" => LinkLayer::Ethernet,
                _ => LinkLayer::InfiniBand,
            },
            card_mib: usize::try_from(settings.number(&CARD_MIB)).unwrap_or(usize::MAX),
            cqe_version: match settings.text(&CQE_VERSION) {
                "0" => CqeVersion::V0,
                _ => CqeVersion::V1,
            },
            options: PortOptions::default(),
            atomics: match settings.text(&ATOMICS) {
                "nic" => Atomics::Nic,
                _ => Atomics::Cpu,
            },
            profile: AdapterProfile::named(settings.text(&PROFILE)).unwrap_or_default(),
            wqe_ns: settings.number(&WQE_TIME),
        }
    }

    /// The NIC `name` as results name it: `soft (soft-drive=thread)`. Settings with their default value are
    /// left out, and so is the name of the fabric, which changes no number.
    #[must_use]
    pub fn label(&self, name: &str) -> String {
        let default = Self::default();
        let mut parts = Vec::new();
        if self.drive != default.drive {
            parts.push("soft-drive=thread".to_owned());
        }
        if self.card_mib != default.card_mib {
            parts.push(format!("soft-card-mib={}", self.card_mib));
        }
        if self.atomics != default.atomics {
            parts.push("soft-atomics=nic".to_owned());
        }
        if self.profile != default.profile {
            parts.push(format!("soft-profile={}", self.profile.name()));
        }
        if self.cqe_version != default.cqe_version {
            parts.push("soft-cqe-version=0".to_owned());
        }
        if self.link != default.link {
            parts.push("soft-link=roce".to_owned());
        }
        if self.wqe_ns != 0 {
            parts.push(format!("soft-wqe-time={}ns", self.wqe_ns));
        }
        if let Some(seed) = self.strict {
            parts.push(format!("soft-strict={seed}"));
        }
        if parts.is_empty() { name.to_owned() } else { format!("{name} ({})", parts.join(", ")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_knob_can_be_set_to_its_default() {
        for knob in KNOBS {
            let set = |name: &str| (name == knob.env).then(|| knob.default.to_owned());
            assert_eq!(Config::from_lookup(set), Ok(Config::default()), "{}", knob.env);
        }
    }

    #[test]
    fn every_knob_sets_its_field() {
        let texts = ["thread", "7", "a-fabric", "roce", "8", "0", "nic", "vf", "600ns"];
        let set = |name: &str| {
            let index = KNOBS.iter().position(|knob| knob.env == name)?;
            Some(texts[index].to_owned())
        };
        let expected = Config {
            drive: Drive::Thread,
            strict: Some(7),
            fabric: "a-fabric".into(),
            link: LinkLayer::Ethernet,
            card_mib: 8,
            cqe_version: CqeVersion::V0,
            options: PortOptions::default(),
            atomics: Atomics::Nic,
            profile: AdapterProfile::VirtualFunction,
            wqe_ns: 600,
        };
        assert_eq!(Config::from_lookup(set), Ok(expected));
    }

    #[test]
    fn a_label_names_what_is_not_default_but_the_fabric() {
        let config = Config { fabric: "other".into(), ..Config::default() };
        assert_eq!(config.label("soft"), "soft");
        let config = Config { drive: Drive::Thread, strict: Some(7), wqe_ns: 600, ..config };
        let label = "soft (soft-drive=thread, soft-wqe-time=600ns, soft-strict=7)";
        assert_eq!(config.label("soft"), label);
    }

    #[test]
    fn bad_values_are_named() {
        for (env, bad) in [
            ("COPYRPC_SOFT_DRIVE", "fast"),
            ("COPYRPC_SOFT_STRICT", "yes"),
            ("COPYRPC_SOFT_FABRIC", "a/b"),
            ("COPYRPC_SOFT_LINK", "ethernet"),
            ("COPYRPC_SOFT_CARD_MIB", "4 MiB"),
            ("COPYRPC_SOFT_WQE_TIME", "2s"),
        ] {
            let error = Config::from_lookup(|name| (name == env).then(|| bad.to_owned()));
            let error = error.unwrap_err().to_string();
            assert!(error.starts_with(env) && error.contains(&format!("= `{bad}` ")));
        }
    }
}
