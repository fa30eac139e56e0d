//! Programs that run on the machines of a world.

pub mod pipeline;
pub mod reads;
pub mod reference_daemon;
pub mod slot_daemon;
