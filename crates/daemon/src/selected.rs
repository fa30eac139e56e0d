//! A daemon on the NIC that was selected, whichever that is. It is here, and not in the crates that run daemons, so
//! that a daemon is compiled once for each kind of NIC, and not in each of these crates again.

use core::time::Duration;

use memory::sync::AtomicBool;
use nics::{OpenError, Opener, Selection, Visitor};
use rpc::Config as WorkerConfig;
use verbs::Nic;

use crate::{
    Daemon, IpcPort, NicIdentity, Parts, ReplyHold, ServeError, Services, Serving, UdpControl,
    metrics::{Counter, Phase},
    serve_threads,
};

/// Makes the services of a thread, by its number.
pub type MakeServices<'a> = dyn Fn(usize) -> Services<IpcPort> + Sync + 'a;

/// As [`serve_threads`], with a port of the NIC `nic` for each thread.
///
/// # Errors
///
/// [`OpenError`] of the NIC; [`ServeError`] of the daemon.
pub fn serve_selected(
    serving: &Serving,
    nic: &Selection,
    services: &MakeServices<'_>,
    stop: &AtomicBool,
) -> Result<Result<(), ServeError>, OpenError> {
    struct Serve<'a> {
        serving: &'a Serving,
        selection: &'a Selection,
        services: &'a MakeServices<'a>,
        stop: &'a AtomicBool,
    }

    impl Visitor for Serve<'_> {
        type Output = Result<Result<(), ServeError>, OpenError>;

        fn visit<O: Opener>(self, opener: O) -> Self::Output {
            let Self { serving, selection, services, stop } = self;
            let nics = (0..serving.config.threads).map(|_| opener.open());
            let nics: Vec<O::Nic> = nics.collect::<Result<_, _>>()?;
            if let Some(nic) = nics.first() {
                tell(selection, &opener.label(), nic);
            }
            Ok(serve_threads(serving, nics, services, stop))
        }
    }

    nic.with(Serve { serving, selection: nic, services, stop })?
}

/// Says which port was opened, of all that this machine may have, and why.
fn tell(selection: &Selection, label: &str, nic: &impl Nic) {
    let (port, device) = (nic.port(), NicIdentity::of(nic));
    let drivers = nics::hardware::devices().0;
    let driver = drivers.iter().find(|known| known.name() == nic.attributes().name);
    tracing::info!(
        nic = label,
        %device,
        driver = driver.map(nics::hardware::KernelDevice::driver),
        why = selection.reason(&nic.attributes().name),
        gid = %port.gid,
        gid_row = port.gid_index,
        mtu_bytes = port.mtu.bytes(),
        "NIC"
    );
}

/// A [`Daemon`], or one thread of it, on the NIC that was selected. Its functions are those of the same name.
pub trait SelectedDaemon {
    /// [`Daemon::step`]
    fn step(&mut self, now_ns: u64) -> usize;
    /// [`Daemon::wait`]
    fn wait(&mut self, timeout: Duration);
    /// [`Daemon::expects_answers`]
    fn expects_answers(&self, now_ns: u64) -> bool;
    /// [`Daemon::peers`]
    fn peers(&self) -> usize;
    /// [`Daemon::peers_up`]
    fn peers_up(&self) -> usize;
    /// [`Daemon::worker_stats`]
    fn worker_stats(&self) -> rpc::Stats;
    /// [`Daemon::copied_bytes`]
    fn copied_bytes(&self) -> u64;
    /// [`Daemon::total`]
    fn total(&self, counter: Counter) -> u64;
    /// [`Daemon::phase_ns`]
    fn phase_ns(&self, phase: Phase) -> u64;
    /// [`Daemon::outstanding`]
    fn outstanding(&self) -> usize;
    /// [`Daemon::hold_replies`]
    fn hold_replies(&mut self, policy: ReplyHold);
}

impl<N: Nic> SelectedDaemon for Daemon<N, IpcPort, UdpControl> {
    fn step(&mut self, now_ns: u64) -> usize {
        self.step(now_ns)
    }

    fn wait(&mut self, timeout: Duration) {
        self.wait(timeout);
    }

    fn expects_answers(&self, now_ns: u64) -> bool {
        self.expects_answers(now_ns)
    }

    fn peers(&self) -> usize {
        self.peers()
    }

    fn peers_up(&self) -> usize {
        self.peers_up()
    }

    fn worker_stats(&self) -> rpc::Stats {
        self.worker_stats()
    }

    fn copied_bytes(&self) -> u64 {
        self.copied_bytes()
    }

    fn total(&self, counter: Counter) -> u64 {
        self.total(counter)
    }

    fn phase_ns(&self, phase: Phase) -> u64 {
        self.phase_ns(phase)
    }

    fn outstanding(&self) -> usize {
        self.outstanding()
    }

    fn hold_replies(&mut self, policy: ReplyHold) {
        self.hold_replies(policy);
    }
}

/// As [`Daemon::open`], with a port of the NIC `nic`.
///
/// # Errors
///
/// [`OpenError`] of the NIC; [`ServeError::Worker`].
pub fn open_selected(
    nic: &Selection,
    worker: WorkerConfig,
    port: IpcPort,
    control: UdpControl,
    parts: Parts<IpcPort>,
) -> Result<Result<Box<dyn SelectedDaemon>, ServeError>, OpenError> {
    struct Open {
        worker: WorkerConfig,
        port: IpcPort,
        control: UdpControl,
        parts: Parts<IpcPort>,
    }

    impl Visitor for Open {
        type Output = Result<Result<Box<dyn SelectedDaemon>, ServeError>, OpenError>;

        fn visit<O: Opener>(self, opener: O) -> Self::Output {
            let Self { worker, port, control, parts } = self;
            let daemon = Daemon::open(opener.open()?, worker, port, control, parts);
            Ok(daemon.map(|daemon| Box::new(daemon) as Box<dyn SelectedDaemon>))
        }
    }

    nic.with(Open { worker, port, control, parts })?
}
