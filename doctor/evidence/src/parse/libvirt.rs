//! The definition of a libvirt machine: what `virsh dumpxml` prints, and the files in which libvirt
//! keeps it. The file of a running machine has it inside `<domstatus>`.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use roxmltree::{Document, Node, ParsingOptions};

use super::cpus::cpu_list;
use crate::{Gap, Text};

/// Nodes of a guest's XML; no guest has more.
const NODES_MAX: u32 = 100_000;
/// Virtual CPUs of a guest; libvirt supports no more.
const VCPUS_MAX: usize = 4096;
/// The type of an interface that another process serves through a socket.
pub const VHOST_USER: &str = "vhostuser";
/// States of a machine whose virtual CPUs do not run: stopped by its toolstack, or asleep.
const PAUSED: [&str; 2] = ["paused", "pmsuspended"];

/// A guest of libvirt.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Guest {
    /// Its name.
    pub name: String,
    /// Whether its virtual CPUs are stopped; `None` where only a definition is known.
    pub is_paused: Option<bool>,
    /// Virtual CPUs.
    pub vcpus: u32,
    /// Those that the guest has when it starts; others can be plugged later.
    pub vcpus_online: u32,
    /// The line of their number, if it has one.
    pub vcpus_line: Option<usize>,
    /// The physical CPUs that virtual CPUs are pinned to, by number; unpinned ones are left out.
    pub pinned: BTreeMap<u32, Vec<usize>>,
    /// The line that pins the first of them.
    pub pinned_line: Option<usize>,
    /// The NUMA nodes that its memory is bound to, with the line; `None` if it may be on all.
    pub memory: Option<(Vec<usize>, usize)>,
    /// Whether QEMU maps all its memory as shared, so that another process can serve its devices,
    /// with the line that decides it; `None` if the definition does not say.
    pub is_shared: Option<(bool, usize)>,
    /// In the order of the XML.
    pub interfaces: Vec<Interface>,
}

/// One network interface of a guest.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Interface {
    /// What it is connected to: `bridge`, `network`, `direct`, `vhostuser` and others. For a
    /// running machine it is what libvirt made of `network`.
    pub kind: String,
    /// Such as `virtio`, `e1000`; empty if the XML leaves it to libvirt.
    pub model: String,
    /// Its address; empty if libvirt has not chosen one yet.
    pub mac: String,
    /// The socket of `vhostuser`; empty for others.
    pub socket: String,
    /// QEMU's end of that socket: `server` if it creates the socket, `client` if it connects.
    pub mode: String,
    /// The line of the socket, or of the interface.
    pub socket_line: usize,
    /// The host's end, such as `vnet3`; empty while the guest is off.
    pub target: String,
    /// `vhost` or `qemu`; empty if it is left to libvirt.
    pub driver: String,
    /// The configured number of queues.
    pub queues: u32,
    /// The line of the model, or of the interface.
    pub line: usize,
    /// The line of the number of queues, or else of the model or interface.
    pub queues_line: usize,
}

