//! Tables for documents: backends beside each other, and what each switch changes.

use std::{
    collections::BTreeMap,
    io::{self, Write},
};

use bench::report::{Header, number};

use super::{
    Cell, Results,
    cells::{regime_name, regimes},
    costs::{self, costs},
    reduce,
    reduce::rate_over,
    system_parts, workload_parts,
};
use crate::{backend::Kind, workload::Workload};

/// Writes circumstances, and per regime one table of the backends as they are by default, and one of
/// everything else.
///
/// # Errors
///
/// Of `to`.
pub fn write_markdown(results: &Results, to: &mut impl Write) -> io::Result<()> {
    let Header { command, cpu, cores, pinning, kernel, nic, commit, profile, date, .. } =
        &results.header.run;
    let cells = reduce(results);
    writeln!(to, "# benchkv\n\n`{command}`\n")?;
    writeln!(to, "{cpu}, {cores} cores, NIC {nic}, pinning {pinning}, kernel {kernel},")?;
    writeln!(to, "commit {commit}, {profile} build, {date}.\n")?;
    let common = common_parts(&cells);
    if !common.is_empty() {
        writeln!(to, "All cells: {}.\n", common.join(", "))?;
    }
    writeln!(
        to,
        "Thousands of answered and checked calls per second, of all clients: median of the runs \
         (smallest to largest).\nLatencies are medians over the runs. Calls that ended without an \
         answer: {}.",
        cells.iter().flat_map(|cell| cell.failures.values()).sum::<u64>()
    )?;
    for regime in regimes() {
        let cells = cells.iter().filter(|cell| cell.regime == regime).collect::<Vec<_>>();
        let Some(first) = cells.first() else { continue };
        writeln!(to, "\n## Cores {}", regime_name(first.regime))?;
        let (plain, varied): (Vec<&Cell>, Vec<&Cell>) =
            cells.iter().partition(|cell| system_parts(&cell.config).is_empty());
        // One backend alone is the first row of what follows.
        let first = plain.first().map(|cell| cell.config.backend);
        let has_rivals = plain.iter().any(|cell| Some(cell.config.backend) != first);
        if varied.is_empty() || has_rivals {
            write_backends(&plain, &common, to)?;
        }
        if !varied.is_empty() {
            write_variants(&varied, &plain, &common, to)?;
        }
        write_costs(&cells, to)?;
    }
    Ok(())
}

/// Parts of the workload's name that all cells have.
fn common_parts(cells: &[Cell]) -> Vec<String> {
    let parts = |cell: &Cell| workload_parts(&cell.config.workload);
    let mut common = cells.first().map(parts).unwrap_or_default();
    common.retain(|part| cells.iter().all(|cell| parts(cell).contains(part)));
    common
}

/// What a row is about, without what all cells have.
fn place(workload: &Workload, common: &[String]) -> [String; 3] {
    let Workload { ranks, clients_per_rank, queue_depth, locality, .. } = workload;
    let own = workload_parts(workload).into_iter().filter(|part| !common.contains(part));
    let keys = std::iter::once(locality.to_string()).chain(own).collect::<Vec<_>>().join(", ");
    [keys, queue_depth.to_string(), format!("{ranks}×{clients_per_rank}")]
}

fn rate(cell: &Cell) -> String {
    let rate = cell.all.rate;
    let [median, min, max] = [rate.median, rate.min, rate.max].map(|rate| number(rate / 1e3));
    if rate.runs < 2 { median } else { format!("{median} ({min}–{max})") }
}

fn latency(cell: &Cell) -> String {
    cell.all.latency.map_or_else(String::new, |latency| {
        format!("{} / {}", number(latency.p50.median / 1e3), number(latency.p99.median / 1e3))
    })
}

