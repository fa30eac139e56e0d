//! `copyrpc config`: every knob as it is now, and whether a daemon would start with them.

use daemon::config::DaemonConfig;
use serde::Serialize;

use crate::args::ConfigArgs;
use command::{
    knobs::{self, Shown},
    output,
    table::table,
};

/// The document that `--json` prints.
#[derive(Debug, Serialize)]
struct Listing {
    knobs: Vec<Shown>,
    /// Why a daemon would not start with these.
    contradiction: Option<String>,
}

/// `copyrpc config`.
pub(crate) fn run(args: &ConfigArgs) -> anyhow::Result<()> {
    let settings = args.settings.load()?;
    let knobs = knobs::shown(&settings);
    let contradiction = DaemonConfig::from_settings(&settings).err();
    if args.json {
        let contradiction = contradiction.as_ref().map(ToString::to_string);
        let listing = Listing { knobs, contradiction };
        output::print(&format!("{}\n", serde_json::to_string_pretty(&listing)?))?;
    } else {
        output::print(&text(&knobs, args.show_origin))?;
    }
    contradiction.map_or(Ok(()), |contradiction| Err(contradiction.into()))
}

fn text(knobs: &[Shown], show_origin: bool) -> String {
    let mut table = if show_origin {
        table(&["variable", "value", "origin", "takes"])
    } else {
        table(&["variable", "value", "meaning"])
    };
    for Shown { env, value, origin, takes, meaning, .. } in knobs {
        if show_origin {
            table.add_row([*env, value, origin, takes]);
        } else {
            table.add_row([*env, value, meaning]);
        }
    }
    format!("{}\n", table.trim_fmt())
}
