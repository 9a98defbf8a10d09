//! Frames with tags, and ports that take them tagged or untagged.

use std::time::Duration;

use ringway_datapath::{DropReason, Vid, VlanRules};

use crate::bench::Bench;

#[test]
fn a_vlan_frame_leaves_tagged_or_untagged_as_each_port_requires() {
    let vid = |number| Vid::new(number).expect("a VLAN");
    let access = VlanRules { untagged: Some(vid(10)), tagged: Vec::new() };
    let trunk = VlanRules { untagged: None, tagged: vec![vid(10)] };
    let mut bench = Bench::new(crate::MEMORY);
    let mut one = |number, rules| bench.port_in(number, rules);
    let (a, b, t, u) = (one(1, &access), one(2, &access), one(3, &trunk), one(4, &trunk));
    let tagged = [0x81, 0, 0, 10, 0x88, 0xb5];
    let untagged = [0x88, 0xb5];

    // To each, one by one and by a flood.
    a.far().script = [(2, 60), (3, 60), (4, 60), (255, 60)].into();
    bench.run(Duration::from_millis(1), |_| ());
    for (station, frames, bytes, head) in
        [(&b, 2, 2 * 60, &untagged[..]), (&t, 2, 2 * 64, &tagged), (&u, 2, 2 * 64, &tagged)]
    {
        let far = station.far();
        assert_eq!((far.received, far.received_bytes), (frames, bytes));
        assert_eq!(&far.last[..head.len()], head);
    }
    t.far().tag = Some(10);
    t.far().script = [(1, 64), (4, 64)].into();
    bench.ready(&t);
    bench.run(Duration::from_millis(1), |_| ());
    assert_eq!((a.far().received_bytes, u.far().received_bytes), (60, 2 * 64 + 64));
    assert_eq!(a.far().last[..2], untagged);
    // A tag that is not the port's own is refused, and counted.
    t.far().tag = Some(11);
    t.far().script = [(1, 64), (255, 64)].into();
    b.far().tag = Some(10);
    b.far().script = [(1, 64)].into();
    bench.ready(&t);
    bench.ready(&b);
    bench.run(Duration::from_millis(1), |_| ());
    assert_eq!((t.dropped(DropReason::Vlan), b.dropped(DropReason::Vlan)), (2, 1));
    assert_eq!(a.far().received, 1);
    // The longest frame for a small buffer, with and without the tag.
    let small = ringway_datapath::SMALL_LEN;
    a.far().script = [(3, small), (3, small - 3), (2, small)].into();
    bench.ready(&a);
    bench.run(Duration::from_millis(1), |_| ());
    let sum = 2 * 64 + small + 4 + small + 1;
    assert_eq!(t.far().received_bytes, u64::try_from(sum).expect("short"));
}

#[test]
fn an_inner_tag_does_not_become_the_outer_one() {
    let vid = |number| Vid::new(number).expect("a VLAN");
    let tagged = VlanRules { untagged: None, tagged: vec![vid(10)] };
    let mut bench = Bench::new(crate::MEMORY);
    let mut one = |number, rules| bench.port_in(number, rules);
    let (guest, other) = (one(1, &tagged), one(2, &tagged));
    // Like an uplink whose own VLAN is 10, with 20 another tenant's VLAN on its wire.
    let native = one(3, &VlanRules { untagged: Some(vid(10)), tagged: vec![vid(20)] });
    {
        let mut far = guest.far();
        (far.tag, far.inner_tag) = (Some(10), Some(20));
        far.script = [(2, 64), (3, 64), (255, 64)].into();
    }
    bench.ready(&guest);
    bench.run(Duration::from_millis(1), |_| ());
    // A port that has the VLAN with its tag gets the frame as it was sent.
    assert_eq!(other.far().received, 2);
    assert_eq!(native.far().received, 0, "it would have left with the tag of VLAN 20");
    assert_eq!(guest.dropped(DropReason::Vlan), 2);
}
