//! Values of axes that only some cells have, because all combinations would take too long.

use serde::{Deserialize, Serialize};

use super::Study;
use crate::value::Cell;

/// Cells of which only some are in the matrix.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Only {
    /// The values that these cells have.
    pub cell: Cell,
    /// Those that are in the matrix also have all values of one of these.
    pub with: Vec<Cell>,
}

impl Study {
    /// Whether a cell that has values of the axes is in the matrix.
    pub(super) fn has(&self, cell: &Cell) -> bool {
        let allows =
            |one: &Only| !cell.matches(&one.cell) || one.with.iter().any(|part| cell.matches(part));
        self.only.iter().all(allows)
    }
}
