//! How it looks.
//!
//! ```text
//! daemon  rank  state    pid    clients  peers  req/s  remote/s  in flight  call p50  p99
//!   thread 0                                                     of a daemon that has several
//! ────────────────────────────────────────────────────────────────────────────────────────
//! in flight over time ▁▂▅▇
//! phase        p50 p90 p99      batching        p50 p90 p99
//! ```

use daemon::metrics::{Counter, DaemonState, Histogram, Section, Snapshot, Timing};
use ratatui::{
    Frame,
    layout::{Constraint, Layout, Rect},
    style::{Color, Modifier, Style},
    text::Line,
    widgets::{Block, Cell, Paragraph, Row, Sparkline, Table},
};

use crate::top::Model;

const PHASES: [Timing; 6] = [
    Timing::Loop,
    Timing::PhaseClients,
    Timing::PhaseNic,
    Timing::PhasePost,
    Timing::PhaseWaiting,
    Timing::PhaseControl,
];
const TRAVEL: [Timing; 8] = [
    Timing::Call,
    Timing::CallToFlush,
    Timing::FlushToCredit,
    Timing::Rtt,
    Timing::Turnaround,
    Timing::BatchMessages,
    Timing::CompletionsPerPoll,
    Timing::RequestsPerLoop,
];

/// A column of the list of daemons, and its least width.
#[derive(Clone, Copy)]
struct Column {
    name: &'static str,
    width: u16,
}

const fn column(name: &'static str, width: u16) -> Column {
    Column { name, width }
}

const COLUMNS: [Column; 11] = [
    column("daemon", 12),
    column("rank", 4),
    column("state", 9),
    column("pid", 8),
    column("clients", 7),
    column("peers", 7),
    column("req/s", 8),
    column("remote/s", 8),
    column("in flight", 9),
    column("p50", 7),
    column("p99", 7),
];

/// Columns that are left out where there is little room, in this order: pid, remote/s, peers, state, clients.
const COLUMNS_DROPPED: [usize; 5] = [3, 7, 5, 2, 4];

/// Rows of the calls in flight, and least rows of the distributions.
const FLIGHT_ROWS: u16 = 6;
const DETAIL_ROWS: u16 = 11;

/// Rows of the list, which wants `list`, and of the parts below it, of so many: the list comes first, and a part
/// that does not fit is not shown.
fn heights(list: u16, height: u16) -> (u16, [u16; 2]) {
    let list = list.min(height.saturating_sub(1));
    let left = height.saturating_sub(1 + list);
    let parts = match left {
        _ if left >= FLIGHT_ROWS + DETAIL_ROWS => [FLIGHT_ROWS, left - FLIGHT_ROWS],
        // How long calls take tells more than how many there are, which the list tells, too.
        _ if left >= DETAIL_ROWS => [0, left],
        _ if left >= FLIGHT_ROWS => [left, 0],
        _ => [0, 0],
    };
    (list, parts)
}

/// Draws everything.
pub(super) fn draw(frame: &mut Frame<'_>, model: &Model) {
    let lines: usize = model.now.iter().map(|snapshot| 1 + threads(snapshot).len()).sum();
    let rows = u16::try_from(lines).unwrap_or(u16::MAX).saturating_add(3);
    let (rows, [flight, detail]) = heights(rows.max(4), frame.area().height);
    let [daemons, flight, detail, keys] = Layout::vertical([
        Constraint::Length(rows),
        Constraint::Length(flight),
        Constraint::Length(detail),
        Constraint::Length(1),
    ])
    .areas(frame.area());
    draw_daemons(frame, daemons, model);
    if let Some(snapshot) = model.now.get(model.selected) {
        let total = snapshot.total();
        let recent = recent(model, snapshot, &total);
        draw_flight(frame, flight, snapshot, &total);
        let [left, right] =
            Layout::horizontal([Constraint::Percentage(50), Constraint::Percentage(50)])
                .areas(detail);
        draw_distributions(frame, left, " a turn of the loop ", &PHASES, &recent);
        draw_distributions(frame, right, " a call on its way ", &TRAVEL, &recent);
    }
    let help = "q quits   up, down: another daemon   distributions: of the last interval";
    frame.render_widget(Paragraph::new(Line::from(help).style(Color::DarkGray)), keys);
}

