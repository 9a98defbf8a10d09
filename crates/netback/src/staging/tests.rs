use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

use ringway_hypervisor::{GrantTable, Hypervisor};
use ringway_loopback::{Limits, Loopback};

use super::*;

/// A page that counts how many like it exist.
struct Page {
    number: usize,
    alive: Rc<Cell<usize>>,
}

impl Page {
    fn new(number: usize, alive: &Rc<Cell<usize>>) -> Page {
        alive.set(alive.get() + 1);
        Page { number, alive: Rc::clone(alive) }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        self.alive.set(self.alive.get() - 1);
    }
}

fn access_of(random: &mut fastrand::Rng) -> Access {
    if random.bool() { Access::ReadOnly } else { Access::ReadWrite }
}

/// Adds and takes out at random, against a map.
fn matches_a_map(seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let alive = Rc::new(Cell::new(0));
    let mut registry = Registry::default();
    let mut model = BTreeMap::<GrantRef, (Access, usize)>::new();
    for round in 0..40 {
        if random.bool() {
            let mut added = BTreeMap::new();
            for _ in 0..random.usize(0..30) {
                let gref = GrantRef(random.u32(0..100));
                if !registry.has(gref) {
                    added.insert(gref, (access_of(&mut random), round));
                }
            }
            let pages = added
                .iter()
                .map(|(gref, (access, number))| (*gref, *access, Page::new(*number, &alive)));
            registry.add(pages.rev().collect());
            model.extend(added);
        } else {
            let modulo = random.u32(1..6);
            let leaving = registry.take_out(|gref| gref.0 % modulo == 0);
            let before = model.len();
            model.retain(|gref, _| gref.0 % modulo != 0);
            assert_eq!(leaving.len(), before - model.len());
        }
        assert_eq!((registry.len(), alive.get()), (model.len(), model.len()));
        for gref in (0..100).map(GrantRef) {
            let known = model.get(&gref).copied();
            assert_eq!(registry.has(gref), known.is_some());
            let number = |access| registry.page(gref, access).map(|page: &Page| page.number);
            assert_eq!(number(Access::ReadOnly), known.map(|(_, number)| number));
            let writable = known.filter(|(access, _)| *access == Access::ReadWrite);
            assert_eq!(number(Access::ReadWrite), writable.map(|(_, number)| number));
        }
    }
    drop(registry);
    assert_eq!(alive.get(), 0);
}

#[test]
fn pages_are_found_by_their_grants_and_for_what_they_are_mapped() {
    for seed in 0..if cfg!(miri) { 1 } else { 200 } {
        println!("seed {seed}");
        matches_a_map(seed);
    }
}

#[test]
fn room_is_free_again_when_a_page_is_gone() {
    let budget = Arc::new(PageBudget::new(3));
    let [one, other] = [(); 2].map(|()| Arc::new(budget.part(2)));
    let rooms = [one.room(), one.room(), other.room()];
    assert!(rooms.iter().all(Option::is_some));
    assert!(one.room().is_none(), "all of its part is taken");
    assert!(other.room().is_none(), "nothing is left for its part");
    drop(rooms);
    for _ in 0..2 {
        let rooms = [one.room(), other.room(), other.room()];
        assert!(rooms.iter().all(Option::is_some));
    }
}

#[test]
fn a_queue_copies_the_right_bytes_while_another_maps_and_unmaps() {
    const PAGES: usize = 8;
    let (host, guest, machine) = (DomId(0), DomId(7), Loopback::new());
    let [there, here] = [host, guest]
        .map(|domid| machine.create_domain(domid, Limits::default()).expect("it is new"));
    let granted = here.grants().expect("always made").share(host, PAGES, Access::ReadOnly);
    let granted = granted.expect("there is memory");
    for page in 0..PAGES {
        granted.pages.copy_from(page * PAGE_SIZE, &[u8::try_from(page).expect("few"); PAGE_SIZE]);
    }
    let (staged, budget) = (Arc::<StagedPages>::default(), Arc::new(PageBudget::new(PAGES)));
    let [mut maps, copies] = [(); 2].map(|()| there.memory().expect("always made"));
    let mut copies = StagedMemory::new(copies);
    copies.stage(&staged);
    std::thread::scope(|scope| {
        let mapper = scope.spawn(|| {
            for _ in 0..if cfg!(miri) { 3 } else { 300 } {
                let mapped = granted.grefs.iter().map(|gref| {
                    let wanted = (guest, *gref, Access::ReadOnly);
                    let page = StagedPage::map(&mut maps, wanted, &budget).expect("it is granted");
                    (*gref, Access::ReadOnly, page)
                });
                let mapped = mapped.collect();
                staged.registry().add(mapped);
                let leaving = staged.registry().take_out(|_| true);
                drop(leaving);
            }
        });
        while !mapper.is_finished() {
            let mut ops: Vec<GrantCopy> =
                (0..PAGES).map(|page| copy_of(granted.grefs[page], page)).collect();
            let mut bytes = [[0; 64]; PAGES];
            copies.copy_from_peer(guest, &mut ops, &mut bytes).expect("no fault");
            for (page, (op, bytes)) in ops.iter().zip(&bytes).enumerate() {
                assert_eq!(op.status, GrantStatus::Okay);
                assert_eq!(*bytes, [u8::try_from(page).expect("few"); 64]);
            }
        }
    });
    assert_eq!((staged.count(), machine.holdings_of(host).mappings), (0, 0));
}

fn copy_of(gref: GrantRef, local: usize) -> GrantCopy {
    let local = u16::try_from(local).expect("few");
    let status = GrantStatus::GeneralError;
    GrantCopy { gref, offset: 100, len: 64, local, local_offset: 0, status }
}
