//! Where the ranks of a launch meet when nobody says so: a private folder, which holds the secret, too.
//!
//! ```text
//!  all on one host    RUNTIME_FOLDER/meet/LAUNCH/     secret │ JOB.RANK, of each rank
//!  several hosts      HOME/.copyrpc/meet/LAUNCH/      the same: home folders of clusters are shared
//! ```
//!
//! The first rank that comes makes the folder and the secret. LAUNCH is what the launcher calls the launch; on one
//! host, where the launcher gives it no name, the process that has started the ranks names it.

use std::{
    fs, io,
    os::unix::process::parent_id,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use client::allocation::file_name;
use os::{private_dir::PrivateDirError, private_file, process::Process};

use crate::{
    Secret, SecretError,
    launcher::{Launched, SETTINGS},
};

/// Why a launch has no place to meet.
#[derive(Debug, thiserror::Error)]
pub enum MeetingError {
    /// Rank and size were set by hand, and no place.
    #[error(
        "{SETTINGS} say that there are other ranks, and nothing says where they meet; set --rendezvous \
         (COPYRPC_RENDEZVOUS) to HOST:PORT of rank 0 or a folder that all share, and --secret-file (COPYRPC_SECRET_FILE)"
    )]
    NoRendezvous,
    /// Nothing tells the launch from others, or no folder is shared.
    #[error(
        "{launcher} starts ranks on several hosts, and {missing}; set COPYRPC_RENDEZVOUS to HOST:PORT of rank 0 \
         or a folder that all share, and COPYRPC_SECRET_FILE"
    )]
    NoPlace {
        /// The launcher.
        launcher: &'static str,
        /// The setting that is missing.
        missing: &'static str,
    },
    /// The folder is not private.
    #[error(transparent)]
    Folder(#[from] PrivateDirError),
    /// The secret cannot be made.
    #[error("cannot make the secret {}: {source}", path.display())]
    Make {
        /// The file.
        path: PathBuf,
        /// Error of the kernel.
        source: io::Error,
    },
    /// The secret cannot be read.
    #[error(transparent)]
    Secret(#[from] SecretError),
}

/// A folder where ranks meet, and their secret.
#[derive(Clone, Debug)]
pub struct Meeting {
    /// The folder.
    pub folder: PathBuf,
    /// The file with the secret.
    pub secret_file: PathBuf,
}

/// How often, and with which pauses, a rank looks for a secret that another one has made.
const LOOKS: u32 = 200;
const LOOK_PAUSE: Duration = Duration::from_millis(10);

impl Meeting {
    /// The place of a launch, on a host with this runtime folder and, if it is set, this home folder.
    ///
    /// # Errors
    ///
    /// [`MeetingError::NoPlace`], [`MeetingError::NoRendezvous`].
    pub fn of(
        launched: &Launched,
        runtime_folder: &Path,
        home: Option<&Path>,
    ) -> Result<Self, MeetingError> {
        if launched.launcher == SETTINGS {
            return Err(MeetingError::NoRendezvous);
        }
        let no_place = |missing| MeetingError::NoPlace { launcher: launched.launcher, missing };
        let name = launched.launch.as_deref().map(file_name);
        let folder = if launched.is_one_host {
            let name = name.unwrap_or_else(parent);
            runtime_folder.join("meet").join(name)
        } else {
            let home = home.ok_or_else(|| no_place("HOME is not set"))?;
            let name = name.ok_or_else(|| no_place("does not name the launch"))?;
            home.join(".copyrpc/meet").join(name)
        };
        Ok(Self { secret_file: folder.join("secret"), folder })
    }

    /// Makes the folder and the secret, or takes what another rank has made.
    ///
    /// # Errors
    ///
    /// [`MeetingError`].
    pub fn prepare(&self) -> Result<Secret, MeetingError> {
        os::private_dir::ensure(&self.folder)?;
        let path = &self.secret_file;
        let made = private_file::make_once(path, Secret::random_digits().as_bytes());
        made.map_err(|source| MeetingError::Make { path: path.clone(), source })?;
        // Another host may have made it, and this one may see that a little later.
        let mut looks = 0;
        loop {
            match Secret::from_file(path) {
                Err(SecretError::Unreadable { source, .. })
                    if source.kind() == io::ErrorKind::NotFound && looks < LOOKS =>
                {
                    looks += 1;
                    thread::sleep(LOOK_PAUSE);
                }
                secret => return Ok(secret?),
            }
        }
    }

    /// Removes the secret and the folder, if it is empty but for that.
    pub fn clear(&self) {
        let only_secret = fs::read_dir(&self.folder)
            .is_ok_and(|entries| entries.flatten().all(|entry| entry.file_name() == "secret"));
        if only_secret {
            let _ = fs::remove_file(&self.secret_file);
            let _ = fs::remove_dir(&self.folder);
        }
    }
}

/// The process that has started this one, and its siblings.
fn parent() -> String {
    let pid = parent_id();
    let ticks = Process::open(pid).map_or(0, |process| process.id().start_ticks);
    format!("parent-{pid}-{ticks}")
}

#[cfg(all(test, not(miri)))]
mod tests {
    use std::{env, process};

    use super::*;
    use crate::RankInfo;

    fn launched(launch: Option<&str>, is_one_host: bool) -> Launched {
        Launched {
            launcher: "a launcher",
            rank_info: RankInfo::new(0, 2).unwrap(),
            launch: launch.map(str::to_owned),
            local_rank: 0,
            is_one_host,
        }
    }

    #[test]
    fn a_launch_meets_in_the_runtime_folder_on_one_host_and_in_the_home_folder_else() {
        let (runtime, home) = (Path::new("/run/r"), Some(Path::new("/shared/h")));
        let of = |launched| Meeting::of(&launched, runtime, home);
        let folder = of(launched(Some("77.0"), true)).unwrap().folder;
        assert_eq!(folder, Path::new("/run/r/meet/77.0"));
        let folder = of(launched(Some("a@b/c"), false)).unwrap().folder;
        assert_eq!(folder, Path::new("/shared/h/.copyrpc/meet/a-b-c"));
        let folder = of(launched(None, true)).unwrap().folder;
        assert!(folder.to_str().unwrap().starts_with("/run/r/meet/parent-"), "{folder:?}");
        assert_eq!(folder, of(launched(None, true)).unwrap().folder);
        let error = of(launched(None, false)).unwrap_err().to_string();
        assert!(error.contains("does not name the launch; set COPYRPC_RENDEZVOUS"), "{error}");
        assert!(Meeting::of(&launched(Some("1"), false), runtime, None).is_err());
    }

    #[test]
    fn ranks_that_come_at_once_get_one_secret_and_the_last_one_clears() {
        let runtime = env::temp_dir().join(format!("copyrpc-meeting-{}", process::id()));
        let meeting = Meeting::of(&launched(Some("1"), true), &runtime, None).unwrap();
        let secrets = thread::scope(|scope| {
            let ranks: Vec<_> =
                (0..8).map(|_| scope.spawn(|| meeting.prepare().unwrap())).collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect::<Vec<_>>()
        });
        assert!(secrets.iter().all(|secret| secret.as_bytes() == secrets[0].as_bytes()));
        fs::write(meeting.folder.join("job.1"), "of another rank").unwrap();
        meeting.clear();
        assert!(meeting.secret_file.exists(), "another rank is there");
        fs::remove_file(meeting.folder.join("job.1")).unwrap();
        meeting.clear();
        assert!(!meeting.folder.exists());
        fs::remove_dir_all(&runtime).unwrap();
    }
}
