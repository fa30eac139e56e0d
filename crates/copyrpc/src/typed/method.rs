//! Methods, as callers and services name them.

use client::name;

/// A method of a service.
#[derive(Clone, Copy, Debug)]
pub struct Method {
    /// Its name.
    pub name: &'static str,
    /// Its number.
    pub number: u16,
    /// Hash of the method's types, as they are written in the service's definition.
    pub fingerprint: u64,
}

impl Method {
    /// A method whose types are written like this.
    #[must_use]
    pub const fn new(name: &'static str, types: &str) -> Self {
        Self { name, number: name::method_number(name), fingerprint: name::hash(types.as_bytes()) }
    }
}
