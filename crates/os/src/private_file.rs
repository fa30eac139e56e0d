//! Files that appear whole, once, and for one user only.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read as _, Write as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::Path,
    process,
};

/// Bytes of the shortest secret that a file may hold, and of the longest.
pub const SECRET_BYTES_MIN: usize = 16;
/// See [`SECRET_BYTES_MIN`].
pub const SECRET_BYTES_MAX: usize = 4096;

/// Why a file holds no secret.
#[derive(Debug, thiserror::Error)]
pub enum SecretFileError {
    /// It cannot be read.
    #[error("cannot read it: {0}")]
    Os(#[from] io::Error),
    /// Others can read it.
    #[error("other users can read it")]
    NotPrivate,
    /// It holds so many bytes, or more: too few to keep anybody out, or no secret at all.
    #[error("it has {0} B, not {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX}")]
    Length(usize),
}

/// Reads a secret from a file that only this user can read. A newline at the end does not count.
///
/// # Errors
///
/// [`SecretFileError`].
pub fn read_secret(path: &Path) -> Result<Vec<u8>, SecretFileError> {
    let file = File::open(path)?;
    if file.metadata()?.mode() & 0o077 != 0 {
        return Err(SecretFileError::NotPrivate);
    }
    let mut bytes = Vec::new();
    file.take(SECRET_BYTES_MAX as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.last() == Some(&b'\n') {
        bytes.pop();
    }
    if (SECRET_BYTES_MIN..=SECRET_BYTES_MAX).contains(&bytes.len()) {
        Ok(bytes)
    } else {
        Err(SecretFileError::Length(bytes.len()))
    }
}

/// Makes the file `path` with these contents and mode 0600, unless there is one: of several processes that do so
/// at once, on several hosts too, one succeeds, and nobody sees half a file.
///
/// # Errors
///
/// The kernel's reason, but not that there is one.
pub fn make_once(path: &Path, contents: &[u8]) -> io::Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    // Unique on this host, and most likely among hosts; what is there already was left by a dead process.
    let unique = crate::clock::now_ns();
    let new = path.with_file_name(format!(".{name}.{}.{unique}.tmp", process::id()));
    let mut options = OpenOptions::new();
    let file = options.write(true).create_new(true).mode(0o600).open(&new);
    let made = file.and_then(|mut file| file.write_all(contents));
    let linked = made.and_then(|()| match fs::hard_link(&new, path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    });
    let _ = fs::remove_file(&new);
    linked
}

#[cfg(test)]
mod tests {
    use std::{env, os::unix::fs::PermissionsExt as _};

    use super::*;

    #[test]
    fn a_secret_is_of_one_user_and_neither_short_nor_long() {
        let path = env::temp_dir().join(format!("copyrpc-secret-{}", process::id()));
        let read = |bytes: &[u8], mode| {
            fs::write(&path, bytes).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            read_secret(&path)
        };
        let longest = vec![b'x'; SECRET_BYTES_MAX];
        assert_eq!(read(b"0123456789abcdef\n", 0o600).unwrap(), b"0123456789abcdef");
        assert_eq!(read(&longest, 0o400).unwrap(), longest);
        for mode in [0o640, 0o604] {
            assert!(matches!(read(&longest, mode), Err(SecretFileError::NotPrivate)));
        }
        let short = read(b"0123456789abcde\n", 0o600);
        assert!(matches!(short, Err(SecretFileError::Length(15))), "{short:?}");
        let long = read(&[&longest[..], b"x"].concat(), 0o600);
        assert!(matches!(long, Err(SecretFileError::Length(4097))), "{long:?}");
        fs::remove_file(&path).unwrap();
        assert!(matches!(read_secret(&path), Err(SecretFileError::Os(_))));
    }

    #[test]
    fn the_first_contents_count_and_nothing_else_is_left() {
        let folder = env::temp_dir().join(format!("copyrpc-once-{}", process::id()));
        crate::private_dir::ensure(&folder).unwrap();
        let path = folder.join("file");
        for contents in ["first", "second"] {
            make_once(&path, contents.as_bytes()).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), "first");
        }
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
        fs::remove_dir_all(&folder).unwrap();
        assert!(make_once(&path, b"nowhere").is_err());
    }
}
