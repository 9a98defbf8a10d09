//! Queues of libvirt's machines and of ringway's vifs (D14): what is said of each, and what is not
//! judged.

mod saved;

use ringway_doctor::check;
use ringway_doctor::evidence::Source;
use ringway_doctor::fact::Host;
use ringway_doctor::finding::{Finding, Severity};
use saved::{Pieces, host};

const VM: &str = "run/libvirt/qemu/vm1.xml";
const STORED: &str = "etc/libvirt/qemu/vm1.xml";
const VIFS: [&str; 2] =
    ["sample-1/commands/ringway_vif_list_--json", "sample-2/commands/ringway_vif_list_--json"];

fn findings(pieces: Pieces) -> Vec<Finding> {
    check::find("D14").expect("a check").run(&Host::new(Source::Memory(pieces)))
}

fn replace(pieces: &mut Pieces, path: &str, old: &str, new: &str) {
    let text = pieces.get_mut(path).expect("it is in the fixture");
    assert!(text.contains(old), "{path} has no {old}: {text}");
    *text = text.replace(old, new);
}

/// The only finding, by what is asked of it.
fn only(pieces: Pieces) -> (Severity, String, String) {
    let found = findings(pieces);
    let [one] = found.as_slice() else { panic!("expected one finding: {found:#?}") };
    let advice = one.advice.iter().map(|advice| format!("{} {:?}", advice.text, advice.commands));
    (one.severity, one.summary.clone(), advice.collect())
}

#[test]
fn few_queues_on_a_bridge_are_noted_with_their_lines_and_the_edit() {
    let found = findings(host("d14-healthy-libvirt-few"));
    let all: Vec<&str> = found.iter().map(|one| one.summary.as_str()).collect();
    assert_eq!(
        all,
        [
            "interface vnet1 of machine node has 1 queue, and the machine has 8 CPUs",
            "interface vnet2 of machine node has 4 queues, and the machine has 8 CPUs",
            "interface 52:54:00:00:00:03 of machine off has 1 queue, and the machine has 2 CPUs; \
             it does not run now",
        ]
    );
    assert!(found.iter().all(|one| one.severity == Severity::Note), "{found:#?}");
    let [first, second, _] = found.as_slice() else { panic!("{found:#?}") };
    let lines: Vec<(&str, Option<usize>)> =
        first.evidence.iter().map(|quote| (quote.file.as_str(), quote.line)).collect();
    let file = "/run/libvirt/qemu/node.xml";
    assert_eq!(lines, [(file, Some(11)), (file, Some(18))]);
    assert_eq!(first.advice[0].commands, ["virsh edit node"]);
    for part in ["<driver name='vhost' queues='8'/>", "virsh reboot keeps", "ethtool -L", "256"] {
        assert!(first.advice[0].text.contains(part), "{part}: {first:#?}");
    }
    // It was edited already, and has not been stopped since.
    assert!(second.advice[0].commands.is_empty() && second.advice[0].text.contains("has 8 queues"));
    assert_eq!(second.evidence.last().expect("a line").file, "/etc/libvirt/qemu/node.xml");
}

#[test]
fn no_more_queues_are_advised_than_the_kernel_and_qemu_have() {
    let mut pieces = host("d14-healthy-libvirt-few");
    pieces.remove("run/libvirt/qemu/node.xml");
    pieces.remove("etc/libvirt/qemu/node.xml");
    replace(&mut pieces, "etc/libvirt/qemu/off.xml", " current='2'>300", ">4000");
    let (_, _, advice) = only(pieces.clone());
    assert!(advice.contains("queues='256'") && !advice.contains("4000"), "{advice}");
    replace(&mut pieces, "etc/libvirt/qemu/off.xml", "type='bridge'", "type='vhostuser'");
    let (_, _, advice) = only(pieces);
    assert!(advice.contains("<driver queues='511'/>") && !advice.contains("4000"), "{advice}");
}

