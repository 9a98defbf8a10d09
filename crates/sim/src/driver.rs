//! An honest guest's driver: its end of the handshake.

use ringway_datapath::PortQueue as _;
use ringway_datapath::Woken;
use ringway_netfront::GroupOrder;
use ringway_vif_shell::{FrontendEnd, FrontendProcess, Note, Released};
use ringway_xenbus::frontend::{Allocated, Allocation, Input, Preferences};
use ringway_xenbus::{Keys, Vif, XenbusState};
use ringway_xenstore::{Client, LocalStore, LocalTransport, Lost, Watched, or_refusal};

use crate::flaw::{Flaw, Rule};
use crate::guest::{Nic, XenQueue};
use crate::plane::DataPlane;
use crate::scenario::HOST;
use crate::traffic::announcement;

/// A guest's driver, and its session of XenStore.
pub(crate) struct Driver {
    store: Client<LocalTransport>,
    end: FrontendEnd,
    preferences: Preferences,
    /// The headroom that it has asked for.
    headroom: u16,
    guest: usize,
}

impl Driver {
    /// A driver that finds the vif as its toolstack has created it.
    pub(crate) fn start(
        store: &LocalStore,
        vif: Vif,
        preferences: Preferences,
        guest: usize,
        plane: &mut DataPlane,
    ) -> Result<Driver, Lost> {
        let mut store = store.connect(vif.frontend).expect("a guest may have a session");
        let mut end = FrontendEnd::new(vif, preferences);
        or_refusal(end.watch(&mut store))?.expect("a guest may watch its backend");
        end.start(&mut store, &mut Process { plane, guest }, XenbusState::Initialising)?;
        Ok(Driver { store, end, preferences, headroom: 0, guest })
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.end.is_connected()
    }

    pub(crate) fn describe(&self) -> String {
        format!("{:?}, error {:?}", self.end.state(), self.end.error())
    }

    /// Handles one pending event, if there is one.
    pub(crate) fn turn(&mut self, plane: &mut DataPlane) -> Result<bool, Lost> {
        let Driver { store, end, preferences, guest, .. } = self;
        let mut process = Process { plane, guest: *guest };
        if let Some(fault) = process.plane.guests[*guest].fault.take() {
            end.recover(store, &mut process, *preferences, fault)?;
            return Ok(true);
        }
        match store.next_watch()? {
            None => Ok(false),
            Some(Watched::Node(_) | Watched::Overflow) => {
                let guest = *guest;
                process.plane.journal.note(|| format!("guest {guest}: its backend has changed"));
                end.backend_changed(store, &mut process)?;
                Ok(true)
            }
        }
    }

    pub(crate) fn has_work(&self, plane: &DataPlane) -> bool {
        self.store.has_events() || plane.guests[self.guest].fault.is_some()
    }

    /// Disconnects and connects again, with other preferences.
    pub(crate) fn reconnect(
        &mut self,
        preferences: Preferences,
        plane: &mut DataPlane,
    ) -> Result<(), Lost> {
        self.preferences = preferences;
        let Driver { store, end, preferences, guest, .. } = self;
        end.reconnect(store, &mut Process { plane, guest: *guest }, *preferences)
    }

    /// Asks for headroom, at once if both ends are connected.
    pub(crate) fn ask_for_headroom(
        &mut self,
        bytes: u16,
        plane: &mut DataPlane,
    ) -> Result<(), Lost> {
        self.headroom = bytes;
        let Driver { store, end, guest, .. } = self;
        end.ask_for_headroom(store, &mut Process { plane, guest: *guest }, bytes)
    }

    /// The headroom that it has asked for.
    pub(crate) fn headroom(&self) -> u16 {
        self.headroom
    }

    /// Says whether the guest wants no multicast frames but those that it orders.
    pub(crate) fn request_multicast_control(&mut self, is_requested: bool) -> Result<(), Lost> {
        let node = self.end.vif().multicast_request();
        let value = if is_requested { "1" } else { "0" };
        or_refusal(self.store.write(&node, value)).map(|done| done.expect("it is the guest's"))
    }

