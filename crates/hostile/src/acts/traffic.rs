//! Valid frames that this guest may not send, or too many of them.

use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::Result;
use ringway_datapath::MacAddr;

use crate::frame::{self, Route};
use crate::queue::Prepared;
use crate::stage::{Peer, Stage};

/// Broadcasts, on all queues.
pub(crate) fn flood_broadcast(stage: &mut Stage) -> Result<()> {
    flood(stage, |mac, _| (mac, MacAddr::BROADCAST))
}

/// Frames to unknown addresses, which all others therefore receive.
pub(crate) fn flood_unknown(stage: &mut Stage) -> Result<()> {
    flood(stage, |mac, n| (mac, MacAddr([2, 0x99, 0, 0, 0, n])))
}

/// Frames to unknown addresses, each from another address, so that the forwarding table fills.
pub(crate) fn flood_addresses(stage: &mut Stage) -> Result<()> {
    send_each(stage, |number| {
        let [a, b, c, d] = number.to_be_bytes();
        let (to, from) = (MacAddr([2, 0x98, d, c, b, a]), MacAddr([2, 0x66, a, b, c, d]));
        frame::ethernet(to, from, 0x88b5, &[0; 46])
    })
}

/// Reports a multicast group in each frame, so that the table of groups fills.
pub(crate) fn flood_groups(stage: &mut Stage) -> Result<()> {
    let own = stage.guest.mac;
    send_each(stage, |number| {
        let [_, b, c, d] = number.to_be_bytes();
        // 239.0.0.0/8; every fourth report is a leave message.
        let kind = if number % 4 == 3 { frame::IGMP_LEAVE } else { frame::IGMP_REPORT };
        frame::igmp(own, kind, Ipv4Addr::new(239, b, c, d))
    })
}

/// Sends IGMP queries, as a multicast router would.
pub(crate) fn rogue_querier(stage: &mut Stage) -> Result<()> {
    let query = frame::igmp(stage.guest.mac, frame::IGMP_QUERY, Ipv4Addr::UNSPECIFIED);
    send_in_turn(stage, &[query], Duration::from_millis(5))
}

/// Sends another frame each time, as fast as it can.
fn send_each(stage: &mut Stage, frame_of: impl Fn(u32) -> Vec<u8>) -> Result<()> {
    stage.guest.connect(1, 64)?;
    let mut number = 0_u32;
    while !stage.is_over() {
        let until = stage.until;
        let queue = stage.queue()?;
        if !queue.wait_for_room(64, until) {
            break;
        }
        for buffer in 0..64 {
            Prepared::new(queue, buffer, &frame_of(number), 0, None).push(queue);
            number = number.wrapping_add(1);
        }
        queue.publish_tx();
        stage.count("frames", 64);
    }
    Ok(())
}

fn flood(stage: &mut Stage, address: fn(MacAddr, u8) -> (MacAddr, MacAddr)) -> Result<()> {
    stage.guest.connect(8, 16)?;
    let frames = prepare_flood(stage, address);
    stage.pump(&frames)
}

fn prepare_flood(
    stage: &Stage,
    address: fn(MacAddr, u8) -> (MacAddr, MacAddr),
) -> Vec<Vec<Prepared>> {
    let mac = stage.guest.mac;
    let frames = stage.guest.queues.iter().map(|queue| {
        (0..16).map(|number: u8| {
            let (from, to) = address(mac, number);
            // An EtherType for experiments, which has no meaning to any receiver.
            let bytes = frame::ethernet(to, from, 0x88b5, &[number; 46]);
            Prepared::new(queue, usize::from(number), &bytes, 0, None)
        })
    });
    frames.map(Iterator::collect).collect()
}

/// Floods, and reconnects as soon as its flood budget is used up.
pub(crate) fn flood_reconnect(stage: &mut Stage) -> Result<()> {
    let end = stage.until;
    while std::time::Instant::now() < end {
        stage.guest.connect(8, 16)?;
        stage.count("connections", 1);
        let frames = prepare_flood(stage, |mac, _| (mac, MacAddr::BROADCAST));
        stage.until = (std::time::Instant::now() + Duration::from_millis(20)).min(end);
        stage.pump(&frames)?;
    }
    stage.until = end;
    Ok(())
}

