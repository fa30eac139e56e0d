//! What is looked at.

use std::{fs, path::Path};

use bootstrap::{RankInfo, Secret};
use daemon::{
    AddressSpaceNeed, DescriptorShares,
    config::{DaemonConfig, SECRET_FILE, Settings, Start},
    metrics::{Counter, DaemonState},
};

use nics::hardware;
use rustix::fs::StatVfsMountFlags;

use super::network;
use crate::{args::OnlyArgs, doctor::Finding, stat};
use command::nic;

/// Memory that a NIC must be able to pin before anything works well.
const PINNED_BYTES_MIN: u64 = 64 << 20;

/// Oldest kernel with `F_SEAL_FUTURE_WRITE`, and `pidfd_open(2)` two versions later.
const KERNEL_MIN: (u32, u32) = (5, 3);

/// Every check, in the order in which it is shown.
pub(super) fn all(settings: &Settings) -> Vec<Finding> {
    let mut findings = vec![
        kernel(&read("/proc/sys/kernel/osrelease")),
        cores(os::affinity::allowed_cores().unwrap_or_default().len()),
        knobs(settings),
        folder(settings),
        launched(settings),
        secret(settings),
    ];
    let limits = read("/proc/self/limits");
    findings.push(descriptors(&limits, settings));
    let devices = hardware::devices().0;
    findings.extend(network::all(settings, limit(&limits, "Max locked memory"), &devices));
    findings.push(memory_limit(os::cgroup::memory_limit_bytes(), settings));
    findings.push(huge_pages(Path::new("/")));
    findings.push(clock(&read("/sys/devices/system/clocksource/clocksource0/current_clocksource")));
    let nic = nic::describe(&nic::selected(settings));
    let mapping_bytes = nic.as_ref().map_or(0, |description| description.mapping_bytes);
    findings.push(address_space(&limits, settings, mapping_bytes));
    if let Ok(nic) = &nic {
        let (name, allowed) = (&nic.attributes.name, os::affinity::allowed_cores());
        let reason = nic::selected(settings).reason(name);
        findings.extend(network::taken(name, reason, &devices, &allowed.unwrap_or_default()));
        findings.extend(network::address(nic.is_link_local));
        findings.extend(nic.roce_ip.map(network::roce));
        findings.extend(network::room(settings, &nic.attributes));
    }
    findings.push(selected_nic(settings, nic));
    findings.extend(hardware(settings));
    findings.extend(daemons(settings));
    findings
}

/// Empty if it is not there.
fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

fn kernel(release: &str) -> Finding {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    let version = (numbers.next(), numbers.next());
    let (Some(Ok(major)), Some(Ok(minor))) = version else {
        return Finding::note("kernel", "its version cannot be read", "");
    };
    if (major, minor) >= KERNEL_MIN {
        Finding::fine("kernel", format!("Linux {release}"))
    } else {
        let (major, minor) = KERNEL_MIN;
        let remedy = format!("sealed memory and pidfds need Linux {major}.{minor}");
        Finding::fails("kernel", format!("Linux {release}"), remedy)
    }
}

fn cores(count: usize) -> Finding {
    let found = format!("{count} allowed");
    if count >= 2 {
        Finding::fine("cores", found)
    } else {
        let remedy = "daemon and clients take turns: correct, but slow; give the job more cores, and set \
                      COPYRPC_WAIT=block";
        Finding::note("cores", found, remedy)
    }
}

fn knobs(settings: &Settings) -> Finding {
    match DaemonConfig::from_settings(settings) {
        Ok(_) => Finding::fine("knobs", "they agree with each other"),
        Err(error) => {
            Finding::fails("knobs", error.to_string(), "`copyrpc config --show-origin` helps")
        }
    }
}

fn folder(settings: &Settings) -> Finding {
    let runtime = daemon::config::runtime_of(settings);
    match runtime.and_then(|runtime| runtime.ensure_folder().map(|()| runtime)) {
        Ok(runtime) => {
            let threads = usize::try_from(settings.number(&daemon::config::THREADS)).unwrap_or(1);
            room(runtime.folder(), daemon::metrics::file_bytes(threads) as u64)
        }
        Err(error) => Finding::fails("runtime folder", error.to_string(), ""),
    }
}

