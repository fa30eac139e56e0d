//! `copyrpc services`, `clients`, `peers`, `drain` and `clean`: the daemon of this node, asked and ended.

use std::{fs, io::ErrorKind, path::Path, time::Duration};

use anyhow::{Context as _, anyhow};
use client::{
    Client, ClientConfig, ClientInfo, PeerInfo, ServiceInfo,
    runtime::{Runtime, lock_of},
};
use config::Settings;
use daemon::{
    config::DRAIN_TIMEOUT,
    metrics::{DaemonState, ReadError, Snapshot},
};
use os::{
    clock,
    lock::{LockError, LockFile},
    process::{Process, ProcessError},
};
use serde_json::{Value, json};

use crate::args::{CleanArgs, DrainArgs, NodeArgs};
use command::{output, table::table};

/// How much longer than it says a daemon may take to end.
const END_MAX: Duration = Duration::from_secs(5);

/// A client of the daemon that the settings name.
fn connect(args: &NodeArgs) -> anyhow::Result<Client> {
    let runtime = daemon::config::runtime_of(&args.settings.load()?)?;
    connect_to(&runtime, ClientConfig::default())
}

/// A client of the daemon of a runtime. The error names daemons beside it, one of which may have been meant.
pub(crate) fn connect_to(runtime: &Runtime, config: ClientConfig) -> anyhow::Result<Client> {
    let socket = runtime.socket();
    Client::connect(&socket, config).with_context(|| {
        format!("cannot reach the daemon at {}{}", socket.display(), beside(runtime))
    })
}

/// A hint at daemons that live in the same folder and have another name.
fn beside(runtime: &Runtime) -> String {
    match &others_of(runtime)[..] {
        [] => String::new(),
        names => format!(
            " (there are {}; --instance chooses the one behind the @, --job the one before it)",
            names.join(", ")
        ),
    }
}

/// Daemons that live in the same folder and have another name: some of them.
fn others_of(runtime: &Runtime) -> Vec<String> {
    const SHOWN_MAX: usize = 8;
    let folder = runtime.folder();
    let lives = |name: &String| {
        let snapshot = Snapshot::read(&client::runtime::metrics_of(folder, name));
        matches!(snapshot.map(|it| it.state), Ok(DaemonState::Alive(_)))
    };
    let names = client::runtime::daemons_in(folder).unwrap_or_default();
    names.into_iter().filter(|name| name != runtime.name()).filter(lives).take(SHOWN_MAX).collect()
}

/// Prints a list: as JSON, or as a table with `header`; or `nothing`.
fn print<const N: usize>(
    args: &NodeArgs,
    listed: &[Value],
    nothing: &str,
    header: [&str; N],
    rows: impl Iterator<Item = [String; N]>,
) -> anyhow::Result<()> {
    if args.json {
        return output::print(&format!("{}\n", serde_json::to_string_pretty(listed)?));
    }
    if listed.is_empty() {
        return output::print(&format!("{nothing}\n"));
    }
    let mut table = table(&header);
    for row in rows {
        table.add_row(row);
    }
    output::print(&format!("{}\n", table.trim_fmt()))
}

/// `copyrpc services`.
pub(crate) fn services(args: &NodeArgs) -> anyhow::Result<()> {
    let services = connect(args)?.services()?;
    let object = |it: &ServiceInfo| {
        json!({
            "service": it.service,
            "name": it.name,
            "lends_memory": it.lends_memory,
            "providers": it.providers,
            "waiting": it.waiting,
            "given": it.given,
            "requests": it.requests,
        })
    };
    let listed: Vec<_> = services.iter().map(object).collect();
    let rows = services.iter().map(|it| {
        let providers =
            if it.providers == 0 { "the daemon".to_owned() } else { it.providers.to_string() };
        let [waiting, given] = [it.waiting, it.given].map(|number| number.to_string());
        let requests = it.requests.to_string();
        let memory = if it.lends_memory { "lent" } else { "" }.to_owned();
        [it.service.to_string(), it.name.clone(), memory, providers, requests, waiting, given]
    });
    let header = ["service", "name", "memory", "providers", "requests", "waiting", "given"];
    print(args, &listed, "no process of this node offers a service", header, rows)
}

/// `copyrpc clients`.
pub(crate) fn clients(args: &NodeArgs) -> anyhow::Result<()> {
    let mut clients = connect(args)?.clients()?;
    let own = std::process::id();
    clients.retain(|it| it.pid != Some(own));
    let object = |it: &ClientInfo| {
        json!({
            "pid": it.pid,
            "uid": it.uid,
            "thread": it.thread,
            "program": it.pid.map(program_of),
            "requests": it.requests,
            "in_flight": it.in_flight,
            "services": it.services,
        })
    };
    let listed: Vec<_> = clients.iter().map(object).collect();
    let rows = clients.iter().map(|it| {
        let known =
            |number: Option<u32>| number.map_or_else(|| "?".to_owned(), |it| it.to_string());
        let program = it.pid.map(program_of).unwrap_or_default();
        let counts = [it.in_flight, it.services, it.thread.into()].map(|number| number.to_string());
        let [in_flight, services, thread] = counts;
        let requests = it.requests.to_string();
        [known(it.pid), known(it.uid), program, requests, in_flight, services, thread]
    });
    let header = ["pid", "uid", "program", "requests", "in flight", "services", "thread"];
    print(args, &listed, "no process is connected to the daemon of this node", header, rows)
}

/// What a process calls itself; empty if it is gone.
fn program_of(pid: u32) -> String {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    name.trim_end().to_owned()
}

