//! The cluster in a process: a discrete-event world in virtual time.
//!
//! ```text
//!  scenarios   what is asked, and the measurements to compare with
//!     │
//!  actors      programs: post requests, wait for completions
//!     │
//!  nic         processing units, context cache, connections of DC initiators
//!     │
//!  world       events in order of time, clock, a stream of random numbers per purpose
//!     │
//!  cluster     production daemons, workers, driver and software NIC in a world, and faults
//! ```
//!
//! A machine's parameters are a profile in [`machine`], which says where each number comes from. The same
//! seed gives the same events, bit for bit, on every machine: times are integers, and the only
//! transcendental function is computed in software.
//!
//! Scenarios model raw operations ([`dct`](scenarios::dct)) and a daemon of another design
//! ([`bistability`](scenarios::bistability)). In a [`cluster`] the production driver, protocol and daemon run, with
//! faults; its times are not calibrated.

#![forbid(unsafe_code)]

pub mod actors;
pub mod cluster;
pub mod machine;
pub mod nic;
pub mod scenarios;
pub mod world;
