//! The protocol against another implementation: the front-end of rust-vmm's crate `vhost`. It sends
//! byte for byte what ours would, and our back-end serves it.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::time::Instant;

use ringway_vhost::request::{Ack, Request};
use ringway_vhost::{Addresses, Region, RegionKey};
use ringway_vhost_shell::{BackendEnd, Endpoint, Mode, State};
use ringway_wire::vhost_user::{
    REPLY_MASK, VERSION, VHOST_USER_PROTOCOL_F_CONFIGURE_MEM_SLOTS, VHOST_USER_PROTOCOL_F_MQ,
};
use ringway_wire::virtio::{
    Features, VHOST_USER_F_PROTOCOL_FEATURES, VIRTIO_F_VERSION_1, VIRTIO_NET_F_MRG_RXBUF,
};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use tempfile::TempDir;
use vhost::vhost_user::message::VhostUserProtocolFeatures;
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vmm_sys_util::eventfd::EventFd;

use crate::device::{Recorder, until};

const RINGS: u64 = 4;
const SIZE: u16 = 256;
const KEY: RegionKey =
    RegionKey { guest_address: 0, size: 1 << 20, user_address: 1 << 40, file_offset: 0 };

fn features() -> Features {
    Features::of(&[VIRTIO_F_VERSION_1, VIRTIO_NET_F_MRG_RXBUF, VHOST_USER_F_PROTOCOL_FEATURES])
}

fn addresses(ring: u16) -> Addresses {
    let descriptor = KEY.user_address + (u64::from(ring) << 16);
    Addresses { descriptor, available: descriptor + 0x4000, used: descriptor + 0x8000, log: None }
}

fn memory() -> File {
    let memory = memfd_create("memory", MemfdFlags::CLOEXEC).expect("a file");
    ftruncate(&memory, KEY.size).expect("there is memory");
    File::from(memory)
}

/// A session of a virtual machine monitor, with two rings.
fn session(frontend: &mut Frontend) -> vhost::Result<()> {
    let memory = memory();
    let region = VhostUserMemoryRegionInfo {
        guest_phys_addr: KEY.guest_address,
        memory_size: KEY.size,
        userspace_addr: KEY.user_address,
        mmap_offset: KEY.file_offset,
        mmap_handle: memory.as_raw_fd(),
    };
    frontend.set_owner()?;
    frontend.get_features()?;
    let wanted = VhostUserProtocolFeatures::MQ | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS;
    frontend.get_protocol_features()?;
    frontend.set_protocol_features(wanted)?;
    frontend.get_queue_num()?;
    frontend.get_max_mem_slots()?;
    frontend.set_features(features().0)?;
    frontend.add_mem_region(&region)?;
    let event = EventFd::new(0).expect("an eventfd");
    for ring in 0..2_u16 {
        let index = usize::from(ring);
        let Addresses { descriptor, available, used, .. } = addresses(ring);
        frontend.set_vring_num(index, SIZE)?;
        let config = VringConfigData {
            queue_max_size: SIZE,
            queue_size: SIZE,
            flags: 0,
            desc_table_addr: descriptor,
            used_ring_addr: used,
            avail_ring_addr: available,
            log_addr: None,
        };
        frontend.set_vring_addr(index, &config)?;
        frontend.set_vring_base(index, 7)?;
        frontend.set_vring_call(index, &event)?;
        frontend.set_vring_kick(index, &event)?;
    }
    for ring in 0..2 {
        frontend.set_vring_enable(ring, true)?;
    }
    Ok(())
}

/// The requests of our front-end for that, with their replies, if any.
fn expected() -> Vec<(Request, Option<u64>)> {
    let protocol = VHOST_USER_PROTOCOL_F_MQ | VHOST_USER_PROTOCOL_F_CONFIGURE_MEM_SLOTS;
    let event = || Some(memory().into());
    let mut expected = vec![
        (Request::SetOwner, None),
        (Request::GetFeatures, Some(features().0)),
        (Request::GetProtocolFeatures, Some(protocol)),
        (Request::SetProtocolFeatures(protocol), None),
        (Request::GetQueueNum, Some(RINGS / 2)),
        (Request::GetMaxMemSlots, Some(509)),
        (Request::SetFeatures(features()), None),
        (Request::AddMemReg(Region { key: KEY, file: memory().into() }), None),
    ];
    for ring in 0..2 {
        expected.extend([
            (Request::SetVringNum { ring, size: SIZE }, None),
            (Request::SetVringAddr { ring, addresses: addresses(ring) }, None),
            (Request::SetVringBase { ring, base: 7 }, None),
            (Request::SetVringCall { ring, file: event() }, None),
            (Request::SetVringKick { ring, file: event() }, None),
        ]);
    }
    expected.extend([0, 1].map(|ring| (Request::SetVringEnable { ring, is_enabled: true }, None)));
    expected
}

#[test]
fn a_front_end_of_rust_vmm_says_byte_for_byte_what_ours_would() {
    let (theirs, mut ours) = UnixStream::pair().expect("sockets");
    let talking = std::thread::spawn(move || {
        session(&mut Frontend::from_stream(theirs, RINGS)).expect("it is replied to");
    });
    for (request, reply) in expected() {
        let words = format!("{request:?}");
        let message = request.write(Ack::No);
        let (op, bytes) = (message.request, message.bytes());
        let mut said = vec![0; bytes.len()];
        ours.read_exact(&mut said).expect("it says something");
        assert_eq!(said, bytes, "{words}");
        if let Some(number) = reply {
            let head = [op, VERSION | REPLY_MASK, 8].map(u32::to_ne_bytes).concat();
            ours.write_all(&[&head[..], &number.to_ne_bytes()].concat()).expect("it reads");
        }
    }
    talking.join().expect("it has said all");
    assert_eq!(ours.read(&mut [0]).expect("it has left"), 0);
}

#[test]
fn a_front_end_of_rust_vmm_is_served() {
    let dir = TempDir::new().expect("a directory");
    let path = dir.path().join("vm1.sock");
    let mut end = BackendEnd::new(Endpoint::new(&path, Mode::Server, Instant::now()).expect("one"));
    let mut device = Recorder::new(2);
    let talking = std::thread::spawn(move || {
        let mut frontend = Frontend::connect(&path, RINGS).expect("it listens");
        session(&mut frontend).expect("it is replied to");
        frontend
    });
    until(&mut end, &mut device, "served", |end, device| {
        end.state() == State::Serving && device.served.len() == 1 && talking.is_finished()
    });
    assert_eq!((device.memory.as_slice(), device.negotiated.features), (&[KEY][..], features()));
    drop(talking.join().expect("it has said all"));
    until(&mut end, &mut device, "left", |end, _| end.state() == State::Disconnected);
    assert_eq!(device.notes, ["Connected", "Disconnected"]);
}
