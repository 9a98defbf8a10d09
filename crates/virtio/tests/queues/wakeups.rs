//! No side sleeps while there is work for it, and none reads a stale entry: the loom model checker
//! runs the real halves in every order of accesses that the memory model allows.

use std::sync::atomic::Ordering;

use loom::sync::atomic::{AtomicU16, fence};
use loom::sync::{Arc, Notify as Sleep};
use loom::thread;
use ringway_sys::guest_memory::{GuestMemory, GuestView};
use ringway_virtio::{
    Access, Buffer, Buffers, DeviceHalf, DriverHalf, Format, Notify, NotifyWhen, QueueAreas,
    QueueMemory, QueueOptions, Waiting, area_lens,
};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::ground::plain;

const SIZE: u16 = 2;

/// The half-words of an area. All except indices and flags are accessed without ordering, so only
/// those can keep a side from reading a stale one.
#[derive(Clone)]
struct Words(Arc<[AtomicU16; 16]>);

impl Words {
    fn new(len: usize) -> Words {
        assert!(len <= 32);
        Words(Arc::new(std::array::from_fn(|_| AtomicU16::new(0))))
    }

    fn word(&self, offset: usize) -> &AtomicU16 {
        assert_eq!(offset % 2, 0);
        &self.0[offset / 2]
    }
}

impl QueueMemory for Words {
    fn load(&self, offset: usize, order: Ordering) -> u16 {
        self.word(offset).load(order)
    }

    fn store(&self, offset: usize, value: u16, order: Ordering) {
        self.word(offset).store(value, order);
    }

    fn fence(&self) {
        fence(Ordering::SeqCst);
    }

    fn read<T: FromBytes>(&self, offset: usize) -> T {
        let mut bytes = [0; 16];
        for (word, bytes) in bytes[..size_of::<T>()].chunks_exact_mut(2).enumerate() {
            let value = self.load(offset + 2 * word, Ordering::Relaxed);
            bytes.copy_from_slice(&value.to_ne_bytes());
        }
        T::read_from_bytes(&bytes[..size_of::<T>()]).expect("as many bytes")
    }

    fn write<T: IntoBytes + Immutable>(&self, offset: usize, value: T) {
        for (word, bytes) in value.as_bytes().chunks_exact(2).enumerate() {
            let value = u16::from_ne_bytes([bytes[0], bytes[1]]);
            self.store(offset + 2 * word, value, Ordering::Relaxed);
        }
    }
}

fn halves(options: QueueOptions) -> (DriverHalf<Words>, DeviceHalf<Words>) {
    let [descriptors, driver, device] = area_lens(options.format, SIZE).map(Words::new);
    let areas = QueueAreas { size: SIZE, descriptors, driver, device };
    let base = if options.format == Format::Packed { 1 << 15 } else { 0 };
    let half = DriverHalf::new(areas.clone(), options, Access::Writable);
    (half, DeviceHalf::attach(areas, options, Access::Writable, base).expect("a base"))
}

fn buffer(number: u16) -> Buffer {
    Buffer { address: 1000 + u64::from(number), len: 10 + u32::from(number) }
}

fn view() -> GuestView {
    GuestView::new(std::sync::Arc::new(GuestMemory::map(Vec::new()).expect("a share is left")))
}

fn serve_one(half: &mut DeviceHalf<Words>, buffers: &mut Buffers, number: u16) -> bool {
    half.poll().expect("an honest driver");
    let Some(chain) = half.take(&view(), buffers).expect("an honest driver") else { return false };
    assert_eq!(buffers.list(), [buffer(number)], "a stale descriptor");
    half.push_used(chain, 10 + u32::from(number));
    true
}

fn reap_one(half: &mut DriverHalf<Words>, number: u16) -> bool {
    half.poll().expect("an honest device");
    let Some(used) = half.take().expect("an honest device") else { return false };
    assert_eq!(used.len, 10 + u32::from(number), "a stale entry");
    true
}

/// A chain goes there and back, so that earlier event requests are behind both indices.
fn go_round(driver: &mut DriverHalf<Words>, device: &mut DeviceHalf<Words>) {
    driver.push(&[buffer(0)]);
    let _ = driver.publish();
    assert!(serve_one(device, &mut Buffers::new(SIZE), 0));
    let _ = device.publish();
    assert!(reap_one(driver, 0));
}

fn all() -> [QueueOptions; 4] {
    [Format::Split, Format::Packed]
        .map(|format| [plain(format), with_events(format)])
        .concat()
        .try_into()
        .expect("two by two")
}

fn with_events(format: Format) -> QueueOptions {
    QueueOptions { event_idx: true, ..plain(format) }
}

#[test]
#[cfg_attr(miri, ignore = "loom switches stacks, which Miri cannot follow")]
fn a_device_that_arms_sees_the_chain_or_gets_a_kick() {
    for options in all() {
        loom::model(move || {
            let (mut driver, mut device) = halves(options);
            go_round(&mut driver, &mut device);
            let other = thread::spawn(move || {
                driver.push(&[buffer(1)]);
                driver.publish()
            });
            let waiting = device.arm(NotifyWhen::Any);
            let notify = other.join().expect("publishing does not panic");
            assert!(waiting == Waiting::Ready || notify == Notify::Peer, "a kick was lost");
        });
    }
}

#[test]
#[cfg_attr(miri, ignore = "loom switches stacks, which Miri cannot follow")]
fn a_driver_that_arms_sees_the_chain_or_gets_a_call() {
    for options in all() {
        loom::model(move || {
            let (mut driver, mut device) = halves(options);
            go_round(&mut driver, &mut device);
            driver.push(&[buffer(1)]);
            let _ = driver.publish();
            let other = thread::spawn(move || {
                assert!(serve_one(&mut device, &mut Buffers::new(SIZE), 1));
                device.publish()
            });
            let waiting = driver.arm();
            let notify = other.join().expect("publishing does not panic");
            assert!(waiting == Waiting::Ready || notify == Notify::Peer, "a call was lost");
        });
    }
}

/// Involuntary thread switches in one execution.
const PREEMPTIONS_MAX: usize = 2;

#[test]
#[cfg_attr(miri, ignore = "loom switches stacks, which Miri cannot follow")]
fn two_sides_that_sleep_whenever_they_may_finish_their_work_and_see_no_stale_entry() {
    const CHAINS: u16 = 3;
    for options in all() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(PREEMPTIONS_MAX);
        model.check(move || {
            let (mut driver, mut device) = halves(options);
            let (kick, call) = (Arc::new(Sleep::new()), Arc::new(Sleep::new()));
            let (to_device, to_driver) = (Arc::clone(&kick), Arc::clone(&call));
            let server = thread::spawn(move || {
                let (mut served, mut buffers) = (0, Buffers::new(SIZE));
                while served < CHAINS {
                    if serve_one(&mut device, &mut buffers, served) {
                        served += 1;
                        if device.publish() == Notify::Peer {
                            to_driver.notify();
                        }
                    } else if device.arm(NotifyWhen::Any) == Waiting::Idle {
                        kick.wait();
                    }
                }
            });
            let (mut pushed, mut reaped) = (0, 0);
            while reaped < CHAINS {
                while pushed < CHAINS && driver.free() > 0 {
                    driver.push(&[buffer(pushed)]);
                    pushed += 1;
                }
                if driver.publish() == Notify::Peer {
                    to_device.notify();
                }
                if reap_one(&mut driver, reaped) {
                    reaped += 1;
                } else if driver.arm() == Waiting::Idle {
                    call.wait();
                }
            }
            server.join().expect("the device finishes");
        });
    }
}
