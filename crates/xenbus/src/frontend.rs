//! The frontend's side of the handshake.
//!
//! A frontend may end its grants only after the backend has released them. A backend at `Closing`
//! may not have done so: a toolstack that removes a vif writes that state in the backend's place.
//! So the frontend follows `Closing` with `Closed`, and releases its queues when the backend has
//! followed it to that state, or beyond.
//!
//! It accepts an `InitWait` only if the backend has followed it to `Closed` since it last had keys
//! in XenStore, even if an earlier run wrote these. Otherwise the offer, or a later `Closing`,
//! could be meant for the earlier run.
//!
//! While both ends are connected, it may ask for another headroom, and keeps its rings: it goes to
//! `Reconfiguring`, with the key, and back to `Connected` when the backend is `Reconfigured`.
//!
//! All this works with Linux's backend as well. That ignores `Initialised`, offers again only when
//! the frontend is `Initialising`, and becomes `Connected` late when it waits for a hotplug script:
//! it may use the rings while its state is still `InitWait`. It stays `Reconfigured`, and so shows
//! of no second change when it has seen it: the frontend connects again for that one.

use alloc::string::{String, ToString};
use alloc::vec;
use alloc::vec::Vec;

use crate::config::{
    ControlConfig, FrontendConfig, Offer, QueueConfig, QueueCountKey, Reconnects, headroom_change,
};
use crate::features::Features;
use crate::keys::{KeyChange, Keys};
use crate::state::XenbusState::{
    self, Closed, Closing, Connected, InitWait, Initialising, Reconfigured, Reconfiguring,
};

/// The most queues of an earlier run whose keys are removed, whatever number the backend claims to
/// have offered.
const STALE_QUEUES_MAX: u16 = 256;

/// What a frontend wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Preferences {
    /// How many queues.
    pub queues: QueueCount,
    /// What it can receive.
    pub features: Features,
}

/// How many queues to request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueCount {
    /// This many, or all that are offered if there are fewer; at least one.
    AtMost(u16),
    /// This many even if fewer are offered, to test how a backend refuses.
    Exactly(u16),
}

/// An event for the frontend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// The frontend begins, possibly after a restart, in which it lost its queues.
    Start {
        /// The frontend's state as found in XenStore.
        own: XenbusState,
        /// The backend's state as found in XenStore.
        peer: XenbusState,
    },
    /// The backend's state may have changed.
    BackendState(XenbusState),
    /// The result of [`Action::ReadBackend`].
    BackendKeys(Keys),
    /// The result of [`Action::Allocate`]. After an error nothing is allocated.
    Allocated(Result<Allocated, String>),
    /// Ask for as many bytes to be free before each frame, now and in later connections, if the
    /// backend offers that.
    Headroom(u16),
    /// Reconnect with other wishes.
    Reconnect(Preferences),
    /// This end cannot continue, for this reason: it stays closed until [`Input::Reconnect`].
    Fail(String),
    /// Disconnect for good.
    Stop,
    /// The frontend's own directory was removed.
    Gone,
}

/// The actions for the shell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Change keys in the frontend's directory and then its state, if there is one, in one
    /// transaction: no one sees the one without the other, however slow this end is.
    Write(Vec<KeyChange>, Option<XenbusState>),
    /// Read the backend's directory and respond with [`Input::BackendKeys`].
    ReadBackend,
    /// Create queues, grant their rings, and respond with [`Input::Allocated`].
    Allocate(Allocation),
    /// End all grants and event channels.
    Release,
    /// Whether frames can flow. Until then, they wait at their source.
    Carrier(Carrier),
    /// Write this to the error node.
    ReportError(String),
    /// Nothing is left to do: drop the handshake.
    Finished,
}

/// The queues to create.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allocation {
    /// How many.
    pub queues: u16,
    /// Whether each has one event channel per direction.
    pub split_event_channels: bool,
    /// What the backend can receive.
    pub backend: Features,
    /// Whether the vif may have a control ring.
    pub control_ring: bool,
    /// Whether the vif may choose its multicast frames.
    pub multicast_control: bool,
}

