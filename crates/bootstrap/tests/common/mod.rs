//! What several tests need.
#![allow(dead_code, reason = "each test uses its part")]

use std::{
    env, fs,
    path::{Path, PathBuf},
    process, thread,
    time::{Duration, Instant},
};

/// Waits until something holds that must come to hold, whatever the load of the machine.
pub(crate) fn eventually(mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !holds() {
        assert!(Instant::now() < deadline, "it never came to hold");
        thread::yield_now();
    }
}

/// An empty folder that is removed with all it contains.
pub(crate) struct TempFolder(PathBuf);

impl TempFolder {
    pub(crate) fn new(name: &str) -> Self {
        let path = env::temp_dir().join(format!("copyrpc-{name}-{}", process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    pub(crate) fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).unwrap();
        entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect()
    }
}

impl Drop for TempFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
