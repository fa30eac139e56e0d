//! The end of a run: faults stop, and everything has to work again.

use daemon::metrics::Counter;

use super::{
    ClusterError, Setup, caller::Check, client::Client, node::Node, run::Cluster, step::SimProvider,
};
use crate::world::Time;

/// Once faults are over everything works again within this.
const HEAL: Time = Time::from_ns(300_000_000);
/// It works if nothing breaks for so long: longer than a queue pair retries.
const CALM: Time = Time::from_ns(5_000_000);
/// Calls that nothing is wrong with end within this.
const CHECK: Time = Time::from_ns(50_000_000);

impl Cluster {
    /// All faults end at `end`: waits until everything works again, and goes on doing so.
    pub(super) fn recover(&mut self, end: Time) -> Result<(), ClusterError> {
        self.heal()?;
        // What broke last is noticed a little later.
        loop {
            let is_healed = |cluster: &mut Self| cluster.is_settled() && cluster.is_provided();
            self.run_until(end + HEAL, is_healed)?;
            if !is_healed(self) || self.network.now() >= end + HEAL {
                return self.give_up("faults are over and it does not recover");
            }
            let calm = self.network.now() + CALM;
            self.run_until(calm, |cluster| !cluster.is_settled())?;
            if self.is_settled() {
                break;
            }
        }
        Ok(())
    }

    /// All faults are over, and clients make no new calls.
    fn heal(&mut self) -> Result<(), ClusterError> {
        self.network.heal();
        self.is_draining = true;
        for rank in 0..self.plan.nodes {
            if self.nodes[rank as usize].is_none() {
                self.start(rank)?;
                self.admit_all(rank);
            }
            for client in 0..self.dying_of_silence() as usize {
                self.client_dies(rank, client, true);
            }
            self.wake_all(rank);
        }
        Ok(())
    }

    /// How many clients of each node die once faults are over, where a service never answers: its callers wait for as
    /// long as they live. Its provider learns of their end, and lives.
    fn dying_of_silence(&self) -> u32 {
        if self.plan.is_silent { self.plan.clients - self.plan.providers() } else { 0 }
    }

    fn wake_all(&mut self, rank: u32) {
        let Some(node) = &self.nodes[rank as usize] else { return };
        let (socket, now) = (node.socket, self.network.now());
        for client in 0..self.clients[rank as usize].len() {
            self.schedule_client(socket, client, now);
        }
    }

    /// Calls everybody once more, which must succeed.
    pub(super) fn check(&mut self) -> Result<(), ClusterError> {
        self.disturbed.fill(false);
        let has_answering = self.plan.has_providers && !self.plan.is_silent;
        let services = if has_answering { &[false, true][..] } else { &[false] };
        let checks = (0..self.plan.nodes).flat_map(|rank| {
            services.iter().map(move |is_provided| Check { rank, is_provided: *is_provided })
        });
        for rank in 0..self.plan.nodes {
            for client in self.clients[rank as usize].iter_mut().flatten() {
                if let Some(caller) = client.as_caller() {
                    caller.checks = checks.clone().collect();
                }
            }
            self.wake_all(rank);
        }
        let end = self.network.now() + CHECK;
        let is_over = |cluster: &mut Self| cluster.is_checked() && cluster.is_settled();
        self.run_until(end, is_over)?;
        if !is_over(self) {
            return self.give_up("calls after all faults do not end");
        }
        self.run_until(end, |cluster| cluster.owed() == 0)?;
        match self.owed() {
            0 => Ok(()),
            owed => self.give_up(&format!("providers owe {owed} answers")),
        }
    }

    fn is_checked(&mut self) -> bool {
        let mut clients = self.clients.iter_mut().flatten().flatten();
        clients.all(|client| client.as_caller().is_none_or(|caller| caller.checks.is_empty()))
    }

    /// Requests that providers have taken and not answered.
    fn owed(&mut self) -> usize {
        let clients = self.clients.iter_mut().flatten().flatten();
        clients.filter_map(Client::as_provider).map(SimProvider::owed).sum()
    }

    /// Whether each node that is to have a provider has one.
    fn is_provided(&mut self) -> bool {
        let has_provider = |clients: &mut Vec<Option<Client>>| {
            let mut providers = clients.iter_mut().flatten().filter_map(Client::as_provider);
            providers.any(|provider| provider.is_serving())
        };
        self.plan.providers() == 0 || self.clients.iter_mut().all(has_provider)
    }

    /// What must be so at the end.
    pub(super) fn judge(&mut self, setup: &Setup) -> Result<(), ClusterError> {
        self.nodes.iter().flatten().for_each(|node| self.judge_node(node));
        for node in self.nodes.iter().flatten() {
            let total = node.counters().total();
            let lost = [Counter::PeersLost, Counter::Suspicions, Counter::Evicted];
            for counter in lost {
                let (rank, count) = (node.socket.rank, total.counter(counter));
                if setup.faults().is_empty() && count > 0 {
                    let name = counter.name();
                    let mut history = self.history.borrow_mut();
                    history.fail(|| format!("no fault, and {name} of rank {rank} is {count}"));
                }
            }
        }
        Ok(())
    }

    pub(super) fn judge_node(&self, node: &Node) {
        let (rank, stats) = (node.socket.rank, node.daemon.worker_stats());
        if stats.violations > 0 {
            let mut history = self.history.borrow_mut();
            history.fail(|| format!("rank {rank} says that an honest peer broke the protocol"));
        }
    }
}
