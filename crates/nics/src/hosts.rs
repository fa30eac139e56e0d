//! Ports on TCP that share memory with those of their host, by their type, for programs that use no other.

pub use ::tcp::{Config, OpenError, open};
use softnic::Nic;

use crate::{
    OpenError as NicError, Opener, OperationDump, OperationsError, operations_of, tcp::open_as,
};

/// Its name in the table.
pub const NAME: &str = "hosts";

/// Opens ports where its configuration says, which share memory whatever that says.
#[derive(Clone, Debug, Default)]
pub struct HostsOpener(pub Config);

impl HostsOpener {
    pub(crate) fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Result<Self, NicError> {
        let (options, config) = crate::port::with_options(NAME, lookup, Config::from_lookup)?;
        Ok(Self(Config { options, ..config }))
    }
}

impl Opener for HostsOpener {
    type Nic = Nic;

    fn open(&self) -> Result<Nic, NicError> {
        open_as(NAME, &Config { shares_memory: true, ..self.0.clone() })
    }

    fn label(&self) -> String {
        NAME.to_owned()
    }

    fn operations(&self) -> Option<Result<Vec<OperationDump>, OperationsError>> {
        Some(operations_of(self.open()))
    }
}
