//! The suite that every NIC must pass: it defines what "works" means.
//!
//! A *scenario* is a dialogue of two [`Role`]s, each with a NIC of its own, that also have a byte
//! channel beside the NICs ([`OutOfBand`]) to name addresses and to meet. One function plays both
//! roles, so that what one side does stands next to what the other side expects:
//!
//! ```text
//!            fn scenario(side)                      the same function
//!   Client ── Side ── Nic ════════ fabric ════════ Nic ── Side ── Server
//!              └───────────── out of band ──────────────────┘
//!   runs as two threads ([`run_threads`]) or two processes ([`run_processes`])
//! ```
//!
//! Scenarios see nothing but the traits of [`verbs`]. They assume no timing: every wait has a
//! generous deadline, "nothing happens" is watched for [`Testbed::quiet`], and waiting polls the
//! completion queue, because an embedded NIC works only while it is called. The data of every
//! operation is checked, and so are the guard zones around every buffer.
//!
//! A crate that implements [`Nic`] instantiates the suite, one test per scenario and mode:
//!
//! ```ignore
//! conformance::suite!(inline_drive, open_inline_nic, conformance::Testbed::FULL);
//! ```
//!
//! A NIC claims capabilities ([`verbs::Capabilities`]). A scenario that needs more is skipped, says so, and
//! is counted. Its capability stands in [`Testbed::absent`] too: a NIC that claims one that the testbed says
//! is absent fails, and so does one that does not claim what the testbed expects.
//!
//! Tests of what uses a NIC put [`wrapped::Wrapped`] around one.

#![forbid(unsafe_code)]

mod cq;
mod data;
mod dc;
mod death;
mod end;
mod events;
mod harness;
#[cfg(test)]
mod model;
mod oob;
mod port_options;
mod process;
mod rc_data;
mod rc_errors;
mod rc_order;
mod srq;
mod state;
mod teardown;
mod threads;
mod ud;
mod verdict;
pub mod wrapped;

use verbs::Nic;

pub use data::{Buffer, Rng, pattern};
pub use death::peer_death;
pub use harness::{NicPlace, Role, Side, Stop, Testbed, Verdict};
pub use oob::{OutOfBand, RoleGone};
pub use port_options::port_options;
pub use process::run_processes;
pub use threads::{MakeNic, NotPassed, run_threads, try_threads};

/// Plays one role; which one, [`Side::role`] says.
pub type Scenario<N> = fn(&mut Side<N>) -> Verdict;

/// Passes the list of scenarios, `theme: names;`, to a macro: the only place that names them.
#[doc(hidden)]
#[macro_export]
macro_rules! for_each_scenario {
    ($callback:path, $($args:tt)*) => {
        $callback! { ($($args)*)
            rc_data:
                send_moves_every_size,
                write_moves_every_size,
                write_imm_leaves_the_receive_untouched,
                read_moves_every_size,
                atomics_return_the_old_value,
                atomics_of_two_queue_pairs_do_not_interfere,
                nop_completes_in_order,
                gather_and_scatter_keep_the_order,
                read_scatters,
                inline_payload_is_copied_while_posting,
                loopback_inside_one_nic;
            rc_order:
                write_is_visible_when_a_later_send_completes,
                last_word_of_a_write_arrives_last,
                signaled_completion_covers_unsignaled_ones,
                fence_waits_for_reads_and_atomics,
                atomics_keep_their_order,
                nothing_happens_before_the_doorbell,
                pitfall_03_every_batch_rings,
                rings_and_16_bit_counters_wrap,
                cq_index_wraps_at_24_bits,
                full_send_queue_recovers,
                both_directions_at_once;
            rc_errors:
                wrong_remote_keys_are_denied,
                remote_bounds_are_exact,
                remote_length_overflow_is_denied,
                missing_rights_are_denied,
                unaligned_atomics_are_invalid,
                pitfall_04_unsignaled_failures_surface,
                pitfall_05_empty_entry_has_no_bytes,
                too_long_send_fails_at_both_ends,
                local_protection_is_checked,
                bad_receive_buffer_fails_at_both_ends,
                sender_waits_for_a_late_receive,
                rnr_retries_run_out,
                destroyed_peer_exhausts_retries,
                error_state_flushes_everything,
                deregistered_memory_is_not_written;
            state:
                capabilities_are_what_the_testbed_says,
                port_is_addressed_as_it_is_described,
                only_the_arrows_of_the_table_exist,
                posting_too_early_is_refused,
                malformed_requests_are_refused,
                full_receive_queue_recovers,
                sqd_holds_sends_until_rts,
                reset_queue_pair_is_reusable,
                dropped_queue_pair_completes_nothing;
            srq:
                pitfall_01_each_srq_message_has_its_own_buffer,
                srq_serves_several_queue_pairs,
                empty_srq_makes_the_sender_wait,
                srq_survives_a_failed_queue_pair,
                srq_has_a_domain_of_its_own;
            cq:
                shared_cq_attributes_every_completion,
                pitfall_14_cq_holds_what_can_complete_into_it,
                overrun_is_reported_and_contained,
                rings_of_completions_wrap,
                small_payload_may_come_in_the_completion;
            events:
                no_wakeup_is_lost,
                arming_with_a_completion_waiting_fires,
                solicited_filter_is_exact,
                arming_needs_a_channel;
            ud:
                datagram_carries_data_and_source,
                datagram_without_a_receive_is_dropped,
                datagram_with_a_wrong_key_is_dropped,
                datagram_above_the_mtu_is_refused,
                short_receive_is_not_overrun,
                ud_refuses_what_it_cannot_do;
            dc:
                initiator_does_every_operation,
                wrong_access_key_fails,
                pitfall_06_sparse_signals_never_wedge_the_queue,
                dc_refuses_what_it_cannot_do;
            teardown: objects_end_in_any_order, objects_are_reclaimed;
        }
    };
}

