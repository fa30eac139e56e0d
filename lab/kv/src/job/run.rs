//! The processes of one configuration: started, warm, measured over intervals, and ended.

use std::{
    borrow::BorrowMut,
    ops::Range,
    time::{Duration, Instant},
};

use os::clock;
use rustix::time::ClockId;

use super::{
    Config, Launcher, Order, Report, Role,
    children::{Children, JobError},
    hosts::{ClockBounds, HostInfo, Hosts},
    meter::cpu_time_ns,
    victim::Death,
};
use crate::{
    backend::{Contact, Kind, Roster},
    drive::Schedule,
    history::{self, HistoryEvent, HistoryReport},
    measured::Measured,
    pin::Part,
    place::ClientId,
    series::SeriesEvent,
    workload::{ClientKind, Pace, Verify, Workload},
};

/// From the order to begin until the first call: every child has to have heard it.
const LEAD_TIME: Duration = Duration::from_millis(20);
/// The same, if messages travel to other hosts.
const LEAD_TIME_OF_HOSTS: Duration = Duration::from_millis(300);
/// More of either, for each process.
const LEAD_TIME_PER_PROCESS: Duration = Duration::from_micros(200);
/// Times that an interval is measured again because a process heard of it too late, at most.
const REPEATS_MAX: u32 = 4;
/// Shortest time to warm up, in ms.
const WARM_UP_MS_MIN: u64 = 20;
/// Longest time until every client has had an answer. After it the interval begins all the same, and the clients that
/// had none are told of.
const WARM_UP_MAX: Duration = Duration::from_secs(15);
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

/// Runs `config` once, on `hosts`: starts its processes, warms up, measures one interval and ends them.
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
    let mut job = RunningJob::start(config, launcher, hosts, live)?;
    let measured = job.measure(live)?;
    let linearizable = job.end(live)?;
    Ok(Measured { linearizable, ..measured })
}

/// The processes of a job, connected and warm. They sleep between intervals, so several jobs can be there at once
/// and be measured in turn. Dropping it kills them.
pub struct RunningJob<'a, H> {
    config: Config,
    launcher: &'a Launcher,
    children: Children<H>,
    /// Which processes are ranks, which provide and which are clients: those that live.
    ranks: Range<usize>,
    providers: Range<usize>,
    clients: Range<usize>,
    /// By child.
    host_of: Vec<usize>,
    /// As they were before the first call.
    clocks: Vec<ClockBounds>,
    events: Vec<(usize, HistoryEvent)>,
    /// Calls that were made to warm up, until an interval is measured.
    warm_up: Measured,
    pss_bytes: u64,
    /// From the order to begin until the first call. It doubles when a process has heard the order too late.
    lead_time: Duration,
}

impl<'a, H: BorrowMut<Hosts>> RunningJob<'a, H> {
    /// Starts all processes, and warms them up: until every client of a closed loop has had an answer, or for
    /// 15 s.
    ///
    /// # Errors
    ///
    /// [`JobError`].
    pub fn start(
        config: &Config,
        launcher: &'a Launcher,
        hosts: H,
        live: &mut dyn FnMut(Live),
    ) -> Result<Self, JobError> {
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
            roles.iter().map(|role| children.hosts().of_rank(role.rank(config))).collect();
        let clocks = children.hosts().clocks()?;
        let lead_time = if clocks.len() > 1 { LEAD_TIME_OF_HOSTS } else { LEAD_TIME };
        let processes = u32::try_from(roles.len()).unwrap_or(u32::MAX);
        let mut job = Self {
            lead_time: lead_time + LEAD_TIME_PER_PROCESS * processes,
            config: config.clone(),
            launcher,
            children,
            ranks: 0..ranks,
            providers,
            clients,
            host_of,
            clocks,
            events: Vec::new(),
            warm_up: Measured::default(),
            pss_bytes: 0,
        };
        job.warm_up(live)?;
        job.weigh()?;
        Ok(job)
    }

    /// All processes that live.
    fn everybody(&self) -> impl Iterator<Item = usize> + use<H> {
        self.ranks.clone().chain(self.providers.clone()).chain(self.clients.clone())
    }

