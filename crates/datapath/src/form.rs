//! The form of frames in the buffers of a virtio-net device: which header precedes them, and what
//! it may contain. Both ends of a device follow the same rules, with their roles exchanged.

use ringway_wire::virtio::{
    Features, VIRTIO_F_VERSION_1, VIRTIO_NET_F_CSUM, VIRTIO_NET_F_GUEST_CSUM,
    VIRTIO_NET_F_GUEST_ECN, VIRTIO_NET_F_GUEST_TSO4, VIRTIO_NET_F_GUEST_TSO6,
    VIRTIO_NET_F_GUEST_USO4, VIRTIO_NET_F_GUEST_USO6, VIRTIO_NET_F_HOST_ECN,
    VIRTIO_NET_F_HOST_TSO4, VIRTIO_NET_F_HOST_TSO6, VIRTIO_NET_F_HOST_USO, VIRTIO_NET_F_MRG_RXBUF,
    VirtioNetHdrV1,
};
use ringway_wire::vnet::{
    VIRTIO_NET_HDR_F_NEEDS_CSUM, VIRTIO_NET_HDR_GSO_ECN, VIRTIO_NET_HDR_GSO_NONE, VirtioNetHdr,
};

use crate::vnet::{offload_from_vnet, vnet_from_offload};
use crate::{DropReason, Frame, GsoKind, Offload, OffloadCaps};

/// The negotiated form of frames, seen from one end.
#[derive(Debug, Clone, Copy)]
pub struct FrameForm {
    /// Bytes of the header before each frame.
    pub header_len: usize,
    /// Whether a frame that the guest receives may take several chains.
    pub is_mergeable: bool,
    /// Work that may be left to the other end.
    pub caps: OffloadCaps,
    peer: Accepts,
    own: Accepts,
}

/// Work that may be left to one end.
#[derive(Debug, Clone, Copy)]
struct Accepts {
    checksum: bool,
    tso4: bool,
    tso6: bool,
    uso4: bool,
    uso6: bool,
    ecn: bool,
}

impl FrameForm {
    /// Seen from the device.
    pub fn of_device(features: Features) -> FrameForm {
        FrameForm::between(features, Accepts::guest(features), Accepts::host(features))
    }

    /// Seen from the driver.
    pub fn of_driver(features: Features) -> FrameForm {
        FrameForm::between(features, Accepts::host(features), Accepts::guest(features))
    }

    fn between(features: Features, peer: Accepts, own: Accepts) -> FrameForm {
        let is_mergeable = features.has(VIRTIO_NET_F_MRG_RXBUF);
        let has_v1_header = is_mergeable || features.has(VIRTIO_F_VERSION_1);
        FrameForm {
            header_len: match has_v1_header {
                true => size_of::<VirtioNetHdrV1>(),
                false => size_of::<VirtioNetHdr>(),
            },
            is_mergeable,
            caps: OffloadCaps {
                // A guest that takes UDP segmentation of only one IP version posts short buffers.
                scatter_gather: is_mergeable || peer.tso4 || peer.tso6 || (peer.uso4 && peer.uso6),
                checksum_v4: peer.checksum,
                checksum_v6: peer.checksum,
                gso_v4: peer.tso4,
                gso_v6: peer.tso6,
                uso_v4: peer.uso4,
                uso_v6: peer.uso6,
            },
            peer,
            own,
        }
    }

    /// Reads the offload from the peer's header before a frame.
    ///
    /// # Errors
    /// [`DropReason::BadOffload`] if the frame contradicts the header, or the header asks for
    /// something that was not negotiated.
    #[inline]
    pub fn read(&self, hdr: &VirtioNetHdr, frame: &mut Frame) -> Result<Offload, DropReason> {
        if hdr.flags == 0 && hdr.gso_type == VIRTIO_NET_HDR_GSO_NONE {
            return Ok(Offload::NONE);
        }
        self.read_offload(hdr, frame)
    }

    /// Reads the offload of a frame with work left to do. A function of its own, to keep the path
    /// of other frames short.
    #[inline(never)]
    fn read_offload(&self, hdr: &VirtioNetHdr, frame: &mut Frame) -> Result<Offload, DropReason> {
        let leaves_checksum = hdr.flags & VIRTIO_NET_HDR_F_NEEDS_CSUM != 0;
        if leaves_checksum && !self.own.checksum {
            return Err(DropReason::BadOffload);
        }
        let offload = offload_from_vnet(hdr, frame.bytes_mut())?;
        match offload.gso {
            Some(gso) if !self.own.takes(gso.kind, hdr.gso_type) => Err(DropReason::BadOffload),
            _ => Ok(offload),
        }
    }

    /// The header for a frame that leaves in one chain.
    ///
    /// # Errors
    /// [`DropReason::BadOffload`] if the frame's headers do not match its offload.
    #[inline]
    pub fn write(&self, frame: &mut Frame) -> Result<VirtioNetHdr, DropReason> {
        match frame.offload {
            Offload::NONE => Ok(VirtioNetHdr::default()),
            _ => self.write_offload(frame),
        }
    }

    /// The header for a frame with work left to do. A function of its own, to keep the path of
    /// other frames short.
    #[inline(never)]
    fn write_offload(&self, frame: &mut Frame) -> Result<VirtioNetHdr, DropReason> {
        let offload = frame.offload;
        let mut hdr = vnet_from_offload(&offload, frame.bytes_mut())?;
        if !self.peer.checksum {
            // Per `caps`, no work is left to do; the header may not claim that the checksum was
            // verified.
            hdr.flags = 0;
        }
        if !self.peer.ecn {
            hdr.gso_type &= !VIRTIO_NET_HDR_GSO_ECN;
        }
        Ok(hdr)
    }
}

impl Accepts {
    /// Segmentation requires checksum offload.
    fn of(features: Features, checksum: u32, [tso4, tso6, uso4, uso6, ecn]: [u32; 5]) -> Accepts {
        let checksum = features.has(checksum);
        let [tso4, tso6, uso4, uso6, ecn] =
            [tso4, tso6, uso4, uso6, ecn].map(|bit| checksum && features.has(bit));
        Accepts { checksum, tso4, tso6, uso4, uso6, ecn }
    }

    fn guest(features: Features) -> Accepts {
        Accepts::of(
            features,
            VIRTIO_NET_F_GUEST_CSUM,
            [
                VIRTIO_NET_F_GUEST_TSO4,
                VIRTIO_NET_F_GUEST_TSO6,
                VIRTIO_NET_F_GUEST_USO4,
                VIRTIO_NET_F_GUEST_USO6,
                VIRTIO_NET_F_GUEST_ECN,
            ],
        )
    }

    fn host(features: Features) -> Accepts {
        Accepts::of(
            features,
            VIRTIO_NET_F_CSUM,
            [
                VIRTIO_NET_F_HOST_TSO4,
                VIRTIO_NET_F_HOST_TSO6,
                // One feature for both IP versions.
                VIRTIO_NET_F_HOST_USO,
                VIRTIO_NET_F_HOST_USO,
                VIRTIO_NET_F_HOST_ECN,
            ],
        )
    }

    fn takes(self, kind: GsoKind, gso_type: u8) -> bool {
        let is_taken = match kind {
            GsoKind::TcpV4 => self.tso4,
            GsoKind::TcpV6 => self.tso6,
            GsoKind::UdpV4 => self.uso4,
            GsoKind::UdpV6 => self.uso6,
        };
        is_taken && (self.ecn || gso_type & VIRTIO_NET_HDR_GSO_ECN == 0)
    }
}