/// What came since the last reading; everything, before the second.
fn recent(model: &Model, snapshot: &Snapshot, total: &Section) -> Section {
    let earlier = model.before.iter().find(|earlier| earlier.process == snapshot.process);
    earlier.map_or_else(|| total.clone(), |earlier| total.since(&earlier.total()))
}

/// The threads of a daemon, if it has more than one.
fn threads(snapshot: &Snapshot) -> &[Section] {
    if snapshot.sections.len() > 1 { &snapshot.sections } else { &[] }
}

/// As [`recent`], of one thread.
fn recent_of_thread(model: &Model, snapshot: &Snapshot, thread: usize) -> Section {
    let now = &snapshot.sections[thread];
    let earlier = model.before.iter().find(|earlier| earlier.process == snapshot.process);
    let earlier = earlier.and_then(|earlier| earlier.sections.get(thread));
    earlier.map_or_else(|| now.clone(), |earlier| now.since(earlier))
}

fn draw_daemons(frame: &mut Frame<'_>, area: Rect, model: &Model) {
    let room = area.width.saturating_sub(2);
    let shown = shown_columns(&COLUMNS.map(|column| column.width), &COLUMNS_DROPPED, room);
    let pick = |cells: [String; COLUMNS.len()]| {
        let shown = shown.clone();
        shown.into_iter().map(move |index| Cell::from(cells[index].clone())).collect::<Vec<_>>()
    };
    let header = pick(COLUMNS.map(|column| column.name.to_owned()));
    let rows = model.now.iter().enumerate().flat_map(|(index, snapshot)| {
        let style = match snapshot.state {
            DaemonState::Alive(_) => Style::default(),
            DaemonState::Crashed => Style::default().fg(Color::Red),
            DaemonState::Stopped => Style::default().fg(Color::DarkGray),
        };
        let is_selected = index == model.selected;
        let selected = if is_selected { style.add_modifier(Modifier::REVERSED) } else { style };
        let total = snapshot.total();
        let daemon = daemon_cells(model, snapshot, &total, &recent(model, snapshot, &total));
        let threads = threads(snapshot).iter().enumerate().map(|(thread, section)| {
            let recent = recent_of_thread(model, snapshot, thread);
            let mut cells = daemon_cells(model, snapshot, section, &recent);
            cells[..4].fill(String::new());
            cells[0] = format!("  thread {thread}");
            Row::new(pick(cells)).style(style)
        });
        let daemon = Row::new(pick(daemon)).style(selected);
        [daemon].into_iter().chain(threads).collect::<Vec<_>>()
    });
    let widths: Vec<_> = shown.iter().map(|index| COLUMNS[*index].width).collect();
    let widths = columns(&widths, room);
    let title = match model.now.len() {
        0 => " no daemon left counters here ".to_owned(),
        count => format!(" {count} daemons "),
    };
    let table = Table::new(rows, widths)
        .header(Row::new(header).style(Modifier::BOLD))
        .block(Block::bordered().title(title));
    frame.render_widget(table, area);
}

fn daemon_cells(
    model: &Model,
    snapshot: &Snapshot,
    total: &Section,
    recent: &Section,
) -> [String; COLUMNS.len()] {
    let rate = |counter| {
        if model.elapsed_s > 0.0 {
            #[expect(clippy::cast_precision_loss, reason = "shown with three digits")]
            let rate = recent.counter(counter) as f64 / model.elapsed_s;
            short(rate)
        } else {
            "-".to_owned()
        }
    };
    let calls = recent.histogram(Timing::Call);
    [
        snapshot.name.clone(),
        snapshot.rank.to_string(),
        snapshot.state.to_string(),
        snapshot.process.pid.to_string(),
        total.counter(Counter::Clients).to_string(),
        format!("{}/{}", total.counter(Counter::PeersUp), snapshot.size.saturating_sub(1)),
        rate(Counter::RequestsIpc),
        rate(Counter::RequestsRemote),
        total.counter(Counter::Outstanding).to_string(),
        duration(calls.quantile(0.5)),
        duration(calls.quantile(0.99)),
    ]
}

