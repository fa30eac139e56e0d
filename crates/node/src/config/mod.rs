//! Configuration: one table of knobs, four layers, and where each value comes from.
//!
//! ```text
//! flag  --call-timeout 2s           over
//! environment  COPYRPC_CALL_TIMEOUT=2s   over
//! file  call_timeout = "2s"         over
//! default
//! ```
//!
//! A knob has one name, that of its variable; flag and key of the file follow from it. A value is
//! checked wherever it comes from, and an error says where that was. What no knob has for a name is
//! refused in a file or a flag, with the nearest knob; a variable of that kind is only reported,
//! because the environment belongs to others too.

mod daemon;
mod knob;
mod settings;
mod table;
pub mod units;

pub use daemon::{DaemonConfig, Incompatible, Start, WaitPolicy};
pub use knob::{Kind, Knob, Value, ValueError};
pub use settings::{Fault, Layers, Origin, Setting, SettingError, Settings};
pub use table::*;
