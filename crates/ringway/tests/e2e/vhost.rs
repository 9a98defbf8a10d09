//! Guests behind vhost-user sockets: stock QEMU with Debian's kernel.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ringway_e2e::host::{Host, Running, SOON, describe, wait_for};
use ringway_e2e::machine::{ADDRESS, EchoConnection, Image, Machine, QEMU, wait_for_file};
use ringway_e2e::virtio_guest::{kill_backend, wait_for_queues};
use ringway_e2e::{Measured, measured_turn, nightly_turn, shared_turn};
use rustix::process::Signal;

use crate::virtio::{BATCH_MAX, dropped_by};

/// A guest `a` with vif `vif1.0`, and a directory for a virtual machine.
fn description(dir: &Path, mode: &str) -> String {
    description_with(dir, mode, "", "")
}

/// A guest `a` with vif `vif1.0`, and a directory for a virtual machine, with further keys for the
/// vif of `a` and for that of the machine.
fn description_with(dir: &Path, mode: &str, of_a: &str, of_machine: &str) -> String {
    let socket = dir.join("net");
    let vhost = format!(
        "[[vhost]]\nname = \"vm1\"\nsocket = \"{}\"\nqueues = 4\nmode = \"{mode}\"\n{of_machine}\n",
        socket.display()
    );
    describe("max-queues = 4", &[("a", "", &format!("queues = 4\n{of_a}"))]) + &vhost
}

/// Connections to a machine at the same time.
const CONNECTIONS: usize = 3;

/// How many frames Linux in a machine has received on queues that it does not use now: the least
/// and the most, because all queues and those in use are counted one after the other.
///
/// `ethtool -S` of Linux 6.12 no longer has what each queue received. There, ringway's counters of
/// the queues in use serve instead.
fn received_elsewhere(host: &Host, machine: &mut Machine) -> [i64; 2] {
    let all = "sed -n 's/^ *eth0: *[0-9]* *\\([0-9]*\\) .*/\\1/p' /proc/net/dev";
    let total = |said: &str| said.trim().parse::<i64>().expect("a number");
    let least = total(&machine.run(all));
    let statistics = machine.run("ethtool -S eth0");
    let of_queues = statistics.lines().filter_map(|line| {
        let (_, count) = line.trim().strip_prefix("rx_queue_")?.split_once("_packets: ")?;
        count.parse::<i64>().ok()
    });
    let in_use = of_queues.reduce(|one, other| one + other).unwrap_or_else(|| {
        let vif = host.vif("vm1").expect("it is listed");
        let received = vif.queues.iter().map(|queue| queue.rx_packets).sum::<u64>();
        i64::try_from(received).expect("few frames")
    });
    let most = total(&machine.run(all));
    [least, most].map(|total| total - in_use)
}

/// Pings, each with the time of its reply.
pub(crate) struct Pings {
    _process: Option<Running>,
    file: PathBuf,
}

/// Replies to them before something happens, and after it; pings are 10 ms apart.
const BEFORE: usize = 100;
const AFTER: usize = 200;

/// Milliseconds between two of them.
pub(crate) const PING_MS: u128 = 10;
/// Of `ping`.
pub(crate) const OPTIONS: &str = "-nDi0.01";

impl Pings {
    /// Starts them from `a` to a machine, and waits for some replies.
    fn start(host: &Host) -> Pings {
        let file = host.file("pings");
        let mut command = host.in_guest("a", &["ping", OPTIONS, ADDRESS]);
        let process = Running::start(command.stdout(File::create(&file).expect("created")));
        Pings { _process: Some(process), ..Pings::of(host, file) }
    }

    /// Those that some process records in a file. Waits for some replies.
    pub(crate) fn of(host: &Host, file: PathBuf) -> Pings {
        let pings = Pings { _process: None, file };
        host.wait("replies", SOON, |_| (pings.replies().len() >= BEFORE).then_some(()));
        pings
    }

