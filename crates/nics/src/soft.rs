//! The software NIC by its type, for programs that use no other.

pub use softnic::{Config, Drive, KNOBS, Nic, OpenError, open};

use crate::{Opener, OperationDump, OperationsError, operations_of, port};

/// Its name in the table.
pub const NAME: &str = "soft";

/// Opens ports on the fabric that its configuration names.
#[derive(Clone, Debug, Default)]
pub struct SoftOpener(pub Config);

impl SoftOpener {
    pub(crate) fn from_lookup(
        lookup: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, crate::OpenError> {
        let (options, config) = port::with_options(NAME, lookup, Config::from_lookup)?;
        Ok(Self(Config { options, ..config }))
    }
}

impl Opener for SoftOpener {
    type Nic = Nic;

    fn open(&self) -> Result<Nic, crate::OpenError> {
        open(&self.0).map_err(|error| match error {
            OpenError::Option(cause) => crate::OpenError::option(NAME, cause),
            error @ OpenError::Fabric { .. } => {
                crate::OpenError::Open { name: NAME, cause: error.into() }
            }
        })
    }

    fn label(&self) -> String {
        self.0.label(NAME)
    }

    fn operations(&self) -> Option<Result<Vec<OperationDump>, OperationsError>> {
        Some(operations_of(self.open()))
    }
}
