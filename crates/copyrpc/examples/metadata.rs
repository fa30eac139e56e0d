//! A metadata service on each rank, and a program that calls all of them: in turn, at once, beside slow calls, and while
//! a service is killed and started again.
//!
//! Start a daemon (`cargo run --release -- daemon`) and `cargo run -p copyrpc --example metadata -- serve` on each rank,
//! then `cargo run -p copyrpc --example metadata -- call` on one of them.

use std::{error::Error, process::ExitCode, thread, time::Duration, time::Instant};

use copyrpc::typed::{Failure, TypedError, service};
use copyrpc::{Client, ClientConfig, FutureClient, Inbound, Provider, Retry, Runtime};

/// The kind and length of a file.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub struct Stat {
    len_bytes: u64,
    is_folder: bool,
}

service! {
    /// Knowledge of files.
    pub trait Metadata("metadata"), client MetadataClient, futures MetadataFutures {
        /// The kind and length of a file.
        fn stat(path: String) -> Stat;
        /// Bytes of all files of a folder, which takes a second.
        fn usage(path: String) -> u64;
    }
}

/// The files of this node.
struct Files;

impl Metadata for Files {
    fn stat(&self, _: &Inbound<'_>, path: String) -> Result<Stat, Failure> {
        let file = std::fs::metadata(&path).map_err(Failure::not_found)?;
        Ok(Stat { len_bytes: file.len(), is_folder: file.is_dir() })
    }

    fn usage(&self, request: &Inbound<'_>, _: String) -> Result<u64, Failure> {
        for step in 0..100 {
            // A caller that gives up, or dies, needs no answer.
            if request.is_cancelled() {
                return Err(Failure::invalid(format!("given up after {step} steps")));
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(4096)
    }
}

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

fn serve() -> Result<(), Box<dyn Error>> {
    let socket = Runtime::from_env()?.socket();
    // A daemon that is started again is offered the service again.
    let offer = <dyn Metadata>::offer().reconnecting(Retry::standard());
    let provider = Provider::offer(&socket, &offer, ClientConfig::default())?;
    println!("the service is offered");
    Ok(provider.serve_on(4, |it, answer| <dyn Metadata>::dispatch(&Files, it, answer))?)
}

fn call() -> Result<(), Box<dyn Error>> {
    let socket = Runtime::from_env()?.socket();
    // Calls that do no harm twice are made again, also when a daemon or a service is started again.
    let backoff = Duration::from_millis(100);
    let retry = Retry { awaits_service: true, is_idempotent: true, backoff, ..Retry::standard() };
    let config = ClientConfig { retry, timeout: Duration::from_secs(20), ..Default::default() };

    let mut client = Client::connect(&socket, config)?;
    let (_, ranks) = client.who()?;
    for rank in 0..ranks {
        let mut metadata = MetadataClient::new(client, rank);
        println!(
            "rank {rank}: {:?}",
            metadata.within(Duration::from_secs(10)).stat("/etc".into())?
        );
        client = metadata.into_client();
    }

    let futures = FutureClient::connect(&socket, config)?;
    let executor = tokio::runtime::Builder::new_current_thread().build()?;
    executor.block_on(async {
        let mut all = Vec::new();
        for rank in 0..ranks {
            all.push(MetadataFutures::new(futures.clone(), rank).await?);
        }
        // The slow calls are under way while the others are made.
        let slow: Vec<_> = all.iter().map(|metadata| metadata.usage("/etc".into())).collect();
        let begin = Instant::now();
        let fast: Vec<_> = (0..100).map(|n| all[n % all.len()].stat("/etc".into())).collect();
        for stat in fast {
            stat.await?;
        }
        println!("100 calls beside {} slow ones: {:?}", slow.len(), begin.elapsed());
        // Their handlers learn of it.
        drop(slow);
        Ok::<_, TypedError>(())
    })?;

    println!("calling for 3 s: kill a service or a daemon, and start it again");
    let mut metadata = MetadataClient::new(client, ranks - 1);
    let (begin, mut calls) = (Instant::now(), 0);
    while begin.elapsed() < Duration::from_secs(3) {
        metadata.stat("/etc".into())?;
        calls += 1;
        thread::sleep(Duration::from_millis(1));
    }
    println!("{calls} calls, none failed");
    Ok(())
}
