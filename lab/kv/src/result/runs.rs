//! Every run as a flat line of named values, for tools that want columns.

use std::io::{self, BufWriter, Write};

use measure::{
    regime::{Regime, Regimes},
    table::Table,
};

use super::{Results, RunRecord, name_of, reduce::regimes};
use crate::{backend::CallFailure, series::EventSeries};

/// Writes one line per run.
///
/// # Errors
///
/// Of `to`.
pub fn write_csv(results: &Results, to: impl Write) -> io::Result<()> {
    let regimes = regimes([results]);
    let lines = results.runs.iter().map(|run| columns(run, &regimes)).collect::<Vec<_>>();
    let Some(first) = lines.first() else { return Ok(()) };
    let mut table = Table::new(0, first.iter().map(|(name, _)| name.as_str()));
    lines.iter().for_each(|line| table.push(line.iter().map(|(_, text)| text.as_str())));
    let mut to = BufWriter::new(to);
    table.write_csv(&mut to)?;
    to.flush()
}

/// Writes every series, a line for each slice.
///
/// # Errors
///
/// Of `to`.
pub fn write_series(results: &Results, to: &mut dyn Write) -> io::Result<()> {
    let with = results
        .runs
        .iter()
        .filter_map(|run| Some((name_of(&run.config), run.run, run.measured.series.as_ref()?)));
    EventSeries::write_csv(with, to)
}

/// A number of a column; nothing if there was nothing that it could be of.
fn shown(number: Option<f64>) -> String {
    number.map_or_else(String::new, |number| format!("{number:.1}"))
}

/// The columns of a run: the same names in the same order, with the same kinds, for every run.
fn columns(record: &RunRecord, regimes: &Regimes) -> Vec<(String, String)> {
    let mut columns = Vec::new();
    let mut add = |name: &str, text: String| columns.push((name.to_owned(), text));
    add_config(record, regimes.regime(record.placement), &mut add);
    add_measured(record, &mut add);
    columns
}

fn add_config(record: &RunRecord, regime: Regime, add: &mut impl FnMut(&str, String)) {
    let RunRecord { config, run, .. } = record;
    let w = &config.workload;
    let switches = config.switches.iter().map(|(name, value)| format!("{name}={value}"));
    add("cell", name_of(config));
    add("backend", config.backend.to_string());
    add("wait", config.wait.to_string());
    add("pin", config.pin.to_string());
    add("nic", config.nic.clone());
    let knobs = config.nic_knobs.iter().map(|(variable, value)| format!("{variable}={value}"));
    add("nic_knobs", knobs.collect::<Vec<_>>().join(" "));
    add("switches", switches.collect::<Vec<_>>().join(" "));
    add("ranks", w.ranks.to_string());
    add("daemon_threads", w.daemon_threads.to_string());
    add("clients_per_rank", w.clients_per_rank.to_string());
    add("client_kind", w.client_kind.to_string());
    add("queue_depth", w.queue_depth.to_string());
    add("keys", w.keys.to_string());
    add("mix", w.mix.to_string());
    add("popularity", w.popularity.to_string());
    add("locality", w.locality.to_string());
    add("value_bytes", w.value_size.to_string());
    add("pace", w.pace.to_string());
    add("verify", w.verify.to_string());
    add("seed", w.seed.to_string());
    add("run", run.to_string());
    add("regime", regime.to_string());
}

fn add_measured(record: &RunRecord, add: &mut impl FnMut(&str, String)) {
    let measured = &record.measured;
    let latency = measured.local.latency.merged(&measured.remote.latency).to_histogram();
    add("interval_ns", measured.interval_ns.to_string());
    add("answers", measured.completed().to_string());
    add("rate", shown(Some(measured.rate())));
    add("local_rate", shown(Some(measured.rate_of(measured.local.completed))));
    add("remote_rate", shown(Some(measured.rate_of(measured.remote.completed))));
    for (name, quantile) in
        [("p50_ns", 0.5), ("p90_ns", 0.9), ("p99_ns", 0.99), ("p999_ns", 0.999), ("max_ns", 1.0)]
    {
        let at = (!latency.is_empty()).then(|| latency.value_at_quantile(quantile));
        add(name, at.map_or_else(String::new, |ns| ns.to_string()));
    }
    add("cpu_per_call_ns", shown(measured.cpu_per_call_ns()));
    add("clients_switches", measured.clients_switches.to_string());
    add("ranks_switches", measured.ranks_switches.to_string());
    add("start_skew_ns", measured.start_skew_ns.to_string());
    for failure in CallFailure::ALL {
        let count = measured.failures.get(&failure).copied().unwrap_or(0);
        add(&failure.name().replace(' ', "_"), count.to_string());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::samples;

    #[test]
    fn every_run_is_a_line_with_every_column() {
        let mut bytes = Vec::new();
        write_csv(&samples::results(), &mut bytes).unwrap();
        let text = String::from_utf8(bytes).unwrap();
        let rows = text.lines().map(|line| line.split(',').collect::<Vec<_>>()).collect::<Vec<_>>();
        assert_eq!(rows.len(), 7);
        assert!(rows.iter().all(|row| row.len() == rows[0].len()), "{rows:?}");
        let at = |row: usize, column: &str| {
            rows[row][rows[0].iter().position(|name| *name == column).unwrap()]
        };
        assert_eq!((at(1, "rate"), at(1, "timeout")), ("100000.0", "2"));
        assert_eq!((at(2, "locality"), at(2, "local_rate")), ("remote", "0.0"));
    }

    #[test]
    fn fault_k2_what_there_is_no_number_of_is_empty() {
        let config = samples::config(crate::workload::Locality::Natural);
        let runs = vec![samples::run(&config, 0, 0, 0, 1)];
        let mut bytes = Vec::new();
        write_csv(&Results { header: samples::header(), runs }, &mut bytes).unwrap();
        let text = String::from_utf8(bytes).unwrap();
        let rows = text.lines().map(|line| line.split(',').collect::<Vec<_>>()).collect::<Vec<_>>();
        for (name, expected) in [("rate", "0.0"), ("p99_ns", ""), ("cpu_per_call_ns", "")] {
            let column = rows[0].iter().position(|column| *column == name).unwrap();
            assert_eq!(rows[1][column], expected, "{name}");
        }
    }
}
