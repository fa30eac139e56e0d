//! What every command of `copyrpc-lab sim` prints can be read in a file of 80 columns, and none of them is silent for
//! long.

use std::{
    collections::BTreeSet,
    process::{Command, Output},
    time::{Duration, Instant},
};

/// After so long a command has told of its progress, which it does after two seconds. What a slow machine takes to
/// start a process is in it.
const NOT_SILENT: Duration = Duration::from_secs(20);

/// Smallest forms, at least one of each command. Commands of docs/instruments.md are looked at where they run.
const FORMS: [&str; 16] = [
    "dct --leave-one-out",
    "bistability --tried",
    "two-rank",
    "two-rank --ablation",
    "raw",
    "seeds",
    "sensitivity two-rank",
    "mutants --model two-rank",
    "steady --nodes 2,3 --depth 1 --clients 2 --flush default,self-clocked:16 --transport dc:16 --spread 90 --warm-up 50us --for 50us --series",
    "steady --by-nodes --nodes 2,3 --depth 1,8 --clients 2 --spread 90 --warm-up 50us --for 50us",
    "curve --clients 2",
    "scalerpc --clients 40",
    "prototypes --nodes 2 --depth 1 --clients 2",
    "cluster --nodes 5 --clients 2 --for 100us",
    "cluster --nodes 2 --clients 1 --for 20us --seeds 3",
    "scale --nodes 2 --clients 1 --for 20us",
];

fn sim(arguments: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_copyrpc-lab"));
    command.env_remove("COLUMNS").arg("sim").args(arguments.split_whitespace());
    command.output().expect("the binary runs")
}

/// Commands that `copyrpc-lab sim --help` lists.
fn commands() -> BTreeSet<String> {
    let help = String::from_utf8(sim("--help").stdout).unwrap();
    let listed = help.split("Commands:\n").nth(1).unwrap().split("\n\n").next().unwrap().to_owned();
    // A name is indented by two columns, and what goes on below its meaning by more.
    let names = listed.lines().filter(|line| !line.starts_with("   "));
    let names = names.filter_map(|line| line.split_whitespace().next()).map(str::to_owned);
    names.filter(|name| name != "help").collect()
}

#[test]
fn every_command_has_a_smallest_form_here() {
    let formed = FORMS.iter().map(|form| form.split_whitespace().next().unwrap().to_owned());
    let (formed, listed) = (formed.collect::<BTreeSet<_>>(), commands());
    assert!(listed.len() > 10, "{listed:?}");
    assert_eq!(formed, listed);
}

#[test]
#[ignore = "slow: a minute of simulating"]
fn every_command_fits_80_columns_of_a_file_and_tells_of_its_progress_slow() {
    for form in FORMS {
        let started = Instant::now();
        let output = sim(form);
        let took = started.elapsed();
        let [text, told] =
            [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
        assert!(output.status.success(), "{form}: {text}{told}");
        assert!(text.lines().count() > 0, "{form} prints something");
        for line in text.lines().chain(told.lines()) {
            assert!(line.chars().count() <= 80, "{form}: {line}");
        }
        assert!(took < NOT_SILENT || !told.is_empty(), "{form} was silent for {took:?}");
    }
}
