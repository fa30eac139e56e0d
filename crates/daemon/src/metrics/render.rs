//! Counters in the text format of Prometheus (exposition format 0.0.4), and as OpenMetrics 1.0.

use core::fmt::Write as _;

use client::{PeerInfo, ServiceInfo, Status};

use crate::metrics::{
    counters::{Counter, CounterKind, Timing},
    reader::{DaemonState, Section, Snapshot},
};

/// Bits of the largest values of the buckets that are shown of a time, in nanoseconds: 255 ns to 69 s. They are the same
/// for all daemons, so that their histograms can be added.
const TIME_BITS: core::ops::RangeInclusive<u32> = 8..=36;
/// As [`TIME_BITS`], of a number: 1 to 16383.
const COUNT_BITS: core::ops::RangeInclusive<u32> = 1..=14;

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
        let is_up = u8::from(matches!(snapshot.state, DaemonState::Alive(_)));
        let labels = labels(snapshot);
        let _ = writeln!(text, "copyrpc_up{{{labels}}} {is_up}");
    }
    for &counter in Counter::ALL {
        counter_family(&mut text, counter, &all);
    }
    for &timing in Timing::ALL {
        histogram_family(&mut text, timing, &all);
    }
    text
}

/// The services, peers and answers of a daemon, which only the daemon itself knows.
#[derive(Clone, Debug, Default)]
pub struct Told {
    /// Its services.
    pub services: Vec<ServiceInfo>,
    /// The other ranks.
    pub peers: Vec<PeerInfo>,
    /// The number of its answers to clients, by status.
    pub answers: Vec<(Status, u64)>,
}

/// The same as OpenMetrics 1.0, with what the daemons `told` by service, by peer and by status.
#[must_use]
pub fn openmetrics(snapshots: &[(Snapshot, Option<Told>)]) -> String {
    let (all, told): (Vec<_>, Vec<_>) = snapshots.iter().cloned().unzip();
    let mut text = String::new();
    // A family of counters is called without the end of its samples.
    for line in prometheus(&all).lines() {
        let is_counter = line.starts_with('#') && line.contains("_total ");
        let line = if is_counter { line.replacen("_total ", " ", 1) } else { line.to_owned() };
        let _ = writeln!(text, "{line}");
    }
    let told: Vec<_> = all.iter().map(labels).zip(told.iter().map(Option::as_ref)).collect();
    let of_services = |value: fn(&ServiceInfo) -> u64| {
        move |told: &Told| {
            let sample = |it: &ServiceInfo| {
                let name = escaped(&it.name);
                let lent = if it.lends_memory { ",memory=\"lent\"" } else { "" };
                (format!("service=\"{}\",name=\"{name}\"{lent}", it.service), value(it))
            };
            told.services.iter().map(sample).collect()
        }
    };
    let of_peers = |value: fn(&PeerInfo) -> u64| {
        move |told: &Told| {
            let sample = |it: &PeerInfo| (format!("peer=\"{}\"", it.rank), value(it));
            told.peers.iter().map(sample).collect()
        }
    };
    let of_answers = |told: &Told| {
        let sample = |(status, count): &(Status, u64)| (format!("status=\"{status:?}\""), *count);
        told.answers.iter().map(sample).collect()
    };
    let mut family = |name, help, samples: &dyn Fn(&Told) -> Samples| {
        labelled(&mut text, name, help, &told, samples)
    };
    family("service_requests_total", "Requests for a service.", &of_services(|it| it.requests));
    family(
        "service_processes",
        "Processes that offer a service.",
        &of_services(|it| it.providers.into()),
    );
    family(
        "service_waiting",
        "Requests that wait for a process.",
        &of_services(|it| it.waiting.into()),
    );
    family("service_given", "Requests that processes have.", &of_services(|it| it.given.into()));
    family("peer_up", "Whether a peer is up.", &of_peers(|it| it.is_up.into()));
    family("peer_calls_total", "Calls to a peer.", &of_peers(|it| it.calls));
    family(
        "peer_unanswered_total",
        "Calls that ended without its answer.",
        &of_peers(|it| it.unanswered),
    );
    family("peer_requests_total", "Requests of a peer.", &of_peers(|it| it.requests));
    family(
        "peer_in_flight",
        "Calls that a peer has not answered.",
        &of_peers(|it| it.in_flight.into()),
    );
    family(
        "peer_waiting",
        "Calls that wait for room at a peer.",
        &of_peers(|it| it.waiting.into()),
    );
    family("answers_total", "Answers to clients by status.", &of_answers);
    text.push_str("# EOF\n");
    text
}