impl Guest {
    /// Parses the XML of a guest.
    pub fn parse(text: &Text) -> Result<Guest, Gap> {
        let document = document(text)?;
        let lines = Lines::new(text.body());
        let root = domain(&document, text)?;
        let name = child(root, "name").and_then(|node| node.text()).unwrap_or_default().to_owned();
        let vcpu = child(root, "vcpu");
        let vcpus_line = vcpu.map(|node| lines.of_node(node));
        let number = |digits: Option<&str>, what: &str, line: Option<usize>, default: u32| {
            let Some(digits) = digits else { return Ok(default) };
            let number = digits.trim().parse::<NonZeroU32>();
            number.map(u32::from).map_err(|_| text.unreadable(line, format!("expected {what}")))
        };
        let vcpus_of = |digits, default| number(digits, "a number of CPUs", vcpus_line, default);
        let vcpus = vcpus_of(vcpu.map(|node| node.text().unwrap_or_default()), 1)?;
        let vcpus_online = vcpus_of(vcpu.and_then(|node| node.attribute("current")), vcpus)?;
        let devices = child(root, "devices")
            .ok_or_else(|| text.unreadable(None, "expected <devices> in it"))?;
        let is_interface = |node: &Node<'_, '_>| node.has_tag_name("interface");
        let interfaces = devices.children().filter(is_interface).map(|node| {
            let (model, driver) = (child(node, "model"), child(node, "driver"));
            let of = |tag, attribute| child(node, tag)?.attribute(attribute);
            let owned = |word: Option<&str>| word.unwrap_or_default().to_owned();
            let kind = of("actual", "type").or_else(|| node.attribute("type"));
            let driver = driver.filter(|driver| driver.has_attribute("queues"));
            let line = lines.of_node(model.unwrap_or(node));
            let queues_line = driver.map_or(line, |driver| lines.of_node(driver));
            let what = "a number of queues";
            // libvirt reads 0 as if there were no number.
            let queues = of("driver", "queues").filter(|digits| digits.trim() != "0");
            Ok(Interface {
                kind: owned(kind),
                model: owned(of("model", "type")),
                mac: owned(of("mac", "address")),
                socket: owned(of("source", "path").filter(|_| kind == Some(VHOST_USER))),
                mode: owned(of("source", "mode").filter(|_| kind == Some(VHOST_USER))),
                socket_line: lines.of_node(child(node, "source").unwrap_or(node)),
                target: owned(of("target", "dev")),
                driver: owned(of("driver", "name")),
                queues: number(queues, what, Some(queues_line), 1)?,
                line,
                queues_line,
            })
        });
        let interfaces = interfaces.collect::<Result<_, Gap>>()?;
        let pins = child(root, "cputune").and_then(|node| child(node, "vcpupin"));
        let pinned_line = pins.or(vcpu).map(|node| lines.of_node(node));
        let memory = memory(root).map(|(nodes, node)| (nodes, lines.of_node(node)));
        let is_shared = is_shared(root).map(|(is_shared, node)| (is_shared, lines.of_node(node)));
        let state = document.root_element().attribute("state");
        Ok(Guest {
            name,
            is_paused: state.map(|state| PAUSED.contains(&state)),
            vcpus,
            vcpus_online,
            vcpus_line,
            pinned: pinned(root, vcpus),
            pinned_line,
            memory,
            is_shared,
            interfaces,
        })
    }
}

/// An element that a record keeps, with its attributes and the elements in it.
struct Kept {
    tag: &'static str,
    attributes: &'static [&'static str],
    children: &'static [Kept],
}

const fn kept(
    tag: &'static str,
    attributes: &'static [&'static str],
    children: &'static [Kept],
) -> Kept {
    Kept { tag, attributes, children }
}

const DOMAIN: Kept = kept(
    "domain",
    &["type", "id"],
    &[
        kept("name", &[], &[]),
        kept("memory", &["unit"], &[]),
        MEMORY_BACKING,
        kept("vcpu", &["placement", "current", "cpuset"], &[]),
        kept("cputune", &[], &[kept("vcpupin", &["vcpu", "cpuset"], &[])]),
        kept("numatune", &[], &[kept("memory", &["mode", "nodeset"], &[])]),
        kept("cpu", &[], &[kept("numa", &[], &[kept("cell", &["id", "memAccess"], &[])])]),
        kept("devices", &[], &[INTERFACE]),
        // Without its arguments, which may have anything.
        kept("commandline", &[], &[]),
    ],
);

const MEMORY_BACKING: Kept = kept(
    "memoryBacking",
    &[],
    &[kept("hugepages", &[], &[]), kept("source", &["type"], &[]), kept("access", &["mode"], &[])],
);

const INTERFACE: Kept = kept(
    "interface",
    &["type"],
    &[
        kept("mac", &["address"], &[]),
        kept("source", &["bridge", "network", "dev", "mode", "type", "path"], &[]),
        kept("actual", &["type"], &[]),
        kept("virtualport", &["type"], &[]),
        kept("target", &["dev"], &[]),
        kept("model", &["type"], &[]),
        kept("driver", &["name", "queues"], &[]),
    ],
);

const STATUS: Kept = kept("domstatus", &["state"], &[DOMAIN]);

/// The part of a definition that checks read, each element on the line where it was. The rest may
/// have passwords, of consoles for example.
pub(crate) fn cut(text: &Text) -> Result<String, Gap> {
    let document = document(text)?;
    domain(&document, text)?;
    let root = document.root_element();
    let mut written = Written { lines: Lines::new(text.body()), xml: String::new(), line: 1 };
    written.element(root, if root.has_tag_name("domain") { &DOMAIN } else { &STATUS });
    Ok(written.xml + "\n")
}

