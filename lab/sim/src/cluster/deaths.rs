//! Faults that begin and end, and daemons and clients that die of them.

use daemon::metrics::Counter;

use super::{
    fault::{Fault, FaultKind},
    network::{Event, Socket},
    run::Cluster,
};
use crate::world::Time;

/// The kernel tells of a death after at most so long.
const DEATH_NS: u64 = 50_000;
/// A daemon that ended with an error is started again after so long.
const RESTART: Time = Time::from_ns(500_000);

impl Cluster {
    pub(super) fn fault(&mut self, fault: Fault, begins: bool) {
        self.network.set_fault(fault, begins);
        let rank = fault.node % self.plan.nodes;
        match fault.kind {
            FaultKind::Crash | FaultKind::CrashClockBack if begins => {
                self.kill(rank, fault.kind == FaultKind::CrashClockBack);
                self.network.schedule(fault.end(), Event::Restart { rank });
            }
            FaultKind::CqOverrun if begins => {
                self.doomed[rank as usize] = self.nodes[rank as usize].is_some();
                self.network.overrun(rank);
            }
            FaultKind::ClientDeath if begins => {
                let client = (fault.amount % self.plan.clients.max(1)) as usize;
                self.client_dies(rank, client, true);
            }
            FaultKind::ClientExit if begins => {
                let client = (fault.amount % self.plan.clients.max(1)) as usize;
                self.client_dies(rank, client, false);
            }
            FaultKind::Drain if begins => {
                if let Some(node) = &mut self.nodes[rank as usize] {
                    node.daemon.drain();
                }
                self.rouse(rank);
            }
            FaultKind::Drain => {
                self.kill(rank, false);
                self.network.schedule(fault.end(), Event::Restart { rank });
            }
            _ => {}
        }
    }

    /// A client of a node ends with what it has in flight, and another one comes.
    pub(super) fn client_dies(&mut self, rank: u32, client: usize, is_killed: bool) {
        let Some(node) = &self.nodes[rank as usize] else { return };
        let (socket, now) = (node.socket, self.network.now());
        let Some(dying) = self.clients[rank as usize].get_mut(client).and_then(Option::take) else {
            return;
        };
        let id = dying.id;
        dying.end(&mut self.history.borrow_mut(), now, is_killed);
        self.ring(socket);
        let at = now + Time::from_ns(1 + self.random().number(DEATH_NS));
        self.network.schedule(at, Event::Departed { socket, client, id });
    }

    pub(super) fn kill(&mut self, rank: u32, goes_back: bool) {
        let at = rank as usize;
        let Some(node) = self.nodes[at].take() else { return };
        self.doomed[at] = false;
        self.judge_node(&node);
        let total = node.counters().total();
        for (sum, counter) in self.past[at].iter_mut().zip(Counter::ALL) {
            *sum += total.counter(*counter);
        }
        let (_, epoch) = &mut self.lives[at];
        *epoch = if goes_back { *epoch / 2 } else { *epoch + 1_000_000_000 };
        let now = self.network.now();
        let mut history = self.history.borrow_mut();
        for client in self.clients[at].iter_mut().filter_map(Option::take) {
            client.end(&mut history, now, true);
        }
    }

    /// A daemon whose NIC has failed ends, and who watches it starts it again.
    pub(super) fn ends_by_itself(&mut self, socket: Socket) -> bool {
        let failed = self.node(socket).is_some_and(|node| node.daemon.nic_failure().is_some());
        if failed {
            self.kill(socket.rank, false);
            let at = self.network.now() + RESTART;
            self.network.schedule(at, Event::Restart { rank: socket.rank });
        }
        failed
    }
}
