//! Opening a port.

use std::{
    env, fs, io,
    net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, ToSocketAddrs as _, UdpSocket},
    path::PathBuf,
};

use memory::sync::Arc;
use softnic::{Membership, Nic, open_member, open_virtual};
use verbs::LinkLayer;

use crate::{
    Config, Counts, PortName, Secret, SecretError, aliases::ALONE, port::TcpPort, secret::random,
};

/// Ports after the one that was asked for which are tried, too.
const PORTS_TRIED: u16 = 64;

/// Why a port on TCP could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// There is no secret.
    #[error(transparent)]
    Secret(#[from] SecretError),
    /// No IPv4 address.
    #[error("`{text}` is no IPv4 address of this host; set COPYRPC_TCP_ADDRESS to one")]
    Address {
        /// The text that was set.
        text: String,
    },
    /// Others could connect, who know no secret.
    #[error(
        "{address} can be reached by other hosts, and there is no secret; head -c 32 /dev/urandom > FILE; chmod \
         600 FILE; set COPYRPC_SECRET_FILE on all hosts, or set COPYRPC_TCP_ADDRESS to 127.0.0.1"
    )]
    NoSecret {
        /// Where it was to listen.
        address: Ipv4Addr,
    },
    /// The kernel refuses.
    #[error(
        "cannot listen at {address}: {source}; COPYRPC_TCP_ADDRESS and COPYRPC_TCP_PORT say where"
    )]
    Listen {
        /// The address.
        address: SocketAddrV4,
        /// Error of the kernel.
        source: io::Error,
    },
    /// The engine refuses.
    #[error(transparent)]
    Engine(#[from] softnic::OpenError),
}

/// The queries of a port on TCP, beyond those of every NIC.
#[derive(Clone, Debug)]
pub struct Handle(Arc<TcpPort>);

impl Handle {
    /// Where it listens, and which life of it this is.
    #[must_use]
    pub fn name(&self) -> PortName {
        self.0.name()
    }

    /// The events of its streams.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.0.counts()
    }
}

/// Opens a port of its own.
///
/// # Errors
///
/// [`OpenError`].
pub fn open(config: &Config) -> Result<Nic, OpenError> {
    open_with_handle(config).map(|(nic, _)| nic)
}

/// As [`open`], with a handle, which keeps the streams open as long as it lives.
///
/// # Errors
///
/// [`OpenError`].
pub fn open_with_handle(config: &Config) -> Result<(Nic, Handle), OpenError> {
    let key = match &config.secret_file {
        Some(path) => Secret::from_file(path)?,
        None => Secret::of_user(&user_folder())?,
    };
    let listener = listen(config, address(config)?)?;
    let failed = |source| OpenError::Listen { address: ANY, source };
    let SocketAddr::V4(address) = listener.local_addr().map_err(failed)? else {
        return Err(OpenError::Address { text: config.address.clone() });
    };
    let mut name = PortName { address, life: u32::from_ne_bytes(random()), lid: 0 };
    let engine = softnic::Config {
        link: LinkLayer::Ethernet,
        card_mib: config.card_mib,
        options: config.options.clone(),
        fabric: key.fabric(),
        ..softnic::Config::default()
    };
    let membership =
        if config.shares_memory { Some(Membership::join(&engine, name.instance())?) } else { None };
    name.lid = membership.as_ref().map_or(0, |membership| membership.lid().get());
    let port = Arc::new(TcpPort::new(name, key, config.timeout, listener).map_err(failed)?);
    let (nic, own) = match membership {
        Some(membership) => open_member(&engine, membership, port.clone())?,
        None => open_virtual(&engine, ALONE, port.clone())?,
    };
    port.attach(own);
    Ok((nic, Handle(port)))
}

const ANY: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0);

/// The user's own folder for what lives as long as the machine is on.
fn user_folder() -> PathBuf {
    match env::var_os("XDG_RUNTIME_DIR").filter(|folder| !folder.is_empty()) {
        Some(folder) => PathBuf::from(folder).join("copyrpc"),
        None => {
            let uid = rustix::process::geteuid().as_raw();
            env::temp_dir().join(format!("copyrpc-{uid}"))
        }
    }
}

