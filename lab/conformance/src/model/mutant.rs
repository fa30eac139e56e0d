//! Ways to be broken, each with the scenario that has to notice.

/// A way to be broken that the suite has to notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mutant {
    /// Every SRQ message lands in the first buffer.
    SrqUsesOneBuffer,
    /// SRQ buffers are looked for in the domain of the queue pair.
    SrqDomainIgnored,
    /// Failures of unsignaled requests are not reported.
    UnsignaledFailuresVanish,
    /// A WRITE stores one byte too many.
    WriteSpills,
    /// The last byte of a message is lost.
    LastByteLost,
    /// Rights of the queue pair do not count.
    QueuePairRightsIgnored,
    /// Protection domains do not count.
    DomainsIgnored,
    /// Arming looks at the future only.
    ArmIgnoresThePast,
    /// Every completion counts as solicited.
    EverythingIsSolicited,
    /// The sender never gives up on a missing receive.
    RnrForEver,
    /// SQD does not stop sends.
    SqdIgnored,
    /// Completions are dropped when the CQ is full, without a word.
    SilentOverrun,
    /// READ and atomic results appear only after all other work.
    FenceIgnored,
    /// An atomic overtakes the one before it.
    AtomicsOvertake,
    /// RESET leaves old completions in the CQ.
    ResetKeepsCompletions,
    /// Dropping a queue pair leaves its completions in the CQ.
    DropKeepsCompletions,
    /// WRITE with immediate data also writes the receive's buffers.
    WriteImmScatters,
    /// Datagrams are delivered whatever their key.
    QueueKeyIgnored,
    /// Targets serve any sender.
    AccessKeyIgnored,
    /// A queue never signals by itself.
    NoSignalOfItsOwn,
    /// A peer that is gone is not noticed.
    DeathUnnoticed,
}

impl Mutant {
    pub(super) const ALL: [(Self, &str); 21] = [
        (Self::SrqUsesOneBuffer, "pitfall_01_each_srq_message_has_its_own_buffer"),
        (Self::SrqDomainIgnored, "srq_has_a_domain_of_its_own"),
        (Self::UnsignaledFailuresVanish, "pitfall_04_unsignaled_failures_surface"),
        (Self::WriteSpills, "write_moves_every_size"),
        (Self::LastByteLost, "send_moves_every_size"),
        (Self::QueuePairRightsIgnored, "missing_rights_are_denied"),
        (Self::DomainsIgnored, "wrong_remote_keys_are_denied"),
        (Self::ArmIgnoresThePast, "arming_with_a_completion_waiting_fires"),
        (Self::EverythingIsSolicited, "solicited_filter_is_exact"),
        (Self::RnrForEver, "rnr_retries_run_out"),
        (Self::SqdIgnored, "sqd_holds_sends_until_rts"),
        (Self::SilentOverrun, "overrun_is_reported_and_contained"),
        (Self::FenceIgnored, "fence_waits_for_reads_and_atomics"),
        (Self::AtomicsOvertake, "atomics_keep_their_order"),
        (Self::ResetKeepsCompletions, "reset_queue_pair_is_reusable"),
        (Self::DropKeepsCompletions, "dropped_queue_pair_completes_nothing"),
        (Self::WriteImmScatters, "write_imm_leaves_the_receive_untouched"),
        (Self::QueueKeyIgnored, "datagram_with_a_wrong_key_is_dropped"),
        (Self::AccessKeyIgnored, "wrong_access_key_fails"),
        (Self::NoSignalOfItsOwn, "pitfall_06_sparse_signals_never_wedge_the_queue"),
        (Self::DeathUnnoticed, "destroyed_peer_exhausts_retries"),
    ];
}
