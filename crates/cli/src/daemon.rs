//! `copyrpc daemon`: a node's daemon, until a signal stops it.

use std::{env, path::PathBuf, process::Command, thread, time::Duration};

use anyhow::Context as _;
use bootstrap::{RankInfo, Secret, fork, launcher, meeting::Meeting};
use client::Runtime;
use config::{Origin, Settings};
use copyrpc::daemon::serve_on;
use daemon::{
    Services, Serving,
    config::{BOOTSTRAP, DaemonConfig, KNOBS, SECRET_FILE, Start, runtime_of_local},
};
use memory::sync::{AtomicBool, Ordering};
use os::clock;

use crate::{
    args::{DaemonArgs, END_WITH_PARENT, LogFormat},
    exit::UsageError,
    interrupt::stop_at_signal,
    nic, notify,
};

/// How often a parent looks after its daemons.
const LOOK: Duration = Duration::from_millis(20);

/// `copyrpc daemon`.
pub(crate) fn run(args: &DaemonArgs) -> anyhow::Result<()> {
    let settings = args.settings.load()?;
    let stop = stop_at_signal()?;
    if args.end_with_parent {
        fork::end_with_parent().context("cannot follow the parent")?;
    }
    match args.fork {
        Some(size) => run_forked(args, &settings, size, &stop),
        None => run_one(&settings, &stop),
    }
}

fn run_one(settings: &Settings, stop: &AtomicBool) -> anyhow::Result<()> {
    let config = DaemonConfig::from_settings(settings)?;
    let launch = Launch::of(settings, config)?;
    let secret = launch.secret(settings)?;
    let Launch { config, runtime, rank_info, meeting } = launch;
    let selection = match &meeting {
        // A NIC that reaches other hosts needs the secret, too.
        Some(meeting) => nic::with_secret_file(settings, &meeting.secret_file),
        None => nic::selected(settings),
    };
    notify::start(&runtime.socket());
    let serving = Serving { config, runtime, rank_info, secret };
    let served = serve_on(&serving, &selection, |_| Services::default(), stop);
    if let Some(meeting) = meeting {
        meeting.clear();
    }
    Ok(served?)
}

/// Which daemon this is, and where it finds the others.
#[derive(Debug)]
pub(crate) struct Launch {
    pub(crate) config: DaemonConfig,
    pub(crate) runtime: Runtime,
    pub(crate) rank_info: RankInfo,
    /// Where ranks of a launcher meet that was told nothing.
    pub(crate) meeting: Option<Meeting>,
}

impl Launch {
    /// What knobs and launcher say together.
    pub(crate) fn of(settings: &Settings, mut config: DaemonConfig) -> anyhow::Result<Self> {
        let launched = launcher::detect(lookup(settings))?;
        let is_alone = settings.text(&BOOTSTRAP) == "alone";
        let rank_info = match &launched {
            Some(launched) if !is_alone => launched.rank_info,
            _ => RankInfo::ALONE,
        };
        let local_rank = launched.as_ref().map_or(0, |launched| launched.local_rank);
        let runtime = runtime_of_local(settings, local_rank)?;
        let mut meeting = None;
        if let Some(launched) = launched.filter(|_| rank_info.size() > 1)
            && config.start == Start::Alone
        {
            let home = env::var_os("HOME").filter(|home| !home.is_empty()).map(PathBuf::from);
            let found = Meeting::of(&launched, runtime.folder(), home.as_deref());
            let found = found.map_err(|error| UsageError(error.to_string()))?;
            config.start = Start::File(found.folder.clone());
            meeting = Some(found);
        }
        Ok(Self { config, runtime, rank_info, meeting })
    }

    fn secret(&self, settings: &Settings) -> anyhow::Result<Secret> {
        let remedy =
            "head -c 32 /dev/urandom > FILE; chmod 600 FILE; set COPYRPC_SECRET_FILE on all nodes";
        Ok(match (settings.text(&SECRET_FILE), &self.meeting, &self.config.start) {
            (path, Some(meeting), _) => {
                let made = meeting.prepare()?;
                if path.is_empty() { made } else { Secret::from_file(path.as_ref())? }
            }
            ("", None, Start::Alone) => Secret::random(),
            ("", None, _) => {
                let problem = format!("daemons of several nodes need a secret: {remedy}");
                return Err(UsageError(problem).into());
            }
            (path, None, _) => Secret::from_file(path.as_ref())?,
        })
    }
}

/// Knobs as if they were variables, so that a flag or a file can set a rank.
fn lookup(settings: &Settings) -> impl Fn(&str) -> Option<String> {
    |name| match settings.find(name) {
        Some(setting) => Some(setting.text.clone()).filter(|text| !text.is_empty()),
        None => env::var(name).ok(),
    }
}

/// Starts daemons that are nodes of their own, and stops all when it is stopped or one ends.
fn run_forked(
    args: &DaemonArgs,
    settings: &Settings,
    size: u32,
    stop: &AtomicBool,
) -> anyhow::Result<()> {
    for knob in KNOBS.iter().filter(|knob| fork::GIVEN.contains(&knob.env)) {
        if let Origin::Flag { flag } = &settings.of(knob).origin {
            let key = knob.key();
            let reason = format!("--fork gives each daemon a {key} of its own; leave out {flag}");
            return Err(UsageError(reason).into());
        }
    }
    let config = DaemonConfig::from_settings(settings)?;
    let runtime = daemon::config::runtime_of(settings)?;
    let program = env::current_exe().context("cannot find this program")?;
    let command = |_| {
        let mut command = Command::new(&program);
        command.arg("daemon").arg(format!("--{END_WITH_PARENT}"));
        command.args(args.settings.to_arguments());
        if args.log == LogFormat::Json {
            command.args(["--log", "json"]);
        }
        command
    };
    let mut ranks = fork::start(runtime.job(), size, config.bootstrap_timeout, command)?;
    let mut failed = None;
    while !stop.load(Ordering::Relaxed) && failed.is_none() {
        thread::sleep(LOOK);
        for (rank, child) in (0..).zip(ranks.children()) {
            if let Some(status) = child.wait(clock::NOW)? {
                failed.get_or_insert((rank, status));
            }
        }
    }
    ranks.stop(config.drain_timeout + Duration::from_secs(1));
    match failed {
        Some((rank, status)) => {
            anyhow::bail!("rank {rank} ended with {status}; the others were stopped")
        }
        None => Ok(()),
    }
}
