//! The internet checksum (RFC 1071), and completing a checksum that a sender left blank.
//!
//! A sum is kept in the host's byte order: the ones' complement sum of swapped bytes is the
//! swapped sum, so no byte of the data is ever swapped.

use crate::DropReason;
use crate::fields::IPV4_CHECKSUM_OFFSET;
use crate::headers::{Headers, IpVersion, Transport, parse};

/// A ones' complement sum that is not yet folded.
///
/// It overflows only after 2^32 words of 32 bits, 16 GiB: far more than any frame.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sum(u64);

impl Sum {
    /// The sum of `bytes`, which start at an even offset of the summed data. An odd last byte
    /// counts as if a zero followed, so only the last piece may be of odd length.
    #[inline]
    pub fn of(bytes: &[u8]) -> Sum {
        // Four independent sums, which the compiler vectorizes.
        let mut lanes = [0u64; 4];
        let mut blocks = bytes.chunks_exact(16);
        for block in &mut blocks {
            for (lane, word) in lanes.iter_mut().zip(block.chunks_exact(4)) {
                *lane += u64::from(u32::from_ne_bytes(word.try_into().unwrap_or_default()));
            }
        }
        let mut sum: u64 = lanes.iter().sum();
        let mut words = blocks.remainder().chunks_exact(4);
        for word in &mut words {
            sum += u64::from(u32::from_ne_bytes(word.try_into().unwrap_or_default()));
        }
        let last = match *words.remainder() {
            [a, b, c] => [a, b, c, 0],
            [a, b] => [a, b, 0, 0],
            [a] => [a, 0, 0, 0],
            _ => [0; 4],
        };
        Sum(sum + u64::from(u32::from_ne_bytes(last)))
    }

    /// Both sums together.
    #[inline]
    #[must_use]
    pub fn and(self, other: Sum) -> Sum {
        Sum(self.0 + other.0)
    }

    /// Adds a 16-bit number, as if it were in the data in network order.
    #[inline]
    #[must_use]
    pub fn and_u16(self, number: u16) -> Sum {
        Sum(self.0 + u64::from(number.to_be()))
    }

    /// The sum folded to 16 bits, in network order: the content of a blank checksum field.
    #[inline]
    pub fn fold(self) -> [u8; 2] {
        // Each step adds the carries of the one before: 64 bits to 33, 18, 17, 16.
        let low_half = |sum: u64| sum & 0xffff_ffff;
        let folded = low_half(self.0) + (self.0 >> 32);
        let folded = (folded & 0xffff) + (folded >> 16);
        let folded = (folded & 0xffff) + (folded >> 16);
        let folded = (folded & 0xffff) + (folded >> 16);
        let [a, b, ..] = folded.to_le_bytes();
        u16::from_le_bytes([a, b]).to_ne_bytes()
    }

    /// The checksum: the complement of the folded sum, in network order.
    #[inline]
    pub fn checksum(self) -> [u8; 2] {
        let [a, b] = self.fold();
        [!a, !b]
    }
}

/// The sum of the pseudo-header of a transport segment of `segment_len` bytes with its header
/// (RFC 9293, section 3.1; RFC 8200, section 8.1).
#[inline]
pub fn pseudo_sum(addresses: &[u8], transport: Transport, segment_len: usize) -> Sum {
    // The length is a 32-bit field over IPv6; for a frame, its upper half is always zero or one.
    let low = u16::try_from(segment_len & 0xffff).unwrap_or_default();
    let high = u16::try_from(segment_len >> 16).unwrap_or_default();
    Sum::of(addresses).and_u16(u16::from(transport.protocol())).and_u16(low).and_u16(high)
}

/// Makes the transport checksum blank: writes the pseudo-header's sum into its field.
///
/// # Errors
/// [`DropReason::BadOffload`] if there is no transport header, or `headers` are not this frame's.
#[inline]
pub fn set_pseudo(frame: &mut [u8], headers: &Headers) -> Result<(), DropReason> {
    let transport = headers.transport.ok_or(DropReason::BadOffload)?;
    let segment_len = headers.end - headers.l4;
    let sum = pseudo_sum(headers.addresses(frame), transport, segment_len);
    write(frame, headers.l4 + transport.checksum_offset(), sum.fold())
}

