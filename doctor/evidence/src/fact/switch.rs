//! Open vSwitch as its database describes it, and what OVN's controller on this host says.

use super::counters::is_absent;
use super::{Fact, Reader, Span, Tried};
use crate::parse::claims::Claims;
use crate::parse::ovsdb::{Database, Port, Settings};
use crate::{Gap, Piece, Text};

/// The ports of Open vSwitch, at both samples.
#[derive(Debug)]
pub struct SwitchDatabase(pub Span<Database>);

/// Only these columns, because others contain keys of tunnels.
const PORTS: &[&str] = &[
    "ovs-vsctl",
    "--format=json",
    "--columns=name,datapath_type,ports",
    "list",
    "bridge",
    "--",
    "--columns=_uuid,interfaces",
    "list",
    "port",
    "--",
    "--columns=_uuid,name,type,mtu,error,external_ids,status",
    "list",
    "interface",
];

impl Fact for SwitchDatabase {
    const PIECES: &'static [Piece] = &[Piece::Sampled(PORTS)];

    fn read(at: &Reader) -> Result<Self, Gap> {
        at.command_span(PORTS).map(SwitchDatabase).map_err(absent)
    }
}

impl SwitchDatabase {
    /// The ports at the last sample; empty where there is no Open vSwitch, or where its database
    /// could not be read.
    ///
    /// # Errors
    /// A gap, if what was read of the database is torn.
    pub fn ports(tried: &Tried<SwitchDatabase>) -> Result<&[Port], Gap> {
        match tried.get() {
            Ok(SwitchDatabase(span)) => Ok(&span.after.ports),
            Err(Gap::Missing { .. } | Gap::NotHere(_)) => Ok(&[]),
            Err(gap) => Err(gap),
        }
    }
}

/// Settings of the switch as a whole, one by one, because others hold administrators' free text.
#[derive(Debug)]
pub struct SwitchSettings {
    /// What they say.
    pub settings: Settings,
    /// To quote: a line for each.
    pub text: Text,
}

const SETTINGS: &[&str] = &[
    "ovs-vsctl",
    "--if-exists",
    "get",
    "open_vswitch",
    ".",
    "external_ids:system-id",
    "external_ids:ovn-remote",
    "external_ids:ovn-bridge",
    "external_ids:ovn-encap-ip",
    "other_config:userspace-tso-enable",
];

impl Fact for SwitchSettings {
    const PIECES: &'static [Piece] = &[Piece::Command(SETTINGS)];

    fn read(at: &Reader) -> Result<Self, Gap> {
        let text = at.command(SETTINGS).map_err(absent)?;
        Ok(SwitchSettings { settings: Settings::parse(&text)?, text })
    }
}

/// A gap of a host without Open vSwitch says that.
fn absent(gap: Gap) -> Gap {
    if is_absent(&gap) { Gap::NotHere("no Open vSwitch".to_owned()) } else { gap }
}

/// What OVN's controller has logged last of ports that several hosts have.
#[derive(Debug)]
pub struct OvnClaims {
    /// What it says.
    pub claims: Claims,
    /// To quote.
    pub text: Text,
}

const LOG: &[&str] = &["tail", "-n", "1000", "/var/log/ovn/ovn-controller.log"];

impl Fact for OvnClaims {
    const PIECES: &'static [Piece] = &[Piece::Command(LOG)];

    fn read(at: &Reader) -> Result<Self, Gap> {
        let text = at.command(LOG)?;
        Ok(OvnClaims { claims: Claims::parse(&text), text })
    }
}

/// Whether OVN's controller is connected to the southbound database: `connected` or `not
/// connected`.
#[derive(Debug)]
pub struct OvnConnection(pub Text);

const CONNECTION: &[&str] = &["ovn-appctl", "-t", "ovn-controller", "connection-status"];

impl Fact for OvnConnection {
    const PIECES: &'static [Piece] = &[Piece::Command(CONNECTION)];

    fn read(at: &Reader) -> Result<Self, Gap> {
        at.command(CONNECTION).map(OvnConnection)
    }
}
