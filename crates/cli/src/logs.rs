//! What is logged, and how.

use std::{sync::OnceLock, time::UNIX_EPOCH};

use serde_json::{Map, Value};
use tracing::{
    Event, Level, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{
    filter::Targets,
    fmt::{
        FmtContext, FormatEvent, FormatFields,
        format::Writer,
        time::{FormatTime as _, SystemTime},
        writer::BoxMakeWriter,
    },
    layer::SubscriberExt as _,
    registry::LookupSpan,
    util::SubscriberInitExt as _,
};

use crate::args::LogFormat;

/// The daemon whose log this is, once that is known.
static DAEMON: OnceLock<DaemonName> = OnceLock::new();

#[derive(Debug)]
struct DaemonName {
    name: String,
    rank: u32,
}

/// From now on every line names the daemon that this process is.
pub(crate) fn name_daemon(name: &str, rank: u32) {
    // A process is one daemon.
    let _ = DAEMON.set(DaemonName { name: name.to_owned(), rank });
}

/// Whether lines name a daemon.
pub(crate) fn is_named() -> bool {
    DAEMON.get().is_some()
}

/// A line that is none of an event, as [`start`] would write it: what became of other lines, or why the daemon ends.
pub(crate) fn note(format: LogFormat, level: Level, text: &str) -> String {
    match format {
        LogFormat::Text => {
            let mut line = String::new();
            // A text takes everything.
            let _ = write_head(&mut Writer::new(&mut line));
            format!("{line} {level:>5} {text}\n")
        }
        LogFormat::Json => {
            let mut fields = Map::new();
            fields.insert("message".into(), text.into());
            format!("{}\n", object(fields, &level.as_str().to_ascii_lowercase()))
        }
    }
}

/// Starts logging to `writer`: a service tells the time and its name in each line, a command does not.
pub(crate) fn start(
    filter: Targets,
    format: LogFormat,
    writer: BoxMakeWriter,
    is_service: bool,
    has_colour: bool,
) {
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(writer)
        // It would tell of a standard error that nobody reads there, and panic.
        .log_internal_errors(false);
    let registry = tracing_subscriber::registry();
    match format {
        LogFormat::Text => {
            let lines = lines.with_ansi(has_colour).without_time().with_target(false);
            if is_service {
                registry.with(lines.map_event_format(HeadedLines)).with(filter).init();
            } else {
                registry.with(lines).with(filter).init();
            }
        }
        LogFormat::Json => registry.with(lines.event_format(Lines)).with(filter).init(),
    }
}

/// Lines for people, each with the time (UTC) and the daemon before it.
struct HeadedLines<F>(F);

fn write_head(writer: &mut Writer<'_>) -> std::fmt::Result {
    SystemTime.format_time(writer)?;
    match DAEMON.get() {
        Some(DaemonName { name, rank }) => write!(writer, " {name} rank {rank}"),
        None => Ok(()),
    }
}

impl<S, N, F> FormatEvent<S, N> for HeadedLines<F>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    F: FormatEvent<S, N>,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> std::fmt::Result {
        write_head(&mut writer)?;
        writer.write_char(' ')?;
        self.0.format_event(context, writer, event)
    }
}

/// A JSON object per line: `time` in seconds since 1970, `level`, `daemon` and `own_rank`, `message`, and the fields of the
/// event.
struct Lines;

/// A line of JSON, with what every line has.
fn object(mut fields: Map<String, Value>, level: &str) -> Value {
    let now = std::time::SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    fields.insert("time".into(), now.as_secs_f64().into());
    fields.insert("level".into(), level.into());
    fields.insert("pid".into(), std::process::id().into());
    if let Some(DaemonName { name, rank }) = DAEMON.get() {
        fields.insert("daemon".into(), name.as_str().into());
        // Of an event about another rank the field is that of the event.
        fields.insert("own_rank".into(), (*rank).into());
    }
    Value::Object(fields)
}

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
        let level = event.metadata().level().as_str().to_ascii_lowercase();
        writeln!(writer, "{}", object(fields.0, &level))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_a_line_of_the_format_of_the_log() {
        let text = note(LogFormat::Text, Level::WARN, "two lines were lost");
        assert!(text.ends_with(" WARN two lines were lost\n") && text.contains('T'), "{text}");
        let json = note(LogFormat::Json, Level::ERROR, "two lines were lost");
        let json: Value = serde_json::from_str(&json).unwrap();
        assert_eq!(
            (&json["level"], &json["message"]),
            (&"error".into(), &"two lines were lost".into())
        );
        assert!(json["time"].is_f64() && json["pid"].is_u64());
    }
}