/// Whether a daemon can write its counters, which need so many bytes.
fn room(folder: &Path, need: u64) -> Finding {
    let shown = folder.display();
    let remedy = "make room, or set COPYRPC_RUNTIME_DIR to another folder";
    match rustix::fs::statvfs(folder) {
        Ok(system) if system.f_flag.contains(StatVfsMountFlags::RDONLY) => Finding::fails(
            "runtime folder",
            format!("{shown} is on a read-only file system"),
            remedy,
        ),
        Ok(system) if system.f_bavail.saturating_mul(system.f_frsize) < need => {
            let left = system.f_bavail.saturating_mul(system.f_frsize);
            let found = format!("{shown} has {left} B left, and a daemon's counters need {need} B");
            Finding::fails("runtime folder", found, remedy)
        }
        // The kernel's word is no promise, and its silence no failure.
        Ok(_) | Err(_) => Finding::fine("runtime folder", shown.to_string()),
    }
}

fn launched(settings: &Settings) -> Finding {
    // Contradictions are found by themselves.
    let Ok(config) = DaemonConfig::from_settings(settings) else {
        return Finding::fine("launcher", "not looked for: settings contradict each other");
    };
    match command::launch::Launch::of(settings, config) {
        Ok(launch) if launch.rank_info == RankInfo::ALONE => {
            Finding::fine("launcher", "a daemon started here is alone")
        }
        Ok(launch) => {
            let rank_info = launch.rank_info;
            Finding::fine("launcher", format!("a daemon started here is {rank_info}"))
        }
        Err(error) => Finding::fails("launcher", error.to_string(), ""),
    }
}

fn secret(settings: &Settings) -> Finding {
    let path = settings.text(&SECRET_FILE);
    let is_alone =
        DaemonConfig::from_settings(settings).is_ok_and(|config| config.start == Start::Alone);
    match path {
        "" if is_alone => Finding::fine("secret", "none needed for one node"),
        "" => Finding::fails(
            "secret",
            "daemons of several nodes need one",
            "head -c 32 /dev/urandom > FILE; chmod 600 FILE; set COPYRPC_SECRET_FILE on all nodes",
        ),
        path => match Secret::from_file(Path::new(path)) {
            Ok(_) => Finding::fine("secret", path),
            Err(error) => Finding::fails("secret", error.to_string(), ""),
        },
    }
}

