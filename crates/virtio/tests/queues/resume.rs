//! A device that continues where another one stopped.

use ringway_virtio::{
    Access, Buffer, Buffers, DeviceHalf, DriverHalf, Format, QueueFault, QueueOptions,
};

use crate::ground::{Ground, plain};

/// What QEMU does after a crash: `SET_VRING_BASE` is the used index.
#[test]
fn after_a_crash_unused_chains_are_taken_again() {
    for format in [Format::Split, Format::Packed] {
        let ground = Ground::new();
        let options = QueueOptions { event_idx: true, ..plain(format) };
        let areas = ground.areas(format, 8);
        let mut driver = DriverHalf::new(areas.clone(), options, Access::Readable);
        let start = if format == Format::Packed { 1 << 15 } else { 0 };
        let attach = |base| {
            DeviceHalf::attach(areas.clone(), options, Access::Readable, base).expect("a base")
        };
        let mut device = attach(start);
        let mut buffers = Buffers::new(8);
        let mut next = 0;
        // Often enough to wrap around several times.
        for _ in 0..20 {
            let ids: Vec<u16> =
                (0..5).map(|_| driver.push(&[Buffer { address: 0, len: 1 }])).collect();
            let _ = driver.publish();
            device.poll().unwrap();
            for (turn, id) in ids.iter().enumerate() {
                let chain = device.take(&ground.view, &mut buffers).unwrap().unwrap();
                assert_eq!(chain.id, *id);
                if turn < 2 {
                    device.push_used(chain, 0);
                    next += 1;
                }
            }
            let _ = device.publish();
            // The device is killed, and only the contents of memory are known.
            let base = device.base();
            if format == Format::Split {
                assert_eq!(base, next);
            }
            device = attach(base);
            device.poll().unwrap();
            for id in &ids[2..] {
                let chain = device.take(&ground.view, &mut buffers).unwrap().unwrap();
                assert_eq!(chain.id, *id);
                device.push_used(chain, 0);
                next += 1;
            }
            assert_eq!(device.take(&ground.view, &mut buffers), Ok(None));
            let _ = device.publish();
            driver.poll().unwrap();
            for id in ids {
                assert_eq!(driver.take().unwrap().map(|used| used.id), Some(id));
            }
        }
    }
}

#[test]
fn a_base_that_is_not_in_a_packed_queue_is_refused() {
    let ground = Ground::new();
    let areas = ground.areas(Format::Packed, 8);
    let attach =
        |base| DeviceHalf::attach(areas.clone(), plain(Format::Packed), Access::Readable, base);
    assert!(matches!(attach(8), Err(QueueFault::RanAhead { .. })));
    assert!(attach(7 | 1 << 15).is_ok());
}
