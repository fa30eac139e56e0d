//! Groups of clients, in the order of their turns.

use alloc::vec::Vec;

/// How long a group's turn is, in halves of a slice.
const HALVES: [u64; 3] = [3, 2, 2];

/// One group.
#[derive(Debug, Default)]
struct Group {
    clients: Vec<u16>,
    /// 0: clients of the highest priority.
    class: usize,
}

/// All groups.
#[derive(Debug, Default)]
pub(super) struct Groups {
    groups: Vec<Group>,
    /// Whose turn it is.
    current: usize,
}

impl Groups {
    pub(super) fn sizes(&self) -> impl Iterator<Item = usize> {
        self.groups.iter().map(|group| group.clients.len())
    }

    pub(super) fn len(&self) -> usize {
        self.groups.len()
    }

    pub(super) fn current(&self) -> usize {
        self.current
    }

    pub(super) fn clients(&self, group: usize) -> &[u16] {
        self.groups.get(group).map_or(&[], |group| &group.clients)
    }

    pub(super) fn is_current(&self, client: u16) -> bool {
        self.clients(self.current).contains(&client)
    }

    /// Length of the present turn.
    pub(super) fn slice_ns(&self, slice_ns: u64) -> u64 {
        let class = self.groups.get(self.current).map_or(1, |group| group.class);
        slice_ns * HALVES[class.min(2)] / 2
    }

    /// The groups after the present one, in the order of their turns; the present one is the last.
    pub(super) fn following(&self) -> impl Iterator<Item = usize> {
        let len = self.groups.len();
        let current = self.current;
        (1..=len).map(move |step| (current + step) % len)
    }

    /// Gives another group its turn; whether a rotation is complete.
    pub(super) fn advance(&mut self, to: usize) -> bool {
        let is_complete = to <= self.current;
        self.current = to;
        is_complete
    }

    /// Adds a client to the smallest group that has room, or to a new one.
    pub(super) fn add(&mut self, client: u16, max: u16) {
        let with_room = self.groups.iter_mut().filter(|g| g.clients.len() < usize::from(max));
        match with_room.min_by_key(|group| group.clients.len()) {
            Some(group) => group.clients.push(client),
            None => self.split(client, max),
        }
    }

    /// All groups are full: the largest gives half of its clients to a new one.
    fn split(&mut self, client: u16, max: u16) {
        let largest = self.groups.iter_mut().max_by_key(|group| group.clients.len());
        let mut group = Group { class: 1, ..Group::default() };
        if let Some(largest) = largest.filter(|_| max > 1) {
            group.clients = largest.clients.split_off(largest.clients.len() / 2);
        }
        group.clients.push(client);
        self.groups.push(group);
    }

    /// Removes a client. A group that becomes too small joins another one that has room.
    pub(super) fn remove(&mut self, client: u16, min: u16, max: u16) {
        let Some(at) = self.groups.iter().position(|group| group.clients.contains(&client)) else {
            return;
        };
        self.groups[at].clients.retain(|other| *other != client);
        let len = self.groups[at].clients.len();
        if len >= usize::from(min).max(1) {
            return;
        }
        let has_room = |(index, group): &(usize, &Group)| {
            *index != at && group.clients.len() + len <= usize::from(max)
        };
        let target = self.groups.iter().enumerate().find(has_room).map(|(index, _)| index);
        if let Some(target) = target {
            let clients = core::mem::take(&mut self.groups[at].clients);
            self.groups[target].clients.extend(clients);
        }
        if self.groups[at].clients.is_empty() {
            self.groups.remove(at);
            if self.current > at || self.current == self.groups.len() {
                self.current = self.current.saturating_sub(1);
            }
        }
    }

    /// Groups clients anew, highest class first: three quarters of a group's size for the highest class.
    pub(super) fn regroup(&mut self, mut clients: Vec<(u32, u16)>, size: u16) {
        clients.sort_unstable_by_key(|(class, client)| (core::cmp::Reverse(*class), *client));
        let (highest, lowest) = match (clients.first(), clients.last()) {
            (Some(first), Some(last)) => (first.0, last.0),
            _ => return,
        };
        if highest == lowest {
            return;
        }
        let class_of = |class: u32| match class {
            _ if class == highest => 0,
            _ if class == lowest => 2,
            _ => 1,
        };
        let size = usize::from(size).max(1);
        let mut groups: Vec<Group> = Vec::new();
        for (class, client) in clients {
            let class = class_of(class);
            let room = if class == 0 { size - size / 4 } else { size };
            match groups.last_mut() {
                Some(group) if group.class == class && group.clients.len() < room => {
                    group.clients.push(client);
                }
                _ => groups.push(Group { clients: alloc::vec![client], class }),
            }
        }
        self.groups = groups;
        self.current = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_split_when_full_and_join_when_small() {
        let mut groups = Groups::default();
        for client in 0..60 {
            groups.add(client, 60);
        }
        assert_eq!(groups.sizes().collect::<Vec<_>>(), [60]);
        groups.add(60, 60);
        assert_eq!(groups.sizes().collect::<Vec<_>>(), [30, 31]);
        for client in 0..11 {
            groups.remove(client, 20, 60);
        }
        assert_eq!(groups.sizes().collect::<Vec<_>>(), [50], "nineteen join thirty-one");
        for client in 11..61 {
            groups.remove(client, 20, 60);
        }
        assert_eq!(groups.len(), 0);
    }

    /// Rule S5.3.
    #[test]
    fn classes_do_not_mix_and_the_highest_has_small_groups_and_long_turns() {
        let mut groups = Groups::default();
        let clients = (0..100).map(|client| (u32::from(client % 2) * 5, client)).collect();
        groups.regroup(clients, 40);
        assert_eq!(groups.sizes().collect::<Vec<_>>(), [30, 20, 40, 10]);
        assert!(groups.clients(0).iter().all(|client| client % 2 == 1));
        assert_eq!(groups.slice_ns(100), 150);
        groups.advance(2);
        assert_eq!(groups.slice_ns(100), 100);
    }
}
