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

/// The text with its longer lines folded at spaces, for the terminal that it is shown on, or for 80 columns. A folded
/// line goes on below its first word.
#[must_use]
pub fn folded(text: &str) -> String {
    folded_at(text, columns(NARROW_COLUMNS).into())
}

fn folded_at(text: &str, columns: usize) -> String {
    let mut whole = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        if line.trim_end().chars().count() <= columns {
            whole.push_str(line);
            continue;
        }
        let indent = line.len() - line.trim_start_matches(' ').len();
        let mut used = 0;
        for word in line.split_whitespace() {
            let length = word.chars().count();
            if used > 0 && used + 1 + length <= columns {
                whole.push(' ');
                used += 1 + length;
                whole.push_str(word);
                continue;
            }
            if used > 0 {
                whole.push('\n');
            }
            let _ = write!(whole, "{:indent$}{word}", "");
            used = indent + length;
        }
        whole.push_str(if line.ends_with('\n') { "\n" } else { "" });
    }
    whole
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
    fn long_lines_are_folded_and_all_else_stays() {
        let text = "a  b\n\n  one two three four\nwhole\n";
        assert_eq!(folded_at(text, 12), "a  b\n\n  one two\n  three four\nwhole\n");
        assert_eq!(folded_at("a-word-that-is-longer than", 12), "a-word-that-is-longer\nthan");
    }

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
