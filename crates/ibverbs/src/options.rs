//! Settings of a port, each with its environment variable.

use config::{Knob, KnobKind, Layers, SettingError, Settings};

/// Settings of one port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// Name of the device; empty: the first that has a port that is up.
    pub device: String,
    /// Number of the port, from 1; 0: the first that is up.
    pub port: u8,
    /// Row of the GID table to send from; `None`: the best, RoCE v2 and IPv4 before others.
    pub gid_index: Option<u8>,
    /// Row of the P_Key table.
    pub pkey_index: u16,
}

/// [`Config::device`].
const DEVICE: Knob = Knob {
    env: "COPYRPC_IBVERBS_DEVICE",
    kind: KnobKind::Text,
    default: "",
    meaning: "NIC `ibverbs`: name of the RDMA device, as in /sys/class/infiniband [default: the first with a \
              port that is up]",
};

/// [`Config::port`].
const PORT: Knob = Knob {
    env: "COPYRPC_IBVERBS_PORT",
    kind: KnobKind::Count { min: 0, max: 255 },
    default: "0",
    meaning: "NIC `ibverbs`: port of the RDMA device; 0: the first that is up",
};

/// [`Config::gid_index`].
const GID_INDEX: Knob = Knob {
    env: "COPYRPC_IBVERBS_GID_INDEX",
    kind: KnobKind::Count { min: 0, max: GID_INDEX_AUTO },
    default: "256",
    meaning: "NIC `ibverbs`: row of the GID table to send from; 256: the best, RoCE v2 and IPv4 before others",
};

/// The row that stands for the best.
const GID_INDEX_AUTO: u64 = 256;

/// [`Config::pkey_index`].
const PKEY_INDEX: Knob = Knob {
    env: "COPYRPC_IBVERBS_PKEY_INDEX",
    kind: KnobKind::Count { min: 0, max: 65_535 },
    default: "0",
    meaning: "NIC `ibverbs`: row of the P_Key table, that is the partition of an InfiniBand subnet",
};

/// The variable of [`Config::device`].
pub const DEVICE_VARIABLE: &str = DEVICE.env;

/// Every setting of this NIC.
pub const KNOBS: &[Knob] = &[DEVICE, PORT, GID_INDEX, PKEY_INDEX];

impl Config {
    /// Defaults, overridden by what `lookup` finds for the variables in [`KNOBS`].
    ///
    /// # Errors
    ///
    /// [`SettingError`]: the first bad value.
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Result<Self, SettingError> {
        Ok(Self::from_settings(&Layers::new(KNOBS.to_vec()).environment(&lookup)?.finish()))
    }

    fn from_settings(settings: &Settings) -> Self {
        Self {
            device: settings.text(&DEVICE).to_owned(),
            port: u8::try_from(settings.number(&PORT)).unwrap_or(0),
            gid_index: u8::try_from(settings.number(&GID_INDEX)).ok(),
            pkey_index: u16::try_from(settings.number(&PKEY_INDEX)).unwrap_or(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_knob_can_be_set_to_its_default_and_sets_its_field() {
        for knob in KNOBS {
            let set = |name: &str| (name == knob.env).then(|| knob.default.to_owned());
            assert_eq!(Config::from_lookup(set), Ok(Config::default()), "{}", knob.env);
        }
        let set = |name: &str| {
            let text = match name {
                "COPYRPC_IBVERBS_DEVICE" => "rxe0",
                "COPYRPC_IBVERBS_PORT" => "2",
                "COPYRPC_IBVERBS_GID_INDEX" => "3",
                "COPYRPC_IBVERBS_PKEY_INDEX" => "4",
                _ => return None,
            };
            Some(text.to_owned())
        };
        let expected = Config { device: "rxe0".into(), port: 2, gid_index: Some(3), pkey_index: 4 };
        assert_eq!(Config::from_lookup(set), Ok(expected));
    }
}
