//! What stands between this node and the others: the NIC's reach, the place where daemons meet, ports and their classes.

use std::{
    fs,
    io::{self, ErrorKind},
    net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream, ToSocketAddrs as _, UdpSocket},
    path::Path,
    time::Duration,
};

use bootstrap::RankInfo;
use daemon::config::{DaemonConfig, SERVICE_LEVEL, Settings, Start, TRAFFIC_CLASS};
use nics::hardware::KernelDevice;
use verbs::NicAttributes;

use super::Finding;
use command::nic;

/// How long the place where daemons meet is tried.
const CONNECT: Duration = Duration::from_secs(1);

/// Memory of queues, and of what daemons register for themselves.
const PINNED_BESIDE_BYTES: u64 = 64 << 20;

/// NICs that pin no memory.
const SOFTWARE: [&str; 3] = ["soft", "tcp", "hosts"];

/// The checks of this module.
pub(super) fn all(
    settings: &Settings,
    limits: Option<u64>,
    devices: &[KernelDevice],
) -> Vec<Finding> {
    let name = nic::selected(settings).name().to_owned();
    let config = DaemonConfig::from_settings(settings);
    let mut findings = vec![pinned(limits, &name, settings)];
    let address = config.as_ref().ok().and_then(|config| match &config.start {
        Start::Tcp(address) | Start::Once(address) | Start::Join(address) => Some(address.clone()),
        Start::Alone | Start::File(_) => None,
    });
    if let Some(address) = address {
        findings.push(meeting(&address, &name));
        findings.extend(heartbeats(&address));
    }
    findings.extend(nodes(devices, has_node(Path::new("/dev/infiniband"))));
    if !SOFTWARE.contains(&name.as_str()) || name == "auto" {
        let is_chosen =
            !nic::device_of(settings).is_empty() || devices.iter().any(|d| d.name() == name);
        findings.extend(choice(devices, is_chosen));
        let class = [&SERVICE_LEVEL, &TRAFFIC_CLASS].map(|knob| settings.number(knob));
        findings.extend(lossless(devices, class));
    }
    findings.extend(ports(devices));
    findings
}

/// What a hardware NIC pins: the ring that each peer writes to, the mirror of each peer's, and memory that calls lend.
fn needed_bytes(config: &DaemonConfig, peers: u64) -> u64 {
    let rings = peers.saturating_mul(2).saturating_mul(config.ring_bytes as u64);
    PINNED_BESIDE_BYTES.saturating_add(rings)
}

fn pinned(limit: Option<u64>, nic: &str, settings: &Settings) -> Finding {
    let Some(limit) = limit else { return Finding::fine("locked memory", "unlimited") };
    let found = format!("{} MiB", limit >> 20);
    let remedy =
        "raise `ulimit -l` (limits.conf; systemd: LimitMEMLOCK; containers: --ulimit memlock=-1)";
    let is_software = SOFTWARE.contains(&nic);
    let Ok(config) = DaemonConfig::from_settings(settings) else {
        return Finding::fine("locked memory", found);
    };
    let bulk = config.limits.bulk_bytes;
    let launch = command::launch::Launch::of(settings, config.clone());
    let size = launch.map_or(RankInfo::ALONE, |launch| launch.rank_info).size();
    let need = needed_bytes(&config, u64::from(size.saturating_sub(1)).max(1));
    let needs =
        format!("{found}, of which a hardware NIC pins {} MiB for {size} ranks", need >> 20);
    if limit < need && !is_software {
        return Finding::fails("locked memory", needs, remedy);
    }
    if limit < need.saturating_add(bulk) && !is_software {
        let needs = format!("{needs}, and up to {} MiB that calls lend", bulk >> 20);
        return Finding::note(
            "locked memory",
            needs,
            format!("{remedy}, or lower COPYRPC_BULK_BYTES"),
        );
    }
    if limit < need {
        let remedy = format!("enough for NIC `{nic}`; for a hardware NIC {remedy}");
        return Finding::note("locked memory", needs, remedy);
    }
    Finding::fine("locked memory", needs)
}

