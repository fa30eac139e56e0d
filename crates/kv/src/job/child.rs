//! What every child does: takes its orders, becomes what it is told to be.

use std::{
    env, io,
    os::fd::AsFd as _,
    sync::mpsc::{Receiver, RecvTimeoutError, Sender},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};

use super::{
    Config, Order, Report, Role, clients,
    control::{Control, ControlError},
    pin, rank,
};
use crate::{
    backend::{
        Backend, BackendError, Contact, Kind, Roster, delegation::Delegation, direct::Direct,
        tcp::Tcp,
    },
    drive::{DriveError, Schedule},
};

/// Environment variable in which the coordinator tells its process id.
pub(super) const PARENT_VARIABLE: &str = "COPYRPC_KV_PARENT";
/// Longest wait for an order that should come soon.
pub(super) const ORDER_TIMEOUT: Duration = Duration::from_secs(120);
/// Longest wait for threads, and between two looks at them.
pub(super) const LOOK: Duration = Duration::from_millis(20);

/// Why a child cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum ChildError {
    /// Started by hand.
    #[error("this command is started by `copyrpc bench kv` itself, not by hand")]
    NotAChild,
    /// The kernel refused.
    #[error("{what}: {cause}")]
    System {
        /// What was tried.
        what: &'static str,
        /// As the kernel says.
        cause: io::Error,
    },
    /// The coordinator is gone, or makes no sense.
    #[error("coordinator: {0}")]
    Control(#[from] ControlError),
    /// Another order than the one that is due.
    #[error("the coordinator gave an order out of turn: {0}")]
    OutOfTurn(String),
    /// The way to call failed.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// A client failed.
    #[error(transparent)]
    Drive(#[from] DriveError),
    /// A thread ended without a word.
    #[error("a thread panicked; its message is above")]
    Panicked,
}

impl ChildError {
    fn system(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |cause| Self::System { what, cause }
    }
}

/// The whole life of a child process. Call it from the hidden subcommand that [`super::Launcher`]
/// names, and exit with an error if it returns one.
///
/// # Errors
///
/// [`ChildError`], which the coordinator has been told of.
pub fn child() -> Result<(), ChildError> {
    let mut control = attach()?;
    let result = obey(&mut control);
    if let Err(error) = &result {
        // If the coordinator is gone, nobody is left to be told.
        let _ = control.send(&Report::Failed(error.to_string()));
    }
    result
}

/// Takes over standard input, and makes sure to die with the coordinator.
fn attach() -> Result<Control, ChildError> {
    let parent = env::var(PARENT_VARIABLE).ok().and_then(|id| id.parse().ok());
    let parent = parent.and_then(Pid::from_raw).ok_or(ChildError::NotAChild)?;
    set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(|errno| ChildError::System { what: "prctl", cause: errno.into() })?;
    if getppid() != Some(parent) {
        return Err(ControlError::Gone.into()); // it died before the kernel was asked to tell
    }
    let descriptor = io::stdin().as_fd().try_clone_to_owned();
    descriptor
        .and_then(Control::from_descriptor)
        .map_err(ChildError::system("cannot take over the control socket"))
}

fn obey(control: &mut Control) -> Result<(), ChildError> {
    let (config, role, cores) = match control.receive(ORDER_TIMEOUT)? {
        Order::Assign { config, role, cores } => (config, role, cores),
        other => return Err(out_of_turn(&other)),
    };
    pin::pin_to(&cores).map_err(ChildError::system("cannot pin the process to its cores"))?;
    match config.backend {
        Kind::Delegation => be::<Delegation>(control, &config, &role),
        Kind::Direct => be::<Direct>(control, &config, &role),
        Kind::Tcp => be::<Tcp>(control, &config, &role),
    }
}

/// The last order. Until then threads keep their ends: one that goes away would change what others
/// count.
pub(super) fn await_end(control: &mut Control) -> Result<(), ChildError> {
    match control.receive(ORDER_TIMEOUT)? {
        Order::End => Ok(()),
        other => Err(out_of_turn(&other)),
    }
}

fn be<B: Backend>(control: &mut Control, config: &Config, role: &Role) -> Result<(), ChildError> {
    let topology = config.workload.topology();
    match role {
        Role::Rank(rank) => rank::run(control, config, &B::open(&config.setup(), *rank)?, *rank),
        Role::Clients(ids) => {
            let rank = ids.first().map_or(0, |&id| topology.home_of(id));
            clients::run(control, config, &B::open(&config.setup(), rank)?, ids)
        }
    }
}

pub(super) fn out_of_turn(order: &Order) -> ChildError {
    ChildError::OutOfTurn(format!("{order:?}"))
}

/// What a thread tells the one that holds the control socket.
pub(super) enum Word<T> {
    Contact(usize, Contact),
    Ready,
    Done(T),
    Failed(ChildError),
}

/// Held by a thread: tells that it panicked, if it does.
pub(super) struct Alarm<T>(pub(super) Sender<Word<T>>);

impl<T> Drop for Alarm<T> {
    fn drop(&mut self) {
        if thread::panicking() {
            // If nobody listens any more, the process is about to end.
            let _ = self.0.send(Word::Failed(ChildError::Panicked));
        }
    }
}

/// Hears one word, or the failure of a thread.
pub(super) fn hear<T>(
    words: &Receiver<Word<T>>,
    timeout: Duration,
) -> Result<Option<Word<T>>, ChildError> {
    match words.recv_timeout(timeout) {
        Ok(Word::Failed(error)) => Err(error),
        Ok(word) => Ok(Some(word)),
        Err(RecvTimeoutError::Timeout) => Ok(None),
        Err(RecvTimeoutError::Disconnected) => Err(ChildError::Panicked),
    }
}

/// The part of the dialogue that daemons and clients share: contacts, roster, ready, go.
pub(super) fn prepare<T>(
    control: &mut Control,
    words: &Receiver<Word<T>>,
    threads: usize,
    tell: impl FnOnce(Roster),
) -> Result<Schedule, ChildError> {
    let mut contacts = vec![Contact::default(); threads];
    hear_all(words, threads, |word| match word {
        Word::Contact(index, contact) => {
            contacts[index] = contact;
            true
        }
        _ => false,
    })?;
    control.send(&Report::Contacts(contacts))?;
    match watch(control, words, ORDER_TIMEOUT)? {
        Order::Join(roster) => tell(roster),
        other => return Err(out_of_turn(&other)),
    }
    hear_all(words, threads, |word| matches!(word, Word::Ready))?;
    control.send(&Report::Ready)?;
    match watch(control, words, ORDER_TIMEOUT)? {
        Order::Go(schedule) => Ok(schedule),
        other => Err(out_of_turn(&other)),
    }
}

/// Hears one word of each thread.
fn hear_all<T>(
    words: &Receiver<Word<T>>,
    threads: usize,
    mut is_due: impl FnMut(Word<T>) -> bool,
) -> Result<(), ChildError> {
    let begin = Instant::now();
    let mut heard = 0;
    while heard < threads {
        if let Some(word) = hear(words, LOOK)? {
            heard += usize::from(is_due(word));
        }
        if begin.elapsed() > ORDER_TIMEOUT {
            return Err(ControlError::Silent(ORDER_TIMEOUT).into());
        }
    }
    Ok(())
}

/// Waits for an order, while looking after the threads.
pub(super) fn watch<T>(
    control: &mut Control,
    words: &Receiver<Word<T>>,
    timeout: Duration,
) -> Result<Order, ChildError> {
    let begin = Instant::now();
    loop {
        match control.receive(LOOK) {
            Err(ControlError::Silent(_)) if begin.elapsed() < timeout => {}
            order => return Ok(order?),
        }
        hear(words, Duration::ZERO)?;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn a_thread_that_panics_is_noticed_though_others_live() {
        let (to_main, words) = mpsc::channel::<Word<()>>();
        let other = to_main.clone();
        let panicking = thread::spawn(move || {
            let _alarm = Alarm(to_main);
            std::panic::resume_unwind(Box::new("on purpose"));
        });
        assert!(panicking.join().is_err());
        let heard = hear(&words, LOOK);
        assert!(matches!(heard, Err(ChildError::Panicked)));
        drop(other);
    }
}
