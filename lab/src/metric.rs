//! Metrics: their names and units, and how they are shown.

use serde::Serialize;

/// Something that a run measures.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Metric {
    /// Its name in records, which ends with the unit.
    pub name: &'static str,
    /// For people, with a lower-case first letter.
    pub title: &'static str,
    /// The unit in output for people.
    pub unit: &'static str,
    /// How many of the record's units make one of those.
    pub scale: f64,
    /// Whether more is better.
    pub better: Better,
}

/// Which direction is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Better {
    /// As with throughput.
    More,
    /// As with latency.
    Less,
}

/// All of them.
pub const METRICS: &[Metric] = &[
    metric("throughput-bps", "throughput", "Gbit/s", 1e9, Better::More),
    metric("guest-min-bps", "throughput of the slowest guest", "Gbit/s", 1e9, Better::More),
    metric("fairness", "Jain's index of fairness", "", 1.0, Better::More),
    metric("packets-per-second", "packet rate", "Mpps", 1e6, Better::More),
    metric("samples-per-second", "sample rate", "k/s", 1e3, Better::More),
    metric("rtt-median-us", "median round trip", "µs", 1.0, Better::Less),
    metric("rtt-p99-us", "99th percentile of the round trip", "µs", 1.0, Better::Less),
    metric("rtt-max-us", "longest round trip", "µs", 1.0, Better::Less),
    // From when the backend first sees a request to its response, which releases the sender's
    // buffer.
    metric("completion-median-us", "median time to a response", "µs", 1.0, Better::Less),
    metric(
        "completion-p99-us",
        "99th percentile of the time to a response",
        "µs",
        1.0,
        Better::Less,
    ),
    metric("load-bps", "throughput of the load in both directions", "Gbit/s", 1e9, Better::More),
    metric("retransmits", "retransmitted segments", "", 1.0, Better::Less),
    metric("cpu-seconds-per-gbit", "CPU time per Gbit", "s", 1.0, Better::Less),
];

const fn metric(
    name: &'static str,
    title: &'static str,
    unit: &'static str,
    scale: f64,
    better: Better,
) -> Metric {
    Metric { name, title, unit, scale, better }
}

/// The metric of this name.
pub fn find(name: &str) -> Option<&'static Metric> {
    METRICS.iter().find(|metric| metric.name == name)
}

/// Names of all metrics.
pub fn names() -> Vec<&'static str> {
    METRICS.iter().map(|metric| metric.name).collect()
}

impl Metric {
    /// A value in the unit for people, without the unit.
    pub fn number(&self, value: f64) -> String {
        number(value / self.scale)
    }

    /// A deviation or an end of an interval, with as many decimals as the value it belongs to.
    pub fn number_beside(&self, value: f64, of: f64) -> String {
        let shown = self.number(of);
        let decimals = shown.split_once('.').map_or(0, |(_, decimals)| decimals.len());
        let value = value / self.scale;
        if value != 0.0 && value.abs() < 0.5 * 0.1_f64.powf(ringway_stats::float(decimals)) {
            return number(value);
        }
        // Numbers without decimals get their digits grouped.
        if decimals == 0 { grouped(value) } else { format!("{value:.decimals$}") }
    }

    /// A value with its unit.
    pub fn show(&self, value: f64) -> String {
        format!("{} {}", self.number(value), self.unit).trim_end().to_owned()
    }

    /// Title and unit, for an axis.
    pub fn axis_title(&self) -> String {
        let title = capitalised(self.title);
        if self.unit.is_empty() { title } else { format!("{title} in {}", self.unit) }
    }
}

/// Three digits: network measurements are no more precise than that.
pub fn number(value: f64) -> String {
    let size = value.abs();
    if !value.is_finite() {
        return "–".to_owned();
    }
    let text = if size >= 99.95 {
        format!("{value:.0}")
    } else if size >= 9.995 {
        format!("{value:.1}")
    } else if size >= 0.9995 || value == 0.0 {
        format!("{value:.2}")
    } else if size >= 0.099_95 {
        format!("{value:.3}")
    } else {
        format!("{value:.4}")
    };
    if text.contains('.') { text } else { grouped(value) }
}

/// Without decimals, and with a non-breaking space between groups of three digits in long numbers.
fn grouped(value: f64) -> String {
    let text = format!("{value:.0}");
    let digits = text.trim_start_matches('-');
    if digits.len() < 5 {
        return text;
    }
    let mut grouped = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            grouped.push('\u{202f}');
        }
        grouped.push(digit);
    }
    if text.starts_with('-') { format!("-{grouped}") } else { grouped }
}

/// With a capital first letter.
pub fn capitalised(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits_and_groups() {
        assert_eq!(number(9.4), "9.40");
        assert_eq!(number(0.01234), "0.0123");
        assert_eq!(number(0.939_41), "0.939");
        assert_eq!(number(12.345), "12.3");
        assert_eq!(number(1234.5), "1234");
        assert_eq!(number(60_000.0), "60\u{202f}000");
        assert_eq!(number(-1_234_567.0), "-1\u{202f}234\u{202f}567");
        assert_eq!(number(f64::NAN), "–");
        let throughput = find("throughput-bps").unwrap();
        assert_eq!(throughput.number_beside(0.0379e9, 1.88e9), "0.04");
        assert_eq!(throughput.number_beside(0.0019e9, 1.88e9), "0.0019");
        assert_eq!(throughput.number_beside(2.4e9, 1234e9), "2");
        assert_eq!(find("throughput-bps").unwrap().show(9.4e9), "9.40 Gbit/s");
    }
}
