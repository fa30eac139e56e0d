//! Any bytes, served by a shard of the key-value store: always one answer that can be read.

#![no_main]

use std::cell::RefCell;

use kv::{
    codec::Answer,
    place::{Shard, Topology},
    store::Partition,
    workload::ValueSize,
};

thread_local! {
    static SHARD: RefCell<Partition> = RefCell::new(Partition::filled(
        Topology { ranks: 1, daemon_threads: 1, clients_per_rank: 1, keys: 64 },
        Shard(0),
        ValueSize { min_bytes: 24, max_bytes: 256 },
        1,
    ));
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let mut answer = Vec::new();
    SHARD.with_borrow_mut(|shard| shard.serve(bytes, &mut answer));
    Answer::read(&answer).expect("a shard writes answers that can be read");
});
