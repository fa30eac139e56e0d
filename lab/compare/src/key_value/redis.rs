//! Redis: RESP 2 (<https://redis.io/docs/latest/develop/reference/protocol-spec/>), of which GET and SET are spoken.

use std::process::Command;

use super::conversation::{Reply, ReplyOutcome, Strange, ValueProtocol, Wish, line, value_length};

/// Redis' protocol.
pub enum Resp {}

impl ValueProtocol for Resp {
    const PACKAGE: &'static str = "redis-server";

    fn command(port: u16, _: u64) -> Command {
        let mut command = Command::new("redis-server");
        command.args(["--bind", "127.0.0.1", "--port", &port.to_string()]);
        // Nothing is written to a disk.
        command.args(["--save", "", "--appendonly", "no", "--daemonize", "no"]);
        command
    }

    fn write(key: u64, wish: Wish<'_>, to: &mut Vec<u8>) {
        let key = format!("{key:016x}");
        match wish {
            Wish::Get => {
                to.extend_from_slice(format!("*2\r\n$3\r\nGET\r\n$16\r\n{key}\r\n").as_bytes())
            }
            Wish::Put(value) => {
                let len = value.len();
                let head = format!("*3\r\n$3\r\nSET\r\n$16\r\n{key}\r\n${len}\r\n");
                to.extend_from_slice(head.as_bytes());
                to.extend_from_slice(value);
                to.extend_from_slice(b"\r\n");
            }
        }
    }

    fn read(input: &[u8], is_get: bool) -> Result<Option<Reply>, Strange> {
        let Some((head, begin)) = line(input)? else { return Ok(None) };
        match (head, is_get) {
            (b"+OK", false) => Ok(Some(Reply { outcome: ReplyOutcome::Stored, len_bytes: begin })),
            (b"$-1", true) => Ok(Some(Reply { outcome: ReplyOutcome::Missing, len_bytes: begin })),
            ([b'$', digits @ ..], true) => {
                let len = value_length(digits).ok_or_else(|| Strange::of(input))?;
                let end = begin.checked_add(len).ok_or_else(|| Strange::of(input))?;
                match input.get(end..end + 2) {
                    None => Ok(None),
                    Some(b"\r\n") => Ok(Some(Reply {
                        outcome: ReplyOutcome::Found(begin..end),
                        len_bytes: end + 2,
                    })),
                    Some(_) => Err(Strange::of(input)),
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
    fn requests_are_arrays_of_bulk_strings() {
        let mut bytes = Vec::new();
        Resp::write(0xab, Wish::Get, &mut bytes);
        Resp::write(1, Wish::Put(b"a\r\nb"), &mut bytes);
        let expected = "*2\r\n$3\r\nGET\r\n$16\r\n00000000000000ab\r\n\
                        *3\r\n$3\r\nSET\r\n$16\r\n0000000000000001\r\n$4\r\na\r\nb\r\n";
        assert_eq!(String::from_utf8(bytes).unwrap(), expected);
    }

    #[test]
    fn replies_are_found_when_they_are_whole() {
        assert_whole::<Resp>(b"$4\r\na\r\nb\r\n", true, &ReplyOutcome::Found(4..8));
        assert_whole::<Resp>(b"$-1\r\n", true, &ReplyOutcome::Missing);
        assert_whole::<Resp>(b"+OK\r\n", false, &ReplyOutcome::Stored);
    }

    #[test]
    fn any_bytes_are_a_reply_an_error_or_too_few() {
        let replies =
            [&b"$4\r\na\r\nb\r\n"[..], b"$0\r\n\r\n", b"$-1\r\n", b"+OK\r\n", b"-ERR x\r\n"];
        assert_any_bytes_are_judged::<Resp>(&replies);
    }

    #[test]
    fn what_redis_does_not_say_is_refused() {
        for (bytes, is_get) in [
            (&b"-ERR no\r\n"[..], true),
            (b"$4\r\nabcdef", true),
            (b"$\r\n", true),
            (b"$99999999999999999999\r\n", true),
            (b"$18446744073709551615\r\n", true),
            // Its end is the end of all addresses.
            (b"$18446744073709551592\r\n", true),
            // Nobody waits for what is never sent.
            (b"$3000000000000\r\nabc", true),
            (b"+OK\r\n", true),
            (b"$-1\r\n", false),
        ] {
            assert!(Resp::read(bytes, is_get).is_err(), "{:?}", String::from_utf8_lossy(bytes));
        }
        assert!(Resp::read(&[b'x'; 600], true).is_err(), "no end of a line");
    }
}