/// The soft limit of a line of `/proc/self/limits`; `None` if there is none.
fn limit(limits: &str, name: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

fn descriptors(limits: &str, settings: &Settings) -> Finding {
    let clients = settings.number(&daemon::config::CLIENTS_MAX);
    let limit = limit(limits, "Max open files");
    let DescriptorShares { needed: need, regions } = DescriptorShares::of(clients, limit);
    let lent = format!("{regions} for regions that calls lend");
    match limit {
        Some(limit) if limit < need => Finding::fails(
            "open files",
            format!("{limit}, but {clients} clients need {need}; {lent}"),
            "raise `ulimit -n` (systemd: LimitNOFILE), or lower COPYRPC_CLIENTS_MAX",
        ),
        Some(limit) => {
            let found = format!("{limit}, of which {need} may be needed for clients, {lent}");
            Finding::fine("open files", found)
        }
        None => Finding::fine("open files", format!("unlimited, {lent}")),
    }
}

fn memory_limit(limit_bytes: Option<u64>, settings: &Settings) -> Finding {
    let Some(bytes) = limit_bytes else { return Finding::fine("memory limit", "none") };
    let found = format!("{} MiB for this control group", bytes >> 20);
    if bytes < PINNED_BYTES_MIN {
        return Finding::fails("memory limit", found, "raise the memory limit of this container");
    }
    let Ok(config) = DaemonConfig::from_settings(settings) else {
        return Finding::fine("memory limit", found);
    };
    let (clients, fitting) = (config.clients_max, config.clients_that_fit(Some(bytes)));
    if fitting < clients {
        let found = format!("{found}: {fitting} clients fit, not {clients}; others are refused");
        let remedy = "raise the memory limit, or lower COPYRPC_CLIENTS_MAX, COPYRPC_DEPTH or \
                      COPYRPC_MESSAGE_BYTES_MAX";
        return Finding::note("memory limit", found, remedy);
    }
    Finding::fine("memory limit", found)
}

/// Of the machine whose `sys` and `proc` are below `root`.
fn huge_pages(root: &Path) -> Finding {
    let read = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
    // Rings are shared memory, which `enabled` beside it says nothing of.
    let transparent = read("sys/kernel/mm/transparent_hugepage/shmem_enabled");
    let meminfo = read("proc/meminfo");
    let chosen = transparent.split(['[', ']']).nth(1).unwrap_or("unknown");
    let free = meminfo.lines().find_map(|line| line.strip_prefix("HugePages_Free:"));
    let free: u64 = free.and_then(|count| count.trim().parse().ok()).unwrap_or(0);
    let found = format!("{free} reserved; transparent ones of shared memory: {chosen}");
    match chosen {
        "always" | "within_size" | "advise" | "force" => Finding::fine("huge pages", found),
        _ if free > 0 => Finding::fine("huge pages", found),
        _ => Finding::note(
            "huge pages",
            found,
            "regions of a NIC have small pages, of which it translates each; `echo advise` to \
             /sys/kernel/mm/transparent_hugepage/shmem_enabled helps, or vm.nr_hugepages",
        ),
    }
}

fn clock(source: &str) -> Finding {
    // These are read without a system call.
    let is_fast = ["tsc", "arch_sys_counter", "kvm-clock", "hyperv_clocksource_tsc_page"];
    if is_fast.contains(&source) {
        Finding::fine("clock", source)
    } else {
        let remedy = "looking at the clock may be a system call; deadlines and sampling cost more";
        Finding::note("clock", source, remedy)
    }
}

/// A NIC that cannot be opened for want of address space says so itself.
fn address_space(limits: &str, settings: &Settings, mapping_bytes: u64) -> Finding {
    let Some(bytes) = limit(limits, "Max address space") else {
        return Finding::fine("address space", "unlimited");
    };
    let found = format!("{} MiB", bytes >> 20);
    // Contradictions are found by themselves.
    let Ok(config) = DaemonConfig::from_settings(settings) else {
        return Finding::fine("address space", found);
    };
    let launch = command::launch::Launch::of(settings, config.clone());
    let rank_info = launch.map_or(RankInfo::ALONE, |launch| launch.rank_info);
    let need = AddressSpaceNeed::of(&config, rank_info, mapping_bytes);
    match need.check_besides(mapping_bytes) {
        Ok(()) => Finding::fine("address space", found),
        Err(error) => Finding::fails("address space", error.to_string(), ""),
    }
}

fn selected_nic(
    settings: &Settings,
    opened: Result<nic::NicDescription, nics::OpenError>,
) -> Finding {
    let nic = nic::selected(settings);
    match opened {
        Ok(_) => {
            Finding::fine("NIC", format!("{} opens, and its memory can be shared", nic.name()))
        }
        Err(error) => Finding::fails("NIC", error.to_string(), ""),
    }
}

fn hardware(settings: &Settings) -> Vec<Finding> {
    let (devices, sysfs) = hardware::devices();
    let mut findings = Vec::new();
    if devices.is_empty() {
        let found = format!("none ({}: {})", sysfs.what, sysfs.outcome);
        findings.push(Finding::note("RDMA devices", found, "none is needed for the software NIC"));
    }
    for device in &devices {
        findings.push(Finding::fine("RDMA device", device.to_string()));
    }
    if devices.iter().any(|device| device.driver() == hardware::CONNECTX_DRIVER) {
        findings.push(match nic::describe(&nic::named(nics::mlx5::NAME, settings)) {
            Ok(_) => {
                Finding::fine("NIC mlx5", "opens, and libmlx5 lays out queues as its driver does")
            }
            Err(error) => Finding::note("NIC mlx5", error.to_string(), "NIC `ibverbs` may work"),
        });
    }
    for library in hardware::libraries() {
        let found = format!("{}: {}", library.what, library.outcome);
        findings.push(if library.found {
            Finding::fine("library", found)
        } else {
            Finding::note("library", found, "needed for hardware alone")
        });
    }
    findings
}

fn daemons(settings: &Settings) -> Vec<Finding> {
    let snapshots = stat::read_all(settings, &OnlyArgs::default()).unwrap_or_default();
    let finding = |snapshot: &daemon::metrics::Snapshot| {
        let is_unseen = matches!(snapshot.state, DaemonState::Alive(_)) && !snapshot.is_seen();
        let place = if is_unseen { " of another PID namespace" } else { "" };
        let (name, state, pid) = (&snapshot.name, snapshot.state, snapshot.process.pid);
        let found = format!("{name}: {state}, process {pid}{place}");
        let total = snapshot.total();
        let [regions, bytes] =
            [Counter::BulkRegions, Counter::BulkHeld].map(|counter| total.counter(counter));
        let found = if regions == 0 {
            found
        } else {
            format!("{found}, {regions} regions that calls lend ({} KiB)", bytes >> 10)
        };
        if snapshot.state == DaemonState::Crashed {
            let remedy =
                "`copyrpc stat` shows its last counters; start it again, which replaces them";
            Finding::note("daemon", found, remedy)
        } else if let refused @ 1.. = total.counter(Counter::NoMemory) {
            let found =
                format!("{found}; {refused} times there was no memory to reach another node");
            let remedy = "its log names what was refused; raise `ulimit -v` (systemd: LimitAS) or the memory \
                          limit of both nodes";
            Finding::note("daemon", found, remedy)
        } else {
            Finding::fine("daemon", found)
        }
    };
    snapshots.iter().map(finding).collect()
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

    const LIMITS: &str = "Limit                     Soft Limit           Hard Limit           Units\n\
                          Max open files            1024                 4096                 files\n\
                          Max locked memory         65536                65536                bytes\n";

    #[test]
    fn old_kernels_and_low_limits_are_found_with_a_remedy() {
        assert_eq!(kernel("4.19.0-27").verdict, Verdict::Fails);
        assert_eq!(kernel("6.1.0-18-amd64").verdict, Verdict::Fine);
        assert_eq!(kernel("").verdict, Verdict::Note);
        let files = descriptors(LIMITS, &settings(&[]));
        assert_eq!(files.verdict, Verdict::Fails);
        assert!(
            files.found.contains("1024, but 256 clients need 1344; 128 for regions"),
            "{files:?}"
        );
        assert_eq!(descriptors(LIMITS, &settings(&[("clients-max", "16")])).verdict, Verdict::Fine);
        assert!(descriptors("", &settings(&[])).found.starts_with("unlimited, 2048 for regions"));
        assert_eq!(limit(LIMITS, "Max locked memory"), Some(65_536));
        let memory = |bytes| memory_limit(bytes, &settings(&[]));
        assert_eq!(memory(Some(1 << 20)).verdict, Verdict::Fails);
        assert_eq!(memory(None).verdict, Verdict::Fine);
        assert_eq!(memory(Some(1 << 30)).verdict, Verdict::Fine);
    }

    #[test]
    fn fault_i9_a_limit_that_clients_do_not_fit_into_is_noted_with_their_number() {
        let found = memory_limit(Some(80 << 20), &settings(&[]));
        assert_eq!(found.verdict, Verdict::Note);
        assert!(found.found.starts_with("80 MiB for this control group: "), "{found:?}");
        let few = [("clients-max", "16")];
        assert_eq!(memory_limit(Some(80 << 20), &settings(&few)).verdict, Verdict::Fine);
    }

    #[test]
    fn settings_of_the_machine_are_read_as_the_kernel_writes_them() {
        let root = std::env::temp_dir().join(format!("copyrpc-doctor-{}", std::process::id()));
        let pages = root.join("sys/kernel/mm/transparent_hugepage");
        fs::create_dir_all(&pages).unwrap();
        fs::create_dir_all(root.join("proc")).unwrap();
        // Of memory that no ring is in.
        fs::write(pages.join("enabled"), "[always] madvise never\n").unwrap();
        let found = |shared: &str, free: &str| {
            fs::write(pages.join("shmem_enabled"), shared).unwrap();
            fs::write(root.join("proc/meminfo"), format!("HugePages_Free: {free}\n")).unwrap();
            huge_pages(&root).verdict
        };
        let none = "always within_size advise [never] deny force\n";
        assert_eq!(found(none, "       0"), Verdict::Note);
        assert_eq!(found(none, "      12"), Verdict::Fine);
        assert_eq!(found("always within_size [advise] never", "0"), Verdict::Fine);
        fs::remove_dir_all(&root).unwrap();
        assert_eq!(clock("tsc").verdict, Verdict::Fine);
        assert_eq!(clock("hpet").verdict, Verdict::Note);
    }

    #[test]
    fn a_folder_without_room_for_counters_is_found() {
        let folder = std::env::temp_dir();
        assert_eq!(room(&folder, 0).verdict, Verdict::Fine);
        let full = room(&folder, u64::MAX);
        assert!(full.verdict == Verdict::Fails && full.found.contains("B left"), "{full:?}");
    }

    #[test]
    fn several_nodes_need_a_secret() {
        assert_eq!(secret(&settings(&[])).verdict, Verdict::Fine);
        let missing = secret(&settings(&[("rendezvous", "n0:7000")]));
        assert!(missing.verdict == Verdict::Fails && missing.remedy.contains("chmod 600"));
        let absent = secret(&settings(&[("secret-file", "/nonexistent")]));
        assert_eq!(absent.verdict, Verdict::Fails);
    }

    #[test]
    fn the_place_of_a_daemon_is_looked_for_where_a_daemon_does() {
        let of = |flags: &[(&str, &str)]| launched(&settings(flags));
        assert_eq!(of(&[]).verdict, Verdict::Fine);
        assert_eq!(of(&[("rank", "1")]).verdict, Verdict::Fails, "half of it");
        let alone = of(&[("rank", "1"), ("size", "2")]);
        assert!(alone.verdict == Verdict::Fails && alone.found.contains("COPYRPC_RENDEZVOUS"));
        let met = of(&[("rank", "1"), ("size", "2"), ("rendezvous", "n0:7000")]);
        assert!(met.found.contains("rank 1 of 2"), "{met:?}");
    }
}
