//! A NIC by name, with its settings.

use std::{collections::BTreeMap, env, fmt};

use ::ibverbs::nearest::Places;
use config::Knob;

use crate::{
    ALL, Kind, NicEntry, OpenError, Opener, SHARED_VARIABLES, Visitor, auto,
    either::Either,
    hardware::{self, CONNECTX_DRIVER},
    hosts::HostsOpener,
    ibverbs::{self, IbverbsOpener},
    mlx5::Mlx5Opener,
    port,
    soft::SoftOpener,
    tcp::TcpOpener,
};

/// It meets no process of another user, and so needs no secret.
const SOFT: &str = crate::soft::NAME;

/// NICs whose one device is called as they are.
const SOFTWARE: [&str; 3] = [SOFT, crate::tcp::NAME, crate::hosts::NAME];

/// The environment variable that names the NIC.
pub const VARIABLE: &str = "COPYRPC_NIC";

/// The opener of the NIC that is meant.
enum Choice {
    Software(Either<SoftOpener, Either<TcpOpener, HostsOpener>>),
    Hardware(
        #[cfg_attr(
            not(feature = "rdma"),
            expect(dead_code, reason = "settings are judged without it, too")
        )]
        Either<IbverbsOpener, Mlx5Opener>,
    ),
}

/// A NIC by name, with its settings. The name is looked up by [`Selection::with`]: it is one of the table,
/// or that of an RDMA device of this machine, which means the NIC that `auto` would take for it: `mlx5` for a ConnectX,
/// `ibverbs` for others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection {
    name: String,
    settings: BTreeMap<String, String>,
}

impl Default for Selection {
    /// The first NIC of the table, with the defaults of its settings.
    fn default() -> Self {
        Self::new(ALL[0].name)
    }
}

