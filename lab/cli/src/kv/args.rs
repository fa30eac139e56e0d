//! Options of `bench kv` and `report`.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use clap::Args as ClapArgs;
use config::units::{parse_count, parse_duration_ns};
use kv::{
    backend::{Kind, Wait},
    grid::Axes,
    job::{Config, Pin},
    preset::Preset,
    series::{SeriesEvent, SeriesPlan},
    session::{Rounds, SessionPlan},
    workload::{ClientKind, Locality, Mix, Pace, Popularity, ValueSize, Verify, Workload},
};
use nics::Selection;

use crate::output::file;
use command::{
    exit::UsageError,
    flags::{KnobFlags, NicKnobs},
};

/// Clients of each node: few, more than cores, and what the daemon is for.
const CLIENTS: [u16; 3] = [4, 16, 64];

#[derive(Debug, ClapArgs)]
pub(crate) struct KvArgs {
    /// How clients call: delegation, provider, direct, erpc, scalerpc, ucx-am, tcp [default: delegation,
    /// provider, direct, tcp, and ucx-am where UCX is installed].
    #[arg(long, value_name = "LIST", value_delimiter = ',', help_heading = "System")]
    backend: Vec<Kind>,
    /// Where services of delegation live: in the daemon, or in a process that provides them (`process`, the
    /// backend `provider`) [default: as --backend says].
    #[arg(long, value_name = "LIST", value_delimiter = ',', help_heading = "System")]
    provider: Vec<Home>,
    /// How threads wait: spin, yield, block, adaptive [default: the best of those that a trial before the first
    /// round tries].
    #[arg(long, value_name = "LIST", value_delimiter = ',', help_heading = "System")]
    wait: Vec<Wait>,
    /// Where threads run: node (cores are dealt out among nodes), apart (the same, and serving threads have cores of
    /// their own) or none [default: node].
    #[arg(long, value_name = "LIST", value_delimiter = ',', help_heading = "System")]
    pin: Vec<Pin>,
    /// A switch of a backend, such as flush=immediate,hold-5us; may be given several times. docs/kv.md
    /// lists them; those that a backend has not do not concern it.
    #[arg(long, value_name = "NAME=LIST", value_parser = parse_switch, help_heading = "System")]
    switch: Vec<(String, Vec<String>)>,
    #[command(flatten)]
    pub(super) nic: KnobFlags<NicKnobs>,
    /// Folder of another libucp.so.0 than the system's, for ucx-am: the table names its version.
    #[arg(long, value_name = "DIR", help_heading = "System")]
    pub(super) ucx: Option<PathBuf>,
    /// Nodes are hosts: a launcher (mpirun, srun) has started this command once on each, or COPYRPC_RANK and
    /// COPYRPC_SIZE say so, with COPYRPC_RENDEZVOUS and COPYRPC_SECRET_FILE. Rank 0 shows the result.
    #[arg(long, help_heading = "System")]
    pub(super) hosts: bool,