#[test]
fn interfaces_that_have_no_queues_to_set_are_counted_with_the_reason() {
    for (old, new, why) in [
        ("type='virtio'", "type='e1000'", "model e1000"),
        ("      <model type='virtio'/>\n", "", "no model"),
        ("type='bridge'", "type='hostdev'", "type hostdev"),
        ("type='bridge'", "type='user'", "type user"),
        ("type='bridge'", "type='vdpa'", "type vdpa"),
        ("<driver name='vhost'", "<driver name='qemu'", "driver qemu"),
    ] {
        let mut pieces = host("d14-healthy-libvirt-few");
        pieces.remove("etc/libvirt/qemu/off.xml");
        replace(&mut pieces, "run/libvirt/qemu/node.xml", old, new);
        let (severity, summary, _) = only(pieces);
        let expected = format!("read 2 interfaces of machine node, and judged none ({why})");
        assert_eq!((severity, summary), (Severity::Note, expected));
    }
}

#[test]
fn what_was_not_judged_is_said_beside_an_all_clear_and_beside_findings() {
    let mut pieces = host("d14-healthy-libvirt");
    let (severity, summary, _) = only(pieces.clone());
    assert_eq!(severity, Severity::Ok);
    let expected = "enough queues for machine node (8 CPUs); 1 interface of machine old was not \
                    judged (model e1000)";
    assert_eq!(summary, expected);

    let node = "run/libvirt/qemu/node.xml";
    let text = pieces.get_mut(node).expect("there");
    *text = text.replacen("name='vhost' queues='8'", "name='qemu'", 1);
    let (_, summary, _) = only(pieces.clone());
    let end = "2 interfaces of machines were not judged (driver qemu: 1, model e1000: 1)";
    assert!(summary.ends_with(end), "{summary}");

    replace(&mut pieces, node, " queues='8'", "");
    let said: Vec<String> = findings(pieces).into_iter().map(|one| one.summary).collect();
    assert!(said.len() == 2 && said.contains(&end.to_owned()), "{said:#?}");
}

#[test]
fn a_stored_definition_that_cannot_be_read_is_named_although_the_machine_runs() {
    let mut pieces = host("d14-healthy-libvirt");
    replace(&mut pieces, "etc/libvirt/qemu/node.xml", "</vcpu>", "</cpu>");
    let found = findings(pieces);
    let said: Vec<(Severity, &str)> =
        found.iter().map(|one| (one.severity, one.summary.as_str())).collect();
    assert_eq!(said.len(), 2, "{said:#?}");
    assert_eq!(said[0].0, Severity::Unknown);
    assert!(said[0].1.starts_with("could not read /etc/libvirt/qemu/node.xml:"), "{said:#?}");
    assert_eq!(said[1].0, Severity::Ok);
    assert!(said[1].1.starts_with("enough queues for machine node (8 CPUs)"), "{said:#?}");
}

#[test]
fn more_queues_than_the_kernel_or_qemu_have_are_a_warning() {
    let off = "etc/libvirt/qemu/off.xml";
    for (kind, queues, most, limit) in
        [("bridge", 1000, 2, 256), ("direct", 257, 2, 256), ("vhostuser", 512, 2, 511)]
    {
        let mut pieces = host("d14-healthy-libvirt-few");
        pieces.retain(|path, _| !path.ends_with("node.xml"));
        replace(&mut pieces, off, "type='bridge'", &format!("type='{kind}'"));
        let model = "<model type='virtio'/>";
        let driver = |queues: u64| format!("{model}<driver queues='{queues}'/>");
        let mut fits = pieces.clone();
        replace(&mut fits, off, model, &driver(limit));
        assert_eq!(only(fits).0, Severity::Ok);
        replace(&mut pieces, off, model, &driver(queues));
        let (severity, summary, advice) = only(pieces);
        assert_eq!(severity, Severity::Warning);
        let said = format!("asks for {queues} queues, and ");
        let end = format!("up to {limit}; it does not run now");
        assert!(summary.contains(&said) && summary.ends_with(&end), "{summary}");
        assert!(advice.contains(&format!("queues='{most}'/>")), "{advice}");
        assert!(advice.contains("at the next start"), "{advice}");
    }

    // A machine that runs, and was edited: no restart is advised.
    let mut pieces = host("d14-healthy-libvirt-few");
    replace(&mut pieces, "etc/libvirt/qemu/node.xml", "queues='8'", "queues='1000'");
    let found = findings(pieces);
    assert_eq!(found[0].severity, Severity::Warning, "{found:#?}");
    assert!(found[0].summary.ends_with("up to 256, when the machine starts the next time"));
    let restarts = found.iter().flat_map(|one| &one.advice).filter(|it| it.commands.is_empty());
    assert_eq!(restarts.count(), 0, "{found:#?}");
}

