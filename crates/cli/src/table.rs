//! Tables for people.

use std::fmt::Write as _;
use std::io::{IsTerminal as _, stdout};

use comfy_table::Table;
use measure::table::plain;
use ratatui::crossterm::terminal;

/// Columns of a table that is shown on no terminal, unless `COLUMNS` says otherwise.
const COLUMNS: u16 = 100;

/// A table with this header, as wide as the terminal that it is shown on, or as `COLUMNS` says.
pub(crate) fn table(header: &[&str]) -> Table {
    let terminal = stdout().is_terminal().then(terminal::size).and_then(Result::ok);
    let told = || std::env::var("COLUMNS").ok()?.parse().ok().filter(|columns| *columns > 0);
    let columns = terminal.map(|(columns, _)| columns).or_else(told).unwrap_or(COLUMNS);
    plain(header, Some(columns))
}

/// Aligned `name  value` lines.
pub(crate) fn pairs(pairs: &[(&str, &str)]) -> String {
    let width = pairs.iter().map(|(name, _)| name.len()).max().unwrap_or_default();
    pairs.iter().fold(String::new(), |mut text, (name, value)| {
        let _ = writeln!(text, "  {name:width$}  {value}");
        text
    })
}