/// What was created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allocated {
    /// The queues, at least one.
    pub queues: Vec<QueueConfig>,
    /// The control ring, if the vif has one.
    pub control: Option<ControlConfig>,
    /// Whether the vif gets only the multicast frames that it orders, if it may choose them.
    pub multicast_control: bool,
}

impl From<Vec<QueueConfig>> for Allocated {
    /// Queues without a control ring, of a vif that gets all multicast frames.
    fn from(queues: Vec<QueueConfig>) -> Allocated {
        Allocated { queues, control: None, multicast_control: false }
    }
}

/// The state of the link for the guest's network stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Carrier {
    /// Both ends are connected.
    Up,
    /// At least one end is not.
    Down,
}

/// The state machine.
#[derive(Debug, Clone)]
pub struct Handshake {
    preferences: Preferences,
    phase: Phase,
    own: XenbusState,
    peer: XenbusState,
    /// Whether queues are granted.
    is_granted: bool,
    /// The most queues whose keys this frontend has written.
    written_max: usize,
    /// The bytes that it wants to be free before each frame.
    headroom: u16,
    /// As it has asked for them in this connection; `None` if the backend does not offer any.
    headroom_asked: Option<u16>,
    actions: Vec<Action>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Before the start.
    Idle,
    /// Ready; the backend has not made an offer yet.
    AwaitingOffer,
    /// The offer is being read.
    Reading,
    /// Queues are being created for this offer.
    Allocating(Offer, QueueCountKey),
    /// Queues are granted; the backend has not attached yet.
    AwaitingBackend,
    /// Both ends are connected.
    Running,
    /// They are, and the backend has not accepted another headroom yet.
    Reconfiguring,
    /// The backend has not closed yet. Queues may still be granted.
    Leaving(Then),
    /// This end is closed, and queues may be granted: the backend has not followed yet.
    AwaitingClosed(Then),
    /// Nothing is granted. The backend may offer again.
    Closed,
    /// Nothing is granted, and the backend's offer is unusable.
    OfferUnusable,
    Finished,
}

/// The next step after the backend has closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Then {
    Reconnect,
    /// Wait for another offer.
    StayClosed,
    GiveUp,
    Finish,
}

impl Handshake {
    /// A frontend with this wish. Feed it [`Input::Start`].
    pub fn new(preferences: Preferences) -> Handshake {
        let (own, peer) = (XenbusState::Unknown, XenbusState::Unknown);
        let (phase, actions) = (Phase::Idle, Vec::new());
        Handshake {
            preferences,
            phase,
            own,
            peer,
            is_granted: false,
            written_max: 0,
            headroom: 0,
            headroom_asked: None,
            actions,
        }
    }

    /// The state that this end has written, or found at its start.
    pub fn state(&self) -> XenbusState {
        self.own
    }

    /// Whether both ends are connected.
    pub fn is_connected(&self) -> bool {
        matches!(self.phase, Phase::Running | Phase::Reconfiguring)
    }

    /// Whether nothing is left to do.
    pub fn is_finished(&self) -> bool {
        self.phase == Phase::Finished
    }

    /// Handles an input and returns the actions to carry out, in order.
    #[must_use]
    pub fn handle(&mut self, input: Input) -> Vec<Action> {
        match (input, self.phase) {
            (_, Phase::Finished) => {}
            (Input::Headroom(bytes), _) => {
                self.headroom = bytes;
                self.reconfigure();
            }
            (Input::Start { own, peer }, Phase::Idle) => self.start(own, peer),
            (Input::Stop | Input::Gone, Phase::Idle) => self.finish(),
            (_, Phase::Idle) | (Input::Start { .. }, _) => {}
            (Input::BackendState(state), _) => self.backend_state(state),
            (Input::BackendKeys(keys), Phase::Reading) => self.offered(&keys),
            (Input::Allocated(outcome), Phase::Allocating(offer, count_key)) => {
                self.allocated(outcome, offer, count_key);
            }
            // Results of actions that no longer matter.
            (Input::BackendKeys(_) | Input::Allocated(_), _) => {}
            (Input::Reconnect(preferences), _) => self.reconnect(preferences),
            (Input::Fail(reason), _) => self.give_up(reason),
            (Input::Stop, _) => self.stop(),
            (Input::Gone, _) => {
                // A write would create the directory again.
                self.drop_carrier();
                self.release();
                self.finish();
            }
        }
        core::mem::take(&mut self.actions)
    }

