//! Cells that a study names and this machine cannot measure: they are not in the matrix, and the
//! study keeps the reason.

use serde::{Deserialize, Serialize};

use super::{Study, Subject};
use crate::value::{Cell, Value};

/// A value of an axis whose cells are left out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct LeftOut {
    /// The axis.
    pub axis: String,
    /// The value.
    pub value: Value,
    /// Why, as a sentence that names what is left out.
    pub reason: String,
}

impl Study {
    /// The cells that are left out, each with the reason.
    pub fn left_out_cells(&self) -> Vec<(Subject, Cell, &str)> {
        let whole = self.whole();
        let with_reason =
            |(subject, cell): (Subject, Cell)| self.reason(&cell).map(|why| (subject, cell, why));
        whole.matrix().filter_map(with_reason).collect()
    }

    /// Why the cell of a short name is left out; `None` if it is not.
    pub fn why_left_out(&self, label: &str) -> Option<&str> {
        self.reason(&self.whole().cell_of_label(label)?)
    }

    fn reason(&self, cell: &Cell) -> Option<&str> {
        let is_in = |one: &&LeftOut| cell.get(&one.axis) == Some(&one.value);
        self.left_out.iter().find(is_in).map(|one| one.reason.as_str())
    }

    /// This study with the values that are left out.
    fn whole(&self) -> Study {
        let mut whole = self.clone();
        for one in &self.left_out {
            let axis = whole.axis.iter_mut().find(|axis| axis.name == one.axis);
            if let Some(axis) = axis.filter(|axis| !axis.values.contains(&one.value)) {
                axis.values.push(one.value.clone());
            }
        }
        whole
    }
}
