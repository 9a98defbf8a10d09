//! The frontend's end of a vif.

use ringway_wire::DomId;
use ringway_xenbus::frontend::{
    Action, Allocated, Allocation, Carrier, Handshake, Input, Preferences,
};
use ringway_xenbus::{KeySet, Keys, Vif, XenbusState};
use ringway_xenstore::{Client, Lost, Refusal, Transport, XsError, unless_refused};

use crate::Note;
use crate::device::{self, unknown_if_refused};
use crate::drive::{OnRefusal, Shell, drive};

/// How many connections a backend may spoil by using their pages after it has closed. These pages
/// are lost to the guest, so that a backend could take all of its memory, and more than one vif's.
const SPOILED_MAX: u32 = 4;

/// What has become of the pages of a connection that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Released {
    /// They are free, or will be without the backend.
    Free,
    /// The backend still uses some of them.
    KeptByBackend,
}

/// What a guest's process does for one vif, apart from XenStore.
pub trait FrontendProcess {
    /// Makes queues and grants their rings, for a vif with these keys from the toolstack; also a
    /// control ring, if one is wanted and offered.
    ///
    /// # Errors
    /// The reason for a failure; nothing is then allocated.
    fn allocate(&mut self, own: &Keys, wanted: Allocation) -> Result<Allocated, String>;

    /// Ends all grants and event channels.
    fn release(&mut self) -> Released;

    /// Lets frames flow.
    ///
    /// # Errors
    /// Why frames cannot flow.
    fn carrier_up(&mut self) -> Result<(), String>;

    /// Stops frames; they wait at their source.
    fn carrier_down(&mut self);

    /// Reports something for the log.
    fn note(&mut self, note: Note<'_>);
}

/// The frontend's end of one vif: its handshake, and its state in XenStore.
///
/// The owner takes watch events from the store. Those with [`token`](FrontendEnd::token) go to
/// [`backend_changed`](FrontendEnd::backend_changed); when the vif's directory is removed, the
/// owner feeds [`Input::Gone`].
#[derive(Debug)]
pub struct FrontendEnd {
    handshake: Handshake,
    rest: Rest,
}

/// Everything except the state machine, which drives it.
#[derive(Debug)]
struct Rest {
    vif: Vif,
    error: Option<String>,
    /// Connections whose pages the backend has kept.
    spoiled: u32,
    is_finished: bool,
}

impl FrontendEnd {
    /// An end with this wish.
    pub fn new(vif: Vif, preferences: Preferences) -> FrontendEnd {
        let rest = Rest { vif, error: None, spoiled: 0, is_finished: false };
        FrontendEnd { handshake: Handshake::new(preferences), rest }
    }

    /// The vif.
    pub fn vif(&self) -> Vif {
        self.rest.vif
    }

    /// The token of the watch on the backend's state: the vif's handle, in decimal.
    pub fn token(&self) -> String {
        self.rest.vif.handle.to_string()
    }

    /// The state that this end wrote last, or found at its start.
    pub fn state(&self) -> XenbusState {
        self.handshake.state()
    }

    /// Whether both ends are connected.
    pub fn is_connected(&self) -> bool {
        self.handshake.is_connected()
    }

    /// Whether the end is finished and should be dropped.
    pub fn is_finished(&self) -> bool {
        self.rest.is_finished
    }

    /// Why the vif does not work, if it does not.
    pub fn error(&self) -> Option<&str> {
        self.rest.error.as_deref()
    }

    /// Watches the backend.
    ///
    /// # Errors
    /// A refusal of XenStore: this end cannot then be used.
    pub fn watch<T: Transport>(&self, store: &mut Client<T>) -> Result<(), XsError> {
        store.watch_node(&self.rest.vif.backend_state(), &self.token())
    }

    /// Begins the handshake. `own` is the frontend's state found in XenStore.
    ///
    /// # Errors
    /// The loss of XenStore.
    pub fn start<T: Transport>(
        &mut self,
        store: &mut Client<T>,
        process: &mut impl FrontendProcess,
        own: XenbusState,
    ) -> Result<(), Lost> {
        let peer = unknown_if_refused(device::state(store, &self.rest.vif.backend_state()))?;
        self.feed(store, process, Input::Start { own, peer })
    }

    /// Handles an event of the watch on the backend's state.
    ///
    /// # Errors
    /// The loss of XenStore.
    pub fn backend_changed<T: Transport>(
        &mut self,
        store: &mut Client<T>,
        process: &mut impl FrontendProcess,
    ) -> Result<(), Lost> {
        let peer = unknown_if_refused(device::state(store, &self.rest.vif.backend_state()))?;
        self.feed(store, process, Input::BackendState(peer))
    }

    /// Asks for as many bytes to be free before each frame, now and in later connections; a backend
    /// that does not offer any leaves none free. Where queues that receive the frames put them is
    /// up to their owner: those of `netfront` give frames without headroom.
    ///
    /// # Errors
    /// The loss of XenStore.
    pub fn ask_for_headroom<T: Transport>(
        &mut self,
        store: &mut Client<T>,
        process: &mut impl FrontendProcess,
        bytes: u16,
    ) -> Result<(), Lost> {
        self.feed(store, process, Input::Headroom(bytes))
    }