    fn start(&mut self, own: XenbusState, peer: XenbusState) {
        (self.own, self.peer) = (own, peer);
        match own {
            XenbusState::Unknown | Initialising => self.initialise(),
            // An earlier run has closed, and the backend has followed or is about to.
            Closed if peer == InitWait || peer.is_gone() => self.initialise(),
            Closed => self.phase = Phase::AwaitingClosed(Then::Reconnect),
            _ => self.leave(Then::Reconnect),
        }
    }

    fn backend_state(&mut self, state: XenbusState) {
        self.peer = state;
        match (self.phase, state) {
            (Phase::AwaitingOffer, InitWait) => self.read(),
            (Phase::Closed, InitWait) => self.initialise(),
            (Phase::AwaitingBackend, Connected) => {
                self.phase = Phase::Running;
                // Once accepted, it becomes an upper limit: the host may offer less later.
                if let QueueCount::Exactly(count) = self.preferences.queues {
                    self.preferences.queues = QueueCount::AtMost(count);
                }
                self.actions.push(Action::Carrier(Carrier::Up));
                self.reconfigure();
            }
            //= netif.h:xdp-headroom
            (Phase::Reconfiguring, Reconfigured) => {
                self.phase = Phase::Running;
                self.set_state(Connected);
                self.reconfigure();
            }
            // A toolstack removes the vif before it was ever connected.
            (Phase::AwaitingOffer, Closing) => self.close(Then::StayClosed),
            (
                Phase::AwaitingBackend | Phase::Running | Phase::Reconfiguring,
                Closing | Closed | XenbusState::Unknown,
            ) => {
                self.close(Then::StayClosed);
            }
            // The backend was restarted and does not know this frontend.
            (Phase::Running | Phase::Reconfiguring, InitWait) => {
                self.drop_carrier();
                self.release();
                self.initialise();
            }
            (Phase::Leaving(then), Closing | Closed | XenbusState::Unknown) => self.close(then),
            (Phase::AwaitingClosed(then), Closed | InitWait | XenbusState::Unknown) => {
                self.release();
                match then {
                    Then::Reconnect => self.initialise(),
                    Then::StayClosed => {
                        self.phase = Phase::Closed;
                        self.backend_state(state);
                    }
                    Then::GiveUp => self.phase = Phase::OfferUnusable,
                    Then::Finish => self.finish(),
                }
            }
            _ => {}
        }
    }

    fn offered(&mut self, keys: &Keys) {
        let state = keys.state();
        if state != InitWait {
            // The offer was withdrawn since we saw it.
            self.phase = Phase::AwaitingOffer;
            return;
        }
        match Offer::read(keys) {
            Ok(offer) => {
                let queues = match self.preferences.queues {
                    QueueCount::AtMost(count) => count.clamp(1, offer.queues_max),
                    QueueCount::Exactly(count) => count,
                };
                self.phase = Phase::Allocating(offer, QueueCountKey::of(keys));
                self.actions.push(Action::Allocate(Allocation {
                    queues,
                    split_event_channels: offer.split_event_channels,
                    backend: offer.features,
                    control_ring: offer.control_ring,
                    multicast_control: offer.multicast_control,
                }));
            }
            Err(bad) => self.give_up(bad.to_string()),
        }
    }

    fn allocated(
        &mut self,
        outcome: Result<Allocated, String>,
        offer: Offer,
        count_key: QueueCountKey,
    ) {
        match outcome {
            Ok(Allocated { queues, control, multicast_control }) => {
                self.is_granted = true;
                let features = self.preferences.features;
                let multicast_control = multicast_control && offer.multicast_control;
                let rx_notify = true;
                self.headroom_asked = offer.xdp_headroom.then_some(self.headroom);
                let headroom = self.headroom_asked.unwrap_or(0);
                let config = FrontendConfig {
                    queues,
                    features,
                    rx_notify,
                    control,
                    multicast_control,
                    headroom,
                };
                let offered = offer.queues_max.min(STALE_QUEUES_MAX);
                self.written_max = self.written_max.max(offered.into()).max(config.queues.len());
                self.phase = Phase::AwaitingBackend;
                // Straight to Connected, as Linux does: there is nothing left to wait for, and
                // Linux's backend attaches to no frontend that is Initialised.
                self.set_state_with(config.changes(self.written_max, count_key), Connected);
            }
            Err(reason) => self.give_up(reason),
        }
    }