/// Sends with another guest's address, and receives the frames for that guest.
pub(crate) fn spoofed_source(stage: &mut Stage) -> Result<()> {
    let other = stage.other()?;
    spoof(stage, other)
}

/// Sends with the host's address, and receives the frames for the host.
pub(crate) fn spoofed_host(stage: &mut Stage) -> Result<()> {
    let host = stage.host()?;
    spoof(stage, host)
}

fn spoof(stage: &mut Stage, whose: Peer) -> Result<()> {
    let victim = stage.victim()?;
    stage.guest.connect(1, 160)?;
    let queue = stage.queue()?;
    (32..160).for_each(|buffer| queue.post(buffer));
    queue.publish_rx();
    let claims = [
        frame::ethernet(victim.mac, whose.mac, 0x88b5, &[0; 46]),
        frame::ethernet(MacAddr::BROADCAST, whose.mac, 0x88b5, &[0; 46]),
    ];
    listen(stage, &claims, Duration::from_millis(2))
}

/// Sends router advertisements to all.
pub(crate) fn rogue_router(stage: &mut Stage) -> Result<()> {
    let advertisement = frame::router_advertisement(stage.guest.mac, &[]);
    send_in_turn(stage, &[advertisement], Duration::from_millis(50))
}

/// Sends them where a filter may not parse: behind other IPv6 headers, in fragments, behind
/// meaningless VLAN tags, and in SNAP frames.
pub(crate) fn hidden_router(stage: &mut Stage) -> Result<()> {
    use frame::{DESTINATION_OPTIONS, FRAGMENT, HOP_BY_HOP};

    let mac = stage.guest.mac;
    let plain = frame::router_advertisement(mac, &[]);
    let frames = [
        frame::router_advertisement(mac, &[DESTINATION_OPTIONS]),
        frame::router_advertisement(mac, &[HOP_BY_HOP, DESTINATION_OPTIONS, DESTINATION_OPTIONS]),
        frame::router_advertisement(mac, &[FRAGMENT]),
        frame::router_advertisement(mac, &[FRAGMENT, DESTINATION_OPTIONS]),
        frame::with_tag(&plain, 0),
        frame::with_tag(&frame::with_tag(&plain, 0), 0),
        frame::in_snap(&plain),
        frame::in_snap(&frame::with_tag(&plain, 0)),
    ];
    send_in_turn(stage, &frames, Duration::from_millis(10))
}

/// Replies as a DHCP server, to all, without a request.
pub(crate) fn rogue_dhcp(stage: &mut Stage) -> Result<()> {
    let own = stage.route_to(stage.victim()?).from;
    let all = Route { from: own, to: (MacAddr::BROADCAST, Ipv4Addr::BROADCAST) };
    let reply = |ports| frame::udp(all, ports, 300);
    let plain = reply([67, 68]);
    let frames = [frame::in_snap(&plain), frame::with_tag(&plain, 0), plain, reply([4000, 68])];
    send_in_turn(stage, &frames, Duration::from_millis(10))
}

