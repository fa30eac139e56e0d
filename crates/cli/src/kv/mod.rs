//! `copyrpc bench kv` and `copyrpc report`.

mod args;
mod output;
mod progress;

use kv::{
    job::{Config, Launcher},
    preset::{self, Preset},
    result::{self, FORMAT, Header, Results},
    session::{self, Progress},
};

pub(crate) use args::{KvArgs, ReportArgs};

use memory::sync::Ordering;

use crate::{args::CHILD_OF_KV, exit::Senseless, interrupt::stop_at_signal, nic, output::say};

/// Runs per configuration.
const RUNS: u32 = 3;

/// `copyrpc bench kv`.
pub(crate) fn bench(args: &KvArgs) -> anyhow::Result<()> {
    let configs = configs(args)?;
    let runs = args.runs.unwrap_or(if args.quick { 1 } else { RUNS });
    let output = output::Output::open(args)?;
    let launcher = Launcher::this_program(CHILD_OF_KV)?;
    let stop = stop_at_signal()?;
    let mut results = Results { header: header(&configs)?, runs: Vec::new() };
    let mut bar = progress::Bar::new(&configs, runs);
    let outcome = session::run(&configs, runs, &launcher, &stop, &mut |progress| match progress {
        Progress::Live { config, run, live } => bar.show(config, run, live),
        Progress::Done(record) => {
            bar.done(&record);
            results.runs.push(*record);
        }
    });
    bar.finish();
    // What was measured before a failure stands.
    let written = if results.runs.is_empty() {
        output.discard();
        Ok(())
    } else {
        output.write(&results)
    };
    let outcome = if stop.load(Ordering::Relaxed) {
        let (done, all) = (results.runs.len(), configs.len() * runs as usize);
        Err(anyhow::anyhow!("interrupted after {done} of {all} runs"))
    } else {
        outcome.map_err(anyhow::Error::from)
    };
    if let (Err(_), Err(unwritten)) = (&outcome, &written) {
        say(format_args!("error: {unwritten:#}"));
    }
    outcome.and(written)
}

/// A process of a job.
pub(crate) fn child() -> anyhow::Result<()> {
    Ok(kv::job::child()?)
}

/// `copyrpc report`.
pub(crate) fn report(args: &ReportArgs) -> anyhow::Result<()> {
    let a = result::load(&args.a)?;
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
        None => output::write_to_stdout(&a),
    }
}

fn configs(args: &KvArgs) -> anyhow::Result<Vec<Config>> {
    let settings = args.nic.load()?;
    let axes = args.axes(&settings)?;
    let mut presets = args.preset.clone();
    if args.matrix {
        presets.push(Preset::Places);
    }
    let configs =
        if presets.is_empty() { axes.configs()? } else { preset::configs(&presets, &axes)? };
    if configs.iter().any(|config| config.backend.uses_nic()) {
        nic::open(&axes.nic, &settings)?; // an error now rather than in a process of the job
    } else if args.nic.is_given() {
        return Err(Senseless("no chosen backend uses a NIC: leave --nic out".to_owned()).into());
    }
    Ok(configs)
}

fn header(configs: &[Config]) -> anyhow::Result<Header> {
    let mut pins = configs.iter().map(|config| config.pin.to_string()).collect::<Vec<_>>();
    let mut nics =
        configs.iter().map(|config| nic::label(&config.nic, &config.nic_knobs)).collect::<Vec<_>>();
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
