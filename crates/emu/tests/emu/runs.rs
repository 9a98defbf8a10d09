//! Copies that continue one another are carried out as one, and have the outcome of single ones.

use ringway_emu::{EmuGrants, EmuMemory, OwnPages, Role};
use ringway_hypervisor::{Access, ForeignMemory, GrantCopy, GrantStatus, Hypervisor, PageCopy};
use ringway_sys::SharedPages;
use ringway_wire::{DomId, GrantRef, PAGE_SIZE};

use crate::host::Host;

const BACKEND: DomId = DomId(0);
const PAGES: usize = 4;
const FULL: u16 = 4096;
const LEN: usize = PAGES * PAGE_SIZE;
const STATUS: GrantStatus = GrantStatus::GeneralError;

/// A guest with some pages, and the backend's access to them.
struct Guest {
    domid: DomId,
    grants: EmuGrants,
    own: OwnPages,
    grefs: Vec<GrantRef>,
    memory: EmuMemory,
    _domain: Box<dyn std::any::Any>,
}

impl Guest {
    /// Grants pages with consecutive references, of frames in this order.
    fn new(host: &Host, frames: [u32; PAGES]) -> Guest {
        let domain = host.connect(host.create(Role::Guest));
        let mut grants = domain.grants().expect("a guest has grants");
        let own = grants.alloc_pages(PAGES).expect("there are pages");
        let mut grant = |frame| grants.grant(BACKEND, own.first_frame + frame, Access::ReadWrite);
        let grefs: Vec<_> = frames.map(|frame| grant(frame).expect("there are grants")).into();
        assert!(grefs.windows(2).all(|pair| pair[1].0 == pair[0].0 + 1), "{grefs:?}");
        let memory = host.toolstack().memory().expect("domain 0 reaches other domains");
        own.pages.copy_from(0, &pattern(1));
        Guest { domid: domain.domid(), grants, own, grefs, memory, _domain: Box::new(domain) }
    }

    /// Copies of all pages to or from one buffer.
    fn ops(&self) -> Vec<GrantCopy> {
        let copy = |(page, gref): (usize, &GrantRef)| GrantCopy {
            gref: *gref,
            offset: 0,
            len: FULL,
            local: 0,
            local_offset: u32::try_from(page * PAGE_SIZE).expect("few pages"),
            status: STATUS,
        };
        self.grefs.iter().enumerate().map(copy).collect()
    }

    /// The buffer after copies of all pages, and their outcomes.
    fn read(&mut self) -> (Vec<u8>, Vec<GrantStatus>) {
        let (mut ops, mut local) = (self.ops(), [vec![0; LEN]]);
        self.memory.copy_from_peer(self.domid, &mut ops, &mut local).expect("the call is sound");
        let [local] = local;
        (local, ops.iter().map(|op| op.status).collect())
    }

    /// Nothing uses the pages any more.
    fn assert_unused(&mut self) {
        for gref in &self.grefs {
            self.grants.end_access(*gref).expect("it is not used");
        }
    }
}

/// Bytes of which no two pages are alike.
fn pattern(seed: usize) -> Vec<u8> {
    let byte = |at| u8::try_from((at / 7 + at / PAGE_SIZE + seed) % 251).expect("it is small");
    (0..LEN).map(byte).collect()
}

fn bytes(pages: &SharedPages) -> Vec<u8> {
    let mut bytes = vec![0; LEN];
    pages.copy_to(0, &mut bytes);
    bytes
}

#[test]
fn consecutive_pages_are_copied_both_ways() {
    let host = Host::start();
    let mut guest = Guest::new(&host, [0, 1, 2, 3]);
    assert_eq!(guest.read(), (pattern(1), vec![GrantStatus::Okay; PAGES]));
    let mut ops = guest.ops();
    // A run begins and ends inside of pages.
    (ops[0].offset, ops[0].len) = (96, FULL - 96);
    for op in &mut ops[1..] {
        op.local_offset -= 96;
    }
    ops[PAGES - 1].len = 10;
    let written = pattern(9);
    guest.memory.copy_to_peer(guest.domid, &mut ops, &[&written]).expect("the call is sound");
    assert!(ops.iter().all(|op| op.status == GrantStatus::Okay));
    let (end, mut expected) = (LEN - PAGE_SIZE + 10, pattern(1));
    expected[96..end].copy_from_slice(&written[..end - 96]);
    assert!(bytes(&guest.own.pages) == expected);
    guest.assert_unused();
}

