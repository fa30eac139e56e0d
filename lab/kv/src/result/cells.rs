//! Cells in the form that all benchmarks of this project share: one row per number.

use measure::results::Row;

use super::{LatencySummary, ReducedCell, Results, SideCell, reduce, reduce_by_pace};

/// All numbers of all cells, as every benchmark gives them to programs.
#[must_use]
pub fn rows(results: &Results) -> measure::results::Results {
    let rows = reduce(results).iter().chain(&reduce_by_pace(results)).flat_map(rows_of).collect();
    measure::results::Results {
        header: results.header.clone(),
        rows,
        pace_change: measure::regime::change(results.runs.iter().filter_map(|run| run.placement)),
        notes: Vec::new(),
    }
}

/// A name with `/local` or `/remote` is about these calls only.
fn rows_of(cell: &ReducedCell) -> Vec<Row> {
    let row = |cell_name: String, metric: &str, unit: &str, summary| Row {
        bench: "kv".to_owned(),
        cell: cell_name,
        regime: cell.regime.to_string(),
        line_ns: cell.regime.line_ns(),
        metric: metric.to_owned(),
        unit: unit.to_owned(),
        summary,
        ..Row::default()
    };
    let mut rows = Vec::new();
    for (suffix, side) in [("", &cell.all), ("/local", &cell.local), ("/remote", &cell.remote)] {
        let SideCell { rate, latency, .. } = side;
        // That all calls together got no answer is a number, too.
        if !suffix.is_empty() && latency.is_none() && rate.max <= 0.0 {
            continue;
        }
        let name = format!("{}{suffix}", cell.name);
        rows.push(row(name.clone(), "rate", "1/s", *rate));
        for (metric, summary) in latency.iter().flat_map(LatencySummary::named) {
            rows.push(row(name.clone(), &format!("latency-{metric}"), "ns", summary));
        }
    }
    let cpu = cell.cpu_per_call_ns;
    rows.extend(cpu.map(|cpu| row(cell.name.clone(), "cpu-per-call", "ns", cpu)));
    let switches =
        [("client-switches", cell.clients_switches), ("daemon-switches", cell.ranks_switches)];
    for (metric, each) in switches {
        rows.extend(each.map(|each| row(cell.name.clone(), metric, "per call", each)));
    }
    if let (Some((vs, ratio)), Some(first)) = (&cell.versus, rows.first_mut()) {
        first.vs = Some(vs.clone());
        first.set_ratio(Some(*ratio));
    }
    rows
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::{backend::Kind, configuration::Config, result::samples, workload::Locality};

    #[test]
    fn rows_have_the_form_of_the_project() {
        let mut bytes = Vec::new();
        rows(&samples::results()).write_json(&mut bytes).unwrap();
        let text = String::from_utf8(bytes).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
        let lines = lines.collect::<Vec<Value>>();
        assert_eq!(lines[0]["bench"], "kv");
        assert_eq!(lines[0]["commit"], "abc");
        for key in [
            "bench", "cell", "regime", "metric", "unit", "median", "min", "max", "runs", "vs",
            "ratio",
        ] {
            assert!(lines[1].get(key).is_some(), "{key}");
        }
        let find = |cell: &str, metric: &str| {
            lines.iter().find(|line| line["cell"] == cell && line["metric"] == metric)
        };
        assert_eq!(find("tcp/2x4/qd4/natural", "rate").unwrap()["median"], 100_000.0);
        assert!(find("tcp/2x4/qd4/natural/local", "latency-p99.9").is_some());
        for side in ["client-switches", "daemon-switches"] {
            assert_eq!(find("tcp/2x4/qd4/natural", side).unwrap()["unit"], "per call");
        }
        assert!(find("tcp/2x4/qd4/remote/local", "rate").is_none(), "there were no local calls");
    }

    #[test]
    fn fault_k2_no_answer_is_a_rate_of_nothing_and_no_other_number() {
        let tcp = samples::config(Locality::Natural);
        let direct = Config { backend: Kind::Direct, ..tcp.clone() };
        let rows_of = |floor, rate| {
            let runs =
                vec![samples::run(&tcp, 0, floor, 0, 1), samples::run(&direct, 0, rate, 0, 1)];
            let mut rows = rows(&Results { header: samples::header(), runs }).rows;
            rows.retain(|row| row.cell.starts_with("direct") && row.regime == "all");
            rows
        };
        let [row] = &rows_of(100, 0)[..] else { panic!("one row: {:?}", rows_of(100, 0)) };
        assert_eq!((row.metric.as_str(), row.summary.median, row.ratio), ("rate", 0.0, Some(0.0)));
        for row in rows_of(0, 100) {
            assert_eq!((&row.vs, row.ratio), (&None, None), "over nothing: {row:?}");
        }
        let ratios = rows_of(100, 200).into_iter().filter_map(|row| Some((row.metric, row.ratio?)));
        assert_eq!(ratios.collect::<Vec<_>>(), [("rate".to_owned(), 2.0)]);
    }
}
