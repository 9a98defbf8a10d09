//! A setting that the doctor knows to name, to read and to set.

use std::borrow::Cow;
use std::io;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A setting that a change can be made of.
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
    /// The CPUs that take frames over from a queue in software: a hexadecimal mask.
    Rps {
        /// The interface.
        nic: String,
        /// Its receive queue.
        queue: u32,
    },
    /// The CPUs that send by a queue: a hexadecimal mask.
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
        /// The name that `ethtool -K` takes.
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
    /// Packets that may wait before an interface.
    TxQueueLen {
        /// The interface.
        nic: String,
    },
    /// The longest packet, in bytes.
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
    /// A parameter of a loaded module. Set by hand only: it is for every guest from then on.
    Parameter {
        /// Such as `xen_netback`.
        module: String,
        /// Such as `max_queues`.
        name: String,
    },
    /// The virtual functions of a card. Set by hand only: guests may have them.
    VirtualFunctions {
        /// The interface.
        nic: String,
    },
}

impl Knob {
    /// What it belongs to, for people.
    pub fn subject(&self) -> String {
        match self {
            Knob::Sysctl { name } => name.clone(),
            Knob::IrqAffinity { irq } => format!("irq {irq}"),
            Knob::Parameter { module, name } => format!("{module}.{name}"),
            other => other.nic().unwrap_or_default().to_owned(),
        }
    }

    /// The interface that it is a setting of.
    pub fn nic(&self) -> Option<&str> {
        match self {
            Knob::Sysctl { .. } | Knob::IrqAffinity { .. } | Knob::Parameter { .. } => None,
            Knob::Rps { nic, .. }
            | Knob::Xps { nic, .. }
            | Knob::Offload { nic, .. }
            | Knob::Channels { nic, .. }
            | Knob::Ring { nic, .. }
            | Knob::TxQueueLen { nic }
            | Knob::Qdisc { nic }
            | Knob::VirtualFunctions { nic }
            | Knob::Mtu { nic } => Some(nic),
            Knob::MaxQueues { vif } => Some(vif),
        }
    }

    /// What is set, for people.
    pub fn name(&self) -> String {
        match self {
            Knob::Sysctl { name } => name.clone(),
            Knob::IrqAffinity { irq } => format!("CPUs of interrupt {irq}"),
            Knob::Rps { nic, queue } => format!("RPS of {nic} rx-{queue}"),
            Knob::Xps { nic, queue } => format!("XPS of {nic} tx-{queue}"),
            Knob::Offload { nic, feature } => format!("{feature} of {nic}"),
            Knob::Channels { nic, which } => format!("{which} channels of {nic}"),
            Knob::Ring { nic, which } => format!("{which} ring of {nic}"),
            Knob::TxQueueLen { nic } => format!("txqueuelen of {nic}"),
            Knob::Mtu { nic } => format!("MTU of {nic}"),
            Knob::Qdisc { nic } => format!("qdisc of {nic}"),
            Knob::MaxQueues { vif } => format!("max-queues of {vif}"),
            Knob::Parameter { module, name } => format!("{name} of {module}"),
            Knob::VirtualFunctions { nic } => format!("virtual functions of {nic}"),
        }
    }

    /// Whether setting it can interrupt traffic: a driver may take its link down and up for it.
    pub fn is_disruptive(&self) -> bool {
        matches!(
            self,
            Knob::Channels { .. } | Knob::Ring { .. } | Knob::Mtu { .. } | Knob::MaxQueues { .. }
        )
    }

    /// Whether no program sets it, because it is for more than what was looked at.
    pub fn is_set_by_hand(&self) -> bool {
        matches!(self, Knob::Parameter { .. } | Knob::VirtualFunctions { .. })
    }

    /// The greatest number that the kernel takes for it.
    pub fn number_max(&self) -> u64 {
        match self {
            // Those that the doctor knows are of type int.
            Knob::Sysctl { .. } => u64::from(u32::MAX >> 1),
            Knob::Mtu { .. } => u64::from(u16::MAX),
            _ => u64::from(u32::MAX),
        }
    }

