//! One segment of TCP, which a kernel leaves uncut, is one frame from guest to guest.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use ringway_control::VifStatus;

use crate::host::{Host, Running, SOON};
use crate::machine::ADDRESS;
use crate::vhost::wait_for_queues;
use crate::virtio::{Maker, description, guest_with};

/// What Linux puts into one segment at most, in full frames of an MTU of 1500 bytes.
const SEGMENT: u64 = 44 * 1448;
/// Where it is sent to.
const PORT: u16 = 9;
/// Windows that it fits into, from the start.
const WINDOWS: &str = "ip route change 10.77.0.0/24 dev eth0 initcwnd 1000 initrwnd 1000";
const BUFFERS: &str = "echo 4096 4194304 6291456 > /proc/sys/net/ipv4/tcp_rmem";
/// A retransmission or a neighbour's question is one more frame: then it is tried again.
const TRIES: u32 = 10;

/// Frames and bytes that a guest has transmitted and received.
type Carried = [(u64, u64); 2];

fn carried(vif: &VifStatus) -> Carried {
    let tx = vif.queues.iter().map(|it| (it.tx_packets, it.tx_bytes));
    let rx = vif.queues.iter().map(|it| (it.rx_packets, it.rx_bytes));
    let sum = |sum: (u64, u64), one: (u64, u64)| (sum.0 + one.0, sum.1 + one.1);
    [tx.fold((0, 0), sum), rx.fold((0, 0), sum)]
}

/// What the sender has transmitted and the receiver received, once it stays the same for a while.
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

/// Looks until exactly one frame of a segment has come and gone.
fn crosses(host: &Host, sender: &str, receiver: &str, mut begin: impl FnMut() -> Option<Running>) {
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

/// What serves connections with a byte, so that windows are known, and then a segment at once.
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
    let hears = |address: &str| format!("socat -u TCP:{address}:{PORT} OPEN:/dev/null");
    let in_a = |host: &Host, command: &str| {
        let mut process = host.in_guest("a", &["sh", "-c", command]);
        Running::start(process.stderr(Stdio::null()))
    };
    let windows = format!("({BUFFERS}; until {WINDOWS}; do sleep 0.1; done) 2>/dev/null");
    for is_to_xen in [false, true] {
        let host = Host::start(&description(dir, &[("vm1", "server")]));
        in_a(&host, &windows).wait("the windows", SOON);
        // What it runs beside its device ends with it.
        let beside = match is_to_xen {
            true => format!("{windows} & {speaks} &"),
            false => {
                let hears = hears("10.77.0.1");
                format!("{windows} & (while sleep 0.5; do {hears}; done) 2>/dev/null &")
            }
        };
        let _guest = guest_with(dir, "vm1", Maker::Backend, &beside);
        wait_for_queues(&host, 4);
        host.ping("a", ADDRESS);
        if is_to_xen {
            crosses(&host, "vm1", "vif1.0", || {
                Some(in_a(&host, &format!("exec {}", hears(ADDRESS))))
            });
        } else {
            let _speaker = in_a(&host, &format!("exec {speaks}"));
            crosses(&host, "vif1.0", "vm1", || None);
        }
    }
}
