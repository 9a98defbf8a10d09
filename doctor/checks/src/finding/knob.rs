//! A setting that the doctor knows to name, to read and to set.

use std::borrow::Cow;
use std::fmt;
use std::io;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use ringway_evidence::NicSettings;

/// A setting that a change can modify.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum Knob {
    /// A sysctl by its dotted name.
    Sysctl {
        /// Such as `net.core.netdev_budget`.
        name: String,
    },
    /// The CPUs that may serve an interrupt: a list such as `0-3`.
    IrqAffinity {
        /// Its number.
        irq: u32,
    },
    /// The governor, which decides how fast a CPU runs: `performance`, `schedutil`.
    Governor {
        /// Its number.
        cpu: u32,
    },
    /// The CPUs to which a queue passes frames in software (RPS): a hexadecimal mask.
    Rps {
        /// The interface.
        nic: String,
        /// Its receive queue.
        queue: u32,
    },
    /// The CPUs that send by a queue (XPS): a hexadecimal mask.
    Xps {
        /// The interface.
        nic: String,
        /// Its transmit queue.
        queue: u32,
    },
    /// An offload: `on` or `off`.
    Offload {
        /// The interface.
        nic: String,
        /// Its name for `ethtool -K`.
        feature: String,
    },
    /// The number of queues.
    Channels {
        /// The interface.
        nic: String,
        /// `combined`, `rx` or `tx`.
        which: String,
    },
    /// The entries of a ring.
    Ring {
        /// The interface.
        nic: String,
        /// `rx` or `tx`.
        which: String,
    },
    /// The length of an interface's queue, in packets.
    TxQueueLen {
        /// The interface.
        nic: String,
    },
    /// The MTU, in bytes.
    Mtu {
        /// The interface.
        nic: String,
    },
    /// The queueing discipline at the root of an interface, as `tc` writes it: `fq_codel`, or
    /// `tbf rate 100Mbit burst 32Kb latency 50ms`.
    Qdisc {
        /// The interface.
        nic: String,
    },
    /// The queues that a guest of ringway may ask for.
    MaxQueues {
        /// The vif.
        vif: String,
    },
    /// A parameter of a loaded module. Set by hand only, because it affects every later guest.
    Parameter {
        /// Such as `xen_netback`.
        module: String,
        /// Such as `max_queues`.
        name: String,
    },
    /// The virtual functions of a card. Set by hand only, because guests may use them.
    VirtualFunctions {
        /// The interface.
        nic: String,
    },
}

/// Everything known about a knob. All code that shows, reads, sets, undoes, persists and emits it
/// uses this description.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Description<'a> {
    /// The name of the setting, for people.
    pub name: String,
    /// The interface that it belongs to.
    pub nic: Option<&'a str>,
    /// Where it is stored.
    pub store: Store<'a>,
    /// Who may set it, and the effect on traffic.
    pub risk: Risk,
    /// The format of its value.
    pub form: Form,
    /// The greatest number that the kernel accepts for it.
    pub number_max: u64,
    /// Where libvirt stores it for a guest's interface.
    pub libvirt: Option<Libvirt>,
}

/// Where a setting is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Store<'a> {
    /// A sysctl, by its dotted name.
    Sysctl(&'a str),
    /// A file below the root.
    File(String),
    /// A file of an interface, which is also a word of `ip link`.
    Link {
        /// In `/sys/class/net/NIC`.
        file: &'static str,
        /// Of `ip link set dev NIC`.
        word: &'static str,
    },
    /// A tool sets it: the words of its command, before the value, and how to read the value.
    Tool(Vec<&'a str>, Query<'a>),
}

/// How to read a setting that a tool sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Query<'a> {
    /// A switch of an interface, by its name for `ethtool -K`.
    Feature(&'a str),
    /// A number of an interface.
    Number(NicSettings, &'a str),
    /// The discipline at the root of an interface.
    Qdisc,
    /// The queues of a vif of a running ringway.
    MaxQueues,
}

/// Who may set a knob, and the effect on traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Risk {
    /// Nothing is interrupted.
    None,
    /// It can interrupt traffic: a driver may take its link down and up.
    Disrupts,
    /// No program sets it, because it affects more than the doctor checked.
    ByHand,
}

