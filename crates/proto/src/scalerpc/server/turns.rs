//! Turns: the clients that are loaded, that have to leave, and that are next.

use super::{Action, ClientId, Server, Stage};
use crate::scalerpc::{Exchange, follow_ns};

impl Server {
    /// Ends turns that are over, and drops clients that do not acknowledge. Returns when it has to be called
    /// again at the latest; `None`: when something has arrived.
    pub fn handle_timeout(&mut self, now_ns: u64) -> Option<u64> {
        self.now_ns = self.now_ns.max(now_ns);
        if self.slice_end_ns <= self.now_ns {
            self.switch();
        }
        if self.look_ns <= self.now_ns {
            self.look_ns = self.now_ns + self.config.ack_timeout_ns / 4;
            self.drop_silent();
        }
        (self.groups.len() > 0).then_some(self.slice_end_ns)
    }

    /// When the present turn is over. It goes on if no other group waits.
    #[must_use]
    pub fn next_switch_ns(&self) -> u64 {
        self.slice_end_ns
    }

    /// From now on turns end at `switch_ns`, and a slice after and before each such time, whatever the class
    /// of a group. The present turn ends at the one that is nearest to when it would have.
    pub fn keep_step(&mut self, switch_ns: u64) {
        let slice_ns = self.config.slice_ns;
        self.phase_ns = Some(switch_ns % slice_ns);
        // So that a repeated notice changes nothing.
        self.slice_end_ns = self.step_after(self.slice_end_ns.saturating_sub(slice_ns / 2 + 1));
    }

    /// Keeps step with the server of an exchange. `false`: it took longer than a slice and says too little.
    pub fn follow(&mut self, exchange: &Exchange) -> bool {
        let took_ns = exchange.arrived_ns.saturating_sub(exchange.asked_ns);
        let is_close = took_ns <= self.config.slice_ns;
        if is_close {
            self.keep_step(follow_ns(exchange));
        }
        is_close
    }

    /// When a turn that begins now is over.
    fn turn_end_ns(&self) -> u64 {
        let slice_ns = self.config.slice_ns;
        match self.phase_ns {
            None => self.now_ns + self.groups.slice_ns(slice_ns),
            // A server that was late takes a longer turn instead of a very short one.
            Some(_) => self.step_after(self.now_ns + slice_ns / 2),
        }
    }

    /// The first time after `ns` at which servers in step switch.
    fn step_after(&self, ns: u64) -> u64 {
        let slice_ns = self.config.slice_ns;
        let phase_ns = self.phase_ns.unwrap_or(0);
        ns + slice_ns - (ns % slice_ns + slice_ns - phase_ns) % slice_ns
    }

    /// Gives the next group that has something to do its turn.
    fn switch(&mut self) {
        let is_ready = |group: &usize| {
            let mut clients = self.groups.clients(*group).iter();
            clients.any(|index| {
                let member = self.members[usize::from(*index)].as_ref();
                member.is_some_and(super::Member::is_ready)
            })
        };
        let current = self.groups.current();
        let next = self.groups.following().find(|group| *group != current && is_ready(group));
        let Some(next) = next else {
            self.retire_unmapped();
            self.slice_end_ns = self.turn_end_ns();
            return self.load();
        };
        for client in core::mem::take(&mut self.active) {
            self.retire(client);
        }
        self.counters.switches += 1;
        self.pool ^= 1;
        if self.groups.advance(next) {
            self.counters.rotations += 1;
            self.regroup();
        }
        for at in 0..self.groups.clients(self.groups.current()).len() {
            let index = self.groups.clients(self.groups.current())[at];
            if let Some(client) = self.id(index) {
                self.activate(client);
            }
        }
        self.slice_end_ns = self.turn_end_ns();
        self.load();
    }

    /// Ends the turn of a client, if it has one.
    fn retire(&mut self, client: ClientId) {
        let since_ns = self.now_ns;
        let Some(member) = self.member_mut(client) else { return };
        if let Stage::Active { place } = member.stage {
            member.stage = Stage::Retiring { place, since_ns };
            let generation = place.generation;
            self.actions.push_back(Action::Event { client, generation });
        }
    }

    /// No other group waits. Clients that do not know their zone, because no request was answered yet, would
    /// wait for ever to write another one: they announce again.
    fn retire_unmapped(&mut self) {
        let active = core::mem::take(&mut self.active);
        for client in active {
            match self.member(client) {
                Some(member) if member.is_mapped => self.active.push(client),
                _ => self.retire(client),
            }
        }
    }

    /// Begins the turn of a client whose requests were read.
    pub(super) fn activate(&mut self, client: ClientId) {
        let Some(member) = self.member_mut(client) else { return };
        if let Stage::Warm { place } = member.stage {
            member.stage = Stage::Active { place };
            member.is_mapped = false;
            let mask = member.mask;
            self.active.push(client);
            self.actions.push_back(Action::Take { client, mask, place });
        }
    }

    /// Gives zones to announced clients of the present group, and of the one that follows.
    pub(super) fn load(&mut self) {
        let current = self.groups.current();
        let has_announced = |group: &usize| {
            let mut clients = self.groups.clients(*group).iter();
            clients.any(|index| {
                let member = self.members[usize::from(*index)].as_ref();
                member.is_some_and(|member| member.is_announced)
            })
        };
        let next = self.groups.following().find(|group| *group != current && has_announced(group));
        self.load_group(current, self.pool);
        if let Some(next) = next {
            self.load_group(next, self.pool ^ 1);
        }
    }

    fn load_group(&mut self, group: usize, pool: u8) {
        for at in 0..self.groups.clients(group).len() {
            let index = self.groups.clients(group)[at];
            let Some(client) = self.id(index) else { continue };
            let is_due =
                |member: &super::Member| member.is_announced && member.stage == Stage::Idle;
            if !self.member(client).is_some_and(is_due) {
                continue;
            }
            let Some(place) = self.take_zone(pool) else { return };
            let Some(member) = self.member_mut(client) else { continue };
            member.is_announced = false;
            member.stage = Stage::Reading { place };
            let mask = member.mask;
            self.actions.push_back(Action::Read { client, mask, place });
        }
    }

    /// A client that had its notice long ago and has not left is taken for dead.
    fn drop_silent(&mut self) {
        for index in 0..self.config.clients_max {
            let Some(client) = self.id(index) else { continue };
            let now_ns = self.now_ns;
            let timeout_ns = self.config.ack_timeout_ns;
            let Some(member) = self.member_mut(client) else { continue };
            if let Stage::Retiring { place, since_ns } = member.stage
                && now_ns.saturating_sub(since_ns) >= timeout_ns
            {
                // Once only: the driver destroys the queue pair.
                member.stage = Stage::Retiring { place, since_ns: u64::MAX };
                self.counters.dropped += 1;
                self.actions.push_back(Action::Drop(client));
            }
        }
    }

    /// Groups clients by priority, after some rotations.
    fn regroup(&mut self) {
        let every = u64::from(self.config.regroup_rotations);
        if every == 0 || !self.counters.rotations.is_multiple_of(every) {
            return;
        }
        let clients = self.members.iter_mut().zip(0u16..).filter_map(|(member, index)| {
            let member = member.as_mut()?;
            let class = member.class();
            (member.answers, member.bytes) = (0, 0);
            Some((class, index))
        });
        self.groups.regroup(clients.collect(), self.config.group);
    }
}
