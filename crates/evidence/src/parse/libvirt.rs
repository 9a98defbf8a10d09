//! `virsh dumpxml`: the configuration of a guest's network interfaces.

use std::collections::BTreeMap;

use roxmltree::{Document, Node, ParsingOptions};

use super::cpus::cpu_list;
use crate::{Gap, Text};

/// Nodes of a guest's XML; no guest has more.
const NODES_MAX: u32 = 100_000;
/// Virtual CPUs of a guest; libvirt supports no more.
const VCPUS_MAX: usize = 4096;

/// A guest of libvirt.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Guest {
    /// Its name.
    pub name: String,
    /// Virtual CPUs.
    pub vcpus: u32,
    /// The physical CPUs that virtual CPUs are pinned to, by number; unpinned ones are left out.
    pub pinned: BTreeMap<u32, Vec<usize>>,
    /// The line that pins the first of them.
    pub pinned_line: Option<usize>,
    /// The NUMA nodes that its memory is bound to, with the line; `None` if it may be on all.
    pub memory: Option<(Vec<usize>, usize)>,
    /// In the order of the XML.
    pub interfaces: Vec<Interface>,
}

/// One network interface of a guest.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Interface {
    /// Such as `virtio`, `e1000`; empty if the XML leaves it to libvirt.
    pub model: String,
    /// The host's end, such as `vnet3`; empty while the guest is off.
    pub target: String,
    /// `vhost` or `qemu`; empty if it is left to libvirt.
    pub driver: String,
    /// The configured number of queues.
    pub queues: u32,
    /// The line of the model, or of the interface.
    pub line: usize,
}

impl Guest {
    /// Parses the XML of a guest.
    pub fn parse(text: &Text) -> Result<Guest, Gap> {
        let options = ParsingOptions { nodes_limit: NODES_MAX, ..ParsingOptions::default() };
        let document = Document::parse_with_options(text.body(), options).map_err(|error| {
            let line = usize::try_from(error.pos().row).ok();
            text.unreadable(line, error.to_string())
        })?;
        let root = document.root_element();
        if root.tag_name().name() != "domain" {
            return Err(text.unreadable(Some(1), "expected <domain>"));
        }
        let name = child(root, "name").and_then(|node| node.text()).unwrap_or_default();
        let vcpus = child(root, "vcpu").and_then(|node| node.text()?.trim().parse().ok());
        let devices = child(root, "devices")
            .ok_or_else(|| text.unreadable(None, "expected <devices> in it"))?;
        let is_interface = |node: &Node<'_, '_>| node.has_tag_name("interface");
        let interfaces = devices.children().filter(is_interface).map(|node| {
            let model = child(node, "model");
            let of = |tag, attribute| child(node, tag)?.attribute(attribute);
            let position = model.unwrap_or(node).range().start;
            Interface {
                model: of("model", "type").unwrap_or_default().to_owned(),
                target: of("target", "dev").unwrap_or_default().to_owned(),
                driver: of("driver", "name").unwrap_or_default().to_owned(),
                queues: of("driver", "queues").and_then(|many| many.parse().ok()).unwrap_or(1),
                line: usize::try_from(document.text_pos_at(position).row).unwrap_or(1),
            }
        });
        let interfaces = interfaces.collect();
        let (name, vcpus) = (name.to_owned(), vcpus.unwrap_or(1));
        let line = |node: Node<'_, '_>| {
            usize::try_from(document.text_pos_at(node.range().start).row).unwrap_or(1)
        };
        let pins = child(root, "cputune").and_then(|node| child(node, "vcpupin"));
        let pinned_line = pins.or_else(|| child(root, "vcpu")).map(line);
        let memory = memory(root).map(|(nodes, node)| (nodes, line(node)));
        Ok(Guest { name, vcpus, pinned: pinned(root), pinned_line, memory, interfaces })
    }
}

/// The CPUs of `<vcpupin>`, or of `<vcpu>` for virtual CPUs without one.
fn pinned(root: Node<'_, '_>) -> BTreeMap<u32, Vec<usize>> {
    let vcpu = child(root, "vcpu");
    let of_all = vcpu.and_then(|node| cpu_list(node.attribute("cpuset")?));
    let count = vcpu.and_then(|node| node.text()?.trim().parse().ok()).unwrap_or(1);
    let each = (0..count).take(VCPUS_MAX).zip(std::iter::repeat(of_all));
    let mut pinned: BTreeMap<u32, Vec<usize>> =
        each.filter_map(|(vcpu, cpus)| Some((vcpu, cpus?))).collect();
    let pins = child(root, "cputune").into_iter().flat_map(|node| node.children());
    pinned.extend(pins.filter(|node| node.has_tag_name("vcpupin")).filter_map(|node| {
        Some((node.attribute("vcpu")?.parse().ok()?, cpu_list(node.attribute("cpuset")?)?))
    }));
    pinned
}

/// Lists of nodes have the same syntax as lists of CPUs.
fn memory<'a>(root: Node<'a, 'a>) -> Option<(Vec<usize>, Node<'a, 'a>)> {
    let memory = child(child(root, "numatune")?, "memory")?;
    // The other modes prefer nodes or interleave.
    let is_strict = memory.attribute("mode").is_none_or(|mode| mode == "strict");
    Some((cpu_list(memory.attribute("nodeset").filter(|_| is_strict)?)?, memory))
}

fn child<'a>(node: Node<'a, 'a>, tag: &str) -> Option<Node<'a, 'a>> {
    node.children().find(|child| child.has_tag_name(tag))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_has_a_model_a_target_and_queues() {
        let text = "<domain type='kvm'>\n<name>web</name><vcpu>4</vcpu><devices>\n\
                    <interface type='bridge'>\n<target dev='vnet3'/>\n<model type='virtio'/>\n\
                    <driver name='vhost' queues='4'/></interface></devices></domain>\n";
        let read = Guest::parse(&Text::new("virsh dumpxml web", text)).expect("sound");
        assert_eq!((read.name.as_str(), read.vcpus), ("web", 4));
        let nic = &read.interfaces[0];
        assert_eq!((nic.model.as_str(), nic.target.as_str(), nic.queues), ("virtio", "vnet3", 4));
        assert_eq!(nic.line, 5);
    }

    #[test]
    fn a_guest_is_held_to_cpus_and_nodes() {
        let text = "<domain><vcpu cpuset='4-7'>3</vcpu>\n<cputune><vcpupin vcpu='0' cpuset='1'/>\
                    </cputune><numatune><memory mode='strict' nodeset='0-1'/></numatune>\
                    <devices/></domain>\n";
        let read = Guest::parse(&Text::new("virsh dumpxml web", text)).expect("sound");
        let all = vec![4, 5, 6, 7];
        assert_eq!(read.pinned, BTreeMap::from([(0, vec![1]), (1, all.clone()), (2, all)]));
        assert_eq!((read.memory, read.pinned_line), (Some((vec![0, 1], 2)), Some(2)));
        let text = "<domain><vcpu cpuset='4-7'>4294967295</vcpu><devices/></domain>\n";
        let read = Guest::parse(&Text::new("virsh dumpxml web", text)).expect("sound");
        assert_eq!((read.pinned.len(), read.memory), (VCPUS_MAX, None));
    }

    #[test]
    fn an_entity_bomb_is_refused() {
        let bomb = "<!DOCTYPE x [<!ENTITY a 'aa'><!ENTITY b '&a;&a;'>]><domain>&b;</domain>";
        assert!(Guest::parse(&Text::new("virsh", bomb)).is_err());
    }
}
