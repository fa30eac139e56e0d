//! `copyrpc stat`: what the daemons of this machine count, once, or for a monitoring system.

use std::{fmt::Write as _, path::Path, thread, time::Duration};

use anyhow::Context as _;
use client::{Client, ClientConfig, runtime};
use comfy_table::Table;
use daemon::{
    config::Settings,
    metrics::{Counter, DaemonState, Section, Snapshot, Timing, render},
};
use serde_json::{Map, Value, json};

use crate::args::{OnlyArgs, StatArgs};
use command::{output, table::table};

mod http;
mod serve;

/// `copyrpc stat`.
pub(crate) fn run(args: &StatArgs) -> anyhow::Result<()> {
    let settings = args.settings.load()?;
    if let Some(address) = args.serve {
        return serve::run(address, &settings, &args.only);
    }
    let before = args.interval_ns()?.map(|interval_ns| {
        let before = read_all(&settings, &args.only);
        thread::sleep(Duration::from_nanos(interval_ns));
        before
    });
    let snapshots = read_all(&settings, &args.only)?;
    if args.prometheus {
        return output::print(&render::prometheus(&snapshots));
    }
    if args.openmetrics {
        return output::print(&openmetrics(&settings, snapshots)?);
    }
    let since = before.transpose()?;
    let shown: Vec<_> = snapshots.iter().map(|now| Shown::new(now, since.as_deref())).collect();
    if args.json {
        let all = Value::from_iter(shown.iter().map(Shown::json));
        return output::print(&format!("{}\n", serde_json::to_string_pretty(&all)?));
    }
    if shown.is_empty() {
        let runtime = daemon::config::runtime_of(&settings)?;
        let folder = runtime.folder().display();
        let text = match &runtime::daemons_in(runtime.folder())?[..] {
            [] => format!("no daemon left counters in {folder}\n"),
            names => format!(
                "no daemon that is asked for left counters in {folder}; there are {}\n",
                names.join(", ")
            ),
        };
        return output::print(&text);
    }
    output::print(&shown.iter().map(Shown::text).collect::<String>())
}

/// The counters of the daemons of this user that are to be shown; those that cannot be read are reported and left out.
pub(crate) fn read_all(settings: &Settings, only: &OnlyArgs) -> anyhow::Result<Vec<Snapshot>> {
    let runtime = daemon::config::runtime_of(settings)?;
    let cannot = || format!("cannot read {}", runtime.folder().display());
    let names = runtime::daemons_in(runtime.folder()).with_context(cannot)?;
    let read = |name: &String| read_one(runtime.folder(), name);
    Ok(names.iter().filter(|name| only.shows(name)).filter_map(read).collect())
}

/// The counters as OpenMetrics, with what the daemons tell that live and answer.
pub(crate) fn openmetrics(settings: &Settings, snapshots: Vec<Snapshot>) -> anyhow::Result<String> {
    let runtime = daemon::config::runtime_of(settings)?;
    let ask = |snapshot: Snapshot| {
        let is_serving = matches!(snapshot.state, DaemonState::Alive(_));
        let socket = runtime::socket_of(runtime.folder(), &snapshot.name);
        let told = is_serving.then(|| told(&socket)).and_then(|told| {
            told.inspect_err(|error| tracing::debug!("{} tells nothing: {error:#}", snapshot.name))
                .ok()
        });
        (snapshot, told)
    };
    let asked: Vec<_> = snapshots.into_iter().map(ask).collect();
    Ok(render::openmetrics(&asked))
}

/// Longest wait for a daemon that tells of itself.
const TELL_TIMEOUT: Duration = Duration::from_millis(500);

fn told(socket: &Path) -> anyhow::Result<render::Told> {
    let config = ClientConfig { timeout: TELL_TIMEOUT, ..ClientConfig::default() };
    let mut client = Client::connect(socket, config)?;
    let (services, peers) = (client.services()?, client.peers()?);
    Ok(render::Told { services, peers, answers: client.answers()? })
}

fn read_one(folder: &Path, name: &str) -> Option<Snapshot> {
    let snapshot = Snapshot::read(&runtime::metrics_of(folder, name));
    snapshot.inspect_err(|error| tracing::warn!("{error}")).ok()
}

