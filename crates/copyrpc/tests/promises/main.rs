//! What every client and every form of serving promises, from one list of scenarios: the table in
//! `docs/services.md`, *What every client promises*.
#![cfg(all(feature = "daemon", feature = "nic", feature = "typed"))]

mod clients;
mod node;
mod providers;
mod scenarios;
