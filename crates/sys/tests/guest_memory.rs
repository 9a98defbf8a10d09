//! Guest memory as hostile front-ends announce it, and files that are truncated while in use.

use std::env;
use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ringway_sys::Intent;
use ringway_sys::SharedPages;
use ringway_sys::guest_memory::{
    DirtyLog, GuestMemory, GuestView, LossCheck, MapError, MappingShare, OutsideMemory, Purpose,
    REGIONS_MAX, Region, SharedFile,
};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

const PAGE: u64 = 4096;

fn memory_file(len: u64) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let fd = memfd_create("guest", flags).expect("a memfd");
    ftruncate(&fd, len).expect("there is memory");
    fd
}

fn share(fd: &OwnedFd) -> OwnedFd {
    fd.try_clone().expect("a descriptor")
}

/// `pages` pages of `fd` from `file_page` on, at `guest_page` and 2^40 above it.
fn region(fd: &OwnedFd, guest_page: u64, pages: u64, file_page: u64) -> Region {
    Region {
        guest_address: guest_page * PAGE,
        user_address: (1 << 40) + guest_page * PAGE,
        len: pages * PAGE,
        file_offset: file_page * PAGE,
        fd: share(fd),
    }
}

#[test]
fn both_address_spaces_lead_to_the_same_bytes() {
    let fd = memory_file(8 * PAGE);
    let memory = GuestMemory::map(vec![region(&fd, 16, 4, 4), region(&fd, 0, 4, 0)]).unwrap();
    let view = GuestView::new(Arc::new(memory.clone()));
    view.copy_from(17 * PAGE + 8, b"bytes").unwrap();
    let pages = memory.pages_of_user((1 << 40) + 17 * PAGE, PAGE).unwrap();
    let mut bytes = [0; 5];
    pages.copy_to(8, &mut bytes);
    assert_eq!(&bytes, b"bytes");
    let whole = SharedPages::map(&fd, 5 * PAGE, 4096).unwrap();
    whole.copy_to(8, &mut bytes);
    assert_eq!(&bytes, b"bytes");
    assert_eq!(memory.guest_of_user((1 << 40) + 17 * PAGE, PAGE), Ok(17 * PAGE));
    assert_eq!(memory.pages_of_user((1 << 40) + 16 * PAGE, 4 * PAGE).unwrap().len(), 4 * 4096);
    whole.store_u16(2, 0x1234, Ordering::Release);
    assert_eq!(pages.load_u16(2, Ordering::Acquire), 0x1234);
}

#[test]
fn a_region_may_begin_anywhere_in_its_file() {
    let fd = memory_file(3 * PAGE);
    let region = Region { file_offset: PAGE + 16, len: PAGE, ..region(&fd, 0, 1, 0) };
    let memory = GuestMemory::map(vec![region]).unwrap();
    GuestView::new(Arc::new(memory)).copy_from(PAGE - 1, &[7]).unwrap();
    let whole = SharedPages::map(&fd, 0, 3 * 4096).unwrap();
    assert_eq!(whole.read::<u8>(2 * 4096 + 15), 7);
}

#[test]
fn a_value_and_the_bytes_after_it_are_copied_across_regions() {
    let fd = memory_file(4 * PAGE);
    let memory = GuestMemory::map(vec![region(&fd, 0, 1, 3), region(&fd, 1, 2, 0)]).unwrap();
    let view = GuestView::new(Arc::new(memory));
    // Within one region; then with the seam after the value, inside it, and inside the bytes.
    for at in [8, 2 * PAGE, PAGE - 12, PAGE - 7, PAGE - 20] {
        let (value, bytes) = ([1_u32, 2, 3], [at as u8; 50]);
        view.copy_from_both(at, &value, &bytes).unwrap();
        let (mut found, mut rest) = ([0_u32; 3], [0; 50]);
        view.copy_to_both(at, &mut found, &mut rest).unwrap();
        assert_eq!((found, rest), (value, bytes));
    }
    for at in [3 * PAGE - 61, 3 * PAGE - 5, 3 * PAGE, 1 << 40, u64::MAX - 5] {
        view.copy_from_both(at, &[0_u32; 3], &[0; 50]).unwrap_err();
        view.copy_to_both(at, &mut [0_u32; 3], &mut [0; 50]).unwrap_err();
    }
}

