//! The forwarding table against a model, under pressure, and with several threads.

use std::collections::HashMap;

use ringway_datapath::MacAddr;
use ringway_switch::fdb::{Assigned, Fdb, Learned, NotBound};
use ringway_switch::{PortId, Ticks};

const AGEING: u32 = 10;

/// Where an address is, and when it was seen.
type Model = HashMap<MacAddr, (PortId, u32)>;

fn age(now: u32, seen: u32) -> u32 {
    now.wrapping_sub(seen)
}

fn check_entries(fdb: &Fdb, model: &Model, now: u32) {
    let entries = fdb.entries(Ticks(now));
    let mut shown: Vec<_> = entries.map(|it| (it.mac, it.port, it.age_ticks)).collect();
    let entries = model.iter().map(|(&mac, &(port, seen))| (mac, port, age(now, seen)));
    let mut expected: Vec<_> = entries.filter(|entry| entry.2 <= AGEING).collect();
    shown.sort_unstable();
    expected.sort_unstable();
    assert_eq!(shown, expected);
}

#[test]
#[cfg_attr(miri, ignore = "reads a table of 4000 entries too often for Miri")]
fn it_behaves_like_a_map_with_times() {
    const PORTS: u16 = 6;
    const PER_PORT: u32 = 12;
    // So many that no set overflows.
    const ENTRIES: u32 = 4000;
    for seed in 0..40 {
        let mut random = fastrand::Rng::with_seed(0x5eed_0040 + seed);
        let fdb = Fdb::new(ENTRIES, PORTS, PER_PORT, AGEING, random.u64(..));
        let mut model = Model::new();
        // Starts close before the clock wraps around.
        let mut now = u32::MAX - 20;
        for _ in 0..4_000 {
            let (mac, port) = (mac(random.u16(..70)), PortId(random.u16(..PORTS)));
            match random.u8(..20) {
                0..10 => {
                    let of_port = model.values().filter(|entry| entry.0 == port).count();
                    let port_is_full = of_port >= usize::try_from(PER_PORT).unwrap();
                    let expected = match model.get(&mac) {
                        Some(&(known, _)) if known == port => Learned::Known,
                        Some(&(_, seen)) if age(now, seen) <= AGEING => Learned::OtherPort,
                        _ if port_is_full => Learned::PortFull,
                        Some(_) => Learned::Moved,
                        None => Learned::New,
                    };
                    let learned = fdb.learn(mac, port, Ticks(now));
                    assert_eq!(learned, expected, "seed {seed}");
                    if is_there(learned) {
                        model.insert(mac, (port, now));
                    }
                }
                10..16 => {
                    let expected = model.get(&mac).filter(|entry| age(now, entry.1) <= AGEING);
                    assert_eq!(fdb.lookup(mac, Ticks(now)), expected.map(|entry| entry.0));
                }
                16..18 => now = now.wrapping_add(random.u32(..3)),
                18 => {
                    let before = model.len();
                    model.retain(|_, entry| age(now, entry.1) <= AGEING);
                    assert_eq!(fdb.expire(Ticks(now)), before - model.len());
                }
                _ if random.u8(..4) == 0 => {
                    let before = model.len();
                    model.retain(|_, entry| entry.0 != port);
                    assert_eq!(fdb.remove_port(port), before - model.len());
                }
                _ => check_entries(&fdb, &model, now),
            }
            assert_eq!(usize::try_from(fdb.len()).unwrap(), model.len());
            assert_eq!(fdb.is_empty(), model.is_empty());
        }
    }
}

#[test]
fn a_guest_that_invents_addresses_evicts_no_other() {
    // One set only: every address competes with every other one.
    let fdb = Fdb::new(4, 4, 100, 100, 7);
    fdb.learn(mac(1), PortId(1), Ticks(0));
    fdb.learn(mac(2), PortId(2), Ticks(0));
    let invented = if cfg!(miri) { 1000..1050 } else { 1000..3000 };
    for invented in invented {
        fdb.learn(mac(invented), PortId(3), Ticks(1));
        assert_eq!(fdb.lookup(mac(1), Ticks(1)), Some(PortId(1)));
        assert_eq!(fdb.lookup(mac(2), Ticks(1)), Some(PortId(2)));
        assert!(fdb.len() <= 4 && fdb.port_len(PortId(3)) <= 2);
    }
}

