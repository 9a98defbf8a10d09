//! What only `ethtool` sets of a link (`Documentation/networking/ethtool-netlink.rst` of Linux).

use std::io;

use netlink_packet_core::{Emitable, NLA_F_NESTED, NLM_F_ACK};

use crate::explain;
use crate::generic::{Family, Message, Named, attribute};

/// Access to one network namespace: that of the thread that opened it, whichever thread uses it.
#[derive(Debug)]
pub struct Ethtool(Family<Name>);

#[derive(Debug)]
struct Name;

impl Named for Name {
    const NAME: &'static str = "ethtool";
}

/// `ETHTOOL_MSG_LINKMODES_SET`.
const SET_LINK_MODES: u8 = 5;
/// `ETHTOOL_A_LINKMODES_HEADER`.
const HEADER: u16 = 1;
/// `ETHTOOL_A_LINKMODES_SPEED`.
const SPEED: u16 = 5;
/// `ETHTOOL_A_HEADER_DEV_NAME`.
const DEVICE_NAME: u16 = 2;

impl Ethtool {
    /// Opens the network namespace of the calling thread.
    ///
    /// # Errors
    /// `NotFound` if the kernel has no such family: it is older than Linux 5.6.
    pub fn open() -> io::Result<Ethtool> {
        Family::open().map(Ethtool)
    }

    /// Sets the speed that a link shows, in megabits per second. It limits nothing.
    ///
    /// # Errors
    /// The kernel's error; `Unsupported` for a link whose driver has none to set.
    pub fn set_speed(&mut self, name: &str, mbit: u32) -> io::Result<()> {
        let device = attribute(DEVICE_NAME, &[name.as_bytes(), b"\0"].concat());
        let mut header = vec![0; device.buffer_len()];
        device.emit(&mut header);
        let attributes =
            vec![(HEADER | NLA_F_NESTED, header), (SPEED, mbit.to_ne_bytes().to_vec())];
        let set = self.0.request(Message::new(SET_LINK_MODES, attributes), NLM_F_ACK);
        set.map(drop).map_err(|error| explain(&error, format_args!("link {name}: speed {mbit}")))
    }
}
