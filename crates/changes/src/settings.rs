//! Reads and sets one knob.
//!
//! What sets it is the [`Execution`] that users are shown: a tool with its words, or a write to a
//! file. It is read from procfs and sysfs where they have it; offloads, channels and rings over
//! netlink, as the evidence is; queueing disciplines through `tc`, because no crate knows the
//! options of more than two.

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
    /// Those of the host that we run on.
    pub fn live() -> Settings {
        Settings { root: PathBuf::from("/") }
    }

    /// Those of a directory with the layout of a host. What needs a tool is refused there.
    pub fn below(root: &Path) -> Settings {
        Settings { root: root.to_owned() }
    }

    /// Where the host's files begin.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The value of a knob, as [`canonical`] has it.
    ///
    /// # Errors
    /// What reading the file reports, or what the tool says.
    pub fn get(&self, knob: &Knob) -> io::Result<String> {
        if knob.is_set_by_hand() {
            return Err(io::Error::other(
                "it is set by hand, because other guests have it as well",
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

    /// Sets a knob. That it was taken is known only once it is read again: drivers round, and
    /// offloads depend on each other.
    ///
    /// # Errors
    /// What writing the file reports, or what the tool says.
    pub fn set(&self, knob: &Knob, value: &str) -> io::Result<()> {
        let path = knob.path()?;
        match knob.describe().execution(value) {
            Execution::Run(words) if self.is_live() => self.run(words),
            Execution::Write { path, value } => {
                self.check_namespace(knob)?;
                self.write(&path, &value)
            }
            // The files of a saved host are there, and its tools are not.
            Execution::Run(_) => {
                let path = path.ok_or_else(only_live)?;
                self.write(&path, value)
            }
        }
    }

    fn write(&self, path: &str, value: &str) -> io::Result<()> {
        // Never made: a setting that is not there is no setting.
        let path = self.root.join(path);
        let mut file = OpenOptions::new().write(true).truncate(true).open(path)?;
        // In one write: each is a value of its own to the kernel.
        file.write_all(format!("{value}\n").as_bytes())
    }

    fn run(&self, mut words: Vec<String>) -> io::Result<()> {
        if let Some(program) = words.first_mut().filter(|program| *program == "ringway") {
            *program = ourselves()?;
        }
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

    /// The kernel's number for an interface; another one of the same name has another.
    pub fn interface_index(&self, nic: &str) -> Option<u32> {
        Knob::Mtu { nic: nic.to_owned() }.path().ok()?;
        self.read(&format!("sys/class/net/{nic}/ifindex")).ok()?.trim().parse().ok()
    }

    /// Which start of the kernel this is.
    pub fn boot(&self) -> io::Result<String> {
        Ok(self.read("proc/sys/kernel/random/boot_id")?.trim().to_owned())
    }

    /// Which network namespace this is; empty if it is unknown.
    pub fn netns(&self) -> String {
        let link = std::fs::read_link(self.root.join("proc/self/ns/net"));
        link.map(|link| link.display().to_string()).unwrap_or_default()
    }

    /// A mounted sysfs shows the network namespace of who mounted it, which need not be ours: it
    /// may have another interface of the same name.
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
                    io::Error::other("has classes or queues of its own, which tc cannot give back")
                })
            }
            Query::MaxQueues => {
                let text = self.tool(&[&ourselves()?, "vif", "show", nic, "--json"])?;
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
    io::Error::other("only the running host can be asked for it")
}

/// Our own program, which asks a running ringway.
fn ourselves() -> io::Result<String> {
    let path = std::env::current_exe()?;
    path.into_os_string().into_string().map_err(|_| io::ErrorKind::InvalidInput.into())
}

/// `qdisc tbf 8001: root refcnt 2 rate 100Mbit ...` as it would be set again; none if that does
/// not say all of it.
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
    // Some counts have a p for packets, which tc prints and does not read.
    let option = |word: &&str| match word.strip_suffix('p') {
        Some(count) if count.parse::<u64>().is_ok() => count.to_owned(),
        _ => (*word).to_owned(),
    };
    let words = std::iter::once((*kind).to_owned()).chain(options.iter().map(option));
    Some(words.collect::<Vec<_>>().join(" "))
}

/// One of the ways in which a value can be written, so that two can be compared.
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

/// Whether a value that was read is the one that was wanted.
pub fn is_same(knob: &Knob, wanted: &str, found: &str) -> bool {
    let (wanted, found) = (canonical(knob, wanted), canonical(knob, found));
    // A discipline that was set without options has those of its kind when it is read.
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