    /// The numbers of pings with a reply, and the times of the replies, since 1970.
    fn replies(&self) -> Vec<(usize, Duration)> {
        let text = std::fs::read_to_string(&self.file).unwrap_or_default();
        let reply = |line: &str| {
            let (time, rest) = line.strip_prefix('[')?.split_once(']')?;
            let (_, rest) = rest.split_once("icmp_seq=")?;
            let (number, rest) = rest.split_once(' ')?;
            let time = rest.contains("time=").then(|| time.parse().ok())??;
            Some((number.parse().ok()?, Duration::from_secs_f64(time)))
        };
        text.lines().filter_map(reply).collect()
    }

    /// Waits for some more replies. Returns the number of pings up to the last reply, and how many
    /// of them had none.
    pub(crate) fn end(self) -> (usize, usize) {
        let enough = self.replies().len() + AFTER;
        let replies = wait_for("more replies", 3 * SOON, || {
            Some(self.replies()).filter(|replies| replies.len() >= enough)
        });
        let sent = replies.iter().map(|(number, _)| *number).max().unwrap_or(0);
        let with_reply: BTreeSet<usize> = replies.into_iter().map(|(number, _)| number).collect();
        (sent, sent - with_reply.len())
    }
}

/// Kills the backend, and prints how long a machine had no network: since the kill, and since its
/// front-end was connected again. Returns the time from the kill to the first reply to a ping. A
/// frame that the backend has taken from one ring and not yet put into another is lost with it, so
/// at most a batch may be missing that no counter has.
fn kill_and_measure(host: &Host, what: &str) -> Duration {
    let pings = Pings::start(host);
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).expect("it is later");
    // What the backend drops after its counters were read has none.
    let read = now();
    let counted = dropped_by(host);
    let killed = now();
    kill_backend(host);
    let connected = host.wait("the front-end", SOON, |host| {
        host.vif("vm1").filter(|vif| vif.state != "Waiting").map(|_| now())
    });
    let first = host.wait("a reply", SOON, |_| {
        pings.replies().into_iter().map(|(_, time)| time).find(|time| *time > connected)
    });
    let (sent, lost) = pings.end();
    let dropped = counted + dropped_by(host);
    println!(
        "{what}: connected {:?} after the kill, a reply {:?} after that; {lost} of {sent} pings \
         lost, one each 10 ms, {dropped} frames dropped and counted",
        connected.saturating_sub(killed),
        first.saturating_sub(connected),
    );
    // While there was no front-end, the other guest did not know where to send them.
    let unsent = connected.saturating_sub(read).as_millis() / PING_MS;
    let unsent = usize::try_from(unsent).expect("it was short");
    assert!(lost <= dropped + unsent + BATCH_MAX, "{lost} lost, {dropped} counted");
    first.saturating_sub(killed)
}

/// How often the backend is killed at most, until a pause is short enough.
const TRIES: usize = 3;
/// How much longer than the pauses that others cause a pause may be: what ringway itself computes,
/// and waits for by its own choice. It takes 20 to 100 ms.
const OWN_PAUSE: Duration = Duration::from_secs(1);
/// How long QEMU waits before it dials again, as these tests have set it; and Linux, before it
/// repeats an ARP request.
const REDIAL: Duration = Duration::from_secs(1);
const ARP_REPEAT: Duration = Duration::from_secs(1);
/// Has Linux in a machine repeat them after 100 ms.
const REPEAT_SOONER: &str = "echo 100 > /proc/sys/net/ipv4/neigh/eth0/retrans_time_ms";

/// Kills the backend, and expects frames to cross again; on a quiet machine, soon after the time
/// that others take.
fn kill_and_expect_network(turn: &Measured, host: &Host, what: &str, others: Duration) {
    for _ in 0..TRIES {
        let own = kill_and_measure(host, what).saturating_sub(others);
        if own <= OWN_PAUSE || !turn.is_quiet {
            return;
        }
        println!("{what}: {own:?} are not explained");
    }
    panic!("{what}: no pause of {TRIES} was within {OWN_PAUSE:?} and {others:?}");
}

