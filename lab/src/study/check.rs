//! Checks that a study can be run, before anything starts.

use std::collections::BTreeSet;

use super::{Comparison, Figure, FigureKind, Published, Study};
use crate::metric;
use crate::value::{Cell, Domain, PARAMETERS, Parameter, Value};

/// Cells of a study; more would take longer than anyone waits.
const CELLS_MAX: usize = 2_000;
/// Seconds of a run: a day.
const SECONDS_MAX: f64 = 86_400.0;
const REPEATS_MAX: u32 = 10_000;

impl Study {
    /// Reports the first fault, as a sentence with the remedy.
    pub(super) fn check(&self) -> Result<(), String> {
        self.check_name()?;
        self.check_parameters()?;
        self.check_axes()?;
        self.check_only()?;
        self.check_load()?;
        self.check_quick()?;
        self.check_left_out()?;
        self.published.iter().try_for_each(|published| self.check_published(published))?;
        self.comparison.iter().try_for_each(|comparison| self.check_comparison(comparison))?;
        self.figure.iter().try_for_each(|figure| self.check_figure(figure))?;
        refuse_twice("figure", self.figure.iter().map(|figure| figure.id.as_str()))
    }

    fn check_name(&self) -> Result<(), String> {
        refuse(!is_name(&self.id), || {
            format!("the id `{}` is not a valid name; use a-z, 0-9 and -", self.id)
        })?;
        let other = self.baselines.iter().find(|subject| !subject.is_baseline());
        refuse(other.is_some(), || {
            let name = other.map_or("", |subject| subject.id());
            format!("{name} is no baseline; remove it from baselines")
        })
    }

    fn check_parameters(&self) -> Result<(), String> {
        for (name, bundle) in &self.bundle {
            refuse(name.contains('.'), || {
                format!("the name of the bundle `{name}` contains a dot")
            })?;
            bundle.0.iter().try_for_each(|(name, value)| self.check_value(name, value))?;
        }
        self.setup.0.iter().try_for_each(|(name, value)| self.check_value(name, value))
    }

    fn check_axes(&self) -> Result<(), String> {
        refuse_twice("axis", self.axis.iter().map(|axis| axis.name.as_str()))?;
        let letters: Vec<String> =
            self.axis.iter().filter_map(|axis| Some(axis.short?.to_string())).collect();
        refuse_twice("short name", letters.iter().map(String::as_str))?;
        for axis in &self.axis {
            refuse(axis.values.is_empty(), || format!("the axis `{}` has no values", axis.name))?;
            let values: Vec<String> = axis.values.iter().map(Value::to_string).collect();
            refuse_twice("value", values.iter().map(String::as_str))?;
            axis.values.iter().try_for_each(|value| self.check_value(&axis.name, value))?;
            let is_count = matches!(axis.values[0], Value::Number(_));
            refuse(is_count != axis.short.is_some(), || {
                format!(
                    "the axis `{}`: numbers need a `short` letter, words must not have one",
                    axis.name
                )
            })?;
        }
        let words = self.axis.iter().filter(|axis| axis.short.is_none());
        let words: Vec<String> =
            words.flat_map(|axis| axis.values.iter().map(Value::to_string)).collect();
        refuse_twice("word of two axes", words.iter().map(String::as_str))?;
        for name in &self.baseline_axes {
            refuse(self.axis(name).is_none(), || {
                format!("`{name}` in baseline-axes is not an axis; {}", self.axis_names())
            })?;
        }
        let cells = self.axis.iter().try_fold(1_usize, |n, axis| n.checked_mul(axis.values.len()));
        refuse(cells.is_none_or(|cells| cells > CELLS_MAX), || {
            format!("more than {CELLS_MAX} cells; remove values of an axis")
        })
    }

