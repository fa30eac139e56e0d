//! The three forms of a report.

use std::collections::BTreeMap;

use measure::regime::Probes;

use super::*;
use crate::{
    backend::{CallFailure, Kind, Switches},
    result::{RunRecord, reduce, samples},
    workload::{Locality, Workload},
};

fn table(results: &Results) -> String {
    let mut bytes = Vec::new();
    write_table(results, By::Configuration, &mut bytes).unwrap();
    String::from_utf8(bytes).unwrap()
}

fn document(results: &Results) -> String {
    let mut bytes = Vec::new();
    write_markdown(results, &mut bytes).unwrap();
    let text = String::from_utf8(bytes).unwrap();
    // A row with other numbers of columns than its table is no row.
    let mut columns = None;
    for line in text.lines() {
        let bars = line.matches('|').count();
        assert!(bars == 0 || *columns.get_or_insert(bars) == bars, "{line}");
        if bars == 0 {
            columns = None;
        }
    }
    text
}

#[test]
fn the_table_says_all_that_was_asked_for() {
    let text = table(&samples::results());
    for expected in [
        "clients/node",
        "tcp · natural",
        "tcp · remote",
        "adaptive",
        "100.0",
        "80.0–120.0",
        "ended with: timeout",
        "commit abc",
        "within 2 µs",
        "the machine's pace changed by a factor of 1.1 during this run",
    ] {
        assert!(text.contains(expected), "{expected:?} in\n{text}");
    }
}

#[test]
fn labels_say_what_differs() {
    let cells = reduce(&samples::results());
    assert_eq!(labels(&cells), ["tcp · natural", "tcp · remote"]);
    assert_eq!(labels(&cells[..1]), ["tcp"]);
}

#[test]
fn the_page_holds_circumstances_plots_and_numbers() {
    let page = page(&samples::results());
    for expected in [
        "copyrpc-lab bench kv",
        "commit abc",
        "Throughput",
        "Latency distribution",
        "Outstanding",
        "client switches",
        "qd4",
        "natural",
        "a factor of 1.1",
        "prefers-color-scheme: dark",
    ] {
        assert!(page.contains(expected), "{expected:?}");
    }
    assert!(page.contains("some &#60;CPU&#62; &#38; more"), "text from outside is escaped");
    assert!(page.contains(CallFailure::Timeout.name()), "errors are shown");
    assert!(!page.contains("NaN") && !page.contains("inf\""), "coordinates are finite");
}

