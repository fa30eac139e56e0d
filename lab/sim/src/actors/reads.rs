//! Threads that issue READs over DC initiators: the loop of *dct-bench*.
//!
//! A thread posts one signaled READ, to its initiators in turn. Once its window is full it waits for the
//! completion of the oldest READ before it posts the next. An initiator is connected to one target at a time:
//! to change it, it lets its READs finish, disconnects, and connects with the next READ.

use std::collections::{BTreeSet, VecDeque};

use serde::Serialize;

use crate::{
    machine::Profile,
    nic::{NicContext, NicModel},
    world::{RandomStream, Time, World},
};

/// Which machine each READ of a thread goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Targets {
    /// Any machine, the own one included, at random.
    Random,
    /// One machine per thread, for ever: threads of a machine spread over the others.
    Fixed,
    /// This one.
    Always(usize),
    /// The others in turn, so that no READ goes where the one before went.
    Alternating,
}

/// A peer that a thread talks to more than to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hot {
    /// Share of its READs that go there.
    pub permille: u64,
    /// Whether they have a queue pair of their own, which never changes its target, as over RC.
    pub has_own: bool,
}

/// What runs, and for how long.
#[derive(Clone, Debug)]
pub struct Load {
    /// Machines, numbered from 0.
    pub machines: usize,
    /// The first machine with threads; those after it have as many.
    pub first_client: usize,
    /// Machines with threads.
    pub clients: usize,
    /// Threads of each of them.
    pub threads: usize,
    /// READs that a thread has in flight.
    pub window: usize,
    /// DC initiators of a thread.
    pub initiators: usize,
    /// Targets of the READs.
    pub targets: Targets,
    /// A peer of each thread that is called more often; `None`: there is none.
    pub hot: Option<Hot>,
    /// Whether threads look at the clock for each READ.
    pub is_timed: bool,
    /// What happens before is not counted: caches fill, windows open.
    pub warm_up: Time,
    /// The end.
    pub end: Time,
}

/// What was measured between warm-up and end.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Measured {
    /// READs per second of each machine with threads, in millions.
    pub per_client_mops: f64,
    /// From posting a READ to seeing it completed in its turn, on average, in microseconds.
    pub latency_us: f64,
    /// READs per second that machine 0 served, in millions.
    pub served_mops: f64,
    /// Lines per second that the NIC of machine 0 read over PCIe, in millions: 1.5 for each READ of 32 bytes at
    /// any address, one for each context that was missing.
    pub pcie_reads_mops: f64,
    /// Events that happened.
    pub events: u64,
    /// See [`World::trace`].
    pub trace: u64,
}

/// A READ in flight.
#[derive(Clone, Copy, Debug)]
struct Read {
    thread: usize,
    /// Its place in what the thread posted.
    number: usize,
    initiator: usize,
    target: usize,
    /// Nothing else was on the initiator when it came.
    is_lone: bool,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    /// The thread's loop has room for a READ.
    Post { thread: usize },
    /// The NIC has the WQE.
    Fetched(Read),
    /// A request arrives at its target, which may have to make a context first.
    Request { read: Read, connects: bool },
    /// A response arrives at its initiator.
    Response(Read),
    /// The initiator has taken the response.
    Completed(Read),
    /// The thread can see the completion.
    Visible(Read),
    /// DISCONNECT arrives at the target of an initiator.
    Disconnect { initiator: usize },
    /// Its answer arrives at the initiator.
    Disconnected { initiator: usize },
    /// The initiator connects with the first READ that waits.
    Reconnect { initiator: usize },
    /// … once it has that READ's WQE.
    ConnectIssue(Read),
}

#[derive(Debug)]
struct Initiator {
    machine: usize,
    unit: usize,
    /// READs that were not sent, oldest first.
    queue: VecDeque<Read>,
    target: Option<usize>,
    /// The unit that has its context at the target.
    responder_unit: usize,
    on_the_way: u32,
    /// Between the decision to change the target and the CONNECT.
    is_changing: bool,
}