#[test]
fn a_window_copies_only_what_is_all_in_its_region() {
    let fd = memory_file(4 * PAGE);
    let regions = vec![region(&fd, 0, 1, 3), region(&fd, 1, 2, 0), region(&fd, 5, 1, 2)];
    let view = GuestView::new(Arc::new(GuestMemory::map(regions).unwrap()));
    view.copy_from(PAGE, &[0; 64]).unwrap();
    let window = view.window().expect("the table has regions");
    let (value, bytes) = ([1_u32, 2, 3], [7; 50]);
    for at in [PAGE, PAGE + 5, 3 * PAGE - 62] {
        assert!(window.copy_from_both(at, &value, &bytes));
        let (mut found, mut rest) = ([0_u32; 3], [0; 50]);
        assert!(window.copy_to_both(at, &mut found, &mut rest));
        assert_eq!((found, rest), (value, bytes));
    }
    // Other regions, the seams of this one, and addresses that wrap around.
    for at in [0, PAGE - 1, 3 * PAGE - 61, 3 * PAGE, 5 * PAGE, u64::MAX - 61, u64::MAX] {
        assert!(!window.copy_from_both(at, &value, &bytes), "{at:#x}");
        let (mut found, mut rest) = ([9_u32; 3], [9; 50]);
        assert!(!window.copy_to_both(at, &mut found, &mut rest), "{at:#x}");
        assert_eq!((found, rest), ([9; 3], [9; 50]));
    }
}

#[test]
fn a_prefetch_hint_may_have_any_address() {
    let fd = memory_file(PAGE);
    let memory = GuestMemory::map(vec![region(&fd, 1, 1, 0)]).unwrap();
    let view = GuestView::new(Arc::new(memory));
    let window = view.window().expect("the table has a region");
    for address in [0, PAGE - 1, PAGE, 2 * PAGE - 1, 2 * PAGE, u64::MAX - 1, u64::MAX] {
        for len in [0, 1, 64, 65, u32::MAX] {
            window.prefetch(address, len, Intent::Read);
            window.prefetch(address, len, Intent::Write);
        }
    }
}

#[test]
fn a_range_may_span_adjacent_regions() {
    let fd = memory_file(8 * PAGE);
    let regions = vec![region(&fd, 0, 1, 5), region(&fd, 1, 1, 0), region(&fd, 2, 2, 2)];
    let view = GuestView::new(Arc::new(GuestMemory::map(regions).unwrap()));
    let bytes: Vec<u8> = (0..9000_u32).map(|index| (index % 251) as u8).collect();
    let mut back = vec![0; bytes.len()];
    view.copy_from(100, &bytes).unwrap();
    view.copy_to(100, &mut back).unwrap();
    assert_eq!(bytes, back);
    for (address, len) in [(4 * PAGE - 1, 2), (4 * PAGE, 1), (u64::MAX, 2), (u64::MAX - 1, 1)] {
        let outside = OutsideMemory { address, len };
        assert_eq!(view.check(address, len as usize), Err(outside));
        assert_eq!(view.copy_to(address, &mut vec![0; len as usize]), Err(outside));
    }
    view.check(0, 4 * PAGE as usize).unwrap();
    view.check(4 * PAGE, 0).unwrap();
    let seam = (1 << 40) + PAGE - 1;
    assert!(view.memory().pages_of_user(seam, 2).is_err(), "a ring lies in one region");
}

#[test]
fn adding_the_same_region_twice_is_not_an_error() {
    let fd = memory_file(4 * PAGE);
    let memory = GuestMemory::map(vec![region(&fd, 0, 4, 0)]).unwrap();
    let again = memory.with(region(&fd, 0, 4, 0)).unwrap();
    assert_eq!(again.regions().count(), 1);
    let other = memory_file(4 * PAGE);
    let refused = memory.with(region(&other, 0, 4, 0)).unwrap_err();
    assert!(matches!(refused, MapError::Overlap { .. }), "another file: {refused}");
}

