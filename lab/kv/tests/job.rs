//! Real processes. Without the usual harness, because this program must be able to run itself as the
//! other processes of a job.

use std::{
    env, fs, io,
    path::Path,
    process::{self, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use kv::{
    backend::{CallFailure, Kind, Wait},
    grid::Axes,
    job::{self, Config, JobError, Launcher, Live, RunningJob, hosts::Hosts},
    result::Measured,
    series::{SeriesEvent, SeriesPlan},
    workload::{ClientKind, Locality, Mix, Pace, ValueSize, Verify, Workload},
};

const CHILD: &str = "child";
const CRASHING_CHILD: &str = "crashing-child";
const STUCK_CHILD: &str = "stuck-child";
const COORDINATOR: &str = "coordinator";
/// Says which backend a coordinator is to use.
const BACKEND: &str = "TEST_BACKEND";
/// Longest wait for something that happens at once, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

fn main() {
    match env::args().nth(1).as_deref() {
        Some(CHILD) => exit_as(job::child()),
        Some(CRASHING_CHILD) => crash_soon(),
        Some(STUCK_CHILD) => thread::sleep(PATIENCE),
        Some(COORDINATOR) => coordinate(),
        _ => tests(),
    }
}

fn tests() {
    all_clients_count_and_every_call_is_answered();
    threads_can_be_clients_and_daemons_can_have_several();
    direct_calls_go_over_the_software_nic();
    erpc_and_scalerpc_serve_the_same_workload();
    ucx_active_messages_serve_the_same_workload();
    delegated_calls_come_with_the_counters_of_their_daemons();
    delegation_has_daemons_of_several_threads();
    providers_serve_their_shards_in_processes_of_their_own();
    jobs_stay_between_intervals_and_each_interval_counts_for_itself();
    fault_k1_full_verification_judges_a_real_history();
    every_way_to_wait_works();
    an_open_loop_keeps_its_rate();
    a_crashed_rank_is_named_with_its_last_words();
    fault_a_program_that_is_no_child_is_an_error_not_a_hang();
    a_stuck_process_is_named_when_patience_ends();
    children_die_with_the_coordinator();
    fault_a4_a_killed_delegation_job_leaves_nothing();
    a_client_that_is_to_die_is_missed_by_nobody_and_the_series_is_around_its_death();
    clients_outlive_the_death_of_another_node_and_the_series_is_around_it();
    println!("job: ok");
}

fn exit_as<E: std::fmt::Display>(result: Result<(), E>) {
    if let Err(error) = result {
        eprintln!("{error}");
        process::exit(1);
    }
}

/// A daemon that serves for a while, then says something and dies.
fn crash_soon() {
    thread::spawn(|| {
        thread::sleep(Duration::from_millis(100));
        eprintln!("out of luck");
        process::abort();
    });
    exit_as(job::child());
}

fn here() -> Hosts {
    Hosts::only_this().unwrap()
}

fn launcher(role: &str) -> Launcher {
    Launcher::this_program(role).unwrap()
}

fn config(workload: Workload) -> Config {
    let axes = Axes { workload, backends: vec![Kind::Tcp], ..Axes::default() };
    axes.configs().unwrap().remove(0)
}

fn quick() -> Workload {
    Workload {
        clients_per_rank: 2,
        keys: 1000,
        warm_up_ms: 20,
        duration_ms: 100,
        ..Workload::default()
    }
}

fn run(workload: Workload) -> Measured {
    run_until(config(workload), |_| true)
}

/// Runs for longer and longer, until the interval was long enough to see `enough`: how much a machine
/// that does other things answers in a given time is not what is tested here.
fn run_until(mut config: Config, enough: impl Fn(&Measured) -> bool) -> Measured {
    loop {
        let measured = job::run(&config, &launcher(CHILD), &mut here(), &mut |_| {}).unwrap();
        if enough(&measured) {
            return measured;
        }
        config.workload.duration_ms *= 4;
        assert!(config.workload.duration_ms <= 60_000, "{:?}", measured.per_client);
    }
}

fn everybody_was_answered(measured: &Measured) -> bool {
    measured.per_client.iter().all(|&count| count > 0)
}

fn both_sides_were_answered(measured: &Measured) -> bool {
    measured.local.completed > 0 && measured.remote.completed > 0
}

fn all_clients_count_and_every_call_is_answered() {
    let enough = |seen: &_| everybody_was_answered(seen) && both_sides_were_answered(seen);
    let measured = run_until(config(quick()), enough);
    assert_eq!(measured.per_client.len(), 4);
    assert_eq!(measured.per_client.iter().sum::<u64>(), measured.completed());
    assert_eq!(measured.slices.iter().sum::<u64>(), measured.completed());
    assert_eq!(measured.failures.len(), 0);
    assert_eq!(measured.served, measured.calls, "the daemons served exactly what was asked");
    assert!(measured.clients_cpu_ns > 0 && measured.ranks_cpu_ns > 0);
    assert!(!measured.rank_counters.batch_sizes.is_empty());
}

fn threads_can_be_clients_and_daemons_can_have_several() {
    let workload = Workload {
        client_kind: ClientKind::Thread,
        daemon_threads: 2,
        locality: Locality::Remote,
        value_size: ValueSize { min_bytes: 24, max_bytes: 20_000 },
        ..quick()
    };
    let measured = run_until(config(workload), |measured| measured.remote.completed > 0);
    assert_eq!(measured.local.completed, 0);
    assert_eq!(measured.per_client.len(), 4);
}

fn soft_config(backend: Kind, workload: Workload, switches: &[(&str, &str)]) -> Config {
    let switches = switches.iter().map(|&(name, value)| (name.to_owned(), vec![value.to_owned()]));
    let (backends, switches, nic) = (vec![backend], switches.collect(), "soft".to_owned());
    let axes = Axes { workload, backends, switches, nic, ..Axes::default() };
    axes.configs().unwrap().remove(0)
}

fn direct_calls_go_over_the_software_nic() {
    let workload =
        Workload { verify: Verify::Full, mix: Mix { get: 50, delete: 5, cas: 10 }, ..quick() };
    for switches in [&[][..], &[("transport", "dc"), ("flush", "immediate")]] {
        let config = soft_config(Kind::Direct, workload.clone(), switches);
        let measured = run_until(config, both_sides_were_answered);
        assert_eq!((measured.failures.len(), measured.served), (0, measured.calls));
        assert_eq!(measured.linearizable.unwrap().known, measured.calls);
        let messages = measured.rank_counters.named["daemon messages in"];
        assert!((1..=measured.calls).contains(&messages), "warm-up is not counted");
    }
}

/// The same workload, judged as a whole, by the one interface to several protocols.
fn erpc_and_scalerpc_serve_the_same_workload() {
    let workload =
        Workload { verify: Verify::Full, mix: Mix { get: 50, delete: 5, cas: 10 }, ..quick() };
    let turns = &[("group", "2"), ("slice", "10us")];
    for (kind, switches) in [(Kind::Erpc, &[][..]), (Kind::Scalerpc, &[]), (Kind::Scalerpc, turns)]
    {
        let config = soft_config(kind, workload.clone(), switches);
        let measured = run_until(config, both_sides_were_answered);
        assert_eq!((measured.failures.len(), measured.served), (0, measured.calls), "{kind}");
        assert_eq!(measured.linearizable.unwrap().known, measured.calls);
        let counted = match kind {
            Kind::Erpc => "daemon packets in",
            _ => "daemon requests executed",
        };
        assert!(measured.rank_counters.named[counted] > 0, "{:?}", measured.rank_counters);
    }
}

/// The same workload by what others use, where it is installed: over shared memory and over TCP, with values that
/// go by rendezvous.
fn ucx_active_messages_serve_the_same_workload() {
    if let Some(reason) = Kind::UcxAm.missing() {
        let is_ci = std::env::var_os("CI").is_some_and(|value| value == "true");
        assert!(!is_ci, "{reason}");
        return eprintln!("skipped: libucp.so.0, which is in libucx0: {reason}");
    }
    let mix = Mix { get: 50, delete: 5, cas: 10 };
    let value_size = ValueSize { min_bytes: 24, max_bytes: 40_000 };
    let workload = Workload { verify: Verify::Full, value_size, mix, keys: 200, ..quick() };
    for tls in ["sm", "tcp"] {
        let config = soft_config(Kind::UcxAm, workload.clone(), &[("tls", tls), ("rndv", "8k")]);
        let measured = run_until(config, both_sides_were_answered);
        assert_eq!((measured.failures.len(), measured.served), (0, measured.calls), "{tls}");
        assert_eq!(measured.linearizable.unwrap().known, measured.calls);
        assert!(measured.rank_counters.named["daemon messages fetched"] > 0);
    }
}

/// With threads, a daemon is one daemon still: half of the calls change the thread inside it.
fn delegation_has_daemons_of_several_threads() {
    let workload = Workload { daemon_threads: 2, ..quick() };
    let measured =
        run_until(soft_config(Kind::Delegation, workload, &[]), both_sides_were_answered);
    assert_eq!((measured.failures.len(), measured.served), (0, measured.calls));
    assert!(
        measured.rank_counters.total(&["daemon thread_requests"]) > 0,
        "{:?}",
        measured.rank_counters
    );
}

/// A process per node answers instead of its daemon: each call once, and each shard's own.
fn providers_serve_their_shards_in_processes_of_their_own() {
    for (daemon_threads, form) in [(1, "serve"), (2, "serve"), (1, "serve-on-4")] {
        let workload = Workload { daemon_threads, verify: Verify::Full, ..quick() };
        let config = soft_config(Kind::Provider, workload, &[("form", form)]);
        let measured = run_until(config, both_sides_were_answered);
        assert_eq!((measured.failures.len(), measured.served), (0, measured.calls));
        assert_eq!(measured.linearizable.unwrap().known, measured.calls);
    }
}

/// Contestants of a session: their processes are there at the same time, and each interval is one of a job that is warm.
fn jobs_stay_between_intervals_and_each_interval_counts_for_itself() {
    let kinds =
        [Kind::Delegation, Kind::Provider, Kind::Direct, Kind::Erpc, Kind::Scalerpc, Kind::Tcp];
    let configs = kinds.map(|kind| soft_config(kind, quick(), &[]));
    let launcher = launcher(CHILD);
    let start = |config| RunningJob::start(config, &launcher, here(), &mut |_| {}).unwrap();
    let mut jobs = configs.iter().map(start).collect::<Vec<_>>();
    for round in 0..3 {
        for job in &mut jobs {
            let backend = job.config().backend;
            let measured = job.measure(&mut |_| {}).unwrap();
            let place = format!("{backend}, round {round}: {measured:?}");
            assert_eq!(measured.interval_ns, 100_000_000, "{place}");
            assert!(measured.completed() > 0 && measured.failures.is_empty(), "{place}");
            assert_eq!(measured.slices.iter().sum::<u64>(), measured.completed(), "{place}");
            assert_eq!(measured.served, measured.calls, "{place}");
            assert!(measured.pss_bytes > 1 << 20, "{place}");
            assert!(measured.harness_cpu_ns > 0 && measured.clients_cpu_ns > 0, "{place}");
        }
    }
    for job in jobs {
        job.end(&mut |_| {}).unwrap();
    }
}

/// What a daemon counts about itself comes with the numbers that it explains.
fn a_client_that_is_to_die_is_missed_by_nobody_and_the_series_is_around_its_death() {
    let plan = SeriesPlan { slice_ns: 100_000, event: SeriesEvent::Kill };
    let config = soft_config(Kind::Delegation, Workload { series: Some(plan), ..quick() }, &[]);
    let measured = run_until(config, both_sides_were_answered);
    assert_eq!(measured.per_client.len(), 3, "of four clients, the last one was killed");
    let series = measured.series.unwrap();
    assert!(series.event.starts_with("kill: "), "{}", series.event);
    assert!(series.begin_ns() < 0, "slices before its death are kept");
}

/// Their calls to it end with an error, and those to their own daemon are answered.
fn clients_outlive_the_death_of_another_node_and_the_series_is_around_it() {
    let plan = SeriesPlan { slice_ns: 100_000, event: SeriesEvent::KillNode };
    let workload = Workload { series: Some(plan), timeout_ms: 1000, ..quick() };
    let measured = run_until(soft_config(Kind::Delegation, workload, &[]), |measured| {
        both_sides_were_answered(measured) && !measured.failures.is_empty()
    });
    assert_eq!(measured.per_client.len(), 2, "of four clients, those of a node were killed");
    assert!(
        measured
            .failures
            .keys()
            .all(|failure| matches!(failure, CallFailure::PeerGone | CallFailure::Timeout))
    );
    let series = measured.series.unwrap();
    assert!(series.event.starts_with("kill-node: "), "{}", series.event);
    assert!(series.begin_ns() < 0, "slices before its death are kept");
}

fn delegated_calls_come_with_the_counters_of_their_daemons() {
    let config = soft_config(Kind::Delegation, quick(), &[]);
    let measured = run_until(config, |measured| {
        both_sides_were_answered(measured) && !measured.rank_outstanding.is_empty()
    });
    assert_eq!((measured.failures.len(), measured.served), (0, measured.calls));
    let of_each =
        |name| measured.each_rank.values().map(move |counts| counts.get(name).unwrap_or(&0));
    assert_eq!(measured.each_rank.keys().collect::<Vec<_>>(), [&0, &1]);
    assert_eq!(of_each("incoming").sum::<u64>(), measured.rank_counters.named["daemon incoming"]);
    let counters = &measured.rank_counters;
    let taken = counters.named["daemon requests_ipc"];
    assert!((1..=measured.calls).contains(&taken), "{taken} of {}, warm-up", measured.calls);
    for name in [
        "batch_messages",
        "requests_per_loop",
        "rtt_ns",
        "turnaround_ns",
        "loop_ns",
        "phase_post_ns",
    ] {
        assert!(counters.distributions.contains_key(name), "{name} in {counters:?}");
    }
    assert_eq!(measured.rank_outstanding.len(), measured.slices.len());
}

fn fault_k1_full_verification_judges_a_real_history() {
    let config = config(Workload {
        verify: Verify::Full,
        keys: 50,
        mix: Mix { get: 40, delete: 10, cas: 20 },
        ..quick()
    });
    // Until the least popular key was asked for, too.
    let has_all = |measured: &Measured| measured.linearizable.is_some_and(|all| all.keys == 50);
    let measured = run_until(config, has_all);
    let report = measured.linearizable.unwrap();
    assert_eq!(report.known + report.unknown, measured.calls, "nothing is left out");
    assert_eq!((report.keys, report.unknown), (50, 0));
}

fn every_way_to_wait_works() {
    for wait in Wait::ALL {
        let workload = Workload { clients_per_rank: 1, duration_ms: 30, ..quick() };
        let config = Config { wait, ..config(workload) };
        run_until(config, |measured| measured.completed() > 0);
    }
}

/// No latency is asserted: only that calls are made when they are due, not when answers come.
fn an_open_loop_keeps_its_rate() {
    let measured = run(Workload { pace: Pace::Open(2000), duration_ms: 200, ..quick() });
    let due =
        measured.local.latency.to_histogram().len() + measured.remote.latency.to_histogram().len();
    assert!((300..500).contains(&due), "{due} calls were due");
}

fn a_crashed_rank_is_named_with_its_last_words() {
    let workload = Workload { duration_ms: 60_000, ..quick() };
    let mut seen = Vec::new();
    let live = &mut |live| seen.push(live);
    let begin = Instant::now();
    // Every process of this job crashes; whichever is noticed first is named.
    let error =
        job::run(&config(workload), &launcher(CRASHING_CHILD), &mut here(), live).unwrap_err();
    assert_eq!(seen[0], Live::Starting);
    assert!(begin.elapsed() < PATIENCE, "noticed at once");
    match &error {
        JobError::Died { name, status, stderr } => {
            assert!(name.starts_with("rank ") || name.starts_with("client "), "{name}");
            assert!(status.contains("killed by signal 6"), "{status}");
            assert!(stderr.contains("out of luck"), "{stderr}");
        }
        other => panic!("{other}"),
    }
}

fn fault_a_program_that_is_no_child_is_an_error_not_a_hang() {
    let wrong = Launcher { program: "true".into(), ..launcher(CHILD) };
    let error = job::run(&config(quick()), &wrong, &mut here(), &mut |_| {}).unwrap_err();
    assert!(matches!(error, JobError::Died { .. }), "{error}");
    let missing = Launcher { program: "no-such-program".into(), ..launcher(CHILD) };
    let error = job::run(&config(quick()), &missing, &mut here(), &mut |_| {}).unwrap_err();
    assert!(matches!(error, JobError::Spawn { .. }), "{error}");
}

fn a_stuck_process_is_named_when_patience_ends() {
    let impatient = Launcher { patience: Duration::from_millis(200), ..launcher(STUCK_CHILD) };
    let begin = Instant::now();
    let error = job::run(&config(quick()), &impatient, &mut here(), &mut |_| {}).unwrap_err();
    assert!(begin.elapsed() < PATIENCE, "the stuck processes were not waited for");
    assert!(matches!(error, JobError::Silent { .. }), "{error}");
    assert!(error.to_string().contains("rank 0, rank 1, client 0 of rank 0"), "{error}");
}

/// Runs a long job, until killed.
fn coordinate() {
    let workload = Workload { duration_ms: 60_000, ..quick() };
    let config = match env::var(BACKEND).as_deref() {
        Ok("delegation") => soft_config(Kind::Delegation, workload, &[]),
        _ => config(workload),
    };
    let mut was_told = false;
    let ready = &mut |live| {
        if matches!(live, Live::Running { .. }) && !std::mem::replace(&mut was_told, true) {
            println!("running");
        }
    };
    exit_as(job::run(&config, &launcher(CHILD), &mut here(), ready).map(drop));
}

/// Starts `coordinator`, kills it as soon as its job runs, and returns the children that died with
/// it.
fn kill_while_running(coordinator: &mut Command) -> Vec<u32> {
    let mut coordinator = coordinator.arg(COORDINATOR).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let stdout = coordinator.stdout.take().unwrap();
    io::BufRead::read_line(&mut io::BufReader::new(stdout), &mut line).unwrap();
    let children = children_of(coordinator.id());
    assert_eq!(children.len(), 6, "two ranks, four clients");
    coordinator.kill().unwrap();
    coordinator.wait().unwrap();
    let begin = Instant::now();
    while children.iter().any(|&child| is_alive(child)) {
        assert!(begin.elapsed() < PATIENCE, "children outlive the coordinator");
        thread::sleep(Duration::from_millis(5));
    }
    children
}

fn this_program() -> Command {
    Command::new(env::current_exe().unwrap())
}

fn children_die_with_the_coordinator() {
    kill_while_running(&mut this_program());
}

fn fault_a4_a_killed_delegation_job_leaves_nothing() {
    let folder = env::temp_dir().join(format!("copyrpc-kv-killed-{}", process::id()));
    fs::create_dir(&folder).unwrap();
    let shared_before = names_in("/dev/shm");
    let mut command = this_program();
    let killed = kill_while_running(command.env(BACKEND, "delegation").env("TMPDIR", &folder));
    assert!(names_in(&folder).is_empty(), "{:?}", names_in(&folder));
    fs::remove_dir(&folder).unwrap();
    let left = names_in("/dev/shm").into_iter().filter(|name| !shared_before.contains(name));
    let ids = killed.iter().map(u32::to_string).collect::<Vec<_>>();
    let is_theirs = |name: &String| ids.iter().any(|id| name.contains(id.as_str()));
    assert_eq!(left.filter(is_theirs).count(), 0);
    // The kernel closes them some time after it has killed their processes.
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let sockets = fs::read_to_string("/proc/net/unix").unwrap();
        let is_open = |id: &u32| sockets.contains(&format!("@copyrpc-kv/{id}/"));
        if !killed.iter().any(is_open) {
            break;
        }
        assert!(Instant::now() < deadline, "{sockets}");
        thread::sleep(Duration::from_millis(1));
    }
}

fn names_in(folder: impl AsRef<Path>) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

fn children_of(parent: u32) -> Vec<u32> {
    let path = format!("/proc/{parent}/task/{parent}/children");
    let list = fs::read_to_string(path).unwrap();
    list.split_whitespace().map(|id| id.parse().unwrap()).collect()
}

/// A zombie is dead.
fn is_alive(id: u32) -> bool {
    let path = Path::new("/proc").join(id.to_string()).join("stat");
    fs::read_to_string(path).is_ok_and(|stat| !stat.contains(") Z "))
}
