//! Ports on TCP by their type, for programs that use no other.

pub use ::tcp::{Config, KNOBS, OpenError, open};
use softnic::Nic;

use crate::{Opener, OperationDump, OperationsError, operations_of, port};

/// Its name in the table.
pub const NAME: &str = "tcp";

/// Opens ports where its configuration says.
#[derive(Clone, Debug, Default)]
pub struct TcpOpener(pub Config);

impl TcpOpener {
    pub(crate) fn from_lookup(
        lookup: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, crate::OpenError> {
        let (options, config) = port::with_options(NAME, lookup, Config::from_lookup)?;
        Ok(Self(Config { options, ..config }))
    }
}

/// Opens a port of the NIC `name`.
pub(crate) fn open_as(name: &'static str, config: &Config) -> Result<Nic, crate::OpenError> {
    open(config).map_err(|error| match error {
        OpenError::Engine(softnic::OpenError::Option(cause)) => {
            crate::OpenError::option(name, cause)
        }
        error => crate::OpenError::Open { name, cause: error.into() },
    })
}

impl Opener for TcpOpener {
    type Nic = Nic;

    fn open(&self) -> Result<Nic, crate::OpenError> {
        open_as(NAME, &self.0)
    }

    fn label(&self) -> String {
        NAME.to_owned()
    }

    fn operations(&self) -> Option<Result<Vec<OperationDump>, OperationsError>> {
        Some(operations_of(self.open()))
    }
}
