//! The doctor reads counters of queues of the interfaces of this machine: of `virtio_net`, which
//! has them in `ethtool -S` or, since Linux 6.12 at the latest, over netlink only.

use std::fs;
use std::time::Duration;

use ringway_doctor::evidence::collect;
use ringway_doctor::fact::{Fact, Host, QueueCounters};
use ringway_doctor::parse::ethtool::{Statistics, queue_counter};

const DRIVER: &str = "virtio_net";
/// The first kernel on which every interface of this driver that is up reports its queues.
const REPORTS_SINCE: (u32, u32) = (6, 12);

#[test]
fn queues_of_this_machine_are_counted() {
    let nics = nics();
    if nics.is_empty() {
        println!("SKIPPED: no interface of {DRIVER} is up");
        return;
    }
    let host = Host::new(collect(Duration::from_millis(10), QueueCounters::PIECES));
    let counters: QueueCounters = host.fact().expect("it reads nothing yet");
    for nic in nics {
        match counters.of_queues(&nic) {
            Ok(span) if span.after.has_queue_bytes() => {
                assert_counts(&nic, &span.before, &span.after);
                println!("ok: {nic}, {}", span.text.origin());
            }
            other if kernel() >= REPORTS_SINCE && is_up(&nic) => panic!("{nic}: {other:?}"),
            _ => println!("SKIPPED: {nic}: this kernel is too old, and ethtool has no queues"),
        }
    }
}

/// The first queue is counted in both directions, no counter falls, and all queues together have no
/// more packets than the interface has by now.
fn assert_counts(nic: &str, before: &Statistics, after: &Statistics) {
    for (is_tx, direction) in [(false, "rx"), (true, "tx")] {
        let (mut packets, mut has_first) = (0, false);
        for (name, (count, _)) in &after.counters {
            let Some((counter, queue)) = queue_counter(name) else { continue };
            let known = before.counters.get(name).map(|(count, _)| *count);
            assert!(known.is_none_or(|known| known <= *count), "{name}: {known:?}, {count}");
            if counter.is_tx == is_tx && !counter.is_bytes {
                packets += count;
                has_first |= queue == 0;
            }
        }
        assert!(has_first, "{direction} of {nic}: {after:?}");
        let all = read(&format!("/sys/class/net/{nic}/statistics/{direction}_packets"));
        assert!(packets <= all.parse().expect("a number"), "{direction} of {nic}: {packets} {all}");
    }
}

/// Interfaces of the driver that are up and in this network namespace: `/sys` may show another's.
fn nics() -> Vec<String> {
    let here = read("/proc/self/net/dev");
    let is_here =
        |nic: &String| here.lines().any(|line| line.trim().starts_with(&format!("{nic}:")));
    let entries = fs::read_dir("/sys/class/net").into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let is_wanted = |nic: &String| {
        let driver = fs::read_link(format!("/sys/class/net/{nic}/device/driver"));
        driver.is_ok_and(|driver| driver.ends_with(DRIVER)) && is_up(nic)
    };
    names.filter(is_here).filter(is_wanted).collect()
}

/// Whether an interface has the flag `IFF_UP`, which is 1: its queues are in use.
fn is_up(nic: &str) -> bool {
    let flags = read(&format!("/sys/class/net/{nic}/flags"));
    u32::from_str_radix(flags.trim_start_matches("0x"), 16).is_ok_and(|flags| flags & 1 == 1)
}

/// The first two numbers of the release.
fn kernel() -> (u32, u32) {
    let release = read("/proc/sys/kernel/osrelease");
    let mut numbers = release.split(['.', '-']).map(|part| part.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}
