//! Which daemon this is, and where it meets the others: what knobs and launcher say together.

use std::{env, path::PathBuf};

use anyhow::Context as _;
use bootstrap::{
    RankInfo, Secret,
    launcher::{self, Launched},
    meeting::Meeting,
    pmi::{KeySpace, ReservedPort},
    secret::UnnamedFile,
};
use client::Runtime;
use config::Settings;
use daemon::{
    Serving,
    config::{BOOTSTRAP, DaemonConfig, SECRET_FILE, Start, runtime_of_local},
};

use crate::exit::UsageError;

/// Which daemon this is, and where it finds the others.
#[derive(Debug)]
pub struct Launch {
    /// Its settings.
    pub config: DaemonConfig,
    /// Its folder.
    pub runtime: Runtime,
    /// Its rank, and the number of ranks.
    pub rank_info: RankInfo,
    place: Place,
}

/// The place of the rendezvous, by its origin.
#[derive(Debug)]
enum Place {
    /// Where the settings say.
    Told,
    /// In a folder.
    Folder(Meeting),
    /// Where rank 0 tells by the launcher, or else in a folder.
    Launcher(KeySpace, Option<Meeting>),
}

impl Launch {
    /// The settings of knobs and launcher together.
    ///
    /// # Errors
    ///
    /// If the launcher contradicts the settings, or is asked for and absent.
    pub fn of(settings: &Settings, config: DaemonConfig) -> anyhow::Result<Self> {
        let launched = launcher::detect(lookup(settings))?;
        let is_alone = settings.text(&BOOTSTRAP) == "alone";
        let rank_info = match &launched {
            Some(launched) if !is_alone => launched.rank_info,
            _ => RankInfo::ALONE,
        };
        let local_rank = launched.as_ref().map_or(0, |launched| launched.local_rank);
        let runtime = runtime_of_local(settings, local_rank)?;
        let is_asked_for = settings.text(&BOOTSTRAP) == "pmi";
        if is_asked_for && launched.is_none() {
            let problem =
                "bootstrap = pmi, and no launcher has started this daemon; use srun or mpirun";
            return Err(UsageError(problem.to_owned()).into());
        }
        let place = match launched {
            Some(launched) if rank_info.size() > 1 && config.start == Start::Alone => {
                place_of(&launched, is_asked_for, &runtime)?
            }
            _ => Place::Told,
        };
        Ok(Self { config, runtime, rank_info, place })
    }

    /// Finds the place where all meet, and the secret.
    ///
    /// # Errors
    ///
    /// If there is no secret, or the ranks do not meet in time.
    pub fn meet(self, settings: &Settings, is_to_stop: &dyn Fn() -> bool) -> anyhow::Result<Met> {
        let Self { config, runtime, rank_info, place } = self;
        let file = settings.text(&SECRET_FILE);
        let told = if file.is_empty() { None } else { Some(Secret::from_file(file.as_ref())?) };
        let serving = |start, secret| {
            let config = DaemonConfig { start, ..config.clone() };
            Serving { config, runtime: runtime.clone(), rank_info, secret }
        };
        let meeting = match place {
            Place::Told => {
                let secret = match (told, &config.start) {
                    (Some(secret), _) => secret,
                    (None, Start::Alone) => Secret::random(),
                    (None, _) => return Err(UsageError(NO_SECRET.to_owned()).into()),
                };
                return Ok(Met {
                    serving: serving(config.start.clone(), secret),
                    kept: Kept::Nothing,
                });
            }
            Place::Folder(meeting) => meeting,
            Place::Launcher(space, otherwise) => {
                let agreed = space.agree(rank_info, config.bootstrap_timeout, is_to_stop);
                match (agreed, otherwise) {
                    (Ok((point, reserved)), _) => {
                        let file = UnnamedFile::new(&point.secret);
                        let file = file.context("cannot make a file for the secret")?;
                        let start = Start::Once(point.address.to_string());
                        let serving = serving(start, told.unwrap_or(point.secret));
                        return Ok(Met { serving, kept: Kept::Point(file, reserved) });
                    }
                    (Err(error), Some(meeting)) if error.is_unavailable() => {
                        let folder = meeting.folder.display();
                        tracing::info!(%error, %folder, "the launcher is not asked: ranks meet in a folder");
                        meeting
                    }
                    (Err(error), _) => return Err(error.into()),
                }
            }
        };
        let made = meeting.prepare()?;
        let start = Start::File(meeting.folder.clone());
        Ok(Met { serving: serving(start, told.unwrap_or(made)), kept: Kept::Folder(meeting) })
    }
}

const NO_SECRET: &str = "daemons of several nodes need a secret: head -c 32 /dev/urandom > FILE; chmod 600 FILE; \
                         set COPYRPC_SECRET_FILE on all nodes";

/// Ranks of one host meet in its runtime folder; those of several by the launcher, or in the home folder.
fn place_of(launched: &Launched, is_asked_for: bool, runtime: &Runtime) -> anyhow::Result<Place> {
    let space = KeySpace::detect(|variable| env::var(variable).ok(), launched.rank_info);
    let home = env::var_os("HOME").filter(|home| !home.is_empty()).map(PathBuf::from);
    let meeting = Meeting::of(launched, runtime.folder(), home.as_deref());
    match (space, meeting) {
        (Some(space), _) if is_asked_for => Ok(Place::Launcher(space, None)),
        (None, _) if is_asked_for => {
            let launcher = launched.launcher;
            let problem = format!(
                "bootstrap = pmi, and {launcher} sets neither PMIX_NAMESPACE and PMIX_RANK nor PMI_FD for this rank; \
                 try srun --mpi=pmix or --mpi=pmi2"
            );
            Err(UsageError(problem).into())
        }
        (_, Ok(meeting)) if launched.is_one_host => Ok(Place::Folder(meeting)),
        (Some(space), meeting) => Ok(Place::Launcher(space, meeting.ok())),
        (None, meeting) => {
            Ok(Place::Folder(meeting.map_err(|error| UsageError(error.to_string()))?))
        }
    }
}

/// Knobs as if they were variables, so that a flag or a file can set a rank.
fn lookup(settings: &Settings) -> impl Fn(&str) -> Option<String> {
    |name| match settings.find(name) {
        Some(setting) => Some(setting.text.clone()).filter(|text| !text.is_empty()),
        None => env::var(name).ok(),
    }
}

/// A daemon that knows where it meets the others.
pub struct Met {
    /// Everything that it serves with.
    pub serving: Serving,
    kept: Kept,
}

/// Objects that live until the daemon ends.
enum Kept {
    Nothing,
    Folder(Meeting),
    /// The secret, and the port of rank 0.
    Point(UnnamedFile, #[expect(dead_code, reason = "held")] Option<ReservedPort>),
}

impl Met {
    /// The file with the secret, if the settings name none.
    pub fn secret_file(&self) -> Option<PathBuf> {
        match &self.kept {
            Kept::Nothing => None,
            Kept::Folder(meeting) => Some(meeting.secret_file.clone()),
            Kept::Point(file, _) => Some(file.path()),
        }
    }

    /// Removes what the ranks have left where they met.
    pub fn leave(self) {
        if let Kept::Folder(meeting) = self.kept {
            meeting.clear();
        }
    }
}
