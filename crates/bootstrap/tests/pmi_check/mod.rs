//! Any bytes from a launcher: lines of bounded length that are read, or refused.

use copyrpc_bootstrap::pmi::line::{LINE_BYTES_MAX, Malformed, PmiLine, take_line};

/// Takes `bytes` in pieces, as a socket gives them.
pub(crate) fn check(bytes: &[u8]) {
    let mut received = Vec::new();
    for piece in bytes.chunks(97) {
        received.extend_from_slice(piece);
        loop {
            match take_line(&mut received) {
                Ok(Some(line)) => check_line(&line),
                Ok(None) => break,
                Err(error) => return assert_eq!(error, Malformed::TooLong),
            }
        }
        assert!(received.len() < LINE_BYTES_MAX, "what is kept is bounded");
    }
}

fn check_line(line: &[u8]) {
    let Ok(message) = PmiLine::parse(line) else { return };
    assert!(!message.command().is_empty());
    assert_eq!(message.find("cmd"), Some(message.command()));
    for key in ["rc", "value", "msg"] {
        assert!(message.find(key).is_none_or(|value| value.len() < line.len()));
    }
    if let Ok(number) = message.number("value") {
        assert_eq!(message.find("value").unwrap().trim_start_matches('+').parse(), Ok(number));
    }
}