/// Defines [`scenarios`] from the list.
macro_rules! define_registry {
    (() $($theme:ident: $($name:ident),*;)*) => {
        /// Every scenario, by name.
        #[must_use]
        pub fn scenarios<N: Nic>() -> Vec<(&'static str, Scenario<N>)> {
            vec![$($((stringify!($name), $theme::$name::<N> as Scenario<N>)),*),*]
        }
    };
}
for_each_scenario!(define_registry,);

/// The scenario of that name.
///
/// # Panics
///
/// If there is none.
#[must_use]
pub fn scenario<N: Nic>(name: &str) -> Scenario<N> {
    let found = scenarios().into_iter().find(|(known, _)| *known == name);
    found.unwrap_or_else(|| panic!("no scenario is called {name}")).1
}

/// Makes a module of tests that run the suite on one NIC: `$module::threads::*`,
/// `$module::processes::*` and `$module::processes::peer_death`.
///
/// `$make_nic` is a function `fn(&NicPlace) -> impl Nic`, and `$testbed` a [`Testbed`]; both are paths or expressions that are valid where the macro is used.
/// An attribute before the module's name is put before each test, such as `#[ignore]`.
#[macro_export]
macro_rules! suite {
    ($(#[$attribute:meta])? $module:ident, $make_nic:expr, $testbed:expr) => {
        mod $module {
            #[allow(
                unused_imports,
                reason = "the arguments may name things of the outer module"
            )]
            use super::*;
            mod threads {
                #[allow(unused_imports, reason = "as above")]
                use super::*;
                $crate::for_each_scenario!(
                    $crate::suite_mode,
                    $(#[$attribute])? threads, $make_nic, $testbed
                );
            }
            mod processes {
                #[allow(unused_imports, reason = "as above")]
                use super::*;
                $crate::for_each_scenario!(
                    $crate::suite_mode,
                    $(#[$attribute])? processes, $make_nic, $testbed
                );

                $(#[$attribute])?
                #[test]
                fn peer_death() {
                    let path = concat!(module_path!(), "::peer_death");
                    $crate::peer_death(path, $make_nic, &$testbed);
                }
            }
        }
    };
}

/// Makes a module of tests that run some scenarios on one NIC: those which a variant of its configuration
/// could break. `$module::threads::*` and `$module::processes::*`.
#[macro_export]
macro_rules! suite_part {
    ($module:ident, $make_nic:expr, $testbed:expr, [$($name:ident),* $(,)?]) => {
        mod $module {
            #[allow(
                unused_imports,
                reason = "the arguments may name things of the outer module"
            )]
            use super::*;
            mod threads {
                #[allow(unused_imports, reason = "as above")]
                use super::*;
                $crate::suite_mode! { (threads, $make_nic, $testbed) some: $($name),*; }
            }
            mod processes {
                #[allow(unused_imports, reason = "as above")]
                use super::*;
                $crate::suite_mode! { (processes, $make_nic, $testbed) some: $($name),*; }
            }
        }
    };
}

/// One test per scenario; part of [`suite`].
#[doc(hidden)]
#[macro_export]
macro_rules! suite_mode {
    (($mode:ident, $make_nic:expr, $testbed:expr) $($theme:ident: $($name:ident),*;)*) => {
        $($($crate::suite_test!($mode, $name, $make_nic, $testbed);)*)*
    };
    ((#[$attribute:meta] $mode:ident, $make_nic:expr, $testbed:expr)
        $($theme:ident: $($name:ident),*;)*) => {
        $($($crate::suite_test!(#[$attribute] $mode, $name, $make_nic, $testbed);)*)*
    };
}

/// One test; part of [`suite`].
#[doc(hidden)]
#[macro_export]
macro_rules! suite_test {
    ($(#[$attribute:meta])? threads, $name:ident, $make_nic:expr, $testbed:expr) => {
        $(#[$attribute])?
        #[test]
        fn $name() {
            let name = stringify!($name);
            let scenario = $crate::scenario(name);
            $crate::run_threads(name, scenario, $make_nic, &$testbed);
        }
    };
    ($(#[$attribute:meta])? processes, $name:ident, $make_nic:expr, $testbed:expr) => {
        $(#[$attribute])?
        #[test]
        fn $name() {
            let path = concat!(module_path!(), "::", stringify!($name));
            let scenario = $crate::scenario(stringify!($name));
            $crate::run_processes(path, scenario, $make_nic, &$testbed);
        }
    };
}
