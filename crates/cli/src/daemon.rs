//! `copyrpc daemon`: a node's daemon, until a signal stops it.

use std::{env, process::Command, thread, time::Duration};

use anyhow::Context as _;
use bootstrap::{fork, pmi::PmiError};
use config::{Origin, Settings};
use copyrpc::daemon::{ServeOnError, serve_on};
use daemon::{
    Services,
    config::{DaemonConfig, KNOBS},
};
use memory::sync::{AtomicBool, Ordering};
use nics::Outlook;
use os::clock;

use crate::{
    args::{DaemonArgs, END_WITH_PARENT, LogFormat},
    logs, notify,
};
use command::{exit::UsageError, interrupt::stop_at_signal, launch::Launch, nic};

/// How often a daemon looks for a port that is not active yet.
const NIC_LOOK: Duration = Duration::from_millis(250);

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
    logs::name_daemon(launch.runtime.name(), launch.rank_info.rank());
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
    let _notified = notify::start(&met.serving.runtime.socket());
    let wait = NicWait { limit: met.serving.config.bootstrap_timeout, pause: NIC_LOOK };
    let served =
        wait.until_open(stop, || serve_on(&met.serving, &selection, |_| Services::default(), stop));
    met.leave();
    Ok(served?)
}

/// How long a daemon waits for a port of its NIC to become active, and between two looks.
struct NicWait {
    limit: Duration,
    pause: Duration,
}

impl NicWait {
    /// Serves once the NIC opens. What does not pass within a minute, as a rule, is not waited for.
    fn until_open(
        &self,
        stop: &AtomicBool,
        mut serve: impl FnMut() -> Result<(), ServeOnError>,
    ) -> Result<(), ServeOnError> {
        let deadline_ns = clock::deadline_ns(self.limit);
        let mut told = String::new();
        loop {
            let error = match serve() {
                Err(ServeOnError::Nic(error)) if error.outlook() == Outlook::Soon => error,
                served => return served,
            };
            if stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            if clock::now_ns() >= deadline_ns {
                return Err(error.into());
            }
            let cause = error.to_string();
            if cause != told {
                tracing::warn!(%error, limit = ?self.limit, "the NIC is waited for");
                told = cause;
            }
            thread::sleep(self.pause);
        }
    }
}

/// Starts daemons that are nodes of their own, and stops all when it is stopped or one ends.
fn run_forked(
    args: &DaemonArgs,
    settings: &Settings,
    size: u32,
    stop: &AtomicBool,
) -> anyhow::Result<()> {
    for knob in KNOBS.iter().filter(|knob| fork::SET_BY_PARENT.contains(&knob.env)) {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn down() -> ServeOnError {
        let cause = nics::mlx5::OpenError::PortDown {
            device: "mlx5_0".to_owned(),
            port: 1,
            state: "INIT",
            remedy: "wait for the subnet manager",
        };
        ServeOnError::Nic(nics::OpenError::Open { name: "mlx5", cause: cause.into() })
    }

    #[test]
    fn a_port_that_is_late_is_waited_for_and_one_that_never_comes_is_not_for_ever() {
        let stop = AtomicBool::new(false);
        let patient = NicWait { limit: Duration::from_secs(60), pause: Duration::from_millis(1) };
        let mut looks = 0;
        let served = patient.until_open(&stop, || {
            looks += 1;
            if looks < 4 { Err(down()) } else { Ok(()) }
        });
        assert!(served.is_ok() && looks == 4, "{looks} looks");
        let short = NicWait { limit: Duration::from_millis(5), pause: Duration::from_millis(1) };
        assert!(matches!(short.until_open(&stop, || Err(down())), Err(ServeOnError::Nic(_))));
        // What does not pass soon is told at once.
        let mut looks = 0;
        let served = patient.until_open(&stop, || {
            looks += 1;
            Err(nics::OpenError::Open {
                name: "mlx5",
                cause: nics::mlx5::OpenError::NoDevice.into(),
            }
            .into())
        });
        assert!(served.is_err() && looks == 1);
        stop.store(true, Ordering::Relaxed);
        assert!(patient.until_open(&stop, || Err(down())).is_ok(), "a signal ends the wait");
    }
}
