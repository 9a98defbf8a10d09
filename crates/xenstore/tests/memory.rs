//! What a guest that has filled its quota leaves behind. This test is alone in its program, because
//! the count covers the whole program.

use std::alloc::System;
use std::fs;

use ringway_wire::xenstore::Op;
use ringway_xenstore::{DomId, Quota, SessionId, Tree};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static HEAP: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const GUEST: DomId = DomId(1);
const HOME: &str = "/local/domain/1/data";
/// Bytes of a value: about as many as a node may have.
const VALUE_LEN: usize = 2000;
/// More than the tree itself keeps: the node that the guest may write to, and empty lists.
const KEPT_MAX: usize = 8 << 10;

/// Bytes that are allocated now, beyond those at the start of a region.
fn live(region: &Region<'_, System>) -> usize {
    let change = region.change();
    change.bytes_allocated.saturating_sub(change.bytes_deallocated)
}

/// Bytes of this process that are in memory.
fn resident() -> usize {
    let statm = fs::read_to_string("/proc/self/statm").expect("the kernel has it");
    let pages = statm.split_whitespace().nth(1).expect("the second number");
    pages.parse::<usize>().expect("a number") * rustix::param::page_size()
}

/// Sends a request. A guest that goes beyond its quota gets errors, which it ignores.
fn ask(tree: &mut Tree, by: SessionId, op: Op, tx: u32, text: &str) -> String {
    let reply = tree.request(by, op.number(), tx, text.as_bytes()).unwrap_or_default();
    String::from_utf8(reply).expect("text").trim_end_matches('\0').to_owned()
}

/// Writes every node that the guest may own, with other values each time.
fn write_all(tree: &mut Tree, guest: SessionId, tx: u32, letter: &str) {
    for number in 0..Quota::default().nodes {
        let value = letter.repeat(VALUE_LEN);
        ask(tree, guest, Op::Write, tx, &format!("{HOME}/{}/{number}\0{value}", number % 31));
    }
}

/// Fills the quota of nodes, watches, events and transactions, each of which keeps the values of
/// its beginning; then gives all of it back. Returns the most that was live.
fn fill_and_empty(tree: &mut Tree, region: &Region<'_, System>) -> usize {
    let guest = tree.open(GUEST).expect("it has no other");
    for number in 0..Quota::default().watches {
        ask(tree, guest, Op::Watch, 0, &format!("{HOME}/{}\0{number}\0", number % 31));
    }
    let mut open = Vec::new();
    for letter in ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"] {
        write_all(tree, guest, 0, letter);
        let tx = ask(tree, guest, Op::TransactionStart, 0, "\0").parse().expect("a number");
        write_all(tree, guest, tx, "x");
        open.push(tx);
    }
    let most = live(region);
    for tx in open {
        ask(tree, guest, Op::TransactionEnd, tx, "F\0");
    }
    ask(tree, guest, Op::Rm, 0, &format!("{HOME}\0"));
    tree.close(guest);
    while tree.next_ready().is_some() {}
    most
}

#[test]
fn a_guest_that_fills_its_quota_and_empties_it_again_leaves_nothing_behind() {
    let mut tree = Tree::new(Quota::default());
    tree.introduce(GUEST);
    let host = tree.open(DomId(0)).expect("it may");
    let mut round = || {
        ask(&mut tree, host, Op::Mkdir, 0, &format!("{HOME}\0"));
        ask(&mut tree, host, Op::SetPerms, 0, &format!("{HOME}\0b1\0"));
        let region = Region::new(HEAP);
        let most = fill_and_empty(&mut tree, &region);
        (most, live(&region))
    };
    let (most, kept) = round();
    assert!(most > 1 << 20, "{most} bytes are too few to show anything");
    assert!(kept < KEPT_MAX, "{kept} of {most} bytes are still allocated");
    // What the C library keeps for later is used again.
    let after_one = resident();
    for _ in 0..4 {
        let kept_later = round().1;
        assert!(kept_later <= kept, "{kept}, then {kept_later} bytes are still allocated");
    }
    let after_five = resident();
    println!("{most} bytes at most; {after_one}, then {after_five} bytes resident");
    assert!(after_five < after_one + most / 4, "{after_one}, then {after_five} bytes are resident");
}
