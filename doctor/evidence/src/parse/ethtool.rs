//! Features, channels, rings and statistics, from netlink or from `ethtool`.

use std::collections::BTreeMap;

use super::{Counters, reply_lines};
use crate::netlink::QSTATS;
use crate::{Gap, NicSettings, Text};

/// Offloads.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Features {
    features: BTreeMap<String, Feature>,
}

/// One offload.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Feature {
    /// Active.
    pub is_on: bool,
    /// It cannot be changed: the driver, the other side or another offload prevents that.
    pub is_fixed: bool,
    /// A program requested the other value, and something prevents it.
    pub is_requested: bool,
    /// Its line in the output.
    pub line: usize,
}

impl Features {
    /// By its name in `ethtool -k`, or the kernel's.
    pub fn get(&self, name: &str) -> Option<Feature> {
        self.features.get(name).copied()
    }

    /// Parses the kernel's reply, or the output of `ethtool -k`.
    pub fn parse(text: &Text) -> Result<Features, Gap> {
        let mut features = BTreeMap::new();
        let rows = match reply_lines(text, NicSettings::Features.name())? {
            Some(rows) => rows,
            None => body(text, "Features for ")?.collect(),
        };
        for (line, row) in rows {
            let (name, value) = pair(text, line, row)?;
            let mut words = value.split_whitespace();
            let is_on = match words.next() {
                Some("on") => true,
                Some("off") => false,
                _ => return Err(text.unreadable(Some(line), "expected on or off")),
            };
            // "[requested on]": requested, but something that it depends on is off or not offered.
            let mark = words.next();
            let is_requested = mark == Some("[requested");
            let is_fixed = is_requested || mark == Some("[fixed]");
            features.insert(name.to_owned(), Feature { is_on, is_fixed, is_requested, line });
        }
        if features.is_empty() {
            return Err(text.unreadable(None, "expected features, one a line"));
        }
        for (group, pattern) in GROUPS {
            let members = features.iter().filter(|(name, _)| fits(name, pattern));
            if let Some(feature) = together(members.map(|(_, feature)| *feature)) {
                let group = features.entry(group.to_owned()).or_insert(feature);
                group.is_requested |= feature.is_requested && !group.is_on;
                group.is_fixed |= group.is_requested;
            }
        }
        Ok(Features { features })
    }
}

/// The short names that `ethtool -K` accepts, and the long ones that `ethtool -k` prints.
const WORDS: [(&str, &str); 7] = [
    ("rx", "rx-checksumming"),
    ("tx", "tx-checksumming"),
    ("sg", "scatter-gather"),
    ("tso", "tcp-segmentation-offload"),
    ("gso", "generic-segmentation-offload"),
    ("gro", "generic-receive-offload"),
    ("lro", "large-receive-offload"),
];

/// The name that `ethtool -k` prints for a name that `ethtool -K` accepts.
pub fn long_name(word: &str) -> &str {
    WORDS.iter().find(|(short, _)| *short == word).map_or(word, |(_, long)| long)
}

/// Names of `ethtool` for groups of kernel features.
const GROUPS: [(&str, &str); 11] = [
    ("rx-checksumming", "rx-checksum"),
    ("tx-checksumming", "tx-checksum-*"),
    ("scatter-gather", "tx-scatter-gather*"),
    ("tcp-segmentation-offload", "tx-tcp*-segmentation"),
    ("generic-segmentation-offload", "tx-generic-segmentation"),
    ("generic-receive-offload", "rx-gro"),
    ("large-receive-offload", "rx-lro"),
    ("rx-vlan-offload", "rx-vlan-hw-parse"),
    ("tx-vlan-offload", "tx-vlan-hw-insert"),
    ("ntuple-filters", "rx-ntuple-filter"),
    ("receive-hashing", "rx-hashing"),
];

fn fits(name: &str, pattern: &str) -> bool {
    match pattern.split_once('*') {
        Some((start, end)) => name.strip_prefix(start).is_some_and(|rest| rest.ends_with(end)),
        None => name == pattern,
    }
}

