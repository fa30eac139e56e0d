//! The threads of a child process, and the dialogue of each with the main thread, which talks to the
//! coordinator.
//!
//! ```text
//! main thread                              every other thread
//!                 ◀────────── contact, or an error ─ opens its end
//!   roster ──────────────────────────────▶ connects
//!                 ◀───────────────────────── ready ─
//!   schedule ────────────────────────────▶ clients only wait for it          ┐ once per
//!                 ◀──────────────────────── result ─                         ┘ interval
//! ```

use std::{
    io,
    sync::mpsc::{self, Receiver, RecvTimeoutError, Sender},
    thread::{self, Scope},
    time::{Duration, Instant},
};

use os::{
    child::{ChannelError, ChildChannel, TypedMessageError},
    clock,
};

use super::{
    Order, Report,
    coordinator::{self, ChildError, LOOK, ORDER_TIMEOUT},
    meter::pss_bytes,
};
use crate::{
    backend::{Contact, Roster},
    drive::Schedule,
};

/// Between two looks at the threads while no interval is measured.
const IDLE_LOOK: Duration = Duration::from_secs(1);
/// Longest time without an interval: all others are measured meanwhile.
const IDLE_TIMEOUT: Duration = Duration::from_secs(3600);

/// A message to the main thread.
enum Message<T> {
    Contact(usize, Contact),
    Ready,
    Done(T),
    Failed(ChildError),
}

/// The main thread's end of all dialogues.
pub(super) struct Threads<T> {
    messages: Receiver<Message<T>>,
    rosters: Vec<Sender<Roster>>,
    schedules: Vec<Sender<Schedule>>,
}

/// A thread's end of its dialogue. The main thread is told if it is dropped by a panic.
pub(super) struct MainThread<T> {
    index: usize,
    messages: Sender<Message<T>>,
    roster: Receiver<Roster>,
    schedule: Receiver<Schedule>,
}

impl<T: Send> Threads<T> {
    /// Starts a thread of each name, which runs `body`.
    pub(super) fn start<'scope, B>(
        scope: &'scope Scope<'scope, '_>,
        names: impl Iterator<Item = String>,
        body: B,
    ) -> Result<Self, ChildError>
    where
        B: Fn(usize, &MainThread<T>) -> Result<(), ChildError> + Clone + Send + 'scope,
        T: 'scope,
    {
        let (to_main, messages) = mpsc::channel();
        let (mut rosters, mut schedules) = (Vec::new(), Vec::new());
        for (index, name) in names.enumerate() {
            let ((to_thread, roster), body) = (mpsc::channel(), body.clone());
            rosters.push(to_thread);
            let (to_thread, schedule) = mpsc::channel();
            schedules.push(to_thread);
            let main = MainThread { index, messages: to_main.clone(), roster, schedule };
            let run = move || {
                if let Err(error) = body(index, &main) {
                    main.send(Message::Failed(error));
                }
            };
            let started = thread::Builder::new().name(name).spawn_scoped(scope, run);
            started.map_err(coordinator::system("cannot start a thread"))?;
        }
        Ok(Self { messages, rosters, schedules })
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.rosters.len()
    }

    /// The part of the dialogue that daemons and clients share, until all threads are connected.
    pub(super) fn connect(&self, coordinator: &mut ChildChannel) -> Result<(), ChildError> {
        let mut contacts = vec![Contact::default(); self.count()];
        self.receive_of_each(|message| match message {
            Message::Contact(index, contact) => {
                contacts[index] = contact;
                true
            }
            _ => false,
        })?;
        coordinator::send(coordinator, &Report::Contacts(contacts))?;
        match self.next_order(coordinator)? {
            Order::Join(roster) => {
                for to_thread in &self.rosters {
                    // A thread that listens no more has told why.
                    let _ = to_thread.send(roster.clone());
                }
            }
            other => return Err(coordinator::out_of_turn(&other)),
        }
        self.receive_of_each(|message| matches!(message, Message::Ready))?;
        coordinator::send(coordinator, &Report::Ready)
    }

    /// Waits for the schedule of the next interval, and gives it to all threads. `None`: the job is over.
    pub(super) fn next_interval(
        &self,
        coordinator: &mut ChildChannel,
    ) -> Result<Option<Schedule>, ChildError> {
        loop {
            match self.next_order(coordinator)? {
                Order::Go(schedule) => {
                    for to_thread in &self.schedules {
                        let _ = to_thread.send(schedule);
                    }
                    return Ok(Some(schedule));
                }
                Order::Weigh => {
                    coordinator::send(coordinator, &Report::Weight(pss_bytes()))?;
                }
                Order::End => return Ok(None),
                other => return Err(coordinator::out_of_turn(&other)),
            }
        }
    }

    /// The result of a thread, if one comes in time.
    ///
    /// # Errors
    ///
    /// That of the first thread that fails.
    pub(super) fn result(&self, timeout: Duration) -> Result<Option<T>, ChildError> {
        match self.receive(timeout)? {
            Some(Message::Done(result)) => Ok(Some(result)),
            _ => Ok(None),
        }
    }

    fn receive(&self, timeout: Duration) -> Result<Option<Message<T>>, ChildError> {
        match self.messages.recv_timeout(timeout) {
            Ok(Message::Failed(error)) => Err(error),
            Ok(message) => Ok(Some(message)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(ChildError::Panicked),
        }
    }

    /// Receives one message that `is_due` from each thread.
    fn receive_of_each(
        &self,
        mut is_due: impl FnMut(Message<T>) -> bool,
    ) -> Result<(), ChildError> {
        let begin = Instant::now();
        let mut received = 0;
        while received < self.count() {
            if let Some(message) = self.receive(LOOK)? {
                received += usize::from(is_due(message));
            }
            if begin.elapsed() > ORDER_TIMEOUT {
                let cause = io::Error::from(io::ErrorKind::TimedOut);
                return Err(coordinator::system("waiting for the threads")(cause));
            }
        }
        Ok(())
    }

    /// Waits for an order; a thread that fails meanwhile ends this.
    fn next_order(&self, coordinator: &mut ChildChannel) -> Result<Order, ChildError> {
        let begin = Instant::now();
        loop {
            match coordinator.recv_json(clock::deadline_ns(IDLE_LOOK)) {
                Err(TypedMessageError::Channel(ChannelError::TimedOut))
                    if begin.elapsed() < IDLE_TIMEOUT => {}
                order => return Ok(order?),
            }
            self.receive(Duration::ZERO)?;
        }
    }
}

