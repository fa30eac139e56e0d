//! How much memory the control groups of this process allow: version 2, version 1, or both.

use std::{fs, path::Path};

/// Version 1 says so for "no limit", rounded down to pages.
const UNLIMITED: u64 = 1 << 62;

/// The smallest limit of the control groups that this process is in, and of those around them; `None` if
/// there is none.
#[must_use]
pub fn memory_limit_bytes() -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    limit_below(Path::new("/sys/fs/cgroup"), &groups)
}

/// The same, for what `/proc/PID/cgroup` says, and control groups that are mounted at `root`.
fn limit_below(root: &Path, groups: &str) -> Option<u64> {
    let limits = groups.lines().filter_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        if controllers.is_empty() {
            smallest(root, path, "memory.max")
        } else if controllers.split(',').any(|name| name == "memory") {
            smallest(&root.join("memory"), path, "memory.limit_in_bytes")
        } else {
            None
        }
    });
    limits.min()
}

/// The smallest of the limits from a group up to the root. In a container the root may be the group itself.
fn smallest(root: &Path, path: &str, file: &str) -> Option<u64> {
    let group = root.join(path.trim_start_matches('/'));
    let groups = group.ancestors().take_while(|folder| folder.starts_with(root));
    let limits = groups.filter_map(|folder| {
        let text = fs::read_to_string(folder.join(file)).ok()?;
        text.trim().parse::<u64>().ok().filter(|bytes| *bytes < UNLIMITED)
    });
    limits.min()
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Folder(std::path::PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("copyrpc-{name}-{}", std::process::id()));
            Self(path)
        }

        fn write(&self, path: &str, text: &str) {
            let path = self.0.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "files")]
    fn fault_i9_limits_of_both_versions_and_of_groups_around_are_found() {
        let folder = Folder::new("cgroup");
        folder.write("a/memory.max", "max\n");
        folder.write("a/b/memory.max", "268435456\n");
        folder.write("memory/memory.limit_in_bytes", "9223372036854771712\n");
        folder.write("memory/docker/x/memory.limit_in_bytes", "67108864\n");
        let limit = |groups| limit_below(&folder.0, groups);
        assert_eq!(limit("0::/a\n"), None);
        assert_eq!(limit("0::/a/b/c\n"), Some(256 << 20));
        assert_eq!(limit("5:cpu,cpuacct:/\n4:memory:/docker/x\n0::/\n"), Some(64 << 20));
        assert_eq!(limit("4:memory:/docker/x\n0::/a/b\n"), Some(64 << 20));
        assert_eq!(limit("4:memory:/elsewhere\n"), None, "unlimited at the root");
        assert_eq!(limit(""), None);
    }
}
