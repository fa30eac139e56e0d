//! What every client and every form of serving promises, in each language, from one list of scenarios: the table in
//! `docs/services.md`, *What every client promises*.

mod clients;
#[path = "../common/mod.rs"]
mod common;
mod foreign;
mod node;
mod providers;
mod scenarios;
mod told;
