//! Programs of others as child processes that end with this one, however that ends: this program becomes the other one, after
//! it has asked the kernel to be killed with its parent.

use std::{
    env, io,
    os::unix::process::CommandExt as _,
    process::{self, Command},
};

use copyrpc_os::child::{end_with_parent, this_program};
use measure::cores;
use rustix::process::{Signal, getppid};

use crate::Fallible;

/// Command of a process that becomes another program: the parent's process id, a core, the program and its arguments follow.
pub const CHILD: &str = "become";

/// The command that runs `program` on `core`. Start it from the main thread: the program ends with the thread that starts it.
pub fn command(core: usize, program: &str, arguments: &[String]) -> io::Result<Command> {
    let mut command = this_program()?;
    let numbers = [process::id().to_string(), core.to_string()];
    command.arg(CHILD).args(numbers).arg(program).args(arguments);
    Ok(command)
}

/// In the child. Returns if that fails.
pub fn become_tool(mut arguments: impl Iterator<Item = String>) -> Fallible<()> {
    let missing = || format!("`{CHILD}` is what this program calls itself with, not by hand");
    let mut next = || arguments.next().ok_or_else(missing);
    let [parent, core, program] = [next()?, next()?, next()?];
    end_with_parent(Signal::KILL)?;
    if getppid().map(|parent| parent.as_raw_nonzero().to_string()) != Some(parent) {
        return Err("the parent process is gone".into());
    }
    cores::pin(core.parse()?)?;
    let error = Command::new(&program).args(arguments).exec();
    Err(format!("cannot start `{program}`: {error}").into())
}

/// Why `program` cannot be started.
pub fn missing(program: &str) -> Option<String> {
    let path = env::var_os("PATH").unwrap_or_default();
    let is_there = env::split_paths(&path).any(|folder| folder.join(program).is_file());
    (!is_there).then(|| format!("`{program}` is not installed"))
}
