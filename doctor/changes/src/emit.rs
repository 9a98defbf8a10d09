//! Writes the same changes for other tools.

mod networkd;

use std::fmt::Write;
use std::path::Path;

use super::journal::Entry;
use super::sysctl_d;
use ringway_checks::finding::{Execution, Libvirt, Risk, Store};

/// A tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// A script, with the commands to revert it as comments.
    Shell,
    /// A file for `/etc/sysctl.d`.
    SysctlD,
    /// Rules for `/etc/udev/rules.d`.
    Udev,
    /// Parts of the `<interface>` of a guest.
    Libvirt,
    /// Files of systemd-networkd and udev: `.link` and `.network`.
    Networkd,
}

impl Format {
    /// Whether the format is a file that the machine reads at boot, for its initial network
    /// namespace.
    pub fn is_for_start(self) -> bool {
        !matches!(self, Format::Shell | Format::Libvirt)
    }
}

/// Lines of files below `root` that set the same sysctls to something else, each as a comment:
/// which of them wins depends on the name that the changes are saved under.
pub fn rivals(root: &Path, entries: &[Entry]) -> String {
    let mut text = String::new();
    for entry in entries {
        let Store::Sysctl(name) = entry.knob.describe().store else { continue };
        for (_, other) in sysctl_d::setters(root, name) {
            if other.value.split_whitespace().ne(entry.new.split_whitespace()) {
                let said = one_line(&other.to_string());
                let _ =
                    writeln!(text, "# {name}: {said}, which takes effect if its file sorts later");
            }
        }
    }
    text
}

/// Changes in the format of a tool. A change that it cannot express becomes a comment.
pub fn emit(entries: &[Entry], format: Format) -> String {
    match format {
        Format::Shell => shell(entries),
        Format::SysctlD => lines(entries, "#", sysctl),
        Format::Udev => lines(entries, "#", udev),
        Format::Libvirt => libvirt(entries),
        Format::Networkd => networkd::files(entries),
    }
}

/// The commands that revert changes, the last change first.
pub fn undo_commands(entries: &[Entry]) -> impl Iterator<Item = String> {
    entries.iter().rev().map(|entry| entry.knob.command(&entry.old))
}

fn shell(entries: &[Entry]) -> String {
    let mut text = "#!/bin/sh\nset -e\n".to_owned();
    for entry in entries {
        let _ = writeln!(text, "# {}: {}", entry.check, one_line(&entry.reason));
        let _ = writeln!(text, "{}", entry.knob.command(&entry.new));
    }
    text += "# To undo it:\n";
    for command in undo_commands(entries) {
        let _ = writeln!(text, "#   {command}");
    }
    text
}

/// A finding may quote a guest, which must not be able to end a comment.
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
                let _ = writeln!(text, "{comment} cannot be set here: {command}");
            }
        }
    }
    text
}

/// A line of sysctl.d(5); `None` if the setting is not a sysctl.
pub(super) fn sysctl(entry: &Entry) -> Option<String> {
    let Store::Sysctl(name) = entry.knob.describe().store else { return None };
    Some(format!("{name} = {}", entry.new))
}

/// A rule of udev(7); `None` if it is not a setting of an interface.
///
/// It is a rule and not a file of systemd.link(5), because only the first link file that matches an
/// interface applies: ours would disable the file that names the interface.
pub(super) fn udev(entry: &Entry) -> Option<String> {
    let (about, new) = (entry.knob.describe(), &entry.new);
    // In a rule, other characters are patterns or syntax.
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.:@-".contains(&byte);
    let nic = about.nic.filter(|nic| nic.bytes().all(is_plain))?;
    let act = match &about.store {
        _ if about.risk == Risk::ByHand => return None,
        Store::Tool(words, _) if words.first() == Some(&"ringway") => return None,
        Store::Tool(..) => match about.execution(new) {
            Execution::Run(words) => format!("RUN+=\"/sbin/{}\"", words.join(" ")),
            Execution::Write { .. } => return None,
        },
        Store::Link { file, .. } => format!("ATTR{{{file}}}=\"{new}\""),
        Store::File(path) => {
            let file = path.strip_prefix(&format!("sys/class/net/{nic}/"))?;
            format!("ATTR{{{file}}}=\"{new}\"")
        }
        Store::Sysctl(_) => return None,
    };
    Some(format!("ACTION==\"add\", SUBSYSTEM==\"net\", KERNEL==\"{nic}\", {act}"))
}

fn libvirt(entries: &[Entry]) -> String {
    let mut text = String::new();
    for entry in entries {
        let (about, new) = (entry.knob.describe(), &entry.new);
        let _ = writeln!(text, "<!-- {}: {} -->", entry.check, one_line(&entry.reason));
        let line = match (about.libvirt, &about.store) {
            (Some(Libvirt::Queues), _) => format!("<driver name=\"vhost\" queues=\"{new}\"/>"),
            (Some(Libvirt::QueueSize), Store::Tool(words, _)) => {
                let which = words.last().copied().unwrap_or_default();
                format!("<driver name=\"vhost\" {which}_queue_size=\"{new}\"/>")
            }
            (Some(Libvirt::Mtu), _) => format!("<mtu size=\"{new}\"/>"),
            (Some(Libvirt::Offload(attributes)), _) => {
                let set: Vec<String> =
                    attributes.iter().map(|one| format!("{one}=\"{new}\"")).collect();
                let set = set.join(" ");
                format!("<driver name=\"vhost\"><host {set}/><guest {set}/></driver>")
            }
            (Some(Libvirt::QueueSize) | None, _) => none_of_libvirt(entry),
        };
        let _ = writeln!(text, "{line}");
    }
    text
}

fn none_of_libvirt(entry: &Entry) -> String {
    format!("<!-- not a part of a guest: {} -->", one_line(&entry.knob.command(&entry.new)))
}
