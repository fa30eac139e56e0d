//! `bench kv --hosts`: this process is one of several, each on a host.

use std::{collections::BTreeMap, net::IpAddr, time::Duration};

use anyhow::Context as _;
use bootstrap::{Bootstrap, RankInfo};
use config::Settings;
use daemon::{
    bootstrap_of,
    config::{DaemonConfig, Start},
    own_address,
};
use kv::job::{
    Config, Launcher,
    hosts::{HostInfo, Hosts, Leader, serve},
};

use super::KvArgs;
use command::{
    exit::UsageError,
    launch::{Launch, Met},
    nic,
};

/// The hosts of a job, and on the leader what is kept until it is over: the file with the secret, and the place where
/// the others may still be meeting.
pub(super) struct Led {
    pub(super) hosts: Hosts,
    kept: Option<(Met, Box<dyn Bootstrap>)>,
}

impl Led {
    /// This host alone.
    pub(super) fn alone() -> anyhow::Result<Self> {
        Ok(Self { hosts: Hosts::only_this()?, kept: None })
    }

    /// It is over, on all hosts.
    pub(super) fn end(self) -> anyhow::Result<()> {
        let ended = self.hosts.end();
        if let Some((met, _)) = self.kept {
            met.leave();
        }
        Ok(ended?)
    }
}

/// Which of the hosts this process is.
pub(super) struct Here {
    settings: Settings,
    launch: Launch,
    rank_info: RankInfo,
    count: u16,
    timeout: Duration,
}

const NO_LAUNCHER: &str = "--hosts, and this process is the only one: start it by mpirun or srun, one per host, or set \
                           COPYRPC_RANK, COPYRPC_SIZE, COPYRPC_RENDEZVOUS and COPYRPC_SECRET_FILE";

impl Here {
    /// What the launcher, or the environment, says.
    pub(super) fn of(args: &KvArgs) -> anyhow::Result<Self> {
        let settings = args.nic.load()?;
        let config = DaemonConfig::from_settings(&settings)?;
        let timeout = config.bootstrap_timeout;
        let launch = Launch::of(&settings, config)?;
        let rank_info = launch.rank_info;
        match u16::try_from(rank_info.size()) {
            Ok(count @ 2..) => Ok(Self { settings, launch, rank_info, count, timeout }),
            _ => Err(UsageError(NO_LAUNCHER.to_owned()).into()),
        }
    }

    /// How many there are.
    pub(super) fn count(&self) -> u16 {
        self.count
    }

    /// Meets the others. Rank 0 gets all of them; others serve it until all is over, and get nothing.
    pub(super) fn meet(
        self,
        configs: &[Config],
        launcher: &Launcher,
    ) -> anyhow::Result<Option<Led>> {
        let Self { settings, launch, rank_info, timeout, .. } = self;
        let mut met = launch.meet(&settings, &|| false)?;
        let serving = &mut met.serving;
        if let Start::Tcp(address) = &serving.config.start {
            // Who restarts here starts anew: no roster is kept.
            serving.config.start = Start::Once(address.clone());
        }
        let address = own_address(&serving.config.start);
        let secret = serving.secret.clone();
        let (mut bootstrap, _) = bootstrap_of(serving)?;
        let is_leader = rank_info.rank() == 0;
        let leader = is_leader.then(|| Leader::listen(address)).transpose()?;
        let own = HostInfo {
            address,
            cores: os::affinity::allowed_cores()?,
            nic_knobs: Some(nic_knobs(&settings, met.secret_file().as_deref(), address)),
            leader: leader.as_ref().map(Leader::address),
        };
        let blobs = bootstrap.exchange(&serde_json::to_vec(&own)?)?;
        let parsed = (0..).zip(&blobs).map(|(rank, blob)| {
            serde_json::from_slice(blob).with_context(|| {
                format!("rank {rank} tells nothing that makes sense: is it of the same version?")
            })
        });
        let infos = parsed.collect::<anyhow::Result<Vec<HostInfo>>>()?;
        check_reach(configs, &infos)?;
        if let Some(leader) = leader {
            let hosts = leader.gather(infos, secret, timeout)?;
            return Ok(Some(Led { hosts, kept: Some((met, bootstrap)) }));
        }
        serve(&infos, rank_info.rank() as usize, &secret, launcher)?;
        met.leave();
        Ok(None)
    }
}

/// What is set about the NIC of this host.
fn nic_knobs(
    settings: &Settings,
    secret_file: Option<&std::path::Path>,
    address: IpAddr,
) -> BTreeMap<String, String> {
    let selection = match secret_file {
        Some(path) => nic::with_secret_file(settings, path),
        None => nic::selected(settings),
    };
    let mut knobs = selection.settings().clone();
    if address.is_ipv4() {
        knobs.entry("COPYRPC_TCP_ADDRESS".to_owned()).or_insert_with(|| address.to_string());
    }
    knobs
}

/// The software NIC is memory of one host.
fn check_reach(configs: &[Config], infos: &[HostInfo]) -> anyhow::Result<()> {
    let is_one_host = infos.iter().all(|info| info.address == infos[0].address);
    let uses_memory = |config: &Config| config.backend.uses_nic() && config.nic == "soft";
    if !is_one_host && configs.iter().any(uses_memory) {
        let problem =
            "NIC `soft` reaches no other host; use --nic hosts, or ibverbs where there is one";
        return Err(UsageError(problem.to_owned()).into());
    }
    Ok(())
}
