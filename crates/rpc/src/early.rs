//! Batches that come before the invitation of their peer.
//!
//! On DC anybody may have announced them, so no order of announcements can be kept that others could not
//! fill up. They are counted by length; in which order they came, the ring tells.

use proto::copyrpc::{Hello, Imm, Messages};
use verbs::MemoryRegion;

/// Announcements of batches of a peer that is invited and not connected.
#[derive(Default)]
pub(crate) struct Early {
    /// By length in lines: how many batches. Lengths that no batch has are counted as 0, or as one line
    /// too many.
    announced: Vec<u16>,
}

impl Early {
    /// Remembers an announcement; `false`: there are more of this length than the peer may send.
    pub(crate) fn keep(&mut self, imm: Imm, own: &Hello) -> bool {
        let lines_max = own.geometry.batch_lines_max();
        // Nothing was given back yet, so nothing wraps.
        let lines = if imm.is_wrapped { 0 } else { imm.lines.min(lines_max.saturating_add(1)) };
        let lines = usize::from(lines);
        self.announced.resize(self.announced.len().max(lines + 1), 0);
        let count = &mut self.announced[lines];
        let is_kept = *count < own.batches_max;
        *count += u16::from(is_kept);
        is_kept
    }

    /// The announcements in the order of the batches in `ring`. Of those that none is found for, one of
    /// each length is last, and the number of the others is returned: on RC one is enough to tell that the
    /// peer broke the protocol.
    pub(crate) fn in_order(mut self, own: &Hello, ring: &impl MemoryRegion) -> (Vec<u32>, u64) {
        let imm = |lines| Imm { is_wrapped: false, slot: own.slot, lines }.encode();
        let mut imms = Vec::new();
        let mut batch = vec![0; own.geometry.batch_bytes_max()];
        let mut offset_bytes = 0;
        while offset_bytes + batch.len() <= own.geometry.ring_bytes() {
            ring.read(offset_bytes, &mut batch);
            let Some(lines) = Messages::lines(&batch) else { break };
            match self.announced.get_mut(usize::from(lines)) {
                Some(count) if *count > 0 => *count -= 1,
                _ => break,
            }
            imms.push(imm(lines));
            offset_bytes += usize::from(lines) * proto::copyrpc::LINE_BYTES;
        }
        let left = (0..).zip(&self.announced).filter(|(_, count)| **count > 0);
        let surplus = left.clone().map(|(_, count)| u64::from(*count) - 1).sum();
        imms.extend(left.map(|(lines, _)| imm(lines)));
        (imms, surplus)
    }
}
