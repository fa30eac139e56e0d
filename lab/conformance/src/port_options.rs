//! The options of a NIC: device, port, and rows of its tables.

use core::fmt::Display;

use verbs::{Nic, PortOptions};

/// Checks that a NIC opens as [`PortOptions`] ask, or names the option that it lacks. `open` opens a port of its own.
///
/// # Panics
///
/// If an option is ignored, or a refusal does not name the option.
pub fn port_options<N: Nic, E: Display>(open: impl Fn(&PortOptions) -> Result<N, E>) {
    let chosen = |nic: &N| {
        let port = nic.port();
        PortOptions {
            device: Some(nic.attributes().name.clone()),
            port: Some(port.number),
            gid_index: Some(port.gid_index),
            pkey_index: Some(port.pkey_index),
        }
    };
    let opened = |options: &PortOptions| {
        let nic = open(options).unwrap_or_else(|error| panic!("{options:?}: {error}"));
        chosen(&nic)
    };
    // Its own choice can be requested, all at once or one by one.
    let all = opened(&PortOptions::default());
    let none = PortOptions::default();
    let parts = [
        all.clone(),
        PortOptions { device: all.device.clone(), ..none.clone() },
        PortOptions { port: all.port, ..none.clone() },
        PortOptions { gid_index: all.gid_index, ..none.clone() },
        PortOptions { pkey_index: all.pkey_index, ..none.clone() },
    ];
    for options in parts {
        assert_eq!(opened(&options), all, "opened with {options:?}");
    }
    let absent = [
        (PortOptions { device: Some("absent_9".into()), ..none.clone() }, "`absent_9`"),
        (PortOptions { port: Some(0), ..none.clone() }, "port 0"),
        (PortOptions { port: Some(u8::MAX), ..none.clone() }, "port 255"),
        (PortOptions { gid_index: Some(u8::MAX), ..none.clone() }, "GID"),
        (PortOptions { gid_index: Some(u8::MAX), ..none.clone() }, "row 255"),
        (PortOptions { pkey_index: Some(u16::MAX), ..none.clone() }, "P_Key"),
        (PortOptions { pkey_index: Some(u16::MAX), ..none }, "row 65535"),
    ];
    for (options, named) in absent {
        let Err(refusal) = open(&options) else { panic!("{options:?} is ignored") };
        let refusal = refusal.to_string();
        assert!(refusal.contains(named), "{options:?}: {refusal}");
    }
}
