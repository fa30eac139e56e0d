//! What a simulation of some seconds shows meanwhile.

use std::{
    cell::Cell,
    io::{IsTerminal as _, stderr},
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::output;

/// A simulation that is shorter shows nothing.
const SILENT: Duration = Duration::from_secs(2);
/// Two lines of a log are so far apart.
const LOG_EVERY: Duration = Duration::from_secs(10);

/// The time of a step that goes on is shown so often.
const TICK: Duration = Duration::from_secs(1);

/// Steps that are done, of how many: a bar on a terminal, and lines on standard error elsewhere.
pub(super) struct Progress {
    what: &'static str,
    bar: ProgressBar,
    started: Instant,
    told: Cell<Duration>,
    done: Cell<usize>,
}

impl Progress {
    /// Of steps that are called so.
    pub(super) fn new(what: &'static str) -> Self {
        let bar = ProgressBar::hidden();
        if let Ok(style) =
            ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}, {elapsed}, {eta} left")
        {
            bar.set_style(style);
        }
        Self {
            what,
            bar,
            started: Instant::now(),
            told: Cell::new(Duration::ZERO),
            done: Cell::new(0),
        }
    }

    /// Of steps that take seconds or minutes each: it is shown at once, and its time goes on within a step.
    pub(super) fn of_long_steps(what: &'static str, of: usize) -> Self {
        let progress = Self::new(what);
        if stderr().is_terminal() {
            progress.show(of);
            progress.bar.enable_steady_tick(TICK);
        } else {
            progress.tell(0, of);
        }
        progress
    }

    /// One step more of so many is done, each of which takes seconds or minutes.
    pub(super) fn long_step(&self, of: usize) {
        self.done.set(self.done.get() + 1);
        if stderr().is_terminal() {
            self.bar.inc(1);
        } else {
            self.tell(self.done.get(), of);
        }
    }

    fn show(&self, of: usize) {
        self.bar.set_draw_target(ProgressDrawTarget::stderr());
        self.bar.set_message(self.what);
        self.bar.set_length(of as u64);
    }

    fn tell(&self, done: usize, of: usize) {
        let since = self.started.elapsed();
        self.told.set(since);
        output::say(format_args!("{done} of {of} {} after {} s", self.what, since.as_secs()));
    }

    /// So many steps of so many are done.
    pub(super) fn at(&self, done: usize, of: usize) {
        let since = self.started.elapsed();
        if since < SILENT {
            return;
        }
        if stderr().is_terminal() {
            if self.bar.is_hidden() {
                self.show(of);
            }
            self.bar.set_position(done as u64);
        } else if since.saturating_sub(self.told.get()) >= LOG_EVERY {
            self.tell(done, of);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