    /// Asks for the headroom that is wanted, if both ends are connected and it has not asked for
    /// it.
    fn reconfigure(&mut self) {
        let is_asked = self.headroom_asked.is_none_or(|bytes| bytes == self.headroom);
        if self.phase != Phase::Running || is_asked {
            return;
        }
        // The end of an earlier change may not be seen yet, or never, and nothing else of this one.
        if self.peer != Connected {
            return self.leave(Then::Reconnect);
        }
        self.headroom_asked = Some(self.headroom);
        self.phase = Phase::Reconfiguring;
        self.set_state_with(vec![headroom_change(self.headroom)], Reconfiguring);
    }

    fn reconnect(&mut self, preferences: Preferences) {
        self.preferences = preferences;
        match self.phase {
            Phase::AwaitingBackend | Phase::Running | Phase::Reconfiguring => {
                self.leave(Then::Reconnect);
            }
            // A backend that refused this frontend waits until it starts over.
            Phase::Closed | Phase::OfferUnusable => self.initialise(),
            _ => self.set_next(Then::Reconnect),
        }
    }

    fn stop(&mut self) {
        match self.phase {
            Phase::Leaving(_) | Phase::AwaitingClosed(_) => self.set_next(Then::Finish),
            Phase::AwaitingBackend | Phase::Running | Phase::Reconfiguring => {
                self.leave(Then::Finish);
            }
            // The backend holds nothing of this frontend. It would mistake a late `Closing` for one
            // of the next frontend.
            _ => self.finish(),
        }
    }

    fn give_up(&mut self, reason: String) {
        self.actions.push(Action::ReportError(reason));
        match self.phase {
            Phase::Closed => self.phase = Phase::OfferUnusable,
            Phase::OfferUnusable => {}
            Phase::Leaving(_) | Phase::AwaitingClosed(_) => self.set_next(Then::GiveUp),
            _ => self.leave(Then::GiveUp),
        }
    }

    /// Changes the next step after the backend has closed, unless this end disconnects for good.
    fn set_next(&mut self, next: Then) {
        if let Phase::Leaving(then) | Phase::AwaitingClosed(then) = &mut self.phase {
            if *then != Then::Finish {
                *then = next;
            }
        }
    }

    /// Asks the backend to close.
    fn leave(&mut self, then: Then) {
        self.drop_carrier();
        self.phase = Phase::Leaving(then);
        self.set_state(Closing);
        self.backend_state(self.peer);
    }

    /// Follows the backend, and waits until it has closed.
    fn close(&mut self, then: Then) {
        self.drop_carrier();
        self.set_state(Closed);
        self.phase = Phase::AwaitingClosed(then);
        self.backend_state(self.peer);
    }

    fn initialise(&mut self) {
        self.phase = Phase::AwaitingOffer;
        self.set_state_with(Reconnects::changes(), Initialising);
        self.backend_state(self.peer);
    }

    fn read(&mut self) {
        self.phase = Phase::Reading;
        self.actions.push(Action::ReadBackend);
    }

    fn drop_carrier(&mut self) {
        if self.is_connected() {
            self.actions.push(Action::Carrier(Carrier::Down));
        }
    }

    fn release(&mut self) {
        if core::mem::take(&mut self.is_granted) {
            self.actions.push(Action::Release);
        }
    }

    fn finish(&mut self) {
        self.actions.push(Action::Finished);
        self.phase = Phase::Finished;
    }

    fn set_state(&mut self, state: XenbusState) {
        self.set_state_with(Vec::new(), state);
    }

    fn set_state_with(&mut self, changes: Vec<KeyChange>, state: XenbusState) {
        self.own = state;
        self.actions.push(Action::Write(changes, Some(state)));
    }
}
