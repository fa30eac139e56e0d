//! One line per run, for spreadsheets.

use std::io::{self, BufWriter, Write};

use super::{Results, RunRecord, reduce::name_of};
use crate::backend::Failure;

/// Columns before those of the failures.
const COLUMNS: &str = "cell,backend,wait,pin,nic,switches,ranks,daemon_threads,clients_per_rank,\
                       queue_depth,mix,popularity,locality,value_bytes,pace,verify,seed,run,regime,\
                       interval_ns,answers,rate,local_rate,remote_rate,p50_ns,p90_ns,p99_ns,p999_ns,\
                       max_ns,cpu_per_call_ns,start_skew_ns";

/// Writes all runs.
///
/// # Errors
///
/// Of `to`.
pub fn write_csv(results: &Results, to: impl Write) -> io::Result<()> {
    let mut to = BufWriter::new(to);
    let failures = Failure::ALL.map(|failure| failure.name().replace(' ', "_")).join(",");
    writeln!(to, "{COLUMNS},{failures}")?;
    for run in &results.runs {
        writeln!(to, "{}", line(run).join(","))?;
    }
    to.flush()
}

fn line(record: &RunRecord) -> Vec<String> {
    let RunRecord { config, run, placement, measured } = record;
    let w = &config.workload;
    let switches = config.switches.iter().map(|(name, value)| format!("{name}={value}"));
    let latency = measured.local.latency.merged(&measured.remote.latency).to_histogram();
    let per_second = |count: u64| {
        let seconds = std::time::Duration::from_nanos(measured.interval_ns).as_secs_f64();
        format!("{:.1}", super::reduce::as_f64(count) / seconds)
    };
    let regime = placement.map_or("unknown".to_owned(), |placement| placement.regime().to_string());
    let mut fields = vec![
        quoted(&name_of(config)),
        config.backend.to_string(),
        config.wait.to_string(),
        config.pin.to_string(),
        quoted(&config.nic),
        quoted(&switches.collect::<Vec<_>>().join(" ")),
        w.ranks.to_string(),
        w.daemon_threads.to_string(),
        w.clients_per_rank.to_string(),
        w.queue_depth.to_string(),
        w.mix.to_string(),
        w.popularity.to_string(),
        w.locality.to_string(),
        w.value_size.to_string(),
        w.pace.to_string(),
        format!("{:?}", w.verify).to_lowercase(),
        w.seed.to_string(),
        run.to_string(),
        regime,
        measured.interval_ns.to_string(),
        measured.completed().to_string(),
        per_second(measured.completed()),
        per_second(measured.local.completed),
        per_second(measured.remote.completed),
    ];
    for quantile in [0.5, 0.9, 0.99, 0.999, 1.0] {
        fields.push(latency.value_at_quantile(quantile).to_string());
    }
    fields.push(format!("{:.1}", measured.cpu_per_call_ns()));
    fields.push(measured.start_skew_ns.to_string());
    for failure in Failure::ALL {
        fields.push(measured.failures.get(&failure).copied().unwrap_or(0).to_string());
    }
    fields
}

/// Quoted if it must be (RFC 4180).
fn quoted(field: &str) -> String {
    if field.contains([',', '"', '\n']) {
        format!("\"{}\"", field.replace('"', "\"\""))
    } else {
        field.to_owned()
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
    fn odd_fields_are_quoted() {
        assert_eq!(quoted("a b"), "a b");
        assert_eq!(quoted("a,\"b\""), "\"a,\"\"b\"\"\"");
    }
}
