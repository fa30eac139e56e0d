//! Exchanges over real sockets, folders and processes. No duration is asserted: whoever waits too
//! long ends with an error instead.

use std::{
    env, fs,
    io::{ErrorKind, Read as _, Write as _},
    net::TcpStream,
    process::Command,
    thread,
    time::Duration,
};

use copyrpc_bootstrap::{
    Bootstrap as _, BootstrapError, Folder, JobId, RankInfo, Secret, Tcp, Timeouts, fork, launcher,
    secret,
};

mod common;
use common::{TempFolder, eventually};

const TIMEOUT: Duration = Duration::from_secs(30);
const SOON: Duration = Duration::from_millis(300);
const HANDSHAKE: Duration = Duration::from_millis(500);

fn job() -> JobId {
    JobId::new("test").unwrap()
}

fn secret() -> Secret {
    Secret::from_bytes(b"the secret of the test")
}

fn place(rank: u32, size: u32) -> RankInfo {
    RankInfo::new(rank, size).unwrap()
}

fn rank_zero(size: u32, timeout: Duration) -> Tcp {
    let timeouts = Timeouts { exchange: timeout, handshake: HANDSHAKE, contest: SOON };
    Tcp::new("127.0.0.1:0", job(), secret(), place(0, size), timeouts, None).unwrap()
}

fn join(address: &str, rank: u32, size: u32, timeout: Duration) -> Tcp {
    Tcp::joining(address, job(), secret(), place(rank, size), timeout)
}

/// What `ranks` ranks of `size` come to, rank 0 included.
fn exchange(zero: Tcp, ranks: &[u32], size: u32) -> Vec<Result<Vec<Vec<u8>>, BootstrapError>> {
    let address = zero.address().to_owned();
    thread::scope(|scope| {
        let mut zero = zero;
        let others: Vec<_> = ranks
            .iter()
            .map(|&rank| {
                let mut tcp = join(&address, rank, size, TIMEOUT);
                scope.spawn(move || tcp.exchange(format!("blob {rank}").as_bytes()))
            })
            .collect();
        let first = zero.exchange(b"blob 0");
        let others = others.into_iter().map(|other| other.join().unwrap());
        std::iter::once(first).chain(others).collect()
    })
}

#[test]
fn ranks_meet_over_tcp_and_each_gets_all() {
    let expected: Vec<_> = (0..4).map(|rank| format!("blob {rank}").into_bytes()).collect();
    for outcome in exchange(rank_zero(4, TIMEOUT), &[3, 1, 2], 4) {
        assert_eq!(outcome.unwrap(), expected);
    }
}

/// Somebody who waits for ranks that never come would wait for the timeout.
#[test]
fn who_is_told_to_stop_waits_for_nobody() {
    let zero = rank_zero(2, TIMEOUT);
    let has_joined = || zero.rendezvous_stats().is_some_and(|stats| stats.joined == 1);
    let stopped = join(zero.address(), 1, 2, TIMEOUT).exchange_unless(b"blob", &has_joined);
    assert!(matches!(stopped, Err(BootstrapError::Stopped)), "{stopped:?}");
    let nowhere = join("127.0.0.1:1", 1, 2, TIMEOUT).exchange_unless(b"blob", &|| true);
    assert!(matches!(nowhere, Err(BootstrapError::Stopped)), "{nowhere:?}");
    let temp = TempFolder::new("stopped");
    let mut folder = Folder::new(temp.path(), job(), secret(), place(0, 2), TIMEOUT);
    let stopped = folder.exchange_unless(b"blob", &|| true);
    assert!(matches!(stopped, Err(BootstrapError::Stopped)), "{stopped:?}");
}