/// `copyrpc peers`.
pub(crate) fn peers(args: &NodeArgs) -> anyhow::Result<()> {
    let peers = connect(args)?.peers()?;
    let state = |it: &PeerInfo| if it.is_up { "up" } else { "down" };
    let object = |it: &PeerInfo| {
        json!({
            "rank": it.rank,
            "state": state(it),
            "thread": it.thread,
            "calls": it.calls,
            "in_flight": it.in_flight,
            "waiting": it.waiting,
            "unanswered": it.unanswered,
            "requests": it.requests,
        })
    };
    let listed: Vec<_> = peers.iter().map(object).collect();
    let rows = peers.iter().map(|it| {
        let totals = [it.calls, it.unanswered, it.requests].map(|number| number.to_string());
        let [calls, unanswered, requests] = totals;
        let now = [it.rank, it.in_flight, it.waiting].map(|number| number.to_string());
        let [rank, in_flight, waiting] = now;
        [rank, state(it).to_owned(), calls, unanswered, in_flight, waiting, requests]
    });
    let header = ["rank", "state", "calls", "unanswered", "in flight", "waiting", "requests"];
    print(args, &listed, "this job has no other node", header, rows)
}

/// `copyrpc drain`.
pub(crate) fn drain(args: &DrainArgs) -> anyhow::Result<()> {
    let settings = args.settings.load()?;
    let runtime = daemon::config::runtime_of(&settings)?;
    let process = daemon_of(&runtime)?;
    process.terminate().context("cannot tell the daemon to end")?;
    wait_for_end(&process, &settings)?;
    output::print(&format!("the daemon of {} has ended\n", runtime.name()))
}

/// The process that serves at a runtime's paths, as its counters and its lock tell.
fn daemon_of(runtime: &Runtime) -> anyhow::Result<Process> {
    let name = runtime.name();
    let no_daemon = || anyhow!("no daemon of {name} runs on this node{}", beside(runtime));
    let snapshot = match Snapshot::read(&runtime.metrics()) {
        Err(ReadError::Io { source, .. }) if source.kind() == ErrorKind::NotFound => {
            return Err(no_daemon());
        }
        snapshot => {
            snapshot.with_context(|| format!("cannot tell whether a daemon of {name} runs"))?
        }
    };
    anyhow::ensure!(matches!(snapshot.state, DaemonState::Alive(_)), no_daemon());
    let pid = snapshot.process.pid;
    Process::open_same(snapshot.process).map_err(|error| match error {
        ProcessError::Gone { .. } => anyhow!(
            "the daemon of {name} lives in another PID namespace, as process {pid} there; drain it there, or stop its \
             container"
        ),
        error => anyhow::Error::from(error).context(format!("cannot drain the daemon of {name}")),
    })
}

fn wait_for_end(process: &Process, settings: &Settings) -> anyhow::Result<()> {
    let timeout = Duration::from_nanos(settings.number(&DRAIN_TIMEOUT)).saturating_add(END_MAX);
    let has_ended = process.wait_dead(clock::deadline_ns(timeout))?;
    anyhow::ensure!(has_ended, "the daemon has not ended within {timeout:?}");
    Ok(())
}

/// `copyrpc clean`.
pub(crate) fn clean(args: &CleanArgs) -> anyhow::Result<()> {
    let runtime = daemon::config::runtime_of(&args.settings.load()?)?;
    let folder = runtime.folder();
    let mut text = String::new();
    let mut kept = 0;
    for name in client::runtime::daemons_in(folder).context("cannot read the runtime folder")? {
        // The lock is held meanwhile: no daemon of this name starts before its predecessor's files are gone.
        let Owner::Dead { _lock } = owner_of(folder, &name) else { continue };
        for path in left_by(folder, &name) {
            let shown = path.display();
            if args.dry_run {
                text += &format!("would remove {shown}\n");
                continue;
            }
            match fs::remove_file(&path) {
                Ok(()) => text += &format!("removed {shown}\n"),
                // Another `clean` was faster.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => {
                    tracing::warn!(%error, "cannot remove {shown}");
                    kept += 1;
                }
            }
        }
    }
    let nothing = "nothing of a dead daemon is left\n";
    output::print(if text.is_empty() && kept == 0 { nothing } else { &text })?;
    anyhow::ensure!(kept == 0, "{kept} files of dead daemons could not be removed");
    Ok(())
}

/// Whether files belong to a daemon that lives.
enum Owner {
    /// Or nothing tells.
    Lives,
    /// Its lock is held by this process, where there is one.
    Dead { _lock: Option<LockFile> },
}

/// The lock tells it wherever the daemon runs; the process table, only where there is no lock.
fn owner_of(folder: &Path, name: &str) -> Owner {
    match LockFile::acquire_existing(&lock_of(folder, name)) {
        Ok(Some(lock)) => Owner::Dead { _lock: Some(lock) },
        Ok(None) => {
            let snapshot = Snapshot::read(&client::runtime::metrics_of(folder, name));
            match snapshot.map(|it| it.state) {
                Ok(DaemonState::Alive(_)) => Owner::Lives,
                _ => Owner::Dead { _lock: None },
            }
        }
        Err(LockError::HeldBy { .. }) => Owner::Lives,
        Err(error) => {
            tracing::warn!(%error, "the files of {name} are left");
            Owner::Lives
        }
    }
}

/// What a daemon of this name leaves when it is killed. Its lock stays, lest two take it at a time.
fn left_by(folder: &Path, name: &str) -> Vec<std::path::PathBuf> {
    let paths = ["metrics", "sock", "roster"].map(|end| folder.join(format!("{name}.{end}")));
    let is_left = |path: &std::path::PathBuf| match path.symlink_metadata() {
        Ok(is) if is.is_dir() => {
            tracing::warn!("{} is a folder, which no daemon makes: it stays", path.display());
            false
        }
        found => found.is_ok(),
    };
    paths.into_iter().filter(is_left).collect()
}
