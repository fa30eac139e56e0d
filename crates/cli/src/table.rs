//! Tables for people.

use std::io::{IsTerminal as _, stdout};

use comfy_table::{ColumnConstraint, ContentArrangement, LineStyle, Table, presets};
use ratatui::crossterm::terminal;

/// A table with this header, as wide as the terminal that it is shown on; elsewhere a row is a line.
pub(crate) fn table(header: &[&str]) -> Table {
    let columns = || terminal::size().ok().map(|(columns, _)| columns);
    shaped(header, if stdout().is_terminal() { columns() } else { None })
}

fn shaped(header: &[&str], columns: Option<u16>) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING.header_separator(LineStyle::none().fill('-')));
    table.set_header(header);
    if let Some(columns) = columns {
        table.set_content_arrangement(ContentArrangement::Dynamic).set_width(columns);
        // Names can be searched for, and copied.
        if let Some(names) = table.column_mut(0) {
            names.set_constraint(ColumnConstraint::ContentWidth);
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_fits_its_terminal_and_names_stay_whole() {
        let shown = |columns| {
            let mut table = shaped(&["variable", "meaning"], columns);
            table.add_row([
                "COPYRPC_HEARTBEAT_INTERVAL",
                "Time between two heartbeats to a peer, again and again",
            ]);
            table.trim_fmt()
        };
        let narrow = shown(Some(60));
        assert!(narrow.lines().all(|line| line.chars().count() <= 60), "{narrow}");
        assert!(narrow.contains("COPYRPC_HEARTBEAT_INTERVAL"), "{narrow}");
        assert_eq!(shown(None).lines().count(), 3, "a program reads a row per line");
    }
}