#[test]
fn a_virtual_machine_changes_its_queues_and_keeps_its_connections_when_the_backend_is_killed() {
    let Some(turn) = measured_turn(&[QEMU, "socat", "ping"]) else { return };
    let Some(image) = Image::make() else { return };
    let place = tempfile::tempdir().expect("a directory");
    let host = Host::start(&description(place.path(), "client"));
    let waiting = host.vif("vm1").expect("it is listed");
    assert_eq!((waiting.kind.as_str(), waiting.state.as_str()), ("virtio", "Waiting"));
    let reason = waiting.error.expect("there is no socket");
    assert!(reason.contains("the front-end must create it"), "{reason}");
    let chardev = format!("socket,id=c,path={}/net,server=on", place.path().display());
    let mut machine = Machine::start(&image, place.path(), &chardev);
    machine.booted();
    let echoes: Vec<EchoConnection> =
        (0..CONNECTIONS).map(|_| EchoConnection::start(&host, "a")).collect();
    let all_go_on = |what: &str| echoes.iter().for_each(|echo| echo.expect_progress(&host, what));
    all_go_on("two queues");
    assert_eq!(host.vif("vm1").expect("it is listed").error, None);
    let shown = host.text(&["vif", "show", "vm1"]);
    assert!(shown.contains("version_1") && shown.contains("mrg_rxbuf"), "{shown}");
    let memory = shown.lines().find(|line| line.starts_with("memory"));
    assert!(memory.is_some_and(|line| line.ends_with(" MiB, sealed")), "{shown}");
    // QEMU 7.2 does not know the one, and we do not offer the other.
    for (who, feature) in [("not taken", "guest_uso4"), ("not offered", "ring_packed")] {
        let is_it = |line: &str| line.starts_with(who) && line.contains(feature);
        assert!(shown.lines().any(is_it), "{feature} is {who}: {shown}");
    }
    let channels = machine.run("ethtool -l eth0");
    assert_eq!(channels.matches("Combined:\t4").count(), 1, "{channels}");
    for count in [1, 2, 4] {
        machine.run(&format!("ethtool -L eth0 combined {count}"));
        wait_for_queues(&host, count);
        let [_, before] = received_elsewhere(&host, &mut machine);
        all_go_on(&format!("{count} queues"));
        let [after, _] = received_elsewhere(&host, &mut machine);
        assert!(after <= before, "{after} frames for other queues, {before} before");
    }
    kill_and_expect_network(&turn, &host, "QEMU listens", ARP_REPEAT);
    all_go_on("after the backend was killed");
    machine.run(REPEAT_SOONER);
    let what = "QEMU listens, ARP requests are repeated after 100 ms";
    kill_and_expect_network(&turn, &host, what, Duration::ZERO);
    all_go_on("after the backend was killed twice");
    wait_for_queues(&host, 4);
    machine.run("ethtool -L eth0 combined 2");
    wait_for_queues(&host, 2);
    all_go_on("two queues of another backend");
    machine.kill();
    let gone = host.wait("the machine to be gone", SOON, |host| {
        host.vif("vm1").filter(|vif| vif.state == "Waiting" && vif.queues.is_empty())
    });
    assert!(gone.error.is_some(), "{gone:?}");
}

/// A process' open descriptors, and its mappings of machines' memory.
fn held(pid: u32) -> (usize, usize) {
    let files = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("it runs").count();
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("it runs");
    (files, maps.lines().filter(|line| line.contains("memory-backend-memfd")).count())
}

/// The least that it holds in a while: a call of a command line is a descriptor until it has ended.
fn held_at_rest(pid: u32) -> (usize, usize) {
    let readings = (0..100).map(|_| {
        // waits: no event says that a call's descriptor is closed.
        std::thread::park_timeout(Duration::from_millis(5));
        held(pid)
    });
    readings.min().expect("there are some")
}

