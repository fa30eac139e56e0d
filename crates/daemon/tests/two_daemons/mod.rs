//! Two daemons in threads of the test, which find each other in a folder.

use std::{path::Path, thread};

use bootstrap::{JobId, RankInfo, Secret};
use client::{Client, ClientConfig, runtime::Runtime};
use copyrpc_daemon::{
    IpcPort, Services, Serving,
    config::{DaemonConfig, KNOBS, Layers, Start},
    serve,
};
use memory::sync::{AtomicBool, Ordering};
use verbs::Nic;

#[path = "../../../bootstrap/tests/common/mod.rs"]
mod common;
pub(crate) use common::{TempFolder, eventually};

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

fn private(name: &str) -> TempFolder {
    use std::os::unix::fs::PermissionsExt as _;
    let temp = TempFolder::new(name);
    std::fs::set_permissions(temp.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
    std::fs::create_dir(temp.path().join("meet")).unwrap();
    temp
}

/// Serves with two daemons while `body` runs, which gets what they were made of.
pub(crate) fn with_two_daemons(
    name: &str,
    services: impl Fn() -> Services<IpcPort> + Sync,
    body: impl FnOnce(&[Serving; 2]),
) {
    with_two_daemons_on(name, |nic| nic, services, body);
}

/// The same with what `wrap` makes of their NICs.
pub(crate) fn with_two_daemons_on<N: Nic>(
    name: &str,
    wrap: impl Fn(softnic::Nic) -> N + Sync,
    services: impl Fn() -> Services<IpcPort> + Sync,
    body: impl FnOnce(&[Serving; 2]),
) {
    let temp = private(name);
    let both = [0, 1].map(|rank| serving(temp.path(), rank));
    let fabric = temp.path().file_name().unwrap().to_str().unwrap().to_owned();
    let (stop, services, wrap) = (AtomicBool::new(false), &services, &wrap);
    thread::scope(|scope| {
        let daemons = both.each_ref().map(|serving| {
            let (stop, fabric) = (&stop, fabric.clone());
            scope.spawn(move || {
                let nic = softnic::Config { fabric, ..softnic::Config::default() };
                serve(serving, wrap(softnic::open(&nic).unwrap()), services(), stop).unwrap();
            })
        });
        let stopped = StopOnDrop(&stop);
        for serving in &both {
            let mut client = connect_eventually(serving);
            eventually(|| (0..2).all(|rank| client.ping(rank, b"").is_ok()));
        }
        body(&both);
        drop(stopped);
        for daemon in daemons {
            daemon.join().unwrap();
        }
    });
}

fn connect_eventually(serving: &Serving) -> Client {
    let mut client = None;
    eventually(|| {
        client = Client::connect(&serving.runtime.socket(), ClientConfig::default()).ok();
        client.is_some()
    });
    client.unwrap()
}

/// Also if the body panics.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