#[test]
fn the_total_is_limited_and_aged_entries_count_until_they_are_removed() {
    let ageing = 50;
    let fdb = Fdb::new(4, 3, 100, ageing, 7);
    for (number, port) in [(1, 1), (2, 1), (3, 2), (4, 2)] {
        let now = Ticks(u32::from(number));
        assert_eq!(fdb.learn(mac(number), PortId(port), now), Learned::New);
    }
    let now = Ticks(1 + ageing + 1);
    assert_eq!(fdb.learn(mac(5), PortId(1), now), Learned::Refused);
    assert_eq!(fdb.expire(now), 1);
    assert_eq!(fdb.learn(mac(5), PortId(1), now), Learned::New);
    assert_eq!((fdb.len(), fdb.port_len(PortId(1))), (4, 2));
}

#[test]
fn in_a_crowded_table_an_address_is_at_its_last_port_or_unknown() {
    let (seeds, rounds) = if cfg!(miri) { (1, 300) } else { (20, 20_000) };
    for seed in 0..seeds {
        let mut random = fastrand::Rng::with_seed(0x5eed_0041 + seed);
        // 1000 addresses for 64 entries in 16 sets, all of few ports.
        let fdb = Fdb::new(64, 4, 64, 5, random.u64(..));
        let mut last: HashMap<MacAddr, PortId> = HashMap::new();
        let mut now = 0;
        for _ in 0..rounds {
            let (mac, port) = (mac(random.u16(..1000)), PortId(random.u16(..4)));
            if is_there(fdb.learn(mac, port, Ticks(now))) {
                last.insert(mac, port);
                assert_eq!(fdb.lookup(mac, Ticks(now)), Some(port));
            }
            let other = MacAddr([2, 0, 0, 0, random.u8(..4), random.u8(..)]);
            if let Some(port) = fdb.lookup(other, Ticks(now)) {
                assert_eq!(Some(&port), last.get(&other));
            }
            now += u32::from(random.u8(..50) == 0);
            if random.u8(..) == 0 {
                fdb.expire(Ticks(now));
            }
            assert!(fdb.len() <= 64 + 4, "each port has room for one");
            let by_port: u32 = (0..4).map(|port| fdb.port_len(PortId(port))).sum();
            assert_eq!(by_port, fdb.len());
        }
        // Everything ages; then the table is empty and all counts are zero.
        fdb.expire(Ticks(now + 6));
        assert!(fdb.is_empty());
    }
}

#[test]
#[cfg_attr(miri, ignore = "fills tables too large for Miri")]
fn most_of_the_nominal_capacity_is_usable() {
    let fdb = Fdb::new(4096, 1, 4096, 100, 0x1234_5678_9abc_def1);
    let new =
        (0..4096).filter(|&number| fdb.learn(mac(number), PortId(0), Ticks(0)) == Learned::New);
    let learned = new.count();
    // The rest replaced addresses of its own full set.
    assert!(learned > 4000, "{learned} of 4096");
    let found = (0..4096).filter(|&number| fdb.lookup(mac(number), Ticks(0)).is_some()).count();
    assert!(found > 4000, "{found} of 4096");
}

