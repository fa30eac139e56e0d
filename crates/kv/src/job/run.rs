//! One run of one configuration: all processes started, measured over one interval, and gone.

use std::{ops::Range, time::Duration};

use os::clock;

use super::{
    Config, Launcher, Order, Report, Role,
    children::{Children, JobError},
    hosts::{HostInfo, Hosts},
};
use crate::{
    backend::{Contact, Kind, Roster},
    drive::Schedule,
    history::{self, HistoryEvent, HistoryReport},
    measured::Measured,
    place::ClientId,
    workload::{ClientKind, Verify},
};

/// From the order to begin until the first call: every child has to have heard it.
const LEAD_TIME: Duration = Duration::from_millis(30);
/// The same, if messages travel to other hosts.
const LEAD_TIME_OF_HOSTS: Duration = Duration::from_millis(300);
/// Keys that are filled per second, at least.
const KEYS_PER_S: u64 = 100_000;
/// Longest time to report after all is over.
const REPORT_TIMEOUT: Duration = Duration::from_secs(60);

/// How far a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Live {
    /// Processes start, the store is filled.
    Starting,
    /// Calls are made: this many were answered so far, all clients together.
    Running {
        /// Warm-up included.
        answered: u64,
    },
    /// The history is being judged.
    Judging,
}

/// Runs `config` once, on `hosts`. `live` is told now and then how far it is.
///
/// # Errors
///
/// [`JobError`]. There are no partial numbers.
pub fn run(
    config: &Config,
    launcher: &Launcher,
    hosts: &mut Hosts,
    live: &mut dyn FnMut(Live),
) -> Result<Measured, JobError> {
    live(Live::Starting);
    let workload = &config.workload;
    let mut children = Children::on(hosts);
    let roles = roles(config);
    let ranks = usize::from(workload.ranks);
    let everybody = 0..roles.len();
    let has_providers = config.backend == Kind::Provider;
    let providers = ranks..if has_providers { 2 * ranks } else { ranks };
    let clients = providers.end..roles.len();
    start_all(&mut children, config, launcher, &roles)?;
    let setup = launcher.patience + Duration::from_secs(workload.keys / KEYS_PER_S);
    let roster = gather_contacts(&mut children, &roles, setup)?;
    children.send_all(everybody.clone(), &Order::Join(roster))?;
    children.receive(everybody.clone(), setup, |_, report| matches!(report, Report::Ready))?;
    let host_of =
        roles.iter().map(|role| children.hosts.of_rank(role.rank(config))).collect::<Vec<_>>();
    let clocks = children.hosts.clocks()?;
    let lead_time = if clocks.len() > 1 { LEAD_TIME_OF_HOSTS } else { LEAD_TIME };
    let schedule = Schedule::new(workload, clock::deadline_ns(lead_time));
    children.send_each(everybody.clone(), |child| {
        Order::Go(clocks[host_of[child]].theirs(&schedule))
    })?;
    let length = Duration::from_nanos(schedule.drained_ns - schedule.begin_ns);
    let mut total = Measured {
        interval_ns: schedule.end_ns - schedule.measure_ns,
        slice_ns: schedule.slice_ns,
        ..Measured::default()
    };
    let mut events = Vec::new();
    let mut answered = vec![0; roles.len()];
    children.receive(
        clients,
        lead_time + length + REPORT_TIMEOUT,
        |child, report| match report {
            Report::Progress(count) => {
                answered[child] = count;
                live(Live::Running { answered: answered.iter().sum() });
                false
            }
            Report::History(chunk) => {
                events.extend(chunk.into_iter().map(|event| (host_of[child], event)));
                false
            }
            Report::Measured(measured) => {
                total.add(&measured);
                true
            }
            _ => false,
        },
    )?;
    // Providers first: they would take the end of their daemon for a failure.
    stop(&mut children, providers, &mut total)?;
    stop(&mut children, 0..ranks, &mut total)?;
    let clocks_after = children.hosts.clocks()?;
    children.send_all(everybody, &Order::End)?;
    children.finish()?;
    if workload.verify == Verify::Full {
        let clocks = clocks.iter().zip(clocks_after).map(|(before, after)| before.until(after));
        let clocks = clocks.collect::<Vec<_>>();
        let ours = events.into_iter().map(|(host, event)| clocks[host].ours(event)).collect();
        total.linearizable = Some(judge(ours, launcher, live)?);
    }
    Ok(total)
}

