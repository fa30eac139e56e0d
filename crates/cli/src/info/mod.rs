//! `copyrpc info`: what is on this machine, and every knob.

use std::fmt::Write as _;

use bench::machine;
use node::config::{NIC, Settings};
use serde::Serialize;

use crate::{
    args::InfoArgs,
    knobs::{self, Shown},
    nic::{self, Description},
    output,
    table::table,
};

pub(crate) mod hardware;

use hardware::{Device, Tried};

/// Said wherever hardware is listed.
const SOFT_ONLY: &str = "This version drives only `soft`, the software NIC. Hardware is listed \
                         but not driven: that comes with the ibverbs backend.";

/// Everything that is shown.
#[derive(Debug, Serialize)]
struct Info {
    version: &'static str,
    commit: &'static str,
    cpu: String,
    kernel: String,
    /// Cores that this process may use.
    cores: Vec<usize>,
    /// The selected NIC.
    nic: Selected,
    /// RDMA devices that the kernel lists.
    devices: Vec<Device>,
    /// Where hardware was looked for, and what came of it.
    tried: Vec<Tried>,
    note: &'static str,
    knobs: Vec<Shown>,
}

/// The selected NIC, or why it cannot be used.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Selected {
    Open(Description),
    Closed { name: String, error: String },
}

/// `copyrpc info`.
pub(crate) fn run(args: &InfoArgs) -> anyhow::Result<()> {
    let info = collect(&args.settings.load()?);
    if args.json {
        output::print(&format!("{}\n", serde_json::to_string_pretty(&info)?))
    } else {
        output::print(&text(&info))
    }
}

fn collect(settings: &Settings) -> Info {
    let name = settings.text(&NIC);
    let (devices, sysfs) = hardware::devices();
    let mut tried = vec![sysfs];
    tried.extend(hardware::libraries());
    let nic = match nic::describe(name, settings) {
        Ok(description) => Selected::Open(description),
        Err(error) => Selected::Closed { name: name.to_owned(), error: error.to_string() },
    };
    Info {
        version: env!("CARGO_PKG_VERSION"),
        commit: env!("BUILD_COMMIT"),
        cpu: machine::cpu_model(),
        kernel: machine::kernel(),
        cores: os::affinity::allowed_cores().unwrap_or_default(),
        nic,
        devices,
        tried,
        note: SOFT_ONLY,
        knobs: knobs::shown(settings),
    }
}

fn text(info: &Info) -> String {
    let mut text = format!("copyrpc {} ({})\n", info.version, info.commit);
    let cores = info.cores.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    section(&mut text, "Machine");
    text += &pairs(&[("CPU", &info.cpu), ("kernel", &info.kernel), ("allowed cores", &cores)]);
    section(&mut text, "NIC in use");
    text += &match &info.nic {
        Selected::Open(description) => description.text(),
        Selected::Closed { name, error } => format!("  {name}: {error}\n"),
    };
    section(&mut text, "RDMA devices of the kernel");
    if info.devices.is_empty() {
        text += "  none\n";
    }
    for device in &info.devices {
        let _ = writeln!(text, "  {device}");
    }
    for tried in &info.tried {
        let _ = writeln!(text, "  tried {}: {}", tried.what, tried.outcome);
    }
    let _ = writeln!(text, "  {SOFT_ONLY}");
    section(&mut text, "Knobs (flag over environment over file over default)");
    text += &knob_table(&info.knobs);
    text
}

fn section(text: &mut String, title: &str) {
    let _ = writeln!(text, "\n{title}");
}

/// Aligned `name  value` lines.
pub(crate) fn pairs(pairs: &[(&str, &str)]) -> String {
    let width = pairs.iter().map(|(name, _)| name.len()).max().unwrap_or_default();
    pairs.iter().fold(String::new(), |mut text, (name, value)| {
        let _ = writeln!(text, "  {name:width$}  {value}");
        text
    })
}

pub(crate) fn knob_table(knobs: &[Shown]) -> String {
    let mut table = table(&["variable", "value", "origin", "default", "meaning"]);
    for Shown { env, value, origin, default, meaning, .. } in knobs {
        table.add_row([*env, value, origin, default, meaning]);
    }
    format!("{}\n", table.trim_fmt())
}
