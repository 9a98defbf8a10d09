//! One TCP segment that a kernel does not cut is one frame from guest to guest, and so are the UDP
//! datagrams that a program sends with one call.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use ringway_control::VifStatus;

use crate::host::{Host, Running, SOON};
use crate::machine::ADDRESS;
use crate::vhost::wait_for_queues;
use crate::virtio::{Maker, description, guest_at, guest_with};

/// The longest segment of Linux, in full frames of an MTU of 1500 bytes.
const SEGMENT: u64 = 44 * 1448;
/// The destination port.
const PORT: u16 = 9;
/// Windows that it fits into from the start.
const WINDOWS: &str = "ip route change 10.77.0.0/24 dev eth0 initcwnd 1000 initrwnd 1000";
const BUFFERS: &str = "echo 4096 4194304 6291456 > /proc/sys/net/ipv4/tcp_rmem";
/// A retransmission or a neighbour request is one more frame; then the test tries again.
const TRIES: u32 = 10;

/// Frames and bytes that a guest has transmitted and received.
type Carried = [(u64, u64); 2];

fn carried(vif: &VifStatus) -> Carried {
    let tx = vif.queues.iter().map(|it| (it.tx_packets, it.tx_bytes));
    let rx = vif.queues.iter().map(|it| (it.rx_packets, it.rx_bytes));
    let sum = |sum: (u64, u64), one: (u64, u64)| (sum.0 + one.0, sum.1 + one.1);
    [tx.fold((0, 0), sum), rx.fold((0, 0), sum)]
}

/// What the sender transmitted and the receiver received, when it no longer changes.
fn settled(host: &Host, sender: &str, receiver: &str) -> Carried {
    let look = || {
        let [from, to] = [sender, receiver].map(|name| carried(&host.vif(name).expect("served")));
        [from[0], to[1]]
    };
    let mut last = look();
    loop {
        std::thread::sleep(Duration::from_millis(50));
        let now = look();
        if now == last {
            return now;
        }
        last = now;
    }
}

/// Tries until exactly one frame of a segment was transmitted and received.
fn assert_crosses(
    host: &Host,
    sender: &str,
    receiver: &str,
    mut begin: impl FnMut() -> Option<Running>,
) {
    for attempt in 1..=TRIES {
        let _receiving = begin();
        let end = Instant::now() + Duration::from_secs(4);
        let mut before = settled(host, sender, receiver);
        while Instant::now() < end {
            let now = settled(host, sender, receiver);
            let is_one = |(now, before): (&(u64, u64), &(u64, u64))| {
                now.0 == before.0 + 1 && now.1 >= before.1 + SEGMENT
            };
            if now.iter().zip(&before).all(is_one) {
                let [sent, received] = [now[0].1 - before[0].1, now[1].1 - before[1].1];
                println!("{sender}: 1 frame of {sent} bytes; {receiver}: 1 of {received} bytes");
                return;
            }
            before = now;
        }
        println!("{sender} to {receiver}: no single frame at try {attempt}");
    }
    panic!("no segment of {SEGMENT} bytes was one frame\n{}", host.log());
}

/// A server that sends a byte, so that windows are known, and then a segment at once.
fn speaker(dir: &Path) -> String {
    let file = dir.join("speak");
    let text = format!(
        "#!/bin/sh\nprintf x\nsleep 1\ndd if=/dev/zero bs={SEGMENT} count=1 2>/dev/null\nsleep 1\n"
    );
    fs::write(&file, text).expect("written");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).expect("ours");
    format!("socat TCP-LISTEN:{PORT},fork,reuseaddr EXEC:{},nofork", file.display())
}

#[test]
fn a_segment_of_64_kib_crosses_as_one_frame_from_xen_to_virtio_and_back() {
    let Some(_turn) = crate::turn(&["socat", "unshare", "ip"]) else { return };
    let place = tempfile::tempdir().expect("a directory");
    let dir = place.path();
    let speaks = speaker(dir);
    let receive = |address: &str| format!("socat -u TCP:{address}:{PORT} OPEN:/dev/null");
    let in_a = |host: &Host, command: &str| {
        let mut process = host.in_guest("a", &["sh", "-c", command]);
        Running::start(process.stderr(Stdio::null()))
    };
    let windows = format!("({BUFFERS}; until {WINDOWS}; do sleep 0.1; done) 2>/dev/null");
    for is_to_xen in [false, true] {
        let host = Host::start(&description(dir, &[("vm1", "server")]));
        in_a(&host, &windows).wait("the windows", SOON);
        // Its other processes end with it.
        let beside = match is_to_xen {
            true => format!("{windows} & {speaks} &"),
            false => {
                let receive = receive("10.77.0.1");
                format!("{windows} & (while sleep 0.5; do {receive}; done) 2>/dev/null &")
            }
        };
        let _guest = guest_with(dir, "vm1", Maker::Backend, &beside);
        wait_for_queues(&host, 4);
        host.ping("a", ADDRESS);
        if is_to_xen {
            assert_crosses(&host, "vm1", "vif1.0", || {
                Some(in_a(&host, &format!("exec {}", receive(ADDRESS))))
            });
        } else {
            let _speaker = in_a(&host, &format!("exec {speaks}"));
            assert_crosses(&host, "vif1.0", "vm1", || None);
        }
    }
}

