//! The secret of a job, which nobody else knows, and proofs that one knows it.

use core::fmt::{self, Write as _};
use std::{
    fs::{File, Permissions},
    io::{self, Write as _},
    os::{fd::AsRawFd as _, unix::fs::PermissionsExt as _},
    path::{Path, PathBuf},
    process,
};

use hmac::{Hmac, KeyInit as _, Mac as _};
use os::private_file::{self, SECRET_BYTES_MAX, SECRET_BYTES_MIN, SecretFileError};
use rustix::fs::{MemfdFlags, memfd_create};
use sha2::Sha256;

use crate::entropy;

/// Bytes of a proof.
pub const PROOF_BYTES: usize = 32;

/// Why a secret cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// The file cannot be read.
    #[error(
        "cannot read the secret in {}: {source}; COPYRPC_SECRET_FILE names it, and head -c 32 \
         /dev/urandom makes one", path.display()
    )]
    Unreadable {
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
    #[error(
        "{} belongs to user {owner}, who can read it; run chown on it, or let COPYRPC_SECRET_FILE name a copy of \
         your own", path.display()
    )]
    ForeignOwner {
        /// The file.
        path: PathBuf,
        /// Its owner.
        owner: u32,
    },
    /// Too short to keep anybody out, or no secret at all.
    #[error(
        "the secret in {} has {len_bytes} B, not {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX}; make one with \
         head -c 32 /dev/urandom", path.display()
    )]
    Length {
        /// The file.
        path: PathBuf,
        /// Its length, if that is not too long.
        len_bytes: usize,
    },
}

/// The secret of a job, known to its daemons only. It is never shown.
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

    /// A new one.
    #[must_use]
    pub fn random() -> Self {
        Self(entropy::nonce().into())
    }

    /// A new one of hexadecimal digits, which a file or a line of text can hold.
    #[must_use]
    pub fn random_digits() -> Self {
        let mut digits = String::new();
        for byte in entropy::nonce() {
            let _ = write!(digits, "{byte:02x}");
        }
        Self(digits.into_bytes().into())
    }

    /// The bytes, to be handed to other daemons of the job.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
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
                SecretFileError::Os(source) => SecretError::Unreadable { path, source },
                SecretFileError::NotPrivate => SecretError::NotPrivate { path },
                SecretFileError::ForeignOwner(owner) => SecretError::ForeignOwner { path, owner },
                SecretFileError::Length(len_bytes) => SecretError::Length { path, len_bytes },
            }
        })?;
        Ok(Self(bytes.into()))
    }

    /// Signs `parts`, whose lengths are fixed or stated in them, for one purpose.
    #[must_use]
    pub fn sign(&self, role: ProofPurpose, parts: &[&[u8]]) -> Proof {
        self.mac(role, parts).finalize().into_bytes().into()
    }

    /// Whether `proof` is the signature of `parts` for this purpose; in constant time.
    #[must_use]
    pub fn verify(&self, role: ProofPurpose, parts: &[&[u8]], proof: &Proof) -> bool {
        self.mac(role, parts).verify_slice(proof).is_ok()
    }

    fn mac(&self, role: ProofPurpose, parts: &[&[u8]]) -> Hmac<Sha256> {
        let mac = Hmac::<Sha256>::new_from_slice(&self.0);
        let mut mac = mac.expect("HMAC takes keys of any length");
        mac.update(role.label());
        for part in parts {
            mac.update(part);
        }
        mac
    }
}

/// A secret in a file that has no name but that of this process's descriptor: nothing is left of it, however the
/// process ends.
#[derive(Debug)]
pub struct UnnamedFile(File);

impl UnnamedFile {
    /// A file with this secret.
    ///
    /// # Errors
    ///
    /// The kernel's reason.
    pub fn new(secret: &Secret) -> io::Result<Self> {
        let mut file = File::from(memfd_create("copyrpc-secret", MemfdFlags::CLOEXEC)?);
        file.set_permissions(Permissions::from_mode(0o600))?;
        file.write_all(secret.as_bytes())?;
        Ok(Self(file))
    }

    /// Its path for processes of this user, until it is dropped.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", process::id(), self.0.as_raw_fd()).into()
    }
}

/// A proof.
pub type Proof = [u8; PROOF_BYTES];

/// The purpose of a proof: a proof for one purpose is worth nothing for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProofPurpose {
    /// The rendezvous is of this job.
    Rendezvous,
    /// So is whoever joins.
    Join,
    /// The blob is what the rank sent.
    Blob,
    /// The roster is what the rendezvous sent.
    Roster,
    /// The file in a shared folder is what the rank wrote.
    File,
    /// The datagram is what a daemon sent.
    Control,
    /// The connection leads to the leader of a benchmark.
    Leader,
    /// So does it to a host of the benchmark.
    Host,
}

impl ProofPurpose {
    /// All of one length, so that none is the start of another.
    fn label(self) -> &'static [u8; 16] {
        match self {
            Self::Rendezvous => b"copyrpc hub   v1",
            Self::Join => b"copyrpc join  v1",
            Self::Blob => b"copyrpc blob  v1",
            Self::Roster => b"copyrpc rosterv1",
            Self::File => b"copyrpc file  v1",
            Self::Control => b"copyrpc ctl   v1",
            Self::Leader => b"copyrpc leaderv1",
            Self::Host => b"copyrpc host  v1",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{env, fs, os::unix::fs::PermissionsExt as _, process};

    use super::*;

    #[test]
    fn the_proof_is_hmac_sha_256() {
        // RFC 4231, test case 2: key "Jefe", data "what do ya want for nothing?". The label precedes
        // the data here, so only the length and the sensitivity can be taken from it.
        let secret = Secret::from_bytes(b"Jefe");
        let proof = secret.sign(ProofPurpose::Rendezvous, &[b"what do ya want ", b"for nothing?"]);
        assert_eq!(
            proof,
            secret.sign(ProofPurpose::Rendezvous, &[b"what do ya want for nothing?"])
        );
        assert!(secret.verify(
            ProofPurpose::Rendezvous,
            &[b"what do ya want for nothing?"],
            &proof
        ));
        assert!(!secret.verify(ProofPurpose::Join, &[b"what do ya want for nothing?"], &proof));
        assert!(!secret.verify(
            ProofPurpose::Rendezvous,
            &[b"what do ya want for nothing!"],
            &proof
        ));
        assert!(!Secret::from_bytes(b"jefe").verify(
            ProofPurpose::Rendezvous,
            &[b"what do ya want for nothing?"],
            &proof
        ));
    }

    #[test]
    fn a_secret_is_not_shown() {
        assert_eq!(format!("{:?}", Secret::from_bytes(b"hush")), "Secret(..)");
    }

    #[test]
    fn a_file_that_others_can_read_keeps_no_secret() {
        let path = env::temp_dir().join(format!("copyrpc-secret-{}", process::id()));
        let read = |text: &str, mode| {
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            Secret::from_file(&path)
        };
        assert_eq!(read("sixteen bytes...\n", 0o600).unwrap().as_bytes(), b"sixteen bytes...");
        assert!(matches!(read("sixteen bytes...", 0o640), Err(SecretError::NotPrivate { .. })));
        assert!(matches!(read("short", 0o600), Err(SecretError::Length { len_bytes: 5, .. })));
        fs::remove_file(&path).unwrap();
        assert!(matches!(Secret::from_file(&path), Err(SecretError::Unreadable { .. })));
    }
}
