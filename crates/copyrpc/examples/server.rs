//! A service of this node that greets its callers.
//!
//! Start a daemon (`cargo run --release -- daemon`), then this, then the example `client`:
//! `cargo run -p copyrpc --example server`

use std::{error::Error, process::ExitCode};

use copyrpc::{ClientConfig, Provider, Runtime, Status};

/// Number of the service, and of its only method.
const GREETER: u16 = 17;
const GREET: u16 = 1;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        // Its words say what to do; what `main` prints of an error does not.
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Serves requests of all nodes, one at a time. `None` in place of a status would withdraw the service.
fn run() -> Result<(), Box<dyn Error>> {
    let socket = Runtime::from_env()?.socket();
    let provider = Provider::register(&socket, GREETER, ClientConfig::default())?;
    println!("service {GREETER} is offered at {}", socket.display());
    provider.serve(|request, answer| {
        if request.method != GREET {
            return Some(Status::Unimplemented);
        }
        answer.extend_from_slice(b"hello, ");
        answer.extend_from_slice(request.body);
        Some(Status::Ok)
    })?;
    Ok(())
}