impl<T> MainThread<T> {
    /// If the main thread listens no more, the process is about to end.
    fn send(&self, message: Message<T>) {
        let _ = self.messages.send(message);
    }

    /// Tells the thread's contact, and waits for those of all others; `None`: the job ended before.
    pub(super) fn exchange(&self, contact: Contact) -> Option<Roster> {
        self.send(Message::Contact(self.index, contact));
        self.roster.recv().ok()
    }

    /// Tells that the thread has connected.
    pub(super) fn ready(&self) {
        self.send(Message::Ready);
    }

    /// Waits for the schedule of the next interval, not longer than `timeout`.
    pub(super) fn schedule(&self, timeout: Duration) -> NextInterval {
        match self.schedule.recv_timeout(timeout) {
            Ok(schedule) => NextInterval::Begins(schedule),
            Err(RecvTimeoutError::Timeout) => NextInterval::NotYet,
            Err(RecvTimeoutError::Disconnected) => NextInterval::Never,
        }
    }

    /// Tells the thread's result.
    pub(super) fn done(&self, result: T) {
        self.send(Message::Done(result));
    }
}

/// What a thread learns about the next interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NextInterval {
    /// Its schedule.
    Begins(Schedule),
    /// The time that it waited is over.
    NotYet,
    /// The job is over.
    Never,
}

impl<T> Drop for MainThread<T> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.send(Message::Failed(ChildError::Panicked));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_panics_is_noticed_though_others_live() {
        let mut result = Ok(None);
        // The scope panics, too: nobody joined the thread.
        let scope = std::panic::AssertUnwindSafe(|| {
            thread::scope(|scope| {
                let names = ["one", "other"].map(str::to_owned).into_iter();
                let body = |index: usize, main: &MainThread<()>| {
                    if index == 0 {
                        std::panic::resume_unwind(Box::new("on purpose"));
                    }
                    while main.schedule(IDLE_LOOK) != NextInterval::Never {}
                    Ok(())
                };
                result = Threads::start(scope, names, body).unwrap().result(ORDER_TIMEOUT);
            });
        });
        assert!(std::panic::catch_unwind(scope).is_err());
        assert!(matches!(result, Err(ChildError::Panicked)), "{result:?}");
    }
}
