//! What a simulation of some seconds shows meanwhile.

use std::{
    io::{IsTerminal as _, stderr},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use anyhow::Context as _;
use command::table::folded;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

use crate::output;

/// A simulation that is shorter shows nothing.
const SILENT: Duration = Duration::from_secs(2);
/// Two lines of a log are so far apart.
const LOG_EVERY: Duration = Duration::from_secs(10);
/// A bar on a terminal is drawn so often.
const TICK: Duration = Duration::from_millis(200);

/// Steps of a phase that are done, of how many (0: nobody knows).
#[derive(Clone, Copy, Debug)]
struct Steps {
    what: &'static str,
    done: u64,
    of: u64,
}

impl Steps {
    /// A line of a log.
    fn line(self, since: Duration) -> String {
        let Self { what, done, of } = self;
        let seconds = since.as_secs();
        match (done, of) {
            (0, 0) => format!("{what}: {seconds} s so far"),
            (_, 0) => format!("{done} {what} after {seconds} s"),
            _ => format!("{done} of {of} {what} after {seconds} s"),
        }
    }
}

/// What is shown now, and whether the command ends.
#[derive(Debug)]
struct State {
    /// `None`: nothing, because results are printed.
    steps: Option<Steps>,
    is_over: bool,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    ended: Condvar,
    bar: ProgressBar,
    started: Instant,
    /// After so long something is shown.
    silent: Duration,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Shows steps, whether or not one has ended, until the command is over.
    fn show(&self, is_terminal: bool, mut tell: impl FnMut(String)) {
        let mut due = self.silent;
        let mut state = self.lock();
        while !state.is_over {
            let since = self.started.elapsed();
            if let Some(steps) = state.steps.filter(|_| since >= due) {
                if is_terminal {
                    self.draw(steps);
                } else {
                    tell(steps.line(since));
                    due = since + LOG_EVERY;
                }
            }
            let waited = self.ended.wait_timeout(state, TICK);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn draw(&self, Steps { what, done, of }: Steps) {
        if self.bar.is_hidden() {
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
        self.bar.set_message(what);
        self.bar.set_length(of);
        self.bar.set_position(done);
        self.bar.tick();
    }
}

/// The progress of a command, a bar on a terminal and lines on standard error elsewhere; and the way to print its
/// results.
#[derive(Debug)]
pub(super) struct Progress {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Progress {
    /// Of a command whose first phase is called so.
    pub(super) fn new(what: &'static str) -> Self {
        Self::silent_for(SILENT, what, output::say)
    }

    fn silent_for(
        silent: Duration,
        what: &'static str,
        tell: impl FnMut(String) + Send + 'static,
    ) -> Self {
        let bar = ProgressBar::hidden();
        if let Ok(style) =
            ProgressStyle::with_template("{bar:30} {pos}/{len} {msg}, {elapsed}, {eta} left")
        {
            bar.set_style(style);
        }
        let state = State { steps: Some(Steps { what, done: 0, of: 0 }), is_over: false };
        let shared = Arc::new(Shared {
            state: Mutex::new(state),
            ended: Condvar::new(),
            bar,
            started: Instant::now(),
            silent,
        });
        let shows = Arc::clone(&shared);
        let is_terminal = stderr().is_terminal();
        let thread = thread::Builder::new().name("progress".to_owned());
        // Without a thread nothing is shown, and the command does what it was asked for.
        let thread = thread.spawn(move || shows.show(is_terminal, tell)).ok();
        Self { shared, thread }
    }

    /// Another phase begins, whose steps are called so.
    pub(super) fn begin(&self, what: &'static str) {
        self.shared.lock().steps = Some(Steps { what, done: 0, of: 0 });
        self.shared.bar.reset_eta();
    }

    /// So many steps of so many are done; of nobody knows how many, if that is 0.
    pub(super) fn at(&self, done: usize, of: usize) {
        self.at_seed(done as u64, of as u64);
    }

    /// The same, of seeds.
    pub(super) fn at_seed(&self, done: u64, of: u64) {
        if let Some(steps) = &mut self.shared.lock().steps {
            (steps.done, steps.of) = (done, of);
        }
    }

    /// One step more is done.
    pub(super) fn step(&self) {
        if let Some(steps) = &mut self.shared.lock().steps {
            steps.done += 1;
        }
    }

    fn end(&self) {
        self.shared.lock().steps = None;
        self.shared.bar.finish_and_clear();
    }

    /// Prints results. Lines of sentences are folded; tables fit already.
    pub(super) fn print(&self, text: &str) -> anyhow::Result<()> {
        self.end();
        output::print(&folded(text))
    }

    /// Prints one JSON object per row.
    pub(super) fn print_json<T: Serialize>(&self, rows: &[T]) -> anyhow::Result<()> {
        let lines: Result<Vec<_>, _> = rows.iter().map(serde_json::to_string).collect();
        self.end();
        output::print(&(lines.context("cannot write JSON")?.join("\n") + "\n"))
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.shared.lock().is_over = true;
        self.shared.ended.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        self.shared.bar.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_step_that_does_not_end_is_told_of() {
        let (sender, told) = mpsc::channel();
        let progress = Progress::silent_for(Duration::ZERO, "starts", move |line| {
            let _ = sender.send(line);
        });
        let line = told.recv_timeout(LONG).expect("a line, although no step has ended");
        assert_eq!(line, "starts: 0 s so far");
        drop(progress);
    }

    #[test]
    fn a_command_that_ends_soon_tells_nothing_and_ends_at_once() {
        let (sender, told) = mpsc::channel();
        let progress = Progress::silent_for(LONG * 60, "starts", move |line| {
            let _ = sender.send(line);
        });
        progress.at(1, 2);
        drop(progress);
        assert!(told.try_recv().is_err(), "nothing was told");
    }

    #[test]
    fn lines_say_as_much_as_is_known() {
        let line = |done, of| Steps { what: "seeds", done, of }.line(Duration::from_secs(3));
        assert_eq!(line(0, 0), "seeds: 3 s so far");
        assert_eq!(line(4, 0), "4 seeds after 3 s");
        assert_eq!(line(4, 9), "4 of 9 seeds after 3 s");
    }
}