#[test]
fn with_ringway_no_more_queues_are_advised_than_it_offers_and_both_numbers_are_said() {
    let pieces = host("d14-healthy-libvirt-vhostuser");
    let (severity, summary, advice) = only(pieces.clone());
    let expected = "interface 52:54:00:00:00:11 of machine vm1 has 1 of 4 queues that ringway \
                    offers (vm1), and the machine has 8 CPUs";
    assert_eq!((severity, summary.as_str()), (Severity::Note, expected));
    assert!(
        advice.contains("<driver queues='4'/>") && advice.contains("No more than 4"),
        "{advice}"
    );
    assert!(!advice.contains("name='vhost'"), "{advice}");

    // The next start counts, because a machine gets no more queues before.
    let mut next = pieces.clone();
    for path in VIFS {
        let socket = "\"socket\": \"/run/ringway/vm1.sock\",";
        replace(&mut next, path, socket, &format!("{socket} \"max_queues_next\": 2,"));
    }
    let (_, summary, advice) = only(next);
    assert!(summary.contains("has 1 of 2 queues that ringway offers"), "{summary}");
    assert!(advice.contains("<driver queues='2'/>") && advice.contains("No more than 2"));

    // ringway offers all that the definition asks for, and no more.
    let mut few = pieces;
    for path in VIFS {
        replace(&mut few, path, "\"max_queues\": 4", "\"max_queues\": 1");
    }
    let (severity, summary, advice) = only(few);
    let expected = "ringway offers 1 queue (vm1), and machine vm1 has 8 CPUs";
    assert_eq!((severity, summary.as_str()), (Severity::Note, expected));
    assert!(advice.contains("queues = 8 in the [[vhost]] of vm1"), "{advice}");
}

#[test]
fn a_guest_that_leaves_queues_unused_is_a_warning_only_if_it_has_the_cpus() {
    let pieces = host("d14-sick-libvirt-vhostuser");
    let (severity, summary, advice) = only(pieces.clone());
    assert_eq!(severity, Severity::Warning);
    let expected = "the guest of vm1 uses 1 of 4 queues; machine vm1 has 4 CPUs, asks for 8 \
                    queues, and ringway offers 8";
    assert_eq!(summary, expected);
    assert!(advice.contains("In the guest: ethtool -L eth0 combined 4"), "{advice}");

    let mut one_cpu = pieces.clone();
    replace(&mut one_cpu, VM, "current='4'", "current='1'");
    assert!(findings(one_cpu).iter().all(|one| one.severity == Severity::Ok));

    let mut old_driver = pieces.clone();
    for path in VIFS {
        replace(&mut old_driver, path, "\"mq\", ", "");
    }
    let (severity, _, advice) = only(old_driver);
    assert!(severity == Severity::Note && advice.contains("driver of virtio-net"), "{advice}");

    // Without the machine's definition, the number of CPUs is unknown.
    let mut unknown = pieces;
    unknown.remove(VM);
    let (severity, summary, advice) = only(unknown);
    assert_eq!(severity, Severity::Note);
    assert_eq!(summary, "the guest of vm1 uses 1 of 8 queues that ringway offers");
    assert!(advice.contains("or the number of its CPUs if that is less"), "{advice}");
}

#[test]
fn ringway_alone_notes_a_guest_with_unused_queues() {
    for (name, part) in [
        ("d14-healthy-ringway", "run in it: ethtool -L eth0 combined 8"),
        ("d14-healthy-ringway-one", "<driver queues='N'/>"),
    ] {
        let pieces = host(name);
        let (severity, _, advice) = only(pieces.clone());
        assert!(severity == Severity::Note && advice.contains(part), "{name}: {advice}");
        let mut gone = pieces;
        for path in VIFS {
            let text = gone.get_mut(path).expect("there");
            let (start, _) = text.split_once("\"queues\": [").expect("queues");
            *text = format!("{start}\"queues\": []\n  }}\n]\n");
        }
        let found = findings(gone);
        assert!(found.iter().all(|one| one.severity == Severity::Ok), "not connected: {found:#?}");
    }
}