/// A group is on if one of its features is, and fixed if none can be changed, or if one is already
/// requested and none is on. Its line is the first that shows the state.
fn together(members: impl Iterator<Item = Feature>) -> Option<Feature> {
    let mut members: Vec<Feature> = members.collect();
    members.sort_by_key(|member| (!member.is_on, member.line));
    let is_on = members.first()?.is_on;
    let is_requested = !is_on && members.iter().any(|member| member.is_requested);
    let is_fixed = is_requested || members.iter().all(|member| member.is_fixed);
    members.first().map(|first| Feature { is_fixed, is_requested, ..*first })
}

/// Channels, rings or coalescing: numeric settings, with their limits if there are any.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settings {
    /// Current values by name in lower case, as far as the driver has them.
    pub current: BTreeMap<String, Setting>,
    /// The maximum values, in the same form.
    pub maximum: BTreeMap<String, Setting>,
}

/// One number.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Setting {
    /// Its value.
    pub value: u64,
    /// Its line in the output.
    pub line: usize,
}

impl Settings {
    /// Parses the kernel's reply, or the output of `ethtool -l`, `-g` or `-c`, from which `n/a` and
    /// words are left out.
    pub fn parse(text: &Text) -> Result<Settings, Gap> {
        for name in NicSettings::ALL.map(NicSettings::name) {
            if let Some(rows) = reply_lines(text, name)? {
                return Settings::of_lines(text, &rows);
            }
        }
        let mut settings = Settings::default();
        let mut is_maximum = false;
        for (line, row) in text.lines().skip(1) {
            let row = row.trim();
            if row.starts_with("Pre-set maximums") {
                is_maximum = true;
            } else if row.starts_with("Current hardware settings") {
                is_maximum = false;
            } else if !row.is_empty() {
                let (name, value) = pair(text, line, row)?;
                let Ok(value) = value.parse() else { continue };
                let into = if is_maximum { &mut settings.maximum } else { &mut settings.current };
                into.insert(name.to_ascii_lowercase(), Setting { value, line });
            }
        }
        Ok(settings)
    }

    fn of_lines(text: &Text, rows: &[(usize, &str)]) -> Result<Settings, Gap> {
        let mut settings = Settings::default();
        for (line, row) in rows {
            let (name, value) = pair(text, *line, row)?;
            let value =
                value.parse().map_err(|_| text.unreadable(Some(*line), "expected a number"))?;
            let (into, name) = match name.strip_suffix(" max") {
                Some(name) => (&mut settings.maximum, name),
                None => (&mut settings.current, name),
            };
            into.insert(name.to_owned(), Setting { value, line: *line });
        }
        Ok(settings)
    }
}

/// The driver's counters under the driver's names, from `ethtool -S`, or the kernel's counters of
/// its queues.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Statistics {
    /// By name, with the line in the output.
    pub counters: BTreeMap<String, (u64, usize)>,
}

impl Statistics {
    /// Whether they have the bytes of single queues.
    pub fn has_queue_bytes(&self) -> bool {
        let mut queues = self.counters.keys().filter_map(|name| queue_counter(name));
        queues.any(|(counter, _)| counter.is_bytes)
    }
}

impl Counters for Statistics {
    fn parse(text: &Text) -> Result<Statistics, Gap> {
        let reply = reply_lines(text, QSTATS)?;
        let is_reply = reply.is_some();
        let rows = match reply {
            Some(rows) => rows,
            None => body(text, "NIC statistics")?.collect(),
        };
        let mut counters = BTreeMap::new();
        for (line, row) in rows {
            // Some names contain colons.
            let Some((name, value)) = row.rsplit_once(':') else {
                return Err(text.unreadable(Some(line), "expected a name and a value"));
            };
            match value.trim().parse() {
                Ok(value) => drop(counters.insert(name.trim().to_owned(), (value, line))),
                Err(_) if is_reply => {
                    return Err(text.unreadable(Some(line), "expected a number"));
                }
                // Some values of drivers are not numbers.
                Err(_) => {}
            }
        }
        Ok(Statistics { counters })
    }
}

