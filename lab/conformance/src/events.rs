//! Completion channels: no side sleeps through a completion, and none is woken by an event
//! that it did not ask for.

use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use verbs::{
    Arm, ArmError, Capabilities, Channel, CompletionKind, CompletionQueue, Nic, Op, Payload,
    SendFlags, SendRequest,
};

use crate::{
    end::{Done, End, Setup, connect},
    harness::{Side, Verdict, ensure, ensure_eq, low_u32},
};

/// An RC queue pair whose CQ has a channel.
fn with_channel<N: Nic>(side: &mut Side<N>) -> Verdict<(End<N>, N::Channel)> {
    let setup = Setup::rc();
    let channel = side.nic.create_channel()?;
    let pd = side.nic.alloc_pd()?;
    let mut end = End::create_in(side, &setup, pd, None, Some(&channel))?;
    connect(side, &mut end.qp, &setup)?;
    Ok((end, channel))
}

/// Sleeps on the file descriptor as an executor does, keeping an embedded NIC going.
fn sleep_on_fd<N: Nic>(side: &Side<N>, end: &mut End<N>, channel: &N::Channel) -> Verdict {
    let deadline = side.deadline();
    while !deadline.has_passed() {
        let nap = side.nic.poll_timeout().unwrap_or(side.testbed.deadline);
        let nap = nap.min(side.testbed.deadline);
        let nap = Timespec::try_from(nap).unwrap_or_default();
        let fd = channel.fd();
        let mut fds = [PollFd::new(&fd, PollFlags::IN)];
        let ready = poll(&mut fds, Some(&nap)).unwrap_or(0);
        if ready > 0 {
            let has_fired = channel.wait(Duration::ZERO);
            ensure!(has_fired || side.testbed.wakes_early, "readable, but there is no event");
            if has_fired {
                return Ok(());
            }
        }
        end.cq.gather();
        if !end.cq.is_drained() {
            return Ok(());
        }
    }
    Err(super::harness::Stop::violation("the descriptor never became readable"))
}

/// The next completion, sleeping until it comes.
fn wait_asleep<N: Nic>(
    side: &Side<N>,
    end: &mut End<N>,
    channel: &N::Channel,
    on_fd: bool,
) -> Verdict<Done> {
    let deadline = side.deadline();
    loop {
        if let Some(done) = end.cq.poll() {
            end.retire(&done);
            return Ok(done);
        }
        ensure!(!deadline.has_passed(), "no completion");
        end.cq.cq.arm(Arm::Next)?;
        // No second poll: arming with a completion waiting fires at once.
        if on_fd {
            sleep_on_fd(side, end, channel)?;
        } else {
            ensure!(channel.wait(side.testbed.deadline), "slept through the deadline");
        }
    }
}

/// Ping-pong where each side sleeps for every message: no wakeup is lost in 1000 rounds.
pub(super) fn no_wakeup_is_lost<N: Nic>(side: &mut Side<N>) -> Verdict {
    const ROUNDS: u64 = 1000;
    let (mut end, channel) = with_channel(side)?;
    for _ in 0..8 {
        end.recv(&[])?;
    }
    side.meet(&mut end.cq)?;
    let send = |end: &mut End<N>, number: u64| {
        let op = Op::Send { payload: Payload::Gather(&[]), imm: Some(low_u32(number)) };
        end.send(&SendRequest::unsignaled(op))
    };
    for number in 0..ROUNDS {
        if side.is_client() {
            send(&mut end, number)?;
        }
        let done = loop {
            let done = wait_asleep(side, &mut end, &channel, number % 2 == 0)?;
            ensure!(done.failure.is_none(), "{done:?}");
            // The queue signals some sends by itself.
            if done.kind.is_receive() {
                break done;
            }
        };
        ensure_eq!(done.imm, Some(low_u32(number)), "message");
        end.recv(&[])?;
        if !side.is_client() {
            send(&mut end, number)?;
        }
    }
    side.meet(&mut end.cq)
}

/// Arming a CQ that already holds a completion fires at once; each arming fires once.
pub(super) fn arming_with_a_completion_waiting_fires<N: Nic>(side: &mut Side<N>) -> Verdict {
    let (mut end, channel) = with_channel(side)?;
    if side.is_client() {
        ensure!(!channel.wait(side.testbed.quiet), "an unarmed queue fires");
        end.send(&SendRequest::signaled(Op::Nop))?;
        // Without arming it completes in silence.
        ensure!(!channel.wait(side.testbed.quiet), "an unarmed queue fires");
        let done = end.wait_for(CompletionKind::Nop)?;
        end.send(&SendRequest::signaled(Op::Nop))?;
        let second = end.cq.wait()?;
        ensure!(second.wqe != done.wqe, "one completion came twice");
        end.retire(&second);
        end.send(&SendRequest::signaled(Op::Nop))?;
        end.cq.cq.arm(Arm::Next)?;
        ensure!(channel.wait(side.testbed.deadline), "arming did not fire");
        ensure!(!channel.wait(side.testbed.quiet), "one arming fired twice");
        end.wait_for(CompletionKind::Nop)?;
    }
    side.meet(&mut end.cq)
}

/// Armed for solicited completions only: others arrive in silence, the solicited one wakes.
pub(super) fn solicited_filter_is_exact<N: Nic>(side: &mut Side<N>) -> Verdict {
    let (mut end, channel) = with_channel(side)?;
    for round in 0..20 {
        if side.is_client() {
            side.meet(&mut end.cq)?;
            let send = SendRequest::signaled(Op::Send { payload: Payload::Gather(&[]), imm: None });
            end.send(&send)?;
            end.wait_for(CompletionKind::Send)?;
            side.meet(&mut end.cq)?;
            // The server watches its channel stay silent.
            side.meet(&mut end.cq)?;
            end.send(&send.with(SendFlags::SOLICITED))?;
            end.wait_for(CompletionKind::Send)?;
        } else {
            end.recv(&[])?;
            end.recv(&[])?;
            end.cq.cq.arm(Arm::Solicited)?;
            side.meet(&mut end.cq)?;
            side.meet(&mut end.cq)?;
            let silent = !channel.wait(side.testbed.quiet);
            ensure!(silent, "round {round}: an unsolicited completion fires");
            side.meet(&mut end.cq)?;
            ensure!(channel.wait(side.testbed.deadline), "a solicited completion does not fire");
            let first = end.wait_for(CompletionKind::Recv)?;
            let second = end.wait_for(CompletionKind::Recv)?;
            let told = side.has(Capabilities::SOLICITED);
            ensure_eq!((first.solicited, second.solicited), (false, told), "solicited bits");
        }
        side.meet(&mut end.cq)?;
    }
    Ok(())
}

/// A CQ without a channel cannot be armed.
pub(super) fn arming_needs_a_channel<N: Nic>(side: &mut Side<N>) -> Verdict {
    let mut end = End::connected(side, &Setup::rc())?;
    ensure_eq!(end.cq.cq.arm(Arm::Next), Err(ArmError::NoChannel), "arming without a channel");
    side.meet(&mut end.cq)
}
