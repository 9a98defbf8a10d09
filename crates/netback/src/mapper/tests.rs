use super::*;

const MAPPED: GrantRef = GrantRef(7);

fn registry() -> Registry<()> {
    let mut registry = Registry::default();
    registry.add(vec![(MAPPED, Access::ReadOnly, ())]);
    registry
}

fn entry(gref: u32, flags: u16) -> GrefEntry {
    // A guest need not clear the status.
    GrefEntry { gref, flags, status: 0xffff }
}

#[test]
fn a_list_is_wanted_in_full_or_not_at_all() {
    //= netif.h:gref-add
    let list = [entry(9, GREF_READONLY), entry(8, 0), entry(u32::MAX, 0)];
    let expected = vec![
        (GrantRef(9), Access::ReadOnly),
        (GrantRef(8), Access::ReadWrite),
        (GrantRef(u32::MAX), Access::ReadWrite),
    ];
    assert_eq!(wanted(&list, &registry()), Some(expected));
    assert_eq!(wanted(&[], &registry()), Some(Vec::new()));
    for bad in [entry(MAPPED.0, GREF_READONLY), entry(9, GREF_READONLY), entry(10, 2)] {
        for place in 0..=list.len() {
            let mut list = list.to_vec();
            list.insert(place, bad);
            assert_eq!(wanted(&list, &registry()), None, "{bad:?} at {place}");
        }
    }
    let many = |count| (1000..1000 + count).map(|gref| entry(gref, 0)).collect::<Vec<_>>();
    let room = u32::try_from(STAGED_PAGES_MAX).expect("it is small") - 1;
    assert!(wanted(&many(room), &registry()).is_some());
    assert!(wanted(&many(room + 1), &registry()).is_none());
}

#[test]
fn each_entry_that_leaves_has_its_status() {
    //= netif.h:gref-del
    let mut list = [entry(8, 0), entry(MAPPED.0, 9), entry(MAPPED.0, 0)];
    let leaving = judge_leaving(&mut list, &registry());
    assert!(leaving.into_iter().eq([MAPPED]));
    assert_eq!(list.map(|entry| entry.status), [2, 0, 2]);
    assert_eq!(list.map(|entry| (entry.gref, entry.flags)), [(8, 0), (7, 9), (7, 0)]);
}