    /// Nodes, each with one daemon process [default: 2; with --hosts one per host].
    #[arg(long, value_name = "LIST", value_delimiter = ',', help_heading = "Workload")]
    ranks: Vec<u16>,
    /// Threads of each daemon [default: 1].
    #[arg(long, value_name = "LIST", value_delimiter = ',', help_heading = "Workload")]
    daemon_threads: Vec<u16>,
    /// Clients on each node [default: 4,16,64; with --quick 4].
    #[arg(long, value_name = "LIST", value_delimiter = ',', help_heading = "Workload")]
    clients: Vec<u16>,
    /// What a client is: process or thread.
    #[arg(long, value_name = "KIND", default_value = "process", help_heading = "Workload")]
    client_kind: ClientKind,
    /// Calls that a client has outstanding, at most [default: 4].
    #[arg(long, visible_alias = "queue-depth", value_name = "LIST", value_delimiter = ',')]
    #[arg(help_heading = "Workload")]
    qd: Vec<u32>,
    /// Keys of the whole store, such as 100k [default: 100k].
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_count)]
    #[arg(help_heading = "Workload")]
    keys: Vec<u64>,
    /// Per cent of GETs, the rest PUTs; or GET:DELETE:CAS [default: 95].
    #[arg(long, value_name = "LIST", value_delimiter = ',', help_heading = "Workload")]
    mix: Vec<Mix>,
    /// Which keys: uniform, or zipf:EXPONENT [default: zipf:0.99].
    #[arg(long, value_name = "LIST", value_delimiter = ',', help_heading = "Workload")]
    popularity: Vec<Popularity>,
    /// Where keys live, seen from the client: natural, local, remote [default: natural].
    #[arg(long, value_name = "LIST", value_delimiter = ',', help_heading = "Workload")]
    locality: Vec<Locality>,
    /// Bytes of a value, or a range such as 32-1024 [default: 64].
    #[arg(long, value_name = "LIST", value_delimiter = ',', help_heading = "Workload")]
    value_size: Vec<ValueSize>,
    /// closed, or open:RATE in calls per second of all clients; latency then counts from the time
    /// at which a call was due [default: closed].
    #[arg(long, value_name = "LIST", value_delimiter = ',', help_heading = "Workload")]
    pace: Vec<Pace>,
    /// Of all random numbers.
    #[arg(long, default_value_t = 1, help_heading = "Workload")]
    seed: u64,
    /// answers: every byte of every answer; full: also that each key's history is linearizable.
    #[arg(long, value_name = "LEVEL", default_value = "answers", help_heading = "Workload")]
    verify: Verify,
    /// Writes what --verify full records as lines of JSON, for another checker: docs/kv.md.
    #[arg(long, value_name = "PATH", help_heading = "Workload")]
    pub(super) history: Option<PathBuf>,
    /// A call without an answer after this is given up.
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = parse_time)]
    #[arg(help_heading = "Workload")]
    timeout: Duration,

    /// Not measured, before the first interval of each configuration; longer if some client has no answer yet.
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = parse_time)]
    #[arg(help_heading = "Measuring")]
    warm_up: Duration,
    /// The measured interval of each configuration in each round [default: 100ms, and 3ms more for each client of a
    /// node].
    #[arg(long, value_name = "TIME", value_parser = parse_time, help_heading = "Measuring")]
    duration: Option<Duration>,
    /// Rounds [default: until the ratios of the last sentence are known to 5 % or --time is over, 6 at least; with
    /// --quick 1].
    #[arg(long, visible_alias = "rounds", value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    #[arg(help_heading = "Measuring")]
    runs: Option<u32>,
    /// Time of the whole command, about; 6 rounds are measured in any case.
    #[arg(long, value_name = "TIME", default_value = "55s", value_parser = parse_time, conflicts_with = "runs")]
    #[arg(help_heading = "Measuring")]
    time: Duration,
    /// Grids that are known by name: places (backends, clients, depths, localities), switches
    /// (of copyrpc), policies (of flushing and of waiting). Options given here replace their lists.
    #[arg(long, value_name = "LIST", value_delimiter = ',', help_heading = "Measuring")]
    pub(super) preset: Vec<Preset>,
    /// The same as --preset places.
    #[arg(long, help_heading = "Measuring")]
    pub(super) matrix: bool,
    /// Record rates, calls in flight, round trips, and of delegating daemons what their loops do, in slices of TIME, 1us
    /// to 10ms, from the first call on; keep 200 slices before and after the event that --around names.
    #[arg(long, value_name = "TIME", value_parser = parse_slice, help_heading = "Measuring")]
    series: Option<u64>,
    /// The event of --series: start (the first call), collapse (where the rate of answers falls most), kill (the last
    /// client process dies by SIGKILL in the middle of the interval), or kill-node (a whole node: its daemon too).
    #[arg(
        long,
        value_name = "EVENT",
        default_value = "collapse",
        requires = "series",
        help_heading = "Measuring"
    )]
    around: SeriesEvent,
    /// Also count cycles, instructions, misses of caches, lines of other cores, changes of the core and page faults per
    /// call, of clients and of daemons, as far as the machine counts them.
    #[arg(long, help_heading = "Measuring")]
    counters: bool,
    /// One short run.
    #[arg(long, help_heading = "Measuring")]
    pub(super) quick: bool,

    /// Show numbers for each pace of the machine apart, instead of one of all rounds.
    #[arg(long, help_heading = "Output")]
    pub(super) by_pace: bool,
    /// Folder of the result: result.jsonl, runs.csv, report.html, report.md, curve.svg, with --series series.csv [default: kv-results/DATE].
    #[arg(long, value_name = "DIR", help_heading = "Output")]
    pub(super) out: Option<PathBuf>,
    /// Replace the result that the folder holds.
    #[arg(long, help_heading = "Output")]
    pub(super) force: bool,
    /// Write one JSON object per number to PATH; `-` is standard output, and the table goes to
    /// standard error.
    #[arg(long, value_name = "PATH", help_heading = "Output")]
    pub(super) json: Option<PathBuf>,
    /// Write tables in Markdown to PATH, beside the report.md of the result's folder.
    #[arg(long, value_name = "PATH", value_parser = file(), help_heading = "Output")]
    pub(super) markdown: Option<PathBuf>,
}

