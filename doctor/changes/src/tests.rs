//! Tests on a directory with the layout of a host: wherever a transaction is interrupted, and
//! whatever an administrator changes meanwhile, undo restores what was ours and nothing else.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use tempfile::TempDir;

use super::emit::{Format, emit, rivals};
use super::journal::{Entry, Journal, State, Step, Transaction, latest, list, read};
use super::persist::{Removed, files, forget, overridden, persist};
use super::plan::{Disruption, Plan, Proposal, impossible, plan, proposals};
use super::settings::Settings;
use super::{Apply, ApplyError, Outcome, Progress, undo};
use ringway_checks::finding::{Advice, Change, Finding, Knob, Purpose, Severity};

const BOOT: &str = "proc/sys/kernel/random/boot_id";

/// Some knobs that are files, with their initial and proposed values.
fn knobs() -> [(Knob, &'static str, &'static str, &'static str); 5] {
    let nic = || "eth0".to_owned();
    [
        (
            Knob::Sysctl { name: "net.ipv4.tcp_rmem".into() },
            "proc/sys/net/ipv4/tcp_rmem",
            "4096\t1\t2",
            "4096 131072 6291456",
        ),
        (Knob::IrqAffinity { irq: 7 }, "proc/irq/7/smp_affinity_list", "0", "0,1"),
        (
            Knob::Rps { nic: nic(), queue: 0 },
            "sys/class/net/eth0/queues/rx-0/rps_cpus",
            "00000000",
            "3",
        ),
        (Knob::TxQueueLen { nic: nic() }, "sys/class/net/eth0/tx_queue_len", "300000", "1000"),
        (Knob::Mtu { nic: nic() }, "sys/class/net/eth0/mtu", "1500", "9000"),
    ]
}

struct Root(TempDir);

impl Root {
    fn new() -> Root {
        let root = Root(tempfile::tempdir().expect("a directory"));
        root.write(BOOT, "boot-1");
        root.write("sys/class/net/eth0/ifindex", "2");
        for (_, path, old, _) in knobs() {
            root.write(path, old);
        }
        root
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.path().join(path);
        fs::create_dir_all(path.parent().expect("a parent")).expect("made");
        fs::write(path, format!("{text}\n")).expect("written");
    }

    fn settings(&self) -> Settings {
        Settings::below(self.path())
    }

    fn journal_dir(&self) -> PathBuf {
        self.path().join("var/lib/ringway/doctor")
    }

    fn journal(&self) -> Journal {
        Journal::open(&self.journal_dir()).expect("a directory of ours")
    }

    fn values(&self) -> Vec<String> {
        let get = |(knob, ..): (Knob, &str, &str, &str)| self.settings().get(&knob).expect("there");
        knobs().into_iter().map(get).collect()
    }

    fn plan(&self, disruption: Disruption) -> Plan {
        let proposal = |(knob, _, old, new): (Knob, _, &str, &str)| Proposal {
            check: "D00".into(),
            reason: "slow".into(),
            change: Change {
                knob,
                current: Some(old.into()),
                proposed: new.into(),
                purpose: Purpose::Replace,
            },
        };
        let proposals = knobs().into_iter().map(proposal).collect();
        plan(&self.settings(), proposals, disruption, &BTreeSet::from(["eth0".to_owned()]))
    }

    fn begin(&self, journal: &Journal) -> Transaction {
        let entries = self.plan(Disruption::Allowed).entries;
        assert_eq!(entries.len(), knobs().len());
        let settings = self.settings();
        journal.begin(settings.boot().expect("read"), settings.netns(), entries).expect("written")
    }

    /// A transaction that was interrupted after some steps, as the next process finds it.
    fn end_after(&self, steps: usize) -> Transaction {
        let journal = self.journal();
        let transaction = self.begin(&journal);
        let settings = self.settings();
        let id = transaction.id;
        let mut apply = Apply::new(&settings, &journal, transaction);
        for _ in 0..steps {
            if apply.step().expect("nothing refuses") == Progress::Done {
                break;
            }
        }
        drop(apply);
        drop(journal);
        read(&self.journal_dir(), id).expect("a whole file")
    }
}

/// Three steps for each change, and the last one.
const STEPS: usize = 3 * 5 + 1;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn whatever_ends_it_all_is_as_it_was(steps in 0..=STEPS, undone_before in 0..=5_usize) {
        let root = Root::new();
        let before = root.values();
        let mut transaction = root.end_after(steps);
        let journal = root.journal();
        // An undo that was interrupted as well: the journal does not contain yet what it restored.
        for entry in transaction.entries.iter().rev().take(undone_before) {
            root.settings().set(&entry.knob, &entry.old).expect("set");
        }
        undo(&root.settings(), &journal, &mut transaction).expect("undone");
        prop_assert_eq!(root.values(), before);
        let written = read(&root.journal_dir(), transaction.id).expect("whole");
        prop_assert_eq!(written.state, State::Undone);
    }

    #[test]
    fn what_an_administrator_set_stays(steps in 0..=STEPS, edited in 0..5_usize) {
        let root = Root::new();
        let before = root.values();
        let mut transaction = root.end_after(steps);
        let edits = ["7 8 9", "3", "ff", "77", "1280"];
        root.settings().set(&knobs()[edited].0, edits[edited]).expect("set");
        undo(&root.settings(), &root.journal(), &mut transaction).expect("undone");
        for (index, value) in root.values().iter().enumerate() {
            let expected = if index == edited { edits[edited] } else { &before[index] };
            prop_assert_eq!(value, expected);
        }
    }

    #[test]
    fn a_torn_journal_is_refused_and_is_no_crash(len in 0..2000_usize) {
        let root = Root::new();
        let id = root.end_after(4).id;
        let path = root.journal_dir().join(format!("{id}.json"));
        let text = fs::read_to_string(&path).expect("there");
        let len = len.min(text.len() - 2);
        fs::write(&path, &text[..len]).expect("written");
        prop_assert!(read(&root.journal_dir(), id).is_err());
    }
}