#[test]
fn threads_that_learn_expire_and_remove_leave_exact_numbers() {
    const PORTS: u16 = 4;
    let fdb = Fdb::new(64, PORTS, 40, 3, 99);
    let rounds = if cfg!(miri) { 300 } else { 60_000 };
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let fdb = &fdb;
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(0x5eed_0042 + thread);
                for round in 0..rounds {
                    let now = Ticks(round / 100);
                    let number = random.u16(..100);
                    // Each address is seen at two of the ports only.
                    let port = PortId((number + random.u16(..2)) % PORTS);
                    match random.u16(..1000) {
                        0 => drop(fdb.expire(now)),
                        1 => drop(fdb.remove_port(port)),
                        2..500 => drop(fdb.learn(mac(number), port, now)),
                        _ => {
                            if let Some(found) = fdb.lookup(mac(number), now) {
                                let ports = [number % PORTS, (number + 1) % PORTS];
                                assert!(ports.contains(&found.0));
                            }
                        }
                    }
                }
            });
        }
    });
    let now = Ticks(600);
    let mut counts = [0; 4];
    for entry in Fdb::entries(&fdb, now) {
        counts[usize::from(entry.port.0)] += 1;
    }
    fdb.expire(now);
    for (port, count) in (0..PORTS).zip(counts) {
        assert_eq!(fdb.port_len(PortId(port)), count);
    }
    assert_eq!(fdb.len(), counts.iter().sum());
    let removed: usize = (0..PORTS).map(|port| fdb.remove_port(PortId(port))).sum();
    assert_eq!(u32::try_from(removed).unwrap(), counts.iter().sum());
    assert!(fdb.is_empty());
}

#[test]
fn the_zero_address_is_never_learned() {
    let fdb = Fdb::new(64, 2, 10, 10, 1);
    let zeros = MacAddr([0; 6]);
    assert_eq!(fdb.learn(zeros, PortId(1), Ticks(0)), Learned::Refused);
    assert_eq!(fdb.lookup(zeros, Ticks(0)), None);
    assert_eq!((fdb.len(), fdb.port_len(PortId(0)), fdb.port_len(PortId(1))), (0, 0, 0));
}

#[test]
fn a_port_number_out_of_range_learns_nothing() {
    let fdb = Fdb::new(64, 2, 10, 10, 1);
    assert_eq!(fdb.learn(mac(1), PortId(2), Ticks(0)), Learned::PortFull);
    assert_eq!(fdb.learn(mac(1), PortId(u16::MAX), Ticks(0)), Learned::PortFull);
    assert_eq!(fdb.bind(mac(1), PortId(2), Ticks(0)), Err(NotBound::NoRoom));
    fdb.set_addresses_max(PortId(2), 5);
    fdb.set_addresses_max(PortId(1), 0);
    assert_eq!(fdb.learn(mac(1), PortId(1), Ticks(0)), Learned::PortFull);
    assert_eq!(fdb.learn(mac(1), PortId(0), Ticks(0)), Learned::New);
}

#[test]
fn a_static_address_neither_moves_nor_ages_nor_counts_against_the_total() {
    let fdb = Fdb::new(2, 4, 8, 10, 1);
    assert_eq!(fdb.learn(mac(9), PortId(3), Ticks(0)), Learned::New);
    // It replaces a learned address, whatever its port.
    assert_eq!(fdb.bind(mac(9), PortId(1), Ticks(0)), Ok(()));
    assert_eq!(fdb.bind(mac(9), PortId(1), Ticks(0)), Ok(()), "binding again is not an error");
    assert_eq!((fdb.port_len(PortId(1)), fdb.port_len(PortId(3))), (1, 0));
    assert_eq!(fdb.bind(mac(9), PortId(2), Ticks(0)), Err(NotBound::OtherPort(PortId(1))));
    for now in [0, 11, 1000] {
        assert_eq!(fdb.learn(mac(9), PortId(3), Ticks(now)), Learned::OtherPort);
        assert_eq!(fdb.learn(mac(9), PortId(1), Ticks(now)), Learned::Known);
        assert_eq!(fdb.lookup(mac(9), Ticks(now)), Some(PortId(1)));
        assert_eq!(fdb.expire(Ticks(now)), 0);
    }
    let shown: Vec<_> = fdb.entries(Ticks(5000)).collect();
    assert!(matches!(shown[..], [entry] if entry.is_static && entry.age_ticks == 0));
    for number in 20..24 {
        assert_eq!(fdb.bind(mac(number), PortId(2), Ticks(0)), Ok(()), "{number}");
    }
    let kept = Assigned { own: &[mac(21), mac(22), mac(23)], ..Assigned::default() };
    assert_eq!(fdb.assign(PortId(2), &kept, Ticks(0)), [], "20 is no longer among them");
    assert_eq!(fdb.lookup(mac(20), Ticks(0)), None);
    assert_eq!(fdb.remove_port(PortId(2)), 3);
    assert_eq!((fdb.len(), fdb.port_len(PortId(2))), (1, 0));
    for bad in [MacAddr([0; 6]), MacAddr::BROADCAST, MacAddr([1, 0, 0, 0, 0, 0])] {
        assert_eq!(fdb.bind(bad, PortId(2), Ticks(0)), Err(NotBound::NoRoom));
        assert_eq!(fdb.lookup(bad, Ticks(0)), None);
    }
}

