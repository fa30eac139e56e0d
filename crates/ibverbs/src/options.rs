//! Settings of a port, each with its environment variable.

use config::{Knob, KnobKind, Layers, SettingError};

/// Settings of one port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// Name of the device; empty: the first that has a port that is up, or a nearer one of its network.
    pub device: String,
    /// Number of the port, from 1; 0: the first that is up.
    pub port: u8,
    /// Row of the GID table to send from; `None`: the best, RoCE v2 and IPv4 before others.
    pub gid_index: Option<u8>,
    /// Row of the P_Key table.
    pub pkey_index: u16,
}

/// The row of the GID table that stands for the best.
const GID_INDEX_AUTO: u64 = 256;

/// The knobs of a NIC: device, port, row of the GID table, row of the P_Key table.
macro_rules! knobs {
    ($nic:literal, $prefix:literal) => {
        [
            Knob {
                env: concat!($prefix, "DEVICE"),
                kind: KnobKind::Text,
                default: "",
                meaning: concat!(
                    "NIC `",
                    $nic,
                    "`: name of the RDMA device, as in /sys/class/infiniband [default: the first with a port that \
                     is up, or one of its kind and network that is nearer to the cores of the process]"
                ),
            },
            Knob {
                env: concat!($prefix, "PORT"),
                kind: KnobKind::Count { min: 0, max: 255 },
                default: "0",
                meaning: concat!("NIC `", $nic, "`: port of the RDMA device; 0: the first that is up"),
            },
            Knob {
                env: concat!($prefix, "GID_INDEX"),
                kind: KnobKind::Count { min: 0, max: GID_INDEX_AUTO },
                default: "256",
                meaning: concat!(
                    "NIC `",
                    $nic,
                    "`: row of the GID table to send from; 256: the best, RoCE v2 and IPv4 before others"
                ),
            },
            Knob {
                env: concat!($prefix, "PKEY_INDEX"),
                kind: KnobKind::Count { min: 0, max: 65_535 },
                default: "0",
                meaning: concat!(
                    "NIC `",
                    $nic,
                    "`: row of the P_Key table, that is the partition of an InfiniBand subnet"
                ),
            },
        ]
    };
}

/// Every setting of NIC `ibverbs`, the device first.
pub const KNOBS: &[Knob; 4] = &knobs!("ibverbs", "COPYRPC_IBVERBS_");

/// Every setting of NIC `mlx5`, the device first.
pub const MLX5_KNOBS: &[Knob; 4] = &knobs!("mlx5", "COPYRPC_MLX5_");

impl Config {
    /// Defaults, overridden by what `lookup` finds for the variables of `knobs`, which are [`KNOBS`] or
    /// [`MLX5_KNOBS`].
    ///
    /// # Errors
    ///
    /// [`SettingError`]: the first bad value.
    pub fn from_lookup(
        knobs: &[Knob; 4],
        lookup: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, SettingError> {
        let settings = Layers::new(knobs.to_vec()).environment(&lookup)?.finish();
        let [device, port, gid_index, pkey_index] = knobs;
        Ok(Self {
            device: settings.text(device).to_owned(),
            port: u8::try_from(settings.number(port)).unwrap_or(0),
            gid_index: u8::try_from(settings.number(gid_index)).ok(),
            pkey_index: u16::try_from(settings.number(pkey_index)).unwrap_or(0),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_knob_can_be_set_to_its_default_and_sets_its_field() {
        for knobs in [KNOBS, MLX5_KNOBS] {
            for knob in knobs {
                let set = |name: &str| (name == knob.env).then(|| knob.default.to_owned());
                assert_eq!(Config::from_lookup(knobs, set), Ok(Config::default()), "{}", knob.env);
            }
        }
        let set = |name: &str| {
            let text = match name {
                "COPYRPC_IBVERBS_DEVICE" | "COPYRPC_MLX5_DEVICE" => "rxe0",
                "COPYRPC_IBVERBS_PORT" | "COPYRPC_MLX5_PORT" => "2",
                "COPYRPC_IBVERBS_GID_INDEX" | "COPYRPC_MLX5_GID_INDEX" => "3",
                "COPYRPC_IBVERBS_PKEY_INDEX" | "COPYRPC_MLX5_PKEY_INDEX" => "4",
                _ => return None,
            };
            Some(text.to_owned())
        };
        let expected = Config { device: "rxe0".into(), port: 2, gid_index: Some(3), pkey_index: 4 };
        for knobs in [KNOBS, MLX5_KNOBS] {
            assert_eq!(Config::from_lookup(knobs, set).as_ref(), Ok(&expected));
        }
    }
}
