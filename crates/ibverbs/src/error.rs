//! Why no port can be opened, with the remedy.

use std::io;

use os::dylib::DylibError;

/// Why no port of an RDMA device can be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The library is not there, does not load, or lacks a function.
    #[error(
        "{0}; install the system's RDMA libraries, of rdma-core 28 or later (Debian: libibverbs1 and \
         ibverbs-providers, others: rdma-core), or use another NIC"
    )]
    Library(DylibError),
    /// The list of devices cannot be read.
    #[error("cannot list RDMA devices: {0}; is the kernel module ib_uverbs loaded?")]
    List(io::Error),
    /// There is no device at all.
    #[error(
        "this machine has no RDMA device: none is in /sys/class/infiniband, its kernel module is not loaded, or \
         no library drives it (Debian: ibverbs-providers)"
    )]
    NoDevice,
    /// The kernel has devices, and this process no nodes of them.
    #[error(
        "the kernel has RDMA devices ({devices}), and /dev/infiniband/uverbs* are missing here: in a container pass \
         `--device /dev/infiniband`; else load the kernel module ib_uverbs"
    )]
    NoNode {
        /// Their names.
        devices: String,
    },
    /// The kernel has devices that no library drives.
    #[error(
        "the kernel has RDMA devices ({devices}), and no library drives them: install ibverbs-providers (Debian) or \
         rdma-core"
    )]
    NoProvider {
        /// Their names.
        devices: String,
    },
    /// There is no device of that name.
    #[error("there is no RDMA device `{name}`; there are: {known}")]
    UnknownDevice {
        /// The name.
        name: String,
        /// The names there are.
        known: String,
    },
    /// libmlx5 drives none of the devices that are meant.
    #[error(
        "{devices}: no ConnectX, which is what libmlx5 drives; name one by COPYRPC_NIC_DEVICE, or use NIC `ibverbs`"
    )]
    NotMlx5 {
        /// Their names.
        devices: String,
    },
    /// libmlx5 would lay out its queues in another way.
    #[error("{cause}")]
    Environment {
        /// The variable that says so.
        cause: String,
    },
    /// The device cannot be opened.
    #[error("cannot open RDMA device `{device}`: {cause}; {}", remedy_of(cause))]
    Device {
        /// Its name.
        device: String,
        /// The system's reason.
        cause: io::Error,
    },
    /// The library's table lacks a function.
    #[error(
        "the driver of RDMA device `{device}` has no `{function}`; install one that fits libibverbs"
    )]
    Driver {
        /// Name of the device.
        device: String,
        /// The function.
        function: &'static str,
    },
    /// Something about the device or its port cannot be read.
    #[error("cannot read {what} of RDMA device `{device}`: {cause}")]
    Query {
        /// Name of the device.
        device: String,
        /// What was asked for.
        what: &'static str,
        /// The system's reason.
        cause: io::Error,
    },
    /// The device has no such port.
    #[error("RDMA device `{device}` has ports 1 to {ports}, not {port}; set COPYRPC_NIC_PORT")]
    NoPort {
        /// Name of the device.
        device: String,
        /// The port asked for.
        port: u8,
        /// Number of ports.
        ports: u8,
    },
    /// The port carries no traffic.
    #[error("port {port} of RDMA device `{device}` is {state}; {remedy}")]
    PortDown {
        /// Name of the device.
        device: String,
        /// The port.
        port: u8,
        /// Its state.
        state: &'static str,
        /// What to do about it.
        remedy: &'static str,
    },
    /// No row of the GID table can be sent from.
    #[error(
        "port {port} of RDMA device `{device}` has no GID to send from; give its network interface an IP \
         address, or choose a row by COPYRPC_NIC_GID_INDEX"
    )]
    NoGid {
        /// Name of the device.
        device: String,
        /// The port.
        port: u8,
    },
    /// The row of the GID table that was asked for is empty or does not exist.
    #[error(
        "row {index} of the GID table of port {port} of RDMA device `{device}` is empty; rows in use: {known}; \
         set COPYRPC_NIC_GID_INDEX"
    )]
    EmptyGid {
        /// Name of the device.
        device: String,
        /// The port.
        port: u8,
        /// The row.
        index: u8,
        /// Rows that are in use.
        known: String,
    },
    /// The row of the P_Key table that was asked for is empty or does not exist.
    #[error(
        "row {index} of the P_Key table of port {port} of RDMA device `{device}` holds no key: the subnet \
         manager has not put this port into that partition; set COPYRPC_NIC_PKEY_INDEX"
    )]
    NoPkey {
        /// Name of the device.
        device: String,
        /// The port.
        port: u8,
        /// The row.
        index: u16,
    },
    /// A P_Key whose members do not reach each other.
    #[error(
        "P_Key {pkey:#06x} of port {port} of RDMA device `{device}` makes it a limited member of its partition, \
         which reaches full members only; ask for full membership, or set COPYRPC_NIC_PKEY_INDEX"
    )]
    LimitedPkey {
        /// Name of the device.
        device: String,
        /// The port.
        port: u8,
        /// The key.
        pkey: u16,
    },
    /// The device makes no queue pair.
    #[error("RDMA device `{device}` makes no queue pair: {cause}")]
    Probe {
        /// Name of the device.
        device: String,
        /// The reason.
        cause: String,
    },
}