/// One row per workload, the backends beside each other.
fn write_backends(cells: &[&Cell], common: &[String], to: &mut impl Write) -> io::Result<()> {
    let kinds =
        Kind::ALL.into_iter().filter(|kind| cells.iter().any(|cell| cell.config.backend == *kind));
    let kinds = kinds.collect::<Vec<_>>();
    let mut rows = BTreeMap::<_, BTreeMap<Kind, &Cell>>::new();
    for cell in cells {
        let w = &cell.config.workload;
        let rest = workload_parts(w).join("/");
        let key = (w.locality.to_string(), w.queue_depth, w.ranks, w.clients_per_rank, rest);
        rows.entry(key).or_default().insert(cell.config.backend, cell);
    }
    writeln!(to, "\n### Backends\n")?;
    write!(to, "| keys | outstanding | nodes×clients |")?;
    for kind in &kinds {
        write!(to, " {kind} k/s | p50 / p99 µs |")?;
    }
    let has_both = kinds.contains(&Kind::Delegation) && kinds.contains(&Kind::Direct);
    writeln!(to, "{}", if has_both { " delegation/direct |" } else { "" })?;
    let columns = 3 + 2 * kinds.len() + usize::from(has_both);
    writeln!(to, "|{}", "---|".repeat(columns))?;
    for row in rows.values() {
        let Some(first) = row.values().next() else { continue };
        write!(to, "| {} |", place(&first.config.workload, common).join(" | "))?;
        for kind in &kinds {
            let cell = row.get(kind);
            let fields = cell.map_or_else(Default::default, |cell| (rate(cell), latency(cell)));
            write!(to, " {} | {} |", fields.0, fields.1)?;
        }
        if has_both {
            let both = row.get(&Kind::Delegation).zip(row.get(&Kind::Direct));
            let ratio = both.and_then(|(over, under)| rate_over(over, under));
            write!(to, " {} |", ratio.map_or_else(String::new, |ratio| format!("{ratio:.2}")))?;
        }
        writeln!(to)?;
    }
    Ok(())
}

/// One row per system, beside its own default with the same workload.
fn write_variants(
    cells: &[&Cell],
    plain: &[&Cell],
    common: &[String],
    to: &mut impl Write,
) -> io::Result<()> {
    writeln!(to, "\n### Switches, policies, waiting\n")?;
    writeln!(
        to,
        "Against the same backend with its defaults, in the same place. Messages per batch: between \
         daemons\nfor delegation, taken together by a daemon otherwise.\n"
    )?;
    writeln!(
        to,
        "| system | keys | outstanding | nodes×clients | k/s | of default | p50 / p99 µs | CPU \
         ns/call | messages per batch |\n|{}",
        "---|".repeat(9)
    )?;
    let mut rows = cells.to_vec();
    rows.extend(plain.iter().filter(|cell| cells.iter().any(|other| is_default_of(cell, other))));
    rows.sort_by_key(|cell| {
        let w = &cell.config.workload;
        (cell.config.backend, w.locality.to_string(), w.queue_depth, w.clients_per_rank)
    });
    for cell in rows {
        let parts = system_parts(&cell.config);
        let parts = if parts.is_empty() { "default".to_owned() } else { parts.join(" ") };
        let default = plain.iter().find(|other| is_default_of(other, cell));
        let ratio = default.and_then(|other| rate_over(cell, other));
        writeln!(
            to,
            "| {} {parts} | {} | {} | {} | {} | {} | {} |",
            cell.config.backend,
            place(&cell.config.workload, common).join(" | "),
            rate(cell),
            ratio.map_or_else(String::new, |ratio| format!("{ratio:.2}")),
            latency(cell),
            cell.cpu_per_call_ns.map_or_else(String::new, |cpu| number(cpu.median)),
            cell.counters.mean_batch().map_or_else(String::new, number),
        )?;
    }
    Ok(())
}

/// What explains the numbers.
fn write_costs(cells: &[&Cell], to: &mut impl Write) -> io::Result<()> {
    writeln!(to, "\n### Where CPU time went\n\nOf all runs together; {}.\n", costs::MEANING)?;
    writeln!(
        to,
        "| cell | {} |\n|{}",
        costs::HEADINGS.join(" | "),
        "---|".repeat(1 + costs::COLUMNS)
    )?;
    for cell in cells {
        writeln!(to, "| {} | {} |", cell.name, costs(cell).join(" | "))?;
    }
    Ok(())
}

