//! Reads and sets one knob.
//!
//! A knob is set by the [`Execution`] that users are shown: a tool with its arguments, or a write
//! to a file. It is read from procfs and sysfs if possible; offloads, channels and rings are read
//! over netlink, like the evidence; queueing disciplines through `tc`, because no crate supports
//! the options of more than two.

use std::fs::OpenOptions;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use rustix::net::netdevice::name_to_index;
use rustix::net::{AddressFamily, SocketType, socket};

use ringway_checks::finding::{Execution, Form, Knob, Query, Store};
use ringway_evidence::nic_settings;
use ringway_evidence::parse::cpus::{cpu_list, cpu_mask, masked_cpus};
use ringway_evidence::parse::ethtool::{Features, Settings as Numbers, long_name};
use ringway_evidence::{NicSettings, Text, tool};

/// Bytes of a setting; a longer one is invalid.
const VALUE_BYTES_MAX: u64 = 64 << 10;

/// The settings of a host.
#[derive(Debug, Clone)]
pub struct Settings {
    root: PathBuf,
}

impl Settings {
    /// The settings of the host that we run on.
    pub fn live() -> Settings {
        Settings { root: PathBuf::from("/") }
    }

    /// The settings of a directory with the layout of a host. Settings that need a tool are refused
    /// there.
    pub fn below(root: &Path) -> Settings {
        Settings { root: root.to_owned() }
    }

    /// The root of the host's files.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The value of a knob, in the form of [`canonical`].
    ///
    /// # Errors
    /// The error of reading the file, or of the tool.
    pub fn get(&self, knob: &Knob) -> io::Result<String> {
        if knob.is_set_by_hand() {
            return Err(io::Error::other(
                "set it by hand, because it affects other guests as well",
            ));
        }
        let value = match knob.path()? {
            Some(path) => {
                self.check_namespace(knob)?;
                self.read(&path)?
            }
            None => self.ask(knob)?,
        };
        Ok(canonical(knob, &value))
    }

    /// Sets a knob. Only reading it back shows the effect: drivers round values, and offloads
    /// depend on each other.
    ///
    /// # Errors
    /// The error of writing the file, or of the tool.
    pub fn set(&self, knob: &Knob, value: &str) -> io::Result<()> {
        let path = knob.path()?;
        match knob.describe().execution(value) {
            Execution::Run(words) if self.is_live() => self.run(&words),
            Execution::Write { path, value } => {
                self.check_namespace(knob)?;
                self.write(&path, &value)
            }
            // A saved host has files but no tools.
            Execution::Run(_) => {
                let path = path.ok_or_else(only_live)?;
                self.write(&path, value)
            }
        }
    }

    fn write(&self, path: &str, value: &str) -> io::Result<()> {
        // The file is never created: a missing file means that the setting does not exist.
        let path = self.root.join(path);
        let mut file = OpenOptions::new().write(true).truncate(true).open(path)?;
        // In a single write, because the kernel takes each write as a value.
        file.write_all(format!("{value}\n").as_bytes())
    }

    fn run(&self, words: &[String]) -> io::Result<()> {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let is_missing = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
        self.tool(&words).map(drop).map_err(|error| match words.first() {
            Some(tool) if is_missing(&error) => {
                io::Error::new(error.kind(), format!("{tool} is not installed"))
            }
            _ => error,
        })
    }

    fn is_live(&self) -> bool {
        self.root == Path::new("/")
    }

    /// The kernel's index of an interface; a new interface with the same name gets another.
    pub fn interface_index(&self, nic: &str) -> Option<u32> {
        Knob::Mtu { nic: nic.to_owned() }.path().ok()?;
        self.read(&format!("sys/class/net/{nic}/ifindex")).ok()?.trim().parse().ok()
    }

    /// The ID of the current boot.
    pub fn boot(&self) -> io::Result<String> {
        Ok(self.read("proc/sys/kernel/random/boot_id")?.trim().to_owned())
    }

