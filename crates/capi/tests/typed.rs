//! Typed services whose values travel as JSON, called by programs in Python and C.

mod common;

use std::{collections::BTreeMap, process::Command, thread, time::Duration};

use common::{Node, compile, python, root, run, tool};
use copyrpc::{
    ClientConfig, Inbound, Provider,
    bulk::BulkRegion,
    typed::{Failure, Json, Lent, Page, service},
};

service! {
    trait Files("files"), client FilesClient, futures FilesFutures, codec Json {
        fn length(path: String) -> usize;
        fn count() -> u32;
        /// Names of numbers that begin like this, behind `after`.
        fn list(begin: String, after: Option<u32>) -> Page<String, u32>;
    }
}

service! {
    lending trait Kept("kept"), client KeptClient, codec Json {
        /// Turns the first slice round; returns its length, by name.
        fn reverse(name: String) -> BTreeMap<String, u64>;
    }
}

const COUNT: u32 = 250;

/// Files, and memory that moves.
struct Host(Option<BulkRegion>);

impl Files for Host {
    fn length(&self, _: &Inbound<'_>, path: String) -> Result<usize, Failure> {
        Ok(path.len())
    }

    fn count(&self, _: &Inbound<'_>) -> Result<u32, Failure> {
        Ok(COUNT)
    }

    fn list(
        &self,
        _: &Inbound<'_>,
        begin: String,
        after: Option<u32>,
    ) -> Result<Page<String, u32>, Failure> {
        let start = after.map_or(0, |after| after + 1);
        let end = COUNT.min(start + 100);
        let items = (start..end).map(|number| format!("{begin} {number}")).collect();
        Ok(Page { items, next: (end < COUNT).then(|| end - 1) })
    }
}

impl Kept for Host {
    fn reverse(
        &mut self,
        lent: &mut Lent<'_>,
        name: String,
    ) -> Result<BTreeMap<String, u64>, Failure> {
        let own = self.0.as_mut().ok_or_else(|| Failure::invalid("no memory"))?;
        let moved = lent.pull(0, own)?;
        let mut bytes = vec![0; usize::try_from(moved).map_err(Failure::invalid)?];
        own.read(0, &mut bytes).map_err(Failure::invalid)?;
        bytes.reverse();
        own.write(0, &bytes).map_err(Failure::invalid)?;
        lent.push(0, own, moved)?;
        Ok([(name, moved)].into())
    }
}

/// Offers both services while a program calls them; it makes one call that lends memory.
fn serves(name: &str, program: impl FnOnce(&Node) -> Command) {
    let node = Node::new(name);
    let config = ClientConfig::default();
    let provider = Provider::offer(&node.socket, &<dyn Files>::offer(), config).unwrap();
    let mut lending = <dyn Kept>::offer(&node.socket, config).unwrap();
    let stop = provider.stop_handle();
    let serving = thread::spawn(move || {
        provider.serve(|it, to| Some(<dyn Files>::dispatch(&Host(None), it, to)))
    });
    let keeping = thread::spawn(move || {
        let mut host = Host(Some(lending.bulk(4096).unwrap()));
        let work = lending.next(Duration::from_secs(300)).unwrap().expect("a call");
        <dyn Kept>::answer(&mut host, &mut lending, work).unwrap();
    });
    run(program(&node).arg(&node.socket));
    keeping.join().unwrap();
    stop.stop();
    serving.join().unwrap().unwrap();
}

#[test]
fn services_of_rust_are_called_from_python_with_json() {
    let Some(mut python) = python() else { return };
    serves("typed-py", |_| {
        python.arg(root().join("tests/python/typed.py"));
        python
    });
}

#[test]
fn services_of_rust_are_called_from_c_with_json() {
    let Some(compiler) = tool("cc") else { return };
    serves("typed-c", |node| {
        Command::new(compile(compiler, &root().join("tests/typed.c"), &node.folder))
    });
}
