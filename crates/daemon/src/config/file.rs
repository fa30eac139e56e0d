//! The layer of a TOML file.

use core::ops::Range;
use std::path::Path;

use config::{LayerFault, Layers, Origin, SettingError};
use toml::de::{DeTable, DeValue};

/// Adds the text of a file, which is TOML with one `key = value` per knob.
///
/// ```
/// use config::Layers;
/// use copyrpc_daemon::config::{CALL_TIMEOUT, KNOBS, with_file};
///
/// let layers = Layers::new(KNOBS.to_vec());
/// let layers = with_file(layers, "copyrpc.toml".as_ref(), "call_timeout = \"2s\"")?;
/// let settings = layers
///     .environment(|variable| (variable == CALL_TIMEOUT.env).then(|| "3s".into()))?
///     .finish();
/// assert_eq!(settings.number(&CALL_TIMEOUT), 3_000_000_000);
/// # Ok::<(), config::SettingError>(())
/// ```
///
/// # Errors
///
/// [`SettingError`].
pub fn with_file(mut layers: Layers, path: &Path, text: &str) -> Result<Layers, SettingError> {
    let line_of = |span: Range<usize>| {
        text.bytes().take(span.start).filter(|byte| *byte == b'\n').count() + 1
    };
    let origin_of = |line| Origin::File { path: path.to_owned(), line };
    let failed = |fault, origin| SettingError { origin, fault: Box::new(fault) };
    let table = DeTable::parse(text).map_err(|error| {
        let origin = origin_of(error.span().map_or(1, line_of));
        failed(LayerFault::Syntax(error.message().to_owned()), origin)
    })?;
    for (key, value) in table.get_ref() {
        let (origin, key) = (origin_of(line_of(key.span())), key.get_ref().as_ref());
        let text = match value.get_ref() {
            DeValue::String(text) => text.as_ref().to_owned(),
            DeValue::Integer(number) => number.to_string(),
            DeValue::Float(number) => number.to_string(),
            DeValue::Boolean(word) => word.to_string(),
            DeValue::Datetime(_) | DeValue::Array(_) | DeValue::Table(_) => {
                layers.check_key(key, &origin)?;
                return Err(failed(LayerFault::NotOneValue { key: key.to_owned() }, origin));
            }
        };
        layers = layers.entry(key, text, origin)?;
    }
    Ok(layers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{BOOTSTRAP, CALL_TIMEOUT, CLIENTS_MAX, KNOBS, RANK};

    const FILE: &str = "copyrpc.toml";

    fn layers() -> Layers {
        Layers::new(KNOBS.to_vec())
    }

    fn file(text: &str) -> Result<Layers, SettingError> {
        with_file(layers(), FILE.as_ref(), text)
    }

    #[test]
    fn a_flag_wins_over_the_environment_over_a_file_over_the_default() {
        let shown = |layers: Layers| {
            let settings = layers.finish();
            let setting = settings.of(&CALL_TIMEOUT);
            format!("{} ({})", setting.text, setting.origin)
        };
        let environment = |variable: &str| (variable == CALL_TIMEOUT.env).then(|| "3s".to_owned());
        assert_eq!(shown(layers()), "5s (default)");
        let file = file("# comment\ncall_timeout = \"4s\"").unwrap();
        assert_eq!(shown(file.clone()), "4s (copyrpc.toml:2)");
        let over = file.environment(environment).unwrap();
        assert_eq!(shown(over.clone()), "3s (COPYRPC_CALL_TIMEOUT)");
        assert_eq!(shown(over.flag("call-timeout", "2s").unwrap()), "2s (--call-timeout)");
    }

    #[test]
    fn fault_e8_an_unknown_key_is_refused_with_a_suggestion_and_its_line() {
        let error = file("\ncall_timeuot = \"1s\"\n").unwrap_err().to_string();
        assert_eq!(
            error,
            "copyrpc.toml:2: there is no knob `call_timeuot`; did you mean `call_timeout`?"
        );
        let error = layers().flag("--frobnicate", "1").unwrap_err().to_string();
        assert_eq!(
            error,
            "--frobnicate: there is no knob `frobnicate`; `copyrpc config` lists all"
        );
    }

    #[test]
    fn fault_e8_a_wrong_unit_is_refused_with_the_place_and_the_remedy() {
        let error = file("call_timeout = 5").unwrap_err().to_string();
        assert_eq!(error, "copyrpc.toml:1: call_timeout = `5` needs a unit: ns, us, ms, s, min, h");
        let environment = |variable: &str| (variable == CLIENTS_MAX.env).then(|| "many".to_owned());
        let error = layers().environment(environment).unwrap_err().to_string();
        assert!(
            error.starts_with("COPYRPC_CLIENTS_MAX: clients_max = `many` is no number"),
            "{error}"
        );
    }

    #[test]
    fn a_file_that_is_no_toml_or_nests_is_refused() {
        let fault = |text| *file(text).unwrap_err().fault;
        assert!(matches!(fault("a b"), LayerFault::Syntax(_)));
        assert!(matches!(fault("clients_max = [1]"), LayerFault::NotOneValue { .. }));
        assert!(matches!(fault("[daemon]\nrank = 1"), LayerFault::Unknown { .. }));
        assert!(matches!(fault("bootstrap = \"\""), LayerFault::Value { .. }));
    }

    #[test]
    fn numbers_and_words_need_no_quotes_and_empty_means_unset() {
        let settings = file("clients_max = 12\nrank = \"\"").unwrap().finish();
        assert_eq!(settings.number(&CLIENTS_MAX), 12);
        assert_eq!(settings.number_if_set(&RANK), None);
        assert_eq!(settings.text(&BOOTSTRAP), "auto");
    }
}
