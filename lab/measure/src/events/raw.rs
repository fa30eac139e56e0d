//! Events that a processor counts under numbers of its own.
//!
//! Sources: Intel's event lists of Skylake to Sapphire Rapids; AMD's PPR of families 19h and 1Ah, and its corrections in
//! perf's lists of both.

use std::fs;

/// Raw events of a processor, by its maker, family and model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RawEvents {
    /// Of `PerfEvent::ForeignLines`: `MEM_LOAD_L3_HIT_RETIRED.XSNP_HITM` of Intel, since Ice Lake `XSNP_FWD` (0xD2, mask 4);
    /// `LsAnyFillsFromSys` of AMD (0x44: masks 2 same cluster, 4 and 16 other clusters).
    pub(super) foreign_lines: u64,
    /// Of `PerfEvent::FillBuffers`: `MEM_LOAD_RETIRED.FB_HIT` of Intel (0xD1, mask 0x40); `LsMabAlloc` of AMD (0x41: loads,
    /// stores and the prefetcher of the first cache, other bits on 1Ah).
    pub(super) fill_buffers: u64,
}

impl RawEvents {
    /// Of this processor.
    pub(super) fn of_machine() -> Result<Self, String> {
        let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        Self::of(&text).ok_or_else(|| "no event is known of this processor".to_owned())
    }

    fn of(cpuinfo: &str) -> Option<Self> {
        let field = |name: &str| {
            let mut lines = cpuinfo.lines();
            let line = lines.find(|line| line.split(':').next().unwrap_or("").trim() == name);
            line.and_then(|line| line.split_once(':')).map(|(_, value)| value.trim())
        };
        let number = |name: &str| field(name)?.parse::<u32>().ok();
        let (foreign_lines, fill_buffers) = match (field("vendor_id")?, number("cpu family")?) {
            ("GenuineIntel", 6) if number("model")? >= 0x4e => (0x04d2, 0x40d1),
            ("AuthenticAMD", 0x19) => (0x1644, 0x3f41),
            ("AuthenticAMD", 0x1a) => (0x1644, 0x0741),
            _ => return None,
        };
        Some(Self { foreign_lines, fill_buffers })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raw_events_are_those_of_the_processor() {
        let of = |vendor: &str, family: u32, model: u32| {
            let events = RawEvents::of(&format!(
                "processor\t: 0\nvendor_id\t: {vendor}\ncpu family\t: {family}\nmodel\t\t: {model}\nmodel name\t: x\n"
            ));
            events.map(|events| (events.foreign_lines, events.fill_buffers))
        };
        assert_eq!(of("GenuineIntel", 6, 143), Some((0x04d2, 0x40d1)));
        assert_eq!(of("AuthenticAMD", 25, 17), Some((0x1644, 0x3f41)));
        assert_eq!(of("AuthenticAMD", 26, 2), Some((0x1644, 0x0741)));
        assert_eq!(of("AuthenticAMD", 23, 49), None);
        assert_eq!(RawEvents::of(""), None);
    }
}
