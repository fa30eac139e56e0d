//! A service whose calls lend it memory: it takes a text from one slice, and puts it backwards to another.
//!
//! Start a daemon (`cargo run --release -- daemon`), then `cargo run -p copyrpc --example lend -- serve`, then
//! `cargo run -p copyrpc --example lend`.

use std::{error::Error, process::ExitCode, time::Duration};

use copyrpc::{
    Client, ClientConfig, HERE, Retry, Runtime, Status, To,
    bulk::{BulkProvider, BulkRegion, BulkRequest, Direction, Move},
};

/// Number of the service, among those of calls that lend memory, and of its only method.
const TURNER: u16 = 17;
const TURN: u16 = 1;

const SECOND: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    let run = match std::env::args().nth(1).as_deref() {
        Some("serve") => serve,
        _ => call,
    };
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn call() -> Result<(), Box<dyn Error>> {
    let socket = Runtime::from_env()?.socket();
    let mut client = Client::connect(&socket, ClientConfig::default())?;

    let region = client.bulk(1 << 20)?;
    region.write(0, b"hello, world")?;
    let slices = [region.slice(0, 12), region.writable(4096, 12)];
    let to = To { rank: HERE, service: TURNER, method: TURN };
    let answer = client.call_bulk(to, b"turn it round", &slices, SECOND)?;

    println!("{}", String::from_utf8_lossy(answer));
    let mut turned = [0; 12];
    region.read(4096, &mut turned)?;
    println!("{}", String::from_utf8_lossy(&turned));
    Ok(())
}

fn serve() -> Result<(), Box<dyn Error>> {
    let socket = Runtime::from_env()?.socket();
    // A daemon that is started again is offered the service again.
    let config = ClientConfig { retry: Retry::standard(), ..ClientConfig::default() };

    let mut provider = BulkProvider::offer(&socket, TURNER, config)?;
    let mut own = provider.bulk(1 << 20)?;
    println!("service {TURNER} is offered");
    loop {
        let Some(work) = provider.next(SECOND)? else { continue };
        // Memory that an earlier daemon had is handed to the one of now.
        provider.renew(&mut own)?;
        match turn(&mut provider, &work, &own) {
            Ok(()) => provider.answer(work, Status::Ok, b"turned")?,
            Err(error) => provider.answer(work, Status::Aborted, error.to_string().as_bytes())?,
        }
    }
}

/// Takes the first slice, and puts it backwards to the second.
fn turn(
    provider: &mut BulkProvider,
    work: &BulkRequest,
    own: &BulkRegion,
) -> Result<(), Box<dyn Error>> {
    let first = work.slices.first().ok_or("the call lends nothing")?;
    let all = Move {
        slice: 0,
        direction: Direction::Pull,
        offset: 0,
        local_offset: 0,
        len_bytes: first.len_bytes,
    };
    provider.transfer(work, own, &[all], SECOND)?;
    let mut text = vec![0; usize::try_from(first.len_bytes)?];
    own.read(0, &mut text)?;
    text.reverse();
    own.write(0, &text)?;
    provider.transfer(
        work,
        own,
        &[Move { slice: 1, direction: Direction::Push, ..all }],
        SECOND,
    )?;
    Ok(())
}