/// QEMU passes the file of the guest's memory whether the guest uses it or not.
#[test]
fn a_virtual_machine_that_does_not_share_its_memory_is_named_with_the_remedy() {
    let Some(_turn) = shared_turn(&[QEMU]) else { return };
    let Some(image) = Image::make() else { return };
    let place = tempfile::tempdir().expect("a directory");
    let host = Host::start(&description(place.path(), "client"));
    let chardev = format!("socket,id=c,path={}/net,server=on", place.path().display());
    let memory = "memory-backend-memfd,id=p,size=512M,share=off";
    let more = ["-object", memory, "-machine", "memory-backend=p"];
    let _machine = Machine::start_with(&image, place.path(), &chardev, &more);
    host.wait("the reason", 6 * SOON, |host| {
        let error = host.vif("vm1")?.error?;
        error.contains("probably not shared (QEMU: -object").then_some(())
    });
}

#[test]
fn a_virtual_machine_that_is_reset_loses_its_socket_and_is_killed_leaves_nothing_behind() {
    let Some(_turn) = shared_turn(&[QEMU, "socat"]) else { return };
    let Some(image) = Image::make() else { return };
    let place = tempfile::tempdir().expect("a directory");
    let dir = place.path();
    let host = Host::start(&description(dir, "client"));
    let backend = host.pid_of("backend");
    let before = held_at_rest(backend);
    assert_eq!(before.1, 0);
    let chardev = format!("socket,id=c,path={}/net,server=on", dir.display());
    let monitor = format!("unix:{},server=on,wait=off", dir.join("monitor").display());
    let more = ["-action", "reboot=reset", "-monitor", &monitor];
    let mut machine = Machine::start_with(&image, dir, &chardev, &more);
    machine.booted();
    let echo = EchoConnection::start(&host, "a");
    echo.expect_progress(&host, "before a reset");
    assert!(held(backend).1 > 0);
    drop(echo);

    let mut monitor = UnixStream::connect(dir.join("monitor")).expect("QEMU has made it");
    writeln!(monitor, "system_reset").expect("QEMU runs");
    machine.booted();
    let echo = EchoConnection::start(&host, "a");
    echo.expect_progress(&host, "after a reset");
    // The path no longer works, but the connection stays.
    std::fs::remove_file(dir.join("net")).expect("it was there");
    echo.expect_progress(&host, "without its socket");

    machine.kill();
    let gone = host.wait("the machine to be gone", SOON, |host| {
        let vif = host.vif("vm1").filter(|vif| vif.state == "Waiting" && vif.queues.is_empty())?;
        // The opener notices a moment later that there is no socket.
        vif.error.filter(|reason| reason.contains("the front-end must create it"))
    });
    println!("{gone}");
    host.wait("all of it to be released", SOON, |_| (held(backend) == before).then_some(()));
}

#[test]
fn a_virtual_machine_that_starts_first_retries_the_socket_of_the_backend() {
    let Some(turn) = measured_turn(&[QEMU, "socat", "ping"]) else { return };
    let Some(image) = Image::make() else { return };
    let place = tempfile::tempdir().expect("a directory");
    let chardev = format!("socket,id=c,path={}/net,reconnect=1", place.path().display());
    let mut machine = Machine::start(&image, place.path(), &chardev);
    let host = Host::start(&description(place.path(), "server"));
    wait_for_file(&place.path().join("net"));
    machine.booted();
    let echo = EchoConnection::start(&host, "a");
    echo.expect_progress(&host, "two queues");
    machine.run(REPEAT_SOONER);
    let what = "QEMU dials each second, ARP requests are repeated after 100 ms";
    kill_and_expect_network(&turn, &host, what, REDIAL);
    echo.expect_progress(&host, "after the backend was killed");
}

#[test]
fn a_running_machine_keeps_what_is_no_longer_configured() {
    let Some(_turn) = shared_turn(&[QEMU, "socat"]) else { return };
    a_running_machine_keeps("", "");
}