#[derive(Debug)]
struct Thread {
    machine: usize,
    first_initiator: usize,
    posted: usize,
    /// Completed READs that wait for older ones.
    done: BTreeSet<usize>,
    /// The READ that the loop polls for.
    awaited: Option<usize>,
    free_at: Time,
    /// When each READ of the window was posted, oldest first.
    posted_at: VecDeque<Time>,
    fixed_target: usize,
    turn: usize,
    completed: u64,
    latency_ns: f64,
}

struct Cluster<'p> {
    profile: &'p Profile,
    load: Load,
    world: World<Event>,
    nics: Vec<NicModel>,
    initiators: Vec<Initiator>,
    threads: Vec<Thread>,
    targets: RandomStream,
    responder_units: RandomStream,
    served: u64,
    misses_before: u64,
    is_warm: bool,
}

/// Runs `load` on machines of `profile`.
#[must_use]
pub fn run(profile: &Profile, load: &Load, seed: u64) -> Measured {
    let mut cluster = Cluster::new(profile, load.clone(), seed);
    while let Some(event) = cluster.world.next(load.end) {
        cluster.warm();
        cluster.happen(event);
    }
    cluster.measured()
}

impl<'p> Cluster<'p> {
    fn new(profile: &'p Profile, load: Load, seed: u64) -> Self {
        let nics =
            (0..load.machines).map(|number| NicModel::new(&profile.nic, seed, number)).collect();
        let mut cluster = Self {
            profile,
            world: World::default(),
            nics,
            initiators: Vec::new(),
            threads: Vec::new(),
            targets: RandomStream::new(seed, "targets of READs"),
            responder_units: RandomStream::new(seed, "units of responder contexts"),
            served: 0,
            misses_before: 0,
            is_warm: false,
            load,
        };
        for machine in cluster.load.first_client..cluster.load.first_client + cluster.load.clients {
            for number in 0..cluster.load.threads {
                cluster.add_thread(machine, number);
            }
        }
        cluster
    }

    fn add_thread(&mut self, machine: usize, number: usize) {
        let first_initiator = self.initiators.len();
        let has_own = self.load.hot.is_some_and(|hot| hot.has_own);
        for _ in 0..self.load.initiators + usize::from(has_own) {
            let unit = self.initiators.len() % self.profile.nic.units;
            self.initiators.push(Initiator {
                machine,
                unit,
                queue: VecDeque::new(),
                target: None,
                responder_unit: 0,
                on_the_way: 0,
                is_changing: false,
            });
        }
        let others = self.load.machines.saturating_sub(1).max(1);
        let thread = self.threads.len();
        self.threads.push(Thread {
            machine,
            first_initiator,
            posted: 0,
            done: BTreeSet::new(),
            awaited: None,
            free_at: Time::ZERO,
            posted_at: VecDeque::new(),
            fixed_target: (machine + 1 + number % others) % self.load.machines,
            turn: 0,
            completed: 0,
            latency_ns: 0.0,
        });
        // Threads do not begin at one instant.
        self.world.schedule(Time::from_ns(3 * thread as u64), Event::Post { thread });
    }

