//! Ports of RDMA devices by their type, for programs that use no other.

use std::collections::BTreeMap;

pub use ::ibverbs::{Config, KNOBS, Nic, OpenError, open};

use crate::{Opener, hardware, port};

/// Its name in the table.
pub const NAME: &str = "ibverbs";

/// Opens ports of the device that its configuration names.
#[derive(Clone, Debug, Default)]
pub struct IbverbsOpener(pub Config);

impl IbverbsOpener {
    pub(crate) fn from_lookup(
        lookup: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, crate::OpenError> {
        let (options, config) = port::with_options(NAME, lookup, Config::from_lookup)?;
        Ok(Self(Config {
            device: options.device.unwrap_or(config.device),
            port: options.port.unwrap_or(config.port),
            gid_index: options.gid_index.or(config.gid_index),
            pkey_index: options.pkey_index.unwrap_or(config.pkey_index),
        }))
    }
}

impl Opener for IbverbsOpener {
    type Nic = Nic;

    fn open(&self) -> Result<Nic, crate::OpenError> {
        let failed = |cause: OpenError| crate::OpenError::Open { name: NAME, cause: cause.into() };
        open(&self.0).map_err(failed)
    }

    fn label(&self) -> String {
        match self.0.device.as_str() {
            "" => NAME.to_owned(),
            device => format!("{NAME} ({device})"),
        }
    }
}

/// Whether `name` is that of a device which the kernel lists.
pub(crate) fn is_device(name: &str) -> bool {
    hardware::devices().0.iter().any(|device| device.name() == name)
}

/// `settings`, and the device `name`.
pub(crate) fn settings_of(
    name: &str,
    settings: &BTreeMap<String, String>,
) -> BTreeMap<String, String> {
    let mut settings = settings.clone();
    settings.insert(::ibverbs::DEVICE_VARIABLE.to_owned(), name.to_owned());
    settings.insert(port::DEVICE.env.to_owned(), name.to_owned());
    settings
}