#[test]
fn a_running_machine_on_a_bridge_keeps_what_is_no_longer_configured() {
    let Some(_turn) = nightly_turn("it boots two machines", &[QEMU, "socat"]) else { return };
    a_running_machine_keeps("[[bridge]]\nname = \"br7\"\n", "bridge = \"br7\"");
}

/// Restarts the backend with fewer features and queues and a lower MTU for a machine that runs.
fn a_running_machine_keeps(bridge: &str, key: &str) {
    let Some(image) = Image::make() else { return };
    let place = tempfile::tempdir().expect("a directory");
    let described = |more: &str| {
        let more = format!("{key}\n{more}");
        description_with(place.path(), "client", key, &more) + bridge
    };
    let host = Host::start(&described("mtu = 4000"));
    let chardev = format!("socket,id=c,path={}/net,server=on", place.path().display());
    let mtu = ["-global", "virtio-net-pci.host_mtu=4000"];
    let mut machine = Machine::start_with(&image, place.path(), &chardev, &mtu);
    machine.booted();
    machine.run("ethtool -L eth0 combined 4");
    wait_for_queues(&host, 4);
    let shown = |host: &Host| host.vif("vm1").and_then(|vif| vif.virtio).expect("it is virtio");
    let longest = |host: &Host| host.vif("vm1").and_then(|vif| vif.limits.frame_len_max);
    let used = shown(&host);
    assert!(used.features.contains(&"host_tso4".to_owned()), "{used:?}");
    assert_eq!(longest(&host), Some(4018));

    let less = "features = [\"-host_tso4\", \"-mrg_rxbuf\", \"-protocol:reply_ack\"]\nmtu = 1400";
    let less = described(less).replace("/net\"\nqueues = 4", "/net\"\nqueues = 1");
    host.signal(Signal::INT);
    let (_, run, _) = host.ended();
    let host = Host::start_in(run, &less);
    wait_for_queues(&host, 4);
    let kept = shown(&host);
    assert_eq!((&kept.features, &kept.protocol), (&used.features, &used.protocol));
    assert_eq!(longest(&host), Some(4018), "its guest still sends frames of this length");
    EchoConnection::start(&host, "a").expect_progress(&host, "after the change");

    // For another start of the machine, the description counts: QEMU wants four queues.
    machine.kill();
    let _machine = Machine::start(&image, place.path(), &chardev);
    let reason = host.wait("a refusal", SOON, |host| {
        host.vif("vm1")?.error.filter(|reason| reason.contains("number of queues, which is 1"))
    });
    // The log of QEMU has both numbers; ours says so, because it never sees QEMU's.
    let words = "you are asking more queues than supported: 1";
    assert!(reason.contains(words) && host.log().contains(&reason), "{reason}\n{}", host.log());
    let of_qemu = host.wait("QEMU to report it", SOON, |_| {
        let log = std::fs::read_to_string(Machine::log(place.path())).ok()?;
        log.contains(&format!("queues=4: {words}")).then_some(log)
    });
    println!("ringway: {reason}\nQEMU: {of_qemu}");
    assert_eq!(longest(&host), Some(1418));
}

#[test]
fn a_virtual_machine_without_a_link_status_does_not_notice_that_the_backend_was_killed() {
    let why = "it boots a machine, as the other kills of its backend do";
    if nightly_turn(why, &[]).is_none() {
        return;
    }
    let Some(turn) = measured_turn(&[QEMU, "socat", "ping"]) else { return };
    let Some(image) = Image::make() else { return };
    let place = tempfile::tempdir().expect("a directory");
    let host = Host::start(&description_with(place.path(), "client", "", "mtu = 1400"));
    let chardev = format!("socket,id=c,path={}/net,server=on", place.path().display());
    let properties = ["status=off", "guest_announce=off", "host_mtu=1400"];
    let properties = properties.map(|it| format!("virtio-net-pci.{it}"));
    let more: Vec<&str> = properties.iter().flat_map(|it| ["-global", it]).collect();
    let mut machine = Machine::start_with(&image, place.path(), &chardev, &more);
    machine.booted();
    // QEMU asks for this MTU, which the description allows, and its guest uses it.
    assert_eq!(machine.run("cat /sys/class/net/eth0/mtu").trim(), "1400");
    let echo = EchoConnection::start(&host, "a");
    echo.expect_progress(&host, "two queues");
    let changes = "cat /sys/class/net/eth0/carrier_changes";
    let before = machine.run(changes);
    let what = "QEMU listens, the guest sees no link status";
    kill_and_expect_network(&turn, &host, what, Duration::ZERO);
    echo.expect_progress(&host, "after the backend was killed");
    assert_eq!(machine.run(changes), before);
}

