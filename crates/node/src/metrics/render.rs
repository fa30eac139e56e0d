//! Counters in the text format of Prometheus (exposition format 0.0.4).

use core::fmt::Write as _;

use crate::metrics::{
    counters::{Counter, Kind, Timing},
    reader::{Section, Snapshot, State},
};

/// Quantiles that are shown.
pub const QUANTILES: [(&str, f64); 4] =
    [("0.5", 0.5), ("0.9", 0.9), ("0.99", 0.99), ("0.999", 0.999)];

/// All daemons in one text: a family of samples for each counter, told apart by labels. Those of a
/// daemon of several threads are told apart by thread, for their reader to add.
#[must_use]
pub fn prometheus(snapshots: &[Snapshot]) -> String {
    let mut text = String::new();
    let all: Vec<_> = snapshots.iter().flat_map(by_thread).collect();
    family(&mut text, "up", "gauge", "Whether the daemon is alive.");
    for snapshot in snapshots {
        let is_up = u8::from(matches!(snapshot.state, State::Alive(_)));
        let labels = labels(snapshot);
        let _ = writeln!(text, "copyrpc_up{{{labels}}} {is_up}");
    }
    for &counter in Counter::ALL {
        counter_family(&mut text, counter, &all);
    }
    for &timing in Timing::ALL {
        summary_family(&mut text, timing, &all);
    }
    text
}

/// What each thread counts, and its labels.
fn by_thread(snapshot: &Snapshot) -> Vec<(String, &Section)> {
    let labels = labels(snapshot);
    match &snapshot.sections[..] {
        [section] => vec![(labels, section)],
        sections => {
            let labels = (0..sections.len()).map(|thread| format!("{labels},thread=\"{thread}\""));
            labels.zip(sections).collect()
        }
    }
}

fn family(text: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(text, "# HELP copyrpc_{name} {help}");
    let _ = writeln!(text, "# TYPE copyrpc_{name} {kind}");
}

fn counter_family(text: &mut String, counter: Counter, all: &[(String, &Section)]) {
    let (suffix, kind) = match counter.kind() {
        Kind::Total => ("_total", "counter"),
        Kind::Gauge => ("", "gauge"),
    };
    let name = format!("{}{suffix}", counter.name());
    family(text, &name, kind, counter.help());
    for (labels, section) in all {
        let _ = writeln!(text, "copyrpc_{name}{{{labels}}} {}", section.counter(counter));
    }
}

fn summary_family(text: &mut String, timing: Timing, all: &[(String, &Section)]) {
    let name = timing.name();
    family(text, name, "summary", timing.help());
    for (labels, section) in all {
        let histogram = section.histogram(timing);
        for (shown, quantile) in QUANTILES {
            let value = histogram.quantile(quantile);
            let _ = writeln!(text, "copyrpc_{name}{{{labels},quantile=\"{shown}\"}} {value}");
        }
        let _ = writeln!(text, "copyrpc_{name}_sum{{{labels}}} {}", histogram.sum());
        let _ = writeln!(text, "copyrpc_{name}_count{{{labels}}} {}", histogram.count());
    }
}

fn labels(snapshot: &Snapshot) -> String {
    format!("daemon=\"{}\",rank=\"{}\"", escaped(&snapshot.name), snapshot.rank)
}

/// As label values need it.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