fn sharing(shared: &[MacAddr]) -> Assigned<'_> {
    Assigned { shared, addresses_max: 1, ..Assigned::default() }
}

#[test]
fn a_shared_address_moves_at_once_but_only_between_the_ports_that_share_it() {
    let fdb = Fdb::new(64, 6, 10, 10, 1);
    // A port has learned it before others shared it.
    assert_eq!(fdb.take(mac(1), PortId(1), Ticks(0)), Learned::OtherPort, "it is not shared");
    assert_eq!(fdb.learn(mac(1), PortId(3), Ticks(0)), Learned::New);
    for port in [1, 2] {
        assert_eq!(fdb.assign(PortId(port), &sharing(&[mac(1)]), Ticks(0)), []);
    }
    assert_eq!(fdb.lookup(mac(1), Ticks(0)), None);
    for now in [0, 5, 100] {
        // Also before any of them has sent, and after it has aged.
        assert_eq!(fdb.learn(mac(1), PortId(3), Ticks(now)), Learned::OtherPort);
        for port in [1, 2].map(PortId) {
            assert_eq!(fdb.learn(mac(1), port, Ticks(now)), Learned::OtherPort);
            assert!(is_there(fdb.take(mac(1), port, Ticks(now))));
            assert_eq!(fdb.learn(mac(1), port, Ticks(now)), Learned::Known);
            assert_eq!(fdb.lookup(mac(1), Ticks(now)), Some(port));
            assert_eq!(fdb.learn(mac(1), PortId(3), Ticks(now)), Learned::OtherPort);
        }
    }
    // It is no other port's own, and an own address is not shared.
    assert_eq!(fdb.bind(mac(1), PortId(3), Ticks(0)), Err(NotBound::Shared(PortId(1))));
    assert_eq!(fdb.bind(mac(2), PortId(3), Ticks(0)), Ok(()));
    let refused = fdb.assign(PortId(4), &sharing(&[mac(2)]), Ticks(0));
    assert_eq!(refused, [(mac(2), NotBound::OtherPort(PortId(3)))]);
    assert_eq!(fdb.take(mac(2), PortId(4), Ticks(0)), Learned::OtherPort);
    // The last one to share it leaves it to all.
    fdb.remove_port(PortId(2));
    assert_eq!(fdb.lookup(mac(1), Ticks(100)), None);
    assert_eq!(fdb.learn(mac(1), PortId(3), Ticks(100)), Learned::OtherPort);
    assert_eq!(fdb.assign(PortId(1), &sharing(&[]), Ticks(100)), []);
    assert_eq!(fdb.learn(mac(1), PortId(3), Ticks(100)), Learned::New);
}

#[test]
fn shared_addresses_are_bounded_and_leave_room_for_others() {
    let fdb = Fdb::new(4096, 20, 10, 10, 1);
    for port in 0..16 {
        let shared: Vec<MacAddr> = (0..16).map(|number| mac(port * 16 + number)).collect();
        assert_eq!(fdb.assign(PortId(port), &sharing(&shared), Ticks(0)), []);
        for one in shared {
            assert_eq!(fdb.take(one, PortId(port), Ticks(0)), Learned::New);
        }
        // Beside those, its limit counts others.
        assert_eq!(fdb.learn(mac(1000 + port), PortId(port), Ticks(0)), Learned::New);
        assert_eq!(fdb.learn(mac(2000), PortId(port), Ticks(0)), Learned::PortFull);
    }
    let one_more = fdb.assign(PortId(17), &sharing(&[mac(300), mac(3)]), Ticks(0));
    assert_eq!(one_more, [(mac(300), NotBound::NoRoom)]);
    fdb.remove_port(PortId(7));
    assert_eq!(fdb.assign(PortId(17), &sharing(&[mac(300), mac(3)]), Ticks(0)), []);
    let bad = [MacAddr::BROADCAST, MacAddr([0; 6])];
    let refused = fdb.assign(PortId(18), &sharing(&bad), Ticks(0));
    assert_eq!(refused, bad.map(|mac| (mac, NotBound::NoRoom)));
}

