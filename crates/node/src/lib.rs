//! The node daemon: many processes, one daemon per node, few queue pairs.
//!
//! | module | one idea |
//! |---|---|
//! | [`config`] | one table of knobs; flag over environment over file over default |
#![forbid(unsafe_code)]

pub mod config;
