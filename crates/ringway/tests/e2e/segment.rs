//! One TCP segment that a kernel does not cut is one frame from guest to guest, and so are the UDP
//! datagrams that a program sends with one call.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use ringway_e2e::host::{Host, Running, SOON, ringway};
use ringway_e2e::machine::{ADDRESS, wait_for_file};
use ringway_e2e::virtio_guest::wait_for_queues;
use ringway_e2e::virtio_guest::{Maker, description, guest_at, guest_with};

/// The longest segment of Linux, in full frames of an MTU of 1500 bytes.
const SEGMENT: u64 = 44 * 1448;
/// The destination port.
const PORT: u16 = 9;
/// Windows that it fits into from the start.
const WINDOWS: &str = "ip route change 10.77.0.0/24 dev eth0 initcwnd 1000 initrwnd 1000";
const BUFFERS: &str = "echo 4096 4194304 6291456 > /proc/sys/net/ipv4/tcp_rmem";
/// The longest frame that was cut to the MTU.
const CUT: u64 = 1514;

/// The lengths of the frames of a vif, from its capture.
struct Frames {
    _capture: Running,
    file: PathBuf,
}

impl Frames {
    fn of(host: &Host, vif: &str) -> Frames {
        let file = host.file(&format!("{vif}.pcapng"));
        let mut command = ringway();
        command.env("RINGWAY_DIR", host.dir()).args(["capture", vif, "--snaplen", "64", "-w"]);
        let capture = Running::start(command.arg(&file).stderr(Stdio::null()));
        wait_for_file(&file);
        Frames { _capture: capture, file }
    }

    /// How many there are so far of such a length.
    fn count(&self, is_wanted: impl Fn(u32) -> bool) -> usize {
        let bytes = fs::read(&self.file).expect("it was made");
        let word = |start: usize| {
            let word = bytes.get(start..)?.first_chunk()?;
            Some(u32::from_ne_bytes(*word))
        };
        let (mut block, mut count) = (0, 0);
        // A block is its type, its length, its content, and its length again.
        while let (Some(kind), Some(len @ 12..)) = (word(block), word(block + 4)) {
            let original_len = word(block + 24).filter(|_| kind == ENHANCED_PACKET_BLOCK);
            count += usize::from(original_len.is_some_and(&is_wanted));
            block += usize::try_from(len).expect("it is in a file");
        }
        count
    }
}

/// The type of a block with a frame.
const ENHANCED_PACKET_BLOCK: u32 = 6;

/// Waits until a segment was one frame at both ends, while a process of `a` runs again and again.
fn assert_crosses(host: &Host, vifs: [&str; 2], start: impl Fn() -> Running) {
    let ends = vifs.map(|vif| Frames::of(host, vif));
    let mut process = start();
    host.wait("a segment as one frame", 6 * SOON, |_| {
        if process.0.try_wait().expect("our child").is_some() {
            process = start();
        }
        let whole = ends.iter().map(|end| end.count(|len| u64::from(len) >= SEGMENT));
        whole.min().filter(|count| *count > 0)
    });
}

/// A server that sends a byte, so that windows are known, and then a segment at once.
fn speaker(dir: &Path) -> String {
    let file = dir.join("speak");
    let text = format!(
        // waits: until windows are known; the other end asks again if it was too soon.
        "#!/bin/sh\nprintf x\nsleep 1\ndd if=/dev/zero bs={SEGMENT} count=1 2>/dev/null\nsleep 1\n"
    );
    fs::write(&file, text).expect("written");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).expect("ours");
    format!("socat TCP-LISTEN:{PORT},fork,reuseaddr EXEC:{},nofork", file.display())
}

#[test]
fn a_segment_of_64_kib_crosses_as_one_frame_from_xen_to_virtio_and_back() {
    let Some(_turn) = ringway_e2e::shared_turn(&["socat", "unshare", "ip"]) else { return };
    let place = tempfile::tempdir().expect("a directory");
    let dir = place.path();
    let speaks = speaker(dir);
    let receive = |address: &str| format!("socat -u TCP:{address}:{PORT} OPEN:/dev/null");
    let in_a = |host: &Host, command: &str| {
        let mut process = host.in_guest("a", &["sh", "-c", command]);
        Running::start(process.stderr(Stdio::null()))
    };
    // waits: the route appears when the guest has its address.
    let windows = format!("({BUFFERS}; until {WINDOWS}; do sleep 0.1; done) 2>/dev/null");
    for is_to_xen in [false, true] {
        let host = Host::start(&description(dir, &[("vm1", "server")]));
        in_a(&host, &windows).wait("the windows", SOON);
        // Its other processes end with it.
        let (beside, of_a) = match is_to_xen {
            true => (format!("{windows} & {speaks} &"), receive(ADDRESS)),
            false => {
                let receive = receive("10.77.0.1");
                // waits: asks again until the other end listens.
                let again = format!("(while sleep 1; do {receive}; done) 2>/dev/null");
                (format!("{windows} & {again} &"), speaks.clone())
            }
        };
        let _guest = guest_with(dir, "vm1", Maker::Backend, &beside);
        wait_for_queues(&host, 4);
        host.ping("a", ADDRESS);
        assert_crosses(&host, ["vm1", "vif1.0"], || in_a(&host, &format!("exec {of_a}")));
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
        // waits: no faster than a receiver takes it.
        "while sleep 0.4; do \
         socat -u -b {len} OPEN:{} {socket}:{to}:{PORT},{option}:{DATAGRAM}; done",
        file.display()
    )
}

