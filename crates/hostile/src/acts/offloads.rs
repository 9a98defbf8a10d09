//! Offloaded work: checksums, segmentation, and headers in odd places.

use anyhow::Result;
use ringway_wire::netif::{
    ExtraInfo, GSO_TYPE_TCPV4, GSO_TYPE_TCPV6, NETTXF_CSUM_BLANK, NETTXF_DATA_VALIDATED,
    NETTXF_MORE_DATA,
};

use crate::frame;
use crate::queue::Prepared;
use crate::stage::Stage;

const BLANK: u16 = NETTXF_CSUM_BLANK | NETTXF_DATA_VALIDATED;
/// Bytes of data in a frame of almost the maximum length.
const LONGEST: usize = 65_000;

/// GSO extras for which backends close a vif.
pub(crate) fn gso_invalid(stage: &mut Stage) -> Result<()> {
    let route = stage.route_to(stage.victim()?);
    for extra in [
        ExtraInfo::for_gso(0, GSO_TYPE_TCPV4),
        ExtraInfo::for_gso(1000, 0),
        ExtraInfo::for_gso(1000, 3),
        ExtraInfo::for_gso(1000, 255),
    ] {
        stage.provoke(|queue| {
            let bytes = frame::tcp(route, [40_000, 9], 3000);
            Prepared::new(queue, 0, &bytes, BLANK, Some(extra)).push(queue);
            queue.publish_tx();
        })?;
    }
    Ok(())
}

/// Valid GSO extras that do not fit the frame.
pub(crate) fn gso_odd(stage: &mut Stage) -> Result<()> {
    let route = stage.route_to(stage.plain()?);
    let v4 = frame::tcp(route, [40_000, 9], 3000);
    let v6 = frame::tcp_v6(route, 0, 0, 3000);
    let udp = frame::udp(route, [9, 9], 3000);
    let gso = |size, kind| Some(ExtraInfo::for_gso(size, kind));
    let mut short = v4.clone();
    short.truncate(40);
    let cases = [
        // For another protocol, for none, and truncated within its headers.
        (v4.clone(), BLANK, gso(1000, GSO_TYPE_TCPV6)),
        (v6.clone(), BLANK, gso(1000, GSO_TYPE_TCPV4)),
        (udp, BLANK, gso(1000, GSO_TYPE_TCPV4)),
        (short, BLANK, gso(1000, GSO_TYPE_TCPV4)),
        // Without a blank checksum, longer than the frame, longer than any MTU.
        (v4.clone(), 0, gso(1000, GSO_TYPE_TCPV4)),
        (v4.clone(), BLANK, gso(60_000, GSO_TYPE_TCPV4)),
        (v4.clone(), BLANK, gso(u16::MAX, GSO_TYPE_TCPV4)),
        (v6, BLANK, gso(1, GSO_TYPE_TCPV6)),
        (v4, BLANK, gso(47, GSO_TYPE_TCPV4)),
    ];
    for (bytes, flags, extra) in cases {
        stage.try_out(|queue| {
            Prepared::new(queue, 0, &bytes, flags, extra).push(queue);
            queue.publish_tx();
        })?;
    }
    Ok(())
}

/// Long frames to be cut into segments of one byte each, or of the legal minimum.
pub(crate) fn gso_tiny_segments(stage: &mut Stage) -> Result<()> {
    let route = stage.route_to(stage.plain()?);
    stage.guest.connect(1, 64)?;
    let queue = stage.queue()?;
    let sizes = [1, 8, 47, 48];
    let frames = sizes.map(|size| {
        let bytes = frame::tcp_v6(route, 0, 0, LONGEST);
        Prepared::new(queue, 0, &bytes, BLANK, Some(ExtraInfo::for_gso(size, GSO_TYPE_TCPV6)))
    });
    paced(stage, &frames, 400)
}

/// As many long frames as the backend takes, each to be cut into as many segments as is legal.
pub(crate) fn gso_short_segments(stage: &mut Stage) -> Result<()> {
    gso_segments(stage, 48)
}

/// As many long frames as the backend takes, each to be cut into the segments of a sender that
/// knows nothing about the path: RFC 9293, section 3.7.1.
pub(crate) fn gso_usual_segments(stage: &mut Stage) -> Result<()> {
    gso_segments(stage, 536)
}

fn gso_segments(stage: &mut Stage, size: u16) -> Result<()> {
    let route = stage.route_to(stage.plain()?);
    stage.guest.connect(2, 64)?;
    let bytes = frame::tcp_v6(route, 0, 0, LONGEST);
    let extra = ExtraInfo::for_gso(size, GSO_TYPE_TCPV6);
    let frames = stage.guest.queues.iter().map(|queue| {
        let places = [0, 17, 34];
        places.map(|place| Prepared::new(queue, place, &bytes, BLANK, Some(extra))).into()
    });
    let frames: Vec<Vec<Prepared>> = frames.collect();
    stage.pump(&frames)
}

