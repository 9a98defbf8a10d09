//! Packets of stations and routers, built byte by byte from the RFCs, without the switch's code.

pub(crate) const QUERY: u8 = 0x11;
pub(crate) const V1_REPORT: u8 = 0x12;
pub(crate) const V2_REPORT: u8 = 0x16;
pub(crate) const V2_LEAVE: u8 = 0x17;
pub(crate) const MLD_QUERY: u8 = 130;
pub(crate) const MLD_REPORT: u8 = 131;
pub(crate) const MLD_DONE: u8 = 132;

pub(crate) const TO_INCLUDE: u8 = 3;
pub(crate) const TO_EXCLUDE: u8 = 4;
pub(crate) const ALLOW: u8 = 5;

/// A record of a report: its kind, the group, and how many sources it names.
pub(crate) type Record<G> = (u8, G, u16);

pub(crate) fn igmp(kind: u8, code: u8, group: [u8; 4], source: [u8; 4]) -> Vec<u8> {
    let dst = if group == [0; 4] { [224, 0, 0, 1] } else { group };
    let [a, b, c, d] = group;
    ipv4(dst, source, 2, &with_sum(&[kind, code, 0, 0, a, b, c, d], &[]))
}

/// A query of version 3.
pub(crate) fn igmpv3_query(code: u8, source: [u8; 4]) -> Vec<u8> {
    let message = with_sum(&[QUERY, code, 0, 0, 0, 0, 0, 0, 2, 125, 0, 0], &[]);
    ipv4([224, 0, 0, 1], source, 2, &message)
}

pub(crate) fn igmpv3(records: &[Record<[u8; 4]>], source: [u8; 4]) -> Vec<u8> {
    let mut message = vec![0x22, 0, 0, 0, 0, 0];
    message.extend(u16::try_from(records.len()).expect("few").to_be_bytes());
    for (kind, group, sources) in records {
        message.extend([*kind, 0]);
        message.extend(sources.to_be_bytes());
        message.extend(group);
        message.extend([10, 0, 0, 9].repeat(usize::from(*sources)));
    }
    ipv4([224, 0, 0, 22], source, 2, &with_sum(&message, &[]))
}

pub(crate) fn mld(kind: u8, code: u16, group: [u8; 16], source: [u8; 16]) -> Vec<u8> {
    let mut message = vec![kind, 0, 0, 0];
    message.extend(code.to_be_bytes());
    message.extend([0, 0]);
    message.extend(group);
    let dst = if group == [0; 16] { all_nodes() } else { group };
    icmpv6(dst, source, &message)
}

pub(crate) fn mldv2(records: &[Record<[u8; 16]>], source: [u8; 16]) -> Vec<u8> {
    let mut message = vec![143, 0, 0, 0, 0, 0];
    message.extend(u16::try_from(records.len()).expect("few").to_be_bytes());
    for (kind, group, sources) in records {
        message.extend([*kind, 0]);
        message.extend(sources.to_be_bytes());
        message.extend(group);
        message.extend(all_nodes().repeat(usize::from(*sources)));
    }
    let mut dst = [0; 16];
    (dst[0], dst[1], dst[15]) = (0xff, 2, 0x16);
    icmpv6(dst, source, &message)
}

pub(crate) fn pim_hello() -> Vec<u8> {
    ipv4([224, 0, 0, 13], [10, 0, 0, 1], 103, &with_sum(&[0x20, 0, 0, 0], &[]))
}

/// A datagram for a group.
pub(crate) fn data_v4(group: [u8; 4]) -> Vec<u8> {
    ipv4(group, [10, 0, 0, 5], 17, &[0x12, 0x34, 0x12, 0x34, 0, 12, 0, 0, 1, 2, 3, 4])
}

pub(crate) fn data_v6(group: [u8; 16]) -> Vec<u8> {
    ipv6(group, near(5), 17, &[0x12, 0x34, 0x12, 0x34, 0, 12, 0, 0, 1, 2, 3, 4])
}

pub(crate) fn near(last: u8) -> [u8; 16] {
    [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]
}

pub(crate) fn all_nodes() -> [u8; 16] {
    [0xff, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]
}

/// Inserts a tag.
pub(crate) fn tagged(frame: &[u8], vid: u16) -> Vec<u8> {
    [&frame[..12], &[0x81, 0], &vid.to_be_bytes(), &frame[12..]].concat()
}

fn ipv4(dst: [u8; 4], source: [u8; 4], protocol: u8, payload: &[u8]) -> Vec<u8> {
    let total = u16::try_from(24 + payload.len()).expect("short").to_be_bytes();
    let mut header = vec![0x46, 0xc0, total[0], total[1], 0, 0, 0, 0, 1, protocol, 0, 0];
    header.extend(source);
    header.extend(dst);
    // Router alert.
    header.extend([0x94, 4, 0, 0]);
    let sum = sum(&header).to_be_bytes();
    header[10..12].copy_from_slice(&sum);
    let [_, b, c, d] = dst;
    let mac = [0x01, 0x00, 0x5e, b & 0x7f, c, d];
    [&ethernet(mac, 0x0800)[..], &header, payload].concat()
}

fn icmpv6(dst: [u8; 16], source: [u8; 16], message: &[u8]) -> Vec<u8> {
    let len = u32::try_from(message.len()).expect("short").to_be_bytes();
    let pseudo = [&source[..], &dst, &len, &[0, 0, 0, 58]].concat();
    // A hop-by-hop header with a router alert.
    let payload = [&[58, 0, 5, 2, 0, 0, 1, 0][..], &with_sum(message, &pseudo)].concat();
    ipv6(dst, source, 0, &payload)
}

fn ipv6(dst: [u8; 16], source: [u8; 16], next: u8, payload: &[u8]) -> Vec<u8> {
    let len = u16::try_from(payload.len()).expect("short").to_be_bytes();
    let mac = [0x33, 0x33, dst[12], dst[13], dst[14], dst[15]];
    let head = [&[0x60, 0, 0, 0][..], &len, &[next, 1], &source, &dst].concat();
    [&ethernet(mac, 0x86dd)[..], &head, payload].concat()
}

fn ethernet(dst: [u8; 6], ethertype: u16) -> Vec<u8> {
    [&dst[..], &[2, 0, 0, 0, 0, 0], &ethertype.to_be_bytes()].concat()
}

/// With the checksum in the bytes 2 and 3.
fn with_sum(message: &[u8], pseudo: &[u8]) -> Vec<u8> {
    let sum = sum(&[pseudo, message].concat()).to_be_bytes();
    [&message[..2], &sum, &message[4..]].concat()
}

fn sum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|word| {
        let [high, low] = [word[0], word.get(1).copied().unwrap_or(0)];
        u32::from(u16::from_be_bytes([high, low]))
    });
    let mut sum: u32 = words.sum();
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).expect("it was folded")
}
