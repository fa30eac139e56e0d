//! Clients that are processes of their own: each has a core's caches to itself, if there are enough cores.
//!
//! ```text
//! initiator                                    caller, one process per client
//!   order ───────────────────────────────────▶  connects, makes its first calls
//!         ◀─────────────────────────── ready ──
//!   go ──────────────────────────────────────▶  keeps its calls in flight
//!         ◀──────────────── begin, end, calls ──
//! ```

use std::path::PathBuf;

use ipc::Wait;
use os::{
    child::{Child, ChildChannel, channel_to_parent, this_program},
    clock,
};
use serde::{Deserialize, Serialize};

use super::{Calls, client::Fleet};
use crate::{cores, error::Error, sample::SamplePlan, shared_words::PATIENCE};

/// Argument by which this program becomes a caller: it must lead to [`serve_caller`].
pub const CALLER_COMMAND: &str = "bench-caller";

/// The order to a caller.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct CallerOrder {
    calls: Calls,
    depth: u16,
    count: u64,
    socket: PathBuf,
    core: Option<usize>,
}

/// What a caller did: times of the clock that all processes share.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct CallerReport {
    begin_ns: u64,
    end_ns: u64,
    answered: u64,
}

/// The role of a caller.
///
/// # Errors
///
/// [`Error`].
pub fn serve_caller() -> Result<(), Error> {
    let mut channel = channel_to_parent()?;
    let order = channel.recv_json::<CallerOrder>(clock::deadline_ns(PATIENCE))?;
    let report = call(&mut channel, &order).map_err(|error| error.to_string());
    Ok(channel.send_json(&report, clock::deadline_ns(PATIENCE))?)
}

fn call(channel: &mut ChildChannel, order: &CallerOrder) -> Result<CallerReport, Error> {
    if let Some(core) = order.core {
        cores::pin(core).map_err(Error::refused("cannot pin a caller to its core"))?;
    }
    let calls = Calls { clients: 1, ..order.calls };
    let depth = usize::from(order.depth);
    // On a core that others want, it offers it after each poll in vain.
    let config = super::client::config(Wait::Busy);
    let mut fleet = Fleet::connect(&order.socket, config, &calls)?;
    fleet.run_or_rest(depth, calls.fewer(super::client::WARM_UP))?;
    fleet.drain()?;
    channel.send_json(&Ok::<_, String>(()), clock::deadline_ns(PATIENCE))?;
    channel.recv_json::<()>(clock::deadline_ns(PATIENCE))?;
    let begin_ns = clock::now_ns();
    let answered = fleet.run_or_rest(depth, order.count)?;
    let end_ns = clock::now_ns();
    fleet.drain()?;
    Ok(CallerReport { begin_ns, end_ns, answered })
}

impl Calls {
    /// ns per call of all client processes together.
    pub(super) fn of_processes(&self, depth: u16, sample: &SamplePlan) -> Result<f64, Error> {
        let cannot = || Error::refused("cannot start a caller");
        let pool = &sample.cores;
        let count = (sample.count / u64::from(self.clients)).max(1);
        let mut callers = Vec::new();
        for client in 0..usize::from(self.clients) {
            let mut command = this_program().map_err(cannot())?;
            command.arg(CALLER_COMMAND);
            let (child, mut channel) = Child::spawn_with_channel(&mut command).map_err(cannot())?;
            let core = pool.get(client % pool.len().max(1)).copied();
            let socket = Self::socket(sample);
            let order = CallerOrder { calls: *self, depth, count, socket, core };
            channel.send_json(&order, clock::deadline_ns(PATIENCE))?;
            callers.push((child, channel));
        }
        for (_, channel) in &mut callers {
            receive_report::<()>(channel)?;
        }
        for (_, channel) in &mut callers {
            channel.send_json(&(), clock::deadline_ns(PATIENCE))?;
        }
        let reports =
            callers.iter_mut().map(|(_, channel)| receive_report::<CallerReport>(channel));
        let reports = reports.collect::<Result<Vec<_>, _>>()?;
        for (child, _) in &mut callers {
            child.wait(clock::deadline_ns(PATIENCE)).map_err(cannot())?;
        }
        let begin_ns = reports.iter().map(|report| report.begin_ns).min().unwrap_or(0);
        let end_ns = reports.iter().map(|report| report.end_ns).max().unwrap_or(0);
        let answered = reports.iter().map(|report| report.answered).sum::<u64>();
        Ok((end_ns - begin_ns) as f64 / answered as f64)
    }
}

fn receive_report<T: serde::de::DeserializeOwned>(channel: &mut ChildChannel) -> Result<T, Error> {
    let report = channel.recv_json::<Result<T, String>>(clock::deadline_ns(PATIENCE))?;
    report.map_err(Error::refused("a caller failed"))
}
