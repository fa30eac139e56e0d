//! `copyrpc daemon`: a node's daemon, until a signal stops it.

use std::{env, process::Command, thread, time::Duration};

use anyhow::Context as _;
use bootstrap::{fork, pmi::PmiError};
use config::{Origin, Settings};
use copyrpc::daemon::serve_on;
use daemon::{
    Services,
    config::{DaemonConfig, KNOBS},
};
use memory::sync::{AtomicBool, Ordering};
use os::clock;

use crate::{
    args::{DaemonArgs, END_WITH_PARENT, LogFormat},
    exit::UsageError,
    interrupt::stop_at_signal,
    launch::Launch,
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
    let met = launch.meet(settings, &|| stop.load(Ordering::Relaxed));
    let met = match met {
        Err(error) if matches!(error.downcast_ref(), Some(PmiError::Stopped)) => return Ok(()),
        met => met?,
    };
    let selection = match met.secret_file() {
        // A NIC that reaches other hosts needs the secret, too.
        Some(path) => nic::with_secret_file(settings, &path),
        None => nic::selected(settings),
    };
    notify::start(&met.serving.runtime.socket());
    let served = serve_on(&met.serving, &selection, |_| Services::default(), stop);
    met.leave();
    Ok(served?)
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