impl OpenError {
    /// How long the cause may last, as far as it can be told.
    #[must_use]
    pub fn outlook(&self) -> Outlook {
        match self {
            Self::PortDown { .. } | Self::NoGid { .. } | Self::NoPkey { .. } => Outlook::Soon,
            Self::List(_)
            | Self::NoDevice
            | Self::NoNode { .. }
            | Self::UnknownDevice { .. }
            | Self::Query { .. } => Outlook::Later,
            Self::Device { cause, .. } if is_of_the_moment(cause) => Outlook::Later,
            _ => Outlook::Never,
        }
    }
}

/// Whether a cause goes away by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outlook {
    /// Within a minute, as a rule: the subnet manager, or whoever gives addresses, has not been there yet.
    Soon,
    /// Perhaps: the device comes when its driver is loaded, or comes again after a reset.
    Later,
    /// Not before somebody changes something.
    Never,
}

/// The way to open a device.
fn remedy_of(cause: &io::Error) -> &'static str {
    if is_of_the_moment(cause) {
        "it is being reset, or has failed: the system's log says which"
    } else {
        "this user needs read and write access to /dev/infiniband/uverbs*, also inside a container"
    }
}

/// Whether a device that is being reset gives such errors.
fn is_of_the_moment(cause: &io::Error) -> bool {
    use rustix::io::Errno;
    let errno = cause.raw_os_error().map(Errno::from_raw_os_error);
    matches!(
        errno,
        Some(Errno::NODEV | Errno::NXIO | Errno::IO | Errno::NOENT | Errno::BUSY | Errno::AGAIN)
    )
}

/// The last error of the library, with what is known about its remedy.
pub(crate) fn last_cause() -> String {
    cause_of(&io::Error::last_os_error())
}

/// A return value of the library: 0, or the error's number, or −1.
pub(crate) fn check(result: core::ffi::c_int) -> io::Result<()> {
    match result {
        0 => Ok(()),
        1.. => Err(io::Error::from_raw_os_error(result)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// An error with what is known about its remedy.
pub(crate) fn cause_of(error: &io::Error) -> String {
    use rustix::io::Errno;
    let remedy = match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::NOMEM) => format!(
            "; memory of queues and regions is locked: raise `ulimit -l`, which is {}, or ask for less",
            locked_limit()
        ),
        Some(Errno::NETUNREACH | Errno::HOSTUNREACH) => {
            "; no route leads to the peer's GID: compare the addresses of both ports".to_owned()
        }
        Some(Errno::TIMEDOUT) => "; the peer's address does not answer (ARP, neighbour)".to_owned(),
        Some(Errno::NODEV | Errno::IO) => "; the device is gone or has failed".to_owned(),
        _ => String::new(),
    };
    format!("{error}{remedy}")
}

/// The limit on locked memory, as `ulimit -l` says it.
fn locked_limit() -> String {
    use rustix::process::{Resource, getrlimit};
    match getrlimit(Resource::Memlock).current {
        Some(bytes) => format!("{} KiB", bytes / 1024),
        None => "unlimited".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_remedy() {
        let cause = |errno: rustix::io::Errno| cause_of(&errno.into());
        assert!(cause(rustix::io::Errno::NOMEM).contains("ulimit -l"));
        assert!(cause(rustix::io::Errno::NETUNREACH).contains("no route"));
        assert_eq!(cause(rustix::io::Errno::INVAL), "Invalid argument (os error 22)");
    }

    #[test]
    fn what_passes_is_told_from_what_stays() {
        let (device, port) = ("mlx5_0".to_owned(), 1);
        let down =
            OpenError::PortDown { device: device.clone(), port, state: "INIT", remedy: "wait" };
        assert_eq!(down.outlook(), Outlook::Soon);
        assert_eq!(OpenError::NoDevice.outlook(), Outlook::Later);
        let opened = |cause: rustix::io::Errno| {
            OpenError::Device { device: device.clone(), cause: cause.into() }.outlook()
        };
        assert_eq!(opened(rustix::io::Errno::IO), Outlook::Later);
        assert_eq!(opened(rustix::io::Errno::ACCESS), Outlook::Never);
        assert_eq!(OpenError::NoPort { device, port, ports: 0 }.outlook(), Outlook::Never);
    }

    #[test]
    fn results_are_zero_or_an_error() {
        assert!(check(0).is_ok());
        assert_eq!(check(22).unwrap_err().raw_os_error(), Some(22));
        assert!(check(-1).is_err());
    }
}
