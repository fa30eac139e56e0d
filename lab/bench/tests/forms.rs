//! Real processes. Without the usual harness, because this program must be able to run itself as a client.

use std::{env, process, time::Duration};

use copyrpc_bench::clients::{self, Clients, ClientsError};
use measure::{
    rounds::Rounds,
    schedule::{Experiment as _, interleave},
};

const CLIENT: &str = "client";
/// Length of a sample.
const SAMPLE: Duration = Duration::from_millis(1);

fn main() {
    let arguments = env::args().skip(1).collect::<Vec<_>>();
    match arguments.split_first() {
        Some((first, rest)) if first == CLIENT => {
            if let Err(error) = clients::run(rest) {
                eprintln!("{error}");
                process::exit(1);
            }
        }
        _ => {
            every_form_does_its_work_in_each_place();
            every_form_notices_an_answer_that_is_wrong();
            println!("forms: ok");
        }
    }
}

fn start(part: &str, wrong_every: Option<u64>) -> Clients {
    Clients::start(vec![CLIENT.into()], part, SAMPLE, wrong_every).unwrap()
}

/// Whether all rows are there; a tool may be missing, but not in CI.
fn is_complete(clients: &Clients) -> bool {
    let is_ci = env::var_os("CI").is_some_and(|value| value == "true");
    assert!(!is_ci || clients.absent.is_empty(), "{:?}", clients.absent);
    clients.absent.iter().for_each(|absent| println!("skipped: {absent}"));
    clients.absent.is_empty()
}

fn every_form_does_its_work_in_each_place() {
    let mut clients = start("", None);
    let cells = clients.cells();
    let rows = cells.len();
    assert!(!is_complete(&clients) || rows == 18, "{cells:?}");
    let samples =
        interleave(&mut clients, Rounds::Exactly(2), |_| false, |_| true).unwrap().unwrap();
    assert_eq!(samples.len(), 2 * rows);
    assert!(samples.iter().all(|sample| sample.value.is_finite() && sample.value > 0.0));
}

fn every_form_notices_an_answer_that_is_wrong() {
    // The nodes themselves have asked once.
    let mut clients = start("", Some(50));
    for (index, cell) in clients.cells().iter().enumerate() {
        match clients.prepare(index) {
            Err(ClientsError::Client { name, cause }) => {
                assert_eq!(name, cell.name);
                assert!(cause.contains("wrong answer"), "{name}: {cause}");
            }
            other => panic!("{}: {other:?}", cell.name),
        }
    }
}
