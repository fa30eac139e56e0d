//! Ports of RDMA devices by their type, for programs that use no other. An opener's are [`any::Nic`]s.

use std::collections::BTreeMap;

pub use ::ibverbs::{Config, KNOBS, Nic, OpenError, any, open};

use config::Knob;

use crate::{Opener, port};

/// Its name in the table.
pub const NAME: &str = "ibverbs";

/// Opens ports of the device that its configuration names.
#[derive(Clone, Debug, Default)]
pub struct IbverbsOpener(pub Config);

impl IbverbsOpener {
    pub(crate) fn from_lookup(
        lookup: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, crate::OpenError> {
        config(NAME, KNOBS, lookup).map(Self)
    }
}

/// The port of an RDMA device that is set by the options of every NIC, or by the `knobs` of the NIC `name`.
pub(crate) fn config<L: Fn(&str) -> Option<String>>(
    name: &'static str,
    knobs: &'static [Knob; 4],
    lookup: L,
) -> Result<Config, crate::OpenError> {
    let own = |lookup: L| Config::from_lookup(knobs, lookup);
    let (options, config) = port::with_options(name, lookup, own)?;
    Ok(Config {
        device: options.device.unwrap_or(config.device),
        port: options.port.unwrap_or(config.port),
        gid_index: options.gid_index.or(config.gid_index),
        pkey_index: options.pkey_index.unwrap_or(config.pkey_index),
    })
}

/// The name of a NIC in results, with that of its device if one is set.
pub(crate) fn label(name: &str, device: &str) -> String {
    match device {
        "" => name.to_owned(),
        device => format!("{name} ({device})"),
    }
}

impl Opener for IbverbsOpener {
    type Nic = any::Nic;

    fn open(&self) -> Result<any::Nic, crate::OpenError> {
        let failed = |cause: OpenError| crate::OpenError::Open { name: NAME, cause: cause.into() };
        open(&self.0).map(any::Nic::Library).map_err(failed)
    }

    fn label(&self) -> String {
        label(NAME, &self.0.device)
    }
}

/// `settings`, and the device `name`.
pub(crate) fn settings_of(
    name: &str,
    settings: &BTreeMap<String, String>,
) -> BTreeMap<String, String> {
    let mut settings = settings.clone();
    settings.insert(port::DEVICE.env.to_owned(), name.to_owned());
    settings
}
