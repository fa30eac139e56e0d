//! Tables for people.

use std::fmt::Write as _;
use std::io::{IsTerminal as _, stdout};

use comfy_table::{ColumnConstraint, ContentArrangement, LineStyle, Table, presets};
use rustix::termios::tcgetwinsize;

/// Columns of a table that is shown on no terminal, unless `COLUMNS` says otherwise.
const COLUMNS: u16 = 100;
/// The same, of tables that are read in logs and mails.
const NARROW_COLUMNS: u16 = 80;

/// A table with this header, as wide as the terminal that it is shown on, or as `COLUMNS` says.
#[must_use]
pub fn table(header: &[&str]) -> Table {
    of_width(header, columns(COLUMNS))
}

/// The same, of 80 columns where there is no terminal.
#[must_use]
pub fn narrow(header: &[&str]) -> Table {
    of_width(header, columns(NARROW_COLUMNS))
}

fn columns(default: u16) -> u16 {
    let size = || tcgetwinsize(stdout()).ok().map(|size| size.ws_col);
    let terminal = stdout().is_terminal().then(size).flatten();
    let variable = || std::env::var("COLUMNS").ok()?.parse().ok();
    let is_some = |columns: &u16| *columns > 0;
    terminal.filter(is_some).or_else(|| variable().filter(is_some)).unwrap_or(default)
}

/// An empty table with the look of this project. Fields wrap, but those of the first column stay whole, so that names
/// can be searched for and copied.
fn of_width(header: &[&str], columns: u16) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING.header_separator(LineStyle::none().fill('-')));
    table.set_header(header).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_width(columns);
    if let Some(names) = table.column_mut(0) {
        names.set_constraint(ColumnConstraint::ContentWidth);
    }
    table
}

/// Aligned `name  value` lines.
#[must_use]
pub fn pairs(pairs: &[(&str, &str)]) -> String {
    let width = pairs.iter().map(|(name, _)| name.len()).max().unwrap_or_default();
    pairs.iter().fold(String::new(), |mut text, (name, value)| {
        let _ = writeln!(text, "  {name:width$}  {value}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_fits_its_terminal_and_names_stay_whole() {
        let mut table = of_width(&["variable", "meaning"], 60);
        let meaning = "Time between two heartbeats to a peer, again and again";
        table.add_row(["COPYRPC_HEARTBEAT_INTERVAL", meaning]);
        let narrow = table.trim_fmt();
        assert!(narrow.lines().all(|line| line.chars().count() <= 60), "{narrow}");
        assert!(narrow.contains("COPYRPC_HEARTBEAT_INTERVAL"), "{narrow}");
    }
}
