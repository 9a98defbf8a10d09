//! A study describes a measurement in a few lines of TOML that anyone can edit.
//!
//! It names the places of sources that it checks, a topology, the parameters that it fixes
//! (`setup`) and those that it varies (`axis`), the published figures, and the figures to draw. The
//! shipped studies are in `studies/`.

mod check;
mod left_out;
mod only;
mod shipped;
mod subject;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::value::{Cell, Value, bits_per_second};
use crate::word::{Peers, name_of};
pub use left_out::LeftOut;
pub use only::Only;
pub use shipped::{ids, shipped, shipped_text};
pub use subject::Subject;

/// A study.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Study {
    /// Its name on the command line.
    pub id: String,
    /// Its name for people.
    pub title: String,
    /// The question that it asks, in a sentence or two.
    pub question: String,
    /// The places of sources that it checks, by their ids in `docs/sources.toml`, such as
    /// `multi-queue-study:tx-one-queue`. Records from before these ids have names of rows.
    #[serde(alias = "rows")]
    pub sources: Vec<String>,
    /// Other paths through the same machine, for comparison.
    #[serde(default)]
    pub baselines: Vec<Subject>,
    /// The axes that affect baselines: the number of queues, for one, does not.
    #[serde(default)]
    pub baseline_axes: Vec<String>,
    /// The connections between the ends.
    pub topology: Topology,
    /// The duration of runs and the number of repeats.
    pub load: Load,
    /// Parameters that are the same in all cells.
    #[serde(default)]
    pub setup: Cell,
    /// Parameters that vary; the cells are all combinations, but for those that `only` excludes.
    pub axis: Vec<Axis>,
    /// Values that only some cells have.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub only: Vec<Only>,
    /// Several parameters under one name, which is a value of an axis.
    #[serde(default)]
    pub bundle: BTreeMap<String, Cell>,
    /// Kernel settings under one name, which is a value of `tcp`: a sysctl and its value, or
    /// `txqueuelen`, `gso` or `gro` of the interface.
    #[serde(default)]
    pub settings: BTreeMap<String, BTreeMap<String, String>>,
    /// Figures that were published.
    #[serde(default)]
    pub published: Vec<Published>,
    /// Cells to compare with each other.
    #[serde(default)]
    pub comparison: Vec<Comparison>,
    /// The figures to draw.
    #[serde(default)]
    pub figure: Vec<Figure>,
    /// What `--quick` runs of all this; by default, short runs of every cell.
    #[serde(default)]
    pub quick: Quick,
    /// Values of axes that this machine cannot measure: the lab adds them when it removes such a
    /// value from its axis.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<LeftOut>,
}

/// The connections between the ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Topology {
    /// Its shape.
    pub kind: TopologyKind,
    /// What it represents, in a sentence.
    pub about: String,
}

/// The shape of a topology.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TopologyKind {
    /// Guests on the switch, whose uplink is a wire to another host.
    Wire,
    /// Guests on the switch that exchange traffic in pairs.
    Guests,
    /// A host, a guest that routes, and targets behind it.
    Router,
    /// A host, a guest that routes, and targets behind it, to which the host also has a path that
    /// bypasses that guest.
    RouterBypass,
    /// This machine as it is, and another one, over the network between them.
    InterHost,
}

impl TopologyKind {
    /// Whether there is a guest that routes.
    pub fn has_router(self) -> bool {
        matches!(self, TopologyKind::Router | TopologyKind::RouterBypass)
    }
}

/// How long a run takes, and how often it is repeated.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Load {
    /// Measured seconds.
    pub seconds: f64,
    /// Warm-up seconds before them.
    pub warmup_seconds: f64,
    /// Runs of every cell, at least.
    pub repeats: u32,
    /// Runs of a cell at most, if its interval is still too wide.
    pub max_repeats: u32,
    /// Time limit for all runs of a call, in seconds; `None` for no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget_seconds: Option<f64>,
    /// The primary metric, which decides whether a cell is repeated.
    pub metric: String,
}

/// A parameter that varies.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Axis {
    /// The parameter.
    pub name: String,
    /// The letter before its numbers in the short names of cells; words have no prefix.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub short: Option<char>,
    /// Its values.
    pub values: Vec<Value>,
}

