//! Measurements on the NIC that was selected. They are here, and not where the command line is read, because
//! what is generic over the NIC is compiled where its kinds are named, and `cli` is compiled to be small.

use std::net::TcpListener;

use nics::{OpenError, Opener, Selection, Visitor};

use crate::{
    dc_reads,
    error::Error,
    job::NicSide,
    nic::NicWork,
    two_hosts::{self, SHAPES, TwoHostsOutcome},
};

/// One side of a benchmark on the NIC.
///
/// # Errors
///
/// [`OpenError`] of the NIC; [`Error`] of what is done with it.
pub fn open_work(nic: &Selection) -> Result<Result<Box<dyn NicSide>, Error>, OpenError> {
    struct OpenWork;

    impl Visitor for OpenWork {
        type Output = Result<Result<Box<dyn NicSide>, Error>, OpenError>;

        fn visit<O: Opener>(self, opener: O) -> Self::Output {
            opener.open()?; // an error of the NIC, not of what is done with it
            let open = move || opener.open().map_err(|error| error.to_string());
            Ok(NicWork::new(open).map(|work| Box::new(work) as Box<dyn NicSide>))
        }
    }

    nic.with(OpenWork)?
}

/// Whether the NIC has DC queues.
///
/// # Errors
///
/// [`OpenError`].
pub fn has_dc(nic: &Selection) -> Result<bool, OpenError> {
    struct HasDc;

    impl Visitor for HasDc {
        type Output = Result<bool, OpenError>;

        fn visit<O: Opener>(self, opener: O) -> Self::Output {
            Ok(dc_reads::has_dc(&opener.open()?))
        }
    }

    nic.with(HasDc)?
}

/// Answers the calls of clients of other hosts, as [`two_hosts::serve`] does, for ever.
///
/// # Errors
///
/// As [`open_work`].
pub fn serve_hosts(
    nic: &Selection,
    listener: &TcpListener,
    came: impl FnMut(&str),
) -> Result<Result<(), Error>, OpenError> {
    struct Serve<'a, F>(&'a TcpListener, F);

    impl<F: FnMut(&str)> Visitor for Serve<'_, F> {
        type Output = Result<(), Error>;

        fn visit<O: Opener>(self, opener: O) -> Self::Output {
            let open = || opener.open().map_err(Error::refused("cannot open the NIC"));
            two_hosts::serve(open, self.0, None, self.1)
        }
    }

    nic.with(Serve(listener, came))
}

/// Measures calls to the server at an address, and says on which NIC.
///
/// # Errors
///
/// As [`open_work`].
pub fn measure_hosts(
    nic: &Selection,
    address: &str,
    calls: u64,
) -> Result<Result<(String, Vec<TwoHostsOutcome>), Error>, OpenError> {
    struct Measure<'a>(&'a str, u64);

    impl Visitor for Measure<'_> {
        type Output = Result<Result<(String, Vec<TwoHostsOutcome>), Error>, OpenError>;

        fn visit<O: Opener>(self, opener: O) -> Self::Output {
            let outcomes = two_hosts::measure(opener.open()?, self.0, &SHAPES, self.1);
            Ok(outcomes.map(|outcomes| (opener.label(), outcomes)))
        }
    }

    nic.with(Measure(address, calls))?
}