/// Whether an address is one of this machine.
fn is_here(address: SocketAddr) -> bool {
    UdpSocket::bind((address.ip(), 0)).is_ok()
}

/// Whether all ranks can reach the place where they meet, and each other from there.
fn meeting(address: &str, nic: &str) -> Finding {
    let what = "rendezvous";
    let resolved = address.to_socket_addrs().ok().and_then(|mut found| found.next());
    let Some(place) = resolved else {
        let remedy =
            "its name has no address here: name rank 0 by HOST:PORT as this machine resolves it";
        return Finding::fails(what, address, remedy);
    };
    let is_here = is_here(place);
    let remedy =
        "set COPYRPC_NIC=auto, or name the NIC of the cluster, such as `mlx5`, on all ranks";
    if nic == "soft" && !is_here {
        let found = format!("{place} is another host, which NIC `soft` does not reach");
        return Finding::fails(what, found, remedy);
    }
    if nic == "soft" && !place.ip().is_loopback() {
        let found = format!("{place} is this host, and NIC `soft` reaches no rank of another one");
        return Finding::note(what, found, remedy);
    }
    let firewall = "let TCP to that port through, and UDP between the hosts, by which daemons see that others live";
    match TcpStream::connect_timeout(&place, CONNECT) {
        Ok(_) => Finding::fine(what, format!("{place} answers")),
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
            let found =
                format!("{place} is reached, and no process listens there yet: rank 0 will");
            Finding::fine(what, found)
        }
        Err(_) if is_here => Finding::fine(what, format!("{place}, which is this host")),
        Err(error) => Finding::fails(what, format!("{place}: {error}"), firewall),
    }
}

/// Whether UDP to the host where daemons meet is answered.
fn heartbeats(address: &str) -> Option<Finding> {
    let place = address.to_socket_addrs().ok()?.next().filter(|place| !is_here(*place))?;
    Some(answered(place))
}

/// Daemons listen at other ports, which they tell each other. Whoever has no process at this one refuses it.
fn answered(place: SocketAddr) -> Finding {
    const TRIES: usize = 3;
    const WAIT: Duration = Duration::from_millis(400);
    let any: SocketAddr = match place.ip() {
        IpAddr::V4(_) => ([0; 4], 0).into(),
        IpAddr::V6(_) => ([0u16; 8], 0).into(),
    };
    let ask = || {
        let socket = UdpSocket::bind(any)?;
        socket.connect(place)?;
        socket.set_read_timeout(Some(WAIT))?;
        socket.send(&[])?;
        socket.recv(&mut [0])
    };
    let told = (0..TRIES).find_map(|_| match ask() {
        Ok(_) => Some(Ok(())),
        Err(error) if error.kind() == ErrorKind::WouldBlock => None,
        Err(error) => Some(Err(error)),
    });
    datagrams(place, told)
}

/// What came back of datagrams to a place: `None` is nothing.
fn datagrams(place: SocketAddr, told: Option<io::Result<()>>) -> Finding {
    let what = "heartbeats";
    let remedy = "daemons see by UDP that others live: a firewall that drops or rejects it between the hosts makes \
                  peers come and go; one that drops ICMP alone does no harm";
    match told {
        Some(Ok(())) => Finding::fine(what, format!("{place} answers UDP")),
        // Of a closed port, and of a firewall that rejects by its default.
        Some(Err(error)) if error.kind() == ErrorKind::ConnectionRefused => {
            let found = format!(
                "UDP reaches {place} and is refused there: no process has the port, or a firewall rejects it; that \
                 a daemon answers is shown by `copyrpc ping RANK`, once it runs"
            );
            Finding::fine(what, found)
        }
        Some(Err(error)) => {
            let found = format!("UDP to {place} is rejected on its way: {error}");
            Finding::note(what, found, remedy)
        }
        None => Finding::note(what, format!("nothing comes back from {place} by UDP"), remedy),
    }
}

/// Whether one thread's share of the ranks fits what the NIC has.
pub(super) fn room(settings: &Settings, nic: &NicAttributes) -> Option<Finding> {
    let config = DaemonConfig::from_settings(settings).ok()?;
    let launch = command::launch::Launch::of(settings, config.clone());
    let rank_info = launch.map_or(RankInfo::ALONE, |launch| launch.rank_info);
    let remedy = "raise COPYRPC_THREADS, which share the other ranks";
    let refused = daemon::check_device(&config, rank_info, nic).err()?;
    Some(Finding::fails("peers", refused.to_string(), remedy))
}

