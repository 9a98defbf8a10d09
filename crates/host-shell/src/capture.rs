//! Captured frames as pcapng, on the connection of the client that requested them.

use std::borrow::Cow;
use std::io::{self, BufWriter, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, UNIX_EPOCH};

use pcap_file::DataLink;
use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use ringway_engine::{Capture, CapturedFrame, Passage};
use ringway_sys::poll::{PollFlags, wait};

/// How long to wait for frames before checking whether the reader is still connected.
const PAUSE: Duration = Duration::from_millis(20);
/// Frames written between two checks of the reader.
const FRAMES_PER_CHECK: usize = 1024;
/// `epb_flags`: the interface received the packet, or sends it. The interface is the vif's end in
/// the backend, as with a capture on a kernel's `vifD.H`.
const INBOUND: u32 = 1;
const OUTBOUND: u32 = 2;

/// Writes frames until the reader or the vif disconnects.
pub fn stream_pcapng(capture: &Capture, name: &str, snap_len: u32, stream: UnixStream) {
    let outcome = write_all(capture, name, snap_len, stream);
    capture.close();
    tracing::debug!(vif = name, lost = capture.lost(), ?outcome, "capture ended");
}

fn write_all(capture: &Capture, name: &str, snap_len: u32, stream: UnixStream) -> io::Result<()> {
    let watched = stream.try_clone()?;
    let mut file = PcapngFile::begin(stream, name, snap_len)?;
    file.flush()?;
    let write_waiting = |file: &mut PcapngFile<UnixStream>| -> io::Result<bool> {
        let mut wrote = false;
        // Bounded, so that a flood cannot keep us from seeing that the reader has left.
        for frame in std::iter::from_fn(|| capture.next()).take(FRAMES_PER_CHECK) {
            file.add(frame)?;
            wrote = true;
        }
        file.flush()?;
        Ok(wrote)
    };
    loop {
        let wrote = write_waiting(&mut file)?;
        let pause = if wrote { Duration::ZERO } else { PAUSE };
        if is_gone(&watched, pause)? {
            // Drain it: frames seen before the reader left are still the reader's.
            capture.close();
            while write_waiting(&mut file)? {}
            return Ok(());
        }
        if !wrote && !capture.is_open() {
            return Ok(());
        }
    }
}

/// A file with one interface and its frames, each in a block.
pub struct PcapngFile<W: Write>(PcapNgWriter<BufWriter<W>>);

impl<W: Write> PcapngFile<W> {
    /// Begins the file with the interface `name`; at most `snap_len` bytes of each frame are kept.
    ///
    /// # Errors
    /// Errors of `out`.
    pub fn begin(out: W, name: &str, snap_len: u32) -> io::Result<PcapngFile<W>> {
        let mut writer = PcapNgWriter::new(BufWriter::new(out)).map_err(io::Error::other)?;
        let interface = InterfaceDescriptionBlock {
            linktype: DataLink::ETHERNET,
            snaplen: snap_len,
            options: vec![
                InterfaceDescriptionOption::IfName(Cow::Borrowed(name)),
                // This library writes times in nanoseconds.
                InterfaceDescriptionOption::IfTsResol(9),
            ],
        };
        writer.write_pcapng_block(interface).map_err(io::Error::other)?;
        Ok(PcapngFile(writer))
    }

    /// Adds a frame.
    ///
    /// # Errors
    /// Errors of the underlying writer.
    pub fn add(&mut self, frame: CapturedFrame) -> io::Result<()> {
        self.0.write_pcapng_block(block(frame)).map(drop).map_err(io::Error::other)
    }

    /// Writes what is buffered.
    ///
    /// # Errors
    /// Errors of the underlying writer.
    pub fn flush(&mut self) -> io::Result<()> {
        self.0.get_mut().flush()
    }
}

fn block(frame: CapturedFrame) -> EnhancedPacketBlock<'static> {
    let flags = match frame.passage {
        Passage::Ingress => INBOUND,
        Passage::Egress => OUTBOUND,
    };
    EnhancedPacketBlock {
        interface_id: 0,
        timestamp: frame.at.duration_since(UNIX_EPOCH).unwrap_or_default(),
        original_len: u32::try_from(frame.len).unwrap_or(u32::MAX),
        data: Cow::Owned(frame.bytes),
        options: vec![
            EnhancedPacketOption::Flags(flags),
            EnhancedPacketOption::Comment(Cow::Owned(format!("queue {}", frame.queue))),
        ],
    }
}

/// Waits for `pause`; true if the reader has closed its end, or its sending half.
fn is_gone(stream: &UnixStream, pause: Duration) -> io::Result<bool> {
    let source = ((), stream.as_fd(), PollFlags::RDHUP);
    wait(&[source], Some(pause)).map(|ready| !ready.is_empty())
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::time::{Instant, SystemTime};

    use pcap_file::pcapng::{Block, PcapNgReader};

    use super::*;

    #[test]
    fn a_frame_is_written_with_its_time_length_direction_and_queue() {
        let at = Duration::new(1_700_000_000, 123_456_789);
        let frame = |passage, queue| {
            let (at, bytes) = (UNIX_EPOCH + at, vec![1, 2, 3]);
            CapturedFrame { at, queue, passage, len: 1514, bytes }
        };
        let mut out = Vec::new();
        let mut file = PcapngFile::begin(&mut out, "vif1.0", 96).expect("memory takes it");
        for frame in [frame(Passage::Ingress, 0), frame(Passage::Egress, 3)] {
            file.add(frame).expect("memory takes it");
        }
        file.flush().expect("memory takes it");
        drop(file);
        let mut reader = PcapNgReader::new(&out[..]).expect("it begins");
        let mut found = Vec::new();
        while let Some(block) = reader.next_block() {
            let Block::EnhancedPacket(packet) = block.expect("it is whole") else { continue };
            assert_eq!((packet.original_len, &*packet.data), (1514, &[1, 2, 3][..]));
            assert_eq!(packet.timestamp, at);
            found.push(packet.options.into_iter().map(|it| format!("{it:?}")).collect::<Vec<_>>());
        }
        let options = |flags, queue: &str| vec![flags, format!("Comment({queue:?})")];
        let expected =
            [options("Flags(1)".to_owned(), "queue 0"), options("Flags(2)".to_owned(), "queue 3")];
        assert_eq!(found, expected);
        let [interface] = reader.interfaces() else { panic!("there is one interface") };
        assert_eq!((interface.linktype, interface.snaplen), (DataLink::ETHERNET, 96));
        assert!(format!("{:?}", interface.options).contains("vif1.0"));
    }

    #[test]
    fn a_capture_ends_with_its_vif_and_with_its_reader() {
        let begin = || Capture::new(96, (Instant::now(), SystemTime::now()));
        let capture = begin();
        capture.close();
        let (ours, mut theirs) = UnixStream::pair().expect("sockets");
        stream_pcapng(&capture, "vif1.0", 96, ours);
        let mut all = Vec::new();
        theirs.read_to_end(&mut all).expect("it has ended");
        assert!(!all.is_empty(), "the file has begun");

        let capture = begin();
        let (ours, theirs) = UnixStream::pair().expect("sockets");
        theirs.shutdown(std::net::Shutdown::Write).expect("it is connected");
        stream_pcapng(&capture, "vif1.0", 96, ours);
        assert!(!capture.is_open(), "the port copies no more");
    }
}