    /// The network namespace that we are in; empty if unknown.
    pub fn netns(&self) -> String {
        let link = std::fs::read_link(self.root.join("proc/self/ns/net"));
        link.map(|link| link.display().to_string()).unwrap_or_default()
    }

    /// A mounted sysfs shows the network namespace of the process that mounted it, which may not be
    /// ours and may have another interface with the same name.
    fn check_namespace(&self, knob: &Knob) -> io::Result<()> {
        let Some(nic) = knob.nic().filter(|_| self.is_live()) else { return Ok(()) };
        let socket = socket(AddressFamily::INET, SocketType::DGRAM, None)?;
        let index = name_to_index(&socket, nic)?;
        if self.interface_index(nic) == Some(index) {
            return Ok(());
        }
        Err(io::Error::other("the mounted /sys is that of another network namespace"))
    }

    fn read(&self, path: &str) -> io::Result<String> {
        let mut text = String::new();
        let file = std::fs::File::open(self.root.join(path))?;
        file.take(VALUE_BYTES_MAX).read_to_string(&mut text)?;
        Ok(text)
    }

    fn tool(&self, words: &[&str]) -> io::Result<Text> {
        self.check_running()?;
        Ok(Text::new(words.join(" "), tool(words)?))
    }

    fn of_nic(&self, nic: &str, settings: NicSettings) -> io::Result<Text> {
        self.check_running()?;
        nic_settings(nic, settings)
    }

    fn check_running(&self) -> io::Result<()> {
        if self.is_live() { Ok(()) } else { Err(only_live()) }
    }

    fn ask(&self, knob: &Knob) -> io::Result<String> {
        let about = knob.describe();
        let (Store::Tool(_, query), Some(nic)) = (about.store, about.nic) else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        match query {
            Query::Feature(feature) => {
                let text = self.of_nic(nic, NicSettings::Features)?;
                let features = Features::parse(&text).map_err(io::Error::other)?;
                let found = features.get(long_name(feature)).ok_or(io::ErrorKind::NotFound)?;
                Ok(if found.is_on { "on" } else { "off" }.to_owned())
            }
            Query::Number(settings, which) => self.number(nic, settings, which),
            Query::Qdisc => {
                let text = self.tool(&["tc", "qdisc", "show", "dev", nic, "root"])?;
                qdisc(text.body()).ok_or_else(|| {
                    io::Error::other("has its own classes or queues, which tc cannot restore")
                })
            }
            Query::MaxQueues => {
                let text = self.tool(&["ringway", "vif", "show", nic, "--json"])?;
                let status: serde_json::Value = serde_json::from_str(text.body())?;
                let value = status["max_queues"].as_u64().ok_or(io::ErrorKind::InvalidData)?;
                Ok(value.to_string())
            }
        }
    }

    fn number(&self, nic: &str, settings: NicSettings, which: &str) -> io::Result<String> {
        let text = self.of_nic(nic, settings)?;
        let numbers = Numbers::parse(&text).map_err(io::Error::other)?;
        let found = numbers.current.get(which).ok_or(io::ErrorKind::NotFound)?;
        Ok(found.value.to_string())
    }
}

fn only_live() -> io::Error {
    io::Error::other("it can only be read on the running host")
}

/// Converts `qdisc tbf 8001: root refcnt 2 rate 100Mbit ...` to the words that would set it again;
/// `None` if the line is incomplete.
fn qdisc(text: &str) -> Option<String> {
    let mut lines = text.lines().filter(|line| line.starts_with("qdisc "));
    let words: Vec<&str> = lines.next()?.split_whitespace().collect();
    let is_whole = lines.next().is_none();
    let [_, kind, _, "root", options @ ..] = words.as_slice() else { return None };
    if !is_whole || ["mq", "htb", "hfsc", "drr", "mqprio", "prio", "cbq"].contains(kind) {
        return None;
    }
    let options = match options {
        ["refcnt", _, rest @ ..] => rest,
        all => all,
    };
    // Some counts have the suffix p for packets, which tc prints but does not accept.
    let option = |word: &&str| match word.strip_suffix('p') {
        Some(count) if count.parse::<u64>().is_ok() => count.to_owned(),
        _ => (*word).to_owned(),
    };
    let words = std::iter::once((*kind).to_owned()).chain(options.iter().map(option));
    Some(words.collect::<Vec<_>>().join(" "))
}

