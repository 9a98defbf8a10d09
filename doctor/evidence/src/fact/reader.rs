//! A saved host, and the reader of facts: settings and descriptions once, counters at both samples,
//! and only the pieces that a fact names.

use std::sync::Arc;
use std::time::Duration;

use super::Fact;
use crate::PROFILE;
use crate::links::Derived;
use crate::netlink::{CONNECTIONS, CONNECTIONS_COMMAND, qstats_path};
use crate::parse::Counters;
use crate::parse::ethtool::Statistics;
use crate::parse::sockets::Sockets;
use crate::{Gap, NicSettings, Piece, Source, Text};

/// An examined host.
#[derive(Debug, Clone)]
pub struct Host {
    saved: Arc<Saved>,
}

/// The evidence of a host.
#[derive(Debug)]
struct Saved {
    source: Source,
    samples: Vec<Sample>,
    /// Files of the host that follow from the output of tools.
    derived: Derived,
}

/// Reads the pieces of a host that one fact names, and no others.
#[derive(Debug, Clone)]
pub struct Reader {
    saved: Arc<Saved>,
    pieces: &'static [Piece],
}

/// When and where counters were read.
#[derive(Debug, Clone)]
struct Sample {
    /// `sample-1/`, or nothing for evidence that was collected once.
    prefix: String,
    /// Time of the monotonic clock.
    seconds: f64,
}

/// The samples that rates are computed from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Basis {
    /// Two samples of the same host.
    Samples,
    /// One sample: the average since boot, which may hide a bad minute.
    SinceBoot,
}

/// Counters at two moments.
#[derive(Debug)]
pub struct Span<T> {
    /// At the first; all zero if there is only one sample.
    pub before: T,
    /// At the last.
    pub after: T,
    /// Between them; above 0.
    pub seconds: f64,
    /// The samples that they come from.
    pub basis: Basis,
    /// The last text, to quote.
    pub text: Text,
}

impl<T> Span<T> {
    /// The earlier value of a counter. `None` if there is a first sample without it: growth before
    /// that sample must not count as growth since.
    pub fn past<V: Copy + Default>(&self, known: Option<&V>) -> Option<V> {
        match (known, self.basis) {
            (Some(value), _) => Some(*value),
            (None, Basis::SinceBoot) => Some(V::default()),
            (None, Basis::Samples) => None,
        }
    }
}

impl Host {
    /// A host from its evidence, which must have at least one sample, or the uptime instead.
    pub fn new(source: Source) -> Host {
        let mut samples: Vec<Sample> = ["sample-1/", "sample-2/"]
            .into_iter()
            .filter(|prefix| !source.list(prefix.trim_end_matches('/')).is_empty())
            .map(|prefix| {
                let monotonic = source.file(&format!("{prefix}monotonic")).ok();
                let seconds = monotonic.and_then(|monotonic| seconds(monotonic.value()));
                // A sample without its time gives no rate, and may not be the only one.
                Sample { prefix: prefix.to_owned(), seconds: seconds.unwrap_or(f64::NAN) }
            })
            .collect();
        if samples.is_empty() {
            let uptime = source.file("proc/uptime").ok();
            let seconds = uptime.and_then(|uptime| seconds(uptime.value()));
            // A sos report has the output of the tool, precise to the minute.
            let tool = || uptime_seconds(source.command("", &["uptime"]).ok()?.value());
            let seconds = seconds.or_else(tool).unwrap_or(0.0);
            samples.push(Sample { prefix: String::new(), seconds });
        }
        let derived = Derived::of(&source);
        Host { saved: Arc::new(Saved { source, samples, derived }) }
    }

    /// Reads a fact about this host.
    pub fn fact<F: Fact>(&self) -> Result<F, Gap> {
        F::read(&Reader { saved: Arc::clone(&self.saved), pieces: F::PIECES })
    }

    /// Seconds between the samples, if there are two.
    pub fn interval(&self) -> Option<Duration> {
        match self.saved.samples.as_slice() {
            [first, .., last] => Duration::try_from_secs_f64(last.seconds - first.seconds).ok(),
            _ => None,
        }
    }

