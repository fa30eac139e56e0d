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
                let values = values.map(count).collect::<Vec<_>>();
                column.typed::<Int64Type>().write_batch(&values, None, None)?;
            }
            Field::Number(_) => {
                let values = values.map(number).collect::<Vec<_>>();
                column.typed::<DoubleType>().write_batch(&values, None, None)?;
            }
        }
        column.close()?;
        index += 1;
    }
    group.close()?;
    file.close()?;
    Ok(())
}

fn column_type(name: &str, field: &Field) -> Result<Type, Cause> {
    let (physical, converted) = match field {
        Field::Text(_) => (Physical::BYTE_ARRAY, ConvertedType::UTF8),
        Field::Count(_) => (Physical::INT64, ConvertedType::NONE),
        Field::Number(_) => (Physical::DOUBLE, ConvertedType::NONE),
    };
    Type::primitive_type_builder(name, physical)
        .with_repetition(Repetition::REQUIRED)
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

fn count(field: &Field) -> i64 {
    match field {
        Field::Count(count) => i64::try_from(*count).unwrap_or(i64::MAX),
        Field::Text(_) | Field::Number(_) => 0,
    }
}

fn number(field: &Field) -> f64 {
    match field {
        Field::Number(number) => *number,
        Field::Text(_) | Field::Count(_) => f64::NAN,
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
        write_parquet(&samples::results(), &mut bytes).unwrap();
        let path = std::env::temp_dir().join(format!("kv-{}.parquet", std::process::id()));
        std::fs::write(&path, bytes).unwrap();
        let reader = SerializedFileReader::new(std::fs::File::open(&path).unwrap()).unwrap();
        std::fs::remove_file(&path).unwrap();
        let rows = reader.get_row_iter(None).unwrap().map(Result::unwrap).collect::<Vec<_>>();
        assert_eq!(rows.len(), 6);
        let position =
            |name: &str| rows[0].get_column_iter().position(|(column, _)| column == name).unwrap();
        assert_eq!(rows[0].get_string(position("backend")).unwrap(), "tcp");
        assert_eq!(rows[0].get_long(position("answers")).unwrap(), 100_000);
        assert!((rows[0].get_double(position("rate")).unwrap() - 1e5).abs() < 1e-6);
    }
}
