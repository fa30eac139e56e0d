//! RDMA devices that the kernel lists, and the libraries that a driver of them needs. Nothing is opened.

use std::{
    env, fmt, fs, io,
    path::{Path, PathBuf},
};

use serde::Serialize;

/// The kernel's list of RDMA devices, in the tree where libibverbs looks for them.
const CLASS: &str = "class/infiniband";
/// Names another tree than the kernel's (`ibv_get_sysfs_path`).
const SYSFS_VARIABLE: &str = "SYSFS_PATH";
/// The kernel's driver of every ConnectX since ConnectX-4.
pub const CONNECTX_DRIVER: &str = "mlx5_core";
/// The libraries that a hardware backend opens at run time.
const LIBRARIES: [&str; 2] = ["libibverbs.so.1", "libmlx5.so.1"];
/// The usual folders of the dynamic linker, after `LD_LIBRARY_PATH`.
const DIRECTORIES: [&str; 5] = ["/lib64", "/usr/lib64", "/lib", "/usr/lib", "/usr/local/lib"];

/// Characters of the first half of a GID, as the kernel writes it: `fe80:0000:0000:0000`.
const PREFIX_TEXT: usize = 19;

/// A device as the kernel shows it; text that could not be read is empty.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KernelDevice {
    name: String,
    driver: String,
    board: String,
    firmware: String,
    /// As the kernel says it; -1: none.
    numa_node: String,
    /// Cores of that node, as the kernel lists them: `0-3,8`.
    #[serde(skip)]
    local_cores: String,
    ports: Vec<Port>,
}

/// A port of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Port {
    number: String,
    state: String,
    physical_state: String,
    link_layer: String,
    rate: String,
    /// The first half of its first GID: on InfiniBand the subnet.
    #[serde(skip)]
    prefix: String,
}

impl Port {
    /// Whether it carries no traffic yet: the link is up and waits for a subnet manager, or the link is being made. A
    /// port that is disabled, as one without a cable, is not on its way.
    fn is_coming(&self) -> bool {
        match self.state.as_str() {
            "INIT" | "ARMED" => true,
            "DOWN" => !["", "Disabled", "Sleep"].contains(&self.physical_state.as_str()),
            _ => false,
        }
    }
}

/// Something that was looked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Tried {
    /// Path or name.
    pub what: String,
    /// Whether it is there.
    pub found: bool,
    /// The result of the search.
    pub outcome: String,
}

impl KernelDevice {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The kernel's driver of it.
    #[must_use]
    pub fn driver(&self) -> &str {
        &self.driver
    }

    /// NUMA node of its PCIe function; -1: none.
    #[must_use]
    pub fn numa_node(&self) -> &str {
        &self.numa_node
    }

    /// The cores that are near it, as the kernel writes them: `0-3,8`.
    #[must_use]
    pub fn local_cores_text(&self) -> &str {
        &self.local_cores
    }

    /// The cores that are near it; none: the kernel does not say.
    #[must_use]
    pub fn local_cores(&self) -> Vec<usize> {
        let of_range = |range: &str| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            Some(first.parse::<usize>().ok()?..=last.parse().ok()?)
        };
        self.local_cores.split(',').filter_map(of_range).flatten().collect()
    }

    /// Link layer of the first port that carries traffic, or of the first.
    #[must_use]
    pub fn link_layer(&self) -> &str {
        let up = self.ports.iter().find(|port| port.state == "ACTIVE");
        up.or(self.ports.first()).map_or("", |port| &port.link_layer)
    }

    /// Prefix of the subnet of the first port of InfiniBand that carries traffic.
    #[must_use]
    pub fn subnet(&self) -> Option<&str> {
        let is_it = |port: &&Port| port.state == "ACTIVE" && port.link_layer == "InfiniBand";
        let prefix = self.ports.iter().find(is_it).map(|port| &*port.prefix);
        prefix.filter(|prefix| !prefix.is_empty())
    }

    /// Ports that carry no traffic: number, state, link layer.
    pub fn ports_down(&self) -> impl Iterator<Item = (&str, &str, &str)> {
        let down = self.ports.iter().filter(|port| port.state != "ACTIVE");
        down.map(|port| (&*port.number, &*port.state, &*port.link_layer))
    }

    /// A device with one port, for tests.
    #[doc(hidden)]
    #[must_use]
    pub fn for_tests(name: &str, state: &str, link_layer: &str) -> Self {
        let [driver, board, firmware, rate] = ["mlx5_core", "", "", ""].map(str::to_owned);
        let prefix = "fe80:0000:0000:0000".to_owned();
        let port = Port {
            number: "1".to_owned(),
            state: state.to_owned(),
            physical_state: String::new(),
            link_layer: link_layer.to_owned(),
            rate,
            prefix,
        };
        let [name, numa_node, local_cores] = [name, "0", ""].map(str::to_owned);
        Self { name, driver, board, firmware, numa_node, local_cores, ports: vec![port] }
    }

    /// The same near these cores, for tests.
    #[doc(hidden)]
    #[must_use]
    pub fn near(mut self, cores: &str) -> Self {
        cores.clone_into(&mut self.local_cores);
        self
    }

    /// The same in another subnet, for tests.
    #[doc(hidden)]
    #[must_use]
    pub fn in_subnet(mut self, prefix: &str) -> Self {
        self.ports.iter_mut().for_each(|port| prefix.clone_into(&mut port.prefix));
        self
    }

    /// Whether a port of it carries traffic.
    #[must_use]
    pub fn is_up(&self) -> bool {
        self.ports.iter().any(|port| port.state == "ACTIVE")
    }

    /// Whether a port of it is about to carry traffic.
    #[must_use]
    pub fn is_coming_up(&self) -> bool {
        self.ports.iter().any(Port::is_coming)
    }
}

