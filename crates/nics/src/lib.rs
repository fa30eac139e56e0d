//! The table of NICs: which there are, and how each is opened.
//!
//! A [`Selection`] names a NIC and holds its settings. [`Selection::with`] hands the NIC's
//! [`Opener`] to a [`Visitor`], whose code is generic over [`verbs::Nic`]: one copy of it is compiled
//! for software NICs, one for RDMA devices (feature `rdma`), and no call is dynamic.
//!
//! ```
//! use nics::{Opener, OpenError, Selection, Visitor};
//! use verbs::Nic;
//!
//! struct Mtu;
//! impl Visitor for Mtu {
//!     type Output = Result<usize, OpenError>;
//!     fn visit<O: Opener>(self, opener: O) -> Self::Output {
//!         Ok(opener.open()?.port().mtu.bytes())
//!     }
//! }
//!
//! assert_eq!(Selection::new("soft").with(Mtu)??, 4096);
//! # Ok::<(), OpenError>(())
//! ```
//!
//! # Architecture invariant
//!
//! This is the only crate above `rpc`'s row that names the crate of a NIC. A new NIC is an entry of
//! [`ALL`], an [`Opener`], and an arm of [`Selection::with`]'s choice of it.

#![forbid(unsafe_code)]

pub mod auto;
mod either;
pub mod hardware;
pub mod hosts;
pub mod ibverbs;
pub mod mlx5;
mod port;
mod selection;
pub mod soft;
pub mod tcp;

use std::error::Error;

use config::Knob;
use serde::Serialize;
use verbs::{Nic, PortOptionError};

pub use ::ibverbs::Outlook;
pub use ::mlx5::OperationDump;
pub use selection::{Selection, VARIABLE};

/// Opens ports of one NIC, as one configuration says. Threads share it and open a port each.
pub trait Opener: Clone + Send + Sync + 'static {
    /// The NIC.
    type Nic: Nic + Send + 'static;

    /// Opens a port of its own.
    ///
    /// # Errors
    ///
    /// [`OpenError::Open`] and [`OpenError::Option`].
    fn open(&self) -> Result<Self::Nic, OpenError>;

    /// The NIC as results name it, with the settings that differ from their defaults and change
    /// measured numbers.
    fn label(&self) -> String;

    /// Every operation once, with the bytes of requests and completions; `None`: the NIC has none of its own.
    fn operations(&self) -> Option<Result<Vec<OperationDump>, OperationsError>> {
        None
    }
}

/// Code that is generic over the NIC.
pub trait Visitor {
    /// The result of the visit.
    type Output;

    /// Runs with the NIC that was selected.
    fn visit<O: Opener>(self, opener: O) -> Self::Output;
}

/// An entry of the table.
#[derive(Clone, Copy, Debug)]
pub struct NicEntry {
    /// Name on command lines, in configuration files and in results.
    pub name: &'static str,
    /// Its description.
    pub meaning: &'static str,
    /// Its knobs.
    pub knobs: &'static [Knob],
    kind: Kind,
}

/// The arm of [`Selection::with`]'s choice that an entry belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Soft,
    Tcp,
    Hosts,
    Ibverbs,
    Mlx5,
    Auto,
}

/// Every NIC that this version drives; the first is the default.
pub const ALL: [NicEntry; 6] = [
    NicEntry {
        name: soft::NAME,
        meaning: "the software NIC: shared memory between processes of one user and machine",
        knobs: soft::KNOBS,
        kind: Kind::Soft,
    },
    NicEntry {
        name: tcp::NAME,
        meaning: "the software NIC over TCP: between machines, without RDMA",
        knobs: tcp::KNOBS,
        kind: Kind::Tcp,
    },
    NicEntry {
        name: hosts::NAME,
        meaning: "the software NIC by shared memory between processes of one user and machine, and over TCP beyond",
        knobs: tcp::KNOBS,
        kind: Kind::Hosts,
    },
    NicEntry {
        name: ibverbs::NAME,
        meaning: "an RDMA device of this machine, by the system's libibverbs",
        knobs: ibverbs::KNOBS,
        kind: Kind::Ibverbs,
    },
    NicEntry {
        name: mlx5::NAME,
        meaning: "a ConnectX of this machine: the driver of this project, with the system's libmlx5 to make queues",
        knobs: mlx5::KNOBS,
        kind: Kind::Mlx5,
    },
    NicEntry {
        name: auto::NAME,
        meaning: "an RDMA device if one is up (a ConnectX by `mlx5`, others by `ibverbs`), else `hosts` if the job may \
                  have several machines, else the software NIC",
        knobs: &[],
        kind: Kind::Auto,
    },
];

/// Knobs of the node that NICs take, too: the secret of the job, and where its daemons meet.
const SHARED_VARIABLES: [&str; 2] = ["COPYRPC_SECRET_FILE", "COPYRPC_RENDEZVOUS"];

/// The knobs of every NIC: which device and port, and what each NIC has of its own.
pub fn knobs() -> impl Iterator<Item = Knob> {
    // NIC `hosts` has those of NIC `tcp`.
    let entries = ALL.iter().filter(|entry| entry.kind != Kind::Hosts);
    port::KNOBS.iter().chain(entries.flat_map(|entry| entry.knobs)).copied()
}

