//! Traces that cross processes, and the ecosystem's own words for calls: spans of `tracing`, services of `tower`.
#![cfg(all(feature = "daemon", feature = "nic", feature = "typed"))]

use std::{
    env, fs,
    future::poll_fn,
    io,
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use client::{tokio::TokioClient, tower::CallRequest};
use copyrpc::{
    CallError, Client, ClientConfig, FutureClient, HERE, Inbound, JobId, Provider, RequestContext,
    Runtime, To,
    daemon::{self, BackgroundDaemon},
    name,
    nic::Selection,
    typed::{Failure, service},
};
use tower_service::Service;

service! {
    trait Greeter("greeter"), client GreeterClient, futures GreeterFutures {
        fn greet(name: String) -> String;
    }
}

mod later {
    copyrpc::typed::service! {
        pub async trait Waiter("waiter"), client WaiterClient, futures WaiterFutures {
            fn greet(name: String) -> String;
        }
    }
}

struct Host;

impl Greeter for Host {
    fn greet(&self, request: &Inbound<'_>, name: String) -> Result<String, Failure> {
        tracing::info!("greets {name}");
        Ok(format!("hello {name}, of trace {}", request.context.unwrap().trace))
    }
}

impl later::Waiter for Host {
    async fn greet(&self, _: RequestContext, name: String) -> Result<String, Failure> {
        tracing::info!("waits for {name}");
        Ok(name)
    }
}

/// The lines that were logged.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Lines {
    fn have(&self, parts: &[&str]) {
        let told = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        let is_there = told.lines().any(|line| parts.iter().all(|part| line.contains(part)));
        assert!(is_there, "{parts:?}: {told}");
    }
}

/// Makes a call as a layer of `tower` does.
async fn ask<S: Service<CallRequest, Error = CallError>>(
    service: &mut S,
    request: CallRequest,
) -> Result<S::Response, CallError> {
    poll_fn(|task| service.poll_ready(task)).await?;
    service.call(request).await
}

#[test]
fn a_trace_is_in_the_spans_of_handlers_and_clients_are_services_of_tower() {
    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber =
        tracing_subscriber::fmt().with_max_level(tracing::Level::DEBUG).with_ansi(false);
    subscriber.with_writer(move || writer.clone()).init();
    let folder = env::temp_dir().join(format!("copyrpc-spans-{}", std::process::id()));
    let runtime = Runtime::new(folder.clone(), JobId::new("spans").unwrap(), "").unwrap();
    let socket = runtime.socket();
    let alone = daemon::alone(runtime);
    let daemon = BackgroundDaemon::start(alone, Selection::from_env(), |_| Default::default());
    let daemon = daemon.unwrap();
    let config = ClientConfig { timeout: Duration::from_secs(60), ..ClientConfig::default() };
    let provider = Provider::offer(&socket, &<dyn Greeter>::offer(), config).unwrap();
    let waiter = Provider::offer(&socket, &<dyn later::Waiter>::offer(), config).unwrap();
    let stops = [provider.stop_handle(), waiter.stop_handle()];
    let serving = [
        thread::spawn(move || {
            provider.serve(|it, answer| Some(<dyn Greeter>::dispatch(&Host, it, answer)))
        }),
        thread::spawn(move || waiter.run_async(|it| <dyn later::Waiter>::dispatch(&Host, it))),
    ];

    let mut client = Client::connect(&socket, config).unwrap();
    client.set_trace(71);
    let answer = GreeterClient::new(client, HERE).greet("one".into()).unwrap();
    assert_eq!(answer, "hello one, of trace 71");
    lines.have(&["request{", "rank=0", "trace=71", "greets one"]);
    let executor = tokio::runtime::Builder::new_current_thread().build().unwrap();
    executor.block_on(async {
        let tokio = TokioClient::connect(&socket, config).unwrap();
        let futures = FutureClient::connect(&socket, config).unwrap();
        let traced = GreeterFutures::new(tokio.with_trace(72), HERE).await.unwrap();
        assert_eq!(traced.greet("two".into()).await.unwrap(), "hello two, of trace 72");
        let traced = GreeterFutures::new(futures.with_trace(73), HERE).await.unwrap();
        assert_eq!(traced.greet("three".into()).await.unwrap(), "hello three, of trace 73");
        let plain = GreeterFutures::new(futures.clone(), HERE).await.unwrap();
        assert_eq!(plain.greet("four".into()).await.unwrap(), "hello four, of trace 0");
        let waits = later::WaiterFutures::new(tokio.with_trace(75), HERE).await.unwrap();
        assert_eq!(waits.greet("five".into()).await.unwrap(), "five");
        lines.have(&["request{", "trace=75", "waits for five"]);

        let to = To {
            rank: HERE,
            service: name::service_number("greeter"),
            method: name::method_number("greet"),
        };
        let request = CallRequest::new(to, *b"\x03six");
        let expected = [&[22_u8][..], b"hello six, of trace 76"].concat();
        assert_eq!(ask(&mut tokio.with_trace(76), request.clone()).await.unwrap(), expected);
        assert_eq!(ask(&mut futures.with_trace(76), request.clone()).await.unwrap(), expected);
        let in_time = CallRequest { timeout: Some(Duration::from_secs(90)), ..request };
        let answer = ask(&mut futures.clone(), in_time).await.unwrap();
        assert_eq!(answer, [&[21_u8][..], b"hello six, of trace 0"].concat());
    });
    stops.iter().for_each(copyrpc::ProviderStop::stop);
    serving.into_iter().for_each(|it| it.join().unwrap().unwrap());
    daemon.stop().unwrap();
    fs::remove_dir_all(folder).unwrap();
}