impl fmt::Display for KernelDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, driver, board, firmware, ports, .. } = self;
        write!(f, "{name} (driver {driver}, board {board}, firmware {firmware})")?;
        for Port { number, state, link_layer, rate, .. } in ports {
            write!(f, "; port {number}: {state}, {link_layer}, {rate}")?;
        }
        Ok(())
    }
}

/// Devices of the kernel, by name, and how the look went.
pub fn devices() -> (Vec<KernelDevice>, Tried) {
    let sysfs = env::var_os(SYSFS_VARIABLE).filter(|path| !path.is_empty());
    devices_under(&sysfs.map_or_else(|| "/sys".into(), PathBuf::from).join(CLASS))
}

fn devices_under(root: &Path) -> (Vec<KernelDevice>, Tried) {
    let what = root.display().to_string();
    match names_in(root) {
        Ok(names) => {
            let outcome = format!("{} listed", names.len());
            let devices = names.iter().map(|name| device(&root.join(name), name)).collect();
            (devices, Tried { what, found: true, outcome })
        }
        Err(error) => {
            let outcome = format!("{error} (no RDMA driver is loaded, or it is hidden here)");
            (Vec::new(), Tried { what, found: false, outcome })
        }
    }
}

fn names_in(folder: &Path) -> io::Result<Vec<String>> {
    let name = |entry: io::Result<fs::DirEntry>| {
        entry.map(|entry| entry.file_name().to_string_lossy().into_owned())
    };
    let mut names = fs::read_dir(folder)?.map(name).collect::<io::Result<Vec<_>>>()?;
    names.sort();
    Ok(names)
}

fn device(path: &Path, name: &str) -> KernelDevice {
    let driver = fs::read_link(path.join("device/driver")).unwrap_or_default();
    let ports = path.join("ports");
    let port = |number: String| {
        let port = ports.join(&number);
        // "4: ACTIVE"
        let word = |name: &str| {
            let state = line(&port.join(name));
            state.split_once(": ").map_or(state.clone(), |(_, word)| word.to_owned())
        };
        Port {
            state: word("state"),
            physical_state: word("phys_state"),
            link_layer: line(&port.join("link_layer")),
            rate: line(&port.join("rate")),
            prefix: line(&port.join("gids/0")).chars().take(PREFIX_TEXT).collect(),
            number,
        }
    };
    KernelDevice {
        name: name.to_owned(),
        driver: driver.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        board: line(&path.join("hca_type")),
        firmware: line(&path.join("fw_ver")),
        numa_node: line(&path.join("device/numa_node")),
        local_cores: line(&path.join("device/local_cpulist")),
        ports: names_in(&ports).unwrap_or_default().into_iter().map(port).collect(),
    }
}

