//! Real daemons in a folder of their own, what is seen of them, and what is done to them.

use std::{
    collections::BTreeMap,
    env,
    fs::{self, DirEntry},
    io,
    path::{Path, PathBuf},
    process::{self, Child, Command, Stdio},
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};

use client::{Client, ClientConfig, Provider, ProviderStop};
use daemon::{
    Status,
    metrics::{Counter, DaemonState, Life, Snapshot},
};
use rustix::process::{Pid, Signal, kill_process};

/// Longest that anything may take, however loaded the machine is.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

pub(super) const ECHO: u16 = 9;

/// Some daemons in a folder of their own, ended with the value.
pub(super) struct Cluster {
    pub(super) folder: PathBuf,
    fabric: String,
    /// A folder, or an address.
    rendezvous: String,
    /// Variables that daemons find set besides.
    pub(super) settings: Vec<(&'static str, &'static str)>,
    pub(super) daemons: Vec<Option<Child>>,
    /// By rank: the program that its daemon runs.
    pub(super) programs: Vec<PathBuf>,
}

/// The program that these tests are of.
pub(super) const PROGRAM: &str = env!("CARGO_BIN_EXE_copyrpc");

impl Cluster {
    pub(super) fn new(size: u32) -> Self {
        Self::make(size, None, &[])
    }

    pub(super) fn meeting_at(size: u32, address: String) -> Self {
        Self::make(size, Some(address), &[])
    }

    pub(super) fn with(size: u32, settings: &[(&'static str, &'static str)]) -> Self {
        Self::make(size, None, settings)
    }

    fn make(size: u32, address: Option<String>, settings: &[(&'static str, &'static str)]) -> Self {
        let programs = (0..size).map(|_| PROGRAM.into()).collect();
        let cluster = Self::started(programs, address, settings);
        (0..size).for_each(|rank| cluster.wait_up(rank, u64::from(size) - 1));
        cluster
    }

    /// Daemons that run these programs, and may refuse each other.
    pub(super) fn of_programs(programs: Vec<PathBuf>) -> Self {
        Self::started(programs, None, &[])
    }

    fn started(
        programs: Vec<PathBuf>,
        address: Option<String>,
        settings: &[(&'static str, &'static str)],
    ) -> Self {
        static COUNT: Mutex<u32> = Mutex::new(0);
        let size = u32::try_from(programs.len()).unwrap();
        let mut count = COUNT.lock().unwrap();
        *count += 1;
        let name = format!("copyrpc-daemons-{}-{count}", process::id());
        let folder = env::temp_dir().join(&name);
        fs::create_dir_all(folder.join("meet")).unwrap();
        make_private(&folder);
        fs::write(folder.join("secret"), "the secret of these daemons").unwrap();
        make_private(&folder.join("secret"));
        let meet = folder.join("meet").to_str().unwrap().to_owned();
        let rendezvous = address.unwrap_or(meet);
        let daemons = (0..size).map(|_| None).collect();
        let settings = settings.to_vec();
        let mut cluster = Self { folder, fabric: name, rendezvous, settings, daemons, programs };
        for rank in 0..size {
            cluster.start(rank);
        }
        cluster
    }

    pub(super) fn command(&self, rank: u32) -> Command {
        let mut command = Command::new(&self.programs[rank as usize]);
        self.settle(rank, &mut command);
        command
    }