/// A figure that was published.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Published {
    /// Its source: an id of `docs/sources.toml`, or free text.
    pub source: String,
    /// A quotation of it, or the tool that measured it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub said: Option<String>,
    /// The field of records from before these ids: read, and not used.
    #[serde(default, rename = "row", skip_serializing_if = "Option::is_none")]
    pub old_row: Option<String>,
    /// Its cell. If the cell does not name all axes, see `best_of`.
    pub cell: Cell,
    /// The axis over which the best value was published.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best_of: Option<String>,
    /// What was measured.
    pub metric: String,
    /// The figure itself, in the metric's unit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<f64>,
    /// Instead of it, the lower end of a published range.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub low: Option<f64>,
    /// The upper end of the range.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub high: Option<f64>,
    /// Why comparisons do not use it, where another source disagrees.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_used: Option<String>,
    /// Notes on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// Two cells whose ratio is of interest.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Comparison {
    /// The place of a source that it tests: an id of `docs/sources.toml`, or free text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// The field of records from before these ids: read, and not used.
    #[serde(default, rename = "row", skip_serializing_if = "Option::is_none")]
    pub old_row: Option<String>,
    /// What is compared, as in "8 queues against 1, with 8 streams".
    pub title: String,
    /// The numerator.
    pub of: Cell,
    /// The denominator.
    pub to: Cell,
    /// What was measured.
    pub metric: String,
    /// The published ratio, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub published: Option<f64>,
    /// A quotation of it; required with `published`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub said: Option<String>,
    /// Why the verdict does not use it, where another source disagrees.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_used: Option<String>,
    /// What the verdict adds if the ratio is significantly above 1, such as what avoids a loss.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub if_higher: Option<String>,
    /// What it adds if the ratio is significantly below 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub if_lower: Option<String>,
}

/// A figure to draw.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Figure {
    /// Its file name, without an extension.
    pub id: String,
    /// Its form.
    pub kind: FigureKind,
    /// Its title.
    pub title: String,
    /// The horizontal axis.
    pub x: String,
    /// The axis with a line, or a bar in each group, for each value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lines: Option<String>,
    /// What is drawn.
    pub metric: String,
    /// The cells that are drawn.
    #[serde(rename = "where", default, skip_serializing_if = "Cell::is_empty")]
    pub filter: Cell,
}

impl Cell {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// The form of a figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FigureKind {
    /// Means with bars of a standard deviation, joined by lines.
    Lines,
    /// Means as bars, with a standard deviation.
    Bars,
    /// Medians, quartiles and every run.
    Boxes,
    /// Every run by how its streams were split over queues, with the probabilities of the splits.
    Placement,
}

/// What `--quick` changes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Quick {
    /// Measured seconds.
    pub seconds: f64,
    /// Warm-up seconds before them.
    pub warmup_seconds: f64,
    /// Runs of every cell, within [`QUICK_BUDGET_SECONDS`].
    pub repeats: u32,
    /// Values of axes; the others keep theirs.
    #[serde(default)]
    pub axis: BTreeMap<String, Vec<Value>>,
}

impl Default for Quick {
    /// The values of shipped studies, with all values of all axes.
    fn default() -> Quick {
        Quick { seconds: 1.3, warmup_seconds: 0.5, repeats: 3, axis: BTreeMap::new() }
    }
}

/// Why a study cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum StudyError {
    /// No shipped study has this name.
    #[error("there is no study `{name}`; there are {}", ids().join(", "))]
    Unknown {
        /// The requested name.
        name: String,
    },
    /// The file cannot be read.
    #[error("cannot read the study {}: {error}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// It is not TOML, or not a study.
    #[error("{name} is not a study: {error}")]
    Malformed {
        /// The file.
        name: String,
        /// The fault and its position.
        error: Box<toml::de::Error>,
    },
    /// It contradicts itself, or refers to something that does not exist.
    #[error("{name}: {fault}")]
    Impossible {
        /// The file.
        name: String,
        /// What is wrong, and the valid alternatives.
        fault: String,
    },
}

/// Time limit of `--quick` for all runs: two minutes, less the time to start, to end the last run
/// and to draw.
pub const QUICK_BUDGET_SECONDS: f64 = 105.0;

/// The short name of the cell without axes.
const NO_AXES: &str = "any";

impl Study {
    /// Reads and checks a study from a file.
    pub fn read(path: &Path) -> Result<Study, StudyError> {
        let text = fs::read_to_string(path)
            .map_err(|error| StudyError::Unreadable { path: path.to_owned(), error })?;
        Study::parse(&path.display().to_string(), &text)
    }