    /// Why a readable setting could not be set where the evidence was collected; `None` if it
    /// could, or if that is unknown. `path` has no leading slash.
    pub fn read_only(&self, path: &str) -> Option<String> {
        self.saved.source.read_only(path)
    }
}

impl Reader {
    /// Reads a fact that this one is derived from.
    pub fn fact<F: Fact>(&self) -> Result<F, Gap> {
        F::read(&Reader { saved: Arc::clone(&self.saved), pieces: F::PIECES })
    }

    /// A file that holds a setting or a description.
    pub fn file(&self, path: &str) -> Result<Text, Gap> {
        self.named(path, |piece| piece.is_file(path))?;
        let found = self.saved.source.file(path);
        match self.saved.derived.files.get(path) {
            Some(text) if matches!(found, Err(Gap::Missing { .. })) => Ok(text.clone()),
            _ => found,
        }
    }

    /// Whether there is such a file.
    pub fn has(&self, path: &str) -> bool {
        self.named(path, |piece| piece.is_file(path)).is_ok()
            && (self.saved.source.has(path) || self.saved.derived.files.contains_key(path))
    }

    /// Why a directory, or a part of it, could not be read, if that was saved with the host.
    pub(super) fn refusal(&self, path: &str) -> Option<Gap> {
        self.named(path, |piece| piece.is_below(path)).ok()?;
        let why = self.saved.source.refusal(path)?;
        Some(Gap::Missing { file: format!("/{path}"), why })
    }

    /// The names in a directory of the evidence.
    pub fn list(&self, path: &str) -> Vec<String> {
        match self.named(path, |piece| piece.is_below(path)) {
            Ok(()) => {
                let mut names = self.saved.source.list(path);
                names.extend(self.saved.derived.list(path));
                names.sort_unstable();
                names.dedup();
                names
            }
            Err(_) => Vec::new(),
        }
    }

    /// What could not be read of the output of tools.
    pub(super) fn remarks(&self) -> &[String] {
        &self.saved.derived.remarks
    }

    /// The output of a tool of the manifest; the last one if it was run in both samples.
    pub fn command(&self, words: &[&str]) -> Result<Text, Gap> {
        self.command_at(self.last(), words)
    }

    /// A file of counters at the last sample.
    pub fn latest(&self, path: &str) -> Result<Text, Gap> {
        self.counted(self.last(), path)
    }

    /// Counters of a file at both moments.
    pub fn span<T: Counters + Default>(&self, path: &str) -> Result<Span<T>, Gap> {
        self.span_of(|sample| self.counted(sample, path))
    }

    /// Counters that a tool printed, at both moments.
    pub fn command_span<T: Counters + Default>(&self, words: &[&str]) -> Result<Span<T>, Gap> {
        self.span_of(|sample| self.command_at(sample, words))
    }

    /// Some settings of an interface, as reported by the kernel or a tool.
    pub fn settings(&self, nic: &str, settings: NicSettings) -> Result<Text, Gap> {
        let path = settings.path(nic);
        self.named(&path, |piece| piece.has(Piece::Settings(settings)))?;
        self.saved.source.reply("", &path, &settings.command(nic))
    }

    /// Counters of an interface's queues, as the kernel reports them, at both moments.
    pub fn qstats_span(&self, nic: &str) -> Result<Span<Statistics>, Gap> {
        let path = qstats_path(nic);
        self.span_of(|sample| self.sampled(sample, &path, &path))
    }

    /// Where the time of all CPUs goes.
    pub fn profile(&self) -> Result<Text, Gap> {
        self.named(PROFILE[1].join(" ").as_str(), |piece| piece.has(Piece::Profile))?;
        self.saved.source.command(&self.last().prefix, PROFILE[1])
    }

    /// Established TCP connections at the last sample.
    pub fn connections(&self) -> Result<Text, Gap> {
        self.connections_at(self.last())
    }

    /// Established TCP connections at both samples.
    pub fn connections_span(&self) -> Result<Span<Sockets>, Gap> {
        self.span_of(|sample| self.connections_at(sample))
    }