    /// Values that are no longer in their axes stay here: cells without them are not excluded.
    fn check_only(&self) -> Result<(), String> {
        let parts = self.only.iter().flat_map(|one| std::iter::once(&one.cell).chain(&one.with));
        for (name, value) in parts.flat_map(|part| &part.0) {
            refuse(self.axis(name).is_none(), || {
                format!("`{name}` in only is not an axis; {}", self.axis_names())
            })?;
            self.check_value(name, value)?;
        }
        refuse(self.cells(self.primary()).is_empty(), || "only: no cell is left".to_owned())
    }

    /// Whether a parameter may have a value.
    fn check_value(&self, name: &str, value: &Value) -> Result<(), String> {
        let Some(parameter) = PARAMETERS.iter().find(|parameter| parameter.name == name) else {
            let names: Vec<&str> = PARAMETERS.iter().map(|parameter| parameter.name).collect();
            return Err(format!("there is no parameter `{name}`; there are {}", names.join(", ")));
        };
        let Parameter { domain, .. } = parameter;
        refuse(!domain.has(value), || format!("{name} = {value}: expected {domain}"))?;
        let text = value.to_string();
        let is_known = self.bundle.contains_key(&text) || self.settings.contains_key(&text);
        refuse(matches!(domain, Domain::Name) && !is_known, || {
            format!("{name} = {text}: explain it in [bundle.{text}] or [settings.{text}]")
        })
    }

    fn check_load(&self) -> Result<(), String> {
        let load = &self.load;
        check_seconds(load.seconds, load.warmup_seconds)?;
        check_metric(&load.metric)?;
        refuse(load.repeats == 0 || load.max_repeats > REPEATS_MAX, || {
            format!("repeats go from 1 to {REPEATS_MAX}")
        })?;
        refuse(
            load.budget_seconds.is_some_and(|seconds| seconds.is_nan() || seconds <= 0.0),
            || "budget-seconds is more than 0".to_owned(),
        )?;
        refuse(load.repeats > load.max_repeats, || {
            format!("repeats = {} is more than max-repeats = {}", load.repeats, load.max_repeats)
        })
    }

    fn check_quick(&self) -> Result<(), String> {
        check_seconds(self.quick.seconds, self.quick.warmup_seconds)?;
        refuse(self.quick.repeats == 0, || "quick.repeats is at least 1".to_owned())?;
        for (name, values) in &self.quick.axis {
            let axis = self.axis(name).map(|axis| &axis.values);
            let is_part = axis.is_some_and(|all| values.iter().all(|value| all.contains(value)));
            refuse(values.is_empty() || !is_part, || {
                format!("quick.axis.{name} is not a part of the values of the axis `{name}`")
            })?;
        }
        Ok(())
    }

    fn check_left_out(&self) -> Result<(), String> {
        self.left_out.iter().try_for_each(|one| {
            let axis = self.axis(&one.axis);
            refuse(axis.is_none_or(|axis| axis.values.contains(&one.value)), || {
                format!("left-out: {} = {} is in the matrix, or no axis", one.axis, one.value)
            })?;
            self.check_value(&one.axis, &one.value)
        })
    }

    fn check_published(&self, published: &Published) -> Result<(), String> {
        let of = format!("published from {}", published.source);
        check_metric(&published.metric)?;
        self.check_cell(&of, &published.cell, published.best_of.as_deref())?;
        let has_end = published.low.is_some() || published.high.is_some();
        let is_single = published.value.is_some() && !has_end;
        let is_range = published.value.is_none() && has_end;
        refuse(!is_single && !is_range, || {
            format!("{of}: a published figure has a value, or low or high or both")
        })
    }

    fn check_comparison(&self, comparison: &Comparison) -> Result<(), String> {
        check_metric(&comparison.metric)?;
        let name = format!("comparison `{}`", comparison.title);
        self.check_cell(&name, &comparison.of, None)?;
        self.check_cell(&name, &comparison.to, None)?;
        if comparison.old_row.is_some() {
            return Ok(());
        }
        refuse(comparison.source.is_none(), || format!("{name}: it has no `source`"))?;
        refuse(comparison.published.is_some() != comparison.said.is_some(), || {
            format!("{name}: `published` and `said` go together")
        })
    }

