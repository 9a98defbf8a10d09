//! Every setting that the doctor can change is changed on a running kernel and restored: a defect
//! is made, the check finds it, `apply` sets it and reads it back, `undo` restores it.
//!
//! | setting | check | shown by |
//! |---|---|---|
//! | sysctls | D19, D11 | `sysctls_and_queue_lengths_are_set_and_reverted`, `applied` |
//! | congestion control | D26 | `bbr_between_neighbours_is_replaced_by_cubic` |
//! | txqueuelen | D19 | `sysctls_and_queue_lengths_are_set_and_reverted` |
//! | MTU | D08 | `applied::the_hops_of_a_path_take_packets_of_one_length` |
//! | offloads | D13 | `applied::offloads_that_are_off_are_turned_on` |
//! | qdisc | D30 | `applied::a_limit_that_is_reached_is_removed`, and the crashes below |
//! | channels | D14 | `channels_are_set_and_reverted` |
//! | RPS | D04 | `one_queue_is_served_by_both_cpus`, `settings_that_no_test_setup_needs` |
//! | XPS | D16 | `settings_that_no_test_setup_needs` |
//! | rings | D29 | the same, if there is such a driver; `tests/xen/run card` |
//! | CPUs of an interrupt | D03 | the same, if `RINGWAY_E2E_IRQ` has one; `tests/xen/run doctor` |
//! | queues of a ringway guest | D14 | `a_ringway_guest_can_get_more_queues` |
//!
//! | refusal | shown by |
//! |---|---|
//! | disruptive, and the administrator's own link | `channels_are_set_and_reverted` |
//! | edited since the plan | `a_plan_refuses_what_disrupts_and_what_was_changed_since` (`doctor`) |
//! | edited since it was applied | `applied::an_unconfirmed_change_is_undone_...` |
//! | refused by the kernel | `a_refused_change_reverts_the_whole_transaction` |
//! | taken as something else | `settings_that_no_test_setup_needs` |
//! | killed before and after a setting | `a_kill_during_apply_leaves_changes_that_can_be_undone` |
//! | not confirmed | the same, and `applied::an_unconfirmed_change_is_undone_...` |
//!
//! Checks inspect the queues of cards and of guests, which a namespace lacks. Where needed, the
//! guest's end of a veth reports `virtio_net` as its driver; everything else is the kernel's.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use ringway_doctor::changes::journal::{Journal, State, Transaction};
use ringway_doctor::changes::plan::{Disruption, Proposal, plan};
use ringway_doctor::changes::settings::Settings;
use ringway_doctor::changes::{Apply, ApplyError, undo};
use ringway_doctor::finding::{Change, Knob};
use ringway_e2e::host::{Host, describe};
use ringway_e2e::pair::{Pair, TOOLS, VIF, inside, ok, text, until};
use ringway_e2e::{nightly_turn, shared_turn};
use ringway_rig::cpu_time::becomes_quiet;
use serde_json::Value;

pub(crate) fn skipped(what: &str) {
    let _ = writeln!(std::io::stderr(), "SKIPPED: {what}");
}

pub(crate) fn read(netns: &str, path: &str) -> String {
    text(&ok(inside(netns, &format!("cat {path}"))).stdout).trim().to_owned()
}

/// The output of a verb of the doctor, with its exit code.
pub(crate) fn output_of(mut command: Command) -> (Option<i32>, String) {
    let output = command.output().expect("it starts");
    (output.status.code(), text(&output.stdout) + &text(&output.stderr))
}

/// Asserts that the check has a finding about the subject, with a change of this kind.
fn assert_found(command: &mut Command, subject: &str, kind: &str) {
    let output = command.output().expect("it starts");
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let findings = report["findings"].as_array().expect("a list");
    let changes = findings
        .iter()
        .filter(|finding| finding["subject"] == subject)
        .flat_map(|finding| finding["advice"].as_array().cloned().unwrap_or_default())
        .flat_map(|advice| advice["changes"].as_array().cloned().unwrap_or_default());
    let kinds: Vec<Value> = changes.map(|change| change["knob"]["kind"].clone()).collect();
    assert!(kinds.iter().any(|found| found == kind), "{subject}, {kind}: {report:#}");
}