    fn command_at(&self, sample: &Sample, words: &[&str]) -> Result<Text, Gap> {
        self.named(&words.join(" "), |piece| piece.is_command(words))?;
        self.saved.source.command(&sample.prefix, words)
    }

    fn connections_at(&self, sample: &Sample) -> Result<Text, Gap> {
        self.named(CONNECTIONS, |piece| piece.has(Piece::Connections))?;
        self.saved.source.reply(&sample.prefix, CONNECTIONS, CONNECTIONS_COMMAND)
    }

    fn span_of<T: Counters + Default>(
        &self,
        read: impl Fn(&Sample) -> Result<Text, Gap>,
    ) -> Result<Span<T>, Gap> {
        let text = read(self.last())?;
        let after = T::parse(&text)?;
        let (before, seconds, basis) = match self.saved.samples.as_slice() {
            [first, .., last] => {
                (T::parse(&read(first)?)?, last.seconds - first.seconds, Basis::Samples)
            }
            _ => (T::default(), self.last().seconds, Basis::SinceBoot),
        };
        if seconds > 0.0 {
            return Ok(Span { before, after, seconds, basis, text });
        }
        let why = "no time passed between the samples, or the time is unknown";
        Err(text.unreadable(None, why))
    }

    fn counted(&self, sample: &Sample, path: &str) -> Result<Text, Gap> {
        // Shown with its path on the host, not with the one in the record.
        self.sampled(sample, path, &format!("/{path}"))
    }

    /// A file of a sample, shown as `origin`.
    fn sampled(&self, sample: &Sample, path: &str, origin: &str) -> Result<Text, Gap> {
        self.named(path, |piece| piece.is_file(path))?;
        let Sample { prefix, .. } = sample;
        if prefix.is_empty() {
            return self.saved.source.file(path);
        }
        let text = self.saved.source.file(&format!("{prefix}{path}"));
        text.map(|text| Text::new(origin, text.body())).map_err(|gap| match gap {
            Gap::Missing { why, .. } => {
                // What was refused is listed without its sample.
                let why = self.saved.source.refusal(path).unwrap_or(why);
                Gap::Missing { file: origin.to_owned(), why }
            }
            other => other,
        })
    }

    fn last(&self) -> &Sample {
        self.saved.samples.last().expect("a host has at least one sample")
    }

    /// Refuses anything that no piece of the fact covers: it would not be collected either.
    fn named(&self, what: &str, is_it: impl Fn(&Piece) -> bool) -> Result<(), Gap> {
        if self.pieces.iter().any(is_it) {
            return Ok(());
        }
        let why = "no fact names it, so it is not collected".to_owned();
        Err(Gap::Unreadable { file: what.to_owned(), line: None, why })
    }
}

/// The first number of a line, as seconds.
fn seconds(text: &str) -> Option<f64> {
    let seconds: f64 = text.split_whitespace().next()?.parse().ok()?;
    (seconds.is_finite() && seconds >= 0.0).then_some(seconds)
}

