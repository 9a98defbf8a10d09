//! Two namespaces with a TAP device each, joined by a loop that moves frames between their queues,
//! and real traffic over it.

mod guest;
mod wire;

use std::error::Error;
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use ringway_datapath::checksum::complete_ipv4_header;
use ringway_datapath::{
    Budget, Checksum, DropReason, Frame, FrameBatch, FramePool, FrameQueue, Gso, GsoKind, Offload,
    OffloadCaps, PoolBudget, PortQueue, QueueCounters, QueueDown, headers,
};
use ringway_hypervisor::Hypervisor;
use ringway_loopback::{Limits, Loopback};
use ringway_net::{LinkSetting, Netlink};
use ringway_netfront::Slabs;
use ringway_sys::namespace::{enter_user_namespace, unshare_network};
use ringway_sys::process::kernel_version;
use ringway_sys::tun::{Lifetime, QueueMode, TunFile};
use ringway_tap::{Side, Tap, TapQueue};
use ringway_wire::DomId;
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};

use crate::guest::Guest;
use crate::wire::{Report, Wire};

type Outcome = Result<(), Box<dyn Error>>;

/// Longest frame of a link with an MTU of 1500: an Ethernet header comes with it.
const MTU_FRAME_LEN: usize = 1514;

fn main() -> Outcome {
    // Root may create network namespaces directly; other users need a user namespace of their own.
    if unshare_network().is_err() {
        if let Err(error) = enter_user_namespace().and_then(|()| unshare_network()) {
            println!("SKIPPED everything: {error}");
            return Ok(());
        }
    }
    match TunFile::open("probe", QueueMode::Single) {
        // The driver is missing or inaccessible; anything else is a failure.
        Err(error) if error.to_string().starts_with("/dev/net/tun") => {
            println!("SKIPPED everything: {error}");
            return Ok(());
        }
        probe => drop(probe?),
    }
    type Test = (&'static str, fn() -> Outcome);
    let tests: [Test; 15] = [
        ("ping_crosses_over_ipv4_and_ipv6", ping_crosses),
        ("large_segments_cross_where_the_reader_takes_them", large_segments_cross),
        ("the_ends_of_large_segments_cross_in_pages", segments_cross_in_pages),
        ("segments_cross_where_writes_are_merged", merged_segments_cross),
        ("linux_takes_segments_that_continue_each_other_as_one_packet", merged_segments),
        ("without_offloads_no_frame_exceeds_the_mtu", no_large_segments),
        ("segments_cross_as_one_where_reads_are_merged", merged_reads_cross),
        ("queues_are_disabled_and_enabled_under_connections", queues_come_and_go),
        ("a_device_is_taken_over_with_another_number_of_queues", another_process_takes_over),
        ("passed_queues_need_no_capability", passed_queues),
        ("frames_that_linux_refuses_are_counted_and_the_rest_goes_on", refused_frames),
        ("validated_frames_without_a_checksum_reach_linux", validated_frames),
        ("a_deleted_device_takes_its_port_down", deleted_device),
        ("without_buffers_frames_wait_or_are_counted", no_buffers),
        ("an_inherited_descriptor_is_a_port", inherited_descriptor),
    ];
    for (name, test) in tests {
        test().map_err(|error| format!("{name}: {error}"))?;
        println!("ok: {name}");
    }
    let left = Netlink::open()?.links()?;
    assert_eq!(left.len(), 1, "only lo is left: {left:?}");
    println!("ok: no device is left behind");
    Ok(())
}

fn ping_crosses() -> Outcome {
    let (a, b, wire) = joined(1, OffloadCaps::ALL)?;
    for (from, to) in [(&a, &b), (&b, &a)] {
        for address in [to.v4(), to.v6()] {
            let ping = from.run(move || {
                let address = address.to_string();
                Command::new("ping").args(["-c2", "-i0.2", "-W30", "-q", &address]).output()
            })?;
            match ping {
                Ok(ping) => assert!(ping.status.success(), "{ping:?}"),
                Err(error) => println!("SKIPPED ping: {error}"),
            }
        }
    }
    let report = wire.stop()?;
    report.assert_nothing_leaked();
    Ok(())
}

fn large_segments_cross() -> Outcome {
    let report = transfer(OffloadCaps::ALL, Bodies::InBuffers)?;
    assert_eq!(report.in_pages, 0);
    assert!(report.longest > 4 * MTU_FRAME_LEN, "only {} bytes", report.longest);
    assert!(report.with_gso > 0);
    Ok(())
}

fn segments_cross_in_pages() -> Outcome {
    let report = transfer(OffloadCaps::ALL, Bodies::InPages)?;
    assert!(report.in_pages > 0);
    Ok(())
}

fn no_large_segments() -> Outcome {
    let report = transfer(OffloadCaps::NONE, Bodies::InBuffers)?;
    assert_eq!(report.longest, MTU_FRAME_LEN);
    assert_eq!(report.with_gso, 0);
    Ok(())
}

fn merged_segments_cross() -> Outcome {
    transfer(OffloadCaps::ALL, Bodies::Merged)?;
    Ok(())
}

/// What Linux has cut for a device is one frame again.
fn merged_reads_cross() -> Outcome {
    let (a, b) = (Guest::start(1, 2, OffloadCaps::NONE)?, Guest::start(2, 2, OffloadCaps::NONE)?);
    [&a, &b].into_iter().for_each(|guest| guest.tap.merge_read(OffloadCaps::ALL));
    let wire = Wire::start(a.ports(), b.ports())?;
    for address in [b.v4(), b.v6()] {
        stream(&a, &b, address)?;
    }
    let report = wire.stop()?;
    report.assert_nothing_leaked();
    assert!(report.with_gso > 0 && report.longest > MTU_FRAME_LEN, "{} bytes", report.longest);
    Ok(())
}

/// Data that no connection has: Linux resets it once, if it is one packet.
fn merged_segments() -> Outcome {
    let guest = Guest::start(1, 1, OffloadCaps::ALL)?;
    let mut queue = guest.ports().pop().ok_or("a device has a queue")?;
    let mut pool = FramePool::new(PoolBudget::new(8 << 20));
    let takes_long = kernel_version() >= (6, 3);
    let (len, count) = if takes_long { (60_000, 4) } else { (12_000, 4) };
    let resets = || guest.run(|| counter_of_tcp("OutRsts"));
    for (merge_len, packets) in [(256 << 10, 1), (0, 4), (2 * len + 100, 2)] {
        guest.tap.merge(merge_len);
        let before = resets()??;
        let mut frames = FrameQueue::new();
        for number in 0..count {
            let bytes = segment(guest.v4(), u32::try_from(number * len)?, len)?;
            let mut frame = frame(&mut pool, bytes.len())?;
            frame.bytes_mut().copy_from_slice(&bytes);
            let gso = Some(Gso { kind: GsoKind::TcpV4, size: 1000 });
            frame.offload = Offload { checksum: Checksum::Blank, gso };
            frames.push_back(frame);
        }
        queue.egress(&mut frames, &mut pool)?;
        assert_eq!(resets()?? - before, packets, "frames of at most {merge_len} bytes");
    }
    assert_eq!(guest.totals().rx_packets, 12, "frames are counted as they came");
    Ok(())
}

/// A counter of Linux' TCP in the namespace of this thread.
fn counter_of_tcp(name: &str) -> Result<u64, String> {
    let text =
        fs::read_to_string("/proc/thread-self/net/snmp").map_err(|error| error.to_string())?;
    let mut lines = text.lines().filter(|line| line.starts_with("Tcp:"));
    let mut words = || Some(lines.next()?.split_whitespace());
    let found = words().and_then(|mut names| names.position(|it| it == name));
    let value = found.and_then(|at| words()?.nth(at)?.parse().ok());
    value.ok_or_else(|| format!("no counter {name} in {text}"))
}

/// TCP data from the other guest to the first one, at this place of its stream.
fn segment(to: IpAddr, sequence: u32, len: usize) -> Result<Vec<u8>, Box<dyn Error>> {
    // Ports, sequence and acknowledgement; ACK; window, checksum and urgent pointer.
    let mut payload = sequence.to_be_bytes().to_vec();
    payload.extend([0, 0, 0, 1, 0x50, 0x10, 16, 0, 0, 0, 0, 0]);
    payload.resize(16 + len, 0x77);
    let mut bytes = datagram(to, 9, &payload)?;
    // A header of TCP in place of that of UDP: both begin with the ports.
    bytes.drain(38..42);
    let packet_len = u16::try_from(bytes.len() - 14)?;
    bytes[16..18].copy_from_slice(&packet_len.to_be_bytes());
    (bytes[20], bytes[23]) = (0x40, 6);
    let headers = headers::parse(&bytes).ok_or("it is IP")?;
    complete_ipv4_header(&mut bytes, &headers).map_err(DropReason::name)?;
    Ok(bytes)
}

/// Where long frames are, and how they are written.
#[derive(Clone, Copy, PartialEq)]
enum Bodies {
    InBuffers,
    InPages,
    /// In pages, and several at a time.
    Merged,
}

/// A transfer each way, over IPv4 and IPv6.
fn transfer(caps: OffloadCaps, bodies: Bodies) -> Result<Report, Box<dyn Error>> {
    let (a, b) = (Guest::start(1, 2, caps)?, Guest::start(2, 2, caps)?);
    let mut ports = [a.ports(), b.ports()];
    if bodies == Bodies::Merged {
        let len_max = if kernel_version() >= (6, 3) { 256 << 10 } else { 65549 };
        [&a, &b].into_iter().for_each(|guest| guest.tap.merge(len_max));
    }
    if bodies != Bodies::InBuffers {
        let queues = ports.iter_mut().flatten();
        let mut grants = Loopback::new().create_domain(DomId(1), Limits::default())?.grants()?;
        for queue in queues {
            queue.use_page_pool(Slabs::new(&mut grants, DomId(0))?.page_pool());
        }
    }
    let [of_a, of_b] = ports;
    let wire = Wire::start(of_a, of_b)?;
    for address in [b.v4(), b.v6()] {
        stream(&a, &b, address)?;
    }
    stream(&b, &a, a.v4())?;
    let report = wire.stop()?;
    report.assert_nothing_leaked();
    let (sent, received) = (a.totals(), b.totals());
    assert!(sent.tx_bytes > 2 * STREAM_LEN, "{sent:?}");
    assert!(received.rx_bytes > 2 * STREAM_LEN, "{received:?}");
    assert_eq!(
        sent.tx_packets, received.rx_packets,
        "every frame read on one side left on the other"
    );
    Ok(report)
}

fn queues_come_and_go() -> Outcome {
    let (mut a, mut b, wire) = joined(4, OffloadCaps::ALL)?;
    stream(&a, &b, b.v4())?;
    for count in [1, 3, 4] {
        a.tap.set_enabled(count)?;
        b.tap.set_enabled(count)?;
        assert_eq!(a.tap.queues(Side::Guest, |_| Arc::default()).len(), usize::from(count));
        // The wire still has all the queues: disabled ones have no frames.
        stream(&a, &b, b.v4())?;
    }
    for count in [0, 5] {
        let error = a.tap.set_enabled(count).expect_err("not possible");
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
    }
    wire.stop()?.assert_nothing_leaked();
    Ok(())
}

fn another_process_takes_over() -> Outcome {
    let mut net = Netlink::open()?;
    for queues in [1, 4, 2] {
        let tap = Tap::create_multi_queue("tap9", queues)?;
        tap.set_lifetime(Lifetime::Persistent)?;
        drop(tap);
        net.link("tap9")?;
    }
    let tap = Tap::create_multi_queue("tap9", 1)?;
    tap.set_lifetime(Lifetime::LastFile)?;
    let queue = only_queue(&tap, Side::Host, &Arc::default())?;
    drop(tap);
    net.link("tap9")?;
    drop(queue);
    assert!(net.link("tap9").is_err(), "it goes with its last queue");
    Ok(())
}

/// Another process made the device, and this one has no capability.
fn passed_queues() -> Outcome {
    const QUEUES: u16 = 3;
    let tap = Tap::create_multi_queue("tap9", QUEUES)?;
    let serve = &|count: u16| -> std::io::Result<()> {
        let none = CapabilitySet::empty();
        let none = CapabilitySets { effective: none, permitted: none, inheritable: none };
        set_capabilities(None, none)?;
        let refused = TunFile::open("tap8", QueueMode::Multi).expect_err("it needs one");
        assert_eq!(refused.kind(), ErrorKind::PermissionDenied, "{refused}");
        let mut passed = Tap::from_files(tap.files().map(Arc::clone).collect())?;
        assert_eq!(passed.name(), "tap9");
        let all = passed.queues(Side::Host, |_| Arc::default());
        assert_eq!(all.len(), usize::from(QUEUES), "whatever an earlier process left");
        passed.set_enabled(count)?;
        passed.set_offloads(OffloadCaps::ALL)?;
        let mut queues = passed.queues(Side::Host, |_| Arc::default());
        assert_eq!(queues.len(), usize::from(count));
        let mut pool = FramePool::new(PoolBudget::new(1 << 20));
        for queue in &mut queues {
            queue.ingress(Budget::BATCH, &mut pool, &mut FrameBatch::new()).expect("it is there");
        }
        Ok(())
    };
    thread::scope(|scope| {
        // Each ends as a process does that is killed.
        for count in [1, 2, QUEUES, 1] {
            scope.spawn(move || serve(count)).join().expect("no panic")?;
        }
        Ok::<(), std::io::Error>(())
    })?;
    let files: Vec<_> = tap.files().map(Arc::clone).collect();
    Netlink::open()?.delete("tap9")?;
    assert!(Tap::from_files(files).is_err(), "it was deleted");
    Ok(())
}

fn refused_frames() -> Outcome {
    let tap = Tap::create("tap%d", 1)?;
    let counters = Arc::<QueueCounters>::default();
    let mut queue = only_queue(&tap, Side::Host, &counters)?;
    let mut pool = FramePool::new(PoolBudget::new(1 << 20));
    let mut frames = FrameQueue::new();

    frames.push_back(frame(&mut pool, 60)?);
    queue.egress(&mut frames, &mut pool)?;
    assert_eq!(dropped(&counters, DropReason::NoRoute), 1, "the interface is down");

    Netlink::open()?.set(tap.name(), &[LinkSetting::Up])?;
    frames.extend([frame(&mut pool, 60)?, frame(&mut pool, 5)?, frame(&mut pool, 60)?]);
    queue.egress(&mut frames, &mut pool)?;
    assert!(frames.is_empty());
    assert_eq!(dropped(&counters, DropReason::BadOffload), 1, "no room for an Ethernet header");
    let totals = counters.totals();
    assert_eq!(
        (totals.tx_packets, totals.tx_bytes),
        (2, 120),
        "on the host, written is the guest's tx"
    );
    Ok(())
}

/// Datagrams whose device marked them valid and left the checksum out, as `passt` does: without and
/// with padding, and fragments, which are as they were.
fn validated_frames() -> Outcome {
    let guest = Guest::start(1, 1, OffloadCaps::ALL)?;
    let mut queue = guest.ports().pop().ok_or("a device has a queue")?;
    let mut pool = FramePool::new(PoolBudget::new(1 << 20));
    for address in [guest.v4(), guest.v6()] {
        let receiver = guest.run(move || UdpSocket::bind((address, 0)))??;
        // waits: what has not arrived is sent again
        receiver.set_read_timeout(Some(AGAIN))?;
        for (number, padding, is_plain) in [(1, 0, false), (2, 30, false), (3, 0, true)] {
            guest.tap.set_plain(is_plain);
            let payload = [number; 9];
            let mut bytes = datagram(address, receiver.local_addr()?.port(), &payload)?;
            bytes.extend(vec![0x77; padding]);
            let deadline = Instant::now() + PATIENCE;
            // A new IPv6 address is reachable a moment later, so the frame is sent again and again.
            let received = loop {
                let mut frame = frame(&mut pool, bytes.len())?;
                frame.bytes_mut().copy_from_slice(&bytes);
                frame.offload.checksum = Checksum::Validated;
                queue.egress(&mut FrameQueue::from([frame]), &mut pool)?;
                let mut received = [0; 100];
                match receiver.recv(&mut received) {
                    // One that was sent before.
                    Ok(_) if received[0] < number => {}
                    Err(error) if is_nothing(&error) && Instant::now() < deadline => {}
                    len => break received[..len?].to_owned(),
                }
            };
            assert_eq!(received, payload, "{address}, {padding} bytes of padding");
        }
    }
    Ok(())
}

/// A datagram from the other guest to the first one, with a checksum that is wrong.
fn datagram(to: IpAddr, port: u16, payload: &[u8]) -> Result<Vec<u8>, Box<dyn Error>> {
    let len = u16::try_from(8 + payload.len())?;
    let mut bytes = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    match to {
        IpAddr::V4(to) => {
            bytes.extend([8, 0, 0x45, 0]);
            bytes.extend((20 + len).to_be_bytes());
            bytes.extend([0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 2]);
            bytes.extend(to.octets());
        }
        IpAddr::V6(to) => {
            bytes.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            bytes.extend(len.to_be_bytes());
            bytes.extend([17, 64]);
            bytes.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
            bytes.extend(to.octets());
        }
    }
    bytes.extend([4000, port, len, 0xdead].into_iter().flat_map(u16::to_be_bytes));
    bytes.extend(payload);
    let headers = headers::parse(&bytes).ok_or("it is IP")?;
    complete_ipv4_header(&mut bytes, &headers).map_err(DropReason::name)?;
    Ok(bytes)
}

fn deleted_device() -> Outcome {
    let tap = Tap::create("tap%d", 1)?;
    let mut queue = only_queue(&tap, Side::Host, &Arc::default())?;
    let mut pool = FramePool::new(PoolBudget::new(1 << 20));
    Netlink::open()?.delete(tap.name())?;
    let mut frames = FrameQueue::from([frame(&mut pool, 60)?]);
    let down = queue.egress(&mut frames, &mut pool);
    assert!(matches!(down, Err(QueueDown::Host(_))), "{down:?}");
    assert_eq!(frames.len(), 1, "the frame is still the caller's");
    let down = queue.ingress(Budget::BATCH, &mut pool, &mut FrameBatch::new());
    assert!(matches!(down, Err(QueueDown::Host(_))), "{down:?}");
    Ok(())
}

fn no_buffers() -> Outcome {
    let tap = Tap::create("tap%d", 1)?;
    let mut net = Netlink::open()?;
    net.set(tap.name(), &[LinkSetting::Up])?;
    net.add_address(tap.name(), IpAddr::from([10, 7, 0, 1]), 24)?;
    let counters = Arc::<QueueCounters>::default();
    let mut queue = only_queue(&tap, Side::Guest, &counters)?;
    // Any datagram makes Linux ask for the neighbour: one small frame at least.
    std::net::UdpSocket::bind("10.7.0.1:0")?.send_to(&[0], "10.7.0.2:9")?;

    let mut batch = FrameBatch::new();
    queue.ingress(Budget::BATCH, &mut FramePool::new(PoolBudget::new(0)), &mut batch)?;
    assert!(batch.is_empty(), "there was no large frame to read into");
    assert_eq!(dropped(&counters, DropReason::NoBuffer), 0);

    // Enough for the large frame, not for a small one.
    let mut pool = FramePool::new(PoolBudget::new(70_000));
    queue.ingress(Budget::BATCH, &mut pool, &mut batch)?;
    assert!(batch.is_empty(), "there was no small frame to copy into");
    assert!(dropped(&counters, DropReason::NoBuffer) > 0, "the frames had waited");
    assert!(pool.take(1 << 16).is_some(), "the large frame came back");
    Ok(())
}

fn inherited_descriptor() -> Outcome {
    let tap = Tap::create("tap%d", 1)?;
    let opened = only_queue(&tap, Side::Host, &Arc::default())?;
    let inherited = rustix::io::dup(&opened)?;
    drop((tap, opened));
    let mut queue = TapQueue::from_fd(inherited, Side::Host, Arc::default())?;
    let mut pool = FramePool::new(PoolBudget::new(1 << 20));
    queue.ingress(Budget::BATCH, &mut pool, &mut FrameBatch::new())?;
    Ok(())
}

/// Two guests, and all queues of one joined to those of the other.
fn joined(queues: u16, caps: OffloadCaps) -> Result<(Guest, Guest, Wire), Box<dyn Error>> {
    let (a, b) = (Guest::start(1, queues, caps)?, Guest::start(2, queues, caps)?);
    let wire = Wire::start(a.ports(), b.ports())?;
    Ok((a, b, wire))
}

/// A stream is the numbers below this one, four bytes each.
const STREAM_WORDS: u32 = 1 << 20;
const STREAM_LEN: u64 = 4 << 20;
/// The time after which a stream has failed; it normally takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(60);
/// When a datagram that has not arrived is sent again.
const AGAIN: Duration = Duration::from_millis(100);

/// Whether nothing has arrived in time.
fn is_nothing(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

/// Sends a stream of a known content and checks what arrives.
fn stream(from: &Guest, to: &Guest, address: IpAddr) -> Outcome {
    let content = || (0..STREAM_WORDS).flat_map(u32::to_le_bytes);
    let listener = to.run(move || TcpListener::bind((address, 0)))??;
    let target = listener.local_addr()?;
    let mut sender = from.run(move || TcpStream::connect_timeout(&target, PATIENCE))??;
    // The connection stands, so this returns at once.
    let (mut receiver, _) = listener.accept()?;
    sender.set_write_timeout(Some(PATIENCE))?;
    receiver.set_read_timeout(Some(PATIENCE))?;

    let sent = thread::spawn(move || sender.write_all(&content().collect::<Vec<u8>>()));
    let mut received = Vec::new();
    receiver.read_to_end(&mut received)?;
    sent.join().map_err(|_| "the sender panicked")??;
    assert!(content().eq(received.iter().copied()), "the stream arrived as something else");
    Ok(())
}

fn only_queue(
    tap: &Tap,
    side: Side,
    counters: &Arc<QueueCounters>,
) -> Result<TapQueue, Box<dyn Error>> {
    let queue = tap.queues(side, |_| Arc::clone(counters)).pop();
    Ok(queue.ok_or("a device has a queue")?)
}

fn frame(pool: &mut FramePool, len: usize) -> Result<Frame, Box<dyn Error>> {
    let mut frame = pool.take(len).ok_or("the pool is spent")?;
    frame.bytes_mut().fill(0);
    Ok(frame)
}

fn dropped(counters: &QueueCounters, reason: DropReason) -> u64 {
    counters.dropped.snapshot().filter(|&(of, _)| of == reason).map(|(_, count)| count).sum()
}
