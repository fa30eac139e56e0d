//! A child process: receives its orders and runs the role that the first one names.

use std::net::IpAddr;

use nics::{Opener, Visitor};
use os::{
    child::{ChildChannel, channel_to_parent},
    clock,
};
use protocols::Protocol;

use super::{
    Config, Order, Report, Role, clients,
    coordinator::{ChildError, ORDER_TIMEOUT, out_of_turn, send, system},
    provider, rank,
};
use crate::{
    backend::{
        Backend, BackendError, JobSetup, Kind, delegation::Delegation, direct::Direct,
        protocol::OverProtocol, tcp::TcpBackend, ucx_am::UcxAm,
    },
    pin,
};

/// The whole life of a child process. Call it from the hidden subcommand that [`super::Launcher`]
/// names, and exit with an error if it returns one.
///
/// # Errors
///
/// [`ChildError`], which the coordinator has been told of.
pub fn child() -> Result<(), ChildError> {
    live(|task| {
        let (setup, nic, rank) = (task.setup(), task.config.selected_nic(), task.rank());
        let on_nic = match task.config.backend {
            Kind::Tcp => return task.run(&TcpBackend::new(&setup)),
            Kind::UcxAm => return task.run(&UcxAm::open(setup)?),
            Kind::Delegation => return task.run(&Delegation::new(setup, nic, rank)),
            Kind::Provider => return task.run(&Delegation::provided(setup, nic, rank)),
            Kind::Direct => NicBackend::Direct,
            Kind::Erpc => NicBackend::Over(Protocol::Erpc),
            Kind::Scalerpc => NicBackend::Over(Protocol::Scalerpc),
        };
        nic.with(OnNic(task, on_nic))?
    })
}

/// As [`child`], of a program that brings a backend of its own: `open` makes it of the configuration, what everybody
/// knows, and the rank of this process; that which [`Config::backend`] names is not asked.
///
/// # Errors
///
/// As of [`child`].
pub fn child_over<B: Backend>(
    open: impl FnOnce(&Config, JobSetup, u16) -> Result<B, BackendError>,
) -> Result<(), ChildError> {
    live(|task| {
        let backend = open(task.config, task.setup(), task.rank())?;
        task.run(&backend)
    })
}

/// Takes the first order, and does it by `run`.
fn live(run: impl FnOnce(Task<'_>) -> Result<(), ChildError>) -> Result<(), ChildError> {
    let mut coordinator = channel_to_parent()?;
    let result = take_order(&mut coordinator, run);
    if let Err(error) = &result {
        // If the coordinator is gone, nobody is left to be told.
        let _ = send(&mut coordinator, &Report::Failed(error.to_string()));
    }
    result
}

fn take_order(
    coordinator: &mut ChildChannel,
    run: impl FnOnce(Task<'_>) -> Result<(), ChildError>,
) -> Result<(), ChildError> {
    let order = coordinator.recv_json(clock::deadline_ns(ORDER_TIMEOUT))?;
    let Order::Assign { config, role, cores, address } = order else {
        return Err(out_of_turn(&order));
    };
    pin::pin_to(&cores).map_err(system("cannot pin the process to its cores"))?;
    run(Task { coordinator, config: &config, role: &role, address })
}

/// What this process does from now on.
struct Task<'a> {
    coordinator: &'a mut ChildChannel,
    config: &'a Config,
    role: &'a Role,
    /// Where others reach what this process listens at.
    address: IpAddr,
}

impl Task<'_> {
    /// What everybody knows, and where others reach this process.
    fn setup(&self) -> JobSetup {
        JobSetup { address: self.address, ..self.config.setup() }
    }

    fn rank(&self) -> u16 {
        self.role.rank(self.config)
    }

    fn run(self, backend: &impl Backend) -> Result<(), ChildError> {
        let Self { coordinator, config, role, .. } = self;
        match role {
            Role::Rank(rank) => rank::run(coordinator, config, backend, *rank),
            Role::Provider(rank) => provider::run(coordinator, config, *rank),
            Role::Clients(ids) => clients::run(coordinator, config, backend, ids),
        }
    }
}

/// A backend that is compiled for each kind of NIC.
enum NicBackend {
    Direct,
    Over(Protocol),
}

/// The task, over such a backend.
struct OnNic<'a>(Task<'a>, NicBackend);

impl Visitor for OnNic<'_> {
    type Output = Result<(), ChildError>;

    fn visit<O: Opener>(self, opener: O) -> Self::Output {
        let Self(task, backend) = self;
        let setup = task.setup();
        match backend {
            NicBackend::Direct => task.run(&Direct::new(setup, opener)),
            NicBackend::Over(protocol) => task.run(&OverProtocol::new(setup, protocol, opener)),
        }
    }
}
