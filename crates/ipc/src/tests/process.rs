//! What the processes of these tests do.

use std::path::PathBuf;

/// Not a test of its own: runs the role that the environment names, if it names one.
#[test]
fn role() {
    let Ok(role) = std::env::var("COPYRPC_TEST_ROLE") else { return };
    let path = PathBuf::from(std::env::var_os("COPYRPC_TEST_PATH").expect("set with the role"));
    match role.as_str() {
        _ => panic!("there is no role {role} at {}", path.display()),
    }
}