/// The time in ` 11:58:53 up 12 days,  4:11,  1 user,  load average: 0.1, 0.2, 0.3`.
fn uptime_seconds(text: &str) -> Option<f64> {
    let (_, since) = text.split_once(" up ")?;
    let mut seconds = 0.0;
    for part in since.split(',').map(str::trim).take_while(|part| !part.contains("user")) {
        let number = |text: &str| text.trim().parse::<u32>().ok().map(f64::from);
        seconds += match (part.split_once(':'), part.split_once(' ')) {
            (Some((hours, minutes)), _) => number(hours)? * 3600.0 + number(minutes)? * 60.0,
            (None, Some((days, "day" | "days"))) => number(days)? * 86_400.0,
            (None, Some((minutes, "min"))) => number(minutes)? * 60.0,
            _ => return None,
        };
    }
    (seconds > 0.0).then_some(seconds)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fact::Release;
    use crate::parse::cpu::CpuTimes;

    #[test]
    fn a_fact_reads_what_it_names_and_nothing_else() {
        let host =
            host(&[("proc/stat", "cpu0 1 0 0 0\n"), ("proc/version", "Linux version 6.1\n")]);
        let at = Reader { saved: host.saved, pieces: &[Piece::File("proc/version")] };
        assert!(at.file("proc/version").is_ok());
        let gap = at.file("proc/stat").expect_err("not named");
        assert!(gap.to_string().contains("no fact names it"), "{gap}");
        assert!(at.command(&["xl", "info"]).is_err_and(|gap| gap.to_string().contains("names")));
        assert!(!at.has("proc/stat") && at.list("sys/class/net").is_empty());
    }

    fn host(pieces: &[(&str, &str)]) -> Host {
        let own = |(path, text): &(&str, &str)| ((*path).to_owned(), (*text).to_owned());
        Host::new(Source::Memory(pieces.iter().map(own).collect()))
    }

    #[test]
    fn two_samples_make_a_span_that_is_quoted_by_the_hosts_path() {
        let host = host(&[
            ("sample-1/monotonic", "100.5\n"),
            ("sample-2/monotonic", "105.5\n"),
            ("sample-1/proc/stat", "cpu0 1 0 0 0\nintr 0\n"),
            ("sample-2/proc/stat", "cpu0 4 0 0 0\nintr 0\n"),
        ]);
        let span: Span<CpuTimes> = host.fact().expect("sound");
        assert_eq!((span.seconds, span.basis), (5.0, Basis::Samples));
        assert_eq!(span.after.cpus[&0].since(&span.before.cpus[&0]).total, 3);
        assert_eq!(span.text.quote(1).file, "/proc/stat");
    }

    #[test]
    fn one_sample_counts_since_boot_and_none_counts_nothing() {
        let once = host(&[("proc/uptime", "50.0 9\n"), ("proc/stat", "cpu0 4 0 0 0\nintr 0\n")]);
        let span: Span<CpuTimes> = once.fact().expect("sound");
        assert_eq!((span.seconds, span.basis), (50.0, Basis::SinceBoot));
        let timeless = host(&[("proc/stat", "cpu0 4 0 0 0\n")]);
        assert!(timeless.fact::<Span<CpuTimes>>().is_err());
    }

    #[test]
    fn uptime_is_read_as_the_tool_says_it() {
        let read = |text: &str| uptime_seconds(text);
        assert_eq!(read(" 11:58:53 up  4:11,  1 user,  load average: 1.0"), Some(15_060.0));
        assert_eq!(read(" 11:58:53 up 2 days, 45 min,  3 users"), Some(175_500.0));
        assert_eq!(read("11:58:53 up 1 day,  1:00,  0 users"), Some(90_000.0));
        for text in ["", "up", " up x", " up 0 min, 1 user", " up 99999999999:00, 1 user"] {
            assert_eq!(read(text), None, "{text:?}");
        }
    }

    #[test]
    fn samples_in_the_wrong_order_are_no_rate() {
        let host = host(&[
            ("sample-1/monotonic", "105\n"),
            ("sample-2/monotonic", "100\n"),
            ("sample-1/proc/stat", "cpu0 1 0 0 0\n"),
            ("sample-2/proc/stat", "cpu0 4 0 0 0\n"),
        ]);
        assert!(host.fact::<Span<CpuTimes>>().is_err());
        assert_eq!(host.interval(), None);
    }

    #[test]
    fn kernels_are_ordered_by_their_first_two_numbers() {
        let version = |host: Host| host.fact::<Release>().ok()?.version();
        let kernel = |text| version(host(&[("proc/sys/kernel/osrelease", text)]));
        assert_eq!(kernel("6.1.0-13-amd64\n"), Some((6, 1)));
        assert_eq!(kernel("3.13.0-95-generic\n"), Some((3, 13)));
        assert_eq!(kernel("x\n"), None);
        let old = host(&[("proc/version", "Linux version 4.4.0-36 (x)\n")]);
        assert_eq!(version(old), Some((4, 4)));
    }
}
