//! Two openers of one type of NIC as one, so that code that is generic over the opener is compiled for both at once.

use crate::{OpenError, Opener, OperationDump, OperationsError};

/// One of two openers.
#[derive(Clone, Debug)]
pub(crate) enum Either<A, B> {
    First(A),
    Second(B),
}

impl<A: Opener, B: Opener<Nic = A::Nic>> Opener for Either<A, B> {
    type Nic = A::Nic;

    fn open(&self) -> Result<A::Nic, OpenError> {
        match self {
            Self::First(opener) => opener.open(),
            Self::Second(opener) => opener.open(),
        }
    }

    fn label(&self) -> String {
        match self {
            Self::First(opener) => opener.label(),
            Self::Second(opener) => opener.label(),
        }
    }

    fn operations(&self) -> Option<Result<Vec<OperationDump>, OperationsError>> {
        match self {
            Self::First(opener) => opener.operations(),
            Self::Second(opener) => opener.operations(),
        }
    }
}
