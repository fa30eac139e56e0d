//! Opening a port.

use memory::sync::Arc;
use verbs::PortOptionError;

use crate::{
    Config, Device, Drive, Timeline, Violation, VirtualPort,
    nic::{
        card::Card,
        fabric::Fabric,
        housekeeping::{Housekeeping, OpenFailure},
        in_use::InUse,
        runner::Runner,
        thread,
    },
};

/// The mlx5 driver on a software device.
pub type Nic = mlx5::Nic<Device>;

/// Why a software NIC could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// It has not what [`Config::options`] name.
    #[error(transparent)]
    Option(#[from] PortOptionError),
    /// The port does not come into being.
    #[error("cannot open a software NIC on fabric `{fabric}`: {cause}")]
    Fabric {
        /// Name of the fabric.
        fabric: String,
        /// What went wrong and what helps.
        cause: String,
    },
}

impl OpenError {
    fn of(failure: OpenFailure, config: &Config) -> Self {
        match failure {
            OpenFailure::Option(refused) => Self::Option(refused),
            other => Self::Fabric { fabric: config.fabric.clone(), cause: other.to_string() },
        }
    }
}

/// Opens a port of its own on the fabric that `config` names.
///
/// # Errors
///
/// [`OpenError`].
pub fn open(config: &Config) -> Result<Nic, OpenError> {
    let opened = Housekeeping::open(config.clone()).and_then(|port| {
        if config.drive == Drive::Thread {
            let worker = thread::start(Arc::downgrade(&port)).map_err(OpenFailure::Thread)?;
            port.port.runner.get_or_init(|| Runner::Thread(worker));
        }
        Ok(port)
    });
    let housekeeping = opened.map_err(|failure| OpenError::of(failure, config))?;
    let in_use = InUse::new(&housekeeping);
    Ok(mlx5::Nic::new(Device(housekeeping, in_use)))
}

/// Opens a port on the heap that `timeline` drives, with this LID. Of `config` it takes link layer,
/// size of the card, and options. The second result is for the owner of time.
///
/// # Errors
///
/// [`OpenError`].
pub fn open_virtual(
    config: &Config,
    lid: verbs::Lid,
    timeline: Arc<dyn Timeline>,
) -> Result<(Nic, VirtualPort), OpenError> {
    let housekeeping = Housekeeping::open_virtual(config.clone(), lid, timeline)
        .map_err(|failure| OpenError::of(failure, config))?;
    let (in_use, port) = (InUse::new(&housekeeping), VirtualPort::new(&housekeeping));
    Ok((mlx5::Nic::new(Device(housekeeping, in_use)), port))
}

/// A place on a fabric, for a port that is reached by packets, too.
#[derive(Debug)]
pub struct Membership {
    card: Card,
    fabric: Fabric,
}

impl Membership {
    /// Joins the fabric that `config` names. `instance`: a number that no other port of this name has or had;
    /// only who knows it finds this one.
    ///
    /// # Errors
    ///
    /// [`OpenError`].
    pub fn join(config: &Config, instance: u64) -> Result<Self, OpenError> {
        Housekeeping::join(config, Some(instance))
            .map(|(card, fabric)| Self { card, fabric })
            .map_err(|failure| OpenError::of(failure, config))
    }

    /// The port's LID there.
    #[must_use]
    pub fn lid(&self) -> verbs::Lid {
        verbs::Lid::new(self.fabric.lid)
    }
}

/// Opens a port that calls ports of its own fabric, and reaches all others by packets, which `timeline` carries.
/// Which way a queue pair goes is settled when it is connected, by [`Timeline::instance_of`]; UD and DC go by
/// packets. Of `config` it takes link layer and options.
///
/// # Errors
///
/// [`OpenError`].
pub fn open_member(
    config: &Config,
    membership: Membership,
    timeline: Arc<dyn Timeline>,
) -> Result<(Nic, VirtualPort), OpenError> {
    let Membership { card, fabric } = membership;
    let housekeeping = Housekeeping::open_member(config.clone(), (card, fabric), timeline)
        .map_err(|failure| OpenError::of(failure, config))?;
    let (in_use, port) = (InUse::new(&housekeeping), VirtualPort::new(&housekeeping));
    Ok((mlx5::Nic::new(Device(housekeeping, in_use)), port))
}

impl Device {
    /// What strict mode refused since the last call.
    #[must_use]
    pub fn take_violations(&self) -> Vec<Violation> {
        self.0.port.take_violations()
    }
}