#[derive(Debug, ClapArgs)]
pub(crate) struct ReportArgs {
    /// A result: the folder of `bench kv` or its result.jsonl, or what `bench … --json` wrote.
    pub(super) a: PathBuf,
    /// Compare results of `bench kv`: ratios B over A, with confidence intervals.
    pub(super) b: Option<PathBuf>,
    /// Show numbers for each pace of the machine apart, instead of one of all rounds.
    #[arg(long)]
    pub(super) by_pace: bool,
    /// Write the report of A to PATH.
    #[arg(long, value_name = "PATH", value_parser = file())]
    pub(super) html: Option<PathBuf>,
    /// Write the tables of A to PATH, in Markdown.
    #[arg(long, value_name = "PATH", value_parser = file())]
    pub(super) markdown: Option<PathBuf>,
}

impl KvArgs {
    /// Clients of each node; a preset has numbers of its own.
    fn clients_per_node(&self) -> Vec<u16> {
        let has_preset = self.matrix || !self.preset.is_empty();
        match (&self.clients[..], self.quick || has_preset) {
            ([], false) => CLIENTS.to_vec(),
            (clients, _) => clients.to_vec(),
        }
    }

    /// How configurations are measured.
    pub(super) fn plan(&self, configs: &[Config]) -> SessionPlan {
        let rounds = match self.runs {
            Some(runs) => Rounds::Exactly(runs),
            None if self.quick => Rounds::Exactly(1),
            None => Rounds::Known(self.time),
        };
        let has_preset = self.matrix || !self.preset.is_empty();
        let is_plain = |config: &Config| {
            let Workload { pace, verify, series, .. } = config.workload;
            pace == Pace::Closed
                && verify == Verify::Answers
                && series.is_none()
                && config.hosts == 1
        };
        let finds_wait = self.wait.is_empty() && !self.quick && !has_preset;
        SessionPlan { rounds, finds_wait: finds_wait && configs.iter().all(is_plain) }
    }

    /// Sets the interval of each configuration, if none is given.
    pub(super) fn set_durations(&self, configs: &mut [Config]) {
        for config in configs.iter_mut().filter(|_| self.duration.is_none()) {
            let Workload { clients_per_rank, duration_ms, .. } = &mut config.workload;
            *duration_ms = Workload::duration_ms_of(*clients_per_rank);
        }
    }

