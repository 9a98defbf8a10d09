//! libvirt's machines: how each runs now, and how it starts the next time.

use std::collections::BTreeMap;

use super::named::Guests;
use super::{Fact, Reader};
use crate::parse::libvirt::Guest;
use crate::piece::{MACHINE, MACHINE_BYTES_MAX, MACHINES_MAX};
use crate::{Gap, Piece, Text};

/// Files of running machines. Only root may read them, because they have passwords of consoles.
const RUNNING: &str = "run/libvirt/qemu";
/// Files of persistent machines, as they start the next time.
const STORED: &str = "etc/libvirt/qemu";

/// libvirt's machines.
#[derive(Debug)]
pub struct Machines {
    /// By name.
    pub all: BTreeMap<String, Machine>,
    /// Directories that could not be read, or only in part.
    pub gaps: Vec<Gap>,
}

/// One machine: what is known of it.
#[derive(Debug, Default)]
pub struct Machine {
    /// As it runs now; `None` if it does not run.
    pub running: Option<Result<Defined, Gap>>,
    /// As it starts the next time; `None` if it ends with its run.
    pub stored: Option<Result<Defined, Gap>>,
}

/// The definition of a machine, and the text that it is read from.
#[derive(Debug)]
pub struct Defined {
    /// The definition.
    pub guest: Guest,
    /// A file of libvirt, or the output of `virsh`.
    pub text: Text,
}

impl Fact for Machines {
    const PIECES: &'static [Piece] =
        &[Piece::Machines(RUNNING), Piece::Machines(STORED), Piece::All(Guests::PIECES)];

    fn read(at: &Reader) -> Result<Self, Gap> {
        let mut all = BTreeMap::<String, Machine>::new();
        let running = files(at, RUNNING);
        let is_any_running = !running.is_empty();
        for (name, found) in running {
            all.entry(name).or_default().running = Some(found);
        }
        for (name, found) in files(at, STORED) {
            all.entry(name).or_default().stored = Some(found);
        }
        // libvirt itself prints the definitions of running machines for all users.
        let guests: Guests = at.fact()?;
        let listed = guests.names();
        let names = listed.iter().flat_map(Text::lines).map(|(_, name)| name.trim());
        for name in names.filter(|name| is_name(name)).take(MACHINES_MAX) {
            let machine = all.entry(name.to_owned()).or_default();
            if matches!(&machine.running, None | Some(Err(Gap::Missing { .. }))) {
                machine.running = Some(guests.of(name).and_then(defined));
            }
        }
        let is_replaced = listed.is_ok() && !is_any_running;
        let gaps = at.refusal(RUNNING).filter(|_| !is_replaced).into_iter();
        let gaps = gaps.chain(at.refusal(STORED)).collect();
        Ok(Machines { all, gaps })
    }
}

/// The machines of a directory, by name.
fn files(at: &Reader, folder: &str) -> BTreeMap<String, Result<Defined, Gap>> {
    let mut names = at.list(folder);
    if let Ok(listed) = at.file(&format!("{folder}.names")) {
        names.extend(listed.lines().map(|(_, name)| name.to_owned()));
    }
    let mut found = BTreeMap::new();
    for file in names {
        let Some(name) = file.strip_suffix(MACHINE).filter(|name| is_name(name)) else {
            continue;
        };
        if found.len() < MACHINES_MAX && !found.contains_key(name) {
            let read = at.file(&format!("{folder}/{file}")).and_then(defined);
            found.insert(name.to_owned(), read);
        }
    }
    found
}

/// Names are printed; a crafted record may have any.
fn is_name(name: &str) -> bool {
    !name.is_empty() && !name.chars().any(char::is_control)
}

fn defined(text: Text) -> Result<Defined, Gap> {
    if text.body().len() > MACHINE_BYTES_MAX {
        let most = MACHINE_BYTES_MAX >> 20;
        return Err(text.unreadable(None, format!("expected no more than {most} MiB")));
    }
    Ok(Defined { guest: Guest::parse(&text)?, text })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Source;
    use crate::fact::Host;

    const XML: &str = "<domain><name>web</name><vcpu>4</vcpu><devices/></domain>\n";

    fn machines(pieces: &[(&str, &str)]) -> Machines {
        let own = |(path, text): &(&str, &str)| ((*path).to_owned(), (*text).to_owned());
        let host = Host::new(Source::Memory(pieces.iter().map(own).collect()));
        host.fact().expect("it reports gaps by machine")
    }

    fn origin(found: Option<&Result<Defined, Gap>>) -> String {
        found.map_or_else(
            || "none".to_owned(),
            |found| match found {
                Ok(defined) => defined.text.origin().to_owned(),
                Err(gap) => gap.to_string(),
            },
        )
    }

    #[test]
    fn a_machine_is_read_from_both_files() {
        let status = format!("<domstatus>{}</domstatus>\n", XML.trim());
        let found = machines(&[
            ("run/libvirt/qemu/web.xml", &status),
            ("run/libvirt/qemu/web.pid", "1\n"),
            ("etc/libvirt/qemu/web.xml", XML),
            ("etc/libvirt/qemu/old.xml", XML),
            ("etc/libvirt/qemu/\u{1b}[31m.xml", XML),
            ("etc/libvirt/qemu/.xml", XML),
            ("etc/libvirt/qemu/networks/default.xml", "<network/>\n"),
        ]);
        assert_eq!(found.all.keys().collect::<Vec<_>>(), ["old", "web"]);
        assert_eq!(origin(found.all["web"].running.as_ref()), "/run/libvirt/qemu/web.xml");
        assert_eq!(origin(found.all["web"].stored.as_ref()), "/etc/libvirt/qemu/web.xml");
        assert_eq!(origin(found.all["old"].running.as_ref()), "none");
        assert!(found.gaps.is_empty());
    }

    #[test]
    fn without_the_right_to_read_the_file_libvirt_is_asked() {
        let refused = "run/libvirt/qemu/web.xml\tPermission denied\n\
                       run/libvirt/qemu/db.xml\tPermission denied\n\
                       etc/libvirt/qemu\tPermission denied\n";
        let found = machines(&[
            ("refused", refused),
            ("run/libvirt/qemu.names", "db.xml\nweb.xml\n"),
            ("commands/virsh_-r_list_--name", "web\n"),
            ("commands/virsh_-r_dumpxml_web", XML),
        ]);
        assert_eq!(origin(found.all["web"].running.as_ref()), "virsh -r dumpxml web");
        let gap = origin(found.all["db"].running.as_ref());
        assert_eq!(gap, "/run/libvirt/qemu/db.xml: Permission denied");
        assert_eq!(found.gaps[0].to_string(), "/etc/libvirt/qemu: Permission denied");
    }

    #[test]
    fn a_malformed_file_is_named_with_its_line() {
        let found = machines(&[("run/libvirt/qemu/web.xml", "<domstatus>\n<domain>\n</x>\n")]);
        let gap = origin(found.all["web"].running.as_ref());
        assert!(gap.starts_with("/run/libvirt/qemu/web.xml:3: "), "{gap}");
    }

    #[test]
    fn a_definition_of_any_length_is_not_parsed() {
        let long = " ".repeat(MACHINE_BYTES_MAX) + XML;
        let found = machines(&[("etc/libvirt/qemu/web.xml", &long)]);
        let gap = origin(found.all["web"].stored.as_ref());
        assert!(gap.contains("no more than 1 MiB"), "{gap}");
    }
}