/// A guest whose interface reports virtio.
pub(crate) struct Guest<'a> {
    pair: &'a Pair,
}

const DISGUISE: &str = "\
mount -t tmpfs none /sys/class/net || exit 1
cd /sys/class/net
for device in /sys/devices/virtual/net/*; do
    name=${device##*/}
    [ $name = eth0 ] || { ln -s $device $name; continue; }
    mkdir -p eth0/device
    ln -s $device/* eth0/
    rm -f eth0/tun_flags
    echo DRIVER=virtio_net > eth0/device/uevent
done
cd /
exec \"$@\"
";

impl<'a> Guest<'a> {
    pub(crate) fn new(pair: &'a Pair) -> Guest<'a> {
        fs::write(pair.journal.path().join("disguise"), DISGUISE).expect("written");
        Guest { pair }
    }

    pub(crate) fn doctor(&self, line: &str) -> Command {
        let script = self.pair.journal.path().join("disguise");
        let program = env!("CARGO_BIN_EXE_ringway-doctor");
        inside(&self.pair.guest, &format!("sh {} {program} {line}", script.display()))
    }

    fn change(&self, line: &str) -> Command {
        let (verb, rest) = line.split_once(' ').unwrap_or((line, ""));
        let journal = self.pair.journal.path().display();
        self.doctor(&format!("{verb} --journal {journal} {rest}"))
    }
}

#[test]
fn sysctls_and_queue_lengths_are_set_and_reverted() {
    let Some(_turn) = shared_turn(&TOOLS) else { return };
    let Some(pair) = Pair::new("sysctl") else { return };
    ok(&mut pair.on_host("sysctl -qw net.ipv4.tcp_sack=0 net.ipv4.tcp_timestamps=0"));
    ok(&mut pair.on_host(&format!("ip link set {VIF} txqueuelen 300000")));
    let values = || {
        let ipv4 = "/proc/sys/net/ipv4";
        let len = format!("/sys/class/net/{VIF}/tx_queue_len");
        [&format!("{ipv4}/tcp_sack"), &format!("{ipv4}/tcp_timestamps"), &len]
            .map(|path| read(&pair.host, path))
    };
    let found = |subject: &str, kind: &str| {
        let look = "--check D19 --interval 1 --json";
        assert_found(&mut pair.doctor(&pair.host, look), subject, kind);
    };
    found("net.ipv4.tcp_sack", "sysctl");
    found(VIF, "tx-queue-len");
    let before = values();
    ok(&mut pair.fix(&pair.host, "apply D19 --interval 1"));
    assert_eq!(values(), ["1", "1", "1000"]);
    ok(&mut pair.fix(&pair.host, "undo"));
    assert_eq!(values(), before);
}

#[test]
fn bbr_between_neighbours_is_replaced_by_cubic() {
    let Some(_turn) = shared_turn(&TOOLS) else { return };
    let control = "net.ipv4.tcp_congestion_control";
    let known = fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control");
    if !known.is_ok_and(|known| known.contains("bbr") && known.contains("cubic")) {
        return skipped("congestion control: this kernel has not both of BBR and cubic");
    }
    let Some(pair) = Pair::linked("bbr") else { return };
    ok(&mut pair.on_host(&format!("sysctl -qw {control}=bbr")));
    let file = "/proc/sys/net/ipv4/tcp_congestion_control";
    let _traffic = pair.traffic();
    let allowed = fs::read_to_string("/proc/sys/net/ipv4/tcp_allowed_congestion_control");
    let is_allowed = allowed.is_ok_and(|allowed| allowed.contains("cubic"));
    // Where a CPU is full, it is a note; only `-v` prints the advice of notes.
    let (verb, finding) = match is_allowed {
        true => ("apply D26 --interval 1", "bbr -> cubic"),
        false => ("--check D26 --interval 1 -v", "wait with more to send"),
    };
    let (mut code, mut printed) = (None, String::new());
    // On a busy machine, a round trip may take long.
    until("the check finds it", || {
        let run = if is_allowed { Pair::fix } else { Pair::doctor };
        (code, printed) = output_of(run(&pair, &pair.host, verb));
        printed.contains(finding)
    });
    if is_allowed {
        assert!(printed.contains(&format!("D26 {control}: bbr -> cubic")), "{printed}");
        assert_eq!((code, read(&pair.host, file).as_str()), (Some(0), "cubic"), "{printed}");
        ok(&mut pair.fix(&pair.host, "undo"));
    } else {
        // Only the initial namespace may choose algorithms that are not allowed for all.
        assert!(printed.contains("tcp_allowed_congestion_control"), "{printed}");
        assert!(!printed.contains("\n         sysctl"), "no command that is refused: {printed}");
    }
    assert_eq!(read(&pair.host, file), "bbr");
}

#[test]
fn channels_are_set_and_reverted() {
    let Some(_turn) = shared_turn(&TOOLS) else { return };
    let Some(pair) = Pair::new("channel") else { return };
    let guest = Guest::new(&pair);
    let channels = || {
        let shown = text(&ok(inside(&pair.guest, "ethtool -l eth0")).stdout);
        let (_, current) = shown.split_once("Current").expect("both parts");
        let number = |line: &str| line.split_whitespace().last()?.parse::<u32>().ok();
        let lines = current.lines().filter(|line| line.starts_with(['R', 'T']));
        lines.filter_map(number).collect::<Vec<_>>()
    };
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    if channels() != [1, 1] || cpus < 2 {
        return skipped(&format!("channels: {:?} on {cpus} CPUs", channels()));
    }
    let refusal = |line: &str, why: &str| {
        let (code, printed) = output_of(guest.change(line));
        assert!(code != Some(0) && printed.contains(why), "{line}: {code:?} {printed}");
        assert_eq!(channels(), [1, 1]);
    };
    assert_found(&mut guest.doctor("--check D14 --interval 1 --json"), "eth0", "channels");
    refusal("apply D14 --interval 1", "it can interrupt traffic");
    ok(inside(&pair.guest, "ip route add default via 10.98.0.1 dev eth0"));
    refusal("apply D14 --interval 1", "logged in over");
    let at_once = "apply D14 --interval 1 --allow-disruptive --confirm-within 0";
    refusal(at_once, "--confirm-within 0 is not allowed");
    ok(&mut guest.change("apply D14 --interval 1 --allow-disruptive"));
    let most = u32::try_from(cpus).expect("not that many");
    assert!(channels().iter().all(|count| (2..=most).contains(count)), "{:?}", channels());
    ok(&mut guest.change("undo"));
    assert_eq!(channels(), [1, 1]);
}

#[test]
fn a_ringway_guest_can_get_more_queues() {
    let Some(_turn) = shared_turn(&TOOLS) else { return };
    let Some(pair) = Pair::apart("queues") else { return };
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    if cpus < 2 {
        return skipped("queues of a guest: one CPU");
    }
    let (a, b) = (("a", "", "queues = 2"), ("b", "", "queues = 2"));
    let host = Host::start(&describe("max-queues = 1", &[a, b]));
    let change = |line: &str| {
        let mut command = pair.fix(&pair.host, line);
        // Not from `/`: the process that reverts changes has another working directory.
        let dir = host.dir();
        command.current_dir(dir.parent().expect("one"));
        command.env("RINGWAY_DIR", dir.file_name().expect("one"));
        command
    };
    let offered = || host.vif("vif1.0").map(|vif| (vif.max_queues, vif.queues.len()));
    assert_eq!(offered(), Some((1, 1)));
    let mut look = pair.doctor(&pair.host, "--check D14 --interval 1 --json");
    assert_found(look.env("RINGWAY_DIR", host.dir()), "vif1.0", "max-queues");
    let line = "apply D14 --subject vif1.0 --interval 1";
    let (code, printed) = output_of(change(line));
    assert!(code == Some(3) && printed.contains("--allow-disruptive"), "{printed}");
    // On a busy machine, it may be undone before the guest uses them: then there is more time.
    let is_used = |seconds: &u32| {
        ok(&mut change(&format!("{line} --allow-disruptive --confirm-within {seconds}")));
        let other = host.vif("vif2.0").map(|vif| vif.max_queues);
        assert_eq!(other, Some(1), "not the other vif's");
        let mut is_used = false;
        // It is not confirmed: the process that reverts it must find ringway as well.
        until("it is undone", || {
            let now = offered();
            is_used |= now.is_some_and(|(_, queues)| queues == 2);
            now == Some((1, 1))
        });
        is_used
    };
    assert!([3, 10, 30, 60].iter().any(is_used));
    ok(&mut change(&format!("{line} --allow-disruptive")));
    ok(&mut change("undo"));
    until("the guest is back at one queue", || offered() == Some((1, 1)));
}

#[test]
fn a_refused_change_reverts_the_whole_transaction() {
    let Some(_turn) = shared_turn(&TOOLS) else { return };
    let Some(pair) = Pair::new("refused") else { return };
    for line in [
        "ip link add br0 type bridge",
        "ip link add own type veth peer name own-port",
        "ip link set own-port mtu 9000 master br0",
        "ip link add a-port type veth peer name a",
        "ip link set a-port master br0",
    ] {
        ok(&mut pair.on_host(line));
    }
    // It accepts no longer packets than the link below it, which the bridge does not know.
    ok(&mut pair.on_host(&format!("ip link add link {VIF} name over type macvlan mode passthru")));
    ok(&mut pair.on_host("ip link set over master br0"));
    let mtu = |nic: &str| read(&pair.host, &format!("/sys/class/net/{nic}/mtu"));
    let line = "apply D08 --interval 1 --allow-disruptive --confirm-within 3";
    let (code, printed) = output_of(pair.fix(&pair.host, line));
    assert!(code == Some(1), "{code:?} {printed}");
    assert!(printed.contains("MTU of over cannot be set to \"9000\""), "{printed}");
    assert!(printed.contains("MTU of a-port: restored to 1500"), "{printed}");
    assert_eq!(["a-port", "over", "br0"].map(mtu), ["1500", "1500", "1500"]);
    let journal = text(&ok(&mut pair.fix(&pair.host, "journal")).stdout);
    assert!(journal.contains("undone") && !journal.contains("being applied"), "{journal}");
}

/// A `tc` that kills its parent before or after it replaced a discipline.
fn killing_tc(pair: &Pair, when: KillTime, apply: &mut Command) {
    let deed = match when {
        KillTime::Before => "",
        KillTime::After => "tc \"$@\"; ",
    };
    let script = format!(
        "#!/bin/sh\nPATH=${{PATH#*:}}\n\
         case \" $* \" in *\" replace \"*) {deed}kill -9 $PPID; exit 1 ;; esac\n\
         exec tc \"$@\"\n"
    );
    let dir = pair.journal.path().join("deadly");
    fs::create_dir_all(&dir).expect("made");
    fs::write(dir.join("tc"), script).expect("written");
    fs::set_permissions(dir.join("tc"), fs::Permissions::from_mode(0o755)).expect("ours");
    let path = std::env::var("PATH").expect("text");
    apply.env("PATH", format!("{}:{path}", dir.display()));
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KillTime {
    Before,
    After,
}

#[test]
fn a_kill_during_apply_leaves_changes_that_can_be_undone() {
    let Some(_turn) = shared_turn(&TOOLS) else { return };
    let Some(pair) = Pair::linked("crash") else { return };
    let tbf = "root tbf rate 50mbit burst 64kb latency 50ms";
    ok(&mut pair.on_host(&format!("tc qdisc add dev {VIF} {tbf}")));
    let is_limited = || {
        let shown = ok(&mut pair.on_host(&format!("tc qdisc show dev {VIF} root")));
        text(&shown.stdout).contains("tbf")
    };
    let _traffic = pair.traffic();
    // Whether it has left the changes; after the time to confirm them, they are undone.
    let killed = |when, seconds: u32| {
        let line = format!("apply D30 --interval 1 --confirm-within {seconds}");
        until("the limit is reached, and apply killed", || {
            let mut apply = pair.fix(&pair.host, &line);
            killing_tc(&pair, when, &mut apply);
            let (code, printed) = output_of(apply);
            assert!(
                code.is_none() || printed.contains("These checks found nothing"),
                "{code:?} {printed}"
            );
            code.is_none()
        });
        let is_so = is_limited() == (when == KillTime::Before);
        let journal = text(&ok(&mut pair.fix(&pair.host, "journal")).stdout);
        is_so && journal.contains("being applied, or interrupted")
    };
    for when in [KillTime::Before, KillTime::After] {
        assert!(killed(when, 3600), "{when:?}");
        ok(&mut pair.fix(&pair.host, "undo"));
        assert!(is_limited());
    }
    // The waiting process survives. It may be the first, on a busy machine.
    assert!([2, 10, 30, 60].into_iter().any(|seconds| {
        let is_left = killed(KillTime::After, seconds);
        until("it is undone", is_limited);
        is_left
    }));
}

/// Rules that each packet is compared with, so that receiving it is work.
const RULES: u32 = 6000;

#[test]
fn one_queue_is_served_by_both_cpus() {
    let why = "it measures whether RPS helps";
    let Some(_turn) = nightly_turn(why, &[&TOOLS[..], &["taskset"]].concat()) else { return };
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    if cpus < 2 {
        return skipped("RPS: one CPU");
    }
    if !is_quiet() {
        return skipped("RPS, whether it helps: other programs use the CPUs");
    }
    let Some(pair) = Pair::linked("rps") else { return };
    let guest = Guest::new(&pair);
    ok(inside(&pair.guest, "tc qdisc add dev eth0 ingress"));
    ok(inside(&pair.guest, &format!("tc -b {}", pair.rules("eth0", RULES).display())));
    // All of it arrives on one CPU, as from a card with one queue.
    let sender = format!("ip netns exec {} taskset -c 0 iperf3 -P 32", pair.host);
    let iperf = pair.iperf_by(&sender, 2);
    let mask = || read(&pair.guest, "/sys/class/net/eth0/queues/rx-0/rps_cpus");
    let before = mask();
    let line = format!("try D04 --runs 4 --interval 2 --iperf3 -- {iperf}");
    let (code, printed) = output_of(guest.change(&line));
    let _ = writeln!(std::io::stderr(), "{printed}");
    if code != Some(0) && is_inconclusive("RPS, whether it helps", &printed) {
        return assert_eq!(mask(), before);
    }
    assert_eq!(code, Some(0), "{printed}");
    assert!(printed.contains("RPS of eth0 rx-0") && printed.contains("is kept"), "{printed}");
    assert_ne!(mask(), before);
    ok(&mut guest.change("undo"));
    assert_eq!(mask(), before);
}

/// Whether a measurement is inconclusive, because it shows no difference or other programs use the
/// CPUs; prints a line if so.
pub(crate) fn is_inconclusive(what: &str, printed: &str) -> bool {
    let is_same = printed.contains("the difference is not significant");
    let is_inconclusive = is_same || !is_quiet();
    if is_inconclusive {
        let why =
            if is_same { "no difference was measured" } else { "other programs use the CPUs" };
        skipped(&format!("{what}: {why}; {printed}"));
    }
    is_inconclusive
}

/// Whether the CPUs have no other load: then a full one is due to this test.
fn is_quiet() -> bool {
    becomes_quiet(Duration::ZERO)
}

/// Set for the test below where it may make changes; contains the place of its journal.
const JOURNAL: &str = "RINGWAY_E2E_JOURNAL";
/// The number of an interrupt that may be moved temporarily.
const IRQ: &str = "RINGWAY_E2E_IRQ";

#[test]
fn settings_that_no_test_setup_needs() {
    let Some(_turn) = shared_turn(&TOOLS) else { return };
    let Some(pair) = Pair::new("bare") else { return };
    ok(&mut pair.on_host("sysctl -qw net.ipv4.tcp_sack=0"));
    let program = std::env::current_exe().expect("we run");
    let name = "knobs::inside_a_namespace";
    let line = format!("{} --exact {name} --ignored --nocapture", program.display());
    let output = ok(pair.on_host(&line).env(JOURNAL, pair.journal.path()));
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(out.contains("1 passed"), "{out}\n{err}");
    let _ = write!(std::io::stderr(), "{err}");
}

#[test]
#[ignore = "`settings_that_no_test_setup_needs` runs it in a network namespace"]
fn inside_a_namespace() {
    let Some(dir) = std::env::var_os(JOURNAL) else { return };
    let bare = Bare { settings: Settings::live(), journal: Path::new(&dir) };
    bare.set_and_undo(&Knob::Xps { nic: VIF.to_owned(), queue: 0 }, "1");
    bare.set_and_undo(&Knob::Rps { nic: VIF.to_owned(), queue: 0 }, "1");
    // Allowed to every namespace.
    let control = Knob::Sysctl { name: "net.ipv4.tcp_congestion_control".to_owned() };
    bare.set_and_undo(&control, "reno");
    let sack = Knob::Sysctl { name: "net.ipv4.tcp_sack".to_owned() };
    let error = bare.fail(vec![(sack.clone(), "1"), (control, "none-such")]);
    assert!(matches!(error, ApplyError::Refused { .. }), "{error}");
    // The kernel treats a range whose end precedes its beginning as empty.
    let range = Knob::Sysctl { name: "net.ipv4.ping_group_range".to_owned() };
    let error = bare.fail(vec![(sack, "1"), (range, "10 5")]);
    assert!(matches!(error, ApplyError::NotTaken { .. }), "{error}");
    let ring = Knob::Ring { nic: VIF.to_owned(), which: "rx".to_owned() };
    match bare.settings.get(&ring) {
        Ok(len) => bare.set_and_undo(&ring, if len == "256" { "128" } else { "256" }),
        Err(error) => skipped(&format!("rings: no driver of a namespace has them: {error}")),
    }
    match std::env::var(IRQ).ok().and_then(|irq| irq.parse().ok()) {
        Some(irq) => {
            let knob = Knob::IrqAffinity { irq };
            let now = bare.settings.get(&knob).expect("there is one");
            bare.set_and_undo(&knob, if now == "0" { "1" } else { "0" });
        }
        None => skipped(&format!("CPUs of an interrupt: {IRQ} names none that may be moved")),
    }
}

/// Changes that no check proposes, made as `apply` makes them.
struct Bare<'a> {
    settings: Settings,
    journal: &'a Path,
}

impl Bare<'_> {
    fn apply(&self, changes: Vec<(Knob, &str)>) -> (Transaction, Result<(), ApplyError>) {
        let proposal = |(knob, value): (Knob, &str)| Proposal {
            check: "D00".to_owned(),
            reason: "to see that it can be done".to_owned(),
            change: Change::replace(knob, None, value).expect("another value"),
        };
        let proposals = changes.into_iter().map(proposal).collect();
        let plan = plan(&self.settings, proposals, Disruption::Allowed, &BTreeSet::new());
        assert!(plan.refused.is_empty() && plan.settled.is_empty(), "{plan:?}");
        let journal = Journal::open(self.journal).expect("ours");
        let boot = self.settings.boot().expect("a boot");
        let begun = journal.begin(boot, self.settings.netns(), plan.entries).expect("written");
        let mut apply = Apply::new(&self.settings, &journal, begun);
        let result = apply.run();
        (apply.into_transaction(), result)
    }

    fn undo(&self, transaction: &mut Transaction) {
        let journal = Journal::open(self.journal).expect("ours");
        undo(&self.settings, &journal, transaction).expect("undone");
        assert_eq!(transaction.state, State::Undone, "{transaction:?}");
        for entry in &transaction.entries {
            let now = self.settings.get(&entry.knob).expect("it is still there");
            assert_eq!(now, entry.old, "{transaction:?}");
        }
    }

    fn set_and_undo(&self, knob: &Knob, value: &str) {
        let (mut transaction, result) = self.apply(vec![(knob.clone(), value)]);
        result.expect("the kernel takes it");
        assert_eq!(self.settings.get(knob).expect("there"), value);
        self.undo(&mut transaction);
    }

    fn fail(&self, changes: Vec<(Knob, &str)>) -> ApplyError {
        let (mut transaction, result) = self.apply(changes);
        let error = result.expect_err("the kernel does not take it");
        self.undo(&mut transaction);
        error
    }
}