#[test]
fn changing_regions_leaves_an_old_table_unchanged() {
    let fd = memory_file(4 * PAGE);
    let first = GuestMemory::map(vec![region(&fd, 0, 2, 0)]).unwrap();
    let both = first.with(region(&fd, 9, 2, 2)).unwrap();
    let second = both.without(0, 1 << 40, 2 * PAGE).unwrap();
    let starts = |memory: &GuestMemory| {
        memory.regions().map(|region| region.guest_address).collect::<Vec<_>>()
    };
    assert_eq!(
        [starts(&first), starts(&both), starts(&second)],
        [vec![0], vec![0, 9 * PAGE], vec![9 * PAGE]]
    );
    assert!(matches!(second.without(0, 1 << 40, 2 * PAGE), Err(MapError::NotThere { .. })));
}

#[test]
fn hostile_regions_are_refused() {
    let fd = memory_file(4 * PAGE);
    let good = || region(&fd, 0, 2, 0);
    let refused = |region: Region| GuestMemory::map(vec![good(), region]).unwrap_err().to_string();
    assert!(refused(Region { len: 0, ..region(&fd, 9, 1, 2) }).contains("no bytes"));
    for region in [
        Region { guest_address: u64::MAX - PAGE + 1, ..region(&fd, 9, 1, 2) },
        Region { user_address: u64::MAX, ..region(&fd, 9, 1, 2) },
        Region { file_offset: u64::MAX, ..region(&fd, 9, 1, 2) },
    ] {
        assert!(refused(region).contains("beyond the last address"));
    }
    for region in [
        region(&fd, 1, 1, 2),
        Region { user_address: (1 << 40) + PAGE, ..region(&fd, 9, 1, 2) },
        Region { len: 4, guest_address: 2, user_address: 0, ..region(&fd, 0, 1, 2) },
    ] {
        assert!(refused(region).contains("overlaps"));
    }
    assert!(refused(region(&fd, 9, 1, 4)).contains("longer than its file, which has 0x4000 bytes"));
    assert!(refused(region(&fd, 9, 5, 0)).contains("longer than its file"));
    let (socket, _other) = UnixStream::pair().unwrap();
    let not_files: [(OwnedFd, _); 3] = [
        (socket.into(), "socket"),
        (File::open("/").unwrap().into(), "directory"),
        (File::open("/dev/null").unwrap().into(), "character device"),
    ];
    for (fd, kind) in not_files {
        assert!(refused(Region { fd, ..region(&memory_file(0), 9, 1, 0) }).contains(kind));
    }
}

#[test]
fn a_refusal_names_the_memory_and_the_remedy() {
    let fd = memory_file(4 * PAGE);
    let share_of_one = MappingShare::new().unwrap();
    let log = |fd: OwnedFd, offset, len| {
        DirtyLog::map(&share_of_one, fd, offset, len).unwrap_err().to_string()
    };
    assert_eq!(log(share(&fd), 0, 0), "the dirty log (SET_LOG_BASE) has no bytes");
    let short = "the dirty log (SET_LOG_BASE), 0x1000 bytes from 0x4000 on, is longer than its \
                 file, which has 0x4000 bytes";
    assert_eq!(log(share(&fd), 4 * PAGE, PAGE), short);
    assert!(log(File::open("/").unwrap().into(), 0, 1).contains("(SET_LOG_BASE) is a directory"));
    let area = |fd: OwnedFd| {
        let area = SharedFile::map(&share_of_one, Purpose::InflightArea, fd, 0, PAGE);
        area.unwrap_err().to_string()
    };
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let words = area(File::open(&path).unwrap().into());
    let read_only = "the descriptor of the inflight area (SET_INFLIGHT_FD) is read-only: the \
                     front-end must open the file for reading and writing";
    assert_eq!(words, read_only);
    let write_only = OpenOptions::new().write(true).open(&path).unwrap();
    assert!(area(write_only.into()).contains(" is write-only: "));
    for seal in [SealFlags::WRITE, SealFlags::FUTURE_WRITE] {
        let sealed = memory_file(PAGE);
        fcntl_add_seals(&sealed, seal).unwrap();
        let words = GuestMemory::map(vec![region(&sealed, 3, 1, 0)]).unwrap_err().to_string();
        let expected = "the file of the region at guest address 0x3000 is sealed against writing: ";
        assert!(words.starts_with(expected), "{words}");
    }
}

