//! A run as a flat line of named values, for tools that want columns.

use super::{RunRecord, name_of};
use crate::backend::Failure;

/// A value of a column.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Field {
    Text(String),
    /// `None`, here and below: there was nothing that it could be of.
    Count(Option<u64>),
    Number(Option<f64>),
}

impl From<String> for Field {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<u64> for Field {
    fn from(count: u64) -> Self {
        Self::Count(Some(count))
    }
}

impl From<f64> for Field {
    fn from(number: f64) -> Self {
        Self::Number(Some(number))
    }
}

/// The columns of a run: the same names in the same order, with the same kinds, for every run.
pub(super) fn columns(record: &RunRecord) -> Vec<(String, Field)> {
    let mut columns = Vec::new();
    let mut add = |name: &str, field: Field| columns.push((name.to_owned(), field));
    add_config(record, &mut add);
    add_measured(record, &mut add);
    columns
}

fn add_config(record: &RunRecord, add: &mut impl FnMut(&str, Field)) {
    let RunRecord { config, run, placement, .. } = record;
    let w = &config.workload;
    let switches = config.switches.iter().map(|(name, value)| format!("{name}={value}"));
    let regime = placement.map(|placement| placement.regime().to_string());
    add("cell", name_of(config).into());
    add("backend", config.backend.to_string().into());
    add("wait", config.wait.to_string().into());
    add("pin", config.pin.to_string().into());
    add("nic", config.nic.clone().into());
    let knobs = config.nic_knobs.iter().map(|(variable, value)| format!("{variable}={value}"));
    add("nic_knobs", knobs.collect::<Vec<_>>().join(" ").into());
    add("switches", switches.collect::<Vec<_>>().join(" ").into());
    add("ranks", u64::from(w.ranks).into());
    add("daemon_threads", u64::from(w.daemon_threads).into());
    add("clients_per_rank", u64::from(w.clients_per_rank).into());
    add("client_kind", format!("{:?}", w.client_kind).to_lowercase().into());
    add("queue_depth", u64::from(w.queue_depth).into());
    add("keys", w.keys.into());
    add("mix", w.mix.to_string().into());
    add("popularity", w.popularity.to_string().into());
    add("locality", w.locality.to_string().into());
    add("value_bytes", w.value_size.to_string().into());
    add("pace", w.pace.to_string().into());
    add("verify", format!("{:?}", w.verify).to_lowercase().into());
    add("seed", w.seed.into());
    add("run", u64::from(*run).into());
    add("regime", regime.unwrap_or_else(|| "unknown".to_owned()).into());
}

fn add_measured(record: &RunRecord, add: &mut impl FnMut(&str, Field)) {
    let measured = &record.measured;
    let latency = measured.local.latency.merged(&measured.remote.latency).to_histogram();
    add("interval_ns", measured.interval_ns.into());
    add("answers", measured.completed().into());
    add("rate", measured.rate().into());
    add("local_rate", measured.rate_of(measured.local.completed).into());
    add("remote_rate", measured.rate_of(measured.remote.completed).into());
    for (name, quantile) in
        [("p50_ns", 0.5), ("p90_ns", 0.9), ("p99_ns", 0.99), ("p999_ns", 0.999), ("max_ns", 1.0)]
    {
        let at = (!latency.is_empty()).then(|| latency.value_at_quantile(quantile));
        add(name, Field::Count(at));
    }
    add("cpu_per_call_ns", Field::Number(measured.cpu_per_call_ns()));
    add("clients_switches", measured.clients_switches.into());
    add("ranks_switches", measured.ranks_switches.into());
    add("start_skew_ns", measured.start_skew_ns.into());
    for failure in Failure::ALL {
        let count = measured.failures.get(&failure).copied().unwrap_or(0);
        add(&failure.name().replace(' ', "_"), count.into());
    }
}
