//! Daemons on libmlx5 whose adapter's cable is pulled, whose adapter fails and comes back after a while, or whose address
//! has other rows of the GID table.

use std::{
    path::{Path, PathBuf},
    process::{Child, Stdio},
    time::{Duration, Instant},
};

use bootstrap::{JobId, RankInfo, Secret};
use client::{Client, ClientConfig, runtime::Runtime};
use daemon::{
    ServeError, Services, Serving,
    config::{DaemonConfig, KNOBS, Layers, Start},
    serve,
};
use ibverbs::{Config, Outlook, any::Nic, mlx5dv};
use memory::sync::AtomicBool;
use uverbs::{
    condition::{AdapterCondition, CONDITION_ENV},
    launch::LaunchFiles,
    matrix::new_fabric,
    process::FABRIC_ENV,
};
use verbs::LinkLayer;

#[allow(dead_code, reason = "another test runs tests by name")]
mod common;
#[path = "../../../crates/bootstrap/tests/common/mod.rs"]
mod folders;
use folders::{TempFolder, eventually};

const FOLDER: &str = "COPYRPC_CONDITIONS_FOLDER";
const RANK: &str = "COPYRPC_CONDITIONS_RANK";
/// As `copyrpc daemon` ends where it may be started again: its NIC failed, or is not there.
const FAILED: i32 = 1;
const NOT_YET: i32 = 75;
const TIMEOUT: Duration = Duration::from_millis(500);
const PATIENCE: Duration = Duration::from_secs(60);

fn serving(folder: &Path, rank: u32) -> Serving {
    let settings = Layers::new(KNOBS.to_vec()).finish();
    let mut config = DaemonConfig::from_settings(&settings).unwrap();
    config.start = Start::File(folder.join("meet"));
    let job = JobId::new("two").unwrap();
    Serving {
        config,
        runtime: Runtime::new(folder.to_owned(), job, &rank.to_string()).unwrap(),
        rank_info: RankInfo::new(rank, 2).unwrap(),
        secret: Secret::from_bytes(b"sixteen bytes or more"),
    }
}

/// A daemon, in a process that finds the device.
#[ignore = "it is a daemon, which the other tests start"]
#[test]
fn daemon_of_a_rank() {
    let folder = PathBuf::from(std::env::var_os(FOLDER).unwrap());
    let serving = serving(&folder, std::env::var(RANK).unwrap().parse().unwrap());
    let nic = match mlx5dv::open(&Config::default()) {
        Ok(device) => Nic::Driver(mlx5::Nic::new(device)),
        Err(error) => {
            eprintln!("{error}");
            assert_ne!(error.outlook(), Outlook::Never, "{error}");
            std::process::exit(NOT_YET);
        }
    };
    match serve(&serving, nic, Services::default(), &AtomicBool::new(false)) {
        Err(ServeError::NicFailed(failure)) => {
            eprintln!("{failure}");
            std::process::exit(FAILED);
        }
        served => served.unwrap(),
    }
}

/// Two daemons and their adapters.
struct Nodes {
    files: LaunchFiles,
    fabric: String,
    folder: TempFolder,
    daemons: [Option<Child>; 2],
}

impl Nodes {
    fn start(name: &str, link: LinkLayer) -> Self {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = TempFolder::new(name);
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
        std::fs::create_dir(folder.path().join("meet")).unwrap();
        let (files, fabric) = (LaunchFiles::on(link).unwrap(), new_fabric());
        let mut nodes = Self { files, fabric, folder, daemons: [None, None] };
        (0..2).for_each(|rank| nodes.begin(rank));
        (0..2).for_each(|rank| nodes.reaches(rank));
        nodes
    }

    fn condition_file(&self, rank: u32) -> PathBuf {
        self.folder.path().join(format!("condition-{rank}"))
    }

    fn becomes(&self, rank: u32, condition: AdapterCondition) {
        std::fs::write(self.condition_file(rank), condition.word()).unwrap();
    }

    fn begin(&mut self, rank: u32) {
        let program = std::env::current_exe().unwrap();
        let mut command = self.files.command(program.as_os_str());
        command
            .args(["daemon_of_a_rank", "--exact", "--ignored", "--nocapture"])
            .env(FABRIC_ENV, &self.fabric)
            .env(CONDITION_ENV, self.condition_file(rank))
            .env(FOLDER, self.folder.path())
            .env(RANK, rank.to_string())
            .stdout(Stdio::null());
        self.daemons[rank as usize] = Some(command.spawn().unwrap());
    }

