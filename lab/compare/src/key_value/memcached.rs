//! memcached: its text protocol (`doc/protocol.txt` of memcached), of which `get` and `set` are spoken.

use std::process::Command;

use super::conversation::{Reply, ReplyOutcome, Strange, ValueProtocol, Wish, line, value_length};

/// memcached's text protocol.
pub enum Text {}

impl ValueProtocol for Text {
    const PACKAGE: &'static str = "memcached";

    fn command(port: u16, bytes: u64) -> Command {
        // Slabs round lengths up; an item that was evicted would be a wrong answer.
        let mib = ((4 * bytes) >> 20) + 64;
        let mut command = Command::new("memcached");
        command.args(["-l", "127.0.0.1", "-p", &port.to_string(), "-U", "0", "-M", "-t", "1"]);
        // It serves nobody as root unless told to.
        command.args(["-u", "nobody", "-m", &mib.to_string()]);
        command
    }

    fn write(key: u64, wish: Wish<'_>, to: &mut Vec<u8>) {
        match wish {
            Wish::Get => to.extend_from_slice(format!("get {key:016x}\r\n").as_bytes()),
            Wish::Put(value) => {
                to.extend_from_slice(format!("set {key:016x} 0 0 {}\r\n", value.len()).as_bytes());
                to.extend_from_slice(value);
                to.extend_from_slice(b"\r\n");
            }
        }
    }

    fn read(input: &[u8], is_get: bool) -> Result<Option<Reply>, Strange> {
        let Some((head, begin)) = line(input)? else { return Ok(None) };
        match (head, is_get) {
            (b"STORED", false) => {
                Ok(Some(Reply { outcome: ReplyOutcome::Stored, len_bytes: begin }))
            }
            (b"END", true) => Ok(Some(Reply { outcome: ReplyOutcome::Missing, len_bytes: begin })),
            ([b'V', b'A', b'L', b'U', b'E', b' ', ..], true) => {
                // VALUE key flags bytes
                let digits = head.split(|&byte| byte == b' ').nth(3);
                let len = digits.and_then(value_length).ok_or_else(|| Strange::of(input))?;
                let end = begin.checked_add(len).ok_or_else(|| Strange::of(input))?;
                const TAIL: &[u8] = b"\r\nEND\r\n";
                let tail = input.get(end..).unwrap_or_default();
                match tail.get(..TAIL.len()) {
                    Some(TAIL) => {
                        let len_bytes = end + TAIL.len();
                        Ok(Some(Reply { outcome: ReplyOutcome::Found(begin..end), len_bytes }))
                    }
                    None if TAIL.starts_with(tail) => Ok(None),
                    _ => Err(Strange::of(input)),
                }
            }
            _ => Err(Strange::of(input)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key_value::conversation::{assert_any_bytes_are_judged, assert_whole};

    #[test]
    fn requests_are_lines() {
        let mut bytes = Vec::new();
        Text::write(0xab, Wish::Get, &mut bytes);
        Text::write(1, Wish::Put(b"a\r\nb"), &mut bytes);
        let expected = "get 00000000000000ab\r\nset 0000000000000001 0 0 4\r\na\r\nb\r\n";
        assert_eq!(String::from_utf8(bytes).unwrap(), expected);
    }

    #[test]
    fn replies_are_found_when_they_are_whole() {
        assert_whole::<Text>(
            b"VALUE 01 0 4\r\na\r\nb\r\nEND\r\n",
            true,
            &ReplyOutcome::Found(14..18),
        );
        assert_whole::<Text>(b"END\r\n", true, &ReplyOutcome::Missing);
        assert_whole::<Text>(b"STORED\r\n", false, &ReplyOutcome::Stored);
    }

    #[test]
    fn any_bytes_are_a_reply_an_error_or_too_few() {
        let value = b"VALUE 01 0 4\r\na\r\nb\r\nEND\r\n".as_slice();
        let replies = [value, b"END\r\n", b"STORED\r\n", b"SERVER_ERROR x\r\n"];
        assert_any_bytes_are_judged::<Text>(&replies);
    }

    #[test]
    fn what_memcached_does_not_say_is_refused() {
        for (bytes, is_get) in [
            (&b"ERROR\r\n"[..], true),
            (b"SERVER_ERROR out of memory storing object\r\n", false),
            (b"VALUE 01 0\r\n", true),
            (b"VALUE 01 0 x\r\n", true),
            (b"VALUE 01 0 2\r\nabcd", true),
            (b"VALUE 01 0 18446744073709551615\r\n", true),
            (b"VALUE 01 0 3000000000000\r\nabc", true),
            (b"STORED\r\n", true),
            (b"END\r\n", false),
        ] {
            assert!(Text::read(bytes, is_get).is_err(), "{:?}", String::from_utf8_lossy(bytes));
        }
    }
}
