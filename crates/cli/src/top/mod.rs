//! `copyrpc top`: the daemons of this machine, live, from their counters alone.

use std::{
    io::IsTerminal as _,
    time::{Duration, Instant},
};

use daemon::metrics::{Counter, DaemonState, Section, Snapshot};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};

use crate::{args::TopArgs, stat};

mod view;

/// `copyrpc top`.
pub(crate) fn run(args: &TopArgs) -> anyhow::Result<()> {
    anyhow::ensure!(
        std::io::stdout().is_terminal(),
        "top needs a terminal; `copyrpc stat` prints the same to a file"
    );
    let settings = args.settings.load()?;
    let interval = Duration::from_nanos(args.interval_ns()?);
    let read = || stat::read_all(&settings, &args.only);
    let mut model = Model::new(read()?);
    ratatui::try_init().map_err(anyhow::Error::from).and_then(|mut terminal| {
        let done = watch(&mut terminal, &mut model, &read, interval);
        ratatui::restore();
        done
    })
}

fn watch(
    terminal: &mut ratatui::DefaultTerminal,
    model: &mut Model,
    read: &dyn Fn() -> anyhow::Result<Vec<Snapshot>>,
    interval: Duration,
) -> anyhow::Result<()> {
    let mut refreshed = Instant::now();
    loop {
        terminal.draw(|frame| view::draw(frame, model))?;
        let left = interval.saturating_sub(refreshed.elapsed());
        if event::poll(left)? {
            match event::read()? {
                Event::Key(key) if key.kind == KeyEventKind::Press => {
                    let is_interrupt =
                        key.code == KeyCode::Char('c') && key.modifiers == KeyModifiers::CONTROL;
                    match key.code {
                        _ if is_interrupt => return Ok(()),
                        KeyCode::Char('q') | KeyCode::Esc => return Ok(()),
                        KeyCode::Down | KeyCode::Char('j') => model.choose(1),
                        KeyCode::Up | KeyCode::Char('k') => model.choose(-1),
                        _ => {}
                    }
                }
                _ => {}
            }
        } else {
            model.refresh(read()?, refreshed.elapsed());
            refreshed = Instant::now();
        }
    }
}

/// What is shown: two readings, the time between them, and which daemon is selected.
pub(crate) struct Model {
    before: Vec<Snapshot>,
    now: Vec<Snapshot>,
    /// In seconds; 0 before the second reading.
    elapsed_s: f64,
    selected: usize,
    /// Somebody chose what is selected; before, the busiest daemon that lives is.
    is_chosen: bool,
}

impl Model {
    fn new(now: Vec<Snapshot>) -> Self {
        let mut model =
            Self { before: Vec::new(), now, elapsed_s: 0.0, selected: 0, is_chosen: false };
        model.select_busiest();
        model
    }

    /// Selects the daemon that lives and took the most requests since the last reading, or ever.
    fn select_busiest(&mut self) {
        let requests = |section: &Section| {
            section.counter(Counter::RequestsIpc) + section.counter(Counter::Incoming)
        };
        let work = |snapshot: &Snapshot| {
            let total = snapshot.total();
            let is_same =
                |then: &&Snapshot| (&then.name, then.process) == (&snapshot.name, snapshot.process);
            let earlier = self.before.iter().find(is_same);
            let recent = earlier.map_or(0, |then| requests(&total.since(&then.total())));
            (matches!(snapshot.state, DaemonState::Alive(_)), recent, requests(&total))
        };
        // The first one, of those that have done as much.
        let busiest = self.now.iter().enumerate().rev().max_by_key(|(_, snapshot)| work(snapshot));
        self.selected = busiest.map_or(0, |(place, _)| place);
    }

    fn refresh(&mut self, now: Vec<Snapshot>, elapsed: Duration) {
        self.before = std::mem::replace(&mut self.now, now);
        self.elapsed_s = elapsed.as_secs_f64();
        if self.is_chosen {
            self.select(0);
        } else {
            self.select_busiest();
        }
    }

    /// Somebody moves the selection.
    fn choose(&mut self, by: isize) {
        self.is_chosen = true;
        self.select(by);
    }

    /// Moves the selection, as far as there are daemons.
    fn select(&mut self, by: isize) {
        let last = self.now.len().saturating_sub(1);
        self.selected = self.selected.saturating_add_signed(by).min(last);
    }
}