    /// The exit status of a daemon that ends by itself.
    fn ends_with(&mut self, rank: u32) -> Option<i32> {
        let daemon = self.daemons[rank as usize].as_mut().unwrap();
        let mut status = None;
        eventually(|| {
            status = daemon.try_wait().unwrap();
            status.is_some()
        });
        status.and_then(|status| status.code())
    }

    fn is_alive(&mut self, rank: u32) -> bool {
        self.daemons[rank as usize].as_mut().unwrap().try_wait().unwrap().is_none()
    }

    fn client(&self, rank: u32) -> Client {
        let socket = serving(self.folder.path(), rank).runtime.socket();
        let mut client = None;
        eventually(|| {
            let config = ClientConfig { timeout: TIMEOUT, ..ClientConfig::default() };
            client = Client::connect(&socket, config).ok();
            client.is_some()
        });
        client.unwrap()
    }

    /// The daemon of `rank` comes to reach the other one.
    fn reaches(&self, rank: u32) {
        let (begin, mut client) = (Instant::now(), self.client(rank));
        while client.ping(1 - rank, b"there").is_err() {
            assert!(begin.elapsed() < PATIENCE, "rank {rank} does not reach the other one");
        }
    }

    /// So many calls of the daemon of `rank` to the other one fail, each in time.
    fn fails(&self, rank: u32, calls: usize) {
        let (begin, mut client) = (Instant::now(), self.client(rank));
        let mut failed = 0;
        while failed < calls {
            let call = Instant::now();
            failed += usize::from(client.ping(1 - rank, b"there").is_err());
            assert!(call.elapsed() < PATIENCE / 2, "a call has not ended at its deadline");
            assert!(begin.elapsed() < PATIENCE, "{failed} calls failed");
        }
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        for daemon in self.daemons.iter_mut().flatten() {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }
}

#[test]
fn fault_d4_calls_end_while_a_port_is_down_and_arrive_when_it_is_up_again() {
    if !common::has_library() {
        return;
    }
    let mut nodes = Nodes::start("port-down", LinkLayer::InfiniBand);
    for rank in [1, 0] {
        nodes.becomes(rank, AdapterCondition::Down);
        (0..2).for_each(|rank| nodes.fails(rank, 4));
        nodes.becomes(rank, AdapterCondition::Active);
        (0..2).for_each(|rank| nodes.reaches(rank));
    }
    assert!((0..2).all(|rank| nodes.is_alive(rank)), "no daemon was started anew");
}

/// Old connections hold the rows that the address had before.
#[test]
fn daemons_follow_an_address_to_other_rows_of_the_gid_table() {
    if !common::has_library() {
        return;
    }
    let mut nodes = Nodes::start("gid-rows", LinkLayer::Ethernet);
    for rank in [1, 0] {
        nodes.becomes(rank, AdapterCondition::Unaddressed);
        (0..2).for_each(|rank| nodes.fails(rank, 4));
        nodes.becomes(rank, AdapterCondition::Moved);
        (0..2).for_each(|rank| nodes.reaches(rank));
    }
    nodes.becomes(0, AdapterCondition::Active);
    (0..2).for_each(|rank| nodes.reaches(rank));
    assert!((0..2).all(|rank| nodes.is_alive(rank)), "no daemon was started anew");
}

/// As its unit starts it anew: with 75 it says that the device is not there yet.
#[test]
fn fault_d4_a_daemon_ends_with_its_device_and_serves_when_that_is_back() {
    if !common::has_library() {
        return;
    }
    let mut nodes = Nodes::start("device-gone", LinkLayer::InfiniBand);
    nodes.becomes(1, AdapterCondition::Gone);
    assert_eq!(nodes.ends_with(1), Some(FAILED));
    nodes.fails(0, 1);
    nodes.begin(1);
    assert_eq!(nodes.ends_with(1), Some(NOT_YET));
    nodes.becomes(1, AdapterCondition::Active);
    nodes.begin(1);
    (0..2).for_each(|rank| nodes.reaches(rank));
    assert!(nodes.is_alive(0));
}
