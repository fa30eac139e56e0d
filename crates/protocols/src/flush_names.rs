//! Flush policies of copyrpc by name, for command lines and results.

use config::units::parse_duration_ns;
use rpc::FlushPolicy;

/// Every form of a flush policy, with its range.
pub const FLUSH_FORMS: &str = "self-clocked:N, immediate, hold:TIME, adaptive-hold:N, \
                               rtt-hold:FACTOR, poll-budget:N, coalesce:TIME; N from 1 to 65535, \
                               TIME up to 4s, FACTOR with three places at most";

/// A flush policy by its name and its number.
///
/// # Errors
///
/// The forms there are, in words.
pub fn flush_policy(text: &str) -> Result<FlushPolicy, String> {
    policy(text).ok_or_else(|| format!("`{text}` is none of {FLUSH_FORMS}"))
}

fn policy(text: &str) -> Option<FlushPolicy> {
    let (name, value) = text.split_once(':').unwrap_or((text, ""));
    let count = || value.parse::<u16>().ok().filter(|count| *count > 0);
    let ns = || u32::try_from(parse_duration_ns(value).ok()?).ok();
    Some(match name {
        "immediate" if value.is_empty() => FlushPolicy::Immediate,
        "self-clocked" => FlushPolicy::SelfClocked { wqes: count()? },
        "hold" => FlushPolicy::Hold { ns: ns()? },
        "adaptive-hold" => FlushPolicy::AdaptiveHold { messages: count()? },
        "rtt-hold" => FlushPolicy::RttHold { permille: permille(value)? },
        "poll-budget" => FlushPolicy::PollBudget { polls: count()?.into() },
        "coalesce" => FlushPolicy::Coalesce { ns: ns()? },
        _ => return None,
    })
}

/// Thousandths, of a decimal number with up to three places.
fn permille(text: &str) -> Option<u32> {
    let (whole, places) = text.split_once('.').unwrap_or((text, ""));
    let places = (places.len() <= 3).then(|| format!("{places:0<3}"))?;
    whole.parse::<u32>().ok()?.checked_mul(1000)?.checked_add(places.parse().ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_is_read_as_it_is_written() {
        for (text, expected) in [
            ("self-clocked:2", FlushPolicy::SelfClocked { wqes: 2 }),
            ("immediate", FlushPolicy::Immediate),
            ("hold:10us", FlushPolicy::Hold { ns: 10_000 }),
            ("hold:1500ns", FlushPolicy::Hold { ns: 1500 }),
            ("adaptive-hold:8", FlushPolicy::AdaptiveHold { messages: 8 }),
            ("rtt-hold:0.5", FlushPolicy::RttHold { permille: 500 }),
            ("rtt-hold:2", FlushPolicy::RttHold { permille: 2000 }),
            ("poll-budget:4", FlushPolicy::PollBudget { polls: 4 }),
            ("coalesce:3us", FlushPolicy::Coalesce { ns: 3000 }),
        ] {
            assert_eq!(flush_policy(text), Ok(expected), "{text}");
        }
        for bad in ["", "hold", "hold:10", "self-clocked:0", "rtt-hold:0.1234", "never:1"] {
            assert!(flush_policy(bad).unwrap_err().contains("adaptive-hold:N"), "{bad}");
        }
    }
}
