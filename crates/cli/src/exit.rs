//! Exit codes of errors that daemons alone have.

use std::io::{self, ErrorKind};

use bootstrap::BootstrapError;
use client::runtime::RuntimeError;
use command::exit::{FailureKind, is_misconfigured, kind_of_nic};
use copyrpc::daemon::ServeOnError;
use daemon::ServeError;
use nics::Outlook;
use rustix::io::Errno;

/// The kind of an error of a daemon that does not serve.
pub(crate) fn kind_of(error: &anyhow::Error) -> Option<FailureKind> {
    let is_out_of_descriptors = is_out_of_descriptors(error);
    let error = error.downcast_ref::<ServeOnError>()?;
    Some(match error {
        error if is_temporary(error) => FailureKind::Temporary,
        ServeOnError::Nic(error) => kind_of_nic(error),
        ServeOnError::Serve(ServeError::Runtime(error)) if is_misconfigured(error) => {
            FailureKind::Usage
        }
        // A NIC has to be named, on this rank or on others.
        ServeOnError::Serve(
            ServeError::NicMix { .. }
            | ServeError::SeveralHosts { .. }
            | ServeError::Fabrics { .. },
        ) => FailureKind::Usage,
        // The limits of this machine do not get higher by trying again.
        ServeOnError::Serve(
            ServeError::Worker(_) | ServeError::Descriptors { .. } | ServeError::AddressSpace(_),
        ) => FailureKind::Unavailable,
        _ if is_out_of_descriptors => FailureKind::Unavailable,
        _ => FailureKind::Failed,
    })
}

/// Whether this process has as many descriptors as it may have.
fn is_out_of_descriptors(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        let errno = match cause.downcast_ref::<io::Error>() {
            Some(error) => error.raw_os_error(),
            None => cause.downcast_ref::<Errno>().map(|errno| errno.raw_os_error()),
        };
        errno == Some(Errno::MFILE.raw_os_error())
    })
}

/// Whether the same start may succeed a while later, without a change on this node.
fn is_temporary(error: &ServeOnError) -> bool {
    let error = match error {
        ServeOnError::Nic(error) => return error.outlook() != Outlook::Never,
        ServeOnError::Serve(error) => error,
        _ => return false,
    };
    match error {
        // A predecessor that was killed gives back its memory before its lock.
        ServeError::Runtime(RuntimeError::Taken { .. }) => true,
        // The next life waits for the device, which is being reset.
        ServeError::NicFailed(_) => true,
        ServeError::Bootstrap(error) => match error {
            BootstrapError::Missing { .. }
            | BootstrapError::Unreachable { .. }
            | BootstrapError::GaveUp { .. }
            | BootstrapError::Lost { .. } => true,
            BootstrapError::Listen { source, .. } => {
                matches!(source.kind(), ErrorKind::AddrInUse | ErrorKind::AddrNotAvailable)
            }
            // A shared folder that is mounted late.
            BootstrapError::Folder { source, .. } => source.kind() == ErrorKind::NotFound,
            _ => false,
        },
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_of_the_moment_is_told_from_a_mistake_of_settings() {
        let of = |error: ServeOnError| kind_of(&anyhow::Error::from(error)).unwrap();
        let bootstrap = |error: BootstrapError| of(ServeError::from(error).into());
        let source = || io::Error::from(ErrorKind::ConnectionRefused);
        let (rank_info, address) = (bootstrap::RankInfo::ALONE, "n0:7000".to_owned());
        let waited = std::time::Duration::from_secs(1);
        let unreachable = BootstrapError::Unreachable {
            rank_info,
            address: address.clone(),
            waited,
            source: source(),
        };
        assert_eq!(bootstrap(unreachable), FailureKind::Temporary);
        let foreign = BootstrapError::Foreign { address, job: "a".to_owned(), why: "it said so" };
        assert_eq!(bootstrap(foreign), FailureKind::Failed);
        let port = ibverbs_error();
        assert_eq!(of(ServeOnError::Nic(port)), FailureKind::Temporary);
        let folder = RuntimeError::NotPrivate { path: "/x".into(), uid: 1 };
        assert_eq!(of(ServeError::from(folder).into()), FailureKind::Usage);
        let address = std::net::SocketAddr::from(([192, 0, 2, 1], 9));
        let beyond = ServeError::SeveralHosts { rank: 1, address };
        assert_eq!(of(beyond.into()), FailureKind::Usage);
    }

    /// A device that may come.
    fn ibverbs_error() -> nics::OpenError {
        nics::OpenError::Open { name: "mlx5", cause: nics::mlx5::OpenError::NoDevice.into() }
    }
}
