//! The lines of the CSV file as Parquet, for data frames.

use std::{io::Write, sync::Arc};

use parquet::{
    basic::{ConvertedType, Repetition, Type as Physical},
    data_type::{ByteArray, ByteArrayType, DoubleType, Int64Type},
    errors::ParquetError as Cause,
    file::{properties::WriterProperties, writer::SerializedFileWriter},
    schema::types::Type,
};

use super::{
    Results,
    flat::{Field, columns},
};

/// The file could not be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write Parquet: {0}")]
pub struct ParquetError(#[from] Cause);

/// Writes all runs as one row group; a file without columns if there are none.
///
/// # Errors
///
/// [`ParquetError`].
pub fn write_parquet(results: &Results, to: impl Write + Send) -> Result<(), ParquetError> {
    let runs = results.runs.iter().map(columns).collect::<Vec<_>>();
    let first = runs.first().map(Vec::as_slice).unwrap_or_default();
    let fields = first.iter().map(|(name, field)| column_type(name, field).map(Arc::new));
    let fields = fields.collect::<Result<Vec<_>, _>>()?;
    let schema = Type::group_type_builder("runs").with_fields(fields).build()?;
    let properties = Arc::new(WriterProperties::builder().build());
    let mut file = SerializedFileWriter::new(to, Arc::new(schema), properties)?;
    let mut group = file.next_row_group()?;
    let mut index = 0;
    while let Some(mut column) = group.next_column()? {
        let values = runs.iter().map(|run| &run[index].1);
        match first[index].1 {
            Field::Text(_) => {
                let values = values.map(|field| ByteArray::from(text(field).as_str()));
                let values = values.collect::<Vec<_>>();
                column.typed::<ByteArrayType>().write_batch(&values, None, None)?;
            }
            Field::Count(_) => {
                let (values, levels) = present(values.map(count));
                column.typed::<Int64Type>().write_batch(&values, Some(&levels), None)?;
            }
            Field::Number(_) => {
                let (values, levels) = present(values.map(number));
                column.typed::<DoubleType>().write_batch(&values, Some(&levels), None)?;
            }
        }
        column.close()?;
        index += 1;
    }
    group.close()?;
    file.close()?;
    Ok(())
}

/// The values that are there, and for each place whether one is.
fn present<T>(values: impl Iterator<Item = Option<T>>) -> (Vec<T>, Vec<i16>) {
    let values = values.collect::<Vec<_>>();
    let levels = values.iter().map(|value| i16::from(value.is_some())).collect();
    (values.into_iter().flatten().collect(), levels)
}

fn column_type(name: &str, field: &Field) -> Result<Type, Cause> {
    let (physical, converted, repetition) = match field {
        Field::Text(_) => (Physical::BYTE_ARRAY, ConvertedType::UTF8, Repetition::REQUIRED),
        Field::Count(_) => (Physical::INT64, ConvertedType::NONE, Repetition::OPTIONAL),
        Field::Number(_) => (Physical::DOUBLE, ConvertedType::NONE, Repetition::OPTIONAL),
    };
    Type::primitive_type_builder(name, physical)
        .with_repetition(repetition)
        .with_converted_type(converted)
        .build()
}

// A column has one kind in all runs; the other arms are for the compiler.

fn text(field: &Field) -> String {
    match field {
        Field::Text(text) => text.clone(),
        Field::Count(_) | Field::Number(_) => String::new(),
    }
}

fn count(field: &Field) -> Option<i64> {
    match field {
        Field::Count(count) => count.map(|count| i64::try_from(count).unwrap_or(i64::MAX)),
        Field::Text(_) | Field::Number(_) => None,
    }
}

fn number(field: &Field) -> Option<f64> {
    match field {
        Field::Number(number) => *number,
        Field::Text(_) | Field::Count(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use parquet::{
        file::reader::{FileReader as _, SerializedFileReader},
        record::RowAccessor as _,
    };

    use super::*;
    use crate::result::samples;

    #[test]
    fn a_foreign_reader_finds_every_run() {
        let mut bytes = Vec::new();
        let mut results = samples::results();
        let config = results.runs[0].config.clone();
        results.runs.push(samples::run(&config, 3, 0, 0, 1));
        write_parquet(&results, &mut bytes).unwrap();
        let path = std::env::temp_dir().join(format!("kv-{}.parquet", std::process::id()));
        std::fs::write(&path, bytes).unwrap();
        let reader = SerializedFileReader::new(std::fs::File::open(&path).unwrap()).unwrap();
        std::fs::remove_file(&path).unwrap();
        let rows = reader.get_row_iter(None).unwrap().map(Result::unwrap).collect::<Vec<_>>();
        assert_eq!(rows.len(), 7);
        let position =
            |name: &str| rows[0].get_column_iter().position(|(column, _)| column == name).unwrap();
        assert_eq!(rows[0].get_string(position("backend")).unwrap(), "tcp");
        assert_eq!(rows[0].get_long(position("answers")).unwrap(), 100_000);
        assert!((rows[0].get_double(position("rate")).unwrap() - 1e5).abs() < 1e-6);
        assert!(rows[0].get_long(position("p99_ns")).unwrap() > 0);
        assert_eq!(rows[6].get_long(position("answers")).unwrap(), 0);
        for name in ["p99_ns", "cpu_per_call_ns"] {
            let (_, field) = rows[6].get_column_iter().nth(position(name)).unwrap();
            assert_eq!(*field, parquet::record::Field::Null, "{name}: no answer, no number");
        }
    }
}
