//! What a virtio vif does for its session.

use std::io;

use ringway_datapath::{MacAddr, OffloadCaps};
use ringway_engine::steps::Attachment;
use ringway_vhost::backend::{Negotiated, Offer};
use ringway_vif_shell::LeftOut;

use super::VirtioWanted;
use super::features::offered;
use super::guest::Guest;
use crate::attach::{NewQueues, connect, disconnect};
use crate::device::{Kernel as _, LinkSetting, Tap as _};
use crate::session::{Rings, SessionHost};
use crate::vif_state::VifState;
use crate::world::{Hosting, QueueOf, World};

/// A virtio vif, apart from its session, with what serves it.
pub(super) struct VirtioActions<'a, 'b, W: World> {
    pub(super) state: &'a mut VifState<W>,
    pub(super) wanted: &'a VirtioWanted,
    pub(super) guest: &'a mut Guest,
    pub(super) hosting: &'a mut Hosting<'b, W>,
}

impl<W: World> SessionHost<QueueOf<W>> for VirtioActions<'_, '_, W> {
    fn offer(&mut self, front_end: Option<u32>) -> Offer {
        let caps = self.wanted.offloads.and(self.state.offloads_offered(self.hosting.shared));
        let floor = self.guest.floor.of(front_end);
        self.keep_mtu(floor.mtu);
        // What the same process has negotiated is noted: its guest was here before.
        self.guest.is_new = floor == Negotiated::NONE;
        Offer {
            features: offered(caps).and(self.wanted.features),
            floor,
            protocol: self.wanted.protocol,
            pairs: self.wanted.queues,
            mtu_max: self.wanted.limits.mtu.unwrap_or_else(|| self.state.mtu_max()),
        }
    }

    fn start(&mut self, pair: u16, is_enabled: bool, rings: &mut impl Rings<QueueOf<W>>) {
        self.detach(rings);
        self.guest.pairs.insert(pair, is_enabled);
    }

    fn stop(&mut self, pair: u16, rings: &mut impl Rings<QueueOf<W>>) {
        self.detach(rings);
        self.guest.note_stop(pair);
        self.guest.pairs.remove(&pair);
    }

    fn apply_changes(&mut self, rings: &mut impl Rings<QueueOf<W>>) -> Result<(), String> {
        let is_needed = self.guest.pairs.values().any(|is_enabled| *is_enabled);
        self.guest.due = None;
        if self.state.connection.is_some() || !is_needed {
            return Ok(());
        }
        if let Err(later) = self.guest.rate_limit.take(self.hosting.now) {
            self.guest.due = Some(later);
            return Ok(());
        }
        self.attach(rings).map_err(|error| error.to_string())
    }

    fn announce(&mut self, mac: [u8; 6]) {
        self.guest.announced = Some(mac);
        self.announce_as_asked();
    }

    fn negotiated(&mut self, negotiated: Negotiated) {
        // A front-end may set any MTU if none is configured. No longer frames passed, though.
        let mtu = u32::from(negotiated.mtu).min(self.state.mtu(self.hosting.shared));
        let negotiated = Negotiated { mtu: u16::try_from(mtu).unwrap_or(0), ..negotiated };
        let noted = self.guest.floor.note(negotiated, self.hosting.notes);
        let Err(reason) = noted else { return };
        let Some(LeftOut(left_out)) = self.state.may_log(self.hosting.now) else { return };
        tracing::warn!(left_out, "{reason}");
    }

    fn reset(&mut self, rings: &mut impl Rings<QueueOf<W>>) {
        self.detach(rings);
        self.guest.forget();
        self.state.arrival.end();
    }

    fn log(&mut self, what: &str) {
        let Some(LeftOut(left_out)) = self.state.may_log(self.hosting.now) else { return };
        tracing::info!(vif = self.state.name, left_out, "{what}");
    }

    fn log_end(&mut self, why: &str) {
        let Some(LeftOut(left_out)) = self.state.may_log(self.hosting.now) else { return };
        tracing::warn!(vif = self.state.name, left_out, "{why}");
    }
}

impl<W: World> VirtioActions<'_, '_, W> {
    /// Lets frames be as long as the front-end and its guest expect since an earlier session.
    fn keep_mtu(&mut self, kept: u16) {
        let VirtioActions { state, hosting, .. } = self;
        if std::mem::replace(&mut state.limited.mtu_min, kept) == kept {
            return;
        }
        let (Some(device), Some(keeper)) = (&state.device, hosting.devices.keeper()) else {
            return;
        };
        let setting = LinkSetting::Mtu(device.mtu.max(kept.into()));
        if let Err(error) = keeper.net.set(device.tap.name(), &[setting]) {
            tracing::debug!(vif = state.name, %error, "the network device keeps its MTU");
        }
    }

    /// Attaches all pairs that should be served to engines, as one port.
    fn attach(&mut self, rings: &mut impl Rings<QueueOf<W>>) -> io::Result<()> {
        let connected = self.connect(rings);
        let queues = match connected {
            Ok(queues) => queues,
            Err(error) => {
                rings.taken_back();
                return Err(error);
            }
        };
        tracing::debug!(vif = self.state.name, queues, "connected");
        if std::mem::take(&mut self.guest.is_new) {
            self.state.arrive(self.hosting.shared);
        }
        self.state.announce_by_new_queues(self.hosting);
        self.state.announce(self.hosting);
        self.announce_as_asked();
        Ok(())
    }

    /// Returns the number of queues by which frames come and go.
    fn connect(&mut self, rings: &mut impl Rings<QueueOf<W>>) -> io::Result<usize> {
        let mut caps = OffloadCaps::ALL;
        let (mut enabled, mut disabled) = (Vec::new(), Vec::new());
        for (pair, is_enabled) in self.guest.pairs.clone() {
            let counters = self.guest.counters(pair);
            let (queue, of_queue) = rings.queue(pair, &counters)?;
            let flood = self.state.limited.flood.clone();
            let stations = self.state.limited.stations();
            let attachment = Attachment { queue, counters, flood, stations };
            if is_enabled {
                caps = caps.and(of_queue);
                enabled.push(attachment);
            } else {
                disabled.push(attachment);
            }
        }
        let queues = enabled.len();
        let steering = self.guest.balanced(queues, &self.hosting.shared.config);
        let new = NewQueues { enabled, disabled, steering, caps };
        connect(self.state, new, self.hosting)?;
        Ok(queues)
    }

    /// Announces the address that the front-end has asked for, once its guest is served.
    fn announce_as_asked(&mut self) {
        if self.state.connection.is_none() {
            return;
        }
        let Some(mac) = self.guest.announced.take() else { return };
        self.state.announce_address(MacAddr(mac), self.hosting);
    }

    /// Takes all pairs back from their engines, and notes where each must continue.
    fn detach(&mut self, rings: &mut impl Rings<QueueOf<W>>) {
        if disconnect(self.state, self.hosting) {
            rings.taken_back();
        }
    }
}