#[test]
fn a_large_roster_arrives_whole() {
    let zero = rank_zero(3, TIMEOUT);
    let address = zero.address().to_owned();
    let blob = |rank: u8| vec![rank; 64 << 10];
    thread::scope(|scope| {
        for rank in 1..3 {
            let mut tcp = join(&address, rank.into(), 3, TIMEOUT);
            scope.spawn(move || assert_eq!(tcp.exchange(&blob(rank)).unwrap()[2], blob(2)));
        }
        let mut zero = zero;
        assert_eq!(zero.exchange(&blob(0)).unwrap()[1], blob(1));
    });
}

#[test]
fn fault_e1_strangers_are_dropped_and_the_job_starts_all_the_same() {
    let zero = rank_zero(2, TIMEOUT);
    let address = zero.address().to_owned();
    let knock = |bytes: &[u8]| {
        let mut stream = TcpStream::connect(&address).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        stream.write_all(bytes).unwrap();
        stream
    };
    let mut strangers = vec![
        knock(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"),
        knock(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"),
        knock(&[0xff; 8]),
        knock(b"copyrpc"),
        knock(b""),
    ];
    drop(TcpStream::connect(&address).unwrap());
    thread::scope(|scope| {
        let loris = scope.spawn(|| {
            let mut stream = TcpStream::connect(&address).unwrap();
            // It ends by itself only if the rendezvous never hangs up.
            b"copyrpcB".iter().chain(&[0; 90]).any(|byte| {
                thread::sleep(Duration::from_millis(10));
                stream.write_all(&[*byte]).is_err()
            })
        });
        for stream in &mut strangers {
            let mut rest = Vec::new();
            let ended = stream.read_to_end(&mut rest).map_err(|error| error.kind());
            assert!(matches!(ended, Ok(0) | Err(ErrorKind::ConnectionReset)), "{ended:?}");
        }
        assert!(loris.join().unwrap(), "one byte at a time is hung up on");
    });
    let turned_away = || zero.rendezvous_stats().map(|stats| (stats.garbage, stats.slow));
    eventually(|| turned_away() == Some((3, 3)));
    for outcome in exchange(zero, &[1], 2) {
        assert_eq!(outcome.unwrap().len(), 2);
    }
}

#[test]
fn fault_e2_a_wrong_secret_is_refused_on_both_sides() {
    let zero = rank_zero(2, TIMEOUT);
    let other = Secret::from_bytes(b"another secret");
    let mut guesser = Tcp::joining(zero.address(), job(), other, place(1, 2), TIMEOUT);
    let error = guesser.exchange(b"").unwrap_err();
    assert!(matches!(error, BootstrapError::Foreign { .. }), "{error}");
    assert!(error.to_string().contains("does not know the secret"), "{error}");
}

#[test]
fn fault_e3_two_jobs_on_one_machine_do_not_meet() {
    let zero = rank_zero(2, TIMEOUT);
    let other = JobId::new("other").unwrap();
    let mut stray = Tcp::joining(zero.address(), other, secret(), place(1, 2), TIMEOUT);
    let error = stray.exchange(b"").unwrap_err().to_string();
    assert!(error.ends_with("refused rank 1 of 2: it is the rendezvous of another job"), "{error}");
    for outcome in exchange(zero, &[1], 2) {
        assert_eq!(outcome.unwrap().len(), 2);
    }
}

#[test]
fn fault_e4_missing_ranks_are_named_to_all_that_came() {
    for outcome in exchange(rank_zero(4, Duration::from_secs(2)), &[2], 4) {
        let error = outcome.unwrap_err().to_string();
        assert!(error.contains("ranks 1, 3 of 4 did not come within 2s"), "{error}");
    }
}

#[test]
fn fault_e4_a_duplicate_rank_is_named_with_the_address_of_the_other() {
    let zero = rank_zero(2, TIMEOUT);
    let address = zero.address().to_owned();
    let (zero, first, second) = thread::scope(|scope| {
        let first = scope.spawn(|| join(&address, 1, 2, TIMEOUT).exchange(b"1"));
        let second = scope.spawn(|| join(&address, 1, 2, TIMEOUT).exchange(b"1"));
        // Rank 0 comes last, so that both meet at the rendezvous.
        let mut zero = zero;
        eventually(|| zero.rendezvous_stats().unwrap().misplaced == 1);
        (zero.exchange(b"0"), first.join().unwrap(), second.join().unwrap())
    });
    assert!(zero.is_ok());
    let (refused, accepted) = if first.is_err() { (first, second) } else { (second, first) };
    assert!(accepted.is_ok());
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("rank 1 is already taken by 127.0.0.1:"), "{refused}");
}

#[test]
fn fault_e4_a_rank_without_a_rendezvous_names_itself_and_the_address() {
    let address = rank_zero(2, SOON).address().to_owned();
    let error = join(&address, 1, 2, SOON).exchange(b"").unwrap_err().to_string();
    assert!(error.starts_with(&format!("rank 1 of 2 found no process at {address}")), "{error}");
}

#[test]
fn fault_e6_names_without_an_address_are_named_and_ipv6_works() {
    let mut stray = join("no-such-host.invalid:7", 1, 2, SOON);
    let error = stray.exchange(b"").unwrap_err().to_string();
    assert!(error.contains("no-such-host.invalid:7"), "{error}");
    let timeouts = Timeouts { exchange: TIMEOUT, handshake: HANDSHAKE, contest: SOON };
    match Tcp::new("[::1]:0", job(), secret(), place(0, 1), timeouts, None) {
        Ok(mut zero) => assert_eq!(zero.exchange(b"six").unwrap(), [b"six"]),
        Err(error) => assert!(matches!(error, BootstrapError::Listen { .. }), "no IPv6 here"),
    }
}

#[test]
fn a_restarted_rank_gets_the_roster_again() {
    let mut zero = rank_zero(2, TIMEOUT);
    let address = zero.address().to_owned();
    let first = thread::spawn({
        let address = address.clone();
        move || join(&address, 1, 2, TIMEOUT).exchange(b"first life")
    });
    assert_eq!(zero.exchange(b"zero").unwrap()[1], b"first life");
    first.join().unwrap().unwrap();
    let again = join(&address, 1, 2, TIMEOUT).exchange(b"second life").unwrap();
    assert_eq!(again, [&b"zero"[..], b"second life"]);
}

#[test]
fn the_place_of_a_rank_that_lives_is_refused_and_taken_once_it_is_dead() {
    let mut zero = rank_zero(2, TIMEOUT);
    let (address, lives) = (zero.address().to_owned(), zero.lives());
    let first = thread::spawn({
        let address = address.clone();
        move || join(&address, 1, 2, TIMEOUT).exchange(b"first life")
    });
    zero.exchange(b"zero").unwrap();
    first.join().unwrap().unwrap();
    lives.set(1, Some(u64::MAX));
    // Ignored: the job has no such rank.
    lives.set(7, Some(1));
    let refused = join(&address, 1, 2, TIMEOUT).exchange(b"thief").unwrap_err().to_string();
    assert!(refused.contains("rank 1 has a daemon that lives"), "{refused}");
    lives.set(1, None);
    let again = join(&address, 1, 2, TIMEOUT).exchange(b"second life").unwrap();
    assert_eq!(again, [&b"zero"[..], b"second life"]);
}

fn folder(temp: &TempFolder, rank: u32, size: u32, timeout: Duration) -> Folder {
    Folder::new(temp.path(), job(), secret(), place(rank, size), timeout)
}

#[test]
fn ranks_meet_in_a_folder_and_leave_nothing() {
    let temp = TempFolder::new("folder");
    let mut ranks: Vec<_> = (0..3).map(|rank| folder(&temp, rank, 3, TIMEOUT)).collect();
    thread::scope(|scope| {
        for (index, rank) in (0_u8..).zip(&mut ranks) {
            scope.spawn(move || {
                let blobs = rank.exchange(&vec![index; 1000 * usize::from(index)]).unwrap();
                assert_eq!(blobs, [vec![], vec![1; 1000], vec![2; 2000]]);
            });
        }
    });
    assert_eq!(temp.names().len(), 3, "others may still be reading");
    drop(ranks);
    assert_eq!(temp.names(), [""; 0]);
}

#[test]
fn fault_e4_missing_and_duplicate_ranks_of_a_folder_are_named() {
    let temp = TempFolder::new("folder-missing");
    let mut one = folder(&temp, 1, 4, SOON);
    let error = one.exchange(b"").unwrap_err().to_string();
    assert!(error.starts_with("ranks 0, 2-3 of 4 did not come within 300ms"), "{error}");
    let error = folder(&temp, 1, 4, SOON).exchange(b"").unwrap_err().to_string();
    let holder = format!("rank 1 of 4 is already taken by process {}", std::process::id());
    assert!(error.starts_with(&holder), "{error}");
}

#[test]
fn fault_e5_half_written_stale_and_forged_files_are_not_there() {
    let temp = TempFolder::new("folder-stale");
    let path = temp.path().join("test.1");
    let mut honest = folder(&temp, 1, 2, SOON);
    assert!(honest.exchange(b"blob").is_err());
    let whole = fs::read(&path).unwrap();
    let mut zero = folder(&temp, 0, 2, SOON);
    let mut attempt = |contents: &[u8]| {
        fs::write(&path, contents).unwrap();
        zero.exchange(b"zero")
    };
    assert_eq!(attempt(&whole).unwrap()[1], b"blob");
    drop(zero);
    let mut forged = whole.clone();
    forged[20] ^= 1;
    let other = JobId::new("other").unwrap();
    let mut stale = Folder::new(temp.path(), other, secret(), place(1, 2), SOON);
    assert!(stale.exchange(b"stale").is_err());
    let stale_bytes = fs::read(temp.path().join("other.1")).unwrap();
    for contents in [&whole[..whole.len() / 2], &forged, &stale_bytes, b""] {
        fs::write(&path, contents).unwrap();
        let error = folder(&temp, 0, 2, SOON).exchange(b"zero").unwrap_err().to_string();
        assert!(error.starts_with("rank 1 of 2 did not come"), "{error}");
    }
    // And the rank itself replaces what is no file of its own.
    fs::write(&path, &forged).unwrap();
    let mut again = folder(&temp, 1, 2, SOON);
    assert!(matches!(again.exchange(b"again"), Err(BootstrapError::Missing { .. })));
    assert_ne!(fs::read(&path).unwrap(), forged);
}

/// A living rank of another version is named at once, also by who wants its place; what a dead one left is nothing.
#[test]
fn fault_e7_ranks_that_meet_by_other_files_are_refused_and_both_versions_named() {
    let temp = TempFolder::new("folder-version");
    let path = temp.path().join("test.1");
    let mut other = folder(&temp, 1, 2, SOON);
    assert!(other.exchange(b"blob").is_err());
    let mut contents = fs::read(&path).unwrap();
    contents[7] += 1;
    let signed = contents.len() - secret::PROOF_BYTES;
    let longer = [&contents[..signed], b"and more"].concat();
    let proof = secret().sign(secret::ProofPurpose::File, &[&longer]);
    let contents = [&longer[..], &proof].concat();
    fs::write(&path, &contents).unwrap();
    for rank in [0, 1] {
        let error = folder(&temp, rank, 2, TIMEOUT).exchange(b"zero").unwrap_err().to_string();
        let told = "rank 1 meets in this folder by version 2 of its files, this rank by version 1";
        assert!(error.starts_with(told), "{error}");
    }
    assert_eq!(fs::read(&path).unwrap(), contents, "the other's file stays");
    drop(other);
    fs::write(&path, &contents).unwrap();
    let error = folder(&temp, 0, 2, SOON).exchange(b"zero").unwrap_err();
    assert!(matches!(error, BootstrapError::Missing { .. }), "{error}");
}

#[test]
fn a_file_of_a_dead_process_is_taken_over() {
    let temp = TempFolder::new("folder-dead");
    run_child("a_rank_that_dies_in_its_folder", temp.path().to_str().unwrap());
    assert_eq!(temp.names(), ["test.0"], "it was killed, or would have removed it");
    let mut next = Folder::new(temp.path(), job(), secret(), place(0, 1), SOON);
    assert!(next.is_stale(0, b"first life"), "its process is dead");
    assert_eq!(next.exchange(b"next life").unwrap(), [b"next life"]);
    assert!(!next.is_stale(0, b"next life"));
    assert!(next.is_stale(0, b"first life"), "there is another one");
}

#[test]
fn what_a_killed_rank_had_half_written_is_removed_by_its_next_life() {
    let temp = TempFolder::new("folder-half");
    // No process has this id: it exceeds what the kernel gives out.
    let [dead, others] = [".test.0.4194305.tmp", ".test.1.4194305.tmp"];
    let living = format!(".test.0.{}.tmp", std::os::unix::process::parent_id());
    for name in [dead, others, &living] {
        fs::write(temp.path().join(name), b"half").unwrap();
    }
    let mut next = Folder::new(temp.path(), job(), secret(), place(0, 1), SOON);
    next.exchange(b"next life").unwrap();
    let mut left = temp.names();
    left.sort();
    let mut expected = vec![living.as_str(), others, "test.0"];
    expected.sort_unstable();
    assert_eq!(left, expected);
}

const CHILD_FOLDER: &str = "TEST_CHILD_FOLDER";

/// Not a test by itself: what the process does that the test above starts.
#[test]
fn a_rank_that_dies_in_its_folder() {
    let Some(path) = env::var_os(CHILD_FOLDER) else { return };
    let mut folder = Folder::new(path.as_ref(), job(), secret(), place(0, 1), SOON);
    assert_eq!(folder.exchange(b"first life").unwrap().len(), 1);
    std::process::abort();
}

fn run_child(test: &str, folder: &str) {
    let mut child = child(test);
    assert!(!child.env(CHILD_FOLDER, folder).status().unwrap().success(), "it aborts");
}

fn child(test: &str) -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]);
    command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
    command
}