#[test]
fn a_definition_that_asks_for_more_than_ringway_offers_is_refused() {
    let pieces = host("d14-sick-libvirt-more");
    let (severity, summary, advice) = only(pieces.clone());
    let expected = "machine vm1 asks for 8 queues, and ringway offers 4 (vm1)";
    assert_eq!((severity, summary.as_str()), (Severity::Problem, expected));
    assert!(advice.contains("queues = 8 in the [[vhost]] of vm1"), "{advice}");

    let mut stopped = pieces;
    let text = stopped.remove(VM).expect("there");
    let (_, inner) = text.split_once("<domain type").expect("a domain");
    let inner = inner.replace("</domstatus>", "");
    stopped.insert("etc/libvirt/qemu/vm1.xml".to_owned(), format!("<domain type{inner}"));
    let (severity, summary, _) = only(stopped);
    assert_eq!(severity, Severity::Warning);
    assert!(summary.ends_with("does not run now"), "{summary}");
}

#[test]
fn no_more_queues_are_advised_than_a_vif_of_ringway_can_have() {
    let pieces = host("d14-sick-libvirt-more");
    for (asked, is_possible) in [(64, true), (65, false), (100, false), (1000, false)] {
        let mut pieces = pieces.clone();
        replace(&mut pieces, VM, "queues='8'", &format!("queues='{asked}'"));
        let (severity, summary, advice) = only(pieces);
        assert_eq!(severity, Severity::Problem);
        assert!(summary.contains(&format!("asks for {asked} queues")), "{summary}");
        assert!(advice.contains("<driver queues='4'/>"), "{advice}");
        assert_eq!(advice.contains(&format!("queues = {asked}")), is_possible, "{advice}");
        assert_eq!(advice.contains("at most 64"), !is_possible, "{advice}");
    }

    // A host with more CPUs than that, where the machine is unknown, limits it likewise.
    let mut pieces = host("d14-healthy-vhostuser");
    let line = |cpu: usize| format!("cpu{cpu} 1 0 1 100 0 0 0 0 0 0\n");
    let cpus: String = (8..128).map(line).collect();
    for sample in ["sample-1/proc/stat", "sample-2/proc/stat"] {
        let text = pieces.get_mut(sample).expect("there");
        let at = text.find("intr").unwrap_or(text.len());
        text.insert_str(at, &cpus);
    }
    let found = findings(pieces.clone());
    let said = |name: &str, found: &[Finding]| {
        let one = found.iter().find(|one| one.subject == name).expect("a finding").clone();
        (one.summary, one.advice[0].text.clone())
    };
    let (_, advice) = said("vm1", &found);
    assert!(advice.contains("queues = 64") && !advice.contains("128"), "{advice}");
    for path in VIFS {
        let text = pieces.get_mut(path).expect("there");
        *text = text.replace("\"max_queues\": 2", "\"max_queues\": 1");
        let (start, _) = text.split_once("{\"index\": 1").expect("a second queue");
        let start = start.trim_end().trim_end_matches(',');
        *text = format!("{start}]\n  }}\n]\n");
    }
    let (summary, _) = said("vm1", &findings(pieces));
    assert_eq!(summary, "the guest of vm1 uses the only queue that ringway offers");
}

