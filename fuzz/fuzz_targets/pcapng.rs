//! A capture: for any captured frames, the file consists of whole blocks in which an independent
//! parser finds them.

#![no_main]

use std::time::{Duration, UNIX_EPOCH};

use libfuzzer_sys::fuzz_target;
use ringway_fuzz::Input;
use ringway_host_shell::PcapngFile;
use ringway_worker::{CapturedFrame, Passage};

const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION: u32 = 1;
const ENHANCED_PACKET: u32 = 6;
/// Type and length before the body of a block, and its length after it, in bytes.
const BLOCK_LEN_MIN: usize = 12;
/// The offset of the options in the body of an enhanced packet block, without the packet.
const PACKET_AT: usize = 20;
const OPTION_END: u16 = 0;

/// The expectation for one packet.
struct Expected {
    at: Duration,
    bytes: Vec<u8>,
    len: u32,
}

fuzz_target!(|data: &[u8]| {
    let mut input = Input::new(data);
    let name: String = input.text().chars().take(15).collect();
    let snap_len = u32::from(input.u16());
    let mut out = Vec::new();
    let mut expected = Vec::new();
    let mut file = PcapngFile::begin(&mut out, &name, snap_len).expect("memory takes it");
    while !input.is_empty() {
        let at = Duration::new(u64::from(input.u32()), input.u32() % 1_000_000_000);
        let bytes = match input.u8() {
            255 => vec![input.u8(); usize::from(input.u16())],
            len => input.bytes(usize::from(len)).to_vec(),
        };
        let len = bytes.len() + usize::from(input.u16());
        let passage = if input.flag() { Passage::Ingress } else { Passage::Egress };
        let len_written = u32::try_from(len).expect("a frame is short");
        expected.push(Expected { at, bytes: bytes.clone(), len: len_written });
        let frame = CapturedFrame { at: UNIX_EPOCH + at, queue: input.u16(), passage, len, bytes };
        file.add(frame).expect("memory takes it");
    }
    file.flush().expect("memory takes it");
    drop(file);
    read(&out, &expected);
});

/// Parses the blocks.
fn read(mut file: &[u8], expected: &[Expected]) {
    let mut kinds = Vec::new();
    let mut packets = expected.iter();
    while !file.is_empty() {
        let (kind, len) = (u32_at(file, 0), u32_at(file, 4) as usize);
        assert!(
            len >= BLOCK_LEN_MIN && len % 4 == 0 && len <= file.len(),
            "a block of {len} bytes"
        );
        assert_eq!(u32_at(file, len - 4) as usize, len, "both ends of a block");
        if kind == ENHANCED_PACKET {
            check_packet(&file[8..len - 4], packets.next().expect("no more than were captured"));
        }
        kinds.push(kind);
        file = &file[len..];
    }
    assert_eq!(kinds[..2], [SECTION_HEADER, INTERFACE_DESCRIPTION]);
    assert!(kinds[2..].iter().all(|kind| *kind == ENHANCED_PACKET));
    assert_eq!(packets.len(), 0, "a frame is missing");
}

fn check_packet(body: &[u8], expected: &Expected) {
    let nanoseconds = u64::from(u32_at(body, 4)) << 32 | u64::from(u32_at(body, 8));
    assert_eq!(u128::from(nanoseconds), expected.at.as_nanos());
    assert_eq!(u32_at(body, 12) as usize, expected.bytes.len(), "bytes that were kept");
    assert_eq!(u32_at(body, 16), expected.len, "bytes on the wire");
    assert_eq!(body[PACKET_AT..][..expected.bytes.len()], expected.bytes);
    let mut options = &body[PACKET_AT + expected.bytes.len().next_multiple_of(4)..];
    loop {
        let (code, len) = (u16_at(options, 0), usize::from(u16_at(options, 2)));
        options = &options[4 + len.next_multiple_of(4)..];
        if code == OPTION_END {
            assert!(options.is_empty(), "something is behind the last option");
            return;
        }
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_ne_bytes(bytes[at..at + 2].try_into().expect("two bytes"))
}
