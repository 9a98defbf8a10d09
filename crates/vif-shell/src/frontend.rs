//! The frontend's end of a vif.

use ringway_wire::DomId;
use ringway_xenbus::frontend::{Action, Allocation, Carrier, Handshake, Input, Wish};
use ringway_xenbus::{KeySet, Keys, QueueConfig, Vif, XenbusState};
use ringway_xenstore::{Client, Lost, Refusal, Transport, XsError, unless_refused};

use crate::Note;
use crate::device::{self, unknown_if_refused};
use crate::drive::{OnRefusal, Shell, drive};

/// What a guest's process does for one vif, beside XenStore.
pub trait FrontendProcess {
    /// Makes queues and grants their rings, for a vif that the toolstack describes with these keys.
    ///
    /// # Errors
    /// Why not. Then nothing is allocated.
    fn allocate(&mut self, own: &Keys, wanted: Allocation) -> Result<Vec<QueueConfig>, String>;

    /// Ends all grants and event channels.
    fn release(&mut self);

    /// Lets frames flow.
    ///
    /// # Errors
    /// Why they cannot.
    fn carrier_up(&mut self) -> Result<(), String>;

    /// Holds frames where they come from.
    fn carrier_down(&mut self);

    /// Something for the log.
    fn note(&mut self, note: Note<'_>);
}

/// The frontend's end of one vif: its handshake, and what it has in XenStore.
///
/// The owner takes watch events from the store. Those with [`token`](FrontendEnd::token) go to
/// [`backend_changed`](FrontendEnd::backend_changed); when the vif's directory goes, the owner
/// feeds [`Input::Gone`].
#[derive(Debug)]
pub struct FrontendEnd {
    handshake: Handshake,
    rest: Rest,
}

/// All but the state machine, which drives it.
#[derive(Debug)]
struct Rest {
    vif: Vif,
    error: Option<String>,
    is_finished: bool,
}

impl FrontendEnd {
    /// An end with this wish.
    pub fn new(vif: Vif, wish: Wish) -> FrontendEnd {
        let rest = Rest { vif, error: None, is_finished: false };
        FrontendEnd { handshake: Handshake::new(wish), rest }
    }

    /// The vif.
    pub fn vif(&self) -> Vif {
        self.rest.vif
    }

    /// The token of the watch on the backend's state: the vif's handle, in decimal.
    pub fn token(&self) -> String {
        self.rest.vif.handle.to_string()
    }

    /// The state that this end has written, or found at its start.
    pub fn state(&self) -> XenbusState {
        self.handshake.state()
    }

    /// Whether both ends are connected.
    pub fn is_connected(&self) -> bool {
        self.handshake.is_connected()
    }

    /// Whether there is nothing more to do: this end is to be dropped.
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
    /// What XenStore refuses: then this end cannot be used.
    pub fn watch<T: Transport>(&self, store: &mut Client<T>) -> Result<(), XsError> {
        store.watch_node(&self.rest.vif.backend_state(), &self.token())
    }

    /// Begins the handshake, `own` being the frontend's state as found in XenStore.
    ///
    /// # Errors
    /// That XenStore is lost.
    pub fn start<T: Transport>(
        &mut self,
        store: &mut Client<T>,
        process: &mut impl FrontendProcess,
        own: XenbusState,
    ) -> Result<(), Lost> {
        let peer = unknown_if_refused(device::state(store, &self.rest.vif.backend_state()))?;
        self.feed(store, process, Input::Start { own, peer })
    }

    /// The watch on the backend's state has fired.
    ///
    /// # Errors
    /// That XenStore is lost.
    pub fn backend_changed<T: Transport>(
        &mut self,
        store: &mut Client<T>,
        process: &mut impl FrontendProcess,
    ) -> Result<(), Lost> {
        let peer = unknown_if_refused(device::state(store, &self.rest.vif.backend_state()))?;
        self.feed(store, process, Input::BackendState(peer))
    }

    /// Connects again with this wish, because a user wants that: an earlier complaint is void.
    ///
    /// # Errors
    /// That XenStore is lost.
    pub fn reconnect<T: Transport>(
        &mut self,
        store: &mut Client<T>,
        process: &mut impl FrontendProcess,
        wish: Wish,
    ) -> Result<(), Lost> {
        self.rest.error = None;
        set_error(store, self.rest.vif.frontend, self.rest.vif.handle, None)?;
        self.feed(store, process, Input::Reconnect(wish))
    }

    /// Connects again after a fault of the backend or of this process's device.
    ///
    /// # Errors
    /// That XenStore is lost.
    pub fn recover<T: Transport>(
        &mut self,
        store: &mut Client<T>,
        process: &mut impl FrontendProcess,
        wish: Wish,
        fault: String,
    ) -> Result<(), Lost> {
        self.rest.error = Some(fault);
        self.feed(store, process, Input::Reconnect(wish))
    }

    /// Runs the handshake until it waits for something from outside.
    ///
    /// # Errors
    /// That XenStore is lost.
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

/// Writes what is wrong with a guest's vif, or that nothing is, to the node that tools read.
///
/// # Errors
/// That XenStore is lost.
pub fn set_error<T: Transport>(
    store: &mut Client<T>,
    guest: DomId,
    handle: u32,
    reason: Option<&str>,
) -> Result<(), Lost> {
    // Which domain has the backend makes no difference here.
    let node = Vif { backend: guest, frontend: guest, handle }.frontend_error();
    let written = match reason {
        Some(reason) => store.write(&node, reason),
        None => store.remove(&node),
    };
    // A toolstack need not let guests write there, and the reason is in the log as well.
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

    /// The vif is no longer this guest's business.
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
            Action::WriteKeys(changes) => device::change(store, &own, &changes)?,
            Action::SetState(state) => {
                process.note(Note::State(state));
                device::set_state(store, &rest.vif.frontend_state(), state)?;
            }
            Action::ReadBackend => {
                let keys = device::read_keys(store, &other, KeySet::Offer)?;
                let keys = keys.unwrap_or_else(|| Keys::new(&other, []));
                return Ok(Some(Input::BackendKeys(keys)));
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
            Action::Release => process.release(),
            Action::ReportError(reason) => {
                process.note(Note::Closed(&reason));
                rest.set_error(store, Some(reason))?;
            }
            Action::Finished => rest.finish(store)?,
        }
        Ok(None)
    }

    /// What XenStore refuses is a failure of this vif.
    fn refused(&mut self, refusal: &Refusal) -> OnRefusal<Input> {
        OnRefusal::Fail(Input::Fail(refusal.to_string()))
    }

    fn is_local(action: &Action) -> bool {
        let is_down = matches!(action, Action::Carrier(Carrier::Down));
        is_down || matches!(action, Action::Release | Action::ReportError(_) | Action::Finished)
    }
}