/// The format of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Words.
    Plain,
    /// A list of CPUs such as `0-3`.
    CpuList,
    /// A hexadecimal mask of CPUs.
    CpuMask,
    /// A queueing discipline; tools show its options even if no user set them.
    Qdisc,
}

/// Where libvirt stores a setting of a guest's interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Libvirt {
    /// The queues of `<driver>`.
    Queues,
    /// A queue's size, of `rx` or `tx`.
    QueueSize,
    /// `<mtu>`.
    Mtu,
    /// Attributes of `<host>` and `<guest>`.
    Offload(&'static [&'static str]),
}

impl Knob {
    /// Its description: the only place that matches on the variants of a knob.
    pub fn describe(&self) -> Description<'_> {
        let (name, nic, store) = self.kept();
        let risk = match self {
            Knob::Channels { .. } | Knob::Ring { .. } | Knob::Mtu { .. } => Risk::Disrupts,
            Knob::MaxQueues { .. } => Risk::Disrupts,
            Knob::Parameter { .. } | Knob::VirtualFunctions { .. } => Risk::ByHand,
            _ => Risk::None,
        };
        let form = match self {
            Knob::IrqAffinity { .. } => Form::CpuList,
            Knob::Rps { .. } | Knob::Xps { .. } => Form::CpuMask,
            Knob::Qdisc { .. } => Form::Qdisc,
            _ => Form::Plain,
        };
        let number_max = match self {
            // Those that the doctor knows are of type int.
            Knob::Sysctl { .. } => u64::from(u32::MAX >> 1),
            Knob::Mtu { .. } => u64::from(u16::MAX),
            _ => u64::from(u32::MAX),
        };
        let libvirt = match self {
            Knob::Channels { which, .. } if which == "combined" => Some(Libvirt::Queues),
            Knob::Ring { .. } => Some(Libvirt::QueueSize),
            Knob::Mtu { .. } => Some(Libvirt::Mtu),
            Knob::Offload { feature, .. } => match feature.as_str() {
                "tx" | "rx" => Some(Libvirt::Offload(&["csum"])),
                "tso" => Some(Libvirt::Offload(&["tso4", "tso6"])),
                _ => None,
            },
            _ => None,
        };
        Description { name, nic, store, risk, form, number_max, libvirt }
    }

    /// Its name for people, the interface that it belongs to, and where it is stored.
    fn kept(&self) -> (String, Option<&str>, Store<'_>) {
        match self {
            Knob::Sysctl { name } => (name.clone(), None, Store::Sysctl(name)),
            Knob::IrqAffinity { irq } => {
                let file = format!("proc/irq/{irq}/smp_affinity_list");
                (format!("CPUs of interrupt {irq}"), None, Store::File(file))
            }
            Knob::Governor { cpu } => {
                let file = format!("sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor");
                (format!("governor of CPU {cpu}"), None, Store::File(file))
            }
            Knob::Rps { nic, queue } => {
                let file = format!("sys/class/net/{nic}/queues/rx-{queue}/rps_cpus");
                (format!("RPS of {nic} rx-{queue}"), Some(nic), Store::File(file))
            }
            Knob::Xps { nic, queue } => {
                let file = format!("sys/class/net/{nic}/queues/tx-{queue}/xps_cpus");
                (format!("XPS of {nic} tx-{queue}"), Some(nic), Store::File(file))
            }
            Knob::Offload { nic, feature } => {
                let words = vec!["ethtool", "-K", nic, feature];
                let store = Store::Tool(words, Query::Feature(feature));
                (format!("{feature} of {nic}"), Some(nic), store)
            }
            Knob::Channels { nic, which } => {
                let words = vec!["ethtool", "-L", nic, which];
                let store = Store::Tool(words, Query::Number(NicSettings::Channels, which));
                (format!("{which} channels of {nic}"), Some(nic), store)
            }
            Knob::Ring { nic, which } => {
                let words = vec!["ethtool", "-G", nic, which];
                let store = Store::Tool(words, Query::Number(NicSettings::Rings, which));
                (format!("{which} ring of {nic}"), Some(nic), store)
            }
            Knob::TxQueueLen { nic } => {
                let store = Store::Link { file: "tx_queue_len", word: "txqueuelen" };
                (format!("txqueuelen of {nic}"), Some(nic), store)
            }
            Knob::Mtu { nic } => {
                let store = Store::Link { file: "mtu", word: "mtu" };
                (format!("MTU of {nic}"), Some(nic), store)
            }
            Knob::Qdisc { nic } => {
                let words = vec!["tc", "qdisc", "replace", "dev", nic, "root"];
                (format!("qdisc of {nic}"), Some(nic), Store::Tool(words, Query::Qdisc))
            }
            Knob::MaxQueues { vif } => {
                let words = vec!["ringway", "vif", "set", "--reconnect", vif, "max-queues"];
                (format!("max-queues of {vif}"), Some(vif), Store::Tool(words, Query::MaxQueues))
            }
            Knob::Parameter { module, name } => {
                let file = format!("sys/module/{module}/parameters/{name}");
                (format!("{name} of {module}"), None, Store::File(file))
            }
            Knob::VirtualFunctions { nic } => {
                let file = format!("sys/class/net/{nic}/device/sriov_numvfs");
                (format!("virtual functions of {nic}"), Some(nic), Store::File(file))
            }
        }
    }

    /// The object that it belongs to, for people.
    pub fn subject(&self) -> String {
        match self {
            Knob::Sysctl { name } => name.clone(),
            Knob::IrqAffinity { irq } => format!("irq {irq}"),
            Knob::Governor { cpu } => format!("CPU {cpu}"),
            Knob::Parameter { module, name } => format!("{module}.{name}"),
            other => other.nic().unwrap_or_default().to_owned(),
        }
    }

    /// The interface that it belongs to.
    pub fn nic(&self) -> Option<&str> {
        self.describe().nic
    }

    /// The name of the setting, for people.
    pub fn name(&self) -> String {
        self.describe().name
    }

    /// Whether setting it can interrupt traffic: a driver may take its link down and up.
    pub fn is_disruptive(&self) -> bool {
        self.describe().risk == Risk::Disrupts
    }

    /// Whether no program sets it, because it affects more than the doctor checked.
    pub fn is_set_by_hand(&self) -> bool {
        self.describe().risk == Risk::ByHand
    }

    /// The file that holds it, below the root; none if a tool sets it.
    ///
    /// # Errors
    /// `InvalidInput` for a name that would leave the directory, or that a tool would take for an
    /// option: names come from journals and from evidence, which others can write.
    pub fn path(&self) -> io::Result<Option<String>> {
        if let Knob::Parameter { module, name } = self {
            plain(module)?;
            plain(name)?;
        }
        self.describe().path()
    }

    /// The command that sets it, for a shell.
    pub fn command(&self, value: &str) -> String {
        self.describe().execution(value).to_string()
    }
}

