//! PMI-1 with a scripted launcher: what it says right, wrong, late or not at all.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::SocketAddr,
    os::{fd::AsRawFd as _, unix::net::UnixStream},
    thread,
    time::Duration,
};

use copyrpc_bootstrap::{
    RankInfo,
    pmi::{KeySpace, MeetingPoint, PmiError},
};
use proptest::{collection::vec, prelude::*};

mod pmi_check;

/// Longest that a test waits where an answer comes.
const PATIENCE: Duration = Duration::from_secs(30);

/// A whole conversation of rank 1.
const SCRIPT: [(&str, &str); 6] = [
    ("cmd=init pmi_version=1 pmi_subversion=1", "cmd=response_to_init rc=0 pmi_version=1"),
    ("cmd=get_maxes", "cmd=maxes rc=0 kvsname_max=64 keylen_max=64 vallen_max=512"),
    ("cmd=get_my_kvsname", "cmd=my_kvsname rc=0 kvsname=kvs_7"),
    ("cmd=barrier_in", "cmd=barrier_out rc=0"),
    (
        "cmd=get kvsname=kvs_7 key=copyrpc-meeting",
        "cmd=get_result rc=0 msg=success value=copyrpc1,10.1.2.3:7000,\
         000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f",
    ),
    ("cmd=finalize", "cmd=finalize_ack rc=0"),
];

/// Rank 1 of 2 with a launcher that follows the script, but answers request `at` with `other`; it closes if
/// that is no line.
fn agree(at: usize, other: &[u8]) -> Result<MeetingPoint, PmiError> {
    let (ours, theirs) = UnixStream::pair().unwrap();
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut answers = ours.try_clone().unwrap();
            let mut requests = BufReader::new(ours).lines();
            for (index, (request, answer)) in SCRIPT.iter().enumerate() {
                // Whoever refuses an answer hangs up.
                let Some(Ok(line)) = requests.next() else { return };
                assert_eq!(line, *request);
                if index == at {
                    let _ = answers.write_all(other);
                    if other.ends_with(b"\n") {
                        continue;
                    }
                    return;
                }
                // A rank has an answer in as many pieces as there are.
                let (start, end) = answer.split_at(answer.len() / 2);
                answers.write_all(start.as_bytes()).unwrap();
                answers.write_all(format!("{end}\n").as_bytes()).unwrap();
            }
        });
        let space = KeySpace::Pmi1 { fd: theirs.as_raw_fd() };
        let agreed = space.agree(RankInfo::new(1, 2).unwrap(), PATIENCE, &|| false);
        drop(theirs);
        agreed.map(|(point, _)| point)
    })
}

#[test]
fn a_rank_learns_what_rank_0_has_put() {
    let point = agree(SCRIPT.len(), b"").unwrap();
    assert_eq!(point.address, SocketAddr::from(([10, 1, 2, 3], 7000)));
    assert!(point.secret.as_bytes().starts_with(b"000102"));
}

#[test]
fn answers_that_are_none_are_told_with_their_request() {
    for (at, (request, _)) in SCRIPT.iter().enumerate() {
        let name = request.split(['=', ' ']).nth(1).unwrap();
        let garbage: [(&[u8], &str); 5] = [
            (b"\xff\xfe\n", "no printable ASCII"),
            (b"what?\n", "no cmd=NAME"),
            (b"cmd=unknown_cmd\n", "`unknown_cmd`"),
            (&[b'x'; 5000], "exceeds 4096 B"),
            (b"cmd=half of an ans", "lost"),
        ];
        for (bytes, cause) in garbage {
            let error = agree(at, bytes).unwrap_err().to_string();
            assert!(error.contains(cause) && error.contains(&format!("`{name}`")), "{error}");
        }
    }
}

#[test]
fn a_refusal_is_told_in_the_launchers_words() {
    let error = agree(4, b"cmd=get_result rc=-1 msg=key copyrpc-meeting not found\n").unwrap_err();
    assert!(matches!(&error, PmiError::Refused { request: "get", rc: -1, .. }), "{error}");
    let text = error.to_string();
    assert!(
        text.contains("`key copyrpc-meeting not found`") && text.contains("COPYRPC_RENDEZVOUS")
    );
    assert!(!error.is_unavailable(), "the other ranks are in the launcher's space");
}

