//! Which raw event of a processor counts lines that came from caches of other cores.

use std::fs;

/// The raw event of `PerfEvent::ForeignLines` of this processor. Sources: Intel's event lists of Skylake to Sapphire
/// Rapids (`MEM_LOAD_L3_HIT_RETIRED.XSNP_HITM`, since Ice Lake `XSNP_FWD`: 0xD2, mask 4); AMD's PPR of families 19h and
/// 1Ah (`LsAnyFillsFromSys`, 0x44: masks 2 same cluster, 4 and 16 other clusters).
pub(super) fn foreign_lines() -> Result<u64, String> {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    raw_foreign_lines(&text).ok_or_else(|| "no event is known of this processor".to_owned())
}

fn raw_foreign_lines(cpuinfo: &str) -> Option<u64> {
    let field = |name: &str| {
        let line = cpuinfo.lines().find(|line| line.split(':').next().unwrap_or("").trim() == name);
        line.and_then(|line| line.split_once(':')).map(|(_, value)| value.trim())
    };
    let number = |name: &str| field(name)?.parse::<u32>().ok();
    match (field("vendor_id")?, number("cpu family")?) {
        ("GenuineIntel", 6) if number("model")? >= 0x4e => Some(0x04d2),
        ("AuthenticAMD", 0x19 | 0x1a) => Some(0x1644),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_event_of_foreign_lines_is_that_of_the_processor() {
        let of = |vendor: &str, family: u32, model: u32| {
            raw_foreign_lines(&format!(
                "processor\t: 0\nvendor_id\t: {vendor}\ncpu family\t: {family}\nmodel\t\t: {model}\nmodel name\t: x\n"
            ))
        };
        assert_eq!(of("GenuineIntel", 6, 143), Some(0x04d2));
        assert_eq!(of("AuthenticAMD", 25, 17), Some(0x1644));
        assert_eq!(of("AuthenticAMD", 23, 49), None);
        assert_eq!(raw_foreign_lines(""), None);
    }
}
