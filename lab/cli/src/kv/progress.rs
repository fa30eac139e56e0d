//! What can be seen while `bench kv` runs.

use std::time::Instant;

use indicatif::{ProgressBar, ProgressStyle};
use kv::{
    job::{Config, Live},
    result::{RunRecord, name_of},
};

use crate::output::say;

/// Lines that are written where no bar can be shown, over the whole session.
const LINES: u64 = 20;

/// A bar on standard error; a line now and then, if that is no terminal.
pub(super) struct Bar {
    bar: ProgressBar,
    runs: u64,
    /// When the calls of the current run began, and how many were answered then.
    since: Option<(Instant, u64)>,
}

impl Bar {
    /// There may be more rounds than these.
    pub(super) fn new(configs: &[Config], rounds: u32) -> Self {
        let template = "{bar:24} {pos}/{len} {elapsed}, {eta} left: {msg}";
        let style = ProgressStyle::with_template(template);
        let runs = configs.len() as u64 * u64::from(rounds);
        let bar = ProgressBar::new(runs)
            .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        Self { bar, runs, since: None }
    }

    pub(super) fn show(&mut self, config: &Config, round: u32, live: Live) {
        let state = match live {
            Live::Starting => {
                self.since = None;
                "starting".to_owned()
            }
            Live::Judging => "judging the history".to_owned(),
            Live::Running { answered } => self.rate(answered),
        };
        let place = if round == 0 { "trial".to_owned() } else { format!("round {round}") };
        self.bar.set_message(format!("{} {place}: {state}", name_of(config)));
    }

    fn rate(&mut self, answered: u64) -> String {
        // Clients count anew once their interval begins.
        let since = self.since.filter(|(_, before)| *before <= answered);
        let (since, before) =
            *self.since.insert(since.unwrap_or_else(|| (Instant::now(), answered)));
        let elapsed = since.elapsed().as_secs_f64();
        if elapsed < 0.05 {
            return "running".to_owned();
        }
        #[expect(clippy::cast_precision_loss, reason = "for people to look at")]
        let rate = (answered - before) as f64 / elapsed;
        format!("{:.0} k/s", rate / 1e3)
    }

    pub(super) fn done(&mut self, record: &RunRecord) {
        self.bar.inc(1);
        let done = self.bar.position();
        self.bar.set_length(self.runs.max(done));
        if self.bar.is_hidden() && self.runs > LINES && done.is_multiple_of(self.runs / LINES) {
            let left_s = self.bar.eta().as_secs();
            say(format_args!("{done} of {} intervals, {left_s} s left", self.runs));
        }
        let rate = record.measured.rate() / 1e3;
        let name = name_of(&record.config);
        self.bar.set_message(format!("{name} round {}: {rate:.0} k/s", record.run + 1));
    }

    pub(super) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_that_since_clients_counted_anew() {
        let mut bar = Bar::new(&[], 1);
        assert_eq!(bar.rate(1_000_000), "running");
        assert_eq!(bar.rate(5), "running", "fewer than before");
        assert_eq!(bar.since.map(|(_, before)| before), Some(5));
    }
}