#[test]
fn an_interface_of_vhostuser_needs_shared_memory() {
    let pieces = host("d14-sick-libvirt-memory");
    let (severity, summary, advice) = only(pieces.clone());
    assert_eq!(severity, Severity::Problem);
    let expected = "interface 52:54:00:00:00:11 of machine vm1 has no data path: the memory of the \
                    machine is not shared";
    assert_eq!(summary, expected);
    assert!(advice.contains("<access mode='shared'/>"), "{advice}");

    let huge = "<hugepages/>";
    let mut none = pieces.clone();
    replace(&mut none, VM, &format!("<memoryBacking>{huge}</memoryBacking>"), "");
    assert_eq!(only(none).0, Severity::Problem);

    // It was edited, and not stopped since.
    let mut fixed = pieces.clone();
    store(&mut fixed);
    replace(&mut fixed, STORED, huge, "<hugepages/><access mode='shared'/>");
    let (severity, _, advice) = only(fixed.clone());
    assert!(severity == Severity::Problem && advice.contains("stop and start"), "{advice}");
    assert!(!advice.contains("virsh edit"), "{advice}");
    let mut other = fixed.clone();
    replace(&mut other, STORED, "queues='4'", "queues='8'");
    let advices: Vec<String> = findings(other)
        .iter()
        .filter(|one| one.severity == Severity::Problem)
        .map(|one| one.advice[0].text.clone())
        .collect();
    assert!(advices.len() == 1 && advices[0].contains("another one"), "{advices:#?}");
    assert!(!advices[0].contains("virsh start"), "{advices:#?}");
    // The reverse: it works until it stops.
    let (running, stored) = (fixed[STORED].clone(), fixed[VM].clone());
    let mut next = pieces.clone();
    next.insert(VM.to_owned(), running);
    next.insert(STORED.to_owned(), stored);
    let (severity, summary, _) = only(next);
    assert_eq!(severity, Severity::Warning);
    assert!(summary.ends_with("when the machine starts the next time"), "{summary}");

    for (old, new) in [
        (huge, "<hugepages/><access mode='shared'/>"),
        (huge, "<source type='memfd'/>"),
        ("<devices>", "<cpu><numa><cell memAccess='shared'/></numa></cpu><devices>"),
        ("</devices>", "</devices><commandline/>"),
        ("type='vhostuser'", "type='bridge'"),
        // A record of an older version.
        ("<memory unit='KiB'>1048576</memory>", ""),
    ] {
        let mut pieces = pieces.clone();
        replace(&mut pieces, VM, old, new);
        let found = findings(pieces);
        assert!(found.iter().all(|one| one.severity == Severity::Ok), "{new}: {found:#?}");
    }
}

#[test]
fn one_end_of_a_socket_creates_it_and_the_other_one_connects() {
    let pieces = host("d14-sick-libvirt-mode");
    let (severity, summary, advice) = only(pieces.clone());
    assert_eq!(severity, Severity::Problem);
    let expected = "interface 52:54:00:00:00:11 of machine vm1 has no back-end: QEMU connects to \
                    its socket, and so does ringway (vm1)";
    assert_eq!(summary, expected);
    assert!(advice.contains("mode='server'") && advice.contains("mode = \"server\""), "{advice}");
    let ends = |qemu: &str, ringway: &str| {
        let mut pieces = pieces.clone();
        replace(&mut pieces, VM, "mode='client'", &format!("mode='{qemu}'"));
        for path in VIFS {
            let mode = format!("\"mode\": \"{ringway}\"");
            replace(&mut pieces, path, "\"mode\": \"client\"", &mode);
        }
        only(pieces)
    };
    let (severity, _, advice) = ends("server", "server");
    assert_eq!(severity, Severity::Problem);
    assert!(advice.contains("mode='client'") && advice.contains("mode = \"client\""), "{advice}");
    for (qemu, ringway) in [("server", "client"), ("client", "server"), ("client", "")] {
        assert_eq!(ends(qemu, ringway).0, Severity::Ok, "{qemu} {ringway}");
    }
}

#[test]
fn a_socket_is_found_by_another_spelling_of_its_path() {
    for path in ["/run/ringway/./vm1.sock", "//run//ringway/vm1.sock", "/run/./ringway/vm1.sock"] {
        let mut pieces = host("d14-sick-libvirt-more");
        replace(&mut pieces, VM, "/run/ringway/vm1.sock", path);
        assert_eq!(only(pieces).0, Severity::Problem, "{path}");
    }
    // After a symbolic link, this may be another socket.
    let mut pieces = host("d14-sick-libvirt-more");
    replace(&mut pieces, VM, "/run/ringway/vm1.sock", "/run/ringway/x/../vm1.sock");
    assert_eq!(only(pieces).0, Severity::Ok);
}

#[test]
fn a_driver_does_not_matter_to_vhostuser_nor_domain_0_to_virtio() {
    let mut pieces = host("d14-sick-libvirt-more");
    let expected = only(pieces.clone());
    replace(&mut pieces, VM, "<driver queues", "<driver name='qemu' queues");
    assert_eq!(only(pieces.clone()), expected);
    // ringway gives virtio vifs no domain of Xen.
    for path in VIFS {
        replace(&mut pieces, path, "\"domid\": 32756", "\"domid\": 0");
    }
    let list = "Name ID Mem VCPUs State Time(s)\nDomain-0 0 4096 16 r----- 99.1\n";
    pieces.insert("commands/xl_list".to_owned(), list.to_owned());
    assert_eq!(only(pieces), expected);
}

