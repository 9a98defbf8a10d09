//! The progress of a study and when it ends: a bar on a terminal, lines elsewhere.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use jiff::{SignedDuration, Zoned};
use ringway_stats::float;

use crate::plan;

pub(crate) struct Progress {
    bar: Option<ProgressBar>,
    overheads: Vec<f64>,
    /// When all runs must have ended; `None` without a limit.
    latest: Option<Zoned>,
}

impl Progress {
    /// Starts the progress display for runs that may take this many seconds in all.
    pub(crate) fn start(seconds: f64) -> Progress {
        let bar = std::io::stderr().is_terminal().then(|| {
            let style = ProgressStyle::with_template("{bar:30} {pos}/{len}  {msg}");
            let bar = ProgressBar::new(0);
            bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
            bar.enable_steady_tick(Duration::from_millis(500));
            bar
        });
        let latest = SignedDuration::try_from_secs_f64(seconds).ok();
        let latest = latest.and_then(|left| Zoned::now().checked_add(left).ok());
        Progress { bar, overheads: Vec::new(), latest }
    }

    /// Shows that a run begins.
    pub(crate) fn begin(&self, what: &str, progress: &plan::Progress) {
        let Some(bar) = &self.bar else { return };
        bar.set_length(u64::try_from(progress.done + progress.left).unwrap_or(u64::MAX));
        bar.set_position(u64::try_from(progress.done).unwrap_or(u64::MAX));
        bar.set_message(format!("{what}, {}", self.end(progress)));
    }

    /// Records how many seconds a run took beyond those of its load.
    pub(crate) fn took(&mut self, overhead_seconds: f64) {
        self.overheads.push(overhead_seconds);
    }

    /// Prints a sentence that stays on the screen.
    pub(crate) fn say(&self, text: &str, progress: &plan::Progress) {
        match &self.bar {
            Some(bar) => bar.println(text),
            None => {
                let all = progress.done + progress.left;
                eprintln!("{}/{all} {text}, {}", progress.done, self.end(progress));
            }
        }
    }

    pub(crate) fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }

    fn end(&self, progress: &plan::Progress) -> String {
        let overhead = match self.overheads[..] {
            [] => plan::OVERHEAD_SECONDS,
            ref overheads => ringway_stats::mean(overheads),
        };
        let seconds = progress.seconds_left + float(progress.left) * overhead;
        let left = SignedDuration::try_from_secs_f64(seconds).unwrap_or(SignedDuration::MAX);
        match Zoned::now().checked_add(left) {
            Ok(end) => {
                let end = self.latest.as_ref().map_or(&end, |latest| latest.min(&end));
                let form = if seconds < 72_000.0 { "%H:%M:%S" } else { "%F %H:%M" };
                format!("ends {}", end.strftime(form))
            }
            Err(_) => "ends in a long time".to_owned(),
        }
    }
}