#[test]
fn too_few_huge_pages_are_named() {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::HUGETLB;
    let Ok(fd) = memfd_create("guest", flags) else {
        eprintln!("SKIPPED: this system has no huge pages");
        return;
    };
    // More than any machine for tests has free.
    let len = 64 << 40;
    if ftruncate(&fd, len).is_err() {
        eprintln!("SKIPPED: this system has no such long file on huge pages");
        return;
    }
    let region = Region { len: 16 << 40, ..region(&fd, 0, 1, 0) };
    let words = GuestMemory::map(vec![region]).unwrap_err().to_string();
    assert!(words.contains("too few free huge pages") && words.contains("nr_hugepages"), "{words}");
}

#[test]
fn a_table_has_a_limit() {
    let fd = memory_file(PAGE);
    let regions = |count| (0..count).map(|index| region(&fd, 2 * index as u64, 1, 0)).collect();
    assert_eq!(GuestMemory::map(regions(REGIONS_MAX)).unwrap().regions().count(), REGIONS_MAX);
    assert!(matches!(GuestMemory::map(regions(REGIONS_MAX + 1)), Err(MapError::TooMany)));
}

#[test]
fn seals_show_whether_a_file_may_shrink() {
    for (seals, may_shrink) in [
        (SealFlags::empty(), true),
        (SealFlags::GROW, true),
        (SealFlags::SHRINK, false),
        (SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW, false),
    ] {
        let fd = memory_file(PAGE);
        fcntl_add_seals(&fd, seals).unwrap();
        let memory = GuestMemory::map(vec![region(&fd, 0, 1, 0)]).unwrap();
        assert_eq!(memory.regions().next().map(|region| region.may_shrink), Some(may_shrink));
    }
}

#[test]
fn a_truncated_file_costs_only_its_own_regions() {
    let (cut, whole) = (memory_file(8 * PAGE), memory_file(8 * PAGE));
    let memory = GuestMemory::map(vec![region(&cut, 0, 8, 0), region(&whole, 8, 8, 0)]).unwrap();
    let other = GuestMemory::map(vec![region(&whole, 0, 8, 0)]).unwrap();
    let view = GuestView::new(Arc::new(memory.clone()));
    view.copy_from(7 * PAGE, &[1; 8]).unwrap();
    view.copy_from(8 * PAGE, &[2; 8]).unwrap();
    assert!(!memory.is_lost() && !other.is_lost());
    ftruncate(&cut, PAGE).unwrap();
    assert!(!memory.is_lost(), "there was no access behind the end");

    let mut bytes = [9; 16];
    view.copy_to(8 * PAGE - 8, &mut bytes).unwrap();
    assert_eq!(bytes, [[0; 8], [2; 8]].concat()[..]);
    assert!(memory.is_lost() && !other.is_lost());
    let lost: Vec<bool> = memory.regions().map(|region| region.is_lost).collect();
    assert_eq!(lost, [true, false]);
    // Writes still succeed, and reach no other process.
    view.copy_from(0, &[3; 8]).unwrap();
    let file = SharedPages::map(&cut, 0, 4096).unwrap();
    assert_eq!(file.read::<u8>(0), 0);
}