/// Completes the transport checksum of a frame in software, whatever the field contains.
///
/// # Errors
/// [`DropReason::BadOffload`] if the frame has no TCP or UDP header, or is a fragment.
#[inline]
pub fn complete(frame: &mut [u8]) -> Result<(), DropReason> {
    let headers = parse(frame).ok_or(DropReason::BadOffload)?;
    complete_parsed(frame, &headers)
}

/// [`complete`], for a frame whose headers are known.
///
/// # Errors
/// As [`complete`], and if `headers` are not this frame's.
#[inline]
pub fn complete_parsed(frame: &mut [u8], headers: &Headers) -> Result<(), DropReason> {
    set_pseudo(frame, headers)?;
    let transport = headers.transport.ok_or(DropReason::BadOffload)?;
    let segment = frame.get(headers.l4..headers.end).ok_or(DropReason::BadOffload)?;
    let checksum = Sum::of(segment).checksum();
    write(frame, headers.l4 + transport.checksum_offset(), never_zero(transport, checksum))
}

/// Completes a checksum of any protocol: adds the bytes from `start` to the end of the frame,
/// including the field at `start + offset`, which holds any further summands, and writes the result
/// into that field.
///
/// # Errors
/// [`DropReason::BadOffload`] if the field is not in the frame.
pub fn complete_at(frame: &mut [u8], start: usize, offset: usize) -> Result<(), DropReason> {
    let summed = frame.get(start..).ok_or(DropReason::BadOffload)?;
    // All ones and zero are the same number, and some protocols read zero as "no checksum".
    let checksum = never_zero(Transport::Udp, Sum::of(summed).checksum());
    let field = start.checked_add(offset).ok_or(DropReason::BadOffload)?;
    write(frame, field, checksum)
}

/// Writes the checksum of an IPv4 header; nothing for IPv6, which has none.
///
/// # Errors
/// [`DropReason::BadOffload`] if `headers` are not this frame's.
#[inline]
pub fn complete_ipv4_header(frame: &mut [u8], headers: &Headers) -> Result<(), DropReason> {
    if headers.version == IpVersion::V6 {
        return Ok(());
    }
    let field = headers.l3 + IPV4_CHECKSUM_OFFSET;
    write(frame, field, [0, 0])?;
    let header = frame.get(headers.l3..headers.l4).ok_or(DropReason::BadOffload)?;
    let checksum = Sum::of(header).checksum();
    write(frame, field, checksum)
}

/// A UDP checksum field of zero means "no checksum", so a checksum of zero is sent as all ones
/// (RFC 768).
#[inline]
pub(crate) fn never_zero(transport: Transport, checksum: [u8; 2]) -> [u8; 2] {
    match (transport, checksum) {
        (Transport::Udp, [0, 0]) => [0xff, 0xff],
        _ => checksum,
    }
}

/// Writes a 16-bit field.
#[inline]
pub(crate) fn write(frame: &mut [u8], at: usize, bytes: [u8; 2]) -> Result<(), DropReason> {
    let field = frame.get_mut(at..).and_then(<[u8]>::first_chunk_mut);
    *field.ok_or(DropReason::BadOffload)? = bytes;
    Ok(())
}

#[cfg(test)]
mod tests {
    use etherparse::PacketBuilder;

    use super::*;

