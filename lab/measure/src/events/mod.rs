//! Counts of the processor and of the kernel while something is measured: `perf_event_open(2)`.
//!
//! A [`EventMeter`] counts for the thread that makes it and for all threads that this one starts afterwards. Events that
//! a machine does not count are named with the reason; most virtual machines have no counters of the processor.

use std::{io, time::Duration};

use serde::{Deserialize, Serialize};

#[cfg(not(feature = "counters"))]
mod absent;
#[cfg(feature = "counters")]
mod machine;
#[cfg(feature = "counters")]
mod raw;

#[cfg(not(feature = "counters"))]
pub use absent::{MachineCounter, MachineEvents};
#[cfg(feature = "counters")]
pub use machine::{MachineCounter, MachineEvents};

/// Something that is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PerfEvent {
    /// Cycles of the core.
    Cycles,
    /// Instructions that were retired.
    Instructions,
    /// Loads from the L1 data cache.
    L1Loads,
    /// Those that missed it.
    L1Misses,
    /// Loads that came to the last cache.
    LlcLoads,
    /// Those that missed it.
    LlcMisses,
    /// References of caches, as the processor's maker defines them.
    CacheReferences,
    /// Misses of caches, as the processor's maker defines them.
    CacheMisses,
    /// Lines that came from a cache of another core: modified ones (HITM) on Intel, all from the same cluster or another
    /// one on AMD.
    ForeignLines,
    /// CPU time, in ns.
    TaskClock,
    /// Changes of the core to another thread.
    ContextSwitches,
    /// Pages that the kernel had to map.
    PageFaults,
    /// Loads whose line was on its way in a fill buffer on Intel, fill buffers that loads and stores took on AMD.
    FillBuffers,
}

impl PerfEvent {
    /// All of them, in the order of tables.
    pub const ALL: [Self; 13] = [
        Self::Cycles,
        Self::Instructions,
        Self::L1Loads,
        Self::L1Misses,
        Self::LlcLoads,
        Self::LlcMisses,
        Self::CacheReferences,
        Self::CacheMisses,
        Self::ForeignLines,
        Self::FillBuffers,
        Self::TaskClock,
        Self::ContextSwitches,
        Self::PageFaults,
    ];

    /// For tables and files.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Cycles => "cycles",
            Self::Instructions => "instructions",
            Self::L1Loads => "L1 loads",
            Self::L1Misses => "L1 misses",
            Self::LlcLoads => "LLC loads",
            Self::LlcMisses => "LLC misses",
            Self::CacheReferences => "cache refs",
            Self::CacheMisses => "cache misses",
            Self::ForeignLines => "foreign lines",
            Self::FillBuffers => "fill buffers",
            Self::TaskClock => "CPU ns",
            Self::ContextSwitches => "switches",
            Self::PageFaults => "page faults",
        }
    }
}

/// How often each event happened; `None` where it was not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "Vec<Option<f64>>")]
pub struct EventCounts([Option<f64>; PerfEvent::ALL.len()]);

/// Files of earlier builds have fewer events.
impl From<Vec<Option<f64>>> for EventCounts {
    fn from(read: Vec<Option<f64>>) -> Self {
        let mut counts = Self::default();
        counts.0.iter_mut().zip(read).for_each(|(count, read)| *count = read);
        counts
    }
}

impl EventCounts {
    /// Of one event.
    #[must_use]
    pub fn get(&self, event: PerfEvent) -> Option<f64> {
        self.0[event as usize]
    }

    /// Instructions per cycle.
    #[must_use]
    pub fn ipc(&self) -> Option<f64> {
        let cycles = self.get(PerfEvent::Cycles).filter(|cycles| *cycles > 0.0)?;
        Some(self.get(PerfEvent::Instructions)? / cycles)
    }

    /// Whether nothing was counted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(Option::is_none)
    }

    /// Adds what happened elsewhere, or at another time.
    pub fn add(&mut self, other: &Self) {
        for (sum, more) in self.0.iter_mut().zip(other.0) {
            *sum = match (*sum, more) {
                (Some(sum), Some(more)) => Some(sum + more),
                (one, other) => one.or(other),
            };
        }
    }

    /// Per operation, of so many.
    #[must_use]
    pub fn per(&self, operations: f64) -> Self {
        Self(self.0.map(|count| count.map(|count| count / operations)))
    }
}

/// The state of a counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CounterReading {
    /// Events while it ran.
    pub count: u64,
    /// Time for which it was to count.
    pub enabled: Duration,
    /// Time for which it did: a processor has fewer counters than there are events, and they take turns.
    pub running: Duration,
}

/// A counter that was opened and counts.
pub trait EventCounter {
    /// So far.
    ///
    /// # Errors
    ///
    /// Of the kernel.
    fn read(&mut self) -> io::Result<CounterReading>;
}

/// Opens counters.
pub trait EventSource {
    /// The counter that is opened.
    type Counter: EventCounter;

    /// A counter of the calling thread, and of those that it starts.
    ///
    /// # Errors
    ///
    /// Why it is not available here.
    fn open(&self, event: PerfEvent) -> Result<Self::Counter, String>;
}

/// Counts events between two moments.
#[derive(Debug)]
pub struct EventMeter<C = MachineCounter> {
    counters: Vec<(PerfEvent, C, CounterReading)>,
    missing: Vec<(PerfEvent, String)>,
}