/// Keys of the vif, properties of QEMU's device, and a feature, with whether Linux takes it then.
const DEVICES: [(&str, &str, &str, bool); 4] = [
    ("", "mrg_rxbuf=off", "mrg_rxbuf", false),
    ("", "indirect_desc=off,event_idx=off", "event_idx", false),
    ("", "csum=off,guest_csum=off", "guest_csum", false),
    ("features = [\"ring_packed\"]", "packed=on", "ring_packed", true),
];

#[test]
fn a_virtual_machine_passes_data_whatever_its_device_offers() {
    let Some(_turn) = nightly_turn("it boots four machines", &[QEMU, "socat"]) else { return };
    let Some(image) = Image::make() else { return };
    for (keys, properties, feature, is_taken) in DEVICES {
        let place = tempfile::tempdir().expect("a directory");
        let host = Host::start(&description_with(place.path(), "client", "", keys));
        let chardev = format!("socket,id=c,path={}/net,server=on", place.path().display());
        let properties: Vec<String> =
            properties.split(',').map(|it| format!("virtio-net-pci.{it}")).collect();
        let more: Vec<&str> = properties.iter().flat_map(|it| ["-global", it]).collect();
        let mut machine = Machine::start_with(&image, place.path(), &chardev, &more);
        machine.booted();
        EchoConnection::start(&host, "a").expect_progress(&host, feature);
        let shown = host.text(&["vif", "show", "vm1"]);
        let taken = shown.lines().find(|line| line.starts_with("features")).expect("a line");
        let is_there = taken.split_whitespace().any(|one| one == feature);
        assert_eq!(is_there, is_taken, "{feature}: {shown}");
    }
}

#[test]
fn linux_tags_frames_for_a_vlan_that_another_guest_is_in_without_knowing() {
    let Some(_turn) = shared_turn(&[QEMU, "socat"]) else { return };
    let Some(image) = Image::make() else { return };
    let place = tempfile::tempdir().expect("a directory");
    let description = description_with(place.path(), "client", "vlan = 5", "trunk = [5]");
    let host = Host::start(&description);
    let chardev = format!("socket,id=c,path={}/net,server=on", place.path().display());
    let mut machine = Machine::start(&image, place.path(), &chardev);
    machine.booted();
    let (own, other) = (vlan(5, &format!("{ADDRESS}/24")), vlan(6, "10.78.0.9/24"));
    machine.run(&format!("ip address flush dev eth0; {own} && {other}"));
    // TCP segments that the kernel does not cut have a tag before their headers.
    let echo = EchoConnection::start(&host, "a");
    echo.expect_progress(&host, "with tags at one end");
    let refused = |host: &Host| host.vif("vm1")?.refused.get("vlan").copied();
    let before = refused(&host).unwrap_or(0);
    // waits: for no reply; that the requests were refused is counted.
    machine.run("ping -c 3 -W 1 10.78.0.1 || true");
    host.wait("a frame of another VLAN to be refused", SOON, |host| {
        refused(host).filter(|count| *count > before)
    });
    echo.expect_progress(&host, "beside another VLAN");
}

/// Commands that create a VLAN interface on `eth0`.
fn vlan(id: u16, address: &str) -> String {
    let name = format!("eth0.{id}");
    format!(
        "ip link add link eth0 name {name} type vlan id {id} && \
         ip address add {address} dev {name} && ip link set {name} up"
    )
}