#[test]
fn consecutive_grants_of_scattered_frames_are_copied_by_frame() {
    let host = Host::start();
    let mut guest = Guest::new(&host, [2, 3, 0, 1]);
    let (local, statuses) = guest.read();
    assert_eq!(statuses, [GrantStatus::Okay; PAGES]);
    let (first, second) = local.split_at(2 * PAGE_SIZE);
    assert!([second, first].concat() == pattern(1));
    guest.assert_unused();
}

#[test]
fn a_page_that_is_refused_is_the_only_one() {
    let host = Host::start();
    let mut guest = Guest::new(&host, [0, 1, 2, 3]);
    guest.grants.end_access(guest.grefs[1]).expect("it is not used");
    let (local, statuses) = guest.read();
    let okay = GrantStatus::Okay;
    assert_eq!(statuses, [okay, GrantStatus::BadGrantRef, okay, okay]);
    let mut expected = pattern(1);
    expected[PAGE_SIZE..2 * PAGE_SIZE].fill(0);
    assert!(local == expected);
    guest.assert_unused();
}

#[test]
fn a_page_that_is_mapped_stays_in_use_after_copies() {
    let host = Host::start();
    let mut guest = Guest::new(&host, [0, 1, 2, 3]);
    let mapped = guest.memory.map(guest.domid, guest.grefs[1], Access::ReadOnly);
    assert_eq!(guest.read(), (pattern(1), vec![GrantStatus::Okay; PAGES]));
    guest.grants.end_access(guest.grefs[1]).expect_err("it is mapped");
    drop(mapped);
    guest.assert_unused();
}

#[test]
fn consecutive_pages_of_two_guests_are_copied_across() {
    const SHIFT: usize = 100;
    let host = Host::start();
    let mut source = Guest::new(&host, [0, 1, 2, 3]);
    let targets = [[0, 1, 2, 3], [3, 2, 1, 0]].map(|frames| Guest::new(&host, frames));
    for mut target in targets {
        target.own.pages.copy_from(0, &[0; LEN]);
        // Each piece ends where a page of either guest ends.
        let (mut ops, end) = (Vec::new(), LEN - SHIFT);
        let mut to = 0;
        while to < end {
            let at = to + SHIFT;
            let [from_offset, to_offset] = [at % PAGE_SIZE, to % PAGE_SIZE];
            let len = (end - to).min(PAGE_SIZE - from_offset.max(to_offset));
            let small = |number| u16::try_from(number).expect("it is in a page");
            ops.push(PageCopy {
                from: source.domid,
                from_gref: source.grefs[at / PAGE_SIZE],
                from_offset: small(from_offset),
                to_gref: target.grefs[to / PAGE_SIZE],
                to_offset: small(to_offset),
                len: small(len),
                status: STATUS,
            });
            to += len;
        }
        target.memory.copy_between_peers(target.domid, &mut ops).expect("the call is sound");
        assert!(ops.iter().all(|op| op.status == GrantStatus::Okay));
        let (local, _) = target.read();
        assert!(local[..end] == pattern(1)[SHIFT..]);
        assert!(local[end..] == [0; SHIFT]);

        // The target's third page is refused: so are the two pieces in it, and no others.
        target.grants.end_access(target.grefs[2]).expect("it is not used");
        target.memory.copy_between_peers(target.domid, &mut ops).expect("the call is sound");
        for op in &ops {
            let is_refused = op.to_gref == target.grefs[2];
            let status = if is_refused { GrantStatus::BadGrantRef } else { GrantStatus::Okay };
            assert_eq!(op.status, status, "{op:?}");
        }
        target.assert_unused();
    }
    source.assert_unused();
}