impl Selection {
    /// The NIC `name`, with the defaults of its settings.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), settings: BTreeMap::new() }
    }

    /// The NIC `name`, set as `settings` say, by environment variable.
    #[must_use]
    pub fn with_settings(name: impl Into<String>, settings: BTreeMap<String, String>) -> Self {
        Self { name: name.into(), settings }
    }

    /// The NIC that [`VARIABLE`] names, or the default, as the environment sets it.
    #[must_use]
    pub fn from_env() -> Self {
        let lookup = |variable: &str| env::var(variable).ok().filter(|text| !text.is_empty());
        Self::from_lookup(&lookup(VARIABLE).unwrap_or_else(|| ALL[0].name.to_owned()), lookup)
    }

    /// The NIC `name`; `lookup` finds settings by environment variable.
    #[must_use]
    pub fn from_lookup(name: &str, lookup: impl Fn(&str) -> Option<String>) -> Self {
        // A name that is not in the table may be that of a device.
        let is_known = ALL.iter().any(|entry| entry.name == name);
        let is_meant = |known: &&NicEntry| match is_known {
            true => known.name == name || name == auto::NAME,
            false => matches!(known.kind, Kind::Ibverbs | Kind::Mlx5),
        };
        let knobs = ALL.iter().filter(is_meant).flat_map(|known| known.knobs);
        let shared = SHARED_VARIABLES.iter().filter(|_| name != SOFT);
        let variables = knobs.chain(port::KNOBS).map(|knob| knob.env).chain(shared.copied());
        let settings = variables.filter_map(|env| Some((env.to_owned(), lookup(env)?)));
        Self { name: name.to_owned(), settings: settings.collect() }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its settings, by environment variable; the rest has its default.
    #[must_use]
    pub fn settings(&self) -> &BTreeMap<String, String> {
        &self.settings
    }

    /// Runs `visitor` with the NIC. Nothing is opened before the visitor does it.
    ///
    /// # Errors
    ///
    /// [`OpenError::Unknown`], [`OpenError::Setting`] and [`OpenError::LeftOut`].
    pub fn with<V: Visitor>(&self, visitor: V) -> Result<V::Output, OpenError> {
        // The only two calls: each of them compiles all that is generic over the NIC.
        match self.choice()? {
            Choice::Software(opener) => Ok(visitor.visit(opener)),
            #[cfg(feature = "rdma")]
            Choice::Hardware(opener) => Ok(visitor.visit(opener)),
            #[cfg(not(feature = "rdma"))]
            Choice::Hardware(_) => Err(OpenError::LeftOut { name: self.name.clone() }),
        }
    }

    fn choice(&self) -> Result<Choice, OpenError> {
        use Either::{First, Second};
        let lookup = |variable: &str| self.settings.get(variable).cloned();
        Ok(match self.entry().map(|entry| entry.kind) {
            Ok(Kind::Soft) => Choice::Software(First(SoftOpener::from_lookup(lookup)?)),
            Ok(Kind::Tcp) => Choice::Software(Second(First(TcpOpener::from_lookup(lookup)?))),
            Ok(Kind::Hosts) => Choice::Software(Second(Second(HostsOpener::from_lookup(lookup)?))),
            Ok(Kind::Ibverbs) => Choice::Hardware(First(IbverbsOpener::from_lookup(lookup)?)),
            Ok(Kind::Mlx5) => Choice::Hardware(Second(Mlx5Opener::from_lookup(lookup)?)),
            Ok(Kind::Auto) => {
                let name = auto::choose(lookup);
                // The device that is set is away: no software NIC takes its place.
                match self.settings.get(port::DEVICE.env) {
                    Some(device) if SOFTWARE.contains(&name) && device != name => {
                        return Err(unknown(device));
                    }
                    _ => {}
                }
                let name = name.to_owned();
                return Self { name, settings: self.settings.clone() }.choice();
            }
            Err(unknown) => return self.device().ok_or(unknown)?.choice(),
        })
    }

    /// Why the RDMA device `opened` is the one that this selection opened; `None`: it is none of this machine's.
    #[must_use]
    pub fn reason(&self, opened: &str) -> Option<String> {
        self.reason_among(&Places::here(), opened)
    }

    fn reason_among(&self, places: &Places, opened: &str) -> Option<String> {
        let set = |common: Knob, own: usize| {
            let own = [ibverbs::KNOBS, crate::mlx5::KNOBS].map(|knobs| knobs[own].env);
            let mut names = [common.env].into_iter().chain(own);
            names.find_map(|env| self.settings.get(env))
        };
        let port = set(port::PORT, 1).and_then(|text| text.parse().ok()).unwrap_or(0);
        let reason = places.reason(opened, port)?;
        let is_named = self.name == opened || set(port::DEVICE, 0).is_some_and(|it| it == opened);
        Some(if is_named { "it is named".to_owned() } else { reason })
    }

    /// The NIC of the device that is called so.
    fn device(&self) -> Option<Self> {
        let devices = hardware::devices().0;
        let device = devices.iter().find(|device| device.name() == self.name)?;
        let is_connectx = device.driver() == CONNECTX_DRIVER;
        let nic = if is_connectx { crate::mlx5::NAME } else { ibverbs::NAME };
        let settings = ibverbs::settings_of(&self.name, &self.settings);
        Some(Self { name: nic.to_owned(), settings })
    }

    fn entry(&self) -> Result<&'static NicEntry, OpenError> {
        ALL.iter().find(|entry| entry.name == self.name).ok_or_else(|| unknown(&self.name))
    }
}

/// Neither a NIC of the table nor a device of this machine.
fn unknown(name: &str) -> OpenError {
    let names = ALL.map(|entry| entry.name);
    OpenError::Unknown {
        name: name.to_owned(),
        nearest: nearest(name, &names),
        known: names.join(", "),
    }
}

/// The label of a result: `soft (soft-drive=thread)`; the name alone if no such NIC can be opened.
impl fmt::Display for Selection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.with(LabelOf) {
            Ok(label) => f.write_str(&label),
            Err(_) => f.write_str(&self.name),
        }
    }
}

struct LabelOf;

impl Visitor for LabelOf {
    type Output = String;