impl EventMeter {
    /// Of this machine.
    #[must_use]
    pub fn of_machine() -> Self {
        Self::new(&MachineEvents)
    }
}

impl<C: EventCounter> EventMeter<C> {
    /// Opens all that `source` has.
    #[must_use]
    pub fn new(source: &impl EventSource<Counter = C>) -> Self {
        let mut counters = Vec::new();
        let mut missing = Vec::new();
        for event in PerfEvent::ALL {
            match source.open(event) {
                Ok(counter) => counters.push((event, counter, CounterReading::default())),
                Err(reason) => missing.push((event, reason)),
            }
        }
        Self { counters, missing }
    }

    /// From here on.
    pub fn begin(&mut self) {
        for (_, counter, begin) in &mut self.counters {
            *begin = counter.read().unwrap_or_default();
        }
    }

    /// Since [`begin`](Self::begin). The count of a counter that took turns with others is scaled to the whole
    /// time; one that never ran has none.
    pub fn end(&mut self) -> EventCounts {
        let mut counts = EventCounts::default();
        for (event, counter, begin) in &mut self.counters {
            let Ok(end) = counter.read() else { continue };
            let count = end.count.saturating_sub(begin.count) as f64;
            let enabled = end.enabled.saturating_sub(begin.enabled);
            let running = end.running.saturating_sub(begin.running);
            let share = running.as_secs_f64() / enabled.as_secs_f64();
            let count = if running >= enabled { count } else { count / share };
            counts.0[*event as usize] = Some(count).filter(|count| count.is_finite());
        }
        counts
    }

    /// Events that this machine does not count: a sentence for each reason.
    #[must_use]
    pub fn missing(&self) -> Vec<String> {
        let mut reasons = Vec::<(&str, Vec<&str>)>::new();
        for (event, reason) in &self.missing {
            match reasons.iter_mut().find(|(known, _)| known == reason) {
                Some((_, events)) => events.push(event.name()),
                None => reasons.push((reason, vec![event.name()])),
            }
        }
        let sentence = |(reason, events): (&str, Vec<&str>)| {
            format!("not available here: {}: {reason}", events.join(", "))
        };
        reasons.into_iter().map(sentence).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, rc::Rc};

    use super::*;

    /// Counts what its owner says.
    #[derive(Clone, Default)]
    struct Fake {
        reading: Rc<Cell<CounterReading>>,
    }

    impl EventCounter for Fake {
        fn read(&mut self) -> io::Result<CounterReading> {
            Ok(self.reading.get())
        }
    }

    impl EventSource for Fake {
        type Counter = Self;

        fn open(&self, event: PerfEvent) -> Result<Self, String> {
            match event {
                PerfEvent::Cycles | PerfEvent::Instructions => Ok(self.clone()),
                PerfEvent::ForeignLines | PerfEvent::FillBuffers => Err("nobody knows it".into()),
                _ => Err("there is none".into()),
            }
        }
    }

    fn reading(count: u64, enabled_ms: u64, running_ms: u64) -> CounterReading {
        let [enabled, running] = [enabled_ms, running_ms].map(Duration::from_millis);
        CounterReading { count, enabled, running }
    }

    #[test]
    fn counts_are_differences_and_make_up_for_turns() {
        let fake = Fake::default();
        let mut meter = EventMeter::new(&fake);
        fake.reading.set(reading(1000, 10, 10));
        meter.begin();
        fake.reading.set(reading(3000, 20, 20));
        let counts = meter.end();
        assert_eq!(counts.get(PerfEvent::Cycles), Some(2000.0));
        assert_eq!((counts.ipc(), counts.get(PerfEvent::L1Loads)), (Some(1.0), None));
        assert_eq!(counts.per(4.0).get(PerfEvent::Instructions), Some(500.0));
        // It ran for a quarter of the time.
        fake.reading.set(reading(1500, 30, 12));
        meter.begin();
        fake.reading.set(reading(1700, 50, 17));
        assert_eq!(meter.end().get(PerfEvent::Cycles), Some(800.0));
        // It never ran.
        fake.reading.set(reading(1700, 90, 17));
        meter.begin();
        fake.reading.set(reading(1700, 99, 17));
        assert_eq!(meter.end().get(PerfEvent::Cycles), None);
        let mut sum = counts;
        sum.add(&counts);
        assert_eq!(sum.get(PerfEvent::Cycles), Some(4000.0));
    }

    #[test]
    fn counts_of_files_with_fewer_events_are_read() {
        let counts = serde_json::from_str::<EventCounts>("[2.0,3.0]").unwrap();
        assert_eq!((counts.ipc(), counts.get(PerfEvent::FillBuffers)), (Some(1.5), None));
        let text = serde_json::to_string(&counts).unwrap();
        assert_eq!(serde_json::from_str::<EventCounts>(&text).unwrap(), counts);
    }

    #[test]
    fn what_is_not_counted_is_named_with_the_reason() {
        let missing = EventMeter::new(&Fake::default()).missing();
        assert_eq!(missing.len(), 2);
        assert!(missing[0].starts_with("not available here: L1 loads, L1 misses, LLC loads"));
        assert!(missing[0].ends_with("page faults: there is none"), "{missing:?}");
        assert_eq!(missing[1], "not available here: foreign lines, fill buffers: nobody knows it");
    }
}