fn line(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

/// Whether the libraries of a hardware backend are in the usual folders.
pub fn libraries() -> Vec<Tried> {
    let folders = library_folders();
    LIBRARIES.iter().map(|name| library(name, &folders)).collect()
}

fn library(name: &str, folders: &[PathBuf]) -> Tried {
    let path = folders.iter().map(|folder| folder.join(name)).find(|path| path.exists());
    let outcome = match &path {
        Some(path) => format!("{} (not opened)", path.display()),
        None => format!("not in the usual {} folders; install rdma-core", folders.len()),
    };
    Tried { what: name.to_owned(), found: path.is_some(), outcome }
}

fn library_folders() -> Vec<PathBuf> {
    let from_environment = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let multiarch = format!("{}-linux-gnu", env::consts::ARCH);
    env::split_paths(&from_environment)
        .filter(|folder| folder.is_absolute())
        .chain(DIRECTORIES.iter().map(PathBuf::from))
        .chain(["/lib", "/usr/lib"].map(|folder| Path::new(folder).join(&multiarch)))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::{os::unix::fs::symlink, process};

    use super::*;

    /// A folder that is removed with all it contains.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let path = env::temp_dir().join(format!("copyrpc-{name}-{}", process::id()));
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        fn write(&self, file: &str, text: &str) {
            let path = self.0.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn devices_are_read_from_what_the_kernel_shows() {
        let sysfs = Folder::new("sysfs");
        sysfs.write("mlx5_0/hca_type", "MT4123\n");
        sysfs.write("mlx5_0/fw_ver", "20.31.1014\n");
        sysfs.write("mlx5_0/ports/1/state", "4: ACTIVE\n");
        sysfs.write("mlx5_0/ports/1/link_layer", "InfiniBand\n");
        sysfs.write("mlx5_0/ports/1/rate", "200 Gb/sec (4X HDR)\n");
        sysfs.write("mlx5_0/ports/1/gids/0", "fec0:0000:0000:0001:0200:00ff:fe00:0007\n");
        sysfs.write("mlx5_0/device/local_cpulist", "0-2,7\n");
        symlink("../../drivers/mlx5_core", sysfs.0.join("mlx5_0/device/driver")).unwrap();
        sysfs.write("rxe0/hca_type", "");
        let (devices, tried) = devices_under(&sysfs.0);
        assert!(tried.found);
        assert_eq!(
            devices[0].to_string(),
            "mlx5_0 (driver mlx5_core, board MT4123, firmware 20.31.1014); \
             port 1: ACTIVE, InfiniBand, 200 Gb/sec (4X HDR)"
        );
        assert_eq!((devices.len(), devices[1].name()), (2, "rxe0"));
        assert!(devices[0].is_up() && !devices[1].is_up());
        assert_eq!(devices[0].driver(), CONNECTX_DRIVER);
        assert_eq!(devices[0].subnet(), Some("fec0:0000:0000:0001"));
        assert_eq!(devices[1].subnet(), None);
        assert_eq!(
            (devices[0].local_cores(), devices[0].local_cores_text()),
            (vec![0, 1, 2, 7], "0-2,7")
        );
        assert!(devices[1].local_cores().is_empty());
    }

    #[test]
    fn a_port_that_is_coming_up_is_told_from_one_that_is_disabled() {
        let sysfs = Folder::new("coming");
        for (device, state, physical_state, is_coming) in [
            ("a", "4: ACTIVE", "5: LinkUp", false),
            ("b", "2: INIT", "5: LinkUp", true),
            ("c", "3: ARMED", "5: LinkUp", true),
            ("d", "1: DOWN", "2: Polling", true),
            ("e", "1: DOWN", "3: Disabled", false),
            ("f", "1: DOWN", "1: Sleep", false),
        ] {
            sysfs.write(&format!("{device}/ports/1/state"), state);
            sysfs.write(&format!("{device}/ports/1/phys_state"), physical_state);
            let (devices, _) = devices_under(&sysfs.0);
            let last = devices.last().unwrap();
            assert_eq!((last.name(), last.is_coming_up()), (device, is_coming), "{state}");
        }
    }

    #[test]
    fn no_driver_is_told_and_is_no_error() {
        let (devices, tried) = devices_under(Path::new("/nonexistent/infiniband"));
        assert!(devices.is_empty() && !tried.found);
        assert!(tried.outcome.contains("No such file"), "{}", tried.outcome);
    }

    #[test]
    fn a_library_is_found_where_it_lies() {
        let folder = Folder::new("lib");
        folder.write("libibverbs.so.1", "");
        let folders = [PathBuf::from("/nonexistent"), folder.0.clone()];
        assert!(library("libibverbs.so.1", &folders).found);
        assert!(!library("libmlx5.so.1", &folders).found);
    }
}
