//! Daemons as launchers start them: ranks, launch and local ranks in the environment, and nothing else said.

use std::{
    collections::BTreeMap,
    env, fs,
    io::{BufRead as _, BufReader, Write as _},
    os::{fd::OwnedFd, unix::net::UnixStream},
    path::{Path, PathBuf},
    process::{self, Child, Command, Output, Stdio},
    sync::{Barrier, Mutex},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

/// Longest that anything may take, however loaded the machine is.
const PATIENCE: Duration = Duration::from_secs(60);

/// A folder for hosts that are none, and the daemons of a launch.
struct Launch {
    folder: PathBuf,
    name: String,
    ranks: Vec<Child>,
}

impl Launch {
    fn new(name: &str) -> Self {
        let name = format!("copyrpc-{name}-{}", process::id());
        let folder = env::temp_dir().join(&name);
        fs::create_dir_all(folder.join("home")).unwrap();
        Self { folder, name, ranks: Vec::new() }
    }

    /// A command on host `host`, which has a runtime folder of its own; the home folder is shared.
    fn command(&self, host: u32, variables: &[(&str, String)]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_copyrpc"));
        command
            .env_clear()
            .env("PATH", env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.folder.join("home"))
            .env("COPYRPC_RUNTIME_DIR", self.runtime(host))
            .env("COPYRPC_SOFT_FABRIC", &self.name)
            .envs(variables.iter().map(|(name, text)| (name, text)))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command
    }

    fn runtime(&self, host: u32) -> PathBuf {
        self.folder.join(format!("host{host}"))
    }

    fn start(&mut self, host: u32, variables: &[(&str, String)]) {
        let daemon = self.command(host, variables).arg("daemon").spawn().unwrap();
        self.ranks.push(daemon);
    }

    /// Asks rank `rank` through the first daemon of a host, as a client of this allocation does.
    fn ping(&self, host: u32, rank: u32, allocation: &[(&str, String)]) {
        let since = Instant::now();
        loop {
            let mut command = self.command(host, allocation);
            let Output { status, stdout, stderr } = command
                .args(["ping", &rank.to_string(), "--count", "1"])
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .output()
                .unwrap();
            if status.success() {
                let text = String::from_utf8_lossy(&stdout).into_owned();
                assert!(text.starts_with(&format!("rank {rank} of 2")), "{text}");
                return;
            }
            let text = String::from_utf8_lossy(&stderr);
            assert!(since.elapsed() < PATIENCE, "{text}");
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn ask_to_end(&self) {
        for child in &self.ranks {
            let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).unwrap();
            kill_process(pid, Signal::TERM).unwrap();
        }
    }

    /// All end when they are asked to, and the place where they met is gone.
    fn end(mut self, met_in: &Path) {
        self.ask_to_end();
        for child in &mut self.ranks {
            assert!(child.wait().unwrap().success());
        }
        let left: Vec<_> = fs::read_dir(self.folder.join(met_in)).unwrap().flatten().collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

impl Drop for Launch {
    fn drop(&mut self) {
        for child in &mut self.ranks {
            // Both fail only if the child has been reaped already.
            let _ = child.kill();
            let _ = child.wait();
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Two ranks on one host.
fn one_host(name: &str, variables: impl Fn(u32) -> Vec<(&'static str, String)>) {
    let mut launch = Launch::new(name);
    (0..2).for_each(|rank| launch.start(0, &variables(rank)));
    let allocation: Vec<_> =
        variables(0).into_iter().filter(|(name, _)| *name == "SLURM_JOB_ID").collect();
    (0..2).for_each(|rank| launch.ping(0, rank, &allocation));
    launch.end(Path::new("host0/meet"));
}

#[test]
fn mpirun_of_open_mpi_starts_two_daemons_on_one_host() {
    one_host("open-mpi", |rank| {
        vec![
            ("OMPI_COMM_WORLD_RANK", rank.to_string()),
            ("OMPI_COMM_WORLD_SIZE", "2".into()),
            ("OMPI_COMM_WORLD_LOCAL_RANK", rank.to_string()),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "2".into()),
            ("PMIX_NAMESPACE", "prterun-host-77@1".into()),
        ]
    });
}

/// Hydra names no launch: the process that starts the ranks does.
#[test]
fn mpirun_of_hydra_starts_two_daemons_on_one_host() {
    one_host("hydra", |rank| {
        vec![
            ("PMI_RANK", rank.to_string()),
            ("PMI_SIZE", "2".into()),
            ("MPI_LOCALRANKID", rank.to_string()),
            ("MPI_LOCALNRANKS", "2".into()),
        ]
    });
}

#[test]
fn srun_starts_two_daemons_on_one_host_and_the_allocation_names_the_job() {
    one_host("slurm", |rank| slurm(rank, rank, 1));
}

fn slurm(rank: u32, local_rank: u32, hosts: u32) -> Vec<(&'static str, String)> {
    vec![
        ("SLURM_PROCID", rank.to_string()),
        ("SLURM_NTASKS", "2".into()),
        ("SLURM_STEP_NUM_TASKS", "2".into()),
        ("SLURM_LOCALID", local_rank.to_string()),
        ("SLURM_NNODES", hosts.to_string()),
        ("SLURM_STEP_NUM_NODES", hosts.to_string()),
        ("SLURM_JOB_ID", "4711".into()),
        ("SLURM_STEP_ID", "0".into()),
    ]
}

/// The NIC of hosts that share no memory.
fn tcp() -> [(&'static str, String); 2] {
    [("COPYRPC_NIC", "tcp".into()), ("COPYRPC_TCP_ADDRESS", "127.0.0.1".into())]
}

/// Two runtime folders that share nothing but the home folder, as two hosts of a cluster do.
#[test]
fn srun_starts_a_daemon_on_each_of_two_hosts_which_meet_in_the_home_folder() {
    let mut launch = Launch::new("hosts");
    for rank in 0..2 {
        let mut variables = slurm(rank, 0, 2);
        variables.extend(tcp());
        launch.start(rank, &variables);
    }
    let allocation = [("SLURM_JOB_ID", "4711".into())];
    for host in 0..2 {
        launch.ping(host, 1 - host, &allocation);
    }
    assert!(launch.runtime(1).join("slurm-4711.sock").exists());
    launch.end(Path::new("home/.copyrpc/meet"));
}

#[test]
fn ranks_of_several_hosts_without_a_name_of_the_launch_are_told_what_to_set() {
    let launch = Launch::new("nameless");
    let variables = [("PMI_RANK", "0".to_owned()), ("PMI_SIZE", "2".to_owned())];
    let output =
        launch.command(0, &variables).arg("daemon").stderr(Stdio::piped()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(
        text.contains("PMI starts ranks on several hosts") && text.contains("COPYRPC_RENDEZVOUS")
    );
}

/// CI has all optional parts, so that none is skipped for ever.
fn is_ci() -> bool {
    env::var_os("CI").is_some_and(|value| value == "true")
}

/// `mpirun` of Open MPI, where it is installed, with a shell command for each rank of `launch`.
fn mpirun(launch: &Launch, ranks: u32, command: &str) -> Option<Command> {
    let is_there = Command::new("mpirun").arg("--version").stdout(Stdio::null()).status().is_ok();
    if !is_there {
        assert!(!is_ci(), "there is no mpirun; install openmpi-bin");
        eprintln!("skipped for want of mpirun");
        return None;
    }
    let mut mpirun = Command::new("mpirun");
    mpirun
        .args(["-n", &ranks.to_string(), "--oversubscribe", "--allow-run-as-root"])
        .args(["sh", "-c", command])
        .env("HOME", launch.folder.join("home"))
        .env("COPYRPC_RUNTIME_DIR", launch.runtime(0))
        .env("COPYRPC_SOFT_FABRIC", &launch.name)
        .env("COPYRPC", env!("CARGO_BIN_EXE_copyrpc"))
        .env("HOSTS", &launch.folder)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    Some(mpirun)
}

/// The real thing, where it is installed; its clients find the daemon as others do.
#[test]
fn an_installed_mpirun_starts_two_daemons_on_one_host_and_clients_of_them() {
    let mut launch = Launch::new("mpirun");
    let Some(mut daemons) = mpirun(&launch, 2, "exec $COPYRPC daemon") else { return };
    launch.ranks.push(daemons.spawn().unwrap());
    (0..2).for_each(|rank| launch.ping(0, rank, &[]));
    let ping = "exec $COPYRPC ping $((1 - OMPI_COMM_WORLD_RANK)) --count 1";
    let clients = mpirun(&launch, 2, ping).expect("it was there").stderr(Stdio::piped()).output();
    let clients = clients.unwrap();
    assert!(clients.status.success(), "{}", String::from_utf8_lossy(&clients.stderr));
    launch.ask_to_end();
    launch.ranks.iter_mut().for_each(|mpirun| drop(mpirun.wait()));
}

/// Two ranks that share no folder, as on hosts of a cluster without shared home folders.
const HOSTS: &str = "
    export OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_COMM_WORLD_LOCAL_SIZE=1
    export HOME=$HOSTS/home$OMPI_COMM_WORLD_RANK COPYRPC_RUNTIME_DIR=$HOSTS/host$OMPI_COMM_WORLD_RANK
    export COPYRPC_NIC=tcp COPYRPC_TCP_ADDRESS=127.0.0.1
    exec $COPYRPC daemon";

#[test]
fn ranks_of_an_installed_mpirun_meet_by_pmix_where_hosts_share_no_folder() {
    let mut launch = Launch::new("pmix");
    let Some(mut daemons) = mpirun(&launch, 2, HOSTS) else { return };
    launch.ranks.push(daemons.spawn().unwrap());
    (0..2).for_each(|host| launch.ping(host, 1 - host, &[]));
    assert!(!launch.folder.join("home0").exists(), "no folder was needed");
    launch.ask_to_end();
    launch.ranks.iter_mut().for_each(|mpirun| drop(mpirun.wait()));
}

/// A launcher whose PMIx server is not reached, or a host without the library.
#[test]
fn ranks_meet_in_the_home_folder_where_pmix_cannot_be_used() {
    let mut launch = Launch::new("no-pmix");
    for rank in 0..2 {
        let mut variables = slurm(rank, 0, 2);
        variables.extend(tcp());
        variables.push(("PMIX_NAMESPACE", "slurm.pmix.4711.0".into()));
        variables.push(("PMIX_RANK", rank.to_string()));
        launch.start(rank, &variables);
    }
    let allocation = [("SLURM_JOB_ID", "4711".into())];
    (0..2).for_each(|host| launch.ping(host, 1 - host, &allocation));
    launch.end(Path::new("home/.copyrpc/meet"));
}

/// Answers one rank as Hydra does, until it has said `finalize`.
fn serve_pmi(socket: UnixStream, all: &Barrier, space: &Mutex<BTreeMap<String, String>>) {
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut answers = socket.try_clone().unwrap();
    for line in BufReader::new(socket).lines() {
        let line = line.unwrap();
        let field = |key: &str| {
            let found = line.split(' ').find_map(|word| word.strip_prefix(key)?.strip_prefix('='));
            found.map(str::to_owned)
        };
        let key = || format!("{}/{}", field("kvsname").unwrap(), field("key").unwrap());
        let command = field("cmd").unwrap();
        let answer = match &*command {
            "init" => "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0".to_owned(),
            "get_maxes" => "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=1024".to_owned(),
            "get_my_kvsname" => "cmd=my_kvsname kvsname=kvs_1_0".to_owned(),
            "put" => {
                space.lock().unwrap().insert(key(), field("value").unwrap());
                "cmd=put_result rc=0 msg=success".to_owned()
            }
            "barrier_in" => {
                all.wait();
                "cmd=barrier_out".to_owned()
            }
            "get" => {
                let value = space.lock().unwrap()[&key()].clone();
                format!("cmd=get_result rc=0 msg=success value={value}")
            }
            "finalize" => "cmd=finalize_ack".to_owned(),
            other => panic!("{other}"),
        };
        answers.write_all(format!("{answer}\n").as_bytes()).unwrap();
        if command == "finalize" {
            return;
        }
    }
    panic!("a rank ended before `finalize`");
}

#[test]
fn ranks_of_hydra_meet_by_pmi_1_where_hosts_share_no_folder() {
    let mut launch = Launch::new("pmi");
    let (all, space) = (Barrier::new(2), Mutex::default());
    thread::scope(|scope| {
        for rank in 0..2 {
            let (ours, theirs) = UnixStream::pair().unwrap();
            let mut variables = vec![
                // Standard input is the descriptor that a child inherits without more ado.
                ("PMI_FD", "0".to_owned()),
                ("PMI_RANK", rank.to_string()),
                ("PMI_SIZE", "2".into()),
                ("PMI_JOBID", "host_77_0".into()),
                ("HOME", launch.folder.join(format!("home{rank}")).to_str().unwrap().into()),
            ];
            variables.extend(tcp());
            let mut command = launch.command(rank, &variables);
            let daemon = command.arg("daemon").stdin(OwnedFd::from(theirs)).spawn().unwrap();
            launch.ranks.push(daemon);
            let (all, space) = (&all, &space);
            scope.spawn(move || serve_pmi(ours, all, space));
        }
    });
    (0..2).for_each(|host| launch.ping(host, 1 - host, &[]));
    assert!(!launch.folder.join("home0").exists(), "no folder was needed");
    launch.ask_to_end();
    launch.ranks.iter_mut().for_each(|daemon| assert!(daemon.wait().unwrap().success()));
}

#[test]
fn a_launcher_that_offers_no_space_is_told_of_when_it_is_asked_for() {
    let launch = Launch::new("asked-for");
    for (variables, reason) in [
        (slurm(0, 0, 2), "Slurm sets neither PMIX_NAMESPACE"),
        (Vec::new(), "no launcher has started this daemon"),
    ] {
        let mut command = launch.command(0, &variables);
        let output = command.args(["daemon", "--bootstrap", "pmi"]).stderr(Stdio::piped()).output();
        let text = String::from_utf8_lossy(&output.unwrap().stderr).into_owned();
        assert!(text.contains(reason), "{text}");
    }
}

/// A rank that never comes to the fence.
#[test]
fn a_rank_of_an_installed_mpirun_waits_for_the_others_until_its_timeout() {
    let launch = Launch::new("pmix-late");
    let command = "
        if [ $OMPI_COMM_WORLD_RANK = 1 ]; then exec sleep 100; fi
        exec $COPYRPC daemon --bootstrap pmi --bootstrap-timeout 2s";
    let Some(mut mpirun) = mpirun(&launch, 2, command) else { return };
    let output = mpirun.stderr(Stdio::piped()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(text.contains("rank 0 of 2 waited 2s for PMIx"), "{text}");
}