/// The knobs that say which device and port a NIC is opened with.
pub fn port_knobs() -> impl Iterator<Item = Knob> {
    port::KNOBS.iter().copied()
}

/// Whether a NIC of the table can be used here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Availability {
    /// Name of the NIC.
    pub name: &'static str,
    /// Its description.
    pub meaning: &'static str,
    /// The search that was made.
    pub tried: &'static str,
    /// Why that failed; `None`: the NIC can be used.
    pub error: Option<String>,
}

/// Tries every NIC of the table; `lookup` finds their settings by environment variable.
#[must_use]
pub fn all(lookup: impl Fn(&str) -> Option<String>) -> Vec<Availability> {
    struct Try;
    impl Visitor for Try {
        type Output = Result<(), OpenError>;
        fn visit<O: Opener>(self, opener: O) -> Self::Output {
            opener.open().map(drop)
        }
    }
    let available = |&NicEntry { name, meaning, .. }: &NicEntry| {
        let opened = Selection::from_lookup(name, &lookup).with(Try).and_then(|opened| opened);
        let error = opened.err().map(|error| error.to_string());
        Availability { name, meaning, tried: "opening a port", error }
    };
    ALL.iter().map(available).collect()
}

/// Why a NIC cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The table has no NIC of that name, and the machine no RDMA device.
    #[error(
        "no NIC and no RDMA device here is named `{name}`{}; this version drives: {known}",
        hint(nearest.as_deref())
    )]
    Unknown {
        /// The name.
        name: String,
        /// The name that was probably meant.
        nearest: Option<&'static str>,
        /// The names there are.
        known: String,
    },
    /// The program was built without NICs of RDMA devices.
    #[error("NIC `{name}`: this program was built without feature `rdma`, which RDMA devices need")]
    LeftOut {
        /// The name of the selection.
        name: String,
    },
    /// A setting of the NIC has a value that it does not take.
    #[error("NIC `{name}`: {cause}")]
    Setting {
        /// The NIC.
        name: &'static str,
        /// The setting, its value, and the accepted values.
        cause: Box<dyn Error + Send + Sync>,
    },
    /// The NIC has not the device, the port or the row that was asked for.
    #[error("NIC `{name}`: {variable}: {cause}")]
    Option {
        /// The NIC.
        name: &'static str,
        /// Environment variable that sets the option.
        variable: &'static str,
        /// The requested object, and the existing ones.
        cause: PortOptionError,
    },
    /// The NIC refuses to open a port.
    #[error("NIC `{name}`: {cause}")]
    Open {
        /// The NIC.
        name: &'static str,
        /// The cause and its remedy.
        cause: Box<dyn Error + Send + Sync>,
    },
}

/// Why operations have no bytes.
#[derive(Debug, thiserror::Error)]
pub enum OperationsError {
    /// The NIC does not open.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// An operation does not work.
    #[error(transparent)]
    Operation(#[from] ::mlx5::DumpError),
}

/// The operations of a NIC under the driver `mlx5`.
fn operations_of<D: ::mlx5::device::Device>(
    opened: Result<::mlx5::Nic<D>, OpenError>,
) -> Result<Vec<OperationDump>, OperationsError> {
    Ok(::mlx5::operations(&opened?)?)
}

impl OpenError {
    fn option(name: &'static str, cause: PortOptionError) -> Self {
        Self::Option { name, variable: port::variable(&cause), cause }
    }

    /// How long the cause may last, as far as that is known.
    #[must_use]
    pub fn outlook(&self) -> Outlook {
        match self {
            Self::Unknown { name, .. } if selection::is_of_a_device(name) => Outlook::Later,
            Self::Open { cause, .. } => {
                if let Some(error) = cause.downcast_ref::<::ibverbs::OpenError>() {
                    error.outlook()
                } else if let Some(::tcp::OpenError::Listen { source, .. }) = cause.downcast_ref() {
                    outlook_of_listening(source.kind())
                } else {
                    Outlook::Never
                }
            }
            Self::Unknown { .. }
            | Self::LeftOut { .. }
            | Self::Setting { .. }
            | Self::Option { .. } => Outlook::Never,
        }
    }

    /// Whether a setting is the cause, which makes no sense on any machine.
    #[must_use]
    pub fn is_mistake(&self) -> bool {
        use ::tcp::OpenError::{Address, NoSecret, Secret};
        match self {
            Self::Unknown { name, .. } => !selection::is_of_a_device(name),
            // The software NICs have these, which always have one device.
            Self::Setting { .. } | Self::Option { .. } => true,
            Self::LeftOut { .. } => false,
            Self::Open { cause, .. } => {
                matches!(cause.downcast_ref(), Some(Address { .. } | NoSecret { .. } | Secret(_)))
            }
        }
    }
}

/// An address comes with its interface, and a port when its owner ends.
fn outlook_of_listening(error: std::io::ErrorKind) -> Outlook {
    use std::io::ErrorKind::{AddrInUse, AddrNotAvailable};
    if matches!(error, AddrInUse | AddrNotAvailable) { Outlook::Later } else { Outlook::Never }
}

fn hint(nearest: Option<&str>) -> String {
    nearest.map_or_else(String::new, |name| format!(" (did you mean `{name}`?)"))
}
