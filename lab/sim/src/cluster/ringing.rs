//! News and wakeups of sessions between callers and providers, and when they arrive.

use super::{
    direct::SimClients,
    network::{Event, Socket},
    run::{Cluster, WAKEUP_NS},
    surroundings::Stepped,
};
use crate::world::Time;

impl Cluster {
    /// Tells clients that wait what the kernel tells them: sockets that the daemon or a process closed, introductions.
    pub(super) fn ring(&mut self, socket: Socket) {
        if !self.plan.is_direct {
            return;
        }
        for client in 0..self.clients[socket.rank as usize].len() {
            let Some(entry) = &mut self.clients[socket.rank as usize][client] else { continue };
            if entry.is_parked && entry.has_direct_news() {
                entry.is_parked = false;
                let at = self.network.now() + Time::from_ns(self.random().number(WAKEUP_NS));
                self.schedule_client(socket, client, at);
            }
        }
    }

    /// What a step of a client leads to at the other ends of its sessions.
    pub(super) fn tell_sessions(&mut self, socket: Socket, stepped: &Stepped) {
        let (rank, now) = (socket.rank as usize, self.network.now());
        let to_hosts = stepped.wakes_hosts.iter().map(|session| (*session, true));
        let to_callers = stepped.wakes_callers.iter().map(|session| (*session, false));
        for (session, is_for_host) in to_hosts.chain(to_callers) {
            let delay_ns = WAKEUP_NS + self.random().number(WAKEUP_NS);
            let event = Event::WakeSession { socket, session, is_for_host };
            self.network.schedule(now + Time::from_ns(delay_ns), event);
        }
        for client in 0..self.clients[rank].len() {
            let Some(entry) = &mut self.clients[rank][client] else { continue };
            let is_waiting = entry.is_parked && !entry.is_asleep;
            let is_told =
                |host: &mut SimClients| stepped.told.iter().any(|session| host.has(*session));
            if is_waiting && entry.host().is_some_and(is_told) {
                let at = now + self.seen();
                self.schedule_client(socket, client, at);
            } else if stepped.has_answered {
                self.rouse_client(socket, client);
            }
        }
        if stepped.has_answered {
            self.ring(socket);
        }
    }

    /// A wakeup arrives at the provider of a session, or at its caller.
    pub(super) fn wake_session(&mut self, socket: Socket, session: u64, is_for_host: bool) {
        if self.node(socket).is_none() {
            return;
        }
        let now = self.network.now();
        for client in 0..self.clients[socket.rank as usize].len() {
            let Some(entry) = &mut self.clients[socket.rank as usize][client] else { continue };
            let is_meant = match entry.host().filter(|host| is_for_host && host.has(session)) {
                Some(host) => {
                    host.woken(session);
                    true
                }
                None => !is_for_host && entry.calls_in(session),
            };
            if entry.is_asleep && is_meant {
                self.schedule_client(socket, client, now);
            }
        }
    }
}
