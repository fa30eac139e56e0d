//! What is logged, and how.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value};
use tracing::{
    Event, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{
    filter::Targets,
    fmt::{FmtContext, FormatEvent, FormatFields, format::Writer, writer::BoxMakeWriter},
    layer::SubscriberExt as _,
    registry::LookupSpan,
    util::SubscriberInitExt as _,
};

use crate::args::LogFormat;

/// Whether a filter says what is logged, rather than naming something that does not exist: one that has no
/// level at all would silence everything.
pub(crate) fn names_a_level(filter: &str) -> bool {
    const LEVELS: [&str; 6] = ["error", "warn", "info", "debug", "trace", "off"];
    let is_level = |text: &str| {
        let text = text.trim().to_ascii_lowercase();
        LEVELS.contains(&text.as_str()) || matches!(text.parse(), Ok(0..=5_u8))
    };
    filter.split(',').any(|directive| {
        let level = directive.rsplit_once('=').map_or(directive, |(_, level)| level);
        is_level(level) || directive.trim().starts_with("copyrpc")
    })
}

/// Starts logging to `writer`.
pub(crate) fn start(filter: Targets, format: LogFormat, writer: BoxMakeWriter, has_colour: bool) {
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(writer)
        // It would tell of a standard error that nobody reads there, and panic.
        .log_internal_errors(false);
    let registry = tracing_subscriber::registry();
    match format {
        LogFormat::Text => {
            let lines = lines.with_ansi(has_colour).without_time().with_target(false);
            registry.with(lines).with(filter).init();
        }
        LogFormat::Json => registry.with(lines.event_format(Lines)).with(filter).init(),
    }
}

/// A JSON object per line: `time` in seconds since 1970, `level`, `message`, and the fields of the event.
struct Lines;

#[derive(Default)]
struct Fields(Map<String, Value>);

impl Fields {
    fn set(&mut self, field: &Field, value: impl Into<Value>) {
        self.0.insert(field.name().to_owned(), value.into());
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        self.set(field, format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.set(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.set(field, value);
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.set(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.set(field, value);
    }
}

impl<S, N> FormatEvent<S, N> for Lines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> std::fmt::Result {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let level = event.metadata().level().as_str().to_ascii_lowercase();
        fields.0.insert("time".into(), now.as_secs_f64().into());
        fields.0.insert("level".into(), level.into());
        fields.0.insert("pid".into(), std::process::id().into());
        writeln!(writer, "{}", Value::Object(fields.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_without_a_level_is_a_typing_error() {
        for good in ["debug", "INFO", "copyrpc_daemon=trace", "warn,h2=off", "copyrpc", "3"] {
            assert!(names_a_level(good), "{good}");
        }
        for bad in ["nonsense", "debgu", "a,b"] {
            assert!(!names_a_level(bad), "{bad}");
        }
    }
}