#[test]
fn files_truncated_at_any_moment_end_no_thread() {
    let workers: Vec<_> = (0..4)
        .map(|_| {
            std::thread::spawn(|| {
                for _ in 0..200 {
                    let fd = memory_file(4 * PAGE);
                    let memory = GuestMemory::map(vec![region(&fd, 0, 4, 0)]).unwrap();
                    let view = GuestView::new(Arc::new(memory));
                    ftruncate(fd.as_fd(), 0).unwrap();
                    view.copy_from(PAGE, &[1; 16]).unwrap();
                    assert!(view.memory().is_lost());
                }
            })
        })
        .collect();
    for worker in workers {
        worker.join().expect("no worker fails");
    }
    let fd = memory_file(PAGE);
    let memory = GuestMemory::map(vec![region(&fd, 0, 1, 0)]).unwrap();
    assert!(!memory.is_lost(), "what was lost before has nothing to do with a new table");
}

#[test]
fn a_dirty_log_has_one_bit_per_page_and_is_bounded() {
    let fd = memory_file(PAGE);
    let front_end = MappingShare::new().unwrap();
    let log = DirtyLog::map(&front_end, share(&fd), 8, 3).unwrap();
    log.mark(0, 1);
    log.mark(9 * PAGE - 1, 2);
    log.mark(5 * PAGE, 0);
    log.mark(u64::MAX, 0);
    let losses = LossCheck::new();
    losses.run(|| Ok::<_, ()>(())).unwrap();
    assert_eq!((log.outside(), log.pages_max(), log.size()), (None, 24, 3));
    log.mark(22 * PAGE, u64::MAX);
    assert_eq!(log.outside(), Some(24), "the first page without a bit");
    losses.run(|| Err(())).expect_err("it runs the check");
    log.mark(u64::MAX - 1, 100);
    assert_eq!(log.outside(), Some(24));
    let file = SharedPages::map(&fd, 0, 4096).unwrap();
    let bytes: Vec<u8> = (7..12).map(|offset| file.read(offset)).collect();
    assert_eq!(bytes, [0, 1, 3, 0b1100_0000, 0]);
    assert!(DirtyLog::map(&front_end, share(&fd), 1, PAGE).is_err());
    ftruncate(&fd, 0).unwrap();
    log.mark(0, 1);
    assert!(log.is_lost());
}

#[test]
fn a_truncated_area_is_lost() {
    let fd = memory_file(PAGE);
    let front_end = MappingShare::new().unwrap();
    let area = SharedFile::map(&front_end, Purpose::InflightArea, share(&fd), 8, 100).unwrap();
    assert_eq!(area.pages().len(), 100);
    let losses = LossCheck::new();
    let check = || if area.is_lost() { Err("lost") } else { Ok(()) };
    assert_eq!(losses.run(check), Ok(()));
    ftruncate(&fd, 0).unwrap();
    assert_eq!(losses.run(check), Ok(()));
    area.pages().store_u16(0, 1, Ordering::Relaxed);
    assert_eq!([losses.run(check), losses.run(check)], [Err("lost"); 2], "until it passes");
}

/// Runs the test of this name in another process, in which `CHILD` is set.
fn in_child(name: &str) -> Option<std::process::ExitStatus> {
    const CHILD: &str = "RINGWAY_GUEST_MEMORY_CHILD";
    if env::var_os(CHILD).is_some() {
        return None;
    }
    let mut child = Command::new(env::current_exe().expect("this program"));
    child.args([name, "--exact", "--nocapture"]).env(CHILD, "1");
    Some(child.output().expect("this program runs").status)
}

#[test]
fn faults_in_other_memory_raise_the_signal_as_usual() {
    if let Some(status) = in_child("faults_in_other_memory_raise_the_signal_as_usual") {
        assert_eq!(status.signal(), Some(libc_sigbus()), "{status}");
        return;
    }
    let fd = memory_file(4 * PAGE);
    // The guard is installed with the first table.
    let _memory = GuestMemory::map(vec![region(&fd, 0, 4, 0)]).unwrap();
    let pages = SharedPages::map(&fd, 0, 4 * 4096).unwrap();
    ftruncate(&fd, 0).unwrap();
    pages.read::<u8>(0);
    unreachable!("the access ended the process");
}

/// The number of `SIGBUS`, which is equal on all of Linux's architectures that ringway runs on.
fn libc_sigbus() -> i32 {
    rustix::process::Signal::BUS.as_raw()
}