    /// Reads and checks a study from text; `name` is for messages.
    pub fn parse(name: &str, text: &str) -> Result<Study, StudyError> {
        let study: Study = toml::from_str(text).map_err(|error| StudyError::Malformed {
            name: name.to_owned(),
            error: Box::new(error),
        })?;
        let impossible = |fault| StudyError::Impossible { name: name.to_owned(), fault };
        study.check().map_err(impossible)?;
        Ok(study)
    }

    /// This study as `--quick` runs it.
    #[must_use]
    pub fn quick(&self) -> Study {
        let mut study = self.clone();
        for axis in &mut study.axis {
            if let Some(values) = self.quick.axis.get(&axis.name) {
                axis.values.clone_from(values);
            }
        }
        study.load.seconds = self.quick.seconds;
        study.load.warmup_seconds = self.quick.warmup_seconds;
        study.load.repeats = self.quick.repeats;
        study.load.max_repeats = self.quick.repeats;
        study.load.budget_seconds = Some(QUICK_BUDGET_SECONDS);
        study.leave_out_impossible();
        study
    }

    /// This study with another rate of the wire.
    ///
    /// # Errors
    /// If it has no wire, or varies the rate itself.
    pub fn with_line(&self, rate: &str) -> Result<Study, String> {
        if matches!(self.topology.kind, TopologyKind::Guests | TopologyKind::InterHost) {
            return Err(format!("`{}` has no wire, so it has no line rate", self.id));
        }
        if self.axis("line").is_some() {
            return Err(format!("`{}` varies the line rate itself", self.id));
        }
        if rate != "none" && bits_per_second(rate).is_none() {
            return Err(format!(
                "`{rate}` is not a rate with its unit; expected one such as 10Gb/s, or none"
            ));
        }
        Ok(Study { setup: self.setup.with("line", rate), ..self.clone() })
    }

    /// Whether this study can continue the records of `other`: they may differ only in limits of
    /// repeats and time, in their citations, and in the reasons for what is left out.
    #[must_use]
    pub fn goes_on(&self, other: &Study) -> bool {
        let Load { repeats, max_repeats, budget_seconds, .. } = self.load;
        let load = Load { repeats, max_repeats, budget_seconds, ..other.load.clone() };
        let left_out = self.left_out.clone();
        self.uncited() == Study { load, left_out, ..other.uncited() }
    }

    /// This study without its sources.
    fn uncited(&self) -> Study {
        let mut study = self.clone();
        study.sources.clear();
        for one in &mut study.published {
            one.source.clear();
            (one.said, one.old_row) = (None, None);
        }
        for one in &mut study.comparison {
            (one.source, one.said, one.old_row) = (None, None, None);
        }
        study
    }

    /// Removes everything about cells that are no longer in the matrix.
    pub(crate) fn leave_out_impossible(&mut self) {
        let axes = self.axis.clone();
        let is_possible = |cell: &Cell| {
            axes.iter()
                .all(|axis| cell.get(&axis.name).is_none_or(|value| axis.values.contains(value)))
        };
        for axis in &axes {
            if let Some(quick) = self.quick.axis.get_mut(&axis.name) {
                quick.retain(|value| axis.values.contains(value));
            }
        }
        self.quick.axis.retain(|_, values| !values.is_empty());
        self.published.retain(|published| is_possible(&published.cell));
        self.comparison.retain(|one| is_possible(&one.of) && is_possible(&one.to));
        self.figure.retain(|figure| is_possible(&figure.filter));
    }

    /// Whether the streams need not cross the guest that routes, so that their figures do not
    /// measure it.
    pub fn is_around_router(&self) -> bool {
        self.topology.kind == TopologyKind::RouterBypass
    }

    /// The published figures that its own can be compared with: those of a router cannot be, if
    /// streams go around it.
    pub fn comparable(&self) -> &[Published] {
        if self.is_around_router() { &[] } else { &self.published }
    }

    /// The axis of this name.
    pub fn axis(&self, name: &str) -> Option<&Axis> {
        self.axis.iter().find(|axis| axis.name == name)
    }