fn address(config: &Config) -> Result<Ipv4Addr, OpenError> {
    let address = match &*config.address {
        "" if config.secret_file.is_none() => Ipv4Addr::LOCALHOST,
        "" => reachable(config.rendezvous.as_deref()),
        text => text.parse().map_err(|_| OpenError::Address { text: text.to_owned() })?,
    };
    if address.is_unspecified() {
        // The address is announced to others, so it has to be one.
        return Err(OpenError::Address { text: config.address.clone() });
    }
    if config.secret_file.is_none() && !address.is_loopback() {
        return Err(OpenError::NoSecret { address });
    }
    Ok(address)
}

/// The address of this host that others reach, as far as it can be found: the one from which packets to the
/// rendezvous would leave, or else those to other networks; the first one of any interface; loopback.
fn reachable(rendezvous: Option<&str>) -> Ipv4Addr {
    let meeting = rendezvous.and_then(|place| place.to_socket_addrs().ok());
    let meeting = meeting.into_iter().flatten().find(SocketAddr::is_ipv4);
    // A documentation address (RFC 5737): no host has it.
    let elsewhere = SocketAddr::from((Ipv4Addr::new(192, 0, 2, 1), 9));
    meeting
        .and_then(towards)
        .or_else(|| towards(elsewhere))
        .or_else(|| of_interfaces(&fs::read_to_string("/proc/net/fib_trie").unwrap_or_default()))
        .unwrap_or(Ipv4Addr::LOCALHOST)
}

/// Nothing is sent.
fn towards(target: SocketAddr) -> Option<Ipv4Addr> {
    let socket = UdpSocket::bind(ANY).ok()?;
    socket.connect(target).ok()?;
    match socket.local_addr().ok()? {
        SocketAddr::V4(address) => Some(*address.ip()),
        SocketAddr::V6(_) => None,
    }
}

/// The first local address in the kernel's table of routes that is not loopback.
fn of_interfaces(routes: &str) -> Option<Ipv4Addr> {
    let mut last = None;
    for line in routes.lines().map(str::trim) {
        if let Some(address) = line.strip_prefix("|-- ") {
            last = address.parse::<Ipv4Addr>().ok();
        } else if line.starts_with("/32 host LOCAL")
            && let Some(address) = last.filter(|address| !address.is_loopback())
        {
            return Some(address);
        }
    }
    None
}

fn listen(config: &Config, ip: Ipv4Addr) -> Result<TcpListener, OpenError> {
    let first = SocketAddrV4::new(ip, config.port);
    let ports = if config.port == 0 {
        0..=0
    } else {
        config.port..=config.port.saturating_add(PORTS_TRIED)
    };
    let mut refused = None;
    for port in ports {
        match TcpListener::bind(SocketAddrV4::new(ip, port)) {
            Ok(listener) => {
                let source = listener.set_nonblocking(true);
                return source
                    .map(|()| listener)
                    .map_err(|source| OpenError::Listen { address: first, source });
            }
            Err(source) => refused = refused.or(Some(source)),
        }
    }
    let source = refused.unwrap_or_else(|| io::ErrorKind::AddrInUse.into());
    Err(OpenError::Listen { address: first, source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_address_that_is_not_loopback_is_found() {
        let routes = "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 127.0.0.1\n        /32 host LOCAL\n     \
                      |-- 10.77.0.0\n        /24 link UNICAST\n     |-- 10.77.0.1\n        /32 host LOCAL\n";
        assert_eq!(of_interfaces(routes), Some(Ipv4Addr::new(10, 77, 0, 1)));
        assert_eq!(of_interfaces("|-- 127.0.0.1\n/32 host LOCAL\n|-- x\n/32 host LOCAL"), None);
    }

    #[test]
    fn who_meets_on_loopback_is_reached_there_and_others_are_refused_without_a_secret() {
        if cfg!(not(miri)) {
            assert_eq!(reachable(Some("127.0.0.1:9")), Ipv4Addr::LOCALHOST);
        }
        let at = |text: &str| address(&Config { address: text.into(), ..Config::default() });
        assert!(matches!(at(""), Ok(Ipv4Addr::LOCALHOST)));
        assert!(matches!(at("10.0.0.1"), Err(OpenError::NoSecret { .. })));
        assert!(matches!(at("0.0.0.0"), Err(OpenError::Address { .. })));
        assert!(matches!(at("host"), Err(OpenError::Address { .. })));
    }
}