    /// The configuration that it runs.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Makes calls that are not measured. In an open loop a client may have nothing to do for long.
    fn warm_up(&mut self, live: &mut dyn FnMut(Live)) -> Result<(), JobError> {
        let workload = &self.config.workload;
        let duration_ms = workload.warm_up_ms.max(WARM_UP_MS_MIN);
        let warm_up = Workload { warm_up_ms: 0, duration_ms, ..workload.clone() };
        let begin = Instant::now();
        loop {
            let schedule = |begin_ns| Schedule::new(&warm_up, begin_ns);
            let measured = self.interval(live, schedule, None)?;
            self.warm_up.add_warm_up(&measured);
            let is_warm = measured.silent_clients() == 0 || warm_up.pace != Pace::Closed;
            if is_warm || begin.elapsed() > WARM_UP_MAX {
                return Ok(());
            }
        }
    }

    /// Asks all processes for their memory: together, since they share some of it.
    fn weigh(&mut self) -> Result<(), JobError> {
        self.children.send_all(self.everybody(), &Order::Weigh)?;
        let mut pss_bytes = 0;
        self.children.receive(self.everybody(), REPORT_TIMEOUT, |_, report| match report {
            Report::Weight(bytes) => {
                pss_bytes += bytes;
                true
            }
            _ => false,
        })?;
        self.pss_bytes = pss_bytes;
        Ok(())
    }

    /// Measures one interval.
    ///
    /// # Errors
    ///
    /// [`JobError`]. The job is of no use afterwards.
    pub fn measure(&mut self, live: &mut dyn FnMut(Live)) -> Result<Measured, JobError> {
        let workload = self.config.workload.clone();
        self.measure_as(&workload, live)
    }

    /// Measures an interval of half the length, to compare ways to wait.
    ///
    /// # Errors
    ///
    /// As [`measure`](Self::measure).
    pub fn try_out(&mut self, live: &mut dyn FnMut(Live)) -> Result<Measured, JobError> {
        let workload = self.config.workload.clone();
        let duration_ms = workload.duration_ms.div_ceil(2);
        self.measure_as(&Workload { duration_ms, ..workload }, live)
    }

    fn measure_as(
        &mut self,
        workload: &Workload,
        live: &mut dyn FnMut(Live),
    ) -> Result<Measured, JobError> {
        let schedule = |begin_ns| Schedule::of_interval(workload, begin_ns);
        let victim = workload.victim();
        let mut measured = self.interval(live, schedule, victim)?;
        while victim.is_none() && measured.late_processes > 0 && measured.repeated < REPEATS_MAX {
            self.lead_time *= 2;
            let again = self.interval(live, schedule, None)?;
            self.warm_up.add_warm_up(&measured);
            measured = Measured { repeated: measured.repeated + 1, ..again };
        }
        measured.add_warm_up(&std::mem::take(&mut self.warm_up));
        Ok(Measured { pss_bytes: self.pss_bytes, ..measured })
    }

