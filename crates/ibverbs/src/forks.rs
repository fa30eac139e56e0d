//! What a `fork` of this process does to memory that the adapter writes to.
//!
//! A kernel before Linux 5.12 shares pinned pages with the child until one of both writes to them: then the parent has
//! a copy, and the adapter the page of the child. libibverbs keeps the pages of queues and regions out of children,
//! if it knows of forks before it registers any memory. Sources: `ibv_fork_init(3)`, `ibv_is_fork_initialized(3)`;
//! rdma-core `libibverbs/memory.c`.

use core::ffi::c_int;
use std::{
    io,
    sync::{Mutex, PoisonError},
};

use crate::{api::Api, error::check};

/// `IBV_FORK_ENABLED`.
const ENABLED: c_int = 1;
/// `IBV_FORK_UNNEEDED`.
const UNNEEDED: c_int = 2;

/// Whether a `fork` leaves the memory of the adapter with this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ForkSafety {
    /// The kernel copies pinned pages for the child.
    NotNeeded,
    /// The library keeps them out of children.
    Done,
    /// The parent may lose them: the cause.
    Failed(String),
}

impl ForkSafety {
    /// Whether memory may lie on reserved huge pages. A kernel keeps whole ones out of a child, or none, and the library
    /// asks for the bytes that are registered: it would register no part of one.
    pub(crate) fn splits_no_pages(&self) -> bool {
        *self != Self::Done
    }
}

/// Readies the library for forks, before it opens a device. The library remembers it, so that one call is made for all
/// NICs; the log has the outcome once.
pub(crate) fn prepare(api: &Api) -> ForkSafety {
    /// Whether the log has it. The library counts on one thread at a time.
    static TOLD: Mutex<bool> = Mutex::new(false);
    let mut told = TOLD.lock().unwrap_or_else(PoisonError::into_inner);
    let outcome = of(api);
    if !core::mem::replace(&mut *told, true) {
        tell(&outcome);
    }
    outcome
}

/// A library of rdma-core before 35 does not tell whether a call is needed.
fn of(api: &Api) -> ForkSafety {
    // SAFETY: it takes nothing, and reads what the kernel says.
    let status = api.ibv_is_fork_initialized.map(|status| unsafe { status() });
    match (status, api.ibv_fork_init) {
        (Some(UNNEEDED), _) => ForkSafety::NotNeeded,
        (Some(ENABLED), _) => ForkSafety::Done,
        (_, None) => ForkSafety::Failed("libibverbs has no `ibv_fork_init`".to_owned()),
        // SAFETY: it takes nothing, and no other thread of this crate is in it.
        (_, Some(init)) => match check(unsafe { init() }) {
            Ok(()) => ForkSafety::Done,
            Err(error) => ForkSafety::Failed(cause_of(&error)),
        },
    }
}

fn cause_of(error: &io::Error) -> String {
    use rustix::io::Errno;
    let hint = match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::INVAL) => ": this process has registered memory before it opened this NIC",
        Some(Errno::NOSYS) => ": the kernel has no MADV_DONTFORK",
        _ => "",
    };
    format!("ibv_fork_init: {error}{hint}")
}

fn tell(outcome: &ForkSafety) {
    match outcome {
        ForkSafety::NotNeeded => tracing::debug!("forks take no memory of queues on this kernel"),
        ForkSafety::Done => tracing::debug!("libibverbs keeps memory of queues out of forks"),
        ForkSafety::Failed(cause) => tracing::warn!(
            cause,
            "a fork of this process may take memory of queues from it: start it with RDMAV_FORK_SAFE=1, run Linux \
             5.12 or later, or start children by posix_spawn alone"
        ),
    }
}

#[cfg(test)]
mod tests {
    use verbs::{Access, Nic as _};

    use super::*;
    use crate::{fake, nic::open_with, options::Config};

    /// The library has to know before any memory is pinned, and devices pin some when they are opened.
    #[test]
    fn the_library_knows_of_forks_before_memory_is_pinned() {
        let open = || open_with(fake::API, &Config::default()).unwrap();
        let nics = [open(), open()];
        let pd = nics[1].alloc_pd().unwrap();
        drop(nics[1].alloc_mr(&pd, 4096, Access::LOCAL_WRITE).unwrap());
        let calls = fake::with(|fake| fake.calls.clone());
        assert_eq!(calls, ["fork_init", "open_device", "open_device", "reg_mr"]);
    }

    #[test]
    fn the_outcome_is_told_by_what_library_and_kernel_say() {
        let of_status = |status, result| {
            fake::with(|fake| (fake.fork_status, fake.fork_result) = (status, result));
            let outcome = prepare(&fake::API);
            (outcome, fake::with(|fake| fake.calls.drain(..).count()))
        };
        assert_eq!(of_status(0, 0), (ForkSafety::Done, 1));
        assert_eq!(of_status(ENABLED, 22), (ForkSafety::Done, 0), "RDMAV_FORK_SAFE is set");
        assert_eq!(of_status(UNNEEDED, 22), (ForkSafety::NotNeeded, 0));
        for (errno, cause) in [(22, "has registered memory"), (38, "MADV_DONTFORK"), (12, "")] {
            let (outcome, calls) = of_status(0, errno);
            let ForkSafety::Failed(told) = outcome else { panic!("{outcome:?}") };
            assert!(told.contains("ibv_fork_init: ") && told.contains(cause), "{told}");
            assert_eq!(calls, 1);
        }
    }

    #[test]
    fn what_the_library_keeps_out_of_children_lies_on_no_reserved_pages() {
        for (status, has_reserved) in [(UNNEEDED, true), (0, false), (ENABLED, false)] {
            fake::with(|fake| fake.fork_status = status);
            let nic = open_with(fake::API, &Config::default()).unwrap();
            assert_eq!(nic.alloc_pd().unwrap().0.pages.has_reserved(), has_reserved, "{status}");
        }
    }

    #[test]
    fn a_library_without_the_functions_is_no_obstacle() {
        fake::with(|fake| fake.fork_status = UNNEEDED);
        let older = Api { ibv_is_fork_initialized: None, ..fake::API };
        assert_eq!(prepare(&older), ForkSafety::Done, "it is not known whether a call is needed");
        assert_eq!(fake::with(|fake| fake.calls.len()), 1);
        fake::with(|fake| fake.fork_status = 0);
        let bare = Api { ibv_fork_init: None, ..fake::API };
        assert!(matches!(prepare(&bare), ForkSafety::Failed(cause) if cause.contains("has no")));
        assert!(open_with(bare, &Config::default()).is_ok());
    }
}