    /// The vif's directory is gone.
    pub(crate) fn gone(&mut self, plane: &mut DataPlane) -> Result<(), Lost> {
        let Driver { store, end, guest, .. } = self;
        end.feed(store, &mut Process { plane, guest: *guest }, Input::Gone)
    }
}

/// The actions of the guest's process for its vif.
struct Process<'a> {
    plane: &'a mut DataPlane,
    guest: usize,
}

impl FrontendProcess for Process<'_> {
    fn allocate(&mut self, _own: &Keys, wanted: Allocation) -> Result<Allocated, String> {
        let guest = &mut self.plane.guests[self.guest];
        guest.allocate(HOST, wanted).map_err(|error| error.to_string())
    }

    fn release(&mut self) -> Released {
        let number = self.guest;
        self.plane.journal.note(|| format!("guest {number} ends its grants"));
        let DataPlane { guests, choices, flaw, .. } = &mut *self.plane;
        let guest = &mut guests[number];
        // A device may hold frames for longer.
        let is_held = guest.has_ends() && !choices.is_one_in(4);
        if is_held {
            guest.keep_received();
        }
        let (rule, found) = match (guest.release(), is_held) {
            (true, false) | (false, true) => return Released::Free,
            (false, false) => (Rule::Release, "grants that its backend still uses"),
            (true, true) => (Rule::LentPages, "grants of pages that frames refer to"),
        };
        flaw.get_or_insert_with(|| Flaw::new(rule, format!("guest {number} ends {found}")));
        Released::Free
    }

    fn carrier_up(&mut self) -> Result<(), String> {
        let number = self.guest;
        self.plane.journal.note(|| format!("guest {number} is up"));
        let guest = &mut self.plane.guests[number];
        guest.is_up = true;
        let announcement = announcement(guest.mac, &mut guest.pool);
        if let (Some(nic), Some(frame)) = (guest.nics.first_mut(), announcement) {
            nic.backlog.push_back(frame);
        }
        if let (Some(nic), Some(groups)) = (guest.nics.first_mut(), &guest.chosen.groups) {
            let groups: Vec<_> = groups.iter().copied().collect();
            let order = |queue: &mut XenQueue| queue.order_groups(GroupOrder::Add, &groups);
            let ordered = nic.xen().map_or(Ok(groups.len()), order);
            let count = ordered.map_err(|down| down.to_string())?;
            assert_eq!(count, groups.len(), "a new ring has room");
        }
        if let (Some(nic), Some(wish)) = (guest.nics.first_mut(), guest.wish.clone()) {
            let wished = nic.xen().map_or(Ok(()), |queue| queue.wish(wish));
            wished.map_err(|down| down.to_string())?;
        }
        if guest.may_stage() {
            let pages = guest.nics.iter_mut().filter_map(Nic::xen).map(|queue| queue.pages());
            let pages = pages.collect();
            let first = guest.nics.first_mut().and_then(Nic::xen);
            let staged = first.map_or(Ok(()), |queue| queue.stage(pages));
            staged.map_err(|down| down.to_string())?;
        }
        for nic in &mut guest.nics {
            nic.is_awake = true;
            if let Err(down) = nic.queue.woken(Woken::Unknown) {
                return Err(down.to_string());
            }
        }
        Ok(())
    }

    fn carrier_down(&mut self) {
        let number = self.guest;
        self.plane.journal.note(|| format!("guest {number} is down"));
        let guest = &mut self.plane.guests[number];
        guest.is_up = false;
        guest.fault = None;
        guest.is_disturbed = true;
    }

    fn note(&mut self, note: Note<'_>) {
        let guest = self.guest;
        self.plane.journal.note(|| format!("guest {guest}: {note:?}"));
    }
}
