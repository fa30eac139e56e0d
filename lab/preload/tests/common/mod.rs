//! Tests of one program that run in a process of its own, which finds the device. In CI libmlx5 has to be there.

use ibverbs::{Config, OpenError, mlx5dv};
use softnic::AdapterProfile;
use uverbs::{
    launch::LaunchFiles,
    matrix::new_fabric,
    process::{FABRIC_ENV, PROFILE_ENV},
};
use verbs::LinkLayer;

fn is_ci() -> bool {
    std::env::var_os("CI").is_some_and(|value| value == "true")
}

/// Whether libmlx5 is here. In CI it has to be.
pub(crate) fn has_library() -> bool {
    let Err(error @ OpenError::Library(_)) = mlx5dv::open(&Config::default()) else {
        return true;
    };
    assert!(!is_ci(), "{error}");
    eprintln!("skipped: {error}");
    false
}

/// Runs the ignored tests of this program whose names begin with `module`, in a process that finds the device on `link`, and
/// says how many have passed.
pub(crate) fn run_tests(module: &str, link: LinkLayer) -> usize {
    run_tests_on(module, link, AdapterProfile::ConnectX)
}

/// The same on an adapter of that kind.
pub(crate) fn run_tests_on(module: &str, link: LinkLayer, profile: AdapterProfile) -> usize {
    let files = LaunchFiles::on(link).unwrap();
    let program = std::env::current_exe().unwrap();
    let mut command = files.command(program.as_os_str());
    command.args([module, "--ignored", "--test-threads=4"]).env(FABRIC_ENV, new_fabric());
    command.env(PROFILE_ENV, profile.name());
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}\n{errors}");
    let (_, rest) = text.split_once("test result: ok. ").unwrap();
    rest.split_once(" passed").unwrap().0.parse().unwrap()
}
