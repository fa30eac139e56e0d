//! Directories that only one user can enter: for sockets, locks and files that other users must not
//! replace.

use std::{
    fs::{self, DirBuilder},
    io,
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _},
    path::{Path, PathBuf},
};

use rustix::process::geteuid;

/// Permissions of a private directory, and the permission bits of other users.
const PRIVATE_MODE: u32 = 0o700;
const OTHERS_MASK: u32 = 0o077;

/// Why a directory cannot be used as a private one.
#[derive(Debug, thiserror::Error)]
pub enum PrivateDirError {
    /// Other users can enter it, or it is a link that can be turned elsewhere.
    #[error("{} must be a real directory of user {uid} with mode 0700", path.display())]
    NotPrivate {
        /// The directory.
        path: PathBuf,
        /// The user who must own it.
        uid: u32,
    },
    /// It cannot be made or looked at.
    #[error("{call} {} failed: {source}", path.display())]
    Os {
        /// The system call.
        call: &'static str,
        /// The directory.
        path: PathBuf,
        /// The kernel's reason.
        source: io::Error,
    },
}

/// Makes `directory` with mode 0700, and its parents, unless it exists. An existing directory must belong to
/// this process's user, admit no other user, and be no symbolic link.
///
/// # Errors
///
/// [`PrivateDirError`].
pub fn ensure(directory: &Path) -> Result<(), PrivateDirError> {
    make(directory, DirBuilder::new().recursive(true))
}

/// As [`ensure`], but makes no parent: where that is missing, the directory was named by mistake.
///
/// # Errors
///
/// [`PrivateDirError`].
pub fn ensure_in_parent(directory: &Path) -> Result<(), PrivateDirError> {
    make(directory, &mut DirBuilder::new())
}

fn make(directory: &Path, builder: &mut DirBuilder) -> Result<(), PrivateDirError> {
    // Without a slash or dot at its end, with which the kernel would follow a link.
    let path: PathBuf = directory.components().collect();
    let path = if path.as_os_str().is_empty() { PathBuf::from(".") } else { path };
    let fail = |call| {
        let path = path.clone();
        move |source| PrivateDirError::Os { call, path, source }
    };
    match builder.mode(PRIVATE_MODE).create(&path) {
        // What exists and is no directory is judged below.
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(fail("mkdir")(error));
        }
        _ => {}
    }
    let meta = fs::symlink_metadata(&path).map_err(fail("stat"))?;
    let uid = geteuid().as_raw();
    if meta.is_dir() && meta.uid() == uid && meta.mode() & OTHERS_MASK == 0 {
        Ok(())
    } else {
        Err(PrivateDirError::NotPrivate { path, uid })
    }
}

#[cfg(test)]
mod tests {
    use std::{
        env,
        os::unix::fs::{PermissionsExt as _, symlink},
        process,
    };

    use super::*;

    fn temporary(name: &str) -> PathBuf {
        let path = env::temp_dir().join(format!("copyrpc-private-{name}-{}", process::id()));
        let _ = fs::remove_dir_all(&path);
        path
    }

    fn is_refused(path: &Path) -> bool {
        matches!(ensure(path), Err(PrivateDirError::NotPrivate { .. }))
    }

    #[test]
    fn a_directory_whose_parent_is_missing_is_not_made_where_parents_are_not() {
        let outer = temporary("parent");
        let refused = ensure_in_parent(&outer.join("a"));
        assert!(matches!(refused, Err(PrivateDirError::Os { call: "mkdir", .. })), "{refused:?}");
        assert!(!outer.exists());
        for _ in 0..2 {
            ensure_in_parent(&outer).unwrap();
        }
        assert_eq!(fs::metadata(&outer).unwrap().mode() & 0o777, PRIVATE_MODE);
        fs::remove_dir(outer).unwrap();
    }

    #[test]
    fn a_directory_is_made_private_with_its_parents_and_found_again() {
        let outer = temporary("made");
        let inner = outer.join("a/b");
        for _ in 0..2 {
            ensure(&inner).unwrap();
        }
        for path in [&inner, &outer] {
            assert_eq!(fs::metadata(path).unwrap().mode() & 0o777, PRIVATE_MODE, "{path:?}");
        }
        fs::remove_dir_all(outer).unwrap();
    }

    #[test]
    fn a_directory_that_others_can_enter_is_refused() {
        let path = temporary("mode");
        ensure(&path).unwrap();
        for mode in [0o750, 0o701] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            assert!(is_refused(&path), "{mode:o}");
        }
        fs::remove_dir_all(path).unwrap();
    }

    #[test]
    fn a_link_to_a_private_directory_is_refused_however_it_is_written() {
        let (target, link) = (temporary("target"), temporary("link"));
        ensure(&target).unwrap();
        symlink(&target, &link).unwrap();
        for suffix in ["", "/", "//", "/."] {
            assert!(
                is_refused(&PathBuf::from(format!("{}{suffix}", link.display()))),
                "{suffix:?}"
            );
        }
        fs::remove_file(link).unwrap();
        fs::remove_dir_all(target).unwrap();
    }

    #[test]
    fn a_file_is_no_private_directory() {
        let path = temporary("file");
        fs::write(&path, "").unwrap();
        assert!(is_refused(&path));
        let below = ensure(&path.join("below"));
        assert!(matches!(below, Err(PrivateDirError::Os { call: "mkdir", .. })), "{below:?}");
        fs::remove_file(path).unwrap();
    }
}
