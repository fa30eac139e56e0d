//! The secret that two ports prove to each other.

use core::fmt;
use std::{
    io,
    path::{Path, PathBuf},
};

use hmac::{Hmac, KeyInit as _, Mac as _};
use os::private_file::{self, SECRET_BYTES_MAX, SECRET_BYTES_MIN, SecretFileError};
use rustix::rand::{GetRandomFlags, getrandom};
use sha2::Sha256;

/// Why there is no secret.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// The file cannot be read or made.
    #[error("cannot use the secret in {}: {source}; COPYRPC_SECRET_FILE names another", path.display())]
    Unusable {
        /// The file.
        path: PathBuf,
        /// Error of the kernel.
        source: io::Error,
    },
    /// Others can read it.
    #[error("{} can be read by other users; run chmod 600 on it", path.display())]
    NotPrivate {
        /// The file.
        path: PathBuf,
    },
    /// Its owner knows it, whatever its mode is.
    #[error("{} belongs to user {owner}, who can read it; run chown on it", path.display())]
    ForeignOwner {
        /// The file.
        path: PathBuf,
        /// Its owner.
        owner: u32,
    },
    /// Too short to keep strangers out, or no secret at all.
    #[error("the secret in {} has not {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} B", path.display())]
    Length {
        /// The file.
        path: PathBuf,
    },
    /// The folder of the user's own secret.
    #[error(transparent)]
    Folder(#[from] os::private_dir::PrivateDirError),
}

/// The input of the name of a fabric, beside the secret, and how much of the digest is in it.
const FABRIC_LABEL: &[u8] = b"copyrpc fabric of a host";
const FABRIC_BYTES: usize = 12;

/// The knowledge of ports that may meet. It is never shown.
#[derive(Clone)]
pub struct Secret(Box<[u8]>);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl Secret {
    /// Takes it as it is.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Self {
        Self(bytes.into())
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Name of the fabric of ports that share it and the memory of a host. It says nothing of the secret, and is no
    /// name that any process can set.
    pub(crate) fn fabric(&self) -> String {
        let mac = Hmac::<Sha256>::new_from_slice(&self.0).map(|mac| mac.chain_update(FABRIC_LABEL));
        let digest = mac.map(|mac| mac.finalize().into_bytes()).unwrap_or_default();
        let hex: String = digest[..FABRIC_BYTES].iter().map(|byte| format!("{byte:02x}")).collect();
        format!("hosts.{hex}")
    }

    /// Reads it from a file that only this user can read. A newline at the end does not count.
    ///
    /// # Errors
    ///
    /// [`SecretError`].
    pub fn from_file(path: &Path) -> Result<Self, SecretError> {
        let bytes = private_file::read_secret(path).map_err(|error| {
            let path = path.to_owned();
            match error {
                SecretFileError::Os(source) => SecretError::Unusable { path, source },
                SecretFileError::NotPrivate => SecretError::NotPrivate { path },
                SecretFileError::ForeignOwner(owner) => SecretError::ForeignOwner { path, owner },
                SecretFileError::Length(_) => SecretError::Length { path },
            }
        })?;
        Ok(Self(bytes.into()))
    }

    /// The secret of this user on this machine, made when it is needed first: it is in `folder`, which only
    /// the user can enter.
    ///
    /// # Errors
    ///
    /// [`SecretError`].
    pub fn of_user(folder: &Path) -> Result<Self, SecretError> {
        os::private_dir::ensure(folder)?;
        let path = folder.join("tcp.secret");
        if !path.exists() {
            let text: String = random::<32>().iter().map(|byte| format!("{byte:02x}")).collect();
            private_file::make_once(&path, text.as_bytes())
                .map_err(|source| SecretError::Unusable { path: path.clone(), source })?;
        }
        Self::from_file(&path)
    }
}

/// Random bytes of the kernel.
///
/// # Panics
///
/// If the kernel has none to give: nothing that depends on them is then safe.
pub(crate) fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        match getrandom(&mut bytes[filled..], GetRandomFlags::empty()) {
            Ok(count) => filled += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => panic!("getrandom failed: {errno}"),
        }
    }
    bytes
}

#[cfg(all(test, not(miri)))]
mod tests {
    use std::{env, fs, os::unix::fs::MetadataExt as _, process};

    use super::*;

    #[test]
    fn the_users_secret_is_made_once_and_is_private() {
        let folder = env::temp_dir().join(format!("copyrpc-tcp-secret-{}", process::id()));
        let first = Secret::of_user(&folder).unwrap();
        let second = Secret::of_user(&folder).unwrap();
        assert_eq!(first.as_bytes(), second.as_bytes());
        assert!(first.as_bytes().len() >= SECRET_BYTES_MIN);
        let path = folder.join("tcp.secret");
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
        let mut permissions = fs::metadata(&path).unwrap().permissions();
        std::os::unix::fs::PermissionsExt::set_mode(&mut permissions, 0o644);
        fs::set_permissions(&path, permissions).unwrap();
        assert!(matches!(Secret::of_user(&folder), Err(SecretError::NotPrivate { .. })));
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn each_secret_has_a_fabric_of_its_own() {
        let [first, second] = ["a secret of the job", "a secret of another"]
            .map(|text| Secret::from_bytes(text.as_bytes()).fabric());
        assert_ne!(first, second);
        assert_eq!(first, Secret::from_bytes(b"a secret of the job").fabric());
        assert!(first.starts_with("hosts.") && first.len() <= 32, "{first}");
    }

    #[test]
    fn a_key_is_not_shown() {
        assert_eq!(format!("{:?}", Secret::from_bytes(b"hush")), "Secret(..)");
    }
}