/// The canonical form of a value, for comparison.
pub fn canonical(knob: &Knob, value: &str) -> String {
    let squeezed = value.split_whitespace().collect::<Vec<_>>().join(" ");
    match knob.describe().form {
        Form::CpuList => runs_of(&squeezed).unwrap_or(squeezed),
        Form::CpuMask => {
            let cpus = masked_cpus(squeezed.trim_start_matches("0x"));
            cpus.map_or(squeezed, cpu_mask)
        }
        Form::Plain | Form::Qdisc => squeezed,
    }
}

/// `0,1,2,5` as `0-2,5`.
fn runs_of(text: &str) -> Option<String> {
    let mut cpus = cpu_list(text)?;
    cpus.sort_unstable();
    cpus.dedup();
    let runs = cpus.chunk_by(|one, next| one + 1 == *next);
    let text = runs.filter_map(|run| match run {
        [one] => Some(one.to_string()),
        [first, .., last] => Some(format!("{first}-{last}")),
        [] => None,
    });
    Some(text.collect::<Vec<_>>().join(","))
}

/// Whether a value that was read back is the requested one.
pub fn is_same(knob: &Knob, wanted: &str, found: &str) -> bool {
    let (wanted, found) = (canonical(knob, wanted), canonical(knob, found));
    // A discipline that was set without options shows its default options when it is read.
    let is_longer = || found.strip_prefix(&wanted).is_some_and(|options| options.starts_with(' '));
    wanted == found || knob.describe().form == Form::Qdisc && is_longer()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_compared_by_what_they_mean() {
        let irq = Knob::IrqAffinity { irq: 1 };
        assert!(is_same(&irq, "0,1,2,5", "0-2,5"));
        assert!(!is_same(&irq, "0", "1"));
        let rps = Knob::Rps { nic: "eth0".into(), queue: 0 };
        assert!(is_same(&rps, "3", "00000000,00000003"));
        assert!(is_same(&rps, "ff,ffffffff", "ffffffffff"));
        assert_eq!(canonical(&rps, "ffffffffff\n"), "ff,ffffffff");
        assert_eq!(canonical(&rps, "00"), "0");
        let rmem = Knob::Sysctl { name: "net.ipv4.tcp_rmem".into() };
        assert!(is_same(&rmem, "4096 131072 6291456", "4096\t131072\t6291456\n"));
        let qdisc = Knob::Qdisc { nic: "eth0".into() };
        assert!(is_same(&qdisc, "fq_codel", "fq_codel limit 10240 flows 1024"));
        assert!(!is_same(&qdisc, "fq", "fq_codel limit 10240"));
    }

    #[test]
    fn a_discipline_is_read_as_it_would_be_set() {
        let shown = "qdisc tbf 8001: root refcnt 2 rate 100Mbit burst 32Kb lat 50ms \n";
        assert_eq!(qdisc(shown).as_deref(), Some("tbf rate 100Mbit burst 32Kb lat 50ms"));
        let shown = "qdisc fq_codel 0: root refcnt 2 limit 10240p flows 1024 quantum 1514\n";
        assert_eq!(qdisc(shown).as_deref(), Some("fq_codel limit 10240 flows 1024 quantum 1514"));
        assert_eq!(qdisc("qdisc mq 0: root\n"), None);
        assert_eq!(qdisc(""), None);
    }
}
