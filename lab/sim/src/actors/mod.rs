//! Programs that run on the machines of a world.

pub mod pipeline;
pub mod pool_server;
pub mod reads;
pub mod reference_daemon;
pub mod return_path;
pub mod slot_daemon;