/// What a call is at a vif.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    One,
    Many,
}

/// Frames and bytes that a guest has transmitted, or received.
fn carried(host: &Host, vif: &str, is_sender: bool) -> (u64, u64) {
    let queues = host.vif(vif).expect("served").queues;
    let of_queue = queues.iter().map(|it| match is_sender {
        true => (it.tx_packets, it.tx_bytes),
        false => (it.rx_packets, it.rx_bytes),
    });
    of_queue.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
}

/// Waits until the data of a call has arrived, which had these forms at its sender and its
/// receiver.
fn assert_arrives(host: &Host, [sender, receiver]: [(&str, Form); 2], sent: &[u8], file: &Path) {
    let ends = [(sender, true), (receiver, false)];
    // What is cut for a guest is cut after it was captured.
    let captures = ends.map(|((vif, form), _)| (form == Form::One).then(|| Frames::of(host, vif)));
    let (one, each) = (u32::try_from(sent.len()), u32::try_from(DATAGRAM));
    let (one, each) = (one.expect("short"), each.expect("short"));
    host.wait("the data of a call", 12 * SOON, |_| {
        let are_whole = captures.iter().flatten().all(|frames| frames.count(|len| len > one) > 0);
        let heard = fs::read(file).unwrap_or_default();
        let mut windows = heard.windows(sent.len()).step_by(DATAGRAM);
        (are_whole && windows.any(|it| it == sent)).then_some(())
    });
    for (((vif, form), is_sender), capture) in ends.into_iter().zip(captures) {
        let (frames, bytes) = carried(host, vif, is_sender);
        println!("{vif}, {form:?}: {frames} frames, {bytes} bytes");
        let parts = capture.map(|frames| frames.count(|len| len > each && len <= one));
        assert_eq!(parts.unwrap_or(0), 0, "{vif}: parts of calls");
        assert!(
            form == Form::One || bytes <= CUT * frames,
            "{vif}: {frames} frames, {bytes} bytes"
        );
    }
}

#[test]
fn datagrams_of_one_call_are_one_frame_for_virtio_and_separate_frames_for_xen() {
    let Some(_turn) = ringway_e2e::shared_turn(&["socat", "unshare", "ip"]) else { return };
    let place = tempfile::tempdir().expect("a directory");
    let dir = place.path();
    let mut sent = vec![0; DATAGRAM * DATAGRAMS];
    fastrand::Rng::with_seed(0x5eed_0050).fill(&mut sent);
    let (data, heard) = (dir.join("sent"), dir.join("heard"));
    fs::write(&data, &sent).expect("written");
    let vms = [("vm1", "server"), ("vm2", "server")];
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
        assert_arrives(&host, [("vm1", Form::One), ("vm2", Form::One)], &sent, &heard);
    }
    fs::remove_file(&heard).expect("it was made");
    {
        let host = Host::start(&description(dir, &vms));
        let _receiver = in_a(&host, &format!("exec {}", receive_datagrams(&heard)));
        let send = format!("{} &", send_datagrams(&data, "10.77.0.1"));
        let _sender = guest_with(dir, "vm1", Maker::Backend, &send);
        is_ready(&host, "vm1");
        assert_arrives(&host, [("vm1", Form::One), ("vif1.0", Form::Many)], &sent, &heard);
    }
    fs::remove_file(&heard).expect("it was made");
    let host = Host::start(&description(dir, &vms));
    let hear = format!("{} &", receive_datagrams(&heard));
    let _receiver = guest_with(dir, "vm1", Maker::Backend, &hear);
    is_ready(&host, "vm1");
    let _sender = in_a(&host, &send_datagrams(&data, ADDRESS));
    assert_arrives(&host, [("vif1.0", Form::Many), ("vm1", Form::Many)], &sent, &heard);
}