    /// Checks a cell of the matrix that names all axes except perhaps `open`.
    fn check_cell(&self, of: &str, cell: &Cell, open: Option<&str>) -> Result<(), String> {
        for axis in &self.axis {
            let value = cell.get(&axis.name);
            let is_open = open == Some(axis.name.as_str());
            refuse(value.is_none() && !is_open, || {
                format!("{of}: its cell has no `{}`", axis.name)
            })?;
            refuse(value.is_some_and(|value| is_open || !axis.values.contains(value)), || {
                format!("{of}: its cell is not in the matrix, see `{}`", axis.name)
            })?;
        }
        refuse(open.is_none() && !self.has(cell), || {
            format!("{of}: its cell is not in the matrix, see `only`")
        })?;
        let strange = cell.0.keys().find(|name| self.axis(name).is_none());
        refuse(strange.is_some() || open.is_some_and(|name| self.axis(name).is_none()), || {
            format!("{of}: its cell names something that is not an axis; {}", self.axis_names())
        })
    }

    fn check_figure(&self, figure: &Figure) -> Result<(), String> {
        let id = &figure.id;
        refuse(!is_name(id), || format!("the figure `{id}` has no name for a file"))?;
        check_metric(&figure.metric)?;
        let named = std::iter::once(&figure.x).chain(&figure.lines).chain(figure.filter.0.keys());
        for name in named {
            refuse(self.axis(name).is_none(), || {
                format!("figure `{id}`: `{name}` is no axis; {}", self.axis_names())
            })?;
        }
        let is_fixed = |name: &str| self.axis(name).is_none() || figure.filter.get(name).is_some();
        let open = ["streams", "queues"].into_iter().find(|name| !is_fixed(name));
        refuse(open.is_some() && figure.kind == FigureKind::Placement, || {
            let name = open.unwrap_or_default();
            format!("figure `{id}`: say of how many `{name}` it shows the splits, with `where`")
        })?;
        let drawn: BTreeSet<&str> = std::iter::once(figure.x.as_str())
            .chain(figure.lines.as_deref())
            .chain(figure.filter.0.keys().map(String::as_str))
            .collect();
        let open = self.axis.iter().find(|axis| !drawn.contains(axis.name.as_str()));
        refuse(open.is_some() && figure.kind != FigureKind::Placement, || {
            let name = open.map_or("", |axis| axis.name.as_str());
            format!("figure `{id}`: say which `{name}` it shows, with `where`")
        })
    }

    fn axis_names(&self) -> String {
        let names: Vec<&str> = self.axis.iter().map(|axis| axis.name.as_str()).collect();
        format!("there is {}", names.join(", "))
    }
}

fn check_seconds(seconds: f64, warmup_seconds: f64) -> Result<(), String> {
    refuse(!(seconds > 0.0 && seconds <= SECONDS_MAX), || {
        format!("seconds = {seconds}: expected more than 0 and at most {SECONDS_MAX}")
    })?;
    refuse(!(0.0..=SECONDS_MAX).contains(&warmup_seconds), || {
        format!("warmup-seconds = {warmup_seconds}: expected 0 to {SECONDS_MAX}")
    })
}

fn check_metric(name: &str) -> Result<(), String> {
    refuse(metric::find(name).is_none(), || {
        format!("there is no metric `{name}`; there are {}", metric::names().join(", "))
    })
}

fn refuse_twice<'a>(what: &str, names: impl Iterator<Item = &'a str>) -> Result<(), String> {
    let mut seen = BTreeSet::new();
    for name in names {
        refuse(!seen.insert(name), || format!("the {what} `{name}` occurs twice"))?;
    }
    Ok(())
}

fn refuse(is_wrong: bool, fault: impl FnOnce() -> String) -> Result<(), String> {
    if is_wrong { Err(fault()) } else { Ok(()) }
}

fn is_name(text: &str) -> bool {
    let is_letter = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    !text.is_empty() && text.chars().all(is_letter)
}
