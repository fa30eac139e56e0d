//! `copyrpc daemon`: a node's daemon, until a signal stops it.

use std::{env, process::Command, thread, time::Duration};

use anyhow::Context as _;
use memory::sync::{AtomicBool, Ordering};
use node::{
    bootstrap::{
        Place, Secret, fork,
        launcher::{self, Launched},
    },
    config::{BOOTSTRAP, DaemonConfig, NIC, Origin, SECRET_FILE, Settings, Start},
    daemon::{Services, Serving, serve_threads},
    runtime::Runtime,
};

use crate::{
    args::{DaemonArgs, END_WITH_PARENT},
    exit::Senseless,
    interrupt::stop_at_signal,
    nic,
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
    let place = place(settings, &config.start)?;
    let secret = secret(settings, &config.start)?;
    let runtime = Runtime::from_settings(settings)?;
    let nics = (0..config.threads).map(|_| nic::open(settings.text(&NIC), settings));
    let nics = nics.collect::<Result<Vec<_>, _>>()?;
    let serving = Serving { config, runtime, place, secret };
    serve_threads(&serving, nics, |_| Services::default(), stop)?;
    Ok(())
}

/// Which daemon this is, of how many.
pub(crate) fn place(settings: &Settings, start: &Start) -> anyhow::Result<Place> {
    let launched = launcher::detect(lookup(settings))?;
    match launched.map(|Launched { launcher, place, .. }| (launcher, place)) {
        None => Ok(Place::ALONE),
        Some((_, place)) if *start != Start::Alone => Ok(place),
        Some((_, place)) if place.size() == 1 || settings.text(&BOOTSTRAP) == "alone" => {
            Ok(Place::ALONE)
        }
        Some((launcher, place)) => Err(Senseless(format!(
            "{launcher} says that this is {place}, but nothing says where they meet; set \
             COPYRPC_RENDEZVOUS to HOST:PORT of rank 0 or a folder that all share, or \
             COPYRPC_BOOTSTRAP to alone"
        ))
        .into()),
    }
}

/// Knobs as if they were variables, so that a flag or a file can set a rank.
fn lookup(settings: &Settings) -> impl Fn(&str) -> Option<String> {
    |name| match settings.find(name) {
        Some(setting) => Some(setting.text.clone()).filter(|text| !text.is_empty()),
        None => env::var(name).ok(),
    }
}

fn secret(settings: &Settings, start: &Start) -> anyhow::Result<Secret> {
    match (settings.text(&SECRET_FILE), start) {
        ("", Start::Alone) => Ok(Secret::random()),
        ("", _) => {
            let remedy = "head -c 32 /dev/urandom > FILE; chmod 600 FILE; set COPYRPC_SECRET_FILE on \
                          all nodes";
            Err(Senseless(format!("daemons of several nodes need a secret: {remedy}")).into())
        }
        (path, _) => Ok(Secret::from_file(path.as_ref())?),
    }
}

/// Starts daemons that are nodes of their own, and stops all when it is stopped or one ends.
fn run_forked(
    args: &DaemonArgs,
    settings: &Settings,
    size: u32,
    stop: &AtomicBool,
) -> anyhow::Result<()> {
    for knob in &fork::GIVEN {
        if let Origin::Flag { flag } = &settings.of(knob).origin {
            let key = knob.key();
            let reason = format!("--fork gives each daemon a {key} of its own; leave out {flag}");
            return Err(Senseless(reason).into());
        }
    }
    let config = DaemonConfig::from_settings(settings)?;
    let runtime = Runtime::from_settings(settings)?;
    let program = env::current_exe().context("cannot find this program")?;
    let command = |_| {
        let mut command = Command::new(&program);
        command.arg("daemon").arg(format!("--{END_WITH_PARENT}"));
        command.args(args.settings.to_arguments());
        command
    };
    let mut ranks = fork::start(runtime.job(), size, config.bootstrap_timeout, command)?;
    let mut failed = None;
    while !stop.load(Ordering::Relaxed) && failed.is_none() {
        thread::sleep(LOOK);
        for (rank, child) in (0..).zip(ranks.children()) {
            if let Some(status) = child.try_wait()? {
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
