//! One table, as text for a terminal, as Markdown, as CSV.

use std::io::{self, Write};

use comfy_table::{CellAlignment, LineStyle, presets};

/// Fields under headings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    /// Headings of the columns.
    pub head: Vec<String>,
    /// Each as long as `head`.
    pub rows: Vec<Vec<String>>,
    /// So many columns hold texts and stand left; the others hold numbers and stand right.
    pub texts: usize,
}

impl Table {
    /// A table without rows.
    #[must_use]
    pub fn new<S: Into<String>>(texts: usize, head: impl IntoIterator<Item = S>) -> Self {
        Self { head: head.into_iter().map(Into::into).collect(), rows: Vec::new(), texts }
    }

    /// Adds a row.
    pub fn push<S: Into<String>>(&mut self, row: impl IntoIterator<Item = S>) {
        self.rows.push(row.into_iter().map(Into::into).collect());
    }

    /// Columns as rows, if there are more columns than rows.
    #[must_use]
    pub fn upright(self) -> Self {
        if self.rows.len() >= self.head.len() {
            return self;
        }
        let mut lines = std::iter::once(self.head).chain(self.rows);
        let first = lines.next().unwrap_or_default();
        let mut turned = first.into_iter().map(|name| vec![name]).collect::<Vec<_>>();
        for line in lines {
            turned.iter_mut().zip(line).for_each(|(row, field)| row.push(field));
        }
        let mut rows = turned.into_iter();
        Self { head: rows.next().unwrap_or_default(), rows: rows.collect(), texts: 1 }
    }

    /// Columns that are as wide as their longest field.
    #[must_use]
    pub fn text(&self) -> String {
        let mut table = comfy_table::Table::new();
        table.load_style(presets::NOTHING.header_separator(LineStyle::none().fill('-')));
        table.set_header(&self.head);
        table.add_rows(&self.rows);
        for column in table.column_iter_mut().skip(self.texts) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        table.trim_fmt()
    }

    /// Writes the table as Markdown.
    ///
    /// # Errors
    ///
    /// Of `to`.
    pub fn write_markdown(&self, to: &mut dyn Write) -> io::Result<()> {
        writeln!(to, "| {} |\n|{}", self.head.join(" | "), "---|".repeat(self.head.len()))?;
        self.rows.iter().try_for_each(|row| writeln!(to, "| {} |", row.join(" | ")))
    }

    /// Writes the table as CSV (RFC 4180).
    ///
    /// # Errors
    ///
    /// Of `to`.
    pub fn write_csv(&self, to: &mut dyn Write) -> io::Result<()> {
        let line = |row: &Vec<String>| row.iter().map(|f| quoted(f)).collect::<Vec<_>>().join(",");
        let mut rows = std::iter::once(&self.head).chain(&self.rows);
        rows.try_for_each(|row| writeln!(to, "{}", line(row)))
    }
}

fn quoted(field: &str) -> String {
    if field.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", field.replace('"', "\"\""))
    } else {
        field.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        let mut table = Table::new(1, ["name", "a", "b"]);
        table.push(["x", "1", "20"]);
        table
    }

    #[test]
    fn every_form_holds_every_field() {
        assert!(table().text().lines().any(|line| line.split_whitespace().eq(["x", "1", "20"])));
        let mut markdown = Vec::new();
        let mut csv = Vec::new();
        table().write_markdown(&mut markdown).unwrap();
        table().write_csv(&mut csv).unwrap();
        assert_eq!(markdown, b"| name | a | b |\n|---|---|---|\n| x | 1 | 20 |\n");
        assert_eq!(csv, b"name,a,b\nx,1,20\n");
    }

    #[test]
    fn a_wide_table_turns_and_a_high_one_does_not() {
        let turned = table().upright();
        assert_eq!(
            (turned.head, turned.rows),
            (
                vec!["name".into(), "x".into()],
                vec![vec!["a".to_owned(), "1".into()], vec!["b".into(), "20".into()],]
            )
        );
        let mut high = table();
        (0..3).for_each(|_| high.push(["y", "2", "3"]));
        assert_eq!(high.clone().upright(), high);
    }

    #[test]
    fn odd_fields_are_quoted() {
        assert_eq!(quoted("a b"), "a b");
        assert_eq!(quoted("a,\"b\""), "\"a,\"\"b\"\"\"");
        assert_eq!(quoted("a\rb"), "\"a\rb\"");
    }
}