/// What becomes of RoCE packets on their way.
pub(super) fn roce(ip: Ipv4Addr) -> Finding {
    if !is_here((ip, 0).into()) {
        let found = format!("{ip}, which no interface of this network namespace has");
        let remedy = "containers: --network host; else COPYRPC_NIC_GID_INDEX of a row that is of this namespace";
        return Finding::note("GID", found, remedy);
    }
    let found = format!(
        "{ip}: packets go to UDP port 4791, past this host's firewall; those of the network have to let them through"
    );
    Finding::fine("GID", found)
}

fn has_node(folder: &Path) -> bool {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names = entries.map(|entry| entry.file_name());
    names.any(|name| name.to_string_lossy().starts_with("uverbs"))
}

/// Devices of the kernel, and no nodes of them: a container that was not given them.
fn nodes(devices: &[KernelDevice], has_node: bool) -> Option<Finding> {
    if devices.is_empty() || has_node || std::env::var_os("SYSFS_PATH").is_some() {
        return None;
    }
    let remedy = "containers: --device /dev/infiniband; else load the kernel module ib_uverbs";
    Some(Finding::note("device nodes", "no /dev/infiniband/uverbs*", remedy))
}

/// Several devices that may be meant.
fn choice(devices: &[KernelDevice], is_chosen: bool) -> Option<Finding> {
    let up: Vec<String> = devices
        .iter()
        .filter(|device| device.is_up())
        .map(|device| {
            let subnet = device.subnet().map(|prefix| format!(" {prefix}::"));
            let link = format!("{}{}", device.link_layer(), subnet.unwrap_or_default());
            format!("{} ({link}, NUMA node {})", device.name(), device.numa_node())
        })
        .collect();
    if up.len() < 2 || is_chosen {
        return None;
    }
    let remedy = "one of the first one's driver, link layer, subnet and rate is taken, the nearest to the cores of \
                  the daemon; it may be another one on other nodes: name it by COPYRPC_NIC_DEVICE";
    Some(Finding::note("device", format!("{} have a port that is up", up.join(", ")), remedy))
}

/// The device that a daemon opens here: why it is taken, and whether it is far.
pub(super) fn taken(
    opened: &str,
    reason: Option<String>,
    devices: &[KernelDevice],
    allowed: &[usize],
) -> Vec<Finding> {
    let why = reason.map(|why| Finding::fine("device", format!("{opened} is taken: {why}")));
    let device = devices.iter().find(|device| device.name() == opened);
    why.into_iter().chain(device.and_then(|device| far(device, allowed))).collect()
}

/// A device whose PCIe slot is of another processor than the cores that a daemon may run on.
fn far(device: &KernelDevice, allowed: &[usize]) -> Option<Finding> {
    let local = device.local_cores();
    if local.is_empty() || allowed.iter().any(|core| local.contains(core)) {
        return None;
    }
    let (name, node) = (device.name(), device.numa_node());
    let found = format!("{name} is at NUMA node {node}, of which this process may use no core");
    let remedy = format!(
        "each doorbell and each completion crosses the processors: run the daemon on cores {} (`taskset`, \
         `numactl`, the launcher's binding), or name a device near its cores by COPYRPC_NIC_DEVICE",
        device.local_cores_text()
    );
    Some(Finding::note("device", found, remedy))
}

/// RoCE loses packets of a class that the network does not pause or mark for.
fn lossless(devices: &[KernelDevice], [service_level, traffic_class]: [u64; 2]) -> Option<Finding> {
    let is_roce = devices.iter().any(|device| device.is_up() && device.link_layer() == "Ethernet");
    if !is_roce || service_level != 0 || traffic_class != 0 {
        return None;
    }
    let remedy = "if the network pauses or marks one class, send in it: --traffic-class 106 --service-level 3 for \
                  DSCP 26 and priority 3 (`mlnx_qos -i INTERFACE` shows it)";
    Some(Finding::note("traffic class", "RoCE packets are sent in class 0", remedy))
}