/// Sends frames that only switches and network cards exchange: pause frames, spanning trees, link
/// aggregation.
pub(crate) fn link_frames(stage: &mut Stage) -> Result<()> {
    let mac = stage.guest.mac;
    let to = |last| MacAddr([0x01, 0x80, 0xc2, 0, 0, last]);
    let bridge = [0x42, 0x42, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let frames = [
        // For the longest possible time.
        frame::ethernet(to(1), mac, 0x8808, &[[0, 1, 0xff, 0xff].as_slice(), &[0; 42]].concat()),
        frame::ethernet(to(0), mac, 38, &[bridge.as_slice(), &[0; 30]].concat()),
        frame::ethernet(to(2), mac, 0x8809, &[1; 46]),
        frame::ethernet(to(14), mac, 0x88cc, &[0; 46]),
    ];
    send_in_turn(stage, &frames, Duration::from_millis(1))
}

/// Puts tags of other VLANs, stacked, on frames for another guest.
pub(crate) fn foreign_tags(stage: &mut Stage) -> Result<()> {
    let route = stage.route_to(stage.victim()?);
    stage.guest.connect(1, 160)?;
    let queue = stage.queue()?;
    (32..160).for_each(|buffer| queue.post(buffer));
    queue.publish_rx();
    let mut frames = Vec::new();
    for plain in [frame::arp_request(route), frame::ping(route, 1, 56)] {
        for outer in [0, 1, 7, 4095] {
            let tagged = frame::with_tag(&plain, outer);
            frames.extend(
                [0, 1, 20].map(|inner| frame::with_tag(&frame::with_tag(&plain, inner), outer)),
            );
            frames.push(tagged);
        }
        frames.push(plain);
    }
    listen(stage, &frames, Duration::from_millis(1))
}

fn send_in_turn(stage: &mut Stage, frames: &[Vec<u8>], pause: Duration) -> Result<()> {
    stage.guest.connect(1, 8)?;
    for bytes in frames.iter().cycle() {
        if stage.is_over() {
            break;
        }
        stage.send(bytes)?;
        // waits: this is the rate of its frames.
        std::thread::sleep(pause);
    }
    Ok(())
}

/// Claims with ARP that another guest's IP address is its own.
pub(crate) fn arp_claims(stage: &mut Stage) -> Result<()> {
    claim_addresses(stage, frame::arp_claim)
}

/// Claims with neighbor advertisements that another guest's IP address is its own.
pub(crate) fn neighbor_claims(stage: &mut Stage) -> Result<()> {
    claim_addresses(stage, frame::neighbor_advertisement)
}

/// Claims to each of two guests to have the other's address, and receives what they send there.
fn claim_addresses(stage: &mut Stage, claim: fn(Route) -> Vec<u8>) -> Result<()> {
    let (victim, other) = (stage.victim()?, stage.other()?);
    stage.guest.connect(1, 160)?;
    let queue = stage.queue()?;
    (32..160).for_each(|buffer| queue.post(buffer));
    queue.publish_rx();
    let mac = stage.guest.mac;
    let claims = [(victim, other), (other, victim)]
        .map(|(to, whose)| claim(Route { from: (mac, whose.ip), to: (to.mac, to.ip) }));
    listen(stage, &claims, Duration::from_millis(20))
}

/// Sends frames in turn, and counts the frames it receives that are for others: by their Ethernet
/// address, or by the IP address of another station.
fn listen(stage: &mut Stage, frames: &[Vec<u8>], pause: Duration) -> Result<()> {
    let (mac, known) = (stage.guest.mac, [stage.aim.victim, stage.aim.other, stage.aim.host]);
    let mut next = 160;
    for bytes in frames.iter().cycle() {
        if stage.is_over() {
            break;
        }
        stage.send(bytes)?;
        let queue = stage.queue()?;
        let received = queue.take_rx();
        let count = received.len();
        (0..count).for_each(|_| {
            next = 32 + (next + 1) % 128;
            queue.post(next);
        });
        queue.publish_rx();
        let is_for_others = |head: &[u8; 64]| {
            let to = MacAddr([head[0], head[1], head[2], head[3], head[4], head[5]]);
            let is_ipv4 = head[12..14] == [8, 0];
            let is_known = |peer: &Peer| head[30..34] == peer.ip.octets();
            !to.is_multicast() && (to != mac || (is_ipv4 && known.iter().flatten().any(is_known)))
        };
        let overheard = received.iter().filter(|part| is_for_others(&part.head)).count();
        stage.count(OVERHEARD, u64::try_from(overheard).unwrap_or(0));
        // waits: this is the rate of its frames.
        std::thread::sleep(pause);
    }
    Ok(())
}

/// The name of the count of frames for others.
pub(crate) const OVERHEARD: &str = "frames for others";
