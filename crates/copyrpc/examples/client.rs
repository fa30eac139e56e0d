//! Calls the example `server` on a node, once and then many times at once.
//!
//! `cargo run -p copyrpc --example client -- [RANK]`

use std::{error::Error, process::ExitCode};

use copyrpc::{Client, ClientConfig, Pipeline, Runtime, To};

/// As in the example `server`.
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

fn run() -> Result<(), Box<dyn Error>> {
    let rank = std::env::args().nth(1).map_or(Ok(0), |rank| rank.parse())?;
    let socket = Runtime::from_env()?.socket();

    let to = To::new(rank, GREETER, GREET);
    let mut client = Client::connect(&socket, ClientConfig::default())?;
    let answer = client.call(to, b"world")?;
    println!("{}", String::from_utf8_lossy(answer));

    // Up to `pipeline.depth()` calls in flight, each with what its answer needs: here a number.
    let mut pipeline = Pipeline::connect(&socket, ClientConfig::default())?;
    for number in 0..8 {
        pipeline.submit(to, format!("call {number}").as_bytes(), number)?;
    }
    while pipeline.in_flight() > 0 {
        let ended = pipeline.poll(|number, answer| match answer {
            Ok(answer) => println!("{number}: {}", String::from_utf8_lossy(answer)),
            Err(error) => println!("{number}: {error}"),
        });
        if ended == 0 {
            pipeline.rest();
        }
    }
    Ok(())
}