    fn visit<O: Opener>(self, opener: O) -> String {
        opener.label()
    }
}

/// The one of `names` that was probably meant.
fn nearest(name: &str, names: &[&'static str]) -> Option<&'static str> {
    let is_near =
        |known: &&&str| name.starts_with(**known) || strsim::damerau_levenshtein(name, known) <= 2;
    names
        .iter()
        .filter(is_near)
        .min_by_key(|known| strsim::damerau_levenshtein(name, known))
        .copied()
}

/// Whether a name that is not in the table may be that of a device which is away: the names that kernel and udev give
/// (`mlx5_0`, `rxe0`, `rocep1s0f0`) end in a number, and one edit makes none of them of a NIC's.
pub(crate) fn is_of_a_device(name: &str) -> bool {
    let is_slip = |known: &NicEntry| strsim::damerau_levenshtein(name, known.name) <= 1;
    name.ends_with(|last: char| last.is_ascii_digit()) && !ALL.iter().any(is_slip)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Opens the NIC and says how it names itself.
    struct NameOf;

    impl Visitor for NameOf {
        type Output = Result<String, OpenError>;
        fn visit<O: Opener>(self, opener: O) -> Self::Output {
            Ok(verbs::Nic::attributes(&opener.open()?).name.clone())
        }
    }

    fn refusal(selection: &Selection) -> String {
        selection.with(NameOf).and_then(|name| name).unwrap_err().to_string()
    }

    #[test]
    fn every_nic_of_the_table_opens_by_its_name_or_says_why_not() {
        for entry in &ALL {
            let opened = Selection::new(entry.name).with(NameOf).and_then(|opened| opened);
            // Machines without RDMA get an error, and so do builds without it.
            let is_told = match &opened {
                Err(OpenError::Open { name: ibverbs::NAME | crate::mlx5::NAME, .. }) => true,
                Err(OpenError::LeftOut { name }) => {
                    let is_rdma = name == ibverbs::NAME || name == crate::mlx5::NAME;
                    is_rdma && !cfg!(feature = "rdma")
                }
                _ => false,
            };
            assert!(opened.is_ok() || is_told, "{}: {opened:?}", entry.name);
        }
        let bad = |variable: &str| match variable {
            "COPYRPC_SOFT_FABRIC" => Some("a/b".to_owned()),
            "COPYRPC_TCP_ADDRESS" => Some("nowhere".to_owned()),
            "COPYRPC_IBVERBS_DEVICE" | "COPYRPC_MLX5_DEVICE" => Some("nowhere".to_owned()),
            _ => None,
        };
        for available in crate::all(bad) {
            let error = available.error.unwrap();
            let expected = format!("NIC `{}`: ", available.name);
            assert!(error.starts_with(&expected) || available.name == "auto", "{error}");
        }
        let is_software = |nic: &crate::Availability| ["soft", "tcp", "hosts"].contains(&nic.name);
        let mut software = crate::all(|_| None).into_iter().filter(is_software);
        assert!(software.all(|available| available.error.is_none()));
    }

    #[cfg(not(feature = "rdma"))]
    #[test]
    fn a_build_without_rdma_names_the_feature() {
        let refused = refusal(&Selection::new("mlx5"));
        assert_eq!(
            refused,
            "NIC `mlx5`: this program was built without feature `rdma`, which RDMA devices need"
        );
    }

    #[test]
    fn the_reason_for_a_device_is_its_name_or_what_the_kernel_tells() {
        let root = std::env::temp_dir().join(format!("copyrpc-reason-{}", std::process::id()));
        for device in ["mlx5_0", "mlx5_1"] {
            let port = root.join(format!("class/infiniband/{device}/ports/2"));
            std::fs::create_dir_all(&port).unwrap();
            std::fs::write(port.join("state"), "4: ACTIVE").unwrap();
        }
        let places = Places::new(root.clone(), &[0]);
        let of = |nic: &str, settings: &[(&str, &str)]| {
            let own = |(env, text): &(&str, &str)| ((*env).to_owned(), (*text).to_owned());
            let selection = Selection::with_settings(nic, settings.iter().map(own).collect());
            selection.reason_among(&places, "mlx5_0")
        };
        let named = Some("it is named".to_owned());
        assert_eq!(of("mlx5_0", &[]), named);
        for env in ["COPYRPC_NIC_DEVICE", "COPYRPC_MLX5_DEVICE", "COPYRPC_IBVERBS_DEVICE"] {
            assert_eq!(of("auto", &[(env, "mlx5_0")]), named, "{env}");
        }
        for settings in [&[][..], &[("COPYRPC_NIC_PORT", "2")], &[("COPYRPC_MLX5_PORT", "2")]] {
            assert!(of("mlx5", settings).unwrap().contains("mlx5_1"), "{settings:?}");
        }
        assert_eq!(of("mlx5", &[("COPYRPC_NIC_PORT", "1")]), None, "it is not up");
        std::fs::remove_dir_all(&root).unwrap();
        assert_eq!(of("soft", &[]), None);
    }

    #[test]
    fn an_unknown_name_is_refused_with_the_nearest_and_all_known_ones() {
        let known = "this version drives: soft, tcp, hosts, ibverbs, mlx5, auto";
        for (name, hint) in [
            ("none_0", ""),
            ("softnic", "soft"),
            ("sotf", "soft"),
            ("tpc", "tcp"),
            ("host", "hosts"),
        ] {
            let hint = match hint {
                "" => String::new(),
                hint => format!(" (did you mean `{hint}`?)"),
            };
            let told = format!("no NIC and no RDMA device here is named `{name}`{hint}; {known}");
            assert_eq!(refusal(&Selection::new(name)), told);
        }
    }

    #[test]
    fn a_device_that_may_come_is_told_from_a_slip() {
        let opened = |selection: &Selection| selection.with(NameOf).and_then(|name| name);
        let refused = |selection: &Selection| opened(selection).unwrap_err();
        let named = |name: &str| refused(&Selection::new(name));
        let auto = |device: &str| {
            let lookup = |name: &str| (name == port::DEVICE.env).then(|| device.to_owned());
            refused(&Selection::from_lookup(auto::NAME, lookup))
        };
        for device in ["mlx5_7", "mlx5_bond_9", "rxe77", "rocep1s0f9"] {
            for error in [named(device), auto(device)] {
                assert!(error.to_string().contains(&format!("`{device}`")), "{error}");
                let seen = (error.outlook(), error.is_mistake());
                assert_eq!(seen, (crate::Outlook::Later, false), "{error}");
            }
        }
        for slip in ["mlx4", "soft0", "sotf", "tcp6", "nonsense"] {
            for error in [named(slip), auto(slip)] {
                let seen = (error.outlook(), error.is_mistake());
                assert_eq!(seen, (crate::Outlook::Never, true), "{error}");
            }
        }
    }

    #[test]
    fn an_address_that_may_come_is_told_from_one_that_makes_no_sense() {
        let secret = std::env::temp_dir().join(format!("copyrpc-nics-{}", std::process::id()));
        let mode = std::os::unix::fs::OpenOptionsExt::mode;
        let file = mode(std::fs::File::options().write(true).create(true), 0o600).open(&secret);
        std::io::Write::write_all(&mut file.unwrap(), &[7; 32]).unwrap();
        let refused = |address: &str, secret: &str| {
            let nic = Selection::from_lookup("tcp", |name| match name {
                "COPYRPC_TCP_ADDRESS" => Some(address.to_owned()),
                "COPYRPC_SECRET_FILE" => Some(secret.to_owned()),
                _ => None,
            });
            nic.with(NameOf).and_then(|name| name).unwrap_err()
        };
        // An address for documents (RFC 5737): no host has it.
        let late = refused("192.0.2.1", secret.to_str().unwrap());
        std::fs::remove_file(&secret).unwrap();
        assert_eq!((late.outlook(), late.is_mistake()), (crate::Outlook::Later, false), "{late}");
        for (address, secret) in [("here", ""), ("192.0.2.1", ""), ("192.0.2.1", "/nonexistent")] {
            let error = refused(address, secret);
            assert_eq!(
                (error.outlook(), error.is_mistake()),
                (crate::Outlook::Never, true),
                "{error}"
            );
        }
    }

    #[test]
    fn a_bad_setting_is_refused_by_nic_variable_and_value() {
        let fast = |variable: &str| (variable == "COPYRPC_SOFT_DRIVE").then(|| "fast".to_owned());
        let told = refusal(&Selection::from_lookup("soft", fast));
        assert!(
            told.starts_with("NIC `soft`: COPYRPC_SOFT_DRIVE: soft_drive = `fast` is"),
            "{told}"
        );
        assert!(told.contains("not one of inline, thread"), "{told}");
    }

    #[test]
    fn a_device_a_port_and_rows_are_honoured_or_refused_by_their_variable() {
        let with = |nic: &str, variable: &str, text: &str| {
            Selection::from_lookup(nic, |name| (name == variable).then(|| text.to_owned()))
        };
        for name in ["soft", "tcp", "hosts"] {
            let device = with(name, "COPYRPC_NIC_DEVICE", name);
            assert_eq!(device.with(NameOf).unwrap().unwrap(), name);
            assert_eq!(
                refusal(&with(name, "COPYRPC_NIC_DEVICE", "mlx5_0")),
                format!(
                    "NIC `{name}`: COPYRPC_NIC_DEVICE: there is no device `mlx5_0`; name one of: {name}; \
                     or leave the choice to the NIC"
                )
            );
            assert_eq!(
                refusal(&with(name, "COPYRPC_NIC_PORT", "2")),
                format!(
                    "NIC `{name}`: COPYRPC_NIC_PORT: device `{name}` has no port 2: choose one from 1 to 1"
                )
            );
            for (variable, table) in
                [("COPYRPC_NIC_GID_INDEX", "GID"), ("COPYRPC_NIC_PKEY_INDEX", "P_Key")]
            {
                assert!(with(name, variable, "0").with(NameOf).unwrap().is_ok());
                assert_eq!(
                    refusal(&with(name, variable, "3")),
                    format!(
                        "NIC `{name}`: {variable}: the {table} table of port 1 of device `{name}` has no \
                         row 3: choose one from 0 to 0"
                    )
                );
            }
            let no_number = refusal(&with(name, "COPYRPC_NIC_PORT", "x"));
            assert!(no_number.contains("COPYRPC_NIC_PORT: nic_port = `x`"), "{no_number}");
        }
    }

    #[test]
    fn a_label_is_that_of_the_configuration_and_an_unknown_nic_has_its_name() {
        let set = |variable: &str| match variable {
            "COPYRPC_SOFT_STRICT" => Some("7".to_owned()),
            "COPYRPC_SOFT_FABRIC" => Some("here".to_owned()),
            _ => None,
        };
        let selection = Selection::from_lookup("soft", set);
        assert_eq!(selection.settings().len(), 2);
        assert_eq!(selection.to_string(), "soft (soft-strict=7)");
        assert_eq!(Selection::default().to_string(), "soft");
        assert_eq!(Selection::new("none").to_string(), "none");
        let secret = |name: &str| (name == "COPYRPC_SECRET_FILE").then(|| "/a".to_owned());
        assert_eq!(Selection::from_lookup("tcp", secret).settings().len(), 1);
        let address = |name: &str| (name == "COPYRPC_TCP_ADDRESS").then(|| "127.0.0.1".to_owned());
        assert_eq!(Selection::from_lookup("hosts", address).settings().len(), 1);
        assert_eq!(Selection::from_lookup("soft", secret).settings().len(), 0);
        assert_eq!(Selection::from_lookup("auto", set).settings().len(), 2);
        let device = |name: &str| (name == "COPYRPC_IBVERBS_PORT").then(|| "1".to_owned());
        assert_eq!(Selection::from_lookup("mlx5_0", device).settings().len(), 1);
    }
}