#[test]
fn an_all_clear_has_the_number_of_cpus_of_the_machine() {
    let mut pieces = host("d14-sick-libvirt-more");
    replace(&mut pieces, VM, "queues='8'", "queues='4'");
    replace(&mut pieces, VM, ">8<", ">4<");
    let (severity, summary, _) = only(pieces);
    assert_eq!(
        (severity, summary.as_str()),
        (Severity::Ok, "enough queues for machine vm1 (4 CPUs)")
    );
}

#[test]
fn a_stopped_machine_is_not_stopped_again_and_an_interface_without_a_name_has_an_article() {
    let mut pieces = host("d14-healthy-libvirt-few");
    pieces.retain(|path, _| !path.ends_with("node.xml"));
    let mac = "<mac address='52:54:00:00:00:03'/>";
    replace(&mut pieces, "etc/libvirt/qemu/off.xml", mac, "");
    let (_, summary, advice) = only(pieces);
    assert!(summary.starts_with("an interface of machine off has 1 queue"), "{summary}");
    assert!(advice.contains("It applies at the next start."), "{advice}");
    assert!(!advice.contains("virsh shutdown") && !advice.contains("virsh reboot"), "{advice}");
}

/// A running machine with one queue at a vif that offers 4, whose stored definition has 8.
fn edited() -> Pieces {
    let mut pieces = host("d14-healthy-libvirt-vhostuser");
    store(&mut pieces);
    let model = "<model type='virtio'/>";
    replace(&mut pieces, STORED, model, &format!("{model}<driver queues='8'/>"));
    pieces
}

/// Stores the definition of the machine that runs.
fn store(pieces: &mut Pieces) {
    let (_, inner) = pieces[VM].split_once("<domain type").expect("a domain");
    let stored = format!("<domain type{}", inner.replace("</domstatus>", ""));
    pieces.insert(STORED.to_owned(), stored);
}

#[test]
fn the_next_start_is_judged_by_the_vif_of_the_stored_socket() {
    let mut pieces = edited();
    replace(&mut pieces, STORED, "/run/ringway/vm1.sock", "/run/ringway/vm2.sock");
    let is_refused = |one: &Finding| one.summary.contains("the next time");
    assert!(!findings(pieces.clone()).iter().any(is_refused), "vm2 is not ringway's");
    for (queues, expected) in [(8, false), (2, true)] {
        let mut with_vm2 = pieces.clone();
        let vm2 = format!(
            "[{{\"name\": \"vm2\", \"kind\": \"virtio\", \"max_queues\": {queues}, \"queues\": [], \
             \"virtio\": {{\"socket\": \"/run/ringway/vm2.sock\"}}}},"
        );
        for path in VIFS {
            let text = with_vm2.get_mut(path).expect("there");
            *text = text.replacen('[', &vm2, 1);
        }
        let found = findings(with_vm2);
        let refused = found.iter().find(|one| is_refused(one));
        assert_eq!(
            refused.map(|one| one.subject.as_str()),
            expected.then_some("vm2"),
            "{found:#?}"
        );
    }
}

#[test]
fn a_running_machine_keeps_queues_that_the_next_start_does_not_get() {
    let mut pieces = host("d14-sick-libvirt-vhostuser");
    store(&mut pieces);
    for path in VIFS {
        let socket = "\"socket\": \"/run/ringway/vm1.sock\",";
        replace(&mut pieces, path, socket, &format!("{socket} \"max_queues_next\": 2,"));
    }
    let found = findings(pieces);
    let said: Vec<&str> = found.iter().map(|one| one.summary.as_str()).collect();
    let expected =
        "machine vm1 asks for 8 queues when it starts the next time, and ringway offers 2";
    assert!(said[0].starts_with(expected), "{said:#?}");
    assert!(said[1].contains("uses 1 of 4 queues"), "{said:#?}");
}

