//! The date of a measurement.

use std::time::{Duration, SystemTime};

/// The present second in UTC, `2026-01-31T12:34:56Z`.
#[must_use]
pub fn now() -> String {
    let since_epoch = SystemTime::UNIX_EPOCH.elapsed().unwrap_or(Duration::ZERO);
    format_date(since_epoch.as_secs())
}

fn format_date(unix_s: u64) -> String {
    let (year, month, day) = civil(unix_s / 86_400);
    let hour = unix_s / 3600 % 24;
    let minute = unix_s / 60 % 60;
    let second = unix_s % 60;
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// Year, month and day of the Gregorian calendar, `days` after 1970-01-01.
fn civil(days: u64) -> (u64, u64, u64) {
    let is_leap = |year: u64| {
        year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
    };
    let mut year = 1970;
    let mut rest = days;
    while rest >= 365 + u64::from(is_leap(year)) {
        rest -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let mut month = 1;
    for days_in_month in [31, 28 + u64::from(is_leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]
    {
        if rest < days_in_month {
            break;
        }
        rest -= days_in_month;
        month += 1;
    }
    (year, month, rest + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_agree_with_the_calendar() {
        // As `date -u -d @N` prints them.
        for (unix_s, date) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (1_709_251_200, "2024-03-01T00:00:00Z"),
            (1_767_225_599, "2025-12-31T23:59:59Z"),
        ] {
            assert_eq!(format_date(unix_s), date);
        }
    }
}
