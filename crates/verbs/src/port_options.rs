//! The device, the port and the rows of its tables that a NIC is opened with.

/// The device, port and table rows that a NIC is opened with. Each field that is `None` leaves the choice to the NIC.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PortOptions {
    /// Name of the device.
    pub device: Option<String>,
    /// Number of the port, from 1.
    pub port: Option<u8>,
    /// Row of the port's GID table: the GID that it sends from.
    pub gid_index: Option<u8>,
    /// Row of the port's P_Key table: the partition of its queue pairs.
    pub pkey_index: Option<u16>,
}

/// A device with the number of its ports, and of the rows of each port's tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortTables<'a> {
    /// Name of the device.
    pub device: &'a str,
    /// Ports have the numbers 1 to this.
    pub ports: u8,
    /// Rows of a port's GID table.
    pub gids: u16,
    /// Rows of a port's P_Key table.
    pub pkeys: u16,
}

impl<'a> PortTables<'a> {
    /// A device of one port, with one GID and one P_Key.
    #[must_use]
    pub const fn single(device: &'a str) -> Self {
        Self { device, ports: 1, gids: 1, pkeys: 1 }
    }

    /// Whether the device has all that `options` name.
    ///
    /// # Errors
    ///
    /// [`PortOptionError`]: the first that it has not.
    pub fn check(&self, options: &PortOptions) -> Result<(), PortOptionError> {
        let device = || self.device.to_owned();
        if let Some(asked) = options.device.as_ref().filter(|asked| *asked != self.device) {
            return Err(PortOptionError::Device { asked: asked.clone(), known: device() });
        }
        let port = options.port.unwrap_or(1);
        if port == 0 || port > self.ports {
            let ports = self.ports;
            return Err(PortOptionError::Port { device: device(), asked: port, ports });
        }
        let row = |table, asked: u16, rows| PortOptionError::Row {
            table,
            device: device(),
            port,
            asked,
            rows,
        };
        if let Some(asked) = options.gid_index.map(u16::from).filter(|asked| *asked >= self.gids) {
            return Err(row(PortTable::Gid, asked, self.gids));
        }
        match options.pkey_index.filter(|asked| *asked >= self.pkeys) {
            Some(asked) => Err(row(PortTable::Pkey, asked, self.pkeys)),
            None => Ok(()),
        }
    }
}

/// A table of a port, with rows from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PortTable {
    /// Its addresses.
    Gid,
    /// The keys of its partitions.
    Pkey,
}

impl core::fmt::Display for PortTable {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Gid => "GID",
            Self::Pkey => "P_Key",
        })
    }
}

/// Why a NIC cannot be opened as [`PortOptions`] ask.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PortOptionError {
    /// The NIC has no device of that name.
    #[error("there is no device `{asked}`; name one of: {known}; or leave the choice to the NIC")]
    Device {
        /// The name.
        asked: String,
        /// The names there are.
        known: String,
    },
    /// The device has no port of that number.
    #[error("device `{device}` has no port {asked}: choose one from 1 to {ports}")]
    Port {
        /// The device.
        device: String,
        /// The number.
        asked: u8,
        /// Its highest port.
        ports: u8,
    },
    /// A table of the port has no such row.
    #[error(
        "the {table} table of port {port} of device `{device}` has no row {asked}: choose one from 0 to {}",
        rows.saturating_sub(1)
    )]
    Row {
        /// The table.
        table: PortTable,
        /// The device.
        device: String,
        /// The port.
        port: u8,
        /// The row.
        asked: u16,
        /// The number of its rows.
        rows: u16,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLES: PortTables<'_> = PortTables { device: "mlx5_0", ports: 2, gids: 4, pkeys: 128 };

    fn refusal(options: &PortOptions) -> String {
        TABLES.check(options).unwrap_err().to_string()
    }

    #[test]
    fn what_the_device_has_is_taken_up_to_the_last_row() {
        let none = PortOptions::default();
        let last = PortOptions {
            device: Some("mlx5_0".into()),
            port: Some(2),
            gid_index: Some(3),
            pkey_index: Some(127),
        };
        let first = PortOptions { port: Some(1), gid_index: Some(0), ..none.clone() };
        for options in [none, first, last] {
            assert_eq!(TABLES.check(&options), Ok(()), "{options:?}");
        }
    }

    #[test]
    fn a_refusal_names_what_was_asked_and_what_there_is() {
        let none = PortOptions::default();
        assert_eq!(
            refusal(&PortOptions { device: Some("rxe0".into()), ..none.clone() }),
            "there is no device `rxe0`; name one of: mlx5_0; or leave the choice to the NIC"
        );
        for port in [0, 3] {
            assert_eq!(
                refusal(&PortOptions { port: Some(port), ..none.clone() }),
                format!("device `mlx5_0` has no port {port}: choose one from 1 to 2")
            );
        }
        let on_two = PortOptions { port: Some(2), ..none };
        assert_eq!(
            refusal(&PortOptions { gid_index: Some(4), ..on_two.clone() }),
            "the GID table of port 2 of device `mlx5_0` has no row 4: choose one from 0 to 3"
        );
        assert_eq!(
            refusal(&PortOptions { pkey_index: Some(128), ..on_two }),
            "the P_Key table of port 2 of device `mlx5_0` has no row 128: choose one from 0 to 127"
        );
    }
}