#[test]
fn a_missing_field_and_another_text_are_told() {
    let error = agree(2, b"cmd=my_kvsname rc=0\n").unwrap_err().to_string();
    assert!(error.contains("no valid `kvsname`"), "{error}");
    let error = agree(4, b"cmd=get_result rc=0 value=10.1.2.3:7000\n").unwrap_err();
    assert!(matches!(error, PmiError::MeetingPoint { space: "PMI-1" }), "{error}");
}

#[test]
fn a_launcher_that_is_gone_is_lost() {
    for at in 0..SCRIPT.len() {
        let error = agree(at, b"").unwrap_err();
        assert!(matches!(error, PmiError::Lost { .. }), "{error}");
    }
}

#[test]
fn a_silent_launcher_costs_a_rank_its_timeout() {
    let (_ours, theirs) = UnixStream::pair().unwrap();
    let space = KeySpace::Pmi1 { fd: theirs.as_raw_fd() };
    let timeout = Duration::from_millis(50);
    let error = space.agree(RankInfo::new(1, 2).unwrap(), timeout, &|| false).unwrap_err();
    assert!(matches!(error, PmiError::TimedOut { step: "init", .. }), "{error}");
    assert!(error.to_string().contains("COPYRPC_BOOTSTRAP_TIMEOUT"), "{error}");
    let error = space.agree(RankInfo::new(1, 2).unwrap(), PATIENCE, &|| true).unwrap_err();
    assert!(matches!(error, PmiError::Stopped), "{error}");
}

#[test]
fn a_number_that_is_no_socket_is_refused() {
    let file = std::fs::File::open("/dev/null").unwrap();
    for fd in [file.as_raw_fd(), i32::MAX] {
        let space = KeySpace::Pmi1 { fd };
        let error = space.agree(RankInfo::new(1, 2).unwrap(), PATIENCE, &|| false).unwrap_err();
        assert!(matches!(error, PmiError::Descriptor { .. }), "{error}");
        assert!(error.is_unavailable(), "another way to meet is left");
    }
}

#[test]
fn rank_0_puts_where_it_can_be_reached_unless_the_launcher_has_no_room() {
    for (room, has_room) in [("512", true), ("32", false)] {
        let (ours, theirs) = UnixStream::pair().unwrap();
        thread::scope(|scope| {
            scope.spawn(move || {
                let mut answers = ours.try_clone().unwrap();
                let mut put = None;
                for line in BufReader::new(ours).lines() {
                    let line = line.unwrap();
                    let answer = match line.split([' ', '=']).nth(1).unwrap() {
                        "init" => "cmd=response_to_init rc=0".to_owned(),
                        "get_maxes" => format!("cmd=maxes keylen_max=64 vallen_max={room}"),
                        "get_my_kvsname" => "cmd=my_kvsname kvsname=a".to_owned(),
                        "put" => {
                            put = line.split_once(" value=").map(|(_, value)| value.to_owned());
                            "cmd=put_result rc=0".to_owned()
                        }
                        "barrier_in" => "cmd=barrier_out".to_owned(),
                        "get" => format!("cmd=get_result rc=0 value={}", put.clone().unwrap()),
                        _ => "cmd=finalize_ack".to_owned(),
                    };
                    answers.write_all(format!("{answer}\n").as_bytes()).unwrap();
                }
            });
            let space = KeySpace::Pmi1 { fd: theirs.as_raw_fd() };
            let agreed = space.agree(RankInfo::new(0, 2).unwrap(), PATIENCE, &|| false);
            drop(theirs);
            if has_room {
                let (point, reserved) = agreed.unwrap();
                assert!(reserved.is_some());
                assert_eq!(point.secret.as_bytes().len(), 64);
                std::net::TcpListener::bind(point.address).unwrap();
            } else {
                assert!(matches!(agreed.unwrap_err(), PmiError::TooShort { .. }));
            }
        });
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 256, failure_persistence: None, ..Default::default()
    })]

    #[test]
    fn any_bytes_are_lines_or_refused(bytes in vec(any::<u8>(), 0..6000)) {
        pmi_check::check(&bytes);
    }

    #[test]
    fn any_words_are_read_or_refused(text in "(cmd=[a-z_]{0,9})?([ =a-z0-9_-]{0,40}[\n]?){0,6}") {
        pmi_check::check(text.as_bytes());
    }
}
