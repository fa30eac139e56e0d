//! What a report tries on the NIC. It is compiled to be small, as all of `cli`: nobody measures it.

use std::time::Duration;

use conformance::{NicPlace, NotPassed, Testbed, scenarios, try_threads};
use nics::{OpenError, Opener, OperationDump, OperationsError, Selection, Visitor};
use verbs::{Capabilities, Nic as _};

/// Runs the suite that every NIC must pass, between two threads that open the NIC, and reports each scenario by
/// its name.
///
/// # Errors
///
/// [`OpenError`] of the NIC.
pub(super) fn conformance(
    nic: &Selection,
    report: impl FnMut(&'static str, Result<(), NotPassed>),
) -> Result<(), OpenError> {
    struct Check<F>(F);

    impl<F: FnMut(&'static str, Result<(), NotPassed>)> Visitor for Check<F> {
        type Output = Result<(), OpenError>;

        fn visit<O: Opener>(mut self, opener: O) -> Self::Output {
            let claimed = opener.open()?.attributes().capabilities;
            // A NIC that is not known breaks what it claims, or nothing.
            let testbed = Testbed {
                absent: Capabilities::all() - claimed,
                quiet: Duration::from_millis(50),
                wakes_early: true,
                ..Testbed::FULL
            };
            for (name, _) in scenarios::<O::Nic>() {
                let opener = opener.clone();
                let open = move |_: &NicPlace| {
                    opener.open().unwrap_or_else(|error| panic!("cannot open the NIC: {error}"))
                };
                (self.0)(name, try_threads(name, open, testbed));
            }
            Ok(())
        }
    }

    nic.with(Check(report))?
}

/// Every operation once, as [`Opener::operations`] has it.
///
/// # Errors
///
/// [`OpenError`]: the NIC is not known, or not set so.
pub(super) fn operations(
    nic: &Selection,
) -> Result<Option<Result<Vec<OperationDump>, OperationsError>>, OpenError> {
    struct Run;

    impl Visitor for Run {
        type Output = Option<Result<Vec<OperationDump>, OperationsError>>;

        fn visit<O: Opener>(self, opener: O) -> Self::Output {
            opener.operations()
        }
    }

    nic.with(Run)
}
