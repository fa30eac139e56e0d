//! A client: the production core of a client process, and a program that calls, or one that serves.

use super::{
    caller::Caller,
    direct::{SharedDesk, SimClients},
    history::History,
    node::Admitted,
    plan::Plan,
    step::SimProvider,
    surroundings::{POLL, Stepped, Surroundings},
};
use crate::world::{RandomStream, Time};

/// What a client does.
enum Program {
    Caller(Box<Caller>),
    Provider(Box<SimProvider>),
}

/// One client of a node.
pub(super) struct Client {
    pub(super) id: ipc::ClientId,
    pub(super) slot: u16,
    program: Program,
    is_sleeper: bool,
    pub(super) is_parked: bool,
    pub(super) is_asleep: bool,
    /// The step that is scheduled.
    pub(super) step: u64,
    /// When the client looks in any case.
    pub(super) timer: Option<Time>,
    polls: u32,
}

impl Client {
    /// A client that calls.
    pub(super) fn caller(
        plan: &Plan,
        (name, number): (&str, usize),
        admitted: Admitted<u64>,
        now: Time,
    ) -> Self {
        let mut random = RandomStream::new(plan.seed, name);
        let is_sleeper = random.happens(plan.sleepy_permille);
        let Admitted { id, slot, core } = admitted;
        let caller = Caller::new(plan, number, core, random, now);
        Self::new((id, slot), Program::Caller(Box::new(caller)), is_sleeper)
    }

    /// A client that serves.
    pub(super) fn provider(
        plan: &Plan,
        name: &str,
        admitted: Admitted<client::Asks>,
        desk: &SharedDesk,
    ) -> Self {
        let mut random = RandomStream::new(plan.seed, name);
        let is_sleeper = random.happens(plan.sleepy_permille);
        let Admitted { id, slot, core } = admitted;
        let provider = SimProvider::new(plan, core, random, desk);
        Self::new((id, slot), Program::Provider(Box::new(provider)), is_sleeper)
    }

    fn new((id, slot): (ipc::ClientId, u16), program: Program, is_sleeper: bool) -> Self {
        let (is_parked, is_asleep) = (false, false);
        Self { id, slot, program, is_sleeper, is_parked, is_asleep, step: 0, timer: None, polls: 0 }
    }

    /// It, if it calls.
    pub(super) fn as_caller(&mut self) -> Option<&mut Caller> {
        match &mut self.program {
            Program::Caller(caller) => Some(caller),
            Program::Provider(_) => None,
        }
    }

    /// It, if it serves.
    pub(super) fn as_provider(&mut self) -> Option<&mut SimProvider> {
        match &mut self.program {
            Program::Caller(_) => None,
            Program::Provider(provider) => Some(provider),
        }
    }

    /// Whether an answer waits for it.
    pub(super) fn has_response(&self) -> bool {
        match &self.program {
            Program::Caller(caller) => caller.has_response(),
            Program::Provider(provider) => provider.has_response(),
        }
    }

    /// Whether the kernel tells it something about its sessions.
    pub(super) fn has_direct_news(&mut self) -> bool {
        match &mut self.program {
            Program::Caller(caller) => caller.has_direct_news(),
            Program::Provider(provider) => provider.clients().is_some_and(SimClients::has_news),
        }
    }

    /// Whether it is the caller of this session.
    pub(super) fn calls_in(&self, session: u64) -> bool {
        matches!(&self.program, Program::Caller(caller) if caller.calls_in(session))
    }

    /// Its sessions, if it is a provider.
    pub(super) fn host(&mut self) -> Option<&mut SimClients> {
        match &mut self.program {
            Program::Caller(_) => None,
            Program::Provider(provider) => provider.clients(),
        }
    }

    /// Calls that have not ended.
    pub(super) fn in_flight(&self) -> usize {
        match &self.program {
            Program::Caller(caller) => caller.in_flight(),
            Program::Provider(provider) => provider.in_flight(),
        }
    }

    /// Its daemon or its own process is gone: all calls end. A provider that is not killed says so to its callers.
    pub(super) fn end(self, history: &mut History, now: Time, is_killed: bool) {
        match self.program {
            Program::Caller(mut caller) => caller.end(history, now),
            Program::Provider(mut provider) => {
                if is_killed && let Some(clients) = provider.clients() {
                    clients.kill();
                }
            }
        }
    }

    /// One step: polls, calls or serves, tells the daemon, and looks at deadlines.
    pub(super) fn step(&mut self, around: &mut Surroundings<'_>) -> Stepped {
        if std::mem::take(&mut self.is_asleep) {
            self.awake();
        }
        self.is_parked = false;
        let mut stepped = Stepped::default();
        let done = match &mut self.program {
            Program::Caller(caller) => caller.turn(around, &mut stepped),
            Program::Provider(provider) => provider.turn(around),
        };
        self.polls = if done > 0 { 0 } else { self.polls + 1 };
        stepped.again = Some(around.now + POLL);
        if self.polls >= around.plan.detail.polls {
            self.polls = 0;
            self.park(around, &mut stepped);
        }
        match &mut self.program {
            Program::Caller(caller) => caller.told(&mut stepped),
            Program::Provider(provider) => provider.told(around, &mut stepped),
        }
        stepped
    }

    /// Polls no more until something comes, or sleeps.
    fn park(&mut self, around: &mut Surroundings<'_>, stepped: &mut Stepped) {
        let may_sleep = match &mut self.program {
            Program::Caller(caller) => {
                caller.flush(around, stepped);
                !self.is_sleeper || caller.arm(around.now_ns)
            }
            Program::Provider(provider) => provider.may_park(self.is_sleeper),
        };
        if !may_sleep {
            return self.awake();
        }
        (self.is_asleep, self.is_parked) = (self.is_sleeper, true);
        stepped.again = match &self.program {
            Program::Caller(caller) => caller.due(around),
            Program::Provider(provider) => provider.due(around),
        };
    }

    fn awake(&mut self) {
        match &mut self.program {
            Program::Caller(caller) => caller.awake(),
            Program::Provider(provider) => provider.awake(),
        }
    }
}
