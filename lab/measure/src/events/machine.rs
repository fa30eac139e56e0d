//! Counters of the processor and of the kernel, by `perf_event_open(2)`.

use std::{io, time::Duration};

use perf_event::{
    Builder, Counter, ReadFormat,
    events::{Cache, CacheId, CacheOp, CacheResult, Hardware, Raw, Software},
};

use super::{CounterReading, EventCounter, EventSource, PerfEvent, raw::RawEvents};

/// The counters of this machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MachineEvents;

/// A counter that the kernel keeps.
#[derive(Debug)]
pub struct MachineCounter(Counter);

impl EventCounter for MachineCounter {
    fn read(&mut self) -> io::Result<CounterReading> {
        let data = self.0.read_full()?;
        let time = |time: Option<Duration>| time.unwrap_or_default();
        Ok(CounterReading {
            count: data.count(),
            enabled: time(data.time_enabled()),
            running: time(data.time_running()),
        })
    }
}

impl EventSource for MachineEvents {
    type Counter = MachineCounter;

    fn open(&self, event: PerfEvent) -> Result<MachineCounter, String> {
        let cache = |which, result| Cache { which, operation: CacheOp::READ, result };
        let l1 = CacheId::L1D;
        let llc = CacheId::LL;
        let mut builder = match event {
            PerfEvent::Cycles => Builder::new(Hardware::CPU_CYCLES),
            PerfEvent::Instructions => Builder::new(Hardware::INSTRUCTIONS),
            PerfEvent::L1Loads => Builder::new(cache(l1, CacheResult::ACCESS)),
            PerfEvent::L1Misses => Builder::new(cache(l1, CacheResult::MISS)),
            PerfEvent::LlcLoads => Builder::new(cache(llc, CacheResult::ACCESS)),
            PerfEvent::LlcMisses => Builder::new(cache(llc, CacheResult::MISS)),
            PerfEvent::CacheReferences => Builder::new(Hardware::CACHE_REFERENCES),
            PerfEvent::CacheMisses => Builder::new(Hardware::CACHE_MISSES),
            PerfEvent::ForeignLines => {
                Builder::new(Raw::new(RawEvents::of_machine()?.foreign_lines))
            }
            PerfEvent::FillBuffers => Builder::new(Raw::new(RawEvents::of_machine()?.fill_buffers)),
            PerfEvent::TaskClock => Builder::new(Software::TASK_CLOCK),
            PerfEvent::ContextSwitches => Builder::new(Software::CONTEXT_SWITCHES),
            PerfEvent::PageFaults => Builder::new(Software::PAGE_FAULTS),
        };
        // Faults of the kernel on behalf of a thread, and changes of the core, happen in the kernel.
        if matches!(event, PerfEvent::ContextSwitches | PerfEvent::PageFaults) {
            builder.include_kernel();
        }
        builder.inherit(true).enabled(true);
        builder.read_format(ReadFormat::TOTAL_TIME_ENABLED | ReadFormat::TOTAL_TIME_RUNNING);
        builder.build().map(MachineCounter).map_err(|error| match error.raw_os_error() {
            // ENOENT: the processor shows no such counter.
            Some(2) => "the processor, or the virtual machine, has no such counter".to_owned(),
            Some(1 | 13) => format!("{error}; see /proc/sys/kernel/perf_event_paranoid"),
            _ => error.to_string(),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::{hint, thread};

    use super::*;
    use crate::events::EventMeter;

    /// A meter of one event, which thus never takes turns with others.
    struct Only(PerfEvent);

    impl EventSource for Only {
        type Counter = MachineCounter;

        fn open(&self, event: PerfEvent) -> Result<MachineCounter, String> {
            if event == self.0 { MachineEvents.open(event) } else { Err(String::new()) }
        }
    }

    #[inline(never)]
    fn turns(count: u64) -> u64 {
        (0..count).fold(0, |sum, n| hint::black_box(sum ^ n))
    }

    /// A loop of ten times as many turns takes ten times the instructions, where the processor has counters.
    #[test]
    fn a_loop_of_known_length_takes_its_instructions() {
        const TURNS: u64 = 1_000_000;
        let mut meter = EventMeter::new(&Only(PerfEvent::Instructions));
        let mut instructions = |count| {
            meter.begin();
            hint::black_box(turns(count));
            meter.end().get(PerfEvent::Instructions)
        };
        let (Some(one), Some(ten)) = (instructions(TURNS), instructions(10 * TURNS)) else {
            let missing = meter.missing();
            assert!(missing.iter().any(|line| line.contains("instructions")), "{missing:?}");
            return;
        };
        let each = (ten - one) / (9 * TURNS) as f64;
        assert!((2.0..64.0).contains(&each), "{each} instructions per turn");
        assert!(((ten / one) - 10.0).abs() < 0.5, "{one} and {ten}");
    }

    /// Of every machine whose kernel counts for its users: so many pages that were never touched, by this thread and by
    /// one that it starts.
    #[test]
    fn pages_that_are_touched_are_counted_in_all_threads() {
        const PAGES: usize = 2000;
        fn touch() {
            let region = memory::Region::sparse_memfd("events", PAGES * 4096).unwrap();
            for page in 0..PAGES {
                region.span(page * 4096, 1).unwrap().copy_out(&[1]).unwrap();
            }
        }
        let mut meter = EventMeter::new(&Only(PerfEvent::PageFaults));
        meter.begin();
        touch();
        let Some(one) = meter.end().get(PerfEvent::PageFaults) else {
            assert!(meter.missing().iter().any(|line| line.contains("page faults")));
            return;
        };
        meter.begin();
        touch();
        thread::spawn(touch).join().unwrap();
        let two = meter.end().get(PerfEvent::PageFaults).unwrap();
        let pages = PAGES as f64;
        assert!((pages..1.2 * pages).contains(&one), "{one}");
        assert!((2.0 * pages..2.4 * pages).contains(&two), "{two}");
    }
}
