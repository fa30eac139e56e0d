//! Configuration: a table of knobs, four layers that set them, and the origin of each value.
//!
//! ```text
//! flag         --call-timeout 2s          over
//! environment  COPYRPC_CALL_TIMEOUT=2s    over
//! file         call_timeout = "2s"        over
//! default
//! ```
//!
//! A [`Knob`] has one name, its environment variable; its flag and its key in a file follow from that. A value
//! is checked in whichever layer it stands, and an error names that layer. A file or a flag with a name that
//! no knob has is refused, with the nearest knob; such a variable is only reported, because the environment
//! belongs to other programs too.
//!
//! ```
//! use copyrpc_config::{Knob, KnobKind, Layers};
//!
//! const TIMEOUT: Knob = Knob {
//!     env: "COPYRPC_CALL_TIMEOUT",
//!     kind: KnobKind::Duration { min_ns: 1_000, max_ns: 60_000_000_000 },
//!     default: "5s",
//!     meaning: "How long a call may take",
//! };
//!
//! let settings = Layers::new(vec![TIMEOUT])
//!     .environment(|variable| (variable == TIMEOUT.env).then(|| "1.5s".into()))?
//!     .finish();
//! assert_eq!(settings.number(&TIMEOUT), 1_500_000_000);
//!
//! let error = Layers::new(vec![TIMEOUT]).flag("call-timeout", "5").unwrap_err();
//! assert_eq!(
//!     error.to_string(),
//!     "--call-timeout: call_timeout = `5` needs a unit: ns, us, ms, s, min, h"
//! );
//! # Ok::<(), copyrpc_config::SettingError>(())
//! ```
#![forbid(unsafe_code)]

mod knob;
mod layers;
pub mod units;

pub use knob::{Knob, KnobKind, Value, ValueError};
pub use layers::{LayerFault, Layers, Origin, Setting, SettingError, Settings};
