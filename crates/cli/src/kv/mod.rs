//! `copyrpc bench kv` and `copyrpc report`.

mod args;
mod output;
mod progress;

use kv::{
    grid::{Axes, MATRIX_CLIENTS, MATRIX_DEPTHS, MATRIX_LOCALITIES},
    job::{Config, Launcher},
    result::{self, FORMAT, Header, Results},
    session::{self, Progress},
};

pub(crate) use args::{KvArgs, ReportArgs};

use crate::args::CHILD_OF_KV;

/// Runs per configuration.
const RUNS: u32 = 3;

/// `copyrpc bench kv`.
pub(crate) fn bench(args: &KvArgs) -> anyhow::Result<()> {
    let axes = axes(args)?;
    let configs = axes.configs()?;
    let runs = args.runs.unwrap_or(if args.quick { 1 } else { RUNS });
    let output = output::Output::open(args)?;
    let launcher = Launcher::this_program(CHILD_OF_KV)?;
    let mut results = Results { header: header(&configs)?, runs: Vec::new() };
    let mut bar = progress::Bar::new(&configs, runs);
    let outcome = session::run(&configs, runs, &launcher, &mut |progress| match progress {
        Progress::Live { config, run, live } => bar.show(config, run, live),
        Progress::Done(record) => {
            bar.done(&record);
            results.runs.push(*record);
        }
    });
    bar.finish();
    // What was measured before a failure stands.
    if !results.runs.is_empty() {
        output.write(&results)?;
    }
    Ok(outcome?)
}

/// A process of a job.
pub(crate) fn child() -> anyhow::Result<()> {
    Ok(kv::job::child()?)
}

/// `copyrpc report`.
pub(crate) fn report(args: &ReportArgs) -> anyhow::Result<()> {
    let a = result::load(&args.a)?;
    match &args.b {
        Some(b) => {
            let comparisons = result::compare(&a, &result::load(b)?)?;
            crate::output::print(&result::describe(&comparisons))?;
        }
        None => output::write_to_stdout(&a)?,
    }
    match &args.html {
        Some(path) => output::write_html(&a, path),
        None => Ok(()),
    }
}

fn axes(args: &KvArgs) -> anyhow::Result<Axes> {
    let mut axes = args.axes()?;
    if args.matrix {
        let fill = |list: &mut Vec<u16>, values: &[u16]| {
            if list.is_empty() {
                list.extend(values);
            }
        };
        fill(&mut axes.clients_per_rank, &MATRIX_CLIENTS);
        if axes.queue_depths.is_empty() {
            axes.queue_depths = MATRIX_DEPTHS.to_vec();
        }
        if axes.localities.is_empty() {
            axes.localities = MATRIX_LOCALITIES.to_vec();
        }
    }
    Ok(axes)
}

fn header(configs: &[Config]) -> anyhow::Result<Header> {
    let mut pins = configs.iter().map(|config| config.pin.to_string()).collect::<Vec<_>>();
    let mut nics = configs.iter().map(|config| config.nic.clone()).collect::<Vec<_>>();
    for list in [&mut pins, &mut nics] {
        list.sort_unstable();
        list.dedup();
    }
    let cores = os::affinity::allowed_cores()?.len();
    Ok(Header {
        format: FORMAT,
        run: crate::bench::header("kv", &nics.join(", "), cores, pins.join(", ")),
    })
}