#[test]
fn slots_without_counters_are_left_out() {
    assert!(!page(&samples::results()).contains("Batch sizes"));
    let mut results = samples::results();
    results.runs[0].measured.rank_counters.batch(4);
    results.runs[0].measured.rank_counters.phases_ns.insert("serve".into(), 10);
    let counters = &mut results.runs[0].measured.rank_counters;
    counters.distributions.insert("rtt_ns".into(), [(1000, 99), (9000, 1)].into());
    counters.named.extend([("daemon loops".into(), 10), ("daemon incoming".into(), 4)]);
    results.runs[0].measured.rank_outstanding = vec![3; 10];
    results.runs[4].measured.rank_outstanding = vec![3; 10];
    let page = page(&results);
    for expected in
        ["Batch sizes", "Phase times", "between daemons", ">1 µs / 1 µs</td>", ">2.5</td>"]
    {
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
    let page = page(&results);
    assert!(page.contains("<h3>tcp · natural</h3>") && page.contains("<h3>tcp · remote</h3>"));
}

/// A page used to have a table, a bar and a colour of each backend for each pace.
#[test]
fn a_machine_whose_pace_changed_has_one_table_and_the_rest_is_folded() {
    let mut results = samples::results();
    for run in &samples::results().runs {
        let placement = Some(Probes { before_ns: 500.0, after_ns: 500.0 });
        results.runs.push(RunRecord { placement, run: run.run + 3, ..run.clone() });
    }
    let text = table(&results);
    assert_eq!(text.matches("clients/node").count(), 1, "{text}");
    assert!(text.contains("a factor of 5.0"), "{text}");
    let page = page(&results);
    for title in ["pace: line 105 ns", "pace: line 500 ns"] {
        assert!(page.contains(&format!("<summary><h2>{title}</h2></summary>")), "{page}");
    }
    let by_pace = {
        let mut bytes = Vec::new();
        write_table(&results, By::Pace, &mut bytes).unwrap();
        String::from_utf8(bytes).unwrap()
    };
    assert_eq!(by_pace.matches("clients/node").count(), 2, "{by_pace}");
}

/// Five backends, two numbers of clients, six rounds at paces that jump: what README's command prints.
#[test]
fn fault_k3_a_curve_is_one_table_one_sentence_and_one_colour_each() {
    let mut runs = Vec::new();
    for (clients, scale) in [(4_u16, 1), (64, 2)] {
        for (backend, rate) in
            [(Kind::Delegation, 450), (Kind::Direct, 300), (Kind::UcxAm, 440), (Kind::Tcp, 100)]
        {
            let mut config = samples::config(Locality::Natural);
            config.backend = backend;
            config.switches =
                Switches::resolve(backend.name(), backend.switches(), &BTreeMap::new()).unwrap();
            config.workload.clients_per_rank = clients;
            config.workload.duration_ms = Workload::duration_ms_of(clients);
            for (run, pace) in (0..).zip([10, 2, 10, 10, 2, 10]) {
                // UCX is a little ahead in one round of two.
                let ahead = if backend == Kind::UcxAm && run % 2 == 0 { 2 } else { 0 };
                let mut run = samples::run(&config, run, (rate + 10 * ahead) * pace / scale, 0, 1);
                run.measured.pss_bytes = u64::from(clients) << 22;
                run.measured.harness_cpu_ns = 1_000_000;
                runs.push(run);
            }
        }
    }
    let results = Results { header: samples::header(), runs };
    let text = table(&results);
    let rows = text.lines().filter(|line| line.starts_with(" 4 ") || line.starts_with(" 64 "));
    let first =
        rows.clone().map(|row| row.split_whitespace().take(3).collect::<Vec<_>>().join(" "));
    let expected = [
        "4 delegation adaptive",
        "4 direct adaptive",
        "4 ucx-am adaptive",
        "4 tcp adaptive",
        "64 delegation adaptive",
        "64 direct adaptive",
        "64 ucx-am adaptive",
        "64 tcp adaptive",
    ];
    assert_eq!(first.collect::<Vec<_>>(), expected, "{text}");
    assert!(rows.clone().next().unwrap().contains("4.50 (4.50–4.50)"), "{text}");
    assert!(text.contains("the harness took 0.25 % of the processor time, of"), "{text}");
    assert!(text.contains("up to 128 clients share 2 cores"), "{text}");
    let last = text.trim_end().lines().last().unwrap();
    let expected =
        "delegation: with 4 clients per node 4.50 times tcp (4.50 to 4.50) and as fast as ucx-am";
    assert!(last.starts_with(expected), "{last}");
    let page = page(&results);
    for title in
        ["By clients per node", "Calls per second", "Memory of a node", "Queue pairs of a node"]
    {
        assert!(page.contains(title), "{title}");
    }
    for (name, colour) in [("delegation", 0), ("direct", 2), ("tcp", 6)] {
        let entries = page.matches(&format!("\">{name}</span>")).count();
        let coloured = page.matches(&format!("var(--c{colour})\">{name}</span>")).count();
        assert!(entries > 2 && entries == coloured, "{name}: {coloured} of {entries}");
    }
}

#[test]
fn a_run_in_which_a_client_had_no_answer_says_so() {
    let mut results = samples::results();
    results.runs[2].measured.per_client[3] = 0;
    let text = table(&results);
    let expected = "tcp/2x4/qd4/natural: in 1 of 3 rounds some clients had no answer, 1 at most";
    assert!(text.contains(expected), "{text}");
}

/// The first eight of 44 used to be shown, whatever they were.
#[test]
fn curves_are_those_of_the_fastest_of_each_backend() {
    let mut results = samples::results();
    for depth in 5..25 {
        let mut run = samples::results().runs[0].clone();
        run.config.workload.queue_depth = depth;
        run.config.backend = if depth < 15 { Kind::Tcp } else { Kind::Direct };
        run.measured.local.completed += u64::from(depth) * 1000;
        results.runs.push(run);
    }
    let page = page(&results);
    let at = page.find("<h2>Throughput over time</h2>").unwrap();
    let end = page[at..].find("<svg").unwrap();
    let legend = &page[at..at + end];
    assert!(legend.contains("the fastest: 8"), "{legend}");
    for shown in ["qd24", "qd23", "qd22", "qd21", "qd14", "qd13", "qd12", "qd11"] {
        assert!(legend.contains(shown), "{shown} in {legend}");
    }
    assert_eq!(legend.matches("<span").count(), 8, "{legend}");
}

#[test]
fn several_numbers_of_clients_make_a_picture_per_queue_depth() {
    let mut results = samples::results();
    assert!(!page(&results).contains("By clients per node"));
    for (index, run) in results.runs.iter_mut().enumerate() {
        run.config.workload.clients_per_rank = [1, 8][index / 3];
        run.config.workload.locality = crate::workload::Locality::Natural;
    }
    let page = page(&results);
    assert!(page.contains("By clients per node") && page.contains("4 outstanding"));
}

#[test]
fn a_run_without_answers_is_a_row_without_numbers() {
    let mut results = samples::results();
    let mut config = results.runs[0].config.clone();
    config.workload.queue_depth = 9;
    results.runs.push(samples::run(&config, 0, 0, 0, 1));
    let whole = page(&results);
    assert!(!whole.contains("NaN"), "of nothing there is no number");
    let row = whole.lines().find(|line| line.contains("qd9") && line.contains(">none</td>"));
    assert_eq!(row.unwrap().matches("></td>").count(), 5, "percentiles: {row:?}");
    results.runs.retain(|run| run.config == config);
    assert!(!page(&results).contains("NaN"), "nor where nothing else is");
}

#[test]
fn a_result_without_runs_is_still_a_page() {
    let results = Results { header: samples::header(), runs: Vec::new() };
    assert!(page(&results).contains("</html>"));
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
    let text = document(&results);
    assert!(text.contains("commit abc") && text.contains("## Answers"), "{text}");
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
    let text = document(&results);
    for row in ["| natural | 4 | 2×4 |", "| natural, 7keys, seed3 | 4 | 2×4 |"] {
        assert_eq!(text.lines().filter(|line| line.starts_with(row)).count(), 1, "{text}");
    }
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
    let text = document(&results);
    assert!(text.contains(
        "| tcp default | natural | 4 | 2×4 | 100.0 (80.0–120.0) | 1.00, undecided: 3 more rounds |"
    ));
    assert!(text.contains("| tcp wait=spin | natural | 4 | 2×4 | 200.0 (160.0–240.0) | 2.00, undecided: 3 more rounds |"));
}
