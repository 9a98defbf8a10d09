//! A host: its kernel, and what its processes leave for each other.

use std::io;

use ringway_host::{
    Bridged, HostDevice, HostLinks, Joining, Keeper, Kernel, Link, LinkSetting, LowMtu, Purpose,
};
use ringway_sim::{KeptNotes, SimKernel};

/// How the devices of this host are marked.
pub(crate) const OWNER: &str = "/run/ringway/here";

pub(crate) type Net = SimKernel<()>;
pub(crate) type Device = HostDevice<Net>;

#[derive(Default)]
pub(crate) struct Place {
    pub(crate) net: Net,
    pub(crate) notes: KeptNotes,
    /// Whether its processes can ask for ports of Open vSwitch, if they know.
    pub(crate) joining: Option<Joining>,
}

impl Place {
    /// With these bridges.
    pub(crate) fn with(bridges: &[&str]) -> Place {
        let place = Place::default();
        bridges.iter().for_each(|name| place.net.add_bridge(name).expect("a bridge"));
        place
    }

    /// What a process knows at its start.
    pub(crate) fn keeper(&mut self) -> Keeper<Net> {
        let mut keeper = Keeper::new(self.net.clone(), OWNER, &mut self.notes);
        keeper.joining = self.joining.unwrap_or(keeper.joining);
        keeper
    }

    /// A process makes a device or takes it over.
    pub(crate) fn made(&mut self, wanted: &Bridged) -> io::Result<Device> {
        HostDevice::make_bridged(&mut self.keeper(), wanted, &mut self.notes)
    }

    /// A process follows what has become of a device.
    pub(crate) fn follow(&mut self, device: &mut Device) {
        let mut keeper = self.keeper();
        let done = HostLinks::read(&mut keeper.net);
        let done = done.and_then(|now| device.follow(&now, &mut keeper, &mut self.notes));
        device.show(done);
    }

    pub(crate) fn link(&self, name: &str) -> Link {
        self.net.find(name).unwrap_or_else(|| panic!("there is no {name}"))
    }

    /// The bridge of a link.
    pub(crate) fn master(&self, name: &str) -> Option<String> {
        let index = self.link(name).master?;
        self.net.all().into_iter().find(|link| link.index == index).map(|link| link.name)
    }

    /// An administrator changes a link.
    pub(crate) fn set(&self, name: &str, settings: &[LinkSetting<'_>]) {
        self.net.clone().set(name, settings).expect("it exists");
    }

    /// An administrator makes a link a port of this bridge.
    pub(crate) fn put(&self, name: &str, bridge: Option<&str>) {
        self.net.set_master(name, bridge).expect("both exist");
    }
}

pub(crate) fn bridged(name: &str, bridge: &str, mtu: Option<u16>) -> Bridged {
    Bridged {
        purpose: Purpose::Virtio(name.to_owned()),
        name: name.to_owned(),
        bridge: bridge.to_owned(),
        queues: 1,
        mtu,
        mtu_min: 0,
        low_mtu: LowMtu::Refuse,
    }
}
