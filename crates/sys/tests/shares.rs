//! Front-ends that map as much memory as they can leave every other one its share.
//!
//! In its own process: the tests use up the common pool of all front-ends.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use ringway_sys::guest_memory::{
    FRONT_ENDS_MAX, GuestMemory, MapError, MappingShare, REGIONS_MAX, Region,
};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

const PAGE: u64 = 4096;
/// Regions that every front-end may have in any case.
const OWN: usize = 32;

fn memory_file(len: u64) -> OwnedFd {
    let fd = memfd_create("guest", MemfdFlags::CLOEXEC).expect("a memfd");
    ftruncate(&fd, len).expect("a sparse file of any length");
    fd
}

/// Regions that are apart from each other.
fn region(fd: &OwnedFd, number: usize, len: u64) -> Region {
    let address = u64::try_from(number).expect("a small number") * 2 * len;
    Region {
        guest_address: address,
        user_address: address,
        len,
        file_offset: 0,
        fd: fd.try_clone().expect("a descriptor"),
    }
}

/// As many regions as there is room for, at most those of a table, and the reason why there are no
/// more.
fn fill(fd: &OwnedFd, len: u64) -> (GuestMemory, Option<MapError>) {
    let mut memory = GuestMemory::empty(MappingShare::new().expect("one more front-end"));
    for number in 0..REGIONS_MAX {
        match memory.with(region(fd, number, len)) {
            Ok(more) => memory = more,
            Err(error) => return (memory, Some(error)),
        }
    }
    (memory, None)
}

#[test]
fn however_much_many_front_ends_map_the_next_gets_its_share() {
    let fd = memory_file(PAGE);
    let (mut greedy, mut refused) = (Vec::new(), None);
    while refused.is_none() {
        let (memory, error) = fill(&fd, PAGE);
        (refused, _) = (error, greedy.push(memory));
    }
    assert!(greedy.len() > 16 && greedy.len() < usize::from(FRONT_ENDS_MAX) / 2);
    let reason = refused.expect("the loop ends so").to_string();
    assert!(reason.contains("32 of its own, and the 8192 that all"), "{reason}");
    let (ninth, error) = fill(&fd, PAGE);
    assert_eq!(ninth.regions().count(), OWN);
    assert!(error.is_some());
    // This front-end may replace these regions by others.
    let half = (0..OWN / 2).fold(ninth, |memory, number| {
        let gone = region(&fd, number, PAGE);
        memory.without(gone.guest_address, gone.user_address, gone.len).expect("it is there")
    });
    let again = half.with_all((0..OWN / 2).map(|number| region(&fd, number, PAGE)).collect());
    assert_eq!(again.expect("there is room again").regions().count(), OWN);
    // What one front-end releases is available to all.
    greedy.truncate(8);
    let (after, error) = fill(&fd, PAGE);
    assert_eq!((after.regions().count(), error.is_none()), (REGIONS_MAX, true));
    drop((half, greedy, after));
    one_long_region();
    addresses();
    front_ends();
}

/// A region that no front-end may have, whatever the others map.
fn one_long_region() {
    let memory = GuestMemory::empty(MappingShare::new().expect("one more front-end"));
    let refused = memory.with(region(&memory_file(1 << 46), 0, 1 << 46)).expect_err("too long");
    let expected = "mapping 0x400000000000 bytes of the region at guest address 0x0: with these, \
                    this front-end would have 0x400000000000 bytes, more than the limit of \
                    0x204000000000";
    assert_eq!(refused.to_string(), expected);
}

/// Front-ends share the address space, too: files may be sparse, and of any length.
fn addresses() {
    let len = 1 << 40;
    let fd = memory_file(len);
    // The first one reaches its limit, and the second one finds the common pool used up.
    let (_first, limited) = fill(&fd, len);
    assert!(limited.expect("the limit of one").to_string().contains("the limit of 0x204000000000"));
    let (_second, refused) = fill(&fd, len);
    let reason = refused.expect("nothing is left").to_string();
    assert!(reason.contains("0x4000000000 of its own"), "{reason}");
    assert!(reason.contains("of the 0x200000000000 that all front-ends share 0x"), "{reason}");
    let honest = memory_file(200 << 30);
    let memory = GuestMemory::empty(MappingShare::new().expect("one more front-end"));
    memory.with(region(&honest, 0, 200 << 30)).expect("it is less than the part of each");
}

fn front_ends() {
    let shares: Vec<_> = (0..FRONT_ENDS_MAX).map_while(|_| MappingShare::new().ok()).collect();
    assert_eq!(shares.len(), usize::from(FRONT_ENDS_MAX));
    assert!(MappingShare::new().is_err());
    drop::<Vec<Arc<MappingShare>>>(shares);
    assert!(MappingShare::new().is_ok());
}