/// Bytes of a datagram, and datagrams for each call (`UDP_SEGMENT`).
const DATAGRAM: usize = 1400;
const DATAGRAMS: usize = 40;
/// The address of the receiver, if it is a virtio guest.
const SECOND: &str = "10.77.0.10";

/// A receiver of datagrams, which appends their contents to a file.
fn receive_datagrams(file: &Path) -> String {
    format!("socat -u -b 65536 UDP-RECV:{PORT} OPEN:{},creat,append", file.display())
}

/// A sender that repeatedly sends a file with one call: the first may come before the receiver is
/// ready.
fn send_datagrams(file: &Path, to: &str) -> String {
    let (socket, option) = ("UDP-SENDTO", "setsockopt-int=17:103");
    let len = DATAGRAM * DATAGRAMS;
    format!(
        "while sleep 0.4; do \
         socat -u -b {len} OPEN:{} {socket}:{to}:{PORT},{option}:{DATAGRAM}; done",
        file.display()
    )
}

/// Waits until one call was this many frames at its sender and its receiver, and its data arrived.
fn assert_arrives(host: &Host, ends: [&str; 2], frames: [u64; 2], sent: &[u8], file: &Path) {
    let len = u64::try_from(sent.len()).expect("short");
    let [sender, receiver] = ends;
    let mut before = settled(host, sender, receiver);
    host.wait("a call as few frames", 12 * SOON, |host| {
        let now = settled(host, sender, receiver);
        let counted: Vec<(u64, u64)> =
            now.iter().zip(&before).map(|(now, old)| (now.0 - old.0, now.1 - old.1)).collect();
        before = now;
        let is_right = counted.iter().zip(frames).all(|(it, frames)| it.0 == frames && it.1 > len);
        is_right.then(|| println!("{sender} to {receiver}: {counted:?} frames and bytes"))
    });
    let heard = std::fs::read(file).expect("it was made");
    let mut windows = heard.windows(DATAGRAM * DATAGRAMS).step_by(DATAGRAM);
    assert!(windows.any(|it| it == sent), "{} bytes, and not those that were sent", heard.len());
}

#[test]
fn datagrams_of_one_call_are_one_frame_for_virtio_and_separate_frames_for_xen() {
    let Some(_turn) = crate::turn(&["socat", "unshare", "ip"]) else { return };
    let place = tempfile::tempdir().expect("a directory");
    let dir = place.path();
    let mut sent = vec![0; DATAGRAM * DATAGRAMS];
    fastrand::Rng::with_seed(0x5eed_0050).fill(&mut sent);
    let (data, heard) = (dir.join("sent"), dir.join("heard"));
    fs::write(&data, &sent).expect("written");
    let vms = [("vm1", "server"), ("vm2", "server")];
    let many = u64::try_from(DATAGRAMS).expect("few");
    let is_ready = |host: &Host, name: &str| {
        host.wait("four queues", SOON, |host| (host.vif(name)?.queues.len() == 4).then_some(()));
        let virtio = host.vif(name).and_then(|vif| vif.virtio).expect("it is of virtio");
        let has = |feature: &str| virtio.features.iter().any(|it| it == feature);
        assert!(has("host_uso") && has("guest_uso4") && has("guest_uso6"), "{virtio:?}");
    };
    let in_a = |host: &Host, command: &str| {
        let mut process = host.in_guest("a", &["sh", "-c", command]);
        Running::start(process.stderr(Stdio::null()))
    };
    {
        let host = Host::start(&description(dir, &vms));
        let send = format!("{} &", send_datagrams(&data, SECOND));
        let hear = format!("{} &", receive_datagrams(&heard));
        let _sender = guest_with(dir, "vm1", Maker::Backend, &send);
        let _receiver = guest_at(SECOND, dir, "vm2", Maker::Backend, &hear);
        is_ready(&host, "vm1");
        is_ready(&host, "vm2");
        assert_arrives(&host, ["vm1", "vm2"], [1, 1], &sent, &heard);
    }
    fs::remove_file(&heard).expect("it was made");
    {
        let host = Host::start(&description(dir, &vms));
        let _receiver = in_a(&host, &format!("exec {}", receive_datagrams(&heard)));
        let send = format!("{} &", send_datagrams(&data, "10.77.0.1"));
        let _sender = guest_with(dir, "vm1", Maker::Backend, &send);
        is_ready(&host, "vm1");
        assert_arrives(&host, ["vm1", "vif1.0"], [1, many], &sent, &heard);
    }
    fs::remove_file(&heard).expect("it was made");
    let host = Host::start(&description(dir, &vms));
    let hear = format!("{} &", receive_datagrams(&heard));
    let _receiver = guest_with(dir, "vm1", Maker::Backend, &hear);
    is_ready(&host, "vm1");
    let _sender = in_a(&host, &send_datagrams(&data, ADDRESS));
    assert_arrives(&host, ["vif1.0", "vm1"], [many, many], &sent, &heard);
}