impl Description<'_> {
    fn path(&self) -> io::Result<Option<String>> {
        self.nic.map_or(Ok(()), plain)?;
        Ok(match &self.store {
            Store::Sysctl(name) => Some(format!("proc/sys/{}", sysctl_path(name)?)),
            Store::File(path) => Some(path.clone()),
            Store::Link { file, .. } => self.nic.map(|nic| format!("sys/class/net/{nic}/{file}")),
            Store::Tool(..) => None,
        })
    }

    /// What sets it: the same for display, execution and emitted files.
    pub fn execution(&self, value: &str) -> Execution {
        let before: Vec<&str> = match &self.store {
            Store::Tool(words, _) => words.clone(),
            Store::Link { word, .. } => {
                vec!["ip", "link", "set", "dev", self.nic.unwrap_or_default(), word]
            }
            Store::Sysctl(name) => {
                let words = ["sysctl", "-w"].map(str::to_owned).into_iter();
                return Execution::Run(words.chain([format!("{name}={value}")]).collect());
            }
            Store::File(path) => {
                return Execution::Write { path: path.clone(), value: value.to_owned() };
            }
        };
        let words = before.into_iter().chain(value.split_whitespace());
        Execution::Run(words.map(str::to_owned).collect())
    }
}

/// What sets a knob to a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Execution {
    /// A tool with its words.
    Run(Vec<String>),
    /// A file below the root, and what is written to it in one write, with an end of line.
    Write {
        /// Such as `proc/irq/41/smp_affinity_list`.
        path: String,
        /// Such as `2`.
        value: String,
    },
}