    /// All cells of a subject, in the order of the axes: the last one varies fastest.
    pub fn cells(&self, subject: Subject) -> Vec<Cell> {
        let mut cells = vec![Cell::default()];
        for axis in self.axis.iter().filter(|axis| self.has_axis(subject, &axis.name)) {
            let with_each = |cell: &Cell| {
                axis.values.iter().map(|value| cell.with(&axis.name, value.clone())).collect()
            };
            cells = cells.iter().flat_map::<Vec<Cell>, _>(with_each).collect();
        }
        cells.retain(|cell| self.has(cell));
        cells
    }

    /// The subjects to measure: the baselines last.
    pub fn subjects(&self) -> Vec<Subject> {
        std::iter::once(self.primary()).chain(self.baselines.iter().copied()).collect()
    }

    /// The subject that is measured for its own sake.
    pub fn primary(&self) -> Subject {
        match self.topology.kind {
            TopologyKind::InterHost => Subject::Machine,
            _ => Subject::Ringway,
        }
    }

    /// All cells of all subjects.
    pub fn matrix(&self) -> impl Iterator<Item = (Subject, Cell)> {
        let of = |subject| self.cells(subject).into_iter().map(move |cell| (subject, cell));
        self.subjects().into_iter().flat_map(of)
    }

    /// The cell of a subject that a cell of ringway's is compared with.
    #[must_use]
    pub fn projected(&self, cell: &Cell, subject: Subject) -> Cell {
        cell.retained(|name| self.has_axis(subject, name))
    }

    fn has_axis(&self, subject: Subject, name: &str) -> bool {
        !subject.is_baseline() || self.baseline_axes.iter().any(|axis| axis == name)
    }

    /// All parameters of a cell: those of the study, of the bundles that the cell names, and its
    /// own. Later ones take precedence.
    #[must_use]
    pub fn setup(&self, cell: &Cell) -> Cell {
        let bundles = cell.0.values().filter_map(|value| self.bundle.get(&value.to_string()));
        bundles.fold(self.setup.clone(), |setup, bundle| setup.overlaid(bundle)).overlaid(cell)
    }

    /// The short name of a cell, such as `q4.s8`. The cell without axes is `any`.
    pub fn label(&self, cell: &Cell) -> String {
        let parts = self.axis.iter().filter_map(|axis| {
            let value = cell.get(&axis.name)?;
            Some(axis.short.map_or_else(|| value.to_string(), |letter| format!("{letter}{value}")))
        });
        let label = parts.collect::<Vec<_>>().join(".");
        if label.is_empty() { NO_AXES.to_owned() } else { label }
    }

    /// The cell of a short name.
    pub fn cell_of_label(&self, label: &str) -> Option<Cell> {
        if label == NO_AXES {
            return Some(Cell::default());
        }
        let mut cell = Cell::default();
        for part in label.split('.') {
            let (axis, value) = self.axis.iter().find_map(|axis| {
                let named = |value: &&Value| match axis.short {
                    Some(letter) => format!("{letter}{value}") == part,
                    None => value.to_string() == part,
                };
                Some((axis, axis.values.iter().find(named)?))
            })?;
            cell = cell.with(&axis.name, value.clone());
        }
        Some(cell).filter(|cell| self.has(cell))
    }

    /// CPUs that a cell would keep busy at the same time, by a rule of thumb: for each guest a
    /// sender and a receiver, and for each queue that can have a stream the threads of both of its
    /// ends. On a machine with fewer, the CPUs limit the result, not the queues
    /// (`multi-queue-study:guest-cpus`, `multi-queue-study:conclusion`,
    /// `multi-queue-series:conditions`).
    pub fn cpus_wanted(&self, cell: &Cell) -> u64 {
        let setup = self.setup(cell);
        let count = |name| setup.number(name).unwrap_or(1).max(1);
        let load = setup.number("load").unwrap_or(0);
        let streams = (count("streams") + load) * count("targets");
        let busy_queues = count("queues").min(streams);
        let has_pairs = setup.text("peers") == Some(name_of(Peers::Guests));
        let vifs = match self.topology.kind {
            TopologyKind::Wire if has_pairs => 2,
            TopologyKind::RouterBypass | TopologyKind::InterHost => 0,
            TopologyKind::Wire => 1,
            TopologyKind::Guests | TopologyKind::Router => 2,
        };
        count("guests") * (2 + busy_queues * (1 + vifs))
    }

    /// As TOML, for the copy that goes with the records.
    pub fn to_toml(&self) -> String {
        toml::to_string_pretty(self).expect("a study has no maps with keys that are not strings")
    }
}

#[cfg(test)]
mod tests;