/// Writes the history if it is asked for, and judges it.
fn judge(
    events: Vec<HistoryEvent>,
    launcher: &Launcher,
    live: &mut dyn FnMut(Live),
) -> Result<HistoryReport, JobError> {
    // A history that is wrong is of interest, too.
    if let Some(history) = &launcher.history {
        history.append(&events).map_err(JobError::Export)?;
    }
    live(Live::Judging);
    Ok(history::check(events)?)
}

/// Stops the children of a range, which serve, and adds what they measured.
fn stop(
    children: &mut Children<'_>,
    serving: Range<usize>,
    total: &mut Measured,
) -> Result<(), JobError> {
    children.send_all(serving.clone(), &Order::Stop)?;
    children.receive(serving, REPORT_TIMEOUT, |_, report| match report {
        Report::Measured(measured) => {
            total.add(&measured);
            true
        }
        _ => false,
    })
}

impl Role {
    /// The rank whose node the child is part of.
    pub(super) fn rank(&self, config: &Config) -> u16 {
        match self {
            Self::Rank(rank) | Self::Provider(rank) => *rank,
            Self::Clients(ids) => {
                ids.first().map_or(0, |&id| config.workload.topology().home_of(id))
            }
        }
    }
}

/// Ranks first, then providers, then client processes.
fn roles(config: &Config) -> Vec<Role> {
    let topology = config.workload.topology();
    let ranks = (0..topology.ranks).map(Role::Rank);
    let clients = (0..topology.ranks).flat_map(|rank| {
        let ids = topology.clients_of(rank).collect::<Vec<_>>();
        match config.workload.client_kind {
            ClientKind::Thread => vec![Role::Clients(ids)],
            ClientKind::Process => ids.into_iter().map(|id| Role::Clients(vec![id])).collect(),
        }
    });
    let has_providers = config.backend == Kind::Provider;
    let providers = (0..topology.ranks).filter(|_| has_providers).map(Role::Provider);
    ranks.chain(providers).chain(clients).collect()
}

fn start_all(
    children: &mut Children<'_>,
    config: &Config,
    launcher: &Launcher,
    roles: &[Role],
) -> Result<(), JobError> {
    let ranks = config.workload.ranks;
    for role in roles {
        let rank = role.rank(config);
        let name = match role {
            Role::Rank(rank) => format!("rank {rank}"),
            Role::Provider(rank) => format!("provider of rank {rank}"),
            Role::Clients(ids) => format!("{} of rank {rank}", client_names(ids)),
        };
        let host = children.hosts.of_rank(rank);
        let (local_rank, local_ranks) = children.hosts.place_of_rank(rank, ranks);
        let HostInfo { address, cores, nic_knobs, .. } = children.hosts.info(host);
        let cores = config.pin.cores_of(local_rank, local_ranks, cores);
        let nic_knobs = nic_knobs.clone().unwrap_or_else(|| config.nic_knobs.clone());
        let config = Box::new(Config { nic_knobs, ..config.clone() });
        let order = Order::Assign { config, role: role.clone(), cores, address: *address };
        children.start(name, host, launcher, &order)?;
    }
    Ok(())
}

fn client_names(ids: &[ClientId]) -> String {
    match ids {
        [ClientId(one)] => format!("client {one}"),
        [ClientId(first), .., ClientId(last)] => format!("clients {first} to {last}"),
        [] => "no client".to_owned(),
    }
}

fn gather_contacts(
    children: &mut Children<'_>,
    roles: &[Role],
    timeout: Duration,
) -> Result<Roster, JobError> {
    let mut contacts = vec![Vec::<Contact>::new(); roles.len()];
    children.receive(0..roles.len(), timeout, |child, report| match report {
        Report::Contacts(of_child) => {
            contacts[child] = of_child;
            true
        }
        _ => false,
    })?;
    let mut roster = Roster::default();
    for (role, of_child) in roles.iter().zip(contacts) {
        match role {
            Role::Rank(_) => roster.servers.extend(of_child),
            Role::Provider(_) => {}
            Role::Clients(_) => roster.clients.extend(of_child),
        }
    }
    Ok(roster)
}
