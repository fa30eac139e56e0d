//! `copyrpc info`: what is on this machine, and every knob.

use std::fmt::Write as _;

use daemon::config::{DaemonConfig, Settings};
use os::machine;
use serde::Serialize;

use crate::args::InfoArgs;
use command::{
    knobs::{self, Shown},
    nic::{self, NicDescription},
    output,
    table::pairs,
    table::table,
};

use nics::{
    Availability,
    hardware::{self, KernelDevice, Tried},
};

/// Said wherever hardware is listed.
const HARDWARE: &str = "NIC `mlx5` drives ConnectX, NIC `ibverbs` every RDMA device; `copyrpc doctor` tells what is \
                        missing.";

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
    devices: Vec<KernelDevice>,
    /// Where hardware was looked for, and what came of it.
    tried: Vec<Tried>,
    /// Every NIC of this version, and whether it can be used here.
    nics: Vec<Availability>,
    note: &'static str,
    knobs: Vec<Shown>,
}

/// The selected NIC, or why it cannot be used.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Selected {
    Open(NicDescription),
    Closed { name: String, error: String },
}

/// `copyrpc info`.
pub(crate) fn run(args: &InfoArgs) -> anyhow::Result<()> {
    let settings = args.settings.load()?;
    let info = collect(&settings);
    if args.json {
        output::print(&format!("{}\n", serde_json::to_string_pretty(&info)?))?;
    } else {
        output::print(&text(&info))?;
    }
    // What a daemon would refuse is no good news here, either.
    DaemonConfig::from_settings(&settings).map(drop).map_err(Into::into)
}

fn collect(settings: &Settings) -> Info {
    let (devices, sysfs) = hardware::devices();
    let mut tried = vec![sysfs];
    tried.extend(hardware::libraries());
    let nic = nic::selected(settings);
    let nic = match nic::describe(&nic) {
        Ok(description) => Selected::Open(description),
        Err(error) => Selected::Closed { name: nic.name().to_owned(), error: error.to_string() },
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
        nics: nics::all(|variable| knobs::text_if_set(settings, variable)),
        note: HARDWARE,
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
    section(&mut text, "NICs of this version");
    for Availability { name, meaning, tried, error } in &info.nics {
        let outcome = error.as_deref().unwrap_or("it works");
        let _ = writeln!(text, "  {name}: {meaning}\n    tried {tried}: {outcome}");
    }
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
    let _ = writeln!(text, "  {HARDWARE}");
    section(&mut text, "Knobs (flag over environment over file over default)");
    text += &knob_table(&info.knobs);
    text
}

fn section(text: &mut String, title: &str) {
    let _ = writeln!(text, "\n{title}");
}

pub(crate) fn knob_table(knobs: &[Shown]) -> String {
    let mut table = table(&["variable", "value", "origin", "default", "meaning"]);
    for Shown { env, value, origin, default, meaning, .. } in knobs {
        table.add_row([*env, value, origin, default, meaning]);
    }
    format!("{}\n", table.trim_fmt())
}