fn draw_flight(frame: &mut Frame<'_>, area: Rect, snapshot: &Snapshot, total: &Section) {
    let samples = total.samples();
    let width = usize::from(area.width.saturating_sub(2));
    let shown = &samples[samples.len().saturating_sub(width)..];
    let values: Vec<_> = shown.iter().map(|sample| sample.outstanding).collect();
    let most = values.iter().max().copied().unwrap_or(0);
    let title = format!(" {}: calls in flight over time, at most {most} ", snapshot.name);
    let line = Sparkline::default().data(&values).block(Block::bordered().title(title));
    frame.render_widget(line, area);
}

fn draw_distributions(
    frame: &mut Frame<'_>,
    area: Rect,
    title: &str,
    timings: &[Timing],
    section: &Section,
) {
    const WIDTHS: [u16; 5] = [20, 7, 7, 7, 7];
    const NAMES: [&str; 5] = ["", "count", "p50", "p90", "p99"];
    let room = area.width.saturating_sub(2);
    // The count goes first, then p90.
    let shown = shown_columns(&WIDTHS, &[1, 3], room);
    let rows = timings.iter().map(|&timing| {
        let histogram = section.histogram(timing);
        let name = timing.name().trim_end_matches("_ns").replace('_', " ");
        let value = |share| {
            let value = histogram.quantile(share);
            if timing.is_ns() { duration(value) } else { value.to_string() }
        };
        let cells = [name, short_count(histogram), value(0.5), value(0.9), value(0.99)];
        Row::new(shown.iter().map(|index| cells[*index].clone()).collect::<Vec<_>>())
    });
    let widths: Vec<_> = shown.iter().map(|index| WIDTHS[*index]).collect();
    let names = shown.iter().map(|index| NAMES[*index]).collect::<Vec<_>>();
    let table = Table::new(rows, columns(&widths, room))
        .header(Row::new(names).style(Modifier::BOLD))
        .block(Block::bordered().title(title));
    frame.render_widget(table, area);
}

/// Columns of at least these widths. Where there is no room for all, those that come first have theirs:
/// the solver of the layout would take room from any of them, differently each time.
fn columns(widths: &[u16], room: u16) -> Vec<Constraint> {
    if wanted(widths.iter().copied()) <= room {
        return widths.iter().copied().map(Constraint::Min).collect();
    }
    let mut left = room;
    let given = widths.iter().map(|&width| {
        let given = width.min(left);
        left = left.saturating_sub(given + 1);
        Constraint::Length(given)
    });
    given.collect()
}

/// The room that columns of these widths want, with a space between two.
fn wanted(widths: impl Iterator<Item = u16>) -> u16 {
    widths.fold(0, |wanted, width| wanted + width + 1).saturating_sub(1)
}

/// Which columns are shown: all, or without the first ones of `dropped` where there is less room.
fn shown_columns(widths: &[u16], dropped: &[usize], room: u16) -> Vec<usize> {
    let mut shown: Vec<_> = (0..widths.len()).collect();
    for column in dropped {
        if wanted(shown.iter().map(|index| widths[*index])) <= room {
            break;
        }
        shown.retain(|index| index != column);
    }
    shown
}

fn short_count(histogram: &Histogram) -> String {
    #[expect(clippy::cast_precision_loss, reason = "shown with three digits")]
    short(histogram.count() as f64)
}

