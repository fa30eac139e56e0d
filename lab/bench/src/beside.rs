//! What a ConnectX-7 had, beside cells of the same shape.

use measure::reference::LOOPBACK;

use crate::results::Metric;

/// How the numbers are to be read.
pub const NOTE: &str = "reference: a ConnectX-7 that talks to itself, two threads of a Xeon Gold 6530, as measured there, \
                        beside cells of the same shape; other hardware, so no ratio is formed";

/// The number that stands beside a cell, in the cell's unit.
#[must_use]
pub fn of_cell(name: &str, metric: Metric) -> Option<f64> {
    let card = &LOOPBACK;
    let ns = match name {
        "rate/rc-send/32B/doorbell-batched" => card.send,
        "rate/rc-send/32B/doorbell-each" => card.send_doorbell_each,
        "rate/rc-write-imm/32B/doorbell-batched" => card.write_imm,
        "rate/ud-send/32B/doorbell-batched" => card.ud_send,
        "round-trip/rc-send/32B" => card.round_trip,
        "round-trip/ud-send/32B" => card.ud_round_trip,
        "rpc/1-endpoint-qd1/32B" | "copyrpc/1-lane-qd1/32B" => card.call,
        "rpc/1-endpoint-qd32/32B" | "copyrpc/1-lane-qd32/32B" => card.call_of_32,
        "erpc/1-lane-qd1/32B" => card.erpc_call,
        _ => {
            let depth = name.strip_prefix("erpc/1-lane-qd")?.strip_suffix("/32B")?;
            let depth = depth.parse::<u16>().ok()?;
            card.erpc_calls.iter().find(|(of, _)| *of == depth)?.1
        }
    };
    Some(if metric == Metric::Rate { 1e3 / ns } else { ns })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan;

    #[test]
    fn raw_operations_have_what_a_card_had_in_the_unit_of_their_cell() {
        let cells = plan::verbs(true);
        let reference = |name: &str| {
            let planned = cells.iter().find(|planned| planned.cell.name == name).unwrap();
            planned.cell.reference
        };
        // As the source has them besides, in M/s and ns.
        for (name, expected) in [
            ("rate/rc-send/32B/doorbell-batched", 19.7),
            ("rate/rc-send/32B/doorbell-each", 7.75),
            ("rate/rc-write-imm/32B/doorbell-batched", 17.7),
            ("rate/ud-send/32B/doorbell-batched", 20.0),
            ("round-trip/rc-send/32B", 2970.0),
            ("round-trip/ud-send/32B", 3050.0),
        ] {
            let found = reference(name).unwrap();
            assert!((found / expected - 1.0).abs() < 0.005, "{name}: {found}");
        }
        // Their doorbells, sizes or calls in flight are others, or not known.
        for name in ["rate/rc-write-imm/32B/doorbell-each", "bandwidth/rc-write/1MiB"] {
            assert_eq!(reference(name), None, "{name}");
        }
        assert_eq!(of_cell("erpc/1-lane-qd16/32B", Metric::Rate), Some(1e3 / 375.0));
        assert_eq!(of_cell("erpc/1-lane-qd32/32B", Metric::Rate), None);
    }
}
