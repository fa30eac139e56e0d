//! Tables for people.

use std::fmt::Write as _;
use std::io::{IsTerminal as _, stdout};

use comfy_table::Table;
use measure::table::plain;
use ratatui::crossterm::terminal;

/// Columns of a table that is shown on no terminal, unless `COLUMNS` says otherwise.
const COLUMNS: u16 = 100;
/// The same, of tables that are read in logs and mails.
const NARROW_COLUMNS: u16 = 80;

/// A table with this header, as wide as the terminal that it is shown on, or as `COLUMNS` says.
pub(crate) fn table(header: &[&str]) -> Table {
    plain(header, Some(columns(COLUMNS)))
}

/// The same, of 80 columns where there is no terminal.
pub(crate) fn narrow(header: &[&str]) -> Table {
    plain(header, Some(columns(NARROW_COLUMNS)))
}

fn columns(default: u16) -> u16 {
    let terminal = stdout().is_terminal().then(terminal::size).and_then(Result::ok);
    let told = || std::env::var("COLUMNS").ok()?.parse().ok().filter(|columns| *columns > 0);
    terminal.map(|(columns, _)| columns).or_else(told).unwrap_or(default)
}

/// Aligned `name  value` lines.
pub(crate) fn pairs(pairs: &[(&str, &str)]) -> String {
    let width = pairs.iter().map(|(name, _)| name.len()).max().unwrap_or_default();
    pairs.iter().fold(String::new(), |mut text, (name, value)| {
        let _ = writeln!(text, "  {name:width$}  {value}");
        text
    })
}