const CHILD_FORKED: &str = "TEST_CHILD_FORKED";

#[test]
fn forked_ranks_find_each_other_through_their_environment() {
    let mut ranks = fork::start(&job(), 3, TIMEOUT, |_| {
        let mut command = child("what_a_forked_rank_does");
        command.env(CHILD_FORKED, "1");
        command
    })
    .unwrap();
    for rank in ranks.children() {
        let ended = rank.wait(os::clock::deadline_ns(2 * TIMEOUT)).unwrap();
        assert!(ended.is_some_and(|status| status.success()), "{ended:?}");
    }
    assert_eq!(ranks.rendezvous_stats().joined, 3);
}

/// Not a test by itself: what the processes do that the test above starts.
#[test]
fn what_a_forked_rank_does() {
    if env::var_os(CHILD_FORKED).is_none() {
        return;
    }
    let lookup = |name: &str| env::var(name).ok();
    let rank_info = launcher::detect(lookup).unwrap().unwrap().rank_info;
    let secret = Secret::from_file(lookup("COPYRPC_SECRET_FILE").unwrap().as_ref()).unwrap();
    let job = JobId::new(&lookup("COPYRPC_JOB").unwrap()).unwrap();
    let address = lookup("COPYRPC_RENDEZVOUS").unwrap();
    let mut tcp = Tcp::joining(&address, job, secret, rank_info, TIMEOUT);
    let blobs = tcp.exchange(&rank_info.rank().to_le_bytes()).unwrap();
    let expected: Vec<_> = (0..rank_info.size()).map(|rank| rank.to_le_bytes().to_vec()).collect();
    assert_eq!(blobs, expected);
}
