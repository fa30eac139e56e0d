//! Lines on standard error, which is the program's.

use std::fmt::Write as _;

/// Says something on standard error.
pub(crate) fn tell(text: core::fmt::Arguments<'_>) {
    let mut line = String::new();
    let _ = writeln!(line, "copyrpc-lab uverbs [{}]: {text}", std::process::id());
    let _ = rustix::io::write(rustix::stdio::stderr(), line.as_bytes());
}