/// The driver in the output of `ethtool -i`.
pub fn driver(text: &Text) -> Result<String, Gap> {
    let line = text.lines().find_map(|(_, line)| line.strip_prefix("driver:"));
    line.map(|driver| driver.trim().to_owned())
        .ok_or_else(|| text.unreadable(None, "expected a line with the driver"))
}

/// The lines below the head.
fn body<'a>(text: &'a Text, head: &str) -> Result<impl Iterator<Item = (usize, &'a str)>, Gap> {
    let first = text.lines().next().map(|(_, line)| line).unwrap_or_default();
    if !first.starts_with(head) {
        return Err(text.unreadable(Some(1), format!("expected {head:?}")));
    }
    let lines = text.lines().skip(1).map(|(line, row)| (line, row.trim()));
    Ok(lines.filter(|(_, row)| !row.is_empty()))
}

fn pair<'a>(text: &Text, line: usize, row: &'a str) -> Result<(&'a str, &'a str), Gap> {
    let (name, value) = row
        .split_once(':')
        .ok_or_else(|| text.unreadable(Some(line), "expected a name, a colon and a value"))?;
    Ok((name.trim(), value.trim()))
}

/// Determines the queue and direction of a counter of bytes or packets: `rx_queue_0_bytes`,
/// `tx3_bytes`, `queue_0_tx_bytes`, `rx-0.packets`. Drivers never agreed on names.
pub fn queue_counter(name: &str) -> Option<(QueueCounter, usize)> {
    let parts: Vec<&str> =
        name.split(['_', '-', '.', ' ', '[', ']', ':']).filter(|part| !part.is_empty()).collect();
    let mut queue = None;
    let mut is_tx = None;
    let mut is_bytes = None;
    for part in parts {
        let letters = part.trim_end_matches(|letter: char| letter.is_ascii_digit());
        let digits = part.strip_prefix(letters).unwrap_or_default();
        match letters {
            "tx" => is_tx = Some(true),
            "rx" => is_tx = Some(false),
            "bytes" if digits.is_empty() => is_bytes = Some(true),
            "packets" if digits.is_empty() => is_bytes = Some(false),
            "" | "queue" | "q" | "ring" => {}
            // Anything else makes it another counter, such as `rx0_xdp_packets`.
            _ => return None,
        }
        queue = digits.parse().ok().or(queue);
    }
    Some((QueueCounter { is_tx: is_tx?, is_bytes: is_bytes? }, queue?))
}

/// Whether a counter counts pause frames: `Some(true)` for those that the card sent, `Some(false)`
/// for received ones. Drivers' names differ, such as `rx_pause_ctrl_phy` and
/// `tx_flow_control_xoff`.
pub fn counts_pauses(name: &str) -> Option<bool> {
    let name = name.to_ascii_lowercase();
    let mut words = name.split(|letter: char| !letter.is_ascii_alphanumeric());
    let is_sent = match words.next()? {
        "tx" => true,
        "rx" => false,
        _ => return None,
    };
    let words: Vec<&str> = words.collect();
    let is_pause = words.iter().any(|word| ["pause", "xoff", "pauseframes"].contains(word));
    // Durations and transitions are not frames.
    let others = ["duration", "transition", "storm", "error", "events", "time", "us"];
    (is_pause && !words.iter().any(|word| others.contains(word))).then_some(is_sent)
}

