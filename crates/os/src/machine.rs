//! The machine, as people name it.

use std::fs;

/// Model name of the first CPU, or "unknown".
#[must_use]
pub fn cpu_model() -> String {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    cpu_model_in(&cpuinfo).unwrap_or("unknown").to_owned()
}

/// The first of what various architectures call it.
fn cpu_model_in(cpuinfo: &str) -> Option<&str> {
    cpuinfo
        .lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(key, _)| matches!(key.trim(), "model name" | "cpu" | "CPU part"))
        .map(|(_, value)| value.trim())
}

/// Release of the running kernel, or "unknown".
#[must_use]
pub fn kernel() -> String {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    if release.trim().is_empty() { "unknown".to_owned() } else { release.trim().to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_is_found_among_the_other_lines() {
        let cpuinfo = "processor\t: 0\nvendor_id\t: X\nmodel name\t: Fast CPU @ 3 GHz\n";
        assert_eq!(cpu_model_in(cpuinfo), Some("Fast CPU @ 3 GHz"));
        assert_eq!(cpu_model_in("nothing here"), None);
    }
}
