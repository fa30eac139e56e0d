//! `copyrpc-lab bench kv` and `copyrpc-lab report`.

mod args;
mod hosts;
mod libucp;
mod output;
mod progress;

use anyhow::Context as _;
use kv::{
    backend::Kind,
    history::HistoryFile,
    job::{Config, Launcher},
    preset::{self, Preset},
    result::{self, Results},
    series::SeriesEvent,
    session::{self, Progress, Rounds, SessionPlan},
    workload::Verify,
};

pub(crate) use args::{KvArgs, ReportArgs};

use measure::results::Header;
use memory::sync::Ordering;

use crate::output::say;
use command::{
    exit::{Interrupted, UsageError},
    interrupt::stop_at_signal,
    nic,
};

/// Name of the command that is a process of a job.
pub(crate) const CHILD_OF_KV: &str = "kv-process";

/// `copyrpc-lab bench kv`.
pub(crate) fn bench(args: &KvArgs) -> anyhow::Result<()> {
    args.ucx.as_deref().map_or(Ok(()), libucp::prefer)?;
    let here = if args.hosts { Some(hosts::Here::of(args)?) } else { None };
    let configs = configs(args, here.as_ref().map_or(1, hosts::Here::count))?;
    let mut launcher = Launcher::this_program(CHILD_OF_KV)?;
    let mut led = match here {
        None => hosts::Led::alone()?,
        Some(here) => match here.meet(&configs, &launcher)? {
            Some(led) => led,
            None => return Ok(()),
        },
    };
    let plan = args.plan(&configs);
    check_victims(&configs, plan)?;
    let output = output::Output::open(args)?;
    launcher.history = history(args, &configs)?;
    let stop = stop_at_signal()?;
    let mut results = Results { header: header(&configs)?, runs: Vec::new() };
    let mut bar = progress::Bar::new(&configs, plan.rounds.min());
    let mut time = None;
    let outcome = session::run(&configs, plan, &launcher, &mut led.hosts, &stop, &mut |progress| {
        match progress {
            Progress::Live { config, round, live } => bar.show(config, round, live),
            Progress::Done(record) => {
                bar.done(&record);
                results.runs.push(*record);
            }
            Progress::Over(spent) => time = Some(spent),
        }
    });
    bar.finish();
    let ended = led.end();
    if let Some(time) = time {
        say(format_args!("{time}"));
    }
    // What was measured before a failure stands.
    let written = if results.runs.is_empty() {
        output.discard();
        Ok(())
    } else {
        output.write(&results)
    };
    let outcome = if stop.load(Ordering::Relaxed) {
        Err(Interrupted(format!("{} intervals", results.runs.len())).into())
    } else {
        outcome.map_err(anyhow::Error::from)
    };
    if let (Err(_), Err(unwritten)) = (&outcome, &written) {
        say(format_args!("error: {unwritten:#}"));
    }
    outcome.and(written)?;
    ended
}

/// Refuses a kill whose victims would be missed.
fn check_victims(configs: &[Config], plan: SessionPlan) -> anyhow::Result<()> {
    for config in configs {
        let Some(victim) = config.workload.victim() else { continue };
        let problem = if plan.rounds != Rounds::Exactly(1) {
            "who was killed is missed by later rounds; give --runs 1"
        } else if victim == SeriesEvent::KillNode && config.backend != Kind::Delegation {
            "only the daemons of --backend delegation outlive one of theirs here"
        } else {
            continue;
        };
        return Err(UsageError(format!("--around {victim}: {problem}")).into());
    }
    Ok(())
}

/// Where histories go, if they do.
fn history(args: &KvArgs, configs: &[Config]) -> anyhow::Result<Option<HistoryFile>> {
    let Some(path) = &args.history else { return Ok(None) };
    if configs.iter().all(|config| config.workload.verify != Verify::Full) {
        let problem = "--history needs --verify full: nothing else records one";
        return Err(UsageError(problem.to_owned()).into());
    }
    let file = HistoryFile::create(path);
    Ok(Some(file.with_context(|| format!("cannot write {}", path.display()))?))
}

/// A process of a job.
pub(crate) fn child() -> anyhow::Result<()> {
    Ok(kv::job::child()?)
}

/// `copyrpc-lab report`.
pub(crate) fn report(args: &ReportArgs) -> anyhow::Result<()> {
    let a = match result::load(&args.a) {
        Ok(results) => results,
        Err(error) => return output::report_rows(args).unwrap_or(Err(error.into())),
    };
    if let Some(path) = &args.html {
        output::write_html(&a, path)?;
    }
    if let Some(path) = &args.markdown {
        output::write_markdown(&a, path)?;
    }
    match &args.b {
        Some(b) => {
            let comparisons = result::compare(&a, &result::load(b)?)?;
            crate::output::print(&comparisons.to_string())
        }
        None => output::write_to_stdout(&a, output::by(args.by_pace)),
    }
}

fn configs(args: &KvArgs, hosts: u16) -> anyhow::Result<Vec<Config>> {
    let settings = args.nic.load()?;
    let nic = nic::selected(&settings);
    let axes = args.axes(&nic, hosts)?;
    let mut presets = args.preset.clone();
    if args.matrix {
        presets.push(Preset::Places);
    }
    let mut configs =
        if presets.is_empty() { axes.configs()? } else { preset::configs(&presets, &axes)? };
    args.set_durations(&mut configs);
    if configs.iter().any(|config| config.backend.uses_nic()) {
        nic::describe(&nic)?; // an error now rather than in a process of the job
    } else if args.nic.is_set() {
        return Err(UsageError("no chosen backend uses a NIC: leave --nic out".to_owned()).into());
    }
    Ok(configs)
}

fn header(configs: &[Config]) -> anyhow::Result<Header> {
    let mut pins = configs.iter().map(|config| config.pin.to_string()).collect::<Vec<_>>();
    let labels = configs.iter().map(|config| config.selected_nic().to_string());
    let mut nics = labels.collect::<Vec<_>>();
    for list in [&mut pins, &mut nics] {
        list.sort_unstable();
        list.dedup();
    }
    let cores = os::affinity::allowed_cores()?.len();
    let hosts = configs.first().map_or(1, |config| config.hosts);
    let hosts = if hosts > 1 { format!(" on {hosts} hosts") } else { String::new() };
    let nics = format!("{}{hosts}", nics.join(", "));
    Ok(crate::output::header("kv", &nics, cores, pins.join(", ")))
}
