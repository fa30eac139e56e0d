//! A child process: receives its orders and runs the role that the first one names.

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
        Backend, Kind, delegation::Delegation, direct::Direct, protocol::OverProtocol,
        tcp::TcpBackend, ucx_am::UcxAm,
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
    let mut coordinator = channel_to_parent()?;
    let result = run_order(&mut coordinator);
    if let Err(error) = &result {
        // If the coordinator is gone, nobody is left to be told.
        let _ = send(&mut coordinator, &Report::Failed(error.to_string()));
    }
    result
}

fn run_order(coordinator: &mut ChildChannel) -> Result<(), ChildError> {
    let (config, role, cores) = match coordinator.recv_json(clock::deadline_ns(ORDER_TIMEOUT))? {
        Order::Assign { config, role, cores } => (config, role, cores),
        other => return Err(out_of_turn(&other)),
    };
    pin::pin_to(&cores).map_err(system("cannot pin the process to its cores"))?;
    let task = Task { coordinator, config: &config, role: &role };
    match config.backend {
        Kind::Tcp => task.run(&TcpBackend::new(&config.setup())),
        Kind::UcxAm => task.run(&UcxAm::open(config.setup())?),
        Kind::Delegation | Kind::Provider | Kind::Direct | Kind::Erpc | Kind::Scalerpc => {
            config.selected_nic().with(task)?
        }
    }
}

/// What this process does from now on.
struct Task<'a> {
    coordinator: &'a mut ChildChannel,
    config: &'a Config,
    role: &'a Role,
}

impl Task<'_> {
    /// The node of this process.
    fn rank(&self) -> u16 {
        match self.role {
            Role::Rank(rank) | Role::Provider(rank) => *rank,
            Role::Clients(ids) => {
                ids.first().map_or(0, |&id| self.config.workload.topology().home_of(id))
            }
        }
    }

    fn run(self, backend: &impl Backend) -> Result<(), ChildError> {
        let Self { coordinator, config, role } = self;
        match role {
            Role::Rank(rank) => rank::run(coordinator, config, backend, *rank),
            Role::Provider(rank) => provider::run(coordinator, config, *rank),
            Role::Clients(ids) => clients::run(coordinator, config, backend, ids),
        }
    }
}

impl Visitor for Task<'_> {
    type Output = Result<(), ChildError>;

    fn visit<O: Opener>(self, opener: O) -> Self::Output {
        let (setup, rank) = (self.config.setup(), self.rank());
        match self.config.backend {
            Kind::Direct => self.run(&Direct::new(setup, opener)),
            Kind::Delegation => self.run(&Delegation::new(setup, opener, rank)),
            Kind::Provider => self.run(&Delegation::provided(setup, opener, rank)),
            Kind::Erpc => self.run(&OverProtocol::new(setup, Protocol::Erpc, opener)),
            Kind::Scalerpc => self.run(&OverProtocol::new(setup, Protocol::Scalerpc, opener)),
            Kind::UcxAm => self.run(&UcxAm::open(setup)?),
            Kind::Tcp => self.run(&TcpBackend::new(&setup)),
        }
    }
}