/// One daemon: since its start, or during an interval.
struct Shown<'a> {
    snapshot: &'a Snapshot,
    section: Section,
    /// A section for each thread of the daemon.
    threads: Vec<Section>,
}

impl<'a> Shown<'a> {
    fn new(snapshot: &'a Snapshot, before: Option<&[Snapshot]>) -> Self {
        let total = snapshot.total();
        let before = before.unwrap_or_default();
        let earlier = before.iter().find(|earlier| earlier.process == snapshot.process);
        let section = earlier.map_or_else(|| total.clone(), |then| total.since(&then.total()));
        let threads = match earlier {
            Some(then) => {
                let sections = snapshot.sections.iter().zip(&then.sections);
                sections.map(|(now, then)| now.since(then)).collect()
            }
            None => snapshot.sections.clone(),
        };
        Self { snapshot, section, threads }
    }

    fn json(&self) -> Value {
        let Self { snapshot, section, threads } = self;
        let timings = Timing::ALL.iter().map(|&timing| {
            let histogram = section.histogram(timing);
            let mut object = Map::new();
            object.insert("count".into(), histogram.count().into());
            object.insert("sum".into(), histogram.sum().into());
            for (name, quantile) in render::QUANTILES {
                object.insert(format!("p{name}"), histogram.quantile(quantile).into());
            }
            (timing.name().to_owned(), object.into())
        });
        let samples = section.samples().iter().map(|sample| {
            json!({"time_ns": sample.time_ns, "outstanding": sample.outstanding, "done": sample.done})
        });
        json!({
            "daemon": snapshot.name,
            "rank": snapshot.rank,
            "size": snapshot.size,
            "pid": snapshot.process.pid,
            "state": snapshot.state.to_string(),
            "started_at": snapshot.started_at,
            "threads": snapshot.sections.len(),
            "counters": counters(section),
            "by_thread": threads.iter().map(counters).collect::<Vec<_>>(),
            "distributions": timings.collect::<Map<_, _>>(),
            "samples": samples.collect::<Vec<_>>(),
        })
    }

    fn text(&self) -> String {
        let Snapshot { name, rank, size, process, state, .. } = self.snapshot;
        let title = format!("{name}: rank {rank} of {size}, process {}, {state}", process.pid);
        let mut counters = table(&["counter", "value", "meaning"]);
        for &counter in Counter::ALL {
            let value = self.section.counter(counter);
            if value > 0 {
                counters.add_row([counter.name(), &value.to_string(), counter.help()]);
            }
        }
        let mut timings =
            table(&["distribution", "count", "p50", "p90", "p99", "p99.9", "meaning"]);
        for &timing in Timing::ALL {
            let histogram = self.section.histogram(timing);
            if histogram.count() > 0 {
                let mut row = vec![timing.name().to_owned(), histogram.count().to_string()];
                let quantile = |(_, share)| histogram.quantile(share).to_string();
                row.extend(render::QUANTILES.map(quantile));
                row.push(timing.help().to_owned());
                timings.add_row(row);
            }
        }
        let mut text = format!("{title}\n\n{}\n\n", counters.trim_fmt());
        if self.threads.len() > 1 {
            let _ = write!(text, "{}\n\n", self.by_thread().trim_fmt());
        }
        let _ = write!(text, "{}\n\n", timings.trim_fmt());
        text
    }

    /// A column for each thread.
    fn by_thread(&self) -> Table {
        let threads = (0..self.threads.len()).map(|thread| format!("thread {thread}"));
        let header: Vec<_> = ["by thread".to_owned()].into_iter().chain(threads).collect();
        let mut shown = table(&header.iter().map(String::as_str).collect::<Vec<_>>());
        for &counter in Counter::ALL {
            let values = || self.threads.iter().map(|section| section.counter(counter));
            if values().any(|value| value > 0) {
                let values = values().map(|value| value.to_string());
                shown.add_row([counter.name().to_owned()].into_iter().chain(values));
            }
        }
        shown
    }
}

fn counters(section: &Section) -> Map<String, Value> {
    let value = |&counter: &Counter| (counter.name().to_owned(), section.counter(counter).into());
    Counter::ALL.iter().map(value).collect()
}
