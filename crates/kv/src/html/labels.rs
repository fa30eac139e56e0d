//! Short names for cells: what all have in common is left out.

use std::collections::BTreeSet;

use crate::result::Cell;

/// The placement of the cores.
pub(super) fn regime(cell: &Cell) -> String {
    cell.regime.map_or_else(|| "unknown".to_owned(), |regime| regime.to_string())
}

/// One label per cell: the parts of its name that some cell has not, and its placement if they
/// differ.
pub(super) fn of(cells: &[Cell]) -> Vec<String> {
    let parts = |cell: &Cell| cell.name.split('/').map(str::to_owned).collect::<Vec<_>>();
    let mut common = cells.first().map(parts).unwrap_or_default();
    for cell in cells {
        let parts = parts(cell);
        common.retain(|part| parts.contains(part));
    }
    let regimes = cells.iter().map(regime).collect::<BTreeSet<_>>();
    let label = |cell: &Cell| {
        let backend = cell.config.backend.name().to_owned();
        let own = parts(cell).into_iter().filter(|part| !common.contains(part) && *part != backend);
        let mut label = vec![backend.clone()];
        label.extend(own);
        if regimes.len() > 1 {
            label.push(regime(cell));
        }
        label.join(" · ")
    };
    cells.iter().map(label).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::{reduce, samples};

    #[test]
    fn labels_say_what_differs() {
        let cells = reduce(&samples::results());
        assert_eq!(of(&cells), ["tcp · natural", "tcp · remote"]);
        assert_eq!(of(&cells[..1]), ["tcp"]);
    }
}