/// What a queue's counter counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct QueueCounter {
    /// Transmitted, towards the wire; otherwise received.
    pub is_tx: bool,
    /// Bytes; otherwise packets.
    pub is_bytes: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_asked_for_and_is_not_given_was_not_turned_off() {
        // A TAP device whose program accepts no large packets, so `ethtool -K ... tso on` fails.
        let printed = "Features for tap0:\ntcp-segmentation-offload: off\n\
            \ttx-tcp-segmentation: off [requested on]\n\ttx-tcp-mangleid-segmentation: off\n";
        let asked = "features of tap0: 2\ntx-tcp-segmentation: off [requested on]\n\
            tx-tcp-mangleid-segmentation: off\n";
        for text in [printed, asked] {
            let path = if text == asked { "netlink/tap0/features" } else { "ethtool -k tap0" };
            let read = Features::parse(&Text::new(path, text)).expect("sound");
            let tso = read.get("tcp-segmentation-offload").expect("there");
            assert!(!tso.is_on && tso.is_fixed && tso.is_requested, "{path}: {tso:?}");
        }
    }

    #[test]
    fn counters_of_queues_are_recognized_by_their_names() {
        for (name, is_tx, is_bytes, queue) in [
            ("rx_queue_0_bytes", false, true, 0),
            ("tx_queue_11_packets", true, false, 11),
            ("rx3_bytes", false, true, 3),
            ("queue_2_tx_bytes", true, true, 2),
            ("tx-7.packets", true, false, 7),
            ("[1]: tx_bytes", true, true, 1),
            ("rx-2 bytes", false, true, 2),
        ] {
            let expected = Some((QueueCounter { is_tx, is_bytes }, queue));
            assert_eq!(queue_counter(name), expected, "{name}");
        }
        for name in ["rx_bytes", "rx0_xdp_packets", "rx_queue_0_drops", "tx_64_byte_packets", ""] {
            assert_eq!(queue_counter(name), None, "{name}");
        }
    }

    #[test]
    fn pause_frames_are_counted_under_many_names() {
        for name in ["rx_pause", "rx_pause_ctrl_phy", "rx_flow_control_xoff", "rx_prio3_pause"] {
            assert_eq!(counts_pauses(name), Some(false), "{name}");
        }
        assert_eq!(counts_pauses("tx_pause_frames"), Some(true));
        for name in ["rx_packets", "rx_pause_duration", "pause", "tx_pause_storm_error_events"] {
            assert_eq!(counts_pauses(name), None, "{name}");
        }
    }

    #[test]
    fn channels_have_limits_and_some_are_not_there() {
        let text = "Channel parameters for eth0:\nPre-set maximums:\nRX:\t\tn/a\nCombined:\t8\n\
                    Current hardware settings:\nRX:\t\tn/a\nCombined:\t2\n";
        let read = Settings::parse(&Text::new("ethtool -l eth0", text)).expect("sound");
        assert_eq!(read.maximum["combined"].value, 8);
        assert_eq!(read.current["combined"], Setting { value: 2, line: 7 });
        assert!(!read.current.contains_key("rx"));
    }

    #[test]
    fn what_the_kernel_says_is_read_under_the_names_of_the_tool() {
        let text = "features of x: 5\ntx-scatter-gather: on\ntx-tcp-segmentation: off [fixed]\n\
                    tx-tcp6-segmentation: off [fixed]\nrx-gro: off\nrx-gro-hw: on\n";
        let read = Features::parse(&Text::new("e", text)).expect("sound");
        let feature =
            |is_on, is_fixed, line| Some(Feature { is_on, is_fixed, is_requested: false, line });
        assert_eq!(read.get("scatter-gather"), feature(true, false, 2));
        assert_eq!(read.get("tcp-segmentation-offload"), feature(false, true, 3));
        assert_eq!(read.get("generic-receive-offload"), feature(false, false, 5));
        assert_eq!(read.get("tx-checksumming"), None);
        let text = Text::new("e", "channels of x: 2\ncombined: 2\ncombined max: 8\n");
        let read = Settings::parse(&text).expect("sound");
        assert_eq!(read.current["combined"], Setting { value: 2, line: 2 });
        assert_eq!(read.maximum["combined"], Setting { value: 8, line: 3 });
    }

    #[test]
    fn features_are_on_or_off_and_nothing_else() {
        let text = Text::new("e", "Features for x:\nscatter-gather: on\n\ttx-x: off [fixed]\n");
        let read = Features::parse(&text).expect("sound");
        let fixed = Feature { is_on: false, is_fixed: true, is_requested: false, line: 3 };
        assert_eq!(read.get("tx-x"), Some(fixed));
        let torn = Text::new("e", "Features for x:\nscatter-gather: on\n\ttx-x: o");
        assert_eq!(
            Features::parse(&torn).expect_err("torn").to_string(),
            "e:3: expected on or off"
        );
    }
}
