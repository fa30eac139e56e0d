//! Files that appear whole, once, and for one user only.

use std::{
    fs::{self, OpenOptions},
    io::{self, Read as _, Write as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::Path,
    process,
};

use rustix::process::geteuid;

use crate::plain_file;

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
    /// It belongs to another user, who can read and replace it whatever its mode.
    #[error("it belongs to user {0}")]
    ForeignOwner(u32),
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
    // A link is followed: orchestrators replace what they mount by turning one.
    let file = plain_file::open_following(path)?;
    let meta = file.metadata()?;
    if meta.mode() & 0o077 != 0 {
        return Err(SecretFileError::NotPrivate);
    }
    if !is_trusted(meta.uid(), geteuid().as_raw()) {
        return Err(SecretFileError::ForeignOwner(meta.uid()));
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

/// Whether the owner of a file may know what this user keeps secret. Root may read it anyway.
fn is_trusted(owner: u32, user: u32) -> bool {
    owner == user || owner == 0
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
        assert!(matches!(read_secret("/dev/zero".as_ref()), Err(SecretFileError::Os(_))));
    }

    #[test]
    fn a_secret_of_another_owner_is_refused_by_its_number() {
        assert!(is_trusted(1000, 1000) && is_trusted(0, 1000));
        assert!(!is_trusted(1001, 1000) && !is_trusted(1000, 0));
        if geteuid().as_raw() != 0 {
            return;
        }
        // Root alone gives files away.
        let path = env::temp_dir().join(format!("copyrpc-given-{}", process::id()));
        make_once(&path, b"0123456789abcdef").unwrap();
        if std::os::unix::fs::chown(&path, Some(4321), None).is_ok() {
            let refused = read_secret(&path);
            assert!(matches!(refused, Err(SecretFileError::ForeignOwner(4321))), "{refused:?}");
        }
        fs::remove_file(&path).unwrap();
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