fn is_default_of(plain: &Cell, cell: &Cell) -> bool {
    plain.config.backend == cell.config.backend && plain.config.workload == cell.config.workload
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{backend::Switches, result::samples};

    fn text(results: &Results) -> String {
        let mut bytes = Vec::new();
        write_markdown(results, &mut bytes).unwrap();
        String::from_utf8(bytes).unwrap()
    }

    /// A row with other numbers of columns than its table is no row.
    fn assert_tables_are_whole(text: &str) {
        let mut columns = None;
        for line in text.lines() {
            let bars = line.matches('|').count();
            assert!(bars == 0 || *columns.get_or_insert(bars) == bars, "{line}");
            if bars == 0 {
                columns = None;
            }
        }
    }

    #[test]
    fn backends_stand_beside_each_other_and_are_told_with_their_circumstances() {
        let mut results = samples::results();
        for run in &mut samples::results().runs {
            run.config.backend = Kind::Direct;
            let kind = Kind::Direct;
            run.config.switches =
                Switches::resolve(kind.name(), kind.switches(), &BTreeMap::new()).unwrap();
            run.config.nic = "soft".into();
            results.runs.push(run.clone());
        }
        let text = text(&results);
        assert_tables_are_whole(&text);
        assert!(text.contains("commit abc") && text.contains("## Cores near"), "{text}");
        let row = text.lines().find(|line| line.starts_with("| natural | 4 | 2×4 |")).unwrap();
        assert_eq!(row.matches("100.0 (80.0–120.0)").count(), 2, "{row}");
        assert!(!text.contains("### Switches"));
    }

    /// Two rows that read the same would say that the same thing has two rates.
    #[test]
    fn fault_k3_a_row_says_of_which_workload_it_is() {
        let mut results = samples::results();
        for run in &mut samples::results().runs {
            run.config.workload.keys = 7;
            run.config.workload.seed = 3;
            results.runs.push(run.clone());
        }
        let text = text(&results);
        assert_tables_are_whole(&text);
        for row in ["| natural | 4 | 2×4 |", "| natural, 7keys, seed3 | 4 | 2×4 |"] {
            assert_eq!(text.lines().filter(|line| line.starts_with(row)).count(), 1, "{text}");
        }
    }

    /// Nobody knows in which placement either was.
    #[test]
    fn fault_k3_cores_that_moved_have_rates_but_no_ratios() {
        let mut results = samples::results();
        for mut run in samples::results().runs {
            run.config = samples::other_wait(&run.config);
            results.runs.push(run);
        }
        let of_default = |results: &Results| {
            let text = text(results);
            let row = text.lines().find(|line| line.starts_with("| tcp wait=spin | natural"));
            row.unwrap().split('|').nth(6).unwrap().trim().to_owned()
        };
        assert_eq!(of_default(&results), "1.00");
        for run in &mut results.runs {
            run.placement = Some(crate::result::Placement { before_ns: 100.0, after_ns: 500.0 });
        }
        assert_eq!(of_default(&results), "");
    }

    #[test]
    fn variants_are_compared_with_their_default() {
        let mut results = samples::results();
        for mut run in samples::results().runs {
            run.config = samples::other_wait(&run.config);
            run.measured.local.completed *= 2;
            run.measured.remote.completed *= 2;
            results.runs.push(run);
        }
        let text = text(&results);
        assert_tables_are_whole(&text);
        assert!(text.contains("| tcp default | natural | 4 | 2×4 | 100.0 (80.0–120.0) | 1.00 |"));
        assert!(
            text.contains("| tcp wait=spin | natural | 4 | 2×4 | 200.0 (160.0–240.0) | 2.00 |")
        );
    }
}