/// Labels and values.
type Samples = Vec<(String, u64)>;

/// A family with labels of its own beside those of the daemon.
fn labelled(
    text: &mut String,
    name: &str,
    help: &str,
    told: &[(String, Option<&Told>)],
    samples: &dyn Fn(&Told) -> Samples,
) {
    let (family_name, kind) = match name.strip_suffix("_total") {
        Some(stem) => (stem, "counter"),
        None => (name, "gauge"),
    };
    family(text, family_name, kind, help);
    for (labels, told) in told {
        for (own, value) in told.map(samples).unwrap_or_default() {
            let _ = writeln!(text, "copyrpc_{name}{{{labels},{own}}} {value}");
        }
    }
}

/// The counters of each thread, and its labels.
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
        CounterKind::Total => ("_total", "counter"),
        CounterKind::Gauge => ("", "gauge"),
    };
    let name = format!("{}{suffix}", counter.name());
    family(text, &name, kind, counter.help());
    for (labels, section) in all {
        let _ = writeln!(text, "copyrpc_{name}{{{labels}}} {}", section.counter(counter));
    }
}

/// A distribution in base units, as a histogram: buckets, sums and counts of several daemons can be added.
fn histogram_family(text: &mut String, timing: Timing, all: &[(String, &Section)]) {
    let name = match timing.name().strip_suffix("_ns") {
        Some(stem) => format!("{stem}_seconds"),
        None => timing.name().to_owned(),
    };
    let bits = if timing.is_ns() { TIME_BITS } else { COUNT_BITS };
    family(text, &name, "histogram", timing.help());
    for (labels, section) in all {
        let histogram = section.histogram(timing);
        let mut filled = histogram.filled().peekable();
        let mut count = 0_u64;
        for most in bits.clone().map(|bits| (1_u64 << bits) - 1) {
            // A power of two is the first value of a bucket.
            while let Some((_, more)) = filled.next_if(|(largest, _)| *largest <= most) {
                count = count.saturating_add(more);
            }
            let most = base_unit(timing, most);
            let _ = writeln!(text, "copyrpc_{name}_bucket{{{labels},le=\"{most}\"}} {count}");
        }
        let (count, sum) = (histogram.count(), base_unit(timing, histogram.sum()));
        let _ = writeln!(text, "copyrpc_{name}_bucket{{{labels},le=\"+Inf\"}} {count}");
        let _ = writeln!(text, "copyrpc_{name}_sum{{{labels}}} {sum}");
        let _ = writeln!(text, "copyrpc_{name}_count{{{labels}}} {count}");
    }
}

/// A value in seconds, if it is a time, and as it is otherwise. Exact: the digits are those of the integer.
fn base_unit(timing: Timing, value: u64) -> String {
    const SECOND_NS: u64 = 1_000_000_000;
    if timing.is_ns() {
        format!("{}.{:09}", value / SECOND_NS, value % SECOND_NS)
    } else {
        // OpenMetrics writes the bounds of buckets as floating-point numbers.
        format!("{value}.0")
    }
}

fn labels(snapshot: &Snapshot) -> String {
    format!("daemon=\"{}\",rank=\"{}\"", escaped(&snapshot.name), snapshot.rank)
}

/// As label values need it.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