#[test]
fn changes_are_announced_before_they_are_made() {
    let root = Root::new();
    for steps in 0..STEPS {
        let transaction = root.end_after(steps);
        for (entry, value) in transaction.entries.iter().zip(root.values()) {
            if entry.step == Step::Planned {
                assert_eq!(entry.old, value, "set, and the journal does not know, after {steps}");
            }
        }
        undo(&root.settings(), &root.journal(), &mut transaction.clone()).expect("undone");
    }
    let done = root.end_after(STEPS);
    assert_eq!(done.state, State::Applied);
    assert_eq!(root.values(), ["4096 131072 6291456", "0-1", "3", "1000", "9000"]);
    let ids = list(&root.journal_dir()).expect("read");
    assert_eq!(ids.len(), STEPS + 1);
    assert!(ids.iter().copied().eq(1..=done.id));
}

#[test]
fn nothing_is_restored_after_a_restart_or_elsewhere() {
    let root = Root::new();
    let mut transaction = root.end_after(STEPS);
    let set = root.values();
    root.write(BOOT, "boot-2");
    let error = undo(&root.settings(), &root.journal(), &mut transaction).expect_err("refused");
    assert!(error.to_string().contains("restart"), "{error}");
    assert_eq!(root.values(), set);
    let open = latest(&root.journal_dir(), "boot-2", &[State::Applied]).expect("read");
    assert_eq!(open, None);
    root.write(BOOT, "boot-1");
    transaction.netns = "net:[1]".into();
    assert!(undo(&root.settings(), &root.journal(), &mut transaction).is_err());
    assert_eq!(root.values(), set);
}

