//! Samples of one peer, and how they are shown beside those of a reference.

use copyrpc_bench::{regime::Regime, stats::median};

/// Per round, what the probes around the sample said and the value; none if they disagreed.
pub type Samples = Vec<Option<(Regime, f64)>>;

/// Prints the heading of a table whose ratios are to `reference`.
pub fn heading(title: &str, reference: &str) {
    let near = format!("near: median (min-max; n) x {reference}");
    println!("\n{title}\n{:<26} {near:>46} {:>46}", "", "far");
}

/// Prints one line.
pub fn row(name: &str, own: &Samples, reference: &Samples) {
    let column = |regime| column(own, reference, regime);
    println!("{name:<26} {:>46} {:>46}", column(Regime::Near), column(Regime::Far));
}

/// Median with spread, and the median ratio to the same round's sample of the reference.
fn column(own: &Samples, reference: &Samples, regime: Regime) -> String {
    let of = |sample: &Option<(Regime, f64)>| sample.filter(|(r, _)| *r == regime).map(|(_, v)| v);
    let mut values: Vec<f64> = own.iter().filter_map(of).collect();
    if values.is_empty() {
        return "-".into();
    }
    let pairs = own.iter().zip(reference);
    let mut ratios: Vec<f64> =
        pairs.filter_map(|(own, reference)| Some(of(own)? / of(reference)?)).collect();
    let middle = median(&mut values);
    let (low, high) = (values[0], values[values.len() - 1]);
    let ratio = if ratios.is_empty() { "-".into() } else { format!("{:.2}x", median(&mut ratios)) };
    format!("{middle:.1} ({low:.1}-{high:.1}; {}) {ratio}", values.len())
}