#[test]
fn a_restart_is_not_advised_where_ringway_would_refuse_it() {
    let pieces = edited();
    let found = findings(pieces);
    let said: Vec<(Severity, &str)> =
        found.iter().map(|one| (one.severity, one.summary.as_str())).collect();
    assert_eq!(said[0].0, Severity::Warning, "{said:#?}");
    assert!(said[0].1.contains("asks for 8 queues when it starts the next time"), "{said:#?}");
    let advice = &found[1].advice[0];
    assert_eq!(advice.commands, ["virsh edit vm1"], "{advice:#?}");

    // Nor if the interface would not work after it.
    let mut pieces = edited();
    replace(&mut pieces, STORED, "queues='8'", "queues='4'");
    let advice = |pieces: Pieces| {
        let found = findings(pieces);
        let few = found.iter().find(|one| one.severity == Severity::Note).expect("a note");
        few.advice[0].text.clone()
    };
    assert!(advice(pieces.clone()).contains("has 4 queues already"));
    let vcpu = "<vcpu placement='static'>";
    replace(&mut pieces, STORED, vcpu, &format!("<memory>1048576</memory>{vcpu}"));
    let advice = advice(pieces);
    assert!(!advice.contains("already"), "{advice}");
}

#[test]
fn a_malformed_definition_is_a_gap_with_its_line() {
    let mut pieces = host("d14-healthy-libvirt-few");
    replace(&mut pieces, "run/libvirt/qemu/node.xml", "</vcpu>", "</cpu>");
    let found = findings(pieces);
    let unread: Vec<&Finding> =
        found.iter().filter(|one| one.severity == Severity::Unknown).collect();
    let [one] = unread.as_slice() else { panic!("{found:#?}") };
    assert_eq!(one.subject, "node");
    let start = "could not read /run/libvirt/qemu/node.xml:11: ";
    assert!(one.summary.starts_with(start), "{}", one.summary);
    assert!(found.iter().any(|one| one.subject == "off" && one.severity == Severity::Note));
}

#[test]
fn without_the_right_to_read_definitions_that_is_said_once() {
    let mut pieces = host("d14-healthy-libvirt-few");
    pieces.retain(|path, _| !path.contains("libvirt"));
    let dead = "run/libvirt/qemu/node.xml\tPermission denied (os error 13)\n\
                etc/libvirt/qemu\tPermission denied (os error 13)\n";
    pieces.insert("refused".to_owned(), dead.to_owned());
    pieces.insert("run/libvirt/qemu.names".to_owned(), "node.xml\n".to_owned());
    let (severity, summary, _) = only(pieces.clone());
    assert_eq!(severity, Severity::Unknown);
    let expected = "could not read /etc/libvirt/qemu: Permission denied (os error 13); and 1 more \
                    of libvirt's definitions";
    assert_eq!(summary, expected);

    // libvirt prints the definitions of machines that run.
    let xml = "<domain><name>node</name><vcpu>2</vcpu><devices><interface type='direct'>\n\
               <model type='virtio'/></interface></devices></domain>\n";
    pieces.insert("commands/virsh_-r_list_--name".to_owned(), "node\n\n".to_owned());
    pieces.insert("commands/virsh_-r_dumpxml_node".to_owned(), xml.to_owned());
    let found = findings(pieces);
    let severities: Vec<Severity> = found.iter().map(|one| one.severity).collect();
    assert_eq!(severities, [Severity::Note, Severity::Unknown], "{found:#?}");
    assert_eq!(found[0].evidence[1].file, "virsh -r dumpxml node");
}

#[test]
fn definitions_are_judged_once_and_not_in_every_network_namespace() {
    let mut pieces = host("d14-sick-libvirt-vhostuser");
    pieces.insert("netns".to_owned(), "initial\n".to_owned());
    assert_eq!(only(pieces.clone()).0, Severity::Warning);
    pieces.insert("netns".to_owned(), "other\n".to_owned());
    assert_eq!(only(pieces).0, Severity::Note);
    let mut pieces = host("d14-healthy-libvirt-few");
    pieces.insert("netns".to_owned(), "other\n".to_owned());
    assert!(findings(pieces).is_empty());
}

#[test]
fn a_sos_report_has_the_same_files() {
    let mut pieces = host("d14-healthy-libvirt-few");
    // It has one sample, at the root of the host.
    pieces.retain(|path, _| !path.starts_with("sample-1/"));
    let moved = |(path, text): (String, String)| (path.replace("sample-2/", ""), text);
    let mut pieces: Pieces = pieces.into_iter().map(moved).collect();
    pieces.insert("proc/uptime".to_owned(), "1000.0 1.0\n".to_owned());
    assert_eq!(findings(pieces).len(), 3);
}
