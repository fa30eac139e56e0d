//! Any bytes and descriptors from a peer's socket.

use os::event::EventFd;

use super::*;

/// The input is a list of messages: descriptors, words to change, and what kind of message it was.
///
/// # Panics
///
/// If the port panics, or believes a message that it cannot use.
pub(crate) fn message(bytes: &[u8]) {
    let limits = Limits { mrs: 2, qps: 2, cqs: 2, rqs: 2, ro_bytes: 8 << 10, rw_bytes: 8 << 10 };
    let card = Card::create(limits, false).expect("a small card");
    let name = format!("hostile-{}-{:?}", std::process::id(), std::thread::current().id());
    let name: String = name.chars().filter(char::is_ascii_alphanumeric).collect();
    let mut fabric = Fabric::join(&name, card, None).expect("a free name");
    let (ro, rw) = (fabric.card.ro.clone(), fabric.card.rw.clone());
    let lid = fabric.lid;
    assert!(fabric.connect(lid), "it reaches itself");
    for chunk in bytes.chunks(24) {
        if fabric.links.is_empty() && !fabric.connect(lid) {
            return;
        }
        let mut message = chosen(chunk, &fabric).encode().to_vec();
        for change in chunk.get(4..).unwrap_or_default().chunks_exact(4) {
            // Half of the messages stay what they are.
            if chunk[1] & 1 == 1 {
                let at = usize::from(change[0]) % message.len();
                message[at] = change[1];
                message.truncate(message.len() - usize::from(change[2] == 255));
            }
        }
        let fds = (0..chunk.get(2).copied().unwrap_or(0) % 4).map(|nth| {
            match chunk.get(3).copied().unwrap_or(0).rotate_left(u32::from(nth) * 2) & 3 {
                0 => ro.fd().expect("a file").try_clone_to_owned(),
                1 => rw.fd().expect("a file").try_clone_to_owned(),
                2 => std::os::fd::AsFd::as_fd(&EventFd::new().expect("an event"))
                    .try_clone_to_owned(),
                _ => std::fs::File::open("/dev/null").map(Into::into),
            }
        });
        let fds = fds.collect::<Result<_, _>>().expect("descriptors");
        let datagram = Datagram { len_bytes: message.len(), fds };
        if !fabric.handle_message(0, &message, datagram) {
            fabric.links.swap_remove(0);
        }
    }
    for peer in fabric.links.iter().filter_map(|link| link.peer.as_ref()) {
        assert!(peer.card.limits.are_plausible());
        assert!(peer.card.qp(1).is_some() || peer.card.limits.qps < 2);
    }
}

fn chosen(chunk: &[u8], fabric: &Fabric) -> Message {
    let id = u32::from(chunk.get(3).copied().unwrap_or(0));
    let bytes = 8 << 10;
    match chunk[0] % 7 {
        0 => Message::Segment { id, len_bytes: bytes },
        1 => Message::Channel { id },
        2 => Message::SegmentGone { id },
        3 => Message::ChannelGone { id },
        4 => Message::Welcome,
        _ => Message::Hello(Hello {
            lid: fabric.lid,
            instance: u64::from(id),
            mrs: 2,
            qps: 2,
            cqs: 2,
            rqs: 2,
            ro_bytes: bytes,
            rw_bytes: bytes,
        }),
    }
}