/// Ports of all kinds send from a few addresses, and change what they share.
#[test]
fn a_shared_address_is_only_ever_at_a_port_that_shares_it() {
    const PORTS: u16 = 6;
    for seed in 0..if cfg!(miri) { 1 } else { 50 } {
        let mut random = fastrand::Rng::with_seed(0x5eed_0045 + seed);
        let fdb = Fdb::new(64, PORTS, 10, 10, random.u64(..));
        let mut shared: HashMap<PortId, Vec<MacAddr>> = HashMap::new();
        let mut now = 0;
        for _ in 0..2_000 {
            let port = PortId(random.u16(..PORTS));
            let one = mac(random.u16(..4));
            let shares = |port: PortId| shared.get(&port).is_some_and(|list| list.contains(&one));
            match random.u8(..20) {
                0 => now += random.u32(..8),
                1 => drop(fdb.expire(Ticks(now))),
                2 => {
                    let list: Vec<MacAddr> =
                        (0..4).filter(|_| random.u8(..4) == 0).map(mac).collect();
                    let assigned = Assigned { addresses_max: 10, ..sharing(&list) };
                    assert_eq!(fdb.assign(port, &assigned, Ticks(now)), []);
                    shared.insert(port, list);
                }
                3 => {
                    fdb.remove_port(port);
                    shared.remove(&port);
                }
                // As the switch does.
                _ => match fdb.learn(one, port, Ticks(now)) {
                    Learned::OtherPort if shares(port) => {
                        assert!(is_there(fdb.take(one, port, Ticks(now))), "seed {seed}");
                    }
                    Learned::OtherPort => {}
                    _ => assert!(shares(port) || !(0..PORTS).map(PortId).any(shares)),
                },
            }
            let is_shared = |mac| shared.values().any(|list| list.contains(&mac));
            for mac in (0..4).map(mac).filter(|mac| is_shared(*mac)) {
                let at = fdb.lookup(mac, Ticks(now));
                let is_right =
                    at.is_none_or(|port| shared.get(&port).is_some_and(|list| list.contains(&mac)));
                assert!(is_right, "seed {seed}: {mac} is at {at:?}");
            }
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "thousands of addresses take Miri minutes")]
fn every_port_can_learn_its_first_address_in_a_full_table() {
    // 16 ports of 256 addresses fill a table of 4096.
    let fdb = Fdb::new(4096, 32, 256, 300, 0x5eed_0043);
    for number in 0..16 * 512 {
        fdb.learn(mac(number), PortId(number % 16), Ticks(0));
    }
    assert!(fdb.len() >= 4000, "{}", fdb.len());
    for port in 16..32 {
        let own = mac(0x8000 + port);
        assert_eq!(fdb.bind(own, PortId(port), Ticks(0)), Ok(()));
        assert_eq!(fdb.lookup(own, Ticks(0)), Some(PortId(port)));
    }
    let learned = (0..16).filter(|&port| {
        fdb.remove_port(PortId(16 + port));
        is_there(fdb.learn(mac(0x9000 + port), PortId(16 + port), Ticks(0)))
    });
    // A full set has no room, but that is chance, and no guest can choose it.
    assert!(learned.count() >= 14);
}

fn is_there(learned: Learned) -> bool {
    matches!(learned, Learned::Known | Learned::New | Learned::Moved)
}

fn mac(number: u16) -> MacAddr {
    let [high, low] = number.to_be_bytes();
    MacAddr([2, 0, 0, 0, high, low])
}
