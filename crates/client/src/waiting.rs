//! The way of waiting of programs that choose none.

use std::env;

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

/// The way that [`WAIT_VARIABLE`] names, or the default.
pub(crate) fn chosen() -> Wait {
    env::var(WAIT_VARIABLE).ok().and_then(|text| wait_of(&text)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operator_chooses_a_way_of_waiting_by_name() {
        let named = ["busy", "adaptive", "block"].map(wait_of);
        assert_eq!(named, [Some(Wait::Busy), Some(Wait::default()), Some(Wait::Block)]);
        assert!(["", "Block", "spin"].iter().all(|text| wait_of(text).is_none()));
    }
}
