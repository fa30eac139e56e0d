//! Progress of a measurement that takes longer than some seconds.

use std::{
    io::{IsTerminal as _, Write as _, stderr},
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressStyle};

/// Time between two lines, where no bar can be shown.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// A bar on standard error if that is a terminal; a line every ten seconds elsewhere.
pub struct StepProgress {
    /// Name of the steps, in the plural.
    steps: &'static str,
    bar: ProgressBar,
    started: Instant,
    /// Time of the last line, since the start.
    last_line: Duration,
}

impl StepProgress {
    /// Progress over `of` steps.
    #[must_use]
    pub fn new(steps: &'static str, of: usize) -> Self {
        let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {elapsed} {msg}");
        let bar = ProgressBar::new(of as u64)
            .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Self { steps, bar, started: Instant::now(), last_line: Duration::ZERO }
    }

    /// Adds steps that are certain to come: further ones count as they come.
    pub fn expect(&self, more: usize) {
        self.bar.inc_length(more as u64);
    }

    /// The next step begins.
    pub fn step(&mut self, name: impl Into<String>) {
        let name = name.into();
        if self.bar.length() == Some(self.bar.position()) {
            // More than were expected at least.
            self.bar.inc_length(1);
        }
        self.bar.inc(1);
        if !stderr().is_terminal() {
            let elapsed = self.started.elapsed();
            if let Some(line) = self.line(&name, elapsed) {
                // A closed standard error is no reason to end a measurement.
                let _ = writeln!(stderr().lock(), "{line}");
            }
        }
        self.bar.set_message(name);
    }

    /// The line about this step, if one is due.
    fn line(&mut self, name: &str, elapsed: Duration) -> Option<String> {
        if elapsed.saturating_sub(self.last_line) < LINE_EVERY {
            return None;
        }
        self.last_line = elapsed;
        let Self { steps, bar, .. } = self;
        let of = bar.length().unwrap_or(0);
        Some(format!("{} of {of} {steps} after {} s: {name}", bar.position(), elapsed.as_secs()))
    }
}

impl Drop for StepProgress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_ten_seconds_apart() {
        let mut progress = StepProgress::new("samples", 4);
        progress.expect(1);
        progress.step("a");
        assert_eq!(progress.line("a", Duration::from_secs(9)), None);
        let line = progress.line("a", Duration::from_secs(11));
        assert_eq!(line.as_deref(), Some("1 of 5 samples after 11 s: a"));
        assert_eq!(progress.line("b", Duration::from_secs(20)), None);
        assert!(progress.line("b", Duration::from_secs(21)).is_some());
    }
}
