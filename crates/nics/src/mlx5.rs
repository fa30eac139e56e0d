//! Ports of a ConnectX that the driver of this project runs, by their type, for programs that use no other. An
//! opener's are [`any::Nic`]s.

pub use ::ibverbs::{
    Config, MLX5_KNOBS as KNOBS, OpenError, any,
    mlx5dv::{Device, open},
};

use crate::{Opener, OperationDump, OperationsError, ibverbs, operations_of};

/// Its name in the table.
pub const NAME: &str = "mlx5";

/// The NIC: the driver, and the device that libmlx5 opens for it.
pub type Nic = ::mlx5::Nic<Device>;

/// Opens ports of the ConnectX that its configuration names.
#[derive(Clone, Debug, Default)]
pub struct Mlx5Opener(pub Config);

impl Mlx5Opener {
    pub(crate) fn from_lookup(
        lookup: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, crate::OpenError> {
        ibverbs::config(NAME, KNOBS, lookup).map(Self)
    }

    fn drive(&self) -> Result<Nic, crate::OpenError> {
        let failed = |cause: OpenError| crate::OpenError::Open { name: NAME, cause: cause.into() };
        open(&self.0).map(Nic::new).map_err(failed)
    }
}

impl Opener for Mlx5Opener {
    type Nic = any::Nic;

    fn open(&self) -> Result<any::Nic, crate::OpenError> {
        self.drive().map(any::Nic::Driver)
    }

    fn label(&self) -> String {
        ibverbs::label(NAME, &self.0.device)
    }

    fn operations(&self) -> Option<Result<Vec<OperationDump>, OperationsError>> {
        Some(operations_of(self.drive()))
    }
}