    fn interval(
        &mut self,
        live: &mut dyn FnMut(Live),
        schedule: impl FnOnce(u64) -> Schedule,
        victim: Option<SeriesEvent>,
    ) -> Result<Measured, JobError> {
        let clocks = self.children.hosts().clocks()?;
        let lead_time = self.lead_time;
        let schedule = schedule(clock::deadline_ns(lead_time));
        let everybody = self.everybody();
        let Self { children, host_of, .. } = self;
        children
            .send_each(everybody, |child| Order::Go(clocks[host_of[child]].theirs(&schedule)))?;
        let deaths =
            victim.map_or_else(|| Ok(Vec::new()), |victim| self.doom(victim, &schedule))?;
        let Self { children, host_of, events, .. } = self;
        let length = Duration::from_nanos(schedule.drained_ns - schedule.begin_ns);
        let mut total = Measured {
            interval_ns: schedule.end_ns - schedule.measure_ns,
            slice_ns: schedule.slice_ns,
            ..Measured::default()
        };
        let mut answered = vec![0; host_of.len()];
        let timeout = lead_time + length + REPORT_TIMEOUT;
        let before_ns = cpu_time_ns(ClockId::ProcessCPUTime);
        let mut coordinator_ns = None;
        children.receive(self.clients.clone(), timeout, |child, report| match report {
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
                // The first report comes when the interval is over.
                coordinator_ns
                    .get_or_insert_with(|| cpu_time_ns(ClockId::ProcessCPUTime) - before_ns);
                total.add(&measured);
                true
            }
            _ => false,
        })?;
        total.harness_cpu_ns += coordinator_ns.unwrap_or(0);
        // Providers first: their daemon still counts what they do.
        stop(children, self.providers.clone(), &mut total)?;
        stop(children, self.ranks.clone(), &mut total)?;
        if let Some(victim) = victim {
            // What they counted died with them.
            total.per_client.truncate(self.living_clients(victim));
        }
        if let (Some(plan), Some(series)) = (self.config.workload.series, &total.series) {
            let deaths = deaths.into_iter().map(time_of).collect::<Result<Vec<_>, _>>()?;
            let death = deaths.into_iter().min();
            let interval = schedule.begin_ns..schedule.end_ns;
            total.series = Some(series.around(plan.event, interval, death));
        }
        Ok(total)
    }

    /// Lets the last client process, or the processes of the last node, be killed in the middle of an interval. The job
    /// goes on without them.
    fn doom(&mut self, victim: SeriesEvent, schedule: &Schedule) -> Result<Vec<Death>, JobError> {
        let at_ns = schedule.measure_ns.midpoint(schedule.end_ns);
        let mut doomed = Vec::new();
        if victim == SeriesEvent::KillNode {
            let of_a_node = self.clients.len() / self.ranks.len();
            for (range, count) in [(&mut self.ranks, 1), (&mut self.clients, of_a_node)] {
                range.end -= count;
                doomed.extend(range.end..range.end + count);
            }
        } else {
            self.clients.end -= 1;
            doomed.push(self.clients.end);
        }
        doomed.into_iter().map(|child| self.children.doom(child, at_ns)).collect()
    }

    /// Clients without those of processes that were killed, which are the last ones.
    fn living_clients(&self, victim: SeriesEvent) -> usize {
        let topology = self.config.workload.topology();
        let dead = match (victim, self.config.workload.client_kind) {
            (SeriesEvent::KillNode, _) | (_, ClientKind::Thread) => topology.clients_per_rank,
            (_, ClientKind::Process) => 1,
        };
        usize::from(topology.clients().saturating_sub(dead))
    }

    /// Ends all processes, and judges the history if there is one.
    ///
    /// # Errors
    ///
    /// [`JobError`].
    pub fn end(mut self, live: &mut dyn FnMut(Live)) -> Result<Option<HistoryReport>, JobError> {
        let clocks_after = self.children.hosts().clocks()?;
        // Clients and providers first: they would take the end of their daemon for a failure.
        for leaving in [self.clients.clone(), self.providers.clone(), self.ranks.clone()] {
            self.children.send_all(leaving.clone(), &Order::End)?;
            self.children.finish(leaving)?;
        }
        if self.config.workload.verify != Verify::Full {
            return Ok(None);
        }
        let clocks =
            self.clocks.iter().zip(clocks_after).map(|(before, after)| before.until(after));
        let clocks = clocks.collect::<Vec<_>>();
        let ours = self.events.drain(..).map(|(host, event)| clocks[host].ours(event)).collect();
        judge(ours, self.launcher, live).map(Some)
    }
}

fn time_of(death: Death) -> Result<u64, JobError> {
    let name = death.name.clone();
    death.time_ns().map_err(|cause| JobError::Kill { name, cause })
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
fn stop<H: BorrowMut<Hosts>>(
    children: &mut Children<H>,
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

/// How many processes a job of `config` has.
#[must_use]
pub(crate) fn processes(config: &Config) -> usize {
    roles(config).len()
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

fn start_all<H: BorrowMut<Hosts>>(
    children: &mut Children<H>,
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
        let host = children.hosts().of_rank(rank);
        let (local_rank, local_ranks) = children.hosts().place_of_rank(rank, ranks);
        let HostInfo { address, cores, nic_knobs, .. } = children.hosts().info(host).clone();
        let daemon_threads = usize::from(config.workload.daemon_threads);
        let part = match role {
            Role::Rank(_) => Part::Serving { first: 0, count: daemon_threads },
            Role::Provider(_) => Part::Serving { first: daemon_threads, count: 1 },
            Role::Clients(_) => Part::Calling,
        };
        let serving = daemon_threads + usize::from(config.backend == Kind::Provider);
        let cores = config.pin.cores_of((local_rank, local_ranks), &cores, part, serving);
        let nic_knobs = nic_knobs.unwrap_or_else(|| config.nic_knobs.clone());
        let config = Box::new(Config { nic_knobs, ..config.clone() });
        let order = Order::Assign { config, role: role.clone(), cores, address };
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

fn gather_contacts<H: BorrowMut<Hosts>>(
    children: &mut Children<H>,
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
