//! The report: one HTML file that needs nothing else, in light and dark.
//!
//! ```text
//! page ── sections ── charts ── axis      numbers to pictures
//!                        └───── svg       pictures to text
//! ```

mod axis;
mod charts;
mod daemons;
mod labels;
mod sections;
mod svg;

use std::{collections::BTreeSet, fmt::Write as _};

use bench::report::Header;

use self::svg::escape;
use crate::result::{Cell, Results, reduce};

const STYLE: &str = include_str!("style.css");

/// The whole page.
#[must_use]
pub fn render(results: &Results) -> String {
    let cells = reduce(results);
    let mut page = String::with_capacity(256 << 10);
    // Writing to a string cannot fail.
    let _ = write!(
        page,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>benchkv {date}</title>\n\
         <style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n",
        date = escape(&results.header.run.date),
    );
    page.push_str(&head(results, &cells));
    for section in sections::all(&cells) {
        page.push_str(&section);
    }
    page.push_str("</main>\n</body>\n</html>\n");
    page
}

/// What was run, where, and how.
fn head(results: &Results, cells: &[Cell]) -> String {
    let Header {
        command, version, commit, profile, cpu, cores, pinning, kernel, nic, date, ..
    } = &results.header.run;
    let regimes = cells.iter().map(labels::regime).collect::<BTreeSet<_>>();
    let regimes = regimes.into_iter().collect::<Vec<_>>().join(", ");
    let configurations = cells.iter().map(|cell| &cell.name).collect::<BTreeSet<_>>().len();
    let facts = [
        ("CPU", cpu.clone()),
        ("cores", cores.to_string()),
        ("core placement", regimes),
        ("pinning", pinning.clone()),
        ("NIC", nic.clone()),
        ("kernel", kernel.clone()),
        ("version", format!("{version}, commit {commit}, {profile} build")),
        ("runs", format!("{} of {configurations} configurations", results.runs.len())),
    ];
    let mut html = format!(
        "<header>\n<h1>benchkv</h1>\n<p class=\"date\">{}</p>\n<pre class=\"command\">{}</pre>\n\
         <dl class=\"facts\">\n",
        escape(date),
        escape(command)
    );
    for (name, value) in facts {
        let _ = writeln!(html, "<div><dt>{name}</dt><dd>{}</dd></div>", escape(&value));
    }
    html.push_str("</dl>\n");
    if profile == "debug" {
        html.push_str("<p class=\"warning\">A debug build: its numbers mean nothing.</p>\n");
    }
    html.push_str("</header>\n");
    html
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{backend::Failure, result::samples};

    fn page() -> String {
        render(&samples::results())
    }

    #[test]
    fn the_page_holds_circumstances_plots_and_numbers() {
        let page = page();
        for expected in [
            "copyrpc bench kv",
            "commit abc",
            "Throughput",
            "Latency distribution",
            "Outstanding",
            "<td>client switches</td><td>0.25</td><td>0.25</td>",
            "qd4",
            "natural",
            "prefers-color-scheme: dark",
        ] {
            assert!(page.contains(expected), "{expected:?}");
        }
        assert!(page.contains("some &lt;CPU&gt; &amp; more"), "text from outside is escaped");
        assert!(page.contains(Failure::Timeout.name()), "errors are shown");
    }

    #[test]
    fn the_page_needs_nothing_from_the_network() {
        let page = page();
        for forbidden in ["http://", "https://", "<script", "@import", "url(", "src="] {
            let found = page.match_indices(forbidden).map(|(at, _)| &page[at..]).next();
            let found = found.map(|text| &text[..text.len().min(60)]);
            assert!(found.is_none(), "{found:?}");
        }
    }

    #[test]
    fn every_element_is_closed_and_no_number_is_odd() {
        let page = page();
        for element in ["svg", "g", "text", "section", "table", "tr", "td", "main", "dl", "details"]
        {
            let open = page.matches(&format!("<{element} ")).count()
                + page.matches(&format!("<{element}>")).count();
            assert_eq!(open, page.matches(&format!("</{element}>")).count(), "{element}");
        }
        assert!(!page.contains("NaN") && !page.contains("inf\""), "coordinates are finite");
    }

    #[test]
    fn slots_without_counters_are_left_out() {
        assert!(!page().contains("Batch sizes"));
        let mut results = samples::results();
        results.runs[0].measured.rank_counters.batch(4);
        results.runs[0].measured.rank_counters.phases_ns.insert("serve".into(), 10);
        let counters = &mut results.runs[0].measured.rank_counters;
        counters.distributions.insert("rtt_ns".into(), [(1000, 99), (9000, 1)].into());
        counters.named.extend([("daemon loops".into(), 10), ("daemon incoming".into(), 4)]);
        results.runs[0].measured.rank_outstanding = vec![3; 10];
        results.runs[4].measured.rank_outstanding = vec![3; 10];
        let page = render(&results);
        for expected in [
            "Batch sizes",
            "Phase times",
            "between daemons",
            "<td>rtt</td><td>1 µs / 1 µs</td>",
            "<td>loops per request</td><td>2.5</td>",
        ] {
            assert!(page.contains(expected), "{expected:?}");
        }
    }

    #[test]
    fn a_large_grid_shows_its_counters_in_pictures_of_their_own() {
        let mut results = samples::results();
        for depth in 5..50 {
            for run in &samples::results().runs[..2] {
                let mut run = run.clone();
                run.config.workload.queue_depth = depth;
                run.measured.rank_counters.batch(4);
                results.runs.push(run);
            }
        }
        let page = render(&results);
        assert!(page.contains("<h3>tcp · natural</h3>") && page.contains("<h3>tcp · remote</h3>"));
    }

    #[test]
    fn several_numbers_of_clients_make_a_picture_per_queue_depth() {
        let mut results = samples::results();
        assert!(!render(&results).contains("by clients per node"));
        for (index, run) in results.runs.iter_mut().enumerate() {
            run.config.workload.clients_per_rank = [1, 8][index / 3];
            run.config.workload.locality = crate::workload::Locality::Natural;
        }
        let page = render(&results);
        assert!(page.contains("by clients per node") && page.contains("4 outstanding"));
    }

    #[test]
    fn a_run_without_answers_is_a_row_without_numbers() {
        let mut results = samples::results();
        let mut config = results.runs[0].config.clone();
        config.workload.queue_depth = 9;
        results.runs.push(samples::run(&config, 0, 0, 0, 1));
        let page = render(&results);
        assert!(!page.contains("NaN"), "of nothing there is no number");
        let row = page.lines().find(|line| line.contains("qd9") && line.contains("<td>none</td>"));
        assert_eq!(
            row.unwrap().matches("<td></td>").count(),
            7,
            "percentiles, CPU, ratio: {row:?}"
        );
        results.runs.retain(|run| run.config == config);
        assert!(!render(&results).contains("NaN"), "nor where nothing else is");
    }

    #[test]
    fn a_result_without_runs_is_still_a_page() {
        let results = Results { header: samples::header(), runs: Vec::new() };
        assert!(render(&results).contains("</html>"));
    }
}
