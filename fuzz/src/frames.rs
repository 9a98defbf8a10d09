//! Frames that a fuzzer's bytes describe, and checksums as in RFC 1071, word by word: slow, and
//! without any code in common with the tested code.

use ringway_datapath::{Frame, FramePool};

use crate::Input;

/// Bytes of an Ethernet header.
pub const ETHERNET_LEN: usize = 14;
/// Bytes of the longest frame.
pub const FRAME_LEN_MAX: usize = 65_549;

/// A TCP segment in a frame, as the input describes it, with correct lengths and no checksum.
/// Returns the frame and the offsets of the TCP header and its payload.
pub fn tcp(input: &mut Input<'_>) -> (Vec<u8>, usize, usize) {
    let is_v4 = input.flag();
    let ip_len = if is_v4 { 20 + 4 * input.below(11) } else { 40 };
    let tcp_len = 20 + 4 * input.below(11);
    let (mut frame, at, payload_at) = transport(input, is_v4, ip_len, (6, tcp_len));
    frame[at + 12] = ((tcp_len / 4) << 4) as u8;
    (frame, at, payload_at)
}

/// A UDP datagram in a frame, as the input describes it, with a correct length and no checksum.
/// Returns the frame and the offsets of the UDP header and its payload.
pub fn udp(input: &mut Input<'_>) -> (Vec<u8>, usize, usize) {
    let is_v4 = input.flag();
    let ip_len = if is_v4 { 20 + 4 * input.below(11) } else { 40 };
    let (mut frame, at, payload_at) = transport(input, is_v4, ip_len, (17, 8));
    let len = (frame.len() - at) as u16;
    frame[at + 4..at + 6].copy_from_slice(&len.to_be_bytes());
    (frame, at, payload_at)
}

/// A frame with a transport header of `header_len` bytes, of which only the length is right.
fn transport(
    input: &mut Input<'_>,
    is_v4: bool,
    ip_len: usize,
    (protocol, header_len): (u8, usize),
) -> (Vec<u8>, usize, usize) {
    let payload_len = input.below(FRAME_LEN_MAX - ETHERNET_LEN - ip_len - header_len);
    let mut frame = vec![0; ETHERNET_LEN + ip_len + header_len + payload_len];
    let seed = input.array::<64>();
    for (byte, seed) in frame.iter_mut().zip(seed.iter().cycle()) {
        *byte = *seed;
    }
    // Each byte of the payload differs from its neighbours, so that a segment in the wrong place is
    // detected.
    let payload_at = ETHERNET_LEN + ip_len + header_len;
    for (index, byte) in frame[payload_at..].iter_mut().enumerate() {
        *byte = (index % 251) as u8;
    }
    frame[12..14].copy_from_slice(if is_v4 { &[0x08, 0x00] } else { &[0x86, 0xdd] });
    let ip = &mut frame[ETHERNET_LEN..];
    if is_v4 {
        ip[0] = 0x40 | (ip_len / 4) as u8;
        let total_len = (ip_len + header_len + payload_len) as u16;
        ip[2..4].copy_from_slice(&total_len.to_be_bytes());
        ip[6..8].copy_from_slice(&[0x40, 0]);
        ip[9] = protocol;
    } else {
        ip[0] = 0x60;
        let len = (header_len + payload_len) as u16;
        ip[4..6].copy_from_slice(&len.to_be_bytes());
        ip[6] = protocol;
    }
    (frame, ETHERNET_LEN + ip_len, payload_at)
}

/// These bytes in a buffer of the pool.
pub fn in_pool(bytes: &[u8], pool: &mut FramePool) -> Option<Frame> {
    let mut frame = pool.take(bytes.len())?;
    frame.set_len(bytes.len());
    frame.bytes_mut().copy_from_slice(bytes);
    Some(frame)
}

/// The one's complement sum of 16-bit words; the last one may be half a word.
pub fn sum<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> u16 {
    let mut sum = 0_u32;
    for part in parts {
        for word in part.chunks(2) {
            sum += u32::from(word[0]) << 8 | word.get(1).map_or(0, |low| u32::from(*low));
            sum = (sum & 0xffff) + (sum >> 16);
        }
    }
    sum as u16
}

/// The sum over a transport segment and its pseudo header; all ones if its checksum is right.
pub fn transport_sum(addresses: &[u8], protocol: u8, segment: &[u8]) -> u16 {
    let len = (segment.len() as u32).to_be_bytes();
    sum([addresses, &len, &[0, protocol], segment])
}