/// As a command for a shell.
impl fmt::Display for Execution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Execution::Run(words) => {
                let words: Vec<Cow<'_, str>> = words.iter().map(|word| assignment(word)).collect();
                f.write_str(&words.join(" "))
            }
            Execution::Write { path, value } => {
                write!(f, "echo {} > {}", shell_word(value), shell_word(&format!("/{path}")))
            }
        }
    }
}

/// A word for a shell; of `NAME=VALUE`, only the part that needs it is quoted.
fn assignment(word: &str) -> Cow<'_, str> {
    match word.split_once('=') {
        Some((name, value)) if matches!(shell_word(name), Cow::Borrowed(_)) => {
            Cow::Owned(format!("{name}={}", shell_word(value)))
        }
        _ => shell_word(word),
    }
}

/// A word for a shell, quoted if any character in it has a meaning there.
pub fn shell_word(word: &str) -> Cow<'_, str> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_@%+=:,./-".contains(&byte);
    if !word.is_empty() && word.bytes().all(is_plain) {
        return Cow::Borrowed(word);
    }
    Cow::Owned(format!("'{}'", word.replace('\'', "'\\''")))
}

/// Rejects a name that would leave the directory.
fn plain(name: &str) -> io::Result<()> {
    let is_plain = !name.is_empty()
        && !name.starts_with(['-', '.'])
        && name.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'/');
    if is_plain { Ok(()) } else { Err(io::ErrorKind::InvalidInput.into()) }
}

/// As in sysctl(8): dots separate, and a slash stands for a dot in a name.
fn sysctl_path(name: &str) -> io::Result<String> {
    let swap = |letter| match letter {
        '.' => '/',
        '/' => '.',
        other => other,
    };
    let path: String = name.chars().map(swap).collect();
    path.split('/').try_for_each(plain)?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_leads_out_of_its_directory() {
        for name in ["net/../../x", "....etc.passwd", "", "net..x"] {
            assert!(Knob::Sysctl { name: name.to_owned() }.path().is_err(), "{name}");
        }
        assert!(Knob::Mtu { nic: "../x".to_owned() }.path().is_err());
        // A flag of a tool is no interface.
        assert!(Knob::Qdisc { nic: "-batch".to_owned() }.path().is_err());
        let knob = Knob::Sysctl { name: "net.ipv4.conf.eth0/1.rp_filter".to_owned() };
        let path = knob.path().expect("a name");
        assert_eq!(path.as_deref(), Some("proc/sys/net/ipv4/conf/eth0.1/rp_filter"));
    }

    #[test]
    fn a_name_is_one_word_of_a_shell() {
        let mtu = Knob::Mtu { nic: "a;b'c".to_owned() };
        assert_eq!(mtu.command("1500"), r"ip link set dev 'a;b'\''c' mtu 1500");
        let rps = Knob::Rps { nic: "$x".to_owned(), queue: 0 };
        assert_eq!(rps.command("3"), "echo 3 > '/sys/class/net/$x/queues/rx-0/rps_cpus'");
        assert_eq!(shell_word(""), "''");
    }
}
