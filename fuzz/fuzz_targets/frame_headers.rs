//! Headers of any frame: their positions, compared with another parser, and the checksum that is
//! computed from them, compared with another sum.

#![no_main]

use etherparse::{LinkExtSlice, NetSlice, SlicedPacket, TransportSlice};
use libfuzzer_sys::fuzz_target;
use ringway_datapath::checksum::{complete, set_pseudo};
use ringway_datapath::headers::{Headers, IpVersion, Transport, parse};
use ringway_fuzz::frames::{FRAME_LEN_MAX, transport_sum};

/// VLAN tags that both parsers skip.
const TAGS_MAX: usize = 2;
/// A tag's EtherType from before IEEE 802.1ad: the other parser accepts it, and ours does not.
const TPID_BEFORE_STANDARD: [u8; 2] = [0x91, 0x00];

fuzz_target!(|data: &[u8]| {
    let frame = &data[..data.len().min(FRAME_LEN_MAX)];
    let headers = parse(frame);
    if let Some(headers) = &headers {
        check_offsets(frame, headers);
    }
    compare(frame, headers.as_ref());
    check_checksum(frame, headers.as_ref());
});

fn check_offsets(frame: &[u8], headers: &Headers) {
    let Headers { l3, l4, payload, end, .. } = *headers;
    assert!(l3 < l4 && l4 <= payload && payload <= end && end <= frame.len(), "{headers:?}");
    let addresses_len = match headers.version {
        IpVersion::V4 => 8,
        IpVersion::V6 => 32,
    };
    assert_eq!(headers.addresses(frame).len(), addresses_len);
    assert_eq!(headers.ports(frame).is_some(), headers.transport.is_some());
    let checksum_end = headers.transport.map(|transport| l4 + transport.checksum_offset() + 2);
    assert!(checksum_end.is_none_or(|at| at <= end));
    assert!(!headers.is_fragment || headers.transport.is_none(), "a fragment with a transport");
}

/// If both parsers find a transport header, it is the same one; and if the other finds one directly
/// after the IP header, so does ours.
fn compare(frame: &[u8], ours: Option<&Headers>) {
    let Ok(theirs) = SlicedPacket::from_ethernet(frame) else { return };
    let header = match &theirs.transport {
        Some(TransportSlice::Tcp(tcp)) => (Transport::Tcp, tcp.slice()),
        Some(TransportSlice::Udp(udp)) => (Transport::Udp, udp.slice()),
        _ => return,
    };
    let are_tags = theirs.link_exts.iter().all(|link| matches!(link, LinkExtSlice::Vlan(_)));
    let is_direct = match &theirs.net {
        Some(NetSlice::Ipv4(ip)) => ip.extensions().auth.is_none(),
        Some(NetSlice::Ipv6(ip)) => ip.header().next_header().0 == header.0.protocol(),
        _ => false,
    };
    let is_tag_odd =
        [12, 16].into_iter().any(|at| frame.get(at..at + 2) == Some(&TPID_BEFORE_STANDARD));
    if !are_tags || is_tag_odd || theirs.link_exts.len() > TAGS_MAX {
        return;
    }
    let found = ours.and_then(|headers| headers.transport.map(|found| (found, headers)));
    let Some((transport, headers)) = found else {
        assert!(!is_direct, "no {:?} header, they say there is one", header.0);
        return;
    };
    if is_direct {
        let their_l4 = header.1.as_ptr() as usize - frame.as_ptr() as usize;
        assert_eq!((transport, headers.l4), (header.0, their_l4));
        let addresses = match &theirs.net {
            Some(NetSlice::Ipv4(ip)) => [ip.header().source(), ip.header().destination()].concat(),
            Some(NetSlice::Ipv6(ip)) => [ip.header().source(), ip.header().destination()].concat(),
            _ => return,
        };
        assert_eq!(headers.addresses(frame), addresses);
    }
}

/// If there is a transport header, the checksum can be computed, and is then right.
fn check_checksum(frame: &[u8], headers: Option<&Headers>) {
    let mut frame = frame.to_vec();
    let transport = headers.and_then(|headers| headers.transport);
    assert_eq!(complete(&mut frame).is_ok(), transport.is_some());
    let (Some(headers), Some(transport)) = (headers, transport) else { return };
    let addresses = headers.addresses(&frame).to_vec();
    let segment = &frame[headers.l4..headers.end];
    assert_eq!(transport_sum(&addresses, transport.protocol(), segment), 0xffff);
    assert_eq!(set_pseudo(&mut frame, headers), Ok(()));
    assert_eq!(parse(&frame).as_ref(), Some(headers), "a checksum moved a header");
}