    #[test]
    fn the_example_of_rfc_1071_gives_its_sum() {
        let sum = Sum::of(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]);
        assert_eq!(sum.fold(), [0xdd, 0xf2]);
        assert_eq!(sum.checksum(), [0x22, 0x0d]);
    }

    #[test]
    fn sums_of_any_length_equal_the_naive_ones() {
        let mut random = fastrand::Rng::with_seed(0x5eed_0003);
        let long: &[usize] = if cfg!(miri) { &[1499] } else { &[1499, 1500, 65_535, 65_536] };
        for len in (0..200).chain(long.iter().copied()) {
            let mut bytes = vec![0; len];
            random.fill(&mut bytes);
            assert_eq!(Sum::of(&bytes).fold(), naive(&bytes), "{len} random bytes");
            bytes.fill(0xff);
            assert_eq!(Sum::of(&bytes).fold(), naive(&bytes), "{len} bytes of 0xff");
            let (left, right) = bytes.split_at(len / 4 * 2);
            assert_eq!(Sum::of(left).and(Sum::of(right)).fold(), naive(&bytes));
        }
    }

    #[test]
    fn a_blank_checksum_is_completed_to_what_the_sender_would_have_written() {
        let mut random = fastrand::Rng::with_seed(0x5eed_0004);
        for round in 0..if cfg!(miri) { 10 } else { 4_000 } {
            let mut payload = vec![0; random.usize(..1460)];
            random.fill(&mut payload);
            let expected = packet(round % 2 == 0, round % 4 < 2, &payload);
            let headers = parse(&expected).unwrap();
            let field = headers.l4 + headers.transport.unwrap().checksum_offset();

            let mut from_anything = expected.clone();
            random.fill(&mut from_anything[field..field + 2]);
            complete(&mut from_anything).unwrap();
            assert_eq!(from_anything, expected);

            let mut from_blank = expected.clone();
            set_pseudo(&mut from_blank, &headers).unwrap();
            assert_ne!(from_blank, expected);
            complete_at(&mut from_blank, headers.l4, field - headers.l4).unwrap();
            assert_eq!(from_blank, expected);
        }
    }

    #[test]
    fn padding_does_not_count() {
        let mut frame = packet(true, false, b"x");
        let expected = frame.clone();
        frame.resize(60, 0x77);
        complete(&mut frame).unwrap();
        assert_eq!(frame[..expected.len()], expected);
    }

    #[test]
    fn a_udp_checksum_of_zero_is_sent_as_all_ones() {
        let mut frame = packet(true, false, &[0, 0]);
        // A payload that makes the sum all ones: the checksum so far.
        let headers = parse(&frame).unwrap();
        let checksum = [frame[40], frame[41]];
        frame[headers.payload..].copy_from_slice(&checksum);
        complete(&mut frame).unwrap();
        assert_eq!(frame[40..42], [0xff, 0xff]);
    }

    #[test]
    fn a_checksum_without_a_transport_header_is_a_bad_offload() {
        let mut fragment = packet(true, true, b"data");
        fragment[20] = 0x20;
        for frame in [&mut fragment[..], &mut [0; 60], &mut []] {
            assert_eq!(complete(frame), Err(DropReason::BadOffload));
        }
        assert_eq!(complete_at(&mut [0; 20], 19, 0), Err(DropReason::BadOffload));
        assert_eq!(complete_at(&mut [0; 20], 21, 0), Err(DropReason::BadOffload));
        assert_eq!(complete_at(&mut [0; 20], 1, usize::MAX), Err(DropReason::BadOffload));
    }

    #[test]
    fn the_ipv4_header_checksum_is_rewritten() {
        let expected = packet(true, true, b"data");
        let mut frame = expected.clone();
        frame[24..26].copy_from_slice(&[0x12, 0x34]);
        let headers = parse(&frame).unwrap();
        complete_ipv4_header(&mut frame, &headers).unwrap();
        assert_eq!(frame, expected);
    }

    fn packet(is_v4: bool, is_tcp: bool, payload: &[u8]) -> Vec<u8> {
        let link = PacketBuilder::ethernet2([2; 6], [4; 6]);
        let ip = match is_v4 {
            true => link.ipv4([10, 1, 2, 3], [192, 168, 200, 201], 64),
            false => link.ipv6([0xfd; 16], [0xfe; 16], 64),
        };
        let mut frame = Vec::new();
        match is_tcp {
            true => ip.tcp(5001, 40_000, 7, 9).write(&mut frame, payload).unwrap(),
            false => ip.udp(5001, 40_000).write(&mut frame, payload).unwrap(),
        }
        frame
    }

    /// As in RFC 1071, section 4.1, on network-order words.
    fn naive(bytes: &[u8]) -> [u8; 2] {
        let mut sum = 0u64;
        for pair in bytes.chunks(2) {
            let low = pair.get(1).copied().unwrap_or(0);
            sum += u64::from(u16::from_be_bytes([pair[0], low]));
        }
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        u16::try_from(sum).unwrap().to_be_bytes()
    }
}
