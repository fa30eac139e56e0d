//! ConnectX driver: builds work queue entries and reads completions in the device's own format.

pub mod device;
