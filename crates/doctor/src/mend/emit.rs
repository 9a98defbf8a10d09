//! The same changes for other tools.

use std::fmt::Write;

use super::journal::Entry;
use crate::finding::Knob;

/// A tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Tasks of a playbook.
    Ansible,
    /// A script, with the way back as comments.
    Shell,
    /// A file for `/etc/sysctl.d`.
    SysctlD,
    /// Rules for `/etc/udev/rules.d`.
    Udev,
    /// Parts of the `<interface>` of a guest.
    Libvirt,
}

/// Changes in the words of a tool. What it has no word for is a comment that says so.
pub fn emit(entries: &[Entry], format: Format) -> String {
    match format {
        Format::Ansible => ansible(entries),
        Format::Shell => shell(entries),
        Format::SysctlD => lines(entries, "#", sysctl),
        Format::Udev => lines(entries, "#", udev),
        Format::Libvirt => libvirt(entries),
    }
}

/// The commands that take changes back, the last first.
pub fn undo_commands(entries: &[Entry]) -> impl Iterator<Item = String> {
    entries.iter().rev().map(|entry| entry.knob.command(&entry.old))
}

fn shell(entries: &[Entry]) -> String {
    let mut text = "#!/bin/sh\nset -e\n".to_owned();
    for entry in entries {
        let _ = writeln!(text, "# {}: {}", entry.check, one_line(&entry.reason));
        let _ = writeln!(text, "{}", entry.knob.command(&entry.new));
    }
    text += "# To take it back:\n";
    for command in undo_commands(entries) {
        let _ = writeln!(text, "#   {command}");
    }
    text
}

fn ansible(entries: &[Entry]) -> String {
    let mut text = "---\n# Tasks, to be run with become: true.\n".to_owned();
    for entry in entries {
        let name = format!("{} {}: {}", entry.check, entry.knob.name(), one_line(&entry.reason));
        let _ = writeln!(text, "- name: {}", quoted(&name));
        match &entry.knob {
            Knob::Sysctl { name } => {
                let _ = writeln!(
                    text,
                    "  ansible.posix.sysctl:\n    name: {}\n    value: {}\n    sysctl_set: true",
                    quoted(name),
                    quoted(&entry.new)
                );
            }
            knob => {
                let module = if file_write(knob) { "shell" } else { "command" };
                let command = knob.command(&entry.new);
                let _ = writeln!(text, "  ansible.builtin.{module}: {}", quoted(&command));
                text += "  changed_when: true\n";
            }
        }
    }
    text
}

/// Whether the command of a knob is a redirection, which needs a shell.
fn file_write(knob: &Knob) -> bool {
    knob.words("").is_none()
}

/// A string that JSON and YAML read alike.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// What is found may quote a guest: it must not end a comment.
fn one_line(text: &str) -> String {
    text.replace(|letter: char| letter.is_control(), " ").replace("--", "- -")
}

fn lines(entries: &[Entry], comment: &str, line: fn(&Entry) -> Option<String>) -> String {
    let mut text = String::new();
    for entry in entries {
        let _ = writeln!(text, "{comment} {}: {}", entry.check, one_line(&entry.reason));
        match line(entry) {
            Some(line) => text += &(line + "\n"),
            None => {
                let command = entry.knob.command(&entry.new);
                let _ = writeln!(text, "{comment} not to be set here: {command}");
            }
        }
    }
    text
}

/// A line of sysctl.d(5); none for what is no sysctl.
pub(super) fn sysctl(entry: &Entry) -> Option<String> {
    let Knob::Sysctl { name } = &entry.knob else { return None };
    Some(format!("{name} = {}", entry.new))
}

/// A rule of udev(7); none for what no interface has.
///
/// Rules and not systemd.link(5): of link files only the first that fits an interface counts, so
/// that one of ours would take away the file that names it.
pub(super) fn udev(entry: &Entry) -> Option<String> {
    let Entry { knob, new, .. } = entry;
    let nic = knob.nic()?;
    let command = |tool: &str| format!("RUN+=\"{tool}\"");
    let act = match knob {
        Knob::Rps { queue, .. } => format!("ATTR{{queues/rx-{queue}/rps_cpus}}=\"{new}\""),
        Knob::Xps { queue, .. } => format!("ATTR{{queues/tx-{queue}/xps_cpus}}=\"{new}\""),
        Knob::TxQueueLen { .. } => format!("ATTR{{tx_queue_len}}=\"{new}\""),
        Knob::Mtu { .. } => format!("ATTR{{mtu}}=\"{new}\""),
        Knob::Offload { feature, .. } => {
            command(&format!("/sbin/ethtool -K {nic} {feature} {new}"))
        }
        Knob::Channels { which, .. } => command(&format!("/sbin/ethtool -L {nic} {which} {new}")),
        Knob::Ring { which, .. } => command(&format!("/sbin/ethtool -G {nic} {which} {new}")),
        Knob::Qdisc { .. } => command(&format!("/sbin/tc qdisc replace dev {nic} root {new}")),
        Knob::Sysctl { .. }
        | Knob::IrqAffinity { .. }
        | Knob::MaxQueues { .. }
        | Knob::Parameter { .. }
        | Knob::VirtualFunctions { .. } => return None,
    };
    Some(format!("ACTION==\"add\", SUBSYSTEM==\"net\", KERNEL==\"{nic}\", {act}"))
}

fn libvirt(entries: &[Entry]) -> String {
    let mut text = String::new();
    for entry in entries {
        let Entry { knob, new, .. } = entry;
        let _ = writeln!(text, "<!-- {}: {} -->", entry.check, one_line(&entry.reason));
        let line = match knob {
            Knob::Channels { which, .. } if which == "combined" => {
                format!("<driver name=\"vhost\" queues=\"{new}\"/>")
            }
            Knob::Ring { which, .. } => {
                format!("<driver name=\"vhost\" {which}_queue_size=\"{new}\"/>")
            }
            Knob::Mtu { .. } => format!("<mtu size=\"{new}\"/>"),
            Knob::Offload { feature, .. } => match offload_attribute(feature) {
                Some(attributes) => {
                    let set: Vec<String> =
                        attributes.iter().map(|one| format!("{one}=\"{new}\"")).collect();
                    let set = set.join(" ");
                    format!("<driver name=\"vhost\"><host {set}/><guest {set}/></driver>")
                }
                None => none_of_libvirt(entry),
            },
            _ => none_of_libvirt(entry),
        };
        let _ = writeln!(text, "{line}");
    }
    text
}

fn none_of_libvirt(entry: &Entry) -> String {
    format!("<!-- not a part of a guest: {} -->", one_line(&entry.knob.command(&entry.new)))
}

/// What libvirt calls an offload, for `<host>` and `<guest>` both.
fn offload_attribute(feature: &str) -> Option<&'static [&'static str]> {
    match feature {
        "tx" | "rx" => Some(&["csum"]),
        "tso" => Some(&["tso4", "tso6"]),
        _ => None,
    }
}
