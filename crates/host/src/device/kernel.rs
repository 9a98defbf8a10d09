//! The kernel below the host, as far as network devices are concerned: links, bridges and TAP
//! devices. Every call may fail.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use ringway_datapath::{OffloadCaps, QueueCounters, Side};

/// A kernel. Links are identified by name, as in configuration files.
pub trait Kernel {
    /// A TAP device.
    type Tap: Tap;
    /// How a bridge treats one of its ports.
    type Port: Clone;

    /// All links.
    ///
    /// # Errors
    /// What the kernel reports, as for all calls.
    fn links(&mut self) -> io::Result<Vec<Link>>;

    /// One link.
    ///
    /// # Errors
    /// `NotFound` if no link has that name.
    fn link(&mut self, name: &str) -> io::Result<Link>;

    /// All addresses, each with the index of its link and the length of its prefix.
    ///
    /// # Errors
    /// As for all calls.
    fn addresses(&mut self) -> io::Result<Vec<(u32, IpAddr, u8)>>;

    /// The settings of all ports of bridges, by the index of the port's link.
    ///
    /// # Errors
    /// As for all calls.
    fn bridge_ports(&mut self) -> io::Result<BTreeMap<u32, Self::Port>>;

    /// Changes a link.
    ///
    /// # Errors
    /// `NotFound` if no link has that name, otherwise the error of the first refused setting;
    /// others may apply.
    fn set(&mut self, name: &str, settings: &[LinkSetting<'_>]) -> io::Result<()>;

    /// Gives a port of a bridge these settings.
    ///
    /// # Errors
    /// As for all calls; some settings may then apply.
    fn set_bridge_port(&mut self, name: &str, settings: &Self::Port) -> io::Result<()>;

    /// Gives a link an address.
    ///
    /// # Errors
    /// `AlreadyExists` if it has the address.
    fn add_address(&mut self, name: &str, address: IpAddr, prefix_len: u8) -> io::Result<()>;

    /// Takes an address from a link.
    ///
    /// # Errors
    /// If it does not have the address.
    fn remove_address(&mut self, name: &str, address: IpAddr, prefix_len: u8) -> io::Result<()>;

    /// Deletes a link.
    ///
    /// # Errors
    /// `NotFound` if no link has that name.
    fn delete(&mut self, name: &str) -> io::Result<()>;

    /// Makes a TAP device, or opens the existing one, with all queues enabled and no work left to
    /// do in frames that enter by it.
    ///
    /// # Errors
    /// The name is that of a link of another kind, or the device cannot have so many queues.
    fn open_tap(&mut self, name: &str, queues: u16) -> io::Result<Self::Tap>;

    /// Lets a moment pass: a device that was removed may exist for so long.
    fn pause(&mut self);
}

/// A TAP device, by its open files. Unless it [persists](Tap::set_persistent), it is deleted with
/// this and all its queues.
pub trait Tap: Sized {
    /// A queue of it.
    type Queue;
    /// Its open files, as one process passes them to another.
    type Files;

    /// A device that another process has made, with all its queues enabled.
    ///
    /// # Errors
    /// It was deleted.
    fn from_files(files: &Self::Files) -> io::Result<Self>;

    /// Its name when it was opened.
    fn name(&self) -> &str;

    /// Whether it was deleted while it was open.
    fn is_deleted(&self) -> bool;

    /// Sets whether it outlives its last file.
    ///
    /// # Errors
    /// It was deleted.
    fn set_persistent(&self, is_persistent: bool) -> io::Result<()>;

    /// Sets the work that may be left in frames that enter by it.
    ///
    /// # Errors
    /// It was deleted.
    fn set_offloads(&self, caps: OffloadCaps) -> io::Result<()>;

    /// Sets whether frames leave by it with their checksums, also those that are marked valid.
    fn set_plain(&self, is_plain: bool);

    /// Sets the offloads of the guest for which frames that enter by it are merged; with none, as
    /// at first, each enters as it is.
    fn merge_read(&self, caps: OffloadCaps);

    /// Enables the first `count` queues and disables the others.
    ///
    /// # Errors
    /// It was deleted, or was opened with fewer queues.
    fn set_enabled(&mut self, count: u16) -> io::Result<()>;

    /// Its enabled queues, at this side of its guest, with their counters.
    fn queues(&self, side: Side, counters: &[Arc<QueueCounters>]) -> Vec<Self::Queue>;
}

/// A link, as reported by the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// The kernel's number for it, unique in its namespace.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// What it is.
    pub kind: LinkKind,
    /// Whether it is up administratively.
    pub is_up: bool,
    /// Its Ethernet address, if it has one.
    pub address: Option<[u8; 6]>,
    /// Largest payload of a frame in bytes, Ethernet header not included.
    pub mtu: u32,
    /// Index of the bridge that it is a port of.
    pub master: Option<u32>,
    /// Frames that may wait for transmission.
    pub tx_queue_len: u32,
    /// A note for people and programs (`ifalias`).
    pub alias: Option<String>,
}

/// The kind of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkKind {
    /// A TAP device.
    Tap,
    /// A bridge.
    Bridge,
    /// A bridge of Open vSwitch, if its datapath is in the kernel; otherwise it is a TAP device.
    OpenVswitch,
    /// Another one.
    Other,
}

/// A change of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkSetting<'a> {
    /// Up, administratively.
    Up,
    /// Largest payload of a frame in bytes, Ethernet header not included.
    Mtu(u32),
    /// Its Ethernet address.
    Address([u8; 6]),
    /// Makes it a port of this bridge.
    Master(&'a str),
    /// Frames that are shorter may be left to this link to segment.
    GsoMaxSize(u32),
    /// Frames that may wait for transmission.
    TxQueueLen(u32),
    /// A note for people and programs (`ifalias`), of at most 255 bytes.
    Alias(&'a str),
    /// The kernel gives it no IPv6 address of its own accord.
    NoLinkLocalAddress,
}
