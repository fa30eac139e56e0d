//! The choice among devices that can stand for each other: the one whose NUMA node has cores of this process.
//!
//! A doorbell, a completion and each byte of a body cross from one processor to the other if the device is at the
//! other one. The first device that is up says what the job's network is: only devices of its driver, subnet and rate
//! take its place, so that nodes whose cores differ still meet. Ethernet tells no subnet, so there the first is taken.
//! InfiniBand fabrics that are not connected have to differ in their subnet prefixes, as for every subnet manager.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Characters of the first half of a GID, as the kernel writes it: `fe80:0000:0000:0000`.
const PREFIX_TEXT: usize = 19;

/// Where devices and cores are looked up.
#[derive(Clone, Debug)]
pub struct Places {
    sysfs: PathBuf,
    /// NUMA nodes that have cores of this process; empty: the kernel tells none.
    nodes: Vec<u32>,
}

/// How far a device is from the cores of this process; nearer ones are less.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Distance {
    Near,
    Unknown,
    Far,
}

/// What the kernel says of a device with a port that is up.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Facts {
    node: Option<u32>,
    network: Network,
}

/// Devices of one network can stand for each other, as far as the kernel tells.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Network {
    driver: String,
    link_layer: String,
    /// Prefix of the subnet; empty on Ethernet, where each address has its own.
    subnet: String,
    rate: String,
}

impl Network {
    /// Whether the kernel tells what reaches a device.
    fn is_told(&self) -> bool {
        !self.subnet.is_empty()
    }
}

impl Places {
    /// Of this machine and the calling thread.
    #[must_use]
    pub fn here() -> Self {
        // Without them no device is near, and the first is taken.
        let cores = os::affinity::allowed_cores().unwrap_or_default();
        Self::new(crate::gid::sysfs(), &cores)
    }

    /// Of the tree `sysfs` and of a process that may run on `cores`.
    #[must_use]
    pub fn new(sysfs: PathBuf, cores: &[usize]) -> Self {
        let names = names_in(&sysfs.join("devices/system/node"));
        let has_own = |node: &u32| {
            let list = line(&sysfs.join(format!("devices/system/node/node{node}/cpulist")));
            ranges(&list).any(|range| cores.iter().any(|core| range.contains(core)))
        };
        let nodes = names.iter().filter_map(|name| name.strip_prefix("node")?.parse().ok());
        let nodes = nodes.filter(has_own).collect();
        Self { sysfs, nodes }
    }

    /// Puts the nearest device of the first one's network in its place; the others keep their order. With `port` 0 any
    /// port counts.
    pub(crate) fn sort<T: Copy>(&self, devices: &mut [(T, &str)], port: u8) {
        let facts: Vec<_> = devices.iter().map(|(_, name)| self.facts(name, port)).collect();
        let first = facts.iter().flatten().map(|facts| &facts.network).next();
        let Some(network) = first.filter(|network| network.is_told()) else { return };
        let alike = facts.iter().enumerate().filter_map(|(at, facts)| {
            let facts = facts.as_ref().filter(|facts| facts.network == *network)?;
            Some((at, self.distance(facts)))
        });
        let places: Vec<_> = alike.collect();
        let mut sorted = places.clone();
        // It is stable: equals stay in the library's order.
        sorted.sort_by_key(|(_, distance)| *distance);
        let before = devices.to_vec();
        for ((place, _), (from, _)) in places.iter().zip(&sorted) {
            devices[*place] = before[*from];
        }
    }

    /// Why `device` is taken where none is named; `None`: the kernel lists no such device with a port that is up.
    #[must_use]
    pub fn reason(&self, device: &str, port: u8) -> Option<String> {
        let own = self.facts(device, port)?;
        let names = names_in(&self.sysfs.join("class/infiniband"));
        let others = names.iter().filter(|name| *name != device).filter_map(|name| {
            let facts = self.facts(name, port)?;
            (facts.network == own.network).then_some((name, facts))
        });
        let others: Vec<_> = others.collect();
        let listed: Vec<_> = others.iter().map(|(name, it)| format!("{name} ({it})")).collect();
        let listed = listed.join(", ");
        let are_all = |distance| others.iter().all(|(_, it)| self.distance(it) == distance);
        Some(match self.distance(&own) {
            _ if others.is_empty() => {
                "no other device with a port that is up has its driver, link layer, subnet and rate"
                    .to_owned()
            }
            _ if !own.network.is_told() => {
                format!("{own}: it is the first, as Ethernet does not tell what reaches {listed}")
            }
            own_distance if others.iter().any(|(_, it)| self.distance(it) < own_distance) => {
                format!("{own}: no nearer one opened of {listed}")
            }
            Distance::Near if are_all(Distance::Near) => {
                format!("{own} has cores of this process, as of {listed}: it is the first")
            }
            Distance::Near => format!("{own} has cores of this process; others: {listed}"),
            Distance::Unknown => {
                format!(
                    "{own}: it is not known which of it and {listed} is near, and it is the first"
                )
            }
            Distance::Far => {
                format!(
                    "{own} has no core of this process, nor has that of {listed}: it is the first"
                )
            }
        })
    }

