//! The way of waiting of programs that choose none.

use std::{env, ffi::OsString};

use ipc::ConnectError;
use os::idle::Wait;

/// Names the variable by which an operator chooses how the processes of a node wait for answers and requests.
pub const WAIT_VARIABLE: &str = "COPYRPC_CLIENT_WAIT";

/// The way of waiting that a text names: `busy`, `adaptive` or `block`; `None` for any other.
#[must_use]
pub fn wait_of(text: &str) -> Option<Wait> {
    match text {
        "busy" => Some(Wait::Busy),
        "adaptive" => Some(Wait::default()),
        "block" => Some(Wait::Block),
        _ => None,
    }
}

/// What [`WAIT_VARIABLE`] may say.
pub const WAITS: &str = "busy, adaptive or block";

/// The way that [`WAIT_VARIABLE`] names, or the default.
pub(crate) fn chosen() -> Wait {
    named(env::var_os(WAIT_VARIABLE)).ok().flatten().unwrap_or_default()
}

/// Refuses to connect if the variable names no way of waiting: nobody would notice that it has no effect.
pub(crate) fn check() -> Result<(), ConnectError> {
    named(env::var_os(WAIT_VARIABLE)).map(drop)
}

fn named(told: Option<OsString>) -> Result<Option<Wait>, ConnectError> {
    let Some(told) = told else { return Ok(None) };
    let refused = || ConnectError::Variable {
        variable: WAIT_VARIABLE,
        value: told.to_string_lossy().into_owned(),
        accepted: WAITS,
    };
    told.to_str().and_then(wait_of).map(Some).ok_or_else(refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_that_names_no_way_is_refused_with_those_that_do() {
        assert!(named(None).unwrap().is_none());
        assert_eq!(named(Some("block".into())).unwrap(), Some(Wait::Block));
        let refused = named(Some("Block".into())).unwrap_err().to_string();
        let words = ["COPYRPC_CLIENT_WAIT", "`Block`", WAITS];
        assert!(words.iter().all(|word| refused.contains(word)), "{refused}");
        assert!(WAITS.replace(" or", ",").split(", ").all(|way| wait_of(way).is_some()));
    }

    #[test]
    fn an_operator_chooses_a_way_of_waiting_by_name() {
        let named = ["busy", "adaptive", "block"].map(wait_of);
        assert_eq!(named, [Some(Wait::Busy), Some(Wait::default()), Some(Wait::Block)]);
        assert!(["", "Block", "spin"].iter().all(|text| wait_of(text).is_none()));
    }
}
