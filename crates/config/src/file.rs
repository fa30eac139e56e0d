//! The layer of a TOML file.

use core::ops::Range;
use std::path::Path;

use toml::de::{DeTable, DeValue};

use crate::layers::{Fault, Layers, Origin, SettingError};

impl Layers {
    /// The text of a file, which is TOML with one `key = value` per knob.
    ///
    /// # Errors
    ///
    /// [`SettingError`].
    pub fn file(mut self, path: &Path, text: &str) -> Result<Self, SettingError> {
        let line_of = |span: Range<usize>| {
            text.bytes().take(span.start).filter(|byte| *byte == b'\n').count() + 1
        };
        let origin_of = |line| Origin::File { path: path.to_owned(), line };
        let table = DeTable::parse(text).map_err(|error| {
            let origin = origin_of(error.span().map_or(1, line_of));
            Fault::Syntax(error.message().to_owned()).at(origin)
        })?;
        for (key, value) in table.get_ref() {
            let origin = origin_of(line_of(key.span()));
            let name = key.get_ref().as_ref();
            let text = match value.get_ref() {
                DeValue::String(text) => text.as_ref().to_owned(),
                DeValue::Integer(number) => number.to_string(),
                DeValue::Float(number) => number.to_string(),
                DeValue::Boolean(word) => word.to_string(),
                DeValue::Datetime(_) | DeValue::Array(_) | DeValue::Table(_) => {
                    self.index_of(name, &origin)?;
                    return Err(Fault::NotOneValue { key: name.to_owned() }.at(origin));
                }
            };
            let index = self.index_of(name, &origin)?;
            self.set(index, text, origin)?;
        }
        Ok(self)
    }
}
