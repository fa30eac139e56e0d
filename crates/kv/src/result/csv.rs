//! One line per run, for spreadsheets.

use std::io::{self, BufWriter, Write};

use super::{
    Results,
    flat::{Field, columns},
};

/// Writes all runs.
///
/// # Errors
///
/// Of `to`.
pub fn write_csv(results: &Results, to: impl Write) -> io::Result<()> {
    let mut to = BufWriter::new(to);
    for (index, run) in results.runs.iter().enumerate() {
        let (names, fields): (Vec<_>, Vec<_>) = columns(run).into_iter().unzip();
        if index == 0 {
            writeln!(to, "{}", names.join(","))?;
        }
        writeln!(to, "{}", fields.iter().map(text).collect::<Vec<_>>().join(","))?;
    }
    to.flush()
}

fn text(field: &Field) -> String {
    match field {
        Field::Text(text) => quoted(text),
        Field::Count(count) => count.map_or_else(String::new, |count| count.to_string()),
        Field::Number(number) => number.map_or_else(String::new, |number| format!("{number:.1}")),
    }
}

/// Quoted if it must be (RFC 4180).
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
    use crate::result::samples;

    #[test]
    fn every_run_is_a_line_with_every_column() {
        let mut bytes = Vec::new();
        write_csv(&samples::results(), &mut bytes).unwrap();
        let text = String::from_utf8(bytes).unwrap();
        let rows = text.lines().map(|line| line.split(',').collect::<Vec<_>>()).collect::<Vec<_>>();
        assert_eq!(rows.len(), 7);
        assert!(rows.iter().all(|row| row.len() == rows[0].len()), "{rows:?}");
        let at = |row: usize, column: &str| {
            rows[row][rows[0].iter().position(|name| *name == column).unwrap()]
        };
        assert_eq!((at(1, "rate"), at(1, "timeout")), ("100000.0", "2"));
        assert_eq!((at(2, "locality"), at(2, "local_rate")), ("remote", "0.0"));
    }

    #[test]
    fn fault_k2_what_there_is_no_number_of_is_empty() {
        let config = samples::config(crate::workload::Locality::Natural);
        let runs = vec![samples::run(&config, 0, 0, 0, 1)];
        let mut bytes = Vec::new();
        write_csv(&Results { header: samples::header(), runs }, &mut bytes).unwrap();
        let text = String::from_utf8(bytes).unwrap();
        let rows = text.lines().map(|line| line.split(',').collect::<Vec<_>>()).collect::<Vec<_>>();
        for (name, expected) in [("rate", "0.0"), ("p99_ns", ""), ("cpu_per_call_ns", "")] {
            let column = rows[0].iter().position(|column| *column == name).unwrap();
            assert_eq!(rows[1][column], expected, "{name}");
        }
    }

    #[test]
    fn odd_fields_are_quoted() {
        assert_eq!(quoted("a b"), "a b");
        assert_eq!(quoted("a,\"b\""), "\"a,\"\"b\"\"\"");
        assert_eq!(quoted("a\rb"), "\"a\rb\"");
    }
}
