//! One run of one configuration: all processes started, measured over one interval, and gone.

use std::{io, time::Duration};

use os::{affinity, clock};

use super::{
    ClientsReport, Config, Launcher, Order, RankReport, Report, Role, control::ControlError,
    crew::Crew,
};
use crate::{
    backend::{Contact, Roster},
    drive::Schedule,
    history::{self, CheckError},
    place::ClientId,
    result::Measured,
    workload::{ClientKind, Verify},
};

/// From the order to begin until the first call: every child has to have heard it.
const LEAD_TIME: Duration = Duration::from_millis(30);
/// Keys that are filled per second, at least.
const KEYS_PER_S: u64 = 100_000;
/// Longest time to report after all is over.
const REPORT_TIMEOUT: Duration = Duration::from_secs(60);

/// Why a run has no numbers.
#[derive(Debug, thiserror::Error)]
pub enum JobError {
    /// A process cannot be started.
    #[error("cannot start {name}: {cause}")]
    Spawn {
        /// Which.
        name: String,
        /// As the kernel says.
        cause: io::Error,
    },
    /// A process says that it cannot go on.
    #[error("{name}: {reason}")]
    Failed {
        /// Which.
        name: String,
        /// In its words.
        reason: String,
    },
    /// A process ended before its time.
    #[error("{name} {status}; {}", last_words(stderr))]
    Died {
        /// Which.
        name: String,
        /// How.
        status: String,
        /// What it wrote last.
        stderr: String,
    },
    /// A process is stuck.
    #[error("no word from {names} for {timeout:?}; the job was ended")]
    Silent {
        /// Which.
        names: String,
        /// How long.
        timeout: Duration,
    },
    /// A process sends garbage.
    #[error("{name}: {cause}")]
    Control {
        /// Which.
        name: String,
        /// What is wrong.
        cause: ControlError,
    },
    /// The coordinator cannot wait.
    #[error("cannot wait for the processes of the job: {0}")]
    Poll(io::Error),
    /// The coordinator's own cores are unknown.
    #[error(transparent)]
    Affinity(#[from] affinity::AffinityError),
    /// All answers are right, but not together.
    #[error(transparent)]
    History(#[from] CheckError),
}

fn last_words(stderr: &str) -> String {
    match stderr {
        "" => "its standard error is empty".to_owned(),
        words => format!("its standard error ends with:\n{words}"),
    }
}

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

/// Runs `config` once. `live` is told now and then how far it is.
///
/// # Errors
///
/// [`JobError`]. There are no partial numbers.
pub fn run(
    config: &Config,
    launcher: &Launcher,
    live: &mut dyn FnMut(Live),
) -> Result<Measured, JobError> {
    live(Live::Starting);
    let workload = &config.workload;
    let mut crew = Crew::new();
    let roles = roles(config);
    let ranks = usize::from(workload.ranks);
    let everybody = 0..roles.len();
    let clients = ranks..roles.len();
    add_all(&mut crew, config, launcher, &roles)?;
    let setup = launcher.patience + Duration::from_secs(workload.keys / KEYS_PER_S);
    let roster = gather_contacts(&mut crew, &roles, setup)?;
    crew.send_all(everybody.clone(), &Order::Join(roster))?;
    crew.hear(everybody.clone(), setup, |_, report| matches!(report, Report::Ready))?;
    let schedule = Schedule::new(workload, clock::deadline_ns(LEAD_TIME));
    crew.send_all(everybody.clone(), &Order::Go(schedule))?;
    let length = Duration::from_nanos(schedule.drained_ns - schedule.begin_ns);
    let mut total = ClientsReport::default();
    let mut events = Vec::new();
    let mut answered = vec![0; roles.len()];
    crew.hear(clients, LEAD_TIME + length + REPORT_TIMEOUT, |member, report| match report {
        Report::Progress(count) => {
            answered[member] = count;
            live(Live::Running { answered: answered.iter().sum() });
            false
        }
        Report::History(chunk) => {
            events.extend(chunk);
            false
        }
        Report::Clients(report) => {
            total.add(&report);
            true
        }
        _ => false,
    })?;
    let daemons = stop_ranks(&mut crew, 0..ranks)?;
    crew.send_all(everybody, &Order::End)?;
    crew.finish()?;
    let judged = match workload.verify {
        Verify::Answers => None,
        Verify::Full => {
            live(Live::Judging);
            Some(history::check(events)?)
        }
    };
    Ok(Measured::new(workload, &schedule, total, daemons, judged))
}

fn stop_ranks(crew: &mut Crew, ranks: std::ops::Range<usize>) -> Result<RankReport, JobError> {
    let mut total = RankReport::default();
    crew.send_all(ranks.clone(), &Order::Stop)?;
    crew.hear(ranks, REPORT_TIMEOUT, |_, report| match report {
        Report::Rank(report) => {
            total.add(&report);
            true
        }
        _ => false,
    })?;
    Ok(total)
}

/// Ranks first, then client processes.
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
    ranks.chain(clients).collect()
}

fn add_all(
    crew: &mut Crew,
    config: &Config,
    launcher: &Launcher,
    roles: &[Role],
) -> Result<(), JobError> {
    let allowed = affinity::allowed_cores()?;
    let topology = config.workload.topology();
    for role in roles {
        let (name, rank) = match role {
            Role::Rank(rank) => (format!("rank {rank}"), *rank),
            Role::Clients(ids) => {
                let rank = ids.first().map_or(0, |&id| topology.home_of(id));
                (format!("{} of rank {rank}", client_names(ids)), rank)
            }
        };
        let cores = config.pin.cores_of(rank, topology.ranks, &allowed);
        let order = Order::Assign { config: config.clone(), role: role.clone(), cores };
        crew.add(name, launcher, &order)?;
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

fn gather_contacts(crew: &mut Crew, roles: &[Role], timeout: Duration) -> Result<Roster, JobError> {
    let mut contacts = vec![Vec::<Contact>::new(); roles.len()];
    crew.hear(0..roles.len(), timeout, |member, report| match report {
        Report::Contacts(of_member) => {
            contacts[member] = of_member;
            true
        }
        _ => false,
    })?;
    let mut roster = Roster::default();
    for (role, of_member) in roles.iter().zip(contacts) {
        match role {
            Role::Rank(_) => roster.servers.extend(of_member),
            Role::Clients(_) => roster.clients.extend(of_member),
        }
    }
    Ok(roster)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_words_of_the_dead_are_told_if_there_were_any() {
        let told = |stderr: &str| {
            let (name, status) = ("rank 0".to_owned(), "was killed by signal 9".to_owned());
            JobError::Died { name, status, stderr: stderr.to_owned() }.to_string()
        };
        assert_eq!(told(""), "rank 0 was killed by signal 9; its standard error is empty");
        assert_eq!(told("oh"), "rank 0 was killed by signal 9; its standard error ends with:\noh");
    }
}
