//! The knobs that say with which device, port and rows of its tables a NIC is opened. They belong to every NIC.

use config::{Knob, KnobKind, Layers, SettingError};
use verbs::{PortOptionError, PortOptions, PortTable};

/// [`PortOptions::device`].
pub(crate) const DEVICE: Knob = Knob {
    env: "COPYRPC_NIC_DEVICE",
    kind: KnobKind::Text,
    default: "",
    meaning: "Name of the NIC's device, such as `mlx5_0` [default: its own choice]",
};

/// [`PortOptions::port`].
pub(crate) const PORT: Knob = Knob {
    env: "COPYRPC_NIC_PORT",
    kind: KnobKind::Count { min: 1, max: 255 },
    default: "",
    meaning: "Number of the device's port [default: its own choice]",
};

/// [`PortOptions::gid_index`].
const GID_INDEX: Knob = Knob {
    env: "COPYRPC_NIC_GID_INDEX",
    kind: KnobKind::Count { min: 0, max: 255 },
    default: "",
    meaning: "Row of the port's GID table: the address that it sends from [default: its own choice]",
};

/// [`PortOptions::pkey_index`].
const PKEY_INDEX: Knob = Knob {
    env: "COPYRPC_NIC_PKEY_INDEX",
    kind: KnobKind::Count { min: 0, max: 65_535 },
    default: "",
    meaning: "Row of the port's P_Key table: the partition of its queue pairs [default: its own choice]",
};

/// All of them.
pub(crate) const KNOBS: &[Knob] = &[DEVICE, PORT, GID_INDEX, PKEY_INDEX];

/// The options that `lookup` finds, by environment variable.
fn options(lookup: impl Fn(&str) -> Option<String>) -> Result<PortOptions, SettingError> {
    let settings = Layers::new(KNOBS.to_vec()).environment(lookup)?.finish();
    let device = settings.text(&DEVICE);
    // The table bounds each number.
    let byte = |knob| settings.number_if_set(knob).and_then(|number| u8::try_from(number).ok());
    let pkey_index = settings.number_if_set(&PKEY_INDEX);
    Ok(PortOptions {
        device: (!device.is_empty()).then(|| device.to_owned()),
        port: byte(&PORT),
        gid_index: byte(&GID_INDEX),
        pkey_index: pkey_index.and_then(|number| u16::try_from(number).ok()),
    })
}

/// These options, and the settings `C` of the NIC `name` itself.
pub(crate) fn with_options<L: Fn(&str) -> Option<String>, C>(
    name: &'static str,
    lookup: L,
    settings: impl FnOnce(L) -> Result<C, SettingError>,
) -> Result<(PortOptions, C), crate::OpenError> {
    let both = options(&lookup).and_then(|options| Ok((options, settings(lookup)?)));
    both.map_err(|cause| crate::OpenError::Setting { name, cause: cause.into() })
}

/// The variable of the refused setting.
pub(crate) fn variable(refused: &PortOptionError) -> &'static str {
    match refused {
        PortOptionError::Port { .. } => PORT.env,
        PortOptionError::Row { table: PortTable::Gid, .. } => GID_INDEX.env,
        PortOptionError::Row { table: PortTable::Pkey, .. } => PKEY_INDEX.env,
        _ => DEVICE.env,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_knob_sets_its_option_and_none_is_set_by_default() {
        assert_eq!(options(|_| None), Ok(PortOptions::default()));
        let set = |name: &str| {
            let text = match name {
                "COPYRPC_NIC_DEVICE" => "mlx5_1",
                "COPYRPC_NIC_PORT" => "2",
                "COPYRPC_NIC_GID_INDEX" => "3",
                "COPYRPC_NIC_PKEY_INDEX" => "65535",
                _ => return None,
            };
            Some(text.to_owned())
        };
        let expected = PortOptions {
            device: Some("mlx5_1".into()),
            port: Some(2),
            gid_index: Some(3),
            pkey_index: Some(u16::MAX),
        };
        assert_eq!(options(set), Ok(expected));
    }

    #[test]
    fn a_number_that_no_nic_has_is_refused_by_its_variable() {
        for (env, text) in [
            ("COPYRPC_NIC_PORT", "0"),
            ("COPYRPC_NIC_GID_INDEX", "256"),
            ("COPYRPC_NIC_PKEY_INDEX", "65536"),
        ] {
            let bad = |name: &str| (name == env).then(|| text.to_owned());
            let told = options(bad).unwrap_err().to_string();
            assert!(told.starts_with(env) && told.contains("is not between"), "{told}");
        }
    }
}
