//! What a start is refused for, at once and by name, and the exit code that tells whether to try again.

use std::{
    fs,
    os::unix::fs::{DirBuilderExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use super::{copyrpc, text};

/// Longest time of what is refused at once, on a machine that is busy.
const AT_ONCE: Duration = Duration::from_secs(30);

/// A folder that is removed with the value.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("copyrpc-no-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::DirBuilder::new().mode(0o700).create(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = copyrpc(arguments);
        command.env("COPYRPC_RUNTIME_DIR", &self.0);
        command
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A FIFO at whose other end there is no process.
fn fifo(path: &str) {
    let made = Command::new("mkfifo").args(["-m", "600", path]).status().unwrap();
    assert!(made.success(), "{path}");
}

/// What a command says that ends by itself in time; it is killed otherwise.
fn ended(mut command: Command) -> Output {
    let spawned =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child: Child = spawned.unwrap();
    let began = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if began.elapsed() > AT_ONCE {
            child.kill().unwrap();
            let output = child.wait_with_output().unwrap();
            panic!("{command:?} did not end: {}", text(&output.stderr));
        }
        thread::sleep(Duration::from_millis(5));
    }
    child.wait_with_output().unwrap()
}

#[test]
fn what_is_no_file_is_refused_at_once_and_by_name() {
    let folder = Folder::new("file");
    let pipe = folder.file("pipe");
    fifo(&pipe);
    let ranks = ["--rank", "0", "--size", "2", "--rendezvous", "127.0.0.1:1", "--secret-file"];
    for (place, what) in [(pipe.as_str(), "a FIFO"), ("/dev/zero", "a device")] {
        let secret = folder.command(&[&["daemon"][..], &ranks, &[place]].concat());
        let mut config = folder.command(&["config"]);
        config.env("COPYRPC_CONFIG", place);
        for command in [secret, config] {
            let refused = ended(command);
            let told = text(&refused.stderr);
            assert!(told.contains(what) && told.contains(place), "{told}");
            assert_eq!(refused.status.code(), Some(2), "{told}");
        }
    }
    // What lies in the place of the lock.
    let socket = folder.file("of.sock");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    for (place, what) in [(pipe.as_str(), "a FIFO"), (&socket, "a socket")] {
        fs::rename(place, folder.file("default.lock")).unwrap();
        let refused = ended(folder.command(&["daemon"]));
        fs::rename(folder.file("default.lock"), place).unwrap();
        let told = text(&refused.stderr);
        assert!(!refused.status.success() && told.contains(&format!("it is {what}")), "{told}");
    }
    // A configuration that is one, and has no end for anybody's purpose.
    let long = folder.file("long.toml");
    fs::write(&long, "#".repeat(2 << 20)).unwrap();
    let refused = ended(folder.command(&["config", "--config", &long]));
    assert!(text(&refused.stderr).contains("more than 1048576 B"), "{}", text(&refused.stderr));
    // Counters and a lock that are none keep nobody from the others.
    fifo(&folder.file("x.metrics"));
    fifo(&folder.file("x.lock"));
    for arguments in [&["stat"][..], &["clean", "--dry-run"], &["doctor"]] {
        ended(folder.command(arguments));
    }
}

#[test]
fn settings_that_make_no_sense_are_told_from_what_may_be_there_later() {
    let folder = Folder::new("code");
    fs::set_permissions(&folder.0, fs::Permissions::from_mode(0o750)).unwrap();
    let refused = ended(folder.command(&["daemon"]));
    assert!(text(&refused.stderr).contains("with mode 0700"), "{}", text(&refused.stderr));
    assert_eq!(refused.status.code(), Some(2));
    fs::set_permissions(&folder.0, fs::Permissions::from_mode(0o700)).unwrap();
    let secret = folder.file("secret");
    fs::write(&secret, [7; 32]).unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
    let late = ["daemon", "--rank", "1", "--size", "2", "--rendezvous", "127.0.0.1:1"];
    let limits =
        ["--bootstrap-timeout", "2s", "--handshake-timeout", "1s", "--secret-file", &secret];
    let refused = ended(folder.command(&[&late[..], &limits].concat()));
    let last = text(&refused.stderr).lines().last().unwrap_or_default();
    assert!(last.contains("found no process at"), "{last}");
    // The end is told as all else: by whom, and when.
    assert!(last.starts_with("20") && last.contains("Z default rank 1 ERROR "), "{last}");
    assert_eq!(refused.status.code(), Some(75));
    let refused = ended(folder.command(&[&late[..], &limits, &["--log", "json"]].concat()));
    let is_object = |line: &str| {
        serde_json::from_str::<serde_json::Value>(line).is_ok_and(|it| it["daemon"] == "default")
    };
    assert!(text(&refused.stderr).lines().all(is_object), "{}", text(&refused.stderr));
    // A daemon that is about to end keeps the next one out for a moment.
    let _first = os::lock::LockFile::acquire(&folder.0.join("default.lock")).unwrap();
    let refused = ended(folder.command(&["daemon"]));
    assert_eq!(refused.status.code(), Some(75), "{}", text(&refused.stderr));
}

/// The lock is what tells, whatever the counters say: the process table of a container shows nobody.
#[test]
fn clean_asks_the_lock_before_it_removes_anything() {
    let folder = Folder::new("clean");
    let sock = folder.file("job.sock");
    fs::write(folder.file("job.metrics"), "of nobody that is seen").unwrap();
    fs::write(&sock, "").unwrap();
    let lock = os::lock::LockFile::acquire(&folder.0.join("job.lock")).unwrap();
    let kept = ended(folder.command(&["clean"]));
    assert_eq!(text(&kept.stdout), "nothing of a dead daemon is left\n");
    assert!(Path::new(&sock).exists());
    drop(lock);
    // What `--dry-run` names is what goes; a folder in the place of a file is of no daemon, and named.
    let place = folder.file("other.metrics");
    fs::create_dir(&place).unwrap();
    let would = ended(folder.command(&["clean", "--dry-run"]));
    let removed = ended(folder.command(&["clean"]));
    assert!(text(&removed.stdout).contains(&format!("removed {sock}")), "{removed:?}");
    assert_eq!(text(&would.stdout).replace("would remove", "removed"), text(&removed.stdout));
    for told in [would, removed] {
        assert!(told.status.success() && !text(&told.stdout).contains(&place), "{told:?}");
        assert!(text(&told.stderr).contains(&format!("{place} is a folder")), "{told:?}");
    }
    assert!(Path::new(&place).is_dir());
    assert!(!Path::new(&sock).exists() && folder.0.join("job.lock").exists());
}

#[test]
fn a_place_without_a_daemon_names_those_beside_it() {
    let folder = Folder::new("beside");
    let instance = ["--instance", "7"];
    let mut daemon = folder.command(&[&["daemon"][..], &instance].concat());
    let mut daemon = daemon.stderr(Stdio::null()).spawn().unwrap();
    let began = Instant::now();
    while !ended(folder.command(&["ping", "0", "--instance", "7"])).status.success() {
        assert!(began.elapsed() < AT_ONCE, "no daemon answers");
    }
    for arguments in [&["ping", "0"][..], &["peers"], &["drain"]] {
        let told = ended(folder.command(arguments));
        assert!(text(&told.stderr).contains("there are default@7; --instance"), "{told:?}");
    }
    let shown = |arguments: &[&str]| text(&ended(folder.command(arguments)).stdout).to_owned();
    assert!(shown(&["stat", "--instance", "7"]).starts_with("default@7: rank 0 of 1"));
    let others = shown(&["stat", "--instance", "8"]);
    assert!(others.starts_with("no daemon") && others.contains("there are default@7"), "{others}");
    daemon.kill().unwrap();
    daemon.wait().unwrap();
}

/// The memory of queues is files, too: a daemon that cannot have them says so.
#[test]
fn fault_c8_a_daemon_below_a_limit_of_file_sizes_says_that_it_has_no_memory() {
    let folder = Folder::new("limit");
    let mut shell = Command::new("bash");
    shell.args(["-c", "ulimit -f 4; exec \"$0\" daemon", env!("CARGO_BIN_EXE_copyrpc")]);
    shell.env("COPYRPC_RUNTIME_DIR", folder.file("run"));
    let daemon = ended(shell);
    assert_eq!(daemon.status.code(), Some(3), "{:?} {}", daemon.status, text(&daemon.stderr));
    assert!(text(&daemon.stderr).contains("File too large"), "{}", text(&daemon.stderr));
}