#[test]
fn another_interface_of_the_same_name_is_left_alone() {
    let root = Root::new();
    let mut transaction = root.end_after(STEPS);
    root.write("sys/class/net/eth0/ifindex", "9");
    let undone = undo(&root.settings(), &root.journal(), &mut transaction).expect("undone");
    let gone = undone.iter().filter(|one| matches!(one.outcome, Outcome::Gone)).count();
    assert_eq!(gone, 3);
    assert_eq!(root.values()[2..], ["3", "1000", "9000"]);
    assert_eq!(root.values()[..2], ["4096 1 2", "0"]);
}

#[test]
fn a_value_that_is_not_taken_is_an_error_and_is_undone() {
    let root = Root::new();
    let before = root.values();
    let journal = root.journal();
    let mut transaction = root.begin(&journal);
    // A file that discards what is written to it, as a driver may.
    let mtu = root.path().join(knobs()[4].1);
    fs::remove_file(&mtu).expect("removed");
    std::os::unix::fs::symlink("/dev/null", &mtu).expect("linked");
    transaction.entries[4].old = String::new();
    let settings = root.settings();
    let mut apply = Apply::new(&settings, &journal, transaction);
    let error = apply.run().expect_err("it is not taken");
    assert!(matches!(error, ApplyError::NotTaken { .. }), "{error}");
    undo(&settings, &journal, &mut apply.into_transaction()).expect("undone");
    assert_eq!(root.values()[..4], before[..4]);
}

#[test]
fn a_plan_refuses_what_disrupts_and_what_was_changed_since() {
    let root = Root::new();
    root.write("proc/irq/7/smp_affinity_list", "1");
    root.write("sys/class/net/eth0/tx_queue_len", "1000");
    let plan = root.plan(Disruption::Refused);
    assert_eq!(plan.entries.len(), 2);
    assert_eq!(plan.settled.len(), 1);
    let reasons: Vec<&str> = plan.refused.iter().map(|(_, why)| why.as_str()).collect();
    assert!(reasons[0].contains("was \"0\"") && reasons[1].contains("logged in over"));
    assert_eq!(root.plan(Disruption::Allowed).entries.len(), 3);
}

#[test]
fn findings_that_contradict_each_other_are_not_both_followed() {
    let finding = |check: &str, value: &str| {
        let knob = Knob::Sysctl { name: "net.core.netdev_budget".into() };
        let other = Knob::Sysctl { name: "net.core.dev_weight".into() };
        let mut finding = Finding::new(Severity::Warning, "x", "slow")
            .advise(Advice::by_hand("look", &[]))
            .advise(Advice::by_change("more", Change::replace(knob, None, value)))
            .advise(Advice::by_change("or else", Change::replace(other, None, 1)));
        check.clone_into(&mut finding.check);
        finding
    };
    let agreed = proposals(&[finding("D18", "600"), finding("D99", "600")]).expect("they agree");
    assert_eq!(agreed.len(), 1);
    let error = proposals(&[finding("D18", "600"), finding("D99", "300")]).expect_err("not both");
    assert!(error.contains("D18") && error.contains("D99"), "{error}");
}

#[test]
fn what_is_kept_is_in_files_that_are_removed_unless_edited() {
    let root = Root::new();
    let mut transaction = root.end_after(STEPS);
    let journal = root.journal();
    let (wanted, by_hand) = files(root.path(), &transaction);
    assert_eq!(by_hand, ["echo 0-1 > /proc/irq/7/smp_affinity_list"]);
    persist(&journal, &mut transaction, &wanted).expect("written");
    persist(&journal, &mut transaction, &wanted).expect("written again");
    let sysctl = fs::read_to_string(&wanted[0].path).expect("there");
    assert!(sysctl.contains("net.ipv4.tcp_rmem = 4096 131072 6291456"), "{sysctl}");
    fs::write(&wanted[1].path, "mine").expect("edited");
    let removed = forget(&journal, &mut transaction).expect("removed");
    assert_eq!(removed[0].1, Removed::Edited);
    assert_eq!(removed[1].1, Removed::Removed);
    assert!(!wanted[0].path.exists() && wanted[1].path.exists());
    // A file that is not ours is not replaced.
    let error = persist(&journal, &mut transaction, &wanted).expect_err("it is there");
    assert_eq!(error.kind(), std::io::ErrorKind::AlreadyExists);
}