    /// Begins to count once the warm-up is over.
    fn warm(&mut self) {
        if !self.is_warm && self.world.now() >= self.load.warm_up {
            self.is_warm = true;
            self.misses_before = self.nics[0].misses();
        }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Post { thread } => self.post(thread),
            Event::Fetched(read) => self.fetched(read),
            Event::Request { read, connects } => self.request(read, connects),
            Event::Response(read) => {
                let done = self.serve_initiator(read.initiator, self.profile.nic.complete);
                self.world.schedule(done, Event::Completed(read));
            }
            Event::Completed(read) => {
                self.initiators[read.initiator].on_the_way -= 1;
                self.send(read.initiator);
                let at = self.world.now() + self.profile.nic.completion;
                self.world.schedule(at, Event::Visible(read));
            }
            Event::Visible(read) => self.visible(read),
            Event::Disconnect { initiator } => self.disconnect(initiator),
            Event::Disconnected { initiator } => {
                let done =
                    self.serve_initiator(initiator, self.profile.nic.disconnect_issue.half());
                self.world.schedule(done, Event::Reconnect { initiator });
            }
            Event::Reconnect { initiator } => self.reconnect(initiator),
            Event::ConnectIssue(read) => self.connect_issue(read),
        }
    }

    fn pick_target(&mut self, thread: usize) -> usize {
        let machines = self.load.machines;
        let thread = &mut self.threads[thread];
        match self.load.targets {
            Targets::Random => self.targets.below(machines),
            Targets::Fixed => thread.fixed_target,
            Targets::Always(target) => target,
            Targets::Alternating => {
                thread.turn = thread.turn % (machines - 1) + 1;
                (thread.machine + thread.turn) % machines
            }
        }
    }

    fn post(&mut self, index: usize) {
        let hot = self.load.hot.filter(|hot| self.targets.happens(hot.permille));
        let target = match hot {
            Some(_) => self.threads[index].fixed_target,
            None => self.pick_target(index),
        };
        let (now, cpu) = (self.world.now(), &self.profile.cpu);
        let turn = if self.load.is_timed { cpu.timed_turn } else { cpu.turn };
        let thread = &mut self.threads[index];
        let number = thread.posted;
        thread.posted += 1;
        thread.posted_at.push_back(now);
        thread.free_at = now + turn;
        let free_at = thread.free_at;
        let shared = self.load.initiators;
        let place = if hot.is_some_and(|hot| hot.has_own) { shared } else { number % shared };
        let initiator = thread.first_initiator + place;
        let read = Read { thread: index, number, initiator, target, is_lone: false };
        self.world.schedule(now + self.profile.nic.doorbell, Event::Fetched(read));
        // The loop now polls for the READ that has to end before the window has room.
        let thread = &mut self.threads[index];
        match thread.posted.checked_sub(self.load.window) {
            None => self.world.schedule(free_at, Event::Post { thread: index }),
            Some(oldest) if thread.done.remove(&oldest) => self.polled(index, free_at),
            Some(oldest) => thread.awaited = Some(oldest),
        }
    }

    fn visible(&mut self, read: Read) {
        let thread = &mut self.threads[read.thread];
        if thread.awaited == Some(read.number) {
            thread.awaited = None;
            let at = thread.free_at.max(self.world.now());
            self.polled(read.thread, at);
        } else {
            thread.done.insert(read.number);
        }
    }

    /// The loop sees the completion of its oldest READ at `at`, and goes on.
    fn polled(&mut self, index: usize, at: Time) {
        let thread = &mut self.threads[index];
        let posted_at = thread.posted_at.pop_front().expect("it was posted");
        if at >= self.load.warm_up {
            thread.completed += 1;
            thread.latency_ns += at.since(posted_at).as_ns();
        }
        self.world.schedule(at, Event::Post { thread: index });
    }

    fn fetched(&mut self, mut read: Read) {
        let initiator = &mut self.initiators[read.initiator];
        read.is_lone =
            initiator.queue.is_empty() && initiator.on_the_way == 0 && !initiator.is_changing;
        initiator.queue.push_back(read);
        self.send(read.initiator);
    }

    /// Gives work for a context of an initiator to its unit, as soon as the context is there.
    fn serve_context(&mut self, index: usize, mean: Time) -> Time {
        let Initiator { machine, unit, .. } = self.initiators[index];
        let nic = &mut self.nics[machine];
        let wait = nic.need(initiator_context(index));
        nic.serve(unit, self.world.now(), mean + wait)
    }

    /// The same, while the context is at hand.
    fn serve_initiator(&mut self, index: usize, mean: Time) -> Time {
        let Initiator { machine, unit, .. } = self.initiators[index];
        self.nics[machine].serve(unit, self.world.now(), mean)
    }

    /// Sends READs that wait, until one waits for another target or for earlier READs.
    fn send(&mut self, index: usize) {
        let profile = self.profile;
        loop {
            let initiator = &mut self.initiators[index];
            let Some(read) = initiator.queue.front().copied() else { return };
            if initiator.is_changing {
                return;
            }
            if initiator.target == Some(read.target) {
                if initiator.on_the_way >= profile.nic.reads_max {
                    return;
                }
                initiator.queue.pop_front();
                initiator.on_the_way += 1;
                let done = self.serve_context(index, profile.nic.issue);
                let request = Event::Request { read, connects: false };
                self.world.schedule(done + profile.wire, request);
                continue;
            }
            if initiator.on_the_way > 0 && profile.nic.drains {
                return;
            }
            initiator.is_changing = true;
            if initiator.target.is_none() {
                self.reconnect(index);
            } else {
                let done = self.serve_context(index, profile.nic.disconnect_issue.half());
                self.world.schedule(done + profile.wire, Event::Disconnect { initiator: index });
            }
            return;
        }
    }

    fn disconnect(&mut self, index: usize) {
        let profile = self.profile;
        let Initiator { target, responder_unit, .. } = self.initiators[index];
        let nic = &mut self.nics[target.expect("it was connected")];
        let wait = nic.need(responder_context(index));
        let done =
            nic.serve(responder_unit, self.world.now(), profile.nic.disconnect_respond + wait);
        nic.destroy(responder_context(index));
        self.world.schedule(done + profile.wire, Event::Disconnected { initiator: index });
    }

    fn reconnect(&mut self, index: usize) {
        let responder_unit = self.responder_units.below(self.profile.nic.units);
        let initiator = &mut self.initiators[index];
        let read = initiator.queue.pop_front().expect("a READ made it change its target");
        let is_refetched = read.is_lone && initiator.target.is_some();
        initiator.target = Some(read.target);
        initiator.on_the_way += 1;
        initiator.is_changing = false;
        initiator.responder_unit = responder_unit;
        let wait = if is_refetched { self.profile.nic.refetch } else { Time::ZERO };
        self.world.schedule(self.world.now() + wait, Event::ConnectIssue(read));
    }

    fn connect_issue(&mut self, read: Read) {
        let done = self.serve_context(read.initiator, self.profile.nic.issue);
        let request = Event::Request { read, connects: true };
        self.world.schedule(done + self.profile.wire, request);
        self.send(read.initiator);
    }

    fn request(&mut self, read: Read, connects: bool) {
        let profile = self.profile;
        let unit = self.initiators[read.initiator].responder_unit;
        let nic = &mut self.nics[read.target];
        let mut mean = profile.nic.respond;
        if connects {
            nic.create(responder_context(read.initiator));
            mean += profile.nic.connect;
        } else {
            mean += nic.need(responder_context(read.initiator));
        }
        let done = nic.serve(unit, self.world.now(), mean);
        if self.is_warm && read.target == 0 {
            self.served += 1;
        }
        let at = done + profile.nic.payload_read + profile.wire;
        self.world.schedule(at, Event::Response(read));
    }

    #[expect(clippy::cast_precision_loss, reason = "counts far below 2⁵³")]
    fn measured(&self) -> Measured {
        let span_us = self.load.end.since(self.load.warm_up).as_ns() / 1000.0;
        let completed: u64 = self.threads.iter().map(|thread| thread.completed).sum();
        let latency_ns: f64 = self.threads.iter().map(|thread| thread.latency_ns).sum();
        let served_mops = self.served as f64 / span_us;
        let misses = self.nics[0].misses() - self.misses_before;
        Measured {
            per_client_mops: completed as f64 / span_us / self.load.clients as f64,
            latency_us: latency_ns / completed.max(1) as f64 / 1000.0,
            served_mops,
            pcie_reads_mops: 1.5 * served_mops + misses as f64 / span_us,
            events: self.world.happened(),
            trace: self.world.trace(),
        }
    }
}

fn initiator_context(index: usize) -> NicContext {
    NicContext::Initiator(u32::try_from(index).expect("queue pair numbers have 24 bits"))
}

fn responder_context(index: usize) -> NicContext {
    NicContext::Responder(u32::try_from(index).expect("queue pair numbers have 24 bits"))
}