    /// The combinations that are asked for.
    pub(super) fn axes(&self, nic: &Selection, hosts: u16) -> anyhow::Result<Axes> {
        let default = Workload::default();
        if hosts > 1 && self.series.is_some() {
            return Err(UsageError("--series: the clocks of several hosts differ".into()).into());
        }
        let mut switches = BTreeMap::new();
        for (name, values) in &self.switch {
            let is_new = switches.insert(name.clone(), values.clone()).is_none();
            if !is_new {
                let remedy = format!("use {name}=VALUE,VALUE");
                return Err(UsageError(format!("--switch {name} is given twice; {remedy}")).into());
            }
        }
        Ok(Axes {
            workload: Workload {
                client_kind: self.client_kind,
                warm_up_ms: millis(self.warm_up),
                duration_ms: self.duration.map_or(default.duration_ms, millis),
                timeout_ms: millis(self.timeout),
                seed: self.seed,
                verify: self.verify,
                series: self.series.map(|slice_ns| SeriesPlan { slice_ns, event: self.around }),
                ..default
            },
            backends: backends(&self.backend, &self.provider),
            waits: self.wait.clone(),
            pins: self.pin.clone(),
            nic: nic.name().to_owned(),
            nic_knobs: nic.settings().clone(),
            hosts,
            counters: self.counters,
            switches,
            ranks: match &self.ranks[..] {
                [] if hosts > 1 => vec![hosts],
                ranks => ranks.to_vec(),
            },
            daemon_threads: self.daemon_threads.clone(),
            clients_per_rank: self.clients_per_node(),
            queue_depths: self.qd.clone(),
            keys: self.keys.clone(),
            mixes: self.mix.clone(),
            popularities: self.popularity.clone(),
            localities: self.locality.clone(),
            value_sizes: self.value_size.clone(),
            paces: self.pace.clone(),
        })
    }
}

/// Where a service of delegation lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Home {
    /// A function of the daemon's program.
    Daemon,
    /// A process of the daemon's node.
    Process,
}

/// Replaces the two kinds of delegation by those whose services live in `homes`.
fn backends(named: &[Kind], homes: &[Home]) -> Vec<Kind> {
    let delegates = |kind: &Kind| matches!(kind, Kind::Delegation | Kind::Provider);
    if homes.is_empty() {
        return named.to_vec();
    }
    let wanted = homes.iter().map(|home| match home {
        Home::Daemon => Kind::Delegation,
        Home::Process => Kind::Provider,
    });
    wanted.chain(named.iter().copied().filter(|kind| !delegates(kind))).collect()
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// `NAME=VALUE,VALUE`.
fn parse_switch(text: &str) -> Result<(String, Vec<String>), String> {
    let (name, values) = text.split_once('=').ok_or("write NAME=VALUE or NAME=VALUE,VALUE")?;
    Ok((name.to_owned(), values.split(',').map(str::to_owned).collect()))
}

/// A slice of a series, in ns.
fn parse_slice(text: &str) -> Result<u64, String> {
    let ns = parse_duration_ns(text).map_err(|error| error.to_string())?;
    let is_possible = (1_000..=10_000_000).contains(&ns);
    is_possible.then_some(ns).ok_or_else(|| "1us to 10ms are possible".to_owned())
}

/// `300ms`, `5s`, `2min`.
fn parse_time(text: &str) -> Result<Duration, String> {
    let time_ns = parse_duration_ns(text).map_err(|error| error.to_string())?;
    match time_ns.is_multiple_of(1_000_000) {
        true => Ok(Duration::from_nanos(time_ns)),
        false => Err("write whole milliseconds".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_need_a_unit() {
        assert_eq!(parse_time("300ms"), Ok(Duration::from_millis(300)));
        assert_eq!(parse_time("2000us"), Ok(Duration::from_millis(2)));
        assert_eq!(parse_time("2min"), Ok(Duration::from_secs(120)));
        assert_eq!(parse_time("1h"), Ok(Duration::from_secs(3600)));
        for bad in
            ["", "5", "s", "-1s", "99999999999999999999s", "18446744073709551615min", "1500us"]
        {
            assert!(parse_time(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn homes_of_services_choose_among_the_kinds_of_delegation() {
        let all = [Kind::Tcp, Kind::Delegation];
        assert_eq!(backends(&all, &[]), all);
        assert_eq!(backends(&all, &[Home::Process]), [Kind::Provider, Kind::Tcp]);
        assert_eq!(
            backends(&[], &[Home::Daemon, Home::Process]),
            [Kind::Delegation, Kind::Provider]
        );
    }

    #[test]
    fn switches_name_one_or_more_values() {
        let parsed = parse_switch("flush=turn,call").unwrap();
        assert_eq!(parsed, ("flush".to_owned(), vec!["turn".to_owned(), "call".to_owned()]));
        assert!(parse_switch("flush").is_err());
    }
}