/// The XML that is kept, as far as it is written.
struct Written {
    lines: Lines,
    xml: String,
    line: usize,
}

impl Written {
    /// Writes an element. The depth of the recursion is that of the constants.
    fn element(&mut self, node: Node<'_, '_>, kept: &Kept) {
        self.go_to(self.lines.of(node.range().start));
        self.xml += &format!("<{}", kept.tag);
        for name in kept.attributes {
            let value = node.attribute(*name);
            self.xml.extend(value.map(|value| format!(" {name}='{}'", escaped(value))));
        }
        let is_leaf = kept.children.is_empty();
        let text = escaped(node.text().filter(|_| is_leaf).unwrap_or_default().trim());
        if is_leaf && text.is_empty() {
            self.xml += "/>";
            return;
        }
        self.xml += &format!(">{text}");
        for child in node.children() {
            let of_child = |kept: &&Kept| child.has_tag_name(kept.tag);
            if let Some(kept) = kept.children.iter().find(of_child) {
                self.element(child, kept);
            }
        }
        self.go_to(self.lines.of(node.range().end.saturating_sub(1)));
        self.xml += &format!("</{}>", kept.tag);
    }

    /// Ends lines until the next letter is on this one.
    fn go_to(&mut self, line: usize) {
        self.xml.extend(std::iter::repeat_n('\n', line.saturating_sub(self.line)));
        self.line = self.line.max(line);
    }
}

fn escaped(text: &str) -> String {
    let mut xml = String::new();
    for letter in text.chars() {
        match letter {
            '&' => xml += "&amp;",
            '<' => xml += "&lt;",
            '\'' => xml += "&apos;",
            // Character references, because a line of the file must remain a line.
            '>' | '\n' | '\r' | '\t' => xml += &format!("&#{};", u32::from(letter)),
            other => xml.push(other),
        }
    }
    xml
}

/// Where the lines of a text begin.
struct Lines(Vec<usize>);

impl Lines {
    fn new(body: &str) -> Lines {
        let ends = body.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
        Lines(ends.map(|(at, _)| at + 1).collect())
    }

    /// The line of a byte.
    fn of(&self, at: usize) -> usize {
        self.0.partition_point(|start| *start <= at) + 1
    }

    /// The line on which an element begins.
    fn of_node(&self, node: Node<'_, '_>) -> usize {
        self.of(node.range().start)
    }
}

fn document(text: &Text) -> Result<Document<'_>, Gap> {
    let options = ParsingOptions { nodes_limit: NODES_MAX, ..ParsingOptions::default() };
    Document::parse_with_options(text.body(), options).map_err(|error| {
        let line = match &error {
            // These have no position.
            roxmltree::Error::UnclosedRootNode => text.lines().last().map(|(line, _)| line),
            roxmltree::Error::NodesLimitReached | roxmltree::Error::NoRootNode => None,
            error => usize::try_from(error.pos().row).ok(),
        };
        text.unreadable(line, error.to_string())
    })
}

/// The definition in a document.
fn domain<'a>(document: &'a Document<'a>, text: &Text) -> Result<Node<'a, 'a>, Gap> {
    let root = document.root_element();
    let inner = match root.tag_name().name() {
        "domain" => Some(root),
        "domstatus" => child(root, "domain"),
        _ => None,
    };
    inner.ok_or_else(|| text.unreadable(Some(1), "expected <domain>"))
}

