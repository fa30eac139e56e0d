//! The filter of `RUST_LOG`, and the log of commands that are no service.

use std::io::{self, IsTerminal as _};

use tracing_subscriber::{
    filter::{LevelFilter, Targets},
    layer::SubscriberExt as _,
    util::SubscriberInitExt as _,
};

/// Levels of lines that are logged, by their origin.
#[derive(Clone, Debug)]
pub struct LogFilter {
    /// The levels.
    pub targets: Targets,
    /// `RUST_LOG` is set and makes no sense, so the default holds.
    pub is_misspelt: bool,
}

impl LogFilter {
    /// As `RUST_LOG` says, or lines of this level and above.
    #[must_use]
    pub fn from_env(default: LevelFilter) -> Self {
        let asked = std::env::var_os("RUST_LOG").filter(|asked| !asked.is_empty());
        let parsed = asked.as_ref().map(|asked| {
            let text = asked.to_str().filter(|text| names_a_level(text))?;
            text.parse::<Targets>().ok()
        });
        let is_misspelt = parsed == Some(None);
        let targets = parsed.flatten().unwrap_or_else(|| Targets::new().with_default(default));
        Self { targets, is_misspelt }
    }

    /// Warns about a value of `RUST_LOG` that has no effect.
    pub fn warn_if_misspelt(&self) {
        if self.is_misspelt {
            tracing::warn!("RUST_LOG makes no sense, so it has no effect; write for example debug");
        }
    }
}

/// Whether a filter selects lines, rather than naming a target that does not exist: one that has no
/// level at all would silence everything.
fn names_a_level(filter: &str) -> bool {
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

/// Whether standard error shows colours: <https://no-color.org>.
#[must_use]
pub fn has_colour() -> bool {
    io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Logs warnings to standard error, or what `RUST_LOG` asks for.
pub fn start_of_command() -> LogFilter {
    let filter = LogFilter::from_env(LevelFilter::WARN);
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(io::stderr)
        // It would tell of a standard error that no process reads there, and panic.
        .log_internal_errors(false)
        .with_ansi(has_colour())
        .without_time()
        .with_target(false);
    tracing_subscriber::registry().with(lines).with(filter.targets.clone()).init();
    filter
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