/// Three digits and a letter.
fn short(number: f64) -> String {
    match number {
        number if number >= 1e9 => format!("{:.2}G", number / 1e9),
        number if number >= 1e6 => format!("{:.2}M", number / 1e6),
        number if number >= 1e3 => format!("{:.1}k", number / 1e3),
        number => format!("{number:.0}"),
    }
}

fn duration(ns: u64) -> String {
    #[expect(clippy::cast_precision_loss, reason = "shown with three digits")]
    let number = ns as f64;
    match ns {
        0 => "-".to_owned(),
        1..1_000 => format!("{ns}ns"),
        1_000..1_000_000 => format!("{:.1}us", number / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1}ms", number / 1e6),
        _ => format!("{:.1}s", number / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use std::{env, time::Duration};

    use bootstrap::RankInfo;
    use daemon::metrics::{Life, MetricsFile};
    use ratatui::{Terminal, backend::TestBackend};

    use super::*;

    fn screen(model: &Model) -> String {
        let mut terminal = Terminal::new(TestBackend::new(120, 30)).unwrap();
        terminal.draw(|frame| draw(frame, model)).unwrap();
        terminal.backend().to_string()
    }

    #[test]
    fn an_empty_machine_is_said_to_be_empty() {
        assert!(screen(&Model::new(Vec::new())).contains("no daemon left counters here"));
    }

    #[test]
    fn rates_and_distributions_are_those_of_the_last_interval() {
        let path = env::temp_dir().join(format!("copyrpc-top-{}.metrics", std::process::id()));
        let rank_info = RankInfo::new(1, 4).unwrap();
        let (file, mut recorders) = MetricsFile::create(&path, "job@1", rank_info, 1, 8).unwrap();
        let recorder = &mut recorders[0];
        file.set_life(Life::Serving);
        recorder.add(Counter::RequestsIpc, 1_000_000);
        recorder.record(Timing::Call, 900_000_000);
        let mut model = Model::new(vec![Snapshot::read(&path).unwrap()]);
        assert!(screen(&model).contains("900") || screen(&model).contains("ms"));
        recorder.add(Counter::RequestsIpc, 3_000);
        recorder.set(Counter::Clients, 16);
        recorder.set(Counter::PeersUp, 3);
        recorder.record(Timing::Call, 1_500);
        recorder.sample(1, 7);
        model.refresh(vec![Snapshot::read(&path).unwrap()], Duration::from_secs(2));
        let screen = screen(&model);
        for expected in ["job@1", "serving", "16", "3/3", "1.5k", "1.5us", "at most 7"] {
            assert!(screen.contains(expected), "{expected} in\n{screen}");
        }
        assert!(!screen.contains("ms "), "the slow call is long ago:\n{screen}");
    }

    #[test]
    fn the_list_stays_where_there_is_little_room_and_the_busiest_daemon_is_selected() {
        let name = |n: u32| format!("copyrpc-top-s-{}-{n}.metrics", std::process::id());
        let paths: Vec<_> = (0..3).map(|n| env::temp_dir().join(name(n))).collect();
        let made = |n: usize| {
            let job = format!("job@{n}");
            MetricsFile::create(&paths[n], &job, RankInfo::new(0, 4).unwrap(), 1, 8).unwrap()
        };
        let (mut files, mut recorders) = (Vec::new(), Vec::new());
        for (n, requests) in [(0, 10), (1, 500), (2, 20)] {
            let (file, mut recorder) = made(n);
            file.set_life(Life::Serving);
            recorder[0].add(Counter::RequestsIpc, requests);
            files.push(file);
            recorders.append(&mut recorder);
        }
        let read = || paths.iter().map(|path| Snapshot::read(path).unwrap()).collect::<Vec<_>>();
        let mut model = Model::new(read());
        assert_eq!(model.selected, 1, "it did the most");
        recorders[2].add(Counter::RequestsIpc, 30);
        model.refresh(read(), Duration::from_secs(1));
        assert_eq!(model.selected, 2, "it does the most");
        model.choose(-2);
        model.refresh(read(), Duration::from_secs(1));
        assert_eq!(model.selected, 0, "as chosen");
        let mut terminal = Terminal::new(TestBackend::new(60, 15)).unwrap();
        terminal.draw(|frame| draw(frame, &model)).unwrap();
        let screen = terminal.backend().to_string();
        for n in 0..3 {
            assert!(screen.contains(&format!("job@{n}")), "{screen}");
        }
        assert_eq!(heights(6, 15), (6, [8, 0]));
        assert_eq!(heights(6, 20), (6, [0, 13]));
        assert_eq!(heights(6, 40), (6, [6, 27]));
        assert_eq!(heights(30, 15), (14, [0, 0]));
    }

    #[test]
    fn the_first_columns_have_their_width_where_there_is_little_room() {
        let given = columns(&[12, 5, 9], 20);
        assert_eq!(given, [Constraint::Length(12), Constraint::Length(5), Constraint::Length(1)]);
        assert_eq!(columns(&[12, 5, 9], 12)[1..], [Constraint::Length(0), Constraint::Length(0)]);
        assert_eq!(columns(&[12, 5], 18), [Constraint::Min(12), Constraint::Min(5)]);
        assert_eq!(shown_columns(&[12, 5, 9], &[1], 28), [0, 1, 2]);
        assert_eq!(shown_columns(&[12, 5, 9], &[1], 27), [0, 2]);
    }

    #[test]
    fn the_usual_terminal_shows_how_long_calls_take() {
        let path = env::temp_dir().join(format!("copyrpc-top-80-{}.metrics", std::process::id()));
        let rank_info = RankInfo::new(1, 4).unwrap();
        let (file, mut recorders) = MetricsFile::create(&path, "job@1", rank_info, 1, 8).unwrap();
        file.set_life(Life::Serving);
        recorders[0].record(Timing::Call, 1_500);
        let model = Model::new(vec![Snapshot::read(&path).unwrap()]);
        let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
        terminal.draw(|frame| draw(frame, &model)).unwrap();
        let screen = terminal.backend().to_string();
        // In the list, and in both parts below it.
        assert_eq!(
            (screen.matches("p50").count(), screen.matches("p99").count()),
            (3, 3),
            "{screen}"
        );
        assert_eq!(screen.matches("1.5us").count(), 4, "{screen}");
        for expected in ["serving", "in flight", "flush to credit"] {
            assert!(screen.contains(expected), "{expected} in\n{screen}");
        }
    }

    #[test]
    fn threads_are_shown_below_their_daemon_which_is_their_sum() {
        let path = env::temp_dir().join(format!("copyrpc-top-t-{}.metrics", std::process::id()));
        let made = MetricsFile::create(&path, "job", RankInfo::new(0, 4).unwrap(), 2, 8);
        let (_file, mut recorders) = made.unwrap();
        for (clients, recorder) in (3..).zip(&mut recorders) {
            recorder.set(Counter::Clients, clients);
            recorder.sample(clients, 10 * clients);
        }
        let screen = screen(&Model::new(vec![Snapshot::read(&path).unwrap()]));
        let row = |name: &str| {
            let row = screen.lines().find(|line| line.contains(name)).unwrap().to_owned();
            row.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
        };
        assert!(row("job ").contains(&"7".to_owned()), "{screen}");
        assert!(row("thread 0").contains(&"3".to_owned()), "{screen}");
        assert!(row("thread 1").contains(&"4".to_owned()), "{screen}");
        assert!(screen.contains("at most 70"), "{screen}");
    }

    #[test]
    fn numbers_are_short() {
        assert_eq!(
            [0.0, 999.0, 1500.0, 2.5e6, 3e9].map(short),
            ["0", "999", "1.5k", "2.50M", "3.00G"]
        );
        assert_eq!(
            [0, 5, 1500, 2_000_000, 3_000_000_000].map(duration),
            ["-", "5ns", "1.5us", "2.0ms", "3.0s"]
        );
    }
}
