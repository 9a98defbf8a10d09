//! A frontend on the emulated hypervisor, and a backend that writes where it may only read.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use ringway_datapath::{FramePool, FrameQueue, OffloadCaps, PoolBudget, PortQueue, QueueCounters};
use ringway_emu::{EmuEvent, EmuHypervisor, EmuMemory, NewDomain, Role};
use ringway_hypervisor::{
    Access, ForeignMemory, GrantCopy, GrantStatus, Hypervisor, PageCopy, QueueEvents,
};
use ringway_netfront::Slabs;
use ringway_sys::SharedPages;
use ringway_wire::netif::{TX_SLOT_LEN, TxRequest};
use ringway_wire::ring::{REQ_PROD, SLOTS};
use ringway_wire::{DomId, GrantRef, PAGE_SIZE};

use crate::host::Host;

type Front = ringway_netfront::VifQueue<ringway_emu::EmuGrants, EmuEvent>;

const BACKEND: DomId = DomId(0);

fn frontend(guest: &EmuHypervisor) -> Front {
    let event = || guest.alloc_unbound(BACKEND).expect("ports are left");
    let events = QueueEvents::Split { tx: event(), rx: event() };
    let grants = guest.grants().expect("a guest has grants");
    let mut front = Front::new(grants, BACKEND, events, Arc::new(QueueCounters::default()))
        .expect("the guest has memory");
    front.set_caps(OffloadCaps::ALL);
    front
}

/// A backend copies into the pages from which a guest sends, and maps them to write.
#[test]
fn a_backend_cannot_write_to_pages_that_a_guest_sends_from() {
    let host = Host::start();
    let toolstack = host.toolstack();
    let new = NewDomain { domid: None, memory_bytes: 1000 * 4096, role: Role::Guest };
    let guest = host.connect(host.toolstack().create_domain(new).expect("there is room"));
    let domid = guest.domid();
    let mut grants = guest.grants().expect("a guest has grants");
    let mut front = frontend(&guest);
    let slabs = Slabs::new(&mut grants, BACKEND).expect("the guest has memory");
    front.send_from(&slabs);

    // A head of a page, and a slab full of bytes.
    let mut pool = FramePool::new(PoolBudget::new(1 << 20));
    let mut end = slabs.page_pool().take().expect("all of them are free");
    let len = end.len().min(60_000);
    end.truncate(len);
    let slab = end
        .kept_pages()
        .expect("they are our own")
        .memory()
        .downcast_ref::<SharedPages>()
        .expect("slabs are shared");
    let slab = slab.clone();
    let bytes: Vec<u8> = (0..=250).cycle().take(len).collect();
    slab.copy_from(end.pieces()[0].at, &bytes);
    let at = end.pieces()[0].at;
    let mut frame = pool.take(65_000).expect("the pool has room");
    frame.set_len(PAGE_SIZE);
    frame.bytes_mut().fill(7);
    frame.set_end(end);
    front.egress(&mut FrameQueue::from([frame]), &mut pool).expect("the backend does nothing");

    let mut memory = toolstack.memory().expect("domain 0 reaches other domains' memory");
    let config = front.config();
    let ring = memory.map(domid, config.tx_ring_ref, Access::ReadWrite).expect("it is granted");
    let count = ring.pages().load(REQ_PROD, Ordering::Acquire);
    let requests = (0..usize::try_from(count).expect("few"))
        .map(|slot| ring.pages().read::<TxRequest>(SLOTS + slot * TX_SLOT_LEN));
    let grefs: Vec<GrantRef> = requests.map(|request| GrantRef(request.gref)).collect();
    assert_eq!(grefs.len(), 1 + len.div_ceil(PAGE_SIZE), "a page for the head, and the slab's");

    for gref in grefs {
        check_read_only(&mut memory, domid, config.rx_ring_ref, gref);
    }
    let mut left = vec![0; len];
    slab.copy_to(at, &mut left);
    assert!(left == bytes, "the guest's bytes are as it wrote them");
}

/// A page of a guest, beside another that may be written, can only be read.
fn check_read_only(memory: &mut EmuMemory, domid: DomId, beside: GrantRef, gref: GrantRef) {
    let status = GrantStatus::GeneralError;
    let copy = GrantCopy { gref, offset: 0, len: 64, local: 0, local_offset: 0, status };
    let mut ops = [copy];
    memory.copy_to_peer(domid, &mut ops, &[[0xff; 64]]).expect("the call is sound");
    assert_eq!(ops[0].status, GrantStatus::PermissionDenied, "{gref}");
    let across = PageCopy {
        from: domid,
        from_gref: beside,
        from_offset: 0,
        to_gref: gref,
        to_offset: 0,
        len: 64,
        status,
    };
    let mut across = [across];
    memory.copy_between_peers(domid, &mut across).expect("the call is sound");
    assert_eq!(across[0].status, GrantStatus::PermissionDenied, "{gref}");
    assert!(memory.map(domid, gref, Access::ReadWrite).is_err(), "{gref}");
    // Reading is what it is granted for.
    let (mut ops, mut read) = ([copy], [[0; 64]]);
    memory.copy_from_peer(domid, &mut ops, &mut read).expect("the call is sound");
    assert_eq!(ops[0].status, GrantStatus::Okay);
    assert_ne!(read[0], [0xff; 64]);
}
