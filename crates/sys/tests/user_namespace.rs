//! Calls that only a process with one thread can make: no test harness, because that starts
//! threads.

use std::error::Error;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;

use ringway_sys::namespace::{enter_user_namespace, remount_sysfs, unshare_network};
use ringway_sys::tun::{Lifetime, QueueMode, QueueState, TunFile, TunOffload, WriteOutcome};
use ringway_wire::vnet::VirtioNetHdr;

/// A number that identifies the network namespace of this thread.
fn current_netns_id() -> io::Result<u64> {
    Ok(fs::metadata("/proc/thread-self/ns/net")?.ino())
}

fn main() -> Result<(), Box<dyn Error>> {
    let outside = current_netns_id()?;
    if let Err(error) = enter_user_namespace() {
        println!("SKIPPED everything: {error}");
        return Ok(());
    }
    assert!(rustix::process::geteuid().is_root(), "we are root in the new namespace");
    unshare_network()?;
    assert_ne!(current_netns_id()?, outside);
    println!("ok: a user namespace with a network namespace in it");

    match remount_sysfs() {
        Ok(()) => {
            let links = fs::read_dir("/sys/class/net")?.count();
            assert_eq!(links, 1, "a new network namespace has lo and nothing else");
            println!("ok: a fresh /sys shows the new network namespace");
        }
        Err(error) => println!("SKIPPED fresh /sys: {error}"),
    }

    match TunFile::open("tap%d", QueueMode::Multi) {
        Ok(first) => a_device_has_queues(first)?,
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            println!("SKIPPED TAP: {error}");
        }
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

fn a_device_has_queues(first: TunFile) -> Result<(), Box<dyn Error>> {
    assert_eq!(first.name()?, "tap0", "the kernel completes %d");
    let second = TunFile::open("tap0", QueueMode::Multi)?;
    let all = TunOffload { checksum: true, tso_v4: true, tso_v6: true, uso: true };
    match first.set_offload(all) {
        Err(error) if error.kind() == ErrorKind::InvalidInput => {
            println!("SKIPPED UDP segmentation: {error}");
            first.set_offload(TunOffload { uso: false, ..all })?;
        }
        other => other?,
    }
    first.set_offload(TunOffload::default())?;

    let error = TunFile::open("tap0", QueueMode::Single).expect_err("the device is multi-queue");
    assert!(error.to_string().contains("TAP tap0"), "{error}");
    let error = TunFile::open("lo", QueueMode::Single).expect_err("not a TAP");
    assert!(error.to_string().contains("another kind"), "{error}");
    println!("ok: a device has several queues, and names that are taken are refused");

    let mut header = VirtioNetHdr::default();
    let mut buffer = [0; 2048];
    assert_eq!(second.read_frame(&mut header, &mut buffer)?, None);
    assert_eq!(second.write_frame(&header, &[0; 60])?, WriteOutcome::LinkDown);
    assert_eq!(second.write_frame(&header, &[0; 10])?, WriteOutcome::Refused);
    println!("ok: frames that cannot be sent are outcomes, and no frame is no error");

    second.set_queue(QueueState::Detached)?;
    assert_eq!(second.read_frame(&mut header, &mut buffer)?, None);
    assert!(second.set_queue(QueueState::Detached).is_err(), "it is detached already");
    second.set_queue(QueueState::Attached)?;
    assert_eq!(second.read_frame(&mut header, &mut buffer)?, None);
    println!("ok: a queue can be detached and attached again");

    let inherited = rustix::io::dup(&second)?;
    let inherited = TunFile::from_fd(inherited)?;
    assert_eq!(inherited.name()?, "tap0");
    println!("ok: an inherited descriptor is taken over");

    first.set_lifetime(Lifetime::Persistent)?;
    drop((first, second, inherited));
    let again = TunFile::open("tap0", QueueMode::Multi)?;
    again.set_lifetime(Lifetime::LastFile)?;
    drop(again);
    println!("ok: a persistent device outlives its files");
    Ok(())
}
