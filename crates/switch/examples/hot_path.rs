//! The cost of the pure parts of a packet's path, in nanoseconds per frame on one core: `cargo run
//! --release -p ringway-switch --example hot_path`.
//!
//! For exploration only: one run, without a spread. Use the lab for measurements.

use std::hint::black_box;
use std::time::Instant;

use ringway_datapath::headers::parse;
use ringway_datapath::segment::prepare;
use ringway_datapath::vnet::{offload_from_vnet, vnet_from_offload};
use ringway_datapath::{
    Checksum, Frame, FrameBatch, FramePool, FrameQueue, Gso, GsoKind, Offload, OffloadCaps,
    PoolBudget, checksum,
};
use ringway_steering::toeplitz::{HASH_TYPES_KNOWN, ToeplitzSteering};
use ringway_steering::{FlowKey, flow_hash, queue_of};
use ringway_switch::{PortId, PortPolicy, Switch, SwitchConfig, Ticks};

fn main() {
    let mut pool = FramePool::new(PoolBudget::new(64 << 20));
    let small = tcp_frame(0);
    let mut full = tcp_frame(1448);
    let large = tcp_frame(64_000);

    measure("parse", || parse(black_box(&small)));
    let key = FlowKey::new([1, 2]);
    measure("flow_hash and queue_of", || queue_of(flow_hash(black_box(&small), key), 8));
    let mut toeplitz = ToeplitzSteering::new();
    toeplitz.set_key(&[0x6d; 40]).expect("the key has 40 bytes");
    toeplitz.set_types(HASH_TYPES_KNOWN).expect("they are known");
    measure("toeplitz", || toeplitz.flow_hash(black_box(&small)));
    measure("sum of 1502 bytes", || checksum::Sum::of(black_box(&full)).fold());
    measure("complete, 1448 bytes", || checksum::complete(black_box(&mut full)));

    let blank = Offload { checksum: Checksum::Blank, gso: None };
    let hdr = vnet_from_offload(&blank, &mut full).expect("it is TCP");
    measure("vnet_from_offload, blank", || vnet_from_offload(&blank, black_box(&mut full)));
    measure("offload_from_vnet, blank", || offload_from_vnet(&hdr, black_box(&mut full)));

    let mut out = FrameQueue::with_capacity(64);
    let mut offer = |offload: Offload, bytes: &[u8], caps| {
        let mut frame = frame_of(&mut pool, bytes);
        frame.offload = offload;
        prepare(frame, caps, &mut pool, &mut out).expect("it can be sent");
        out.drain(..).for_each(|frame| pool.recycle(frame));
    };
    measure("copy of 64 kB, prepare as it is", || offer(gso(), &large, OffloadCaps::ALL));
    let blank_only = OffloadCaps { gso_v4: false, ..OffloadCaps::ALL };
    measure("copy of 64 kB, cut into 45", || offer(gso(), &large, blank_only));
    measure("the same, checksums completed", || offer(gso(), &large, OffloadCaps::NONE));

    classify(&mut pool, &small);
}

fn classify(pool: &mut FramePool, bytes: &[u8]) {
    let switch = Switch::new(SwitchConfig::unlimited(8192, 256, 0x1234_5678));
    let flood = switch.flood_budget(Ticks(0));
    let policy = PortPolicy::open();
    for (name, stations) in [("one flow", 1), ("64 stations", 64)] {
        let mut batch = FrameBatch::new();
        for number in 0..64u8 {
            let mut frame = frame_of(pool, bytes);
            frame.bytes_mut()[5] = number % stations;
            frame.bytes_mut()[11] = 0x80 + number % stations;
            batch.push(frame);
        }
        measure(&format!("classify a batch of 64, {name}"), || {
            switch.classify(PortId(1), &policy, &mut batch, Ticks(0), &flood);
            batch[0].verdict
        });
    }
}

fn measure<T>(name: &str, mut work: impl FnMut() -> T) {
    let rounds = 200_000;
    for _ in 0..rounds / 10 {
        black_box(work());
    }
    let start = Instant::now();
    for _ in 0..rounds {
        black_box(work());
    }
    let each = start.elapsed() / rounds;
    let picos = start.elapsed().as_nanos() * 1000 / u128::from(rounds);
    println!("{name:32} {:>8}.{:01} ns", each.as_nanos(), picos % 1000 / 100);
}

fn gso() -> Offload {
    Offload { checksum: Checksum::Blank, gso: Some(Gso { kind: GsoKind::TcpV4, size: 1448 }) }
}

fn frame_of(pool: &mut FramePool, bytes: &[u8]) -> Frame {
    let mut frame = pool.take(bytes.len()).expect("the budget suffices");
    frame.bytes_mut().copy_from_slice(bytes);
    frame
}

fn tcp_frame(payload_len: usize) -> Vec<u8> {
    let mut frame = vec![2; 12];
    let [high, low] = u16::try_from(40 + payload_len).expect("64 kB at most").to_be_bytes();
    frame.extend([0x08, 0x00, 0x45, 0, high, low, 0, 0, 0x40, 0, 64, 6, 0, 0]);
    frame.extend([10, 0, 0, 1, 10, 0, 0, 2, 0x9c, 0x40, 0x14, 0x51, 0, 0, 0, 1, 0, 0, 0, 1]);
    frame.extend([0x50, 0x10, 1, 0, 0, 0, 0, 0]);
    frame.extend(vec![0x5a; payload_len]);
    frame
}