    /// Connects again with this wish, on a user's request: an earlier error is cleared, and
    /// connections whose pages the backend has kept no longer count.
    ///
    /// # Errors
    /// The loss of XenStore.
    pub fn reconnect<T: Transport>(
        &mut self,
        store: &mut Client<T>,
        process: &mut impl FrontendProcess,
        preferences: Preferences,
    ) -> Result<(), Lost> {
        (self.rest.error, self.rest.spoiled) = (None, 0);
        set_error(store, self.rest.vif.frontend, self.rest.vif.handle, None)?;
        self.feed(store, process, Input::Reconnect(preferences))
    }

    /// Connects again after a fault of the backend or of this process's device.
    ///
    /// # Errors
    /// The loss of XenStore.
    pub fn recover<T: Transport>(
        &mut self,
        store: &mut Client<T>,
        process: &mut impl FrontendProcess,
        preferences: Preferences,
        fault: String,
    ) -> Result<(), Lost> {
        self.rest.error = Some(fault);
        self.feed(store, process, Input::Reconnect(preferences))
    }

    /// Runs the handshake until it waits for an external event.
    ///
    /// # Errors
    /// The loss of XenStore.
    pub fn feed<T: Transport>(
        &mut self,
        store: &mut Client<T>,
        process: &mut impl FrontendProcess,
        input: Input,
    ) -> Result<(), Lost> {
        let FrontendEnd { handshake, rest } = self;
        drive(handshake, &mut Acting { rest, store, process }, input)
    }
}

/// Writes the error of a guest's vif to the node that tools read, or clears it.
///
/// # Errors
/// The loss of XenStore.
pub fn set_error<T: Transport>(
    store: &mut Client<T>,
    guest: DomId,
    handle: u32,
    reason: Option<&str>,
) -> Result<(), Lost> {
    // The backend's domain makes no difference here.
    let node = Vif { backend: guest, frontend: guest, handle }.frontend_error();
    let written = match reason {
        Some(reason) => store.write(&node, reason),
        None => store.remove(&node),
    };
    // A toolstack need not permit guests to write there, and the log has the reason, too.
    unless_refused(written, ())
}

impl Rest {
    fn set_error<T: Transport>(
        &mut self,
        store: &mut Client<T>,
        reason: Option<String>,
    ) -> Result<(), Lost> {
        let was_set = self.error.is_some();
        if was_set || reason.is_some() {
            set_error(store, self.vif.frontend, self.vif.handle, reason.as_deref())?;
        }
        self.error = reason;
        Ok(())
    }

    /// This guest no longer serves the vif.
    fn finish<T: Transport>(&mut self, store: &mut Client<T>) -> Result<(), Lost> {
        self.is_finished = true;
        let (node, token) = (self.vif.backend_state(), self.vif.handle.to_string());
        unless_refused(store.unwatch(&node, &token), ())?;
        self.set_error(store, None)
    }
}

/// Carries out a handshake's actions.
struct Acting<'a, T, P> {
    rest: &'a mut Rest,
    store: &'a mut Client<T>,
    process: &'a mut P,
}

impl<T: Transport, P: FrontendProcess> Shell<Handshake> for Acting<'_, T, P> {
    fn act(&mut self, action: Action) -> Result<Option<Input>, XsError> {
        let Acting { rest, store, process } = self;
        let (own, other) = (rest.vif.frontend_dir(), rest.vif.backend_dir());
        match action {
            Action::Write(changes, state) => {
                if let Some(state) = state {
                    process.note(Note::State(state));
                }
                device::write(store, &own, &changes, state)?;
            }
            Action::ReadBackend => {
                let keys = device::read_keys(store, &other, KeySet::Offer)?;
                let keys = keys.unwrap_or_else(|| Keys::new(&other, []));
                return Ok(Some(Input::BackendKeys(keys)));
            }
            Action::Allocate(_) if rest.spoiled >= SPOILED_MAX => {
                let why = format!("the backend uses pages of {SPOILED_MAX} earlier connections");
                return Ok(Some(Input::Allocated(Err(why))));
            }
            Action::Allocate(wanted) => {
                let keys = device::read_keys(store, &own, KeySet::FrontendDevice)?;
                let keys = keys.unwrap_or_else(|| Keys::new(&own, []));
                return Ok(Some(Input::Allocated(process.allocate(&keys, wanted))));
            }
            Action::Carrier(Carrier::Up) => match process.carrier_up() {
                Ok(()) => rest.set_error(store, None)?,
                Err(reason) => return Ok(Some(Input::Fail(reason))),
            },
            Action::Carrier(Carrier::Down) => process.carrier_down(),
            Action::Release => {
                let released = process.release();
                rest.spoiled += u32::from(released == Released::KeptByBackend);
            }
            Action::ReportError(reason) => {
                process.note(Note::Closed(&reason));
                rest.set_error(store, Some(reason))?;
            }
            Action::Finished => rest.finish(store)?,
        }
        Ok(None)
    }

    /// A refusal of XenStore is a failure of this vif.
    fn refused(&mut self, refusal: &Refusal) -> OnRefusal<Input> {
        OnRefusal::Fail(Input::Fail(refusal.to_string()))
    }

    fn is_local(action: &Action) -> bool {
        let is_down = matches!(action, Action::Carrier(Carrier::Down));
        is_down || matches!(action, Action::Release | Action::ReportError(_) | Action::Finished)
    }
}