#[test]
fn a_later_file_is_named_and_not_outdone() {
    let root = Root::new();
    let transaction = root.end_after(STEPS);
    assert_eq!(overridden(root.path(), &transaction), []);
    root.write("usr/lib/sysctl.d/99-site.conf", "# ours\nnet.ipv4.tcp_rmem = 4096 87380 16777216");
    let found = overridden(root.path(), &transaction);
    assert_eq!(found.len(), 1);
    let said = found[0].by.to_string();
    assert!(said.ends_with("99-site.conf:2 sets it to \"4096 87380 16777216\""), "{said}");
    assert!(rivals(root.path(), &transaction.entries).contains("99-site.conf:2"));
    // A file of ours under an earlier number is no rival: its value is the same.
    root.write("usr/lib/sysctl.d/99-site.conf", "net.ipv4.tcp_rmem = 4096 131072   6291456");
    assert_eq!(overridden(root.path(), &transaction), []);
    assert_eq!(rivals(root.path(), &transaction.entries), "");
}

#[test]
fn other_tools_get_the_same_changes() {
    let root = Root::new();
    let mut entries: Vec<Entry> = root.plan(Disruption::Allowed).entries;
    entries[0].reason = "a \"quote\"\n- evil: yes --> <x>".into();
    let shell = emit(&entries, Format::Shell);
    assert!(shell.contains("\nsysctl -w net.ipv4.tcp_rmem='4096 131072 6291456'\n"), "{shell}");
    assert!(shell.contains("#   ip link set dev eth0 mtu 1500\n"), "{shell}");
    assert!(!shell.contains("\n- evil"), "{shell}");
    let sysctl = emit(&entries, Format::SysctlD);
    assert!(sysctl.contains("\nnet.ipv4.tcp_rmem = 4096 131072 6291456\n"), "{sysctl}");
    let udev = emit(&entries, Format::Udev);
    assert!(udev.contains("KERNEL==\"eth0\", ATTR{tx_queue_len}=\"1000\""), "{udev}");
    let networkd = emit(&entries, Format::Networkd);
    assert!(networkd.contains("OriginalName=eth0\n\n[Link]\n"), "{networkd}");
    assert!(networkd.contains("MTUBytes=9000\n"), "{networkd}");
    assert!(networkd.contains("TransmitQueueLength=1000\n"), "{networkd}");
    assert!(networkd.contains("\nnet.ipv4.tcp_rmem = 4096 131072 6291456\n"), "{networkd}");
    assert!(!networkd.contains("\n- evil"), "{networkd}");
    let libvirt = emit(&entries, Format::Libvirt);
    assert!(libvirt.contains("<mtu size=\"9000\"/>"), "{libvirt}");
    assert_eq!(libvirt.matches("-->").count(), libvirt.matches("<!--").count(), "{libvirt}");
}

#[test]
fn a_change_that_cannot_be_made_here_is_refused_with_the_reason() {
    let [(knob, _, old, new), ..] = knobs();
    let mut advice = Advice::by_change("do", Change::replace(knob, Some(old.to_owned()), new));
    advice.leave_out(|_| Some("it is mounted read-only".to_owned()));
    let findings = [Finding::new(Severity::Problem, "a", "small").advise(advice)];
    assert!(proposals(&findings).expect("none").is_empty());
    let refused: Vec<(Proposal, String)> = impossible(&findings).collect();
    assert_eq!(refused.len(), 1, "{refused:#?}");
    assert_eq!(
        (refused[0].0.reason.as_str(), refused[0].1.as_str()),
        ("small", "it is mounted read-only")
    );
}
