//! Lines of PMI-1: `cmd=NAME`, and more words of the form `key=value`.
//!
//! Sources: MPICH `src/pmi` (`PMIU_MAXLINE`), Flux RFC 13 "Simple Process Manager Interface v1".

/// Longest line with its newline.
pub const LINE_BYTES_MAX: usize = 4096;

/// Why bytes are no line of PMI-1, or none that is due.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// It is too long.
    #[error("a line exceeds {LINE_BYTES_MAX} B")]
    TooLong,
    /// It is no text.
    #[error("a line is no printable ASCII")]
    NoText,
    /// Its first word is not `cmd=NAME`.
    #[error("a line begins with no cmd=NAME")]
    NoCommand,
    /// It is another answer than is due.
    #[error("the answer is `{found}`, and `{due}` is due")]
    Other {
        /// The answer.
        found: String,
        /// The answer that is due.
        due: &'static str,
    },
    /// A field is missing, or no number.
    #[error("the answer has no valid `{0}`")]
    Field(&'static str),
}

/// A line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PmiLine {
    /// In their order; the first one is `cmd`.
    fields: Vec<(String, String)>,
}

impl PmiLine {
    /// Reads a line without its newline. A word that has no `=` belongs to the value before it.
    ///
    /// # Errors
    ///
    /// [`Malformed`].
    pub fn parse(line: &[u8]) -> Result<Self, Malformed> {
        if line.len() >= LINE_BYTES_MAX {
            return Err(Malformed::TooLong);
        }
        if !line.iter().all(|byte| matches!(byte, b' '..=b'~')) {
            return Err(Malformed::NoText);
        }
        let text = str::from_utf8(line).map_err(|_| Malformed::NoText)?;
        let mut fields: Vec<(String, String)> = Vec::new();
        for word in text.split(' ').filter(|word| !word.is_empty()) {
            match (word.split_once('='), fields.last_mut()) {
                (Some((key, value)), _) => fields.push((key.to_owned(), value.to_owned())),
                (None, Some((_, value))) => {
                    value.push(' ');
                    value.push_str(word);
                }
                (None, None) => return Err(Malformed::NoCommand),
            }
        }
        let has_command =
            fields.first().is_some_and(|(key, name)| key == "cmd" && !name.is_empty());
        if has_command { Ok(Self { fields }) } else { Err(Malformed::NoCommand) }
    }

    /// Its name.
    #[must_use]
    pub fn command(&self) -> &str {
        &self.fields[0].1
    }

    /// The first value of a key.
    #[must_use]
    pub fn find(&self, key: &str) -> Option<&str> {
        self.fields.iter().find(|(name, _)| name == key).map(|(_, value)| &**value)
    }

    /// A text that must be there.
    ///
    /// # Errors
    ///
    /// [`Malformed::Field`].
    pub fn text(&self, key: &'static str) -> Result<&str, Malformed> {
        self.find(key).ok_or(Malformed::Field(key))
    }

    /// A number that must be there.
    ///
    /// # Errors
    ///
    /// [`Malformed::Field`].
    pub fn number(&self, key: &'static str) -> Result<usize, Malformed> {
        self.text(key)?.parse().map_err(|_| Malformed::Field(key))
    }

    /// The result of the request: 0, unless the launcher says otherwise.
    ///
    /// # Errors
    ///
    /// [`Malformed::Field`].
    pub fn result(&self) -> Result<i32, Malformed> {
        self.find("rc").map_or(Ok(0), |rc| rc.parse().map_err(|_| Malformed::Field("rc")))
    }
}

/// Takes the first line of `received` without its newline, if it is whole.
///
/// # Errors
///
/// [`Malformed::TooLong`] once more has come than a line may have.
pub fn take_line(received: &mut Vec<u8>) -> Result<Option<Vec<u8>>, Malformed> {
    match received.iter().take(LINE_BYTES_MAX).position(|byte| *byte == b'\n') {
        Some(end) => {
            let mut line: Vec<_> = received.drain(..=end).collect();
            line.pop();
            Ok(Some(line))
        }
        None if received.len() >= LINE_BYTES_MAX => Err(Malformed::TooLong),
        None => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_launchers_are_read() {
        let maxes = b"cmd=maxes kvsname_max=64 keylen_max=64 vallen_max=1024";
        let maxes = PmiLine::parse(maxes).unwrap();
        assert_eq!((maxes.command(), maxes.number("vallen_max")), ("maxes", Ok(1024)));
        assert_eq!(maxes.result(), Ok(0));
        let got =
            PmiLine::parse(b"cmd=get_result rc=-1 msg=key x not found value=unknown").unwrap();
        assert_eq!((got.result(), got.find("msg")), (Ok(-1), Some("key x not found")));
        assert_eq!(got.text("kvsname"), Err(Malformed::Field("kvsname")));
        assert_eq!(got.number("value"), Err(Malformed::Field("value")));
    }

    #[test]
    fn what_is_no_line_is_refused() {
        for line in [&b""[..], b" ", b"maxes", b"rc=0 cmd=maxes", b"cmd=", b"=x cmd=a"] {
            assert_eq!(PmiLine::parse(line), Err(Malformed::NoCommand), "{line:?}");
        }
        assert_eq!(PmiLine::parse(b"cmd=\xff"), Err(Malformed::NoText));
        assert_eq!(PmiLine::parse(b"cmd=a\tb"), Err(Malformed::NoText));
        assert_eq!(PmiLine::parse(&[b'a'; LINE_BYTES_MAX]), Err(Malformed::TooLong));
        assert_eq!(PmiLine::parse(b"cmd=a rc=many").unwrap().result(), Err(Malformed::Field("rc")));
    }

    #[test]
    fn lines_are_taken_one_by_one() {
        let mut received = b"cmd=a\ncmd=b".to_vec();
        assert_eq!(take_line(&mut received), Ok(Some(b"cmd=a".to_vec())));
        assert_eq!(take_line(&mut received), Ok(None));
        received.resize(LINE_BYTES_MAX, b'x');
        assert_eq!(take_line(&mut received), Err(Malformed::TooLong));
    }
}
