//! Files of the user, opened for reading where something else may lie: a FIFO without a writer, a device, a folder, a
//! file without an end.

use std::{
    fs::{File, FileType, OpenOptions},
    io::{self, ErrorKind, Read as _},
    os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _},
    path::Path,
};

use rustix::fs::OFlags;

/// Opens a regular file for reading, and no link to one.
///
/// # Errors
///
/// The kernel's reason, or [`ErrorKind::InvalidInput`] with the name of what lies there. Never waits, whatever it is.
pub fn open(path: &Path) -> io::Result<File> {
    open_with(path, OFlags::NOFOLLOW)
}

/// Opens a regular file for reading, or the one to which a link leads.
///
/// # Errors
///
/// As [`open`].
pub fn open_following(path: &Path) -> io::Result<File> {
    open_with(path, OFlags::empty())
}

fn open_with(path: &Path, more: OFlags) -> io::Result<File> {
    open_as(OpenOptions::new().read(true), path, more)
}

/// Opens a regular file as `options` say, with the names of errors that [`open`] has.
pub(crate) fn open_as(options: &mut OpenOptions, path: &Path, more: OFlags) -> io::Result<File> {
    // A FIFO is opened at once then, and a terminal does not become that of this process.
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY | more;
    let flags = i32::try_from(flags.bits()).unwrap_or(0);
    let named = |what| {
        io::Error::new(ErrorKind::InvalidInput, format!("it is {what}; put a regular file there"))
    };
    match options.custom_flags(flags).open(path) {
        Ok(file) => match wrong(file.metadata()?.file_type()) {
            Some(what) => Err(named(what)),
            None => Ok(file),
        },
        // Some are not even opened.
        Err(error) => match path.symlink_metadata().ok().and_then(|it| wrong(it.file_type())) {
            Some("a link") if !more.contains(OFlags::NOFOLLOW) => Err(error),
            Some(what) => Err(named(what)),
            None => Err(error),
        },
    }
}

/// The name of what is no regular file.
fn wrong(kind: FileType) -> Option<&'static str> {
    Some(match () {
        () if kind.is_file() => return None,
        () if kind.is_symlink() => "a link",
        () if kind.is_fifo() => "a FIFO",
        () if kind.is_socket() => "a socket",
        () if kind.is_dir() => "a folder",
        () if kind.is_char_device() || kind.is_block_device() => "a device",
        () => "no file",
    })
}

/// Reads a whole regular file, or the one to which a link leads, of at most `bytes_max`.
///
/// # Errors
///
/// As [`open_following`], [`ErrorKind::FileTooLarge`] with the limit, or [`ErrorKind::InvalidData`] if it is not UTF-8.
pub fn read_text(path: &Path, bytes_max: u64) -> io::Result<String> {
    let mut text = String::new();
    let file = open_following(path)?;
    file.take(bytes_max + 1).read_to_string(&mut text)?;
    if text.len() as u64 > bytes_max {
        let problem = format!("it has more than {bytes_max} B; name the right file");
        return Err(io::Error::new(ErrorKind::FileTooLarge, problem));
    }
    Ok(text)
}

#[cfg(all(test, not(miri)))]
mod tests {
    use std::{env, fs, process};

    use super::*;

    #[test]
    fn what_is_no_regular_file_is_refused_at_once_and_by_name() {
        let fifo = env::temp_dir().join(format!("copyrpc-plain-fifo-{}", process::id()));
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        for (path, what) in [
            (fifo.as_path(), "a FIFO"),
            (Path::new("/dev/zero"), "a device"),
            (&env::temp_dir(), "a folder"),
        ] {
            for error in [open(path).unwrap_err(), read_text(path, 8).unwrap_err()] {
                assert!(error.to_string().contains(what), "{}: {error}", path.display());
            }
        }
        fs::remove_file(fifo).unwrap();
    }

    #[test]
    fn a_file_is_read_up_to_a_limit_and_a_link_is_followed_where_that_is_asked_for() {
        let path = env::temp_dir().join(format!("copyrpc-plain-{}", process::id()));
        let link = path.with_extension("link");
        fs::write(&path, "12345678").unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert_eq!(read_text(&link, 8).unwrap(), "12345678");
        assert_eq!(read_text(&link, 7).unwrap_err().kind(), ErrorKind::FileTooLarge);
        assert!(open(&path).is_ok() && open(&link).is_err());
        fs::remove_file(path).unwrap();
        fs::remove_file(link).unwrap();
    }
}
