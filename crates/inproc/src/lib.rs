//! Queues between the threads of one process.

pub mod spsc;