    fn distance(&self, facts: &Facts) -> Distance {
        match facts.node {
            Some(node) if self.nodes.contains(&node) => Distance::Near,
            Some(_) if !self.nodes.is_empty() => Distance::Far,
            _ => Distance::Unknown,
        }
    }

    /// Of a device whose `port` is up, or any port if that is 0.
    fn facts(&self, device: &str, port: u8) -> Option<Facts> {
        let folder = self.sysfs.join("class/infiniband").join(device);
        let mut numbers: Vec<u8> = match port {
            0 => names_in(&folder.join("ports")).iter().filter_map(|it| it.parse().ok()).collect(),
            port => vec![port],
        };
        numbers.sort_unstable();
        let folders = numbers.iter().map(|number| folder.join(format!("ports/{number}")));
        // "4: ACTIVE", "5: ACTIVE_DEFER"
        let is_up = |port: &PathBuf| line(&port.join("state")).contains("ACTIVE");
        let port = folders.into_iter().find(is_up)?;
        let link_layer = line(&port.join("link_layer"));
        let prefix = || line(&port.join("gids/0")).chars().take(PREFIX_TEXT).collect();
        let subnet = if link_layer == "InfiniBand" { prefix() } else { String::new() };
        let driver = fs::read_link(folder.join("device/driver")).unwrap_or_default();
        let driver = driver.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let rate = line(&port.join("rate"));
        Some(Facts {
            // -1: none.
            node: line(&folder.join("device/numa_node")).parse().ok(),
            network: Network { driver, link_layer, subnet, rate },
        })
    }
}

impl core::fmt::Display for Facts {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self.node {
            Some(node) => write!(f, "NUMA node {node}"),
            None => f.write_str("no NUMA node"),
        }
    }
}

/// The ranges of a list such as `0-3,8`.
fn ranges(list: &str) -> impl Iterator<Item = core::ops::RangeInclusive<usize>> {
    list.split(',').filter_map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        Some(first.parse().ok()?..=last.parse().ok()?)
    })
}