/// Long frames in which every segment repeats twenty kilobytes of headers.
pub(crate) fn header_bloat(stage: &mut Stage) -> Result<()> {
    let route = stage.route_to(stage.plain()?);
    stage.guest.connect(1, 64)?;
    let queue = stage.queue()?;
    let mut frames = Vec::new();
    for (place, (extensions, len, size)) in
        [(10, 2048, 33), (1, 2048, 48), (10, 256, 48)].into_iter().enumerate()
    {
        let bytes = frame::tcp_v6(route, extensions, len, LONGEST - extensions * len);
        let extra = ExtraInfo::for_gso(size, GSO_TYPE_TCPV6);
        frames.push(Prepared::new(queue, place * 17, &bytes, BLANK, Some(extra)));
    }
    paced(stage, &frames, 400)
}

/// Frames that are just too long for ordinary buffers.
pub(crate) fn frames_over_mtu(stage: &mut Stage) -> Result<()> {
    let route = stage.route_to(stage.victim()?);
    stage.guest.connect(8, 8)?;
    let frames = stage.guest.queues.iter().map(|queue| {
        let sizes = [2049 - 42, 4096 - 42];
        sizes.into_iter().enumerate().map(|(buffer, size)| {
            Prepared::new(queue, buffer, &frame::udp(route, [9, 9], size), 0, None)
        })
    });
    let frames: Vec<Vec<Prepared>> = frames.map(Iterator::collect).collect();
    stage.pump(&frames)
}

/// Blank checksums in frames without one, and in frames that end before it.
pub(crate) fn checksums_blank(stage: &mut Stage) -> Result<()> {
    let route = stage.route_to(stage.victim()?);
    stage.guest.connect(1, 32)?;
    let tcp = frame::tcp(route, [40_000, 9], 100);
    let mut vlan = tcp[..12].to_vec();
    vlan.extend([0x81, 0, 0, 7]);
    vlan.extend(&tcp[12..]);
    let frames = [
        frame::ping(route, 1, 56),
        frame::arp_request(route),
        frame::tcp_v6(route, 3, 64, 100),
        vlan,
        tcp[..14].to_vec(),
        tcp[..33].to_vec(),
        tcp[..40].to_vec(),
        tcp[..49].to_vec(),
    ];
    let queue = stage.queue()?;
    let frames = frames
        .iter()
        .enumerate()
        .map(|(buffer, bytes)| Prepared::new(queue, buffer, bytes, BLANK, None));
    let frames: Vec<Prepared> = frames.collect();
    paced(stage, &frames, 4000)
}

/// Headers that are spread over slots of a few bytes each.
pub(crate) fn headers_split(stage: &mut Stage) -> Result<()> {
    let route = stage.route_to(stage.victim()?);
    stage.guest.connect(1, 32)?;
    let bytes = frame::tcp(route, [40_000, 9], 10);
    let cuts = [1_u16, 5, 13, 14, 15, 33, 34, 35, 54];
    let until = stage.until;
    while !stage.is_over() {
        for cut in cuts {
            let (total, cut_at) = (u16::try_from(bytes.len()).unwrap_or(0), usize::from(cut));
            let queue = stage.queue()?;
            if !queue.wait_for_room(2, until) {
                return Ok(());
            }
            queue.fill(0, &bytes[..cut_at]);
            queue.fill(1, &bytes[cut_at..]);
            let first = queue.request(0, 0, total, BLANK | NETTXF_MORE_DATA);
            queue.push_tx(first);
            let second = queue.request(1, 0, total - cut, 0);
            queue.push_tx(second);
            queue.publish_tx();
            stage.count("frames", 1);
        }
    }
    Ok(())
}

/// Sends frames in turn on the first queue, at a limited number per second.
fn paced(stage: &mut Stage, frames: &[Prepared], per_second: u32) -> Result<()> {
    let pause = std::time::Duration::from_secs(1) / per_second.max(1);
    let until = stage.until;
    for frame in frames.iter().cycle() {
        if stage.is_over() {
            break;
        }
        let queue = stage.queue()?;
        if queue.wait_for_room(frame.slots(), until) {
            frame.push(queue);
            queue.publish_tx();
            stage.count("frames", 1);
        }
        // waits: this is the rate of its frames.
        std::thread::sleep(pause);
    }
    Ok(())
}