/// A RoCE port that hosts with other addresses do not reach.
pub(super) fn address(is_link_local: bool) -> Option<Finding> {
    let remedy = "give its network interface an IP address, as on the other hosts: routes join GIDs of one kind";
    is_link_local.then(|| Finding::note("GID", "a link-local one, of one network alone", remedy))
}

/// Ports that carry nothing yet.
fn ports(devices: &[KernelDevice]) -> Vec<Finding> {
    let down =
        devices.iter().flat_map(|device| device.ports_down().map(move |port| (device, port)));
    let finding = |(device, (port, state, link)): (&KernelDevice, (&str, &str, &str))| {
        let remedy = match (state, link) {
            ("INIT" | "ARMED", _) => "its subnet manager (opensm) has not been round",
            (_, "Ethernet") => "`ip link set INTERFACE up`, or look at the cable",
            _ => "look at the cable, and at the port of the switch",
        };
        Finding::note("port", format!("{}/{port} is {state} ({link})", device.name()), remedy)
    };
    down.map(finding).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Verdict;
    use command::knobs as table;
    use daemon::config::Layers;

    fn settings(flags: &[(&str, &str)]) -> Settings {
        let layers = Layers::new(table::all());
        let set = |layers: Layers, (key, text): &(&str, &str)| layers.flag(key, text).unwrap();
        flags.iter().fold(layers, set).finish()
    }

    #[test]
    fn locked_memory_is_compared_with_what_the_ranks_need() {
        let of = |limit, nic: &str, flags: &[(&str, &str)]| pinned(limit, nic, &settings(flags));
        assert_eq!(of(None, "mlx5", &[]).verdict, Verdict::Fine);
        assert_eq!(of(Some(8 << 20), "mlx5", &[]).verdict, Verdict::Fails);
        assert_eq!(of(Some(8 << 20), "soft", &[]).verdict, Verdict::Note);
        let many = [
            ("rank", "0"),
            ("size", "1001"),
            ("rendezvous", "./meet"),
            ("secret-file", "/dev/null"),
        ];
        let found = of(Some(256 << 20), "mlx5", &many);
        assert!(found.verdict == Verdict::Fails && found.found.contains("1001 ranks"), "{found:?}");
        let lent = of(Some(256 << 20), "mlx5", &[]);
        assert!(lent.verdict == Verdict::Note && lent.remedy.contains("BULK"), "{lent:?}");
    }

    #[test]
    fn a_place_that_cannot_be_reached_is_found_before_daemons_wait_for_it() {
        assert_eq!(meeting("127.0.0.1:9", "soft").verdict, Verdict::Fine);
        assert_eq!(meeting("no-such-host.invalid:9", "mlx5").verdict, Verdict::Fails);
        // It is an address of this machine that is not its loopback's: each machine has it.
        let own = meeting("0.0.0.0:9", "soft");
        assert!(own.verdict == Verdict::Note && own.remedy.contains("auto"), "{own:?}");
        assert_eq!(meeting("0.0.0.0:9", "mlx5").verdict, Verdict::Fine);
        // Of a range for documentation: nobody's.
        let away = meeting("192.0.2.1:9", "soft");
        assert!(away.verdict == Verdict::Fails && away.found.contains("soft"), "{away:?}");
    }

    #[test]
    fn udp_that_does_not_come_back_and_addresses_of_other_namespaces_are_told() {
        assert!(heartbeats("127.0.0.1:9").is_none(), "this host");
        let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
        let place = silent.local_addr().unwrap();
        let away = answered(place);
        assert!(away.verdict == Verdict::Note && away.remedy.contains("firewall"), "{away:?}");
        drop(silent);
        let refused = answered(place);
        assert_eq!(refused.verdict, Verdict::Fine, "a kernel refuses");
        assert!(refused.found.contains("no process has the port, or a firewall"), "{refused:?}");
        assert_eq!(datagrams(place, Some(Ok(()))).found, format!("{place} answers UDP"));
        // A firewall that says "prohibited".
        let prohibited = Some(Err(ErrorKind::HostUnreachable.into()));
        let rejected = datagrams(place, prohibited);
        assert!(rejected.verdict == Verdict::Note && rejected.found.contains("rejected"));
        let own = roce(Ipv4Addr::LOCALHOST);
        assert!(own.verdict == Verdict::Fine && own.found.contains("4791"), "{own:?}");
        let other = roce(Ipv4Addr::new(192, 0, 2, 1));
        assert!(other.verdict == Verdict::Note && other.remedy.contains("--network host"));
    }

    #[test]
    fn a_job_that_is_too_large_for_the_device_is_found_before_it_starts() {
        let nic = command::nic::describe(&command::nic::named("soft", &settings(&[])));
        let adapter = NicAttributes { cqes_max: 4095, ..nic.unwrap().attributes };
        let job = |size: &str| {
            let flags = [
                ("rank", "0"),
                ("size", size),
                ("rendezvous", "./meet"),
                ("secret-file", "/dev/null"),
            ];
            room(&settings(&flags), &adapter)
        };
        assert!(job("2").is_none());
        let found = job("1000").unwrap();
        assert!(
            found.verdict == Verdict::Fails && found.remedy.contains("COPYRPC_THREADS"),
            "{found:?}"
        );
    }

    #[test]
    fn a_device_of_another_processor_is_told_with_the_cores_that_are_near() {
        let device = KernelDevice::for_tests("mlx5_0", "ACTIVE", "InfiniBand");
        let near = device.clone().near("0-3,8");
        assert!(far(&device, &[0]).is_none(), "a machine without NUMA");
        assert!(far(&near, &[3, 4]).is_none() && far(&near, &[8]).is_none());
        let found = far(&near, &[4, 7]).unwrap();
        assert!(found.verdict == Verdict::Note && found.remedy.contains("cores 0-3,8"));
        let both = [KernelDevice::for_tests("mlx5_9", "ACTIVE", "InfiniBand").near("4-7"), near];
        let of =
            |device, reason: Option<&str>| taken(device, reason.map(str::to_owned), &both, &[4]);
        let [why] = &of("mlx5_9", Some("it is near"))[..] else {
            panic!("of the one that is near")
        };
        assert_eq!((why.verdict, &*why.found), (Verdict::Fine, "mlx5_9 is taken: it is near"));
        let [why, far] = &of("mlx5_0", Some("it is named"))[..] else { panic!("it is far") };
        assert_eq!((why.verdict, far.verdict), (Verdict::Fine, Verdict::Note));
        assert!(of("soft", None).is_empty());
    }

    #[test]
    fn devices_that_are_down_many_or_hidden_are_told_with_a_remedy() {
        let device = KernelDevice::for_tests;
        let both =
            [device("mlx5_0", "ACTIVE", "Ethernet"), device("mlx5_1", "ACTIVE", "InfiniBand")];
        let chosen = choice(&both, false).unwrap();
        assert!(
            chosen.found.contains("mlx5_0 (Ethernet")
                && chosen.found.contains("mlx5_1 (InfiniBand")
        );
        let far = device("mlx5_2", "ACTIVE", "InfiniBand").in_subnet("fec0:0000:0000:0001");
        let subnets = choice(&[both[1].clone(), far], false).unwrap().found;
        assert!(
            subnets.contains("fe80:0000:0000:0000::") && subnets.contains("fec0:0000:0000:0001::")
        );
        assert!(choice(&both, true).is_none() && choice(&both[..1], false).is_none());
        assert!(lossless(&both, [0, 0]).is_some() && lossless(&both, [3, 106]).is_none());
        assert!(lossless(&both[1..], [0, 0]).is_none());
        let waiting = ports(&[device("mlx5_0", "INIT", "InfiniBand")]);
        assert!(waiting[0].remedy.contains("opensm") && ports(&both).is_empty());
        assert!(address(true).is_some_and(|it| it.remedy.contains("IP address")));
        assert!(address(false).is_none());
        assert!(nodes(&both, true).is_none() && nodes(&[], false).is_none());
        assert!(nodes(&both, false).unwrap().remedy.contains("--device"));
    }
}