    /// Lets a command see this cluster, as a process of the node of `rank`, and little else.
    pub(super) fn settle<'a>(&self, rank: u32, command: &'a mut Command) -> &'a mut Command {
        command
            .env_clear()
            .env("PATH", env::var_os("PATH").unwrap_or_default())
            .env("COPYRPC_RUNTIME_DIR", &self.folder)
            .env("COPYRPC_SOFT_FABRIC", &self.fabric)
            .env("COPYRPC_INSTANCE", rank.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
    }

    pub(super) fn start(&mut self, rank: u32) {
        let mut command = self.command(rank);
        self.configure(rank, command.arg("daemon"));
        command.stderr(fs::File::create(self.log(rank)).unwrap());
        self.daemons[rank as usize] = Some(command.spawn().unwrap());
    }

    /// What the daemon of a rank has logged in its latest life.
    pub(super) fn log(&self, rank: u32) -> PathBuf {
        // Beside the folder, of which a test looks what is left there.
        self.folder.with_extension(format!("{rank}.log"))
    }

    /// Lets a command run the daemon of `rank`.
    pub(super) fn configure(&self, rank: u32, command: &mut Command) {
        self.settle(rank, command)
            .env("COPYRPC_RANK", rank.to_string())
            .env("COPYRPC_SIZE", self.daemons.len().to_string())
            .env("COPYRPC_RENDEZVOUS", &self.rendezvous)
            .env("COPYRPC_SECRET_FILE", self.folder.join("secret"))
            .env("COPYRPC_HEARTBEAT_INTERVAL", "25ms")
            .env("COPYRPC_SUSPECT_AFTER", "500ms")
            .env("COPYRPC_DEAD_AFTER", "1s")
            .envs(self.settings.iter().copied());
    }

    pub(super) fn name(rank: u32, suffix: &str) -> String {
        format!("default@{rank}.{suffix}")
    }

    pub(super) fn socket(&self, rank: u32) -> PathBuf {
        self.folder.join(Self::name(rank, "sock"))
    }

    fn snapshot(&self, rank: u32) -> Option<Snapshot> {
        let snapshot = Snapshot::read(&self.folder.join(Self::name(rank, "metrics"))).ok()?;
        // A life that was killed leaves its counters until the next has its own.
        let daemon = self.daemons[rank as usize].as_ref()?;
        (snapshot.process.pid == daemon.id()).then_some(snapshot)
    }

    pub(super) fn counter(&self, rank: u32, counter: Counter) -> Option<u64> {
        Some(self.snapshot(rank)?.total().counter(counter))
    }

    /// Waits until a daemon has so many peers and takes clients: the name of its socket comes before that.
    #[track_caller]
    pub(super) fn wait_up(&self, rank: u32, peers: u64) {
        let is_up = |snapshot: Snapshot| {
            snapshot.total().counter(Counter::PeersUp) == peers
                && snapshot.state == DaemonState::Alive(Life::Serving)
        };
        let deadline = Instant::now() + PATIENCE;
        while !self.snapshot(rank).is_some_and(is_up) {
            assert!(Instant::now() < deadline, "rank {rank} is not up: {}", self.states());
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// What each daemon says of itself.
    fn states(&self) -> String {
        let of = |rank| match self.snapshot(rank) {
            Some(snapshot) => {
                let up = snapshot.total().counter(Counter::PeersUp);
                format!("rank {rank} is {:?} with {up} peers up", snapshot.state)
            }
            None => {
                let log = fs::read_to_string(self.log(rank)).unwrap_or_default();
                let last = log.lines().last().unwrap_or("nothing");
                format!("rank {rank} shows no counters, and says last: {last}")
            }
        };
        (0..).zip(&self.daemons).map(|(rank, _)| of(rank)).collect::<Vec<_>>().join("; ")
    }

    /// Process id of a daemon.
    pub(super) fn id(&self, rank: u32) -> u32 {
        self.daemons[rank as usize].as_ref().unwrap().id()
    }

    pub(super) fn signal(&self, rank: u32, signal: Signal) {
        kill_process(pid(self.id(rank)), signal).unwrap();
    }

    /// What a daemon holds that somebody could forget to give back.
    pub(super) fn holdings(&self, rank: u32) -> Holdings {
        holdings_of(self.id(rank))
    }

    /// Asks all daemons to end, and looks at what they leave.
    pub(super) fn end(mut self) {
        for rank in 0..self.daemons.len() {
            self.signal(u32::try_from(rank).unwrap(), Signal::TERM);
        }
        for daemon in &mut self.daemons {
            assert!(daemon.as_mut().unwrap().wait().unwrap().success());
        }
        let is_lock = |name: &String| name.ends_with(".lock");
        let left: Vec<_> = names_in(&self.folder).into_iter().filter(|it| !is_lock(it)).collect();
        assert_eq!(left, ["meet", "secret"]);
        assert_eq!(names_in(&self.folder.join("meet")), [""; 0]);
    }

    /// Asks a daemon to end, and waits until it has.
    pub(super) fn stop(&mut self, rank: u32) {
        self.signal(rank, Signal::TERM);
        let status = self.daemons[rank as usize].take().unwrap().wait().unwrap();
        assert!(status.success(), "{status}");
    }

    pub(super) fn kill(&mut self, rank: u32) {
        let mut daemon = self.daemons[rank as usize].take().unwrap();
        daemon.kill().unwrap();
        daemon.wait().unwrap();
    }

    pub(super) fn client(&self, rank: u32) -> Client {
        connect(&self.socket(rank))
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for daemon in self.daemons.iter_mut().flatten() {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
        let _ = fs::remove_dir_all(&self.folder);
        for rank in (0..).take(self.daemons.len()) {
            let _ = fs::remove_file(self.log(rank));
        }
    }
}

/// Descriptors, mapped files and threads of a process, by kind.
pub(super) type Holdings = BTreeMap<String, usize>;

/// See [`Cluster::holdings`].
fn holdings_of(id: u32) -> Holdings {
    let process = Path::new("/proc").join(id.to_string());
    let mut holdings = Holdings::new();
    let mut add = |kind: String| *holdings.entry(kind).or_default() += 1;
    for entry in fs::read_dir(process.join("fd")).unwrap() {
        // One that was closed meanwhile is nothing that it holds.
        let Ok(target) = fs::read_link(entry.unwrap().path()) else { continue };
        let target = target.to_string_lossy();
        // `socket:[123]` and `pipe:[123]` are numbered.
        let kind = target.split_once(":[").map_or(&*target, |(kind, _)| kind);
        // The file of a rank keeps the name under which it was written first, or has that of the one that it replaced.
        let kind = if kind.contains("/meet/") { "the file of the rank" } else { kind };
        add(format!("descriptor {kind}"));
    }
    for line in fs::read_to_string(process.join("maps")).unwrap().lines() {
        if let Some((_, name)) = line.split_once("/memfd:") {
            add(format!("mapping {name}"));
        }
    }
    for _ in fs::read_dir(process.join("task")).unwrap() {
        add("thread".to_owned());
    }
    holdings
}

/// Sorted.
pub(super) fn names_in(folder: &Path) -> Vec<String> {
    let name = |entry: io::Result<DirEntry>| entry.unwrap().file_name().into_string().unwrap();
    let mut names: Vec<_> = fs::read_dir(folder).unwrap().map(name).collect();
    names.sort();
    names
}

fn make_private(path: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    let mode = if path.is_dir() { 0o700 } else { 0o600 };
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

pub(super) fn pid(id: u32) -> Pid {
    Pid::from_raw(i32::try_from(id).unwrap()).unwrap()
}

#[track_caller]
pub(super) fn eventually(mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "it never came to hold");
        thread::sleep(Duration::from_millis(1));
    }
}

/// A process that ends with the value, also if its test fails.
pub(super) struct Process(pub(super) Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Ends a provider together with the test that has it, also if that fails: a scope waits for its threads.
pub(super) struct StopOnDrop<'a>(pub(super) &'a ProviderStop);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// Calls that wait as long as the tests do.
pub(super) fn patient() -> ClientConfig {
    ClientConfig { timeout: PATIENCE, ..ClientConfig::default() }
}

pub(super) fn connect(socket: &Path) -> Client {
    Client::connect(socket, patient()).unwrap()
}

/// Offers the service that answers with what it gets, reversed.
pub(super) fn provide(socket: &Path) -> Provider {
    Provider::register(socket, ECHO, ClientConfig::default()).unwrap()
}

pub(super) fn reverse(body: &[u8]) -> Vec<u8> {
    body.iter().rev().copied().collect()
}

pub(super) fn serve_reversed(provider: Provider) {
    // It ends with its daemon.
    let _ = provider.serve(|inbound, answer| {
        answer.extend(inbound.body.iter().rev());
        Some(Status::Ok)
    });
}

pub(super) fn body(number: u64) -> Vec<u8> {
    let len = usize::try_from(number * 37 % 1500).unwrap();
    (0..len).map(|index| (number.wrapping_mul(31) + index as u64).to_le_bytes()[0]).collect()
}