/// Sorted; none if there is no such folder.
fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<_> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Empty if it cannot be read.
fn line(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use std::{env, os::unix::fs::symlink, process};

    use super::*;
    use crate::{context::Context, fake, options::Config};

    /// A made-up tree, which ends with this: two NUMA nodes, of cores 0 to 3 and 8, and of 4 to 7.
    struct Tree(PathBuf);

    impl Tree {
        fn new(name: &str) -> Self {
            let tree = Self(env::temp_dir().join(format!("copyrpc-{name}-{}", process::id())));
            tree.write("devices/system/node/node0/cpulist", "0-3,8");
            tree.write("devices/system/node/node1/cpulist", "4-7");
            tree.write("devices/system/node/possible", "0-1");
            tree
        }

        fn write(&self, file: &str, text: &str) {
            let path = self.0.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{text}\n")).unwrap();
        }

        /// A device of InfiniBand whose port 1 is up.
        fn add(&self, name: &str, node: &str) -> &Self {
            let file = |file: &str| format!("class/infiniband/{name}/{file}");
            self.write(&file("device/numa_node"), node);
            self.write(&file("ports/1/state"), "4: ACTIVE");
            self.write(&file("ports/1/link_layer"), "InfiniBand");
            self.write(&file("ports/1/rate"), "200 Gb/sec (4X HDR)");
            self.write(&file("ports/1/gids/0"), "fe80:0000:0000:0000:0200:00ff:fe00:0007");
            symlink("../../drivers/mlx5_core", self.0.join(file("device/driver"))).unwrap();
            self
        }

        fn set(&self, name: &str, file: &str, text: &str) -> &Self {
            self.write(&format!("class/infiniband/{name}/{file}"), text);
            self
        }

        fn places(&self, cores: &[usize]) -> Places {
            Places::new(self.0.clone(), cores)
        }

        /// The order in which devices are tried that the library lists in this one.
        fn order(&self, cores: &[usize], port: u8, listed: &str) -> String {
            let mut devices: Vec<_> = listed.split(' ').map(|name| ((), name)).collect();
            self.places(cores).sort(&mut devices, port);
            devices.iter().map(|(_, name)| *name).collect::<Vec<_>>().join(" ")
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn the_device_at_the_cores_of_the_process_comes_first() {
        let tree = Tree::new("near");
        tree.add("a", "0").add("b", "1").add("c", "1");
        for (cores, expected) in [
            (&[0][..], "a b c"),
            (&[8], "a b c"),
            (&[4, 5], "b c a"),
            // Of both nodes, of none that is known, and of no core at all: the library's order.
            (&[3, 4], "a b c"),
            (&[9], "a b c"),
            (&[], "a b c"),
        ] {
            assert_eq!(tree.order(cores, 0, "a b c"), expected, "{cores:?}");
        }
        assert_eq!(tree.order(&[4], 0, "c a b"), "c b a", "equals keep the library's order");
        fs::remove_dir_all(tree.0.join("devices")).unwrap();
        assert_eq!(tree.order(&[4], 0, "a b c"), "a b c", "a kernel without NUMA");
    }

    #[test]
    fn a_device_without_a_node_is_neither_near_nor_far() {
        let tree = Tree::new("unknown");
        tree.add("a", "0").add("b", "-1").add("c", "1");
        assert_eq!(tree.order(&[4], 0, "a b c"), "c b a");
        assert_eq!(tree.order(&[0], 0, "c b a"), "a b c");
        tree.set("a", "device/numa_node", "-1").set("c", "device/numa_node", "-1");
        assert_eq!(tree.order(&[4], 0, "a b c"), "a b c");
    }

    #[test]
    fn only_a_device_of_the_same_network_takes_the_place_of_the_first() {
        for (file, text) in [
            ("ports/1/state", "1: DOWN"),
            ("ports/1/link_layer", "Ethernet"),
            ("ports/1/rate", "25 Gb/sec (1X EDR)"),
            ("ports/1/gids/0", "fec0:0000:0000:0001:0200:00ff:fe00:0007"),
        ] {
            let tree = Tree::new("other");
            tree.add("a", "0").add("b", "1").set("b", file, text);
            assert_eq!(tree.order(&[4], 0, "a b"), "a b", "{file}: {text}");
        }
        let tree = Tree::new("driver");
        tree.add("a", "0").add("b", "1");
        let driver = tree.0.join("class/infiniband/b/device/driver");
        fs::remove_file(&driver).unwrap();
        symlink("../../drivers/irdma", driver).unwrap();
        assert_eq!(tree.order(&[4], 0, "a b"), "a b", "of another driver");
        // A device that is down says nothing of the network, and stays where it is.
        tree.add("c", "1").set("a", "ports/1/state", "2: INIT");
        assert_eq!(tree.order(&[0], 0, "a c b"), "a c b");
    }

    #[test]
    fn the_first_device_of_ethernet_is_taken_as_no_network_is_told() {
        let tree = Tree::new("ethernet");
        for (name, node) in [("a", "0"), ("b", "1")] {
            tree.add(name, node).set(name, "ports/1/link_layer", "Ethernet");
        }
        assert_eq!(tree.order(&[4], 0, "a b"), "a b");
        let reason = tree.places(&[4]).reason("a", 0).unwrap();
        assert!(
            reason.starts_with("NUMA node 0: it is the first")
                && reason.contains("b (NUMA node 1)")
        );
    }

    #[test]
    fn the_port_that_is_asked_for_is_the_one_that_has_to_be_up() {
        let tree = Tree::new("port");
        tree.add("a", "0").add("b", "1");
        for device in ["a", "b"] {
            for (file, text) in [
                ("link_layer", "InfiniBand"),
                ("state", "4: ACTIVE"),
                ("rate", ""),
                ("gids/0", "fec0:0000:0000:0001:0200:00ff:fe00:0007"),
            ] {
                tree.set(device, &format!("ports/2/{file}"), text);
            }
        }
        assert_eq!(tree.order(&[4], 2, "a b"), "b a");
        tree.set("b", "ports/2/state", "1: DOWN");
        assert_eq!(tree.order(&[4], 2, "a b"), "a b");
        assert_eq!(tree.order(&[4], 1, "a b"), "b a");
        assert_eq!(tree.order(&[4], 3, "a b"), "a b", "no device has it");
    }

    #[test]
    fn the_reason_names_nodes_and_the_devices_that_were_passed_over() {
        let tree = Tree::new("reason");
        tree.add("a", "0").add("b", "1");
        let reason = |device: &str, cores: &[usize]| tree.places(cores).reason(device, 0).unwrap();
        assert_eq!(
            reason("b", &[4]),
            "NUMA node 1 has cores of this process; others: a (NUMA node 0)"
        );
        assert!(reason("a", &[0, 4]).ends_with("as of b (NUMA node 1): it is the first"));
        assert!(reason("a", &[9]).contains("not known"), "{}", reason("a", &[9]));
        assert_eq!(reason("a", &[4]), "NUMA node 0: no nearer one opened of b (NUMA node 1)");
        tree.set("b", "device/numa_node", "0");
        assert!(reason("a", &[4]).contains("has no core of this process"), "{}", reason("a", &[4]));
        tree.set("b", "ports/1/state", "1: DOWN");
        assert!(reason("a", &[0]).starts_with("no other device"));
        let places = tree.places(&[0]);
        assert_eq!((places.reason("b", 0), places.reason("soft", 0)), (None, None));
    }

    #[test]
    fn the_nearest_device_is_opened_unless_one_is_named() {
        let tree = Tree::new("opened");
        tree.add("fake0", "0").add("fake1", "1");
        fake::with(|fake| fake.devices = 2);
        let opened = |device: &str, cores: &[usize]| {
            let config = Config { device: device.to_owned(), ..Config::default() };
            let context = Context::open(fake::API, &config, &tree.places(cores), |_| true);
            context.unwrap().attributes.name.clone()
        };
        assert_eq!(opened("", &[0]), "fake0");
        assert_eq!(opened("", &[4]), "fake1");
        assert_eq!(opened("fake0", &[4]), "fake0");
        fake::with(|fake| assert_eq!(fake.live, 0, "objects are left"));
    }
}