    /// The file that holds it, below the root; none if a tool has it.
    ///
    /// # Errors
    /// `InvalidInput` for a name that would lead elsewhere, or that a tool takes for an option:
    /// names come from journals and from evidence, which other people write.
    pub fn path(&self) -> io::Result<Option<String>> {
        if let Some(nic) = self.nic() {
            plain(nic)?;
        }
        Ok(Some(match self {
            Knob::Sysctl { name } => format!("proc/sys/{}", sysctl_path(name)?),
            Knob::IrqAffinity { irq } => format!("proc/irq/{irq}/smp_affinity_list"),
            Knob::Rps { nic, queue } => format!("sys/class/net/{nic}/queues/rx-{queue}/rps_cpus"),
            Knob::Xps { nic, queue } => format!("sys/class/net/{nic}/queues/tx-{queue}/xps_cpus"),
            Knob::TxQueueLen { nic } => format!("sys/class/net/{nic}/tx_queue_len"),
            Knob::Mtu { nic } => format!("sys/class/net/{nic}/mtu"),
            Knob::VirtualFunctions { nic } => format!("sys/class/net/{nic}/device/sriov_numvfs"),
            Knob::Parameter { module, name } => {
                plain(module)?;
                plain(name)?;
                format!("sys/module/{module}/parameters/{name}")
            }
            Knob::Offload { .. }
            | Knob::Channels { .. }
            | Knob::Ring { .. }
            | Knob::Qdisc { .. }
            | Knob::MaxQueues { .. } => return Ok(None),
        }))
    }

    /// The words of the tool that sets it; none if it is a file that is written.
    pub fn words(&self, value: &str) -> Option<Vec<String>> {
        let mut words: Vec<&str> = match self {
            Knob::Offload { nic, feature } => vec!["ethtool", "-K", nic, feature],
            Knob::Channels { nic, which } => vec!["ethtool", "-L", nic, which],
            Knob::Ring { nic, which } => vec!["ethtool", "-G", nic, which],
            Knob::TxQueueLen { nic } => vec!["ip", "link", "set", "dev", nic, "txqueuelen"],
            Knob::Mtu { nic } => vec!["ip", "link", "set", "dev", nic, "mtu"],
            Knob::Qdisc { nic } => vec!["tc", "qdisc", "replace", "dev", nic, "root"],
            Knob::MaxQueues { vif } => {
                vec!["ringway", "vif", "set", "--reconnect", vif, "max-queues"]
            }
            Knob::Sysctl { .. }
            | Knob::IrqAffinity { .. }
            | Knob::Rps { .. }
            | Knob::Xps { .. }
            | Knob::Parameter { .. }
            | Knob::VirtualFunctions { .. } => return None,
        };
        words.extend(value.split_whitespace());
        Some(words.into_iter().map(str::to_owned).collect())
    }

    /// The command that sets it, for a shell.
    pub fn command(&self, value: &str) -> String {
        if let Some(words) = self.words(value) {
            return words.iter().map(|word| shell_word(word)).collect::<Vec<_>>().join(" ");
        }
        match self {
            Knob::Sysctl { name } => {
                format!("sysctl -w {}={}", shell_word(name), shell_word(value))
            }
            knob => {
                let path = knob.path().ok().flatten().unwrap_or_default();
                format!("echo {} > {}", shell_word(value), shell_word(&format!("/{path}")))
            }
        }
    }
}

/// A word that a shell takes as it stands: in quotes, if anything in it means something to one.
pub fn shell_word(word: &str) -> Cow<'_, str> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_@%+=:,./-".contains(&byte);
    if !word.is_empty() && word.bytes().all(is_plain) {
        return Cow::Borrowed(word);
    }
    Cow::Owned(format!("'{}'", word.replace('\'', "'\\''")))
}

/// Refuses what would lead elsewhere.
fn plain(name: &str) -> io::Result<()> {
    let is_plain = !name.is_empty()
        && !name.starts_with(['-', '.'])
        && name.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'/');
    if is_plain { Ok(()) } else { Err(io::ErrorKind::InvalidInput.into()) }
}

/// As sysctl(8): dots part, and a slash stands for a dot in a name.
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