/// The CPUs of `<vcpupin>`, or of `<vcpu>` for virtual CPUs without one.
fn pinned(root: Node<'_, '_>, vcpus: u32) -> BTreeMap<u32, Vec<usize>> {
    let of_all = child(root, "vcpu").and_then(|node| cpu_list(node.attribute("cpuset")?));
    let each = (0..vcpus).take(VCPUS_MAX).zip(std::iter::repeat(of_all));
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

/// Whether QEMU maps all memory as shared, with the element that decides it.
///
/// A cell of NUMA has its own mode or that of the machine (`qemuBuildMemoryBackendProps` of
/// libvirt). Without a mode, QEMU shares a memfd only.
fn is_shared<'a>(root: Node<'a, 'a>) -> Option<(bool, Node<'a, 'a>)> {
    // libvirt writes <memory> into each definition; records of older versions lack it, and they
    // lack what is read here. QEMU's own arguments may share the memory, too.
    let memory = child(root, "memory").filter(|_| child(root, "commandline").is_none())?;
    let backing = child(root, "memoryBacking");
    let of = |tag, attribute| child(backing?, tag)?.attribute(attribute);
    let is_memfd = of("source", "type") == Some("memfd");
    let is_shared = |mode: Option<&str>| mode.map_or(is_memfd, |mode| mode == "shared");
    let of_all = of("access", "mode");
    let cells = child(root, "cpu").and_then(|cpu| child(cpu, "numa"));
    let cells: Vec<Node<'_, '_>> = cells
        .into_iter()
        .flat_map(|numa| numa.children())
        .filter(|node| node.has_tag_name("cell"))
        .collect();
    let of_cell = |cell: &Node<'_, '_>| is_shared(cell.attribute("memAccess").or(of_all));
    let decides = backing.unwrap_or(memory);
    Some(match cells.iter().find(|cell| !of_cell(cell)) {
        Some(private) => (false, private.to_owned()),
        None if cells.is_empty() => (is_shared(of_all), decides),
        None => (true, decides),
    })
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

    /// As libvirt writes it, with what a record must not have.
    const RUNNING: &str = "\
        <!--\nWARNING: THIS IS AN AUTO-GENERATED FILE.\n-->\n\
        <domstatus state='running' reason='booted' pid='4711'>\n\
        <monitor path='/var/lib/libvirt/qemu/domain-1-web/monitor.sock' type='unix'/>\n\
        <domain type='kvm' id='1'>\n<name>a&lt;b</name>\n<vcpu current='4'>8</vcpu>\n<devices>\n\
        <graphics type='vnc' passwd='secret'/>\n<interface type='network'>\n\
        <mac address='52:54:00:00:00:01'/>\n<actual type='bridge'/>\n\
        <model type='virtio'/>\n<driver name='vhost'\n queues='2'/>\n</interface>\n\
        <interface type='vhostuser'>\n<source type='unix' path='/run/a&apos;b' mode='server'/>\n\
        <model type='virtio'/>\n</interface>\n</devices>\n</domain></domstatus>\n";

    #[test]
    fn a_running_machine_is_read_from_its_status() {
        let read = Guest::parse(&Text::new("web.xml", RUNNING)).expect("sound");
        assert_eq!((read.vcpus, read.vcpus_online, read.vcpus_line), (8, 4, Some(8)));
        let [bridged, vhostuser] = read.interfaces.as_slice() else { panic!("{read:#?}") };
        assert_eq!((bridged.kind.as_str(), bridged.queues, bridged.queues_line), ("bridge", 2, 15));
        assert_eq!((vhostuser.socket.as_str(), vhostuser.queues), ("/run/a'b", 1));
        assert_eq!((bridged.mode.as_str(), vhostuser.mode.as_str()), ("", "server"));
        assert_eq!((vhostuser.line, vhostuser.queues_line), (20, 20));
        assert_eq!((bridged.socket_line, vhostuser.socket_line), (11, 19));
        assert_eq!(read.is_paused, Some(false));
    }

    #[test]
    fn a_record_has_the_same_facts_on_the_same_lines_and_no_password() {
        let text = Text::new("web.xml", RUNNING);
        let kept = cut(&text).expect("sound");
        let again = Text::new("web.xml", kept.as_str());
        assert_eq!(Guest::parse(&again), Guest::parse(&text));
        assert_eq!(again.quote(15).text, "<driver name='vhost' queues='2'/>");
        for secret in ["secret", "graphics", "monitor", "4711"] {
            assert!(!kept.contains(secret), "{kept}");
        }
        assert_eq!(cut(&again).expect("sound"), kept);
    }

    #[test]
    fn memory_is_shared_by_its_mode_or_that_of_each_cell() {
        let with = |inner: &str| {
            let text = format!(
                "<domain xmlns:qemu='http://libvirt.org/schemas/domain/qemu/1.0'>\n\
                 <memory unit='KiB'>196608</memory>\n{inner}\n<devices/></domain>\n"
            );
            let text = Text::new("web.xml", text);
            let again = Text::new("web.xml", cut(&text).expect("sound"));
            let read = Guest::parse(&text).expect("sound").is_shared;
            assert_eq!(read, Guest::parse(&again).expect("sound").is_shared, "{inner}");
            read
        };
        let cells = |one: &str, other: &str| {
            format!("<cpu><numa><cell id='0' {one}/>\n<cell id='1' {other}/></numa></cpu>")
        };
        let shared = "<memoryBacking><access mode='shared'/></memoryBacking>";
        let huge = "<memoryBacking><hugepages/></memoryBacking>";
        let (is_so, is_not) = ("memAccess='shared'", "memAccess='private'");
        for (inner, expected) in [
            (String::new(), Some((false, 2))),
            (huge.to_owned(), Some((false, 3))),
            (shared.to_owned(), Some((true, 3))),
            ("<memoryBacking><source type='memfd'/></memoryBacking>".to_owned(), Some((true, 3))),
            ("<memoryBacking><source type='file'/></memoryBacking>".to_owned(), Some((false, 3))),
            (huge.to_owned() + &cells(is_so, is_so), Some((true, 3))),
            (huge.to_owned() + &cells(is_so, ""), Some((false, 4))),
            (shared.to_owned() + &cells("", is_so), Some((true, 3))),
            (shared.to_owned() + &cells("", is_not), Some((false, 4))),
            ("<qemu:commandline><qemu:arg value='secret'/></qemu:commandline>".to_owned(), None),
        ] {
            assert_eq!(with(&inner), expected, "{inner}");
        }
        // A record of an older version.
        let read = Guest::parse(&Text::new("web.xml", "<domain><devices/></domain>\n"));
        assert_eq!(read.expect("sound").is_shared, None);
    }

    #[test]
    fn an_impossible_number_is_refused_with_its_line() {
        for (good, bad) in [("queues='2'", "queues='x'"), (">8<", ">-8<"), ("'4'", "'0'")] {
            let torn = RUNNING.replacen(good, bad, 1);
            let gap = Guest::parse(&Text::new("web.xml", torn)).expect_err(bad).to_string();
            assert!(gap.starts_with("web.xml:15: ") || gap.starts_with("web.xml:8: "), "{gap}");
        }
        let none = RUNNING.replacen("queues='2'", "queues='0'", 1);
        let read = Guest::parse(&Text::new("web.xml", none)).expect("libvirt takes it");
        assert_eq!(read.interfaces[0].queues, 1);
    }

    #[test]
    fn what_is_malformed_is_refused_with_its_line() {
        let torn = RUNNING.replace("<devices>", "<devices");
        let short = Text::new("web.xml", "<domstatus>\n<domain>\n");
        let gap = Guest::parse(&short).expect_err("short").to_string();
        assert!(gap.starts_with("web.xml:2: "), "{gap}");
        for read in [|text: &Text| Guest::parse(text).map(drop), |text: &Text| cut(text).map(drop)]
        {
            let gap = read(&Text::new("web.xml", torn.as_str())).expect_err("torn").to_string();
            assert!(gap.starts_with("web.xml:1"), "{gap}");
            assert!(read(&Text::new("web.xml", "<network/>")).is_err());
        }
    }

    #[test]
    fn a_crafted_file_is_read_or_refused_in_time() {
        let deep = "<a>".repeat(90_000) + &"</a>".repeat(90_000);
        let deep = format!("<domain>{deep}<devices/></domain>");
        assert!(Guest::parse(&Text::new("web.xml", deep)).is_ok());
        let wide = format!("<domain><devices>{}</devices></domain>", "<interface/>".repeat(90_000));
        let read = Guest::parse(&Text::new("web.xml", wide)).expect("sound");
        assert_eq!(read.interfaces.len(), 90_000);
        let more = "<interface/>".repeat(200_000);
        let more = format!("<domain><devices>{more}</devices></domain>");
        assert!(Guest::parse(&Text::new("web.xml", more)).is_err());
    }

    #[test]
    fn an_entity_bomb_is_refused() {
        let bomb = "<!DOCTYPE x [<!ENTITY a 'aa'><!ENTITY b '&a;&a;'>]><domain>&b;</domain>";
        assert!(Guest::parse(&Text::new("virsh", bomb)).is_err());
    }
}
