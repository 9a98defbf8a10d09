//! The backend's side of the handshake.
//!
//! The frontend's keys in XenStore are the truth: whenever the frontend says that it is connected
//! they are read again, and if they name other rings than those attached, the backend follows.
//! That way no order of events, and no restart of either end, can leave the two on different rings.

use crate::config::{FrontendConfig, Offer};
use crate::keys::{BadKeys, KeyChange, Keys};
use crate::state::XenbusState::{self, Closed, Closing, Connected, InitWait, Initialising};

/// What happens to a backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// The backend begins to serve the vif; also after it was restarted.
    Start {
        /// The backend's state as found in XenStore.
        own: XenbusState,
        /// The frontend's state as found in XenStore.
        peer: XenbusState,
    },
    /// The frontend's state may have changed.
    FrontendState(XenbusState),
    /// The answer to [`Action::ReadFrontend`].
    FrontendKeys(Keys),
    /// The answer to [`Action::Attach`]. After an error nothing is attached.
    Attached(Result<(), String>),
    /// The frontend broke the ring protocol.
    PeerFault(String),
    /// Other numbers of queues are offered from now on.
    OfferChanged {
        /// The most queues a frontend may ask for; at least 1.
        queues_max: u16,
    },
    /// The toolstack wants the vif to go (`online` is 0).
    Offline,
    /// The backend's own directory is gone.
    Gone,
}

/// What the shell is to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Change keys in the backend's directory, in one transaction.
    WriteKeys(Vec<KeyChange>),
    /// Write the backend's state.
    SetState(XenbusState),
    /// Read the frontend's directory and answer with [`Input::FrontendKeys`].
    ReadFrontend,
    /// Map the rings, bind the event channels, and answer with [`Input::Attached`].
    Attach(FrontendConfig, Attachment),
    /// Unmap and unbind everything.
    Detach,
    /// Write this to the error nodes.
    ReportError(String),
    /// Remove the error nodes.
    ClearError,
    /// There is nothing more to do; drop the handshake.
    Finished,
}

/// Whether rings are new.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attachment {
    /// The frontend has just made them.
    Fresh,
    /// They were in use before this backend was started; the frontend does not know of that.
    Reattach,
}

/// The state machine.
#[derive(Debug, Clone)]
pub struct Handshake {
    offer: Offer,
    phase: Phase,
    own: XenbusState,
    peer: XenbusState,
    reoffer: Reoffer,
    actions: Vec<Action>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Phase {
    /// Before the start.
    Idle,
    /// The offer is written; the frontend's turn.
    Waiting,
    /// The frontend's keys are being read.
    Reading(Attachment),
    /// The rings are being attached.
    Attaching(FrontendConfig, Attachment),
    /// Attaching failed; the keys are read again, in case they were being replaced meanwhile.
    Doubting(FrontendConfig, String),
    /// The rings are attached.
    Serving(FrontendConfig),
    /// Nothing is attached; the frontend has yet to close.
    Closing,
    /// Both have let go.
    Closed,
    Finished,
}

/// Whether a frontend that has closed is offered the vif again without having asked. One that was
/// refused is not, or it would be refused without end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reoffer {
    No,
    /// It may have answered an older offer, so that a refusal is not its fault.
    IfRefused,
    /// It has certainly not seen the newest offer, so it is to reconnect in any case.
    Always,
}

impl Handshake {
    /// A backend that will offer this. Feed it [`Input::Start`].
    pub fn new(offer: Offer) -> Handshake {
        Handshake {
            offer: Offer { queues_max: offer.queues_max.max(1), ..offer },
            phase: Phase::Idle,
            own: XenbusState::Unknown,
            peer: XenbusState::Unknown,
            reoffer: Reoffer::No,
            actions: Vec::new(),
        }
    }

    /// The state that this end has written.
    pub fn state(&self) -> XenbusState {
        self.own
    }

    /// What the frontend is served with, while it is.
    pub fn config(&self) -> Option<&FrontendConfig> {
        match &self.phase {
            Phase::Serving(config) => Some(config),
            _ => None,
        }
    }

    /// Takes an input and returns what is to be done, in order.
    #[must_use]
    pub fn handle(&mut self, input: Input) -> Vec<Action> {
        match (input, &self.phase) {
            (_, Phase::Finished) => {}
            (Input::Start { own, peer }, _) => self.start(own, peer),
            (_, Phase::Idle) => {}
            (Input::FrontendState(state), _) => self.frontend_state(state),
            (Input::FrontendKeys(keys), _) => self.frontend_keys(&keys),
            (Input::Attached(outcome), _) => self.attached(outcome),
            (Input::PeerFault(fault), Phase::Serving(_)) => self.fail(&fault),
            // It is the fault of rings that are no longer attached.
            (Input::PeerFault(_), _) => {}
            (Input::OfferChanged { queues_max }, _) => self.offer_changed(queues_max),
            (Input::Offline, _) => {
                self.detach();
                self.set_state(Closing);
                self.set_state(Closed);
                self.finish();
            }
            (Input::Gone, _) => {
                // To write anything would make the directory again.
                self.detach();
                self.finish();
            }
        }
        std::mem::take(&mut self.actions)
    }

    fn start(&mut self, own: XenbusState, peer: XenbusState) {
        (self.own, self.peer) = (own, peer);
        match (own, peer) {
            (_, Closing) => self.close(),
            (own, peer) if peer.has_keys() => {
                // Its keys may answer what an earlier run has offered.
                self.reoffer = Reoffer::IfRefused;
                match own {
                    Connected => self.read(Attachment::Reattach),
                    InitWait => self.read(Attachment::Fresh),
                    // It is connected to a backend that is no longer there.
                    _ => self.close(),
                }
            }
            _ => self.wait(),
        }
    }

    fn frontend_state(&mut self, state: XenbusState) {
        let is_repeated = state == self.peer;
        self.peer = state;
        match (&self.phase, state) {
            (Phase::Waiting | Phase::Serving(_), state) if state.has_keys() => {
                self.read(Attachment::Fresh);
            }
            _ if is_repeated => {}
            // The frontend starts over, from whatever it was doing.
            (Phase::Waiting, Initialising) => {}
            (_, Initialising) => {
                self.detach();
                self.wait();
            }
            (Phase::Closed, state) if state.has_keys() => {
                self.wait();
                self.read(Attachment::Fresh);
            }
            (Phase::Closing | Phase::Closed, Closing) => {}
            (_, Closing) => self.close(),
            (Phase::Closed, _) => {}
            (_, state) if state.is_gone() => self.closed(),
            _ => {}
        }
    }

    fn frontend_keys(&mut self, keys: &Keys) {
        let is_expected =
            matches!(self.phase, Phase::Reading(_) | Phase::Doubting(..) | Phase::Serving(_));
        if !is_expected {
            return;
        }
        let state = keys.state();
        if !state.has_keys() {
            // It changed its mind since it said that it has keys. What counts is where it is now.
            match (&self.phase, self.own) {
                (Phase::Serving(_), _) => {}
                (_, InitWait) => self.phase = Phase::Waiting,
                _ => self.wait(),
            }
            self.frontend_state(state);
            return;
        }
        self.peer = state;
        let read = FrontendConfig::read(keys, &self.offer);
        match (std::mem::replace(&mut self.phase, Phase::Waiting), read) {
            (Phase::Serving(config), Ok(found)) if config == found => {
                self.phase = Phase::Serving(config);
            }
            (Phase::Serving(config), found) => {
                self.phase = Phase::Serving(config);
                self.detach();
                self.attach(found, Attachment::Fresh);
            }
            (Phase::Doubting(config, reason), Ok(found)) if config == found => self.fail(&reason),
            (Phase::Reading(attachment), found) => self.attach(found, attachment),
            (_, found) => self.attach(found, Attachment::Fresh),
        }
    }

    fn attach(&mut self, config: Result<FrontendConfig, BadKeys>, attachment: Attachment) {
        match config {
            Ok(config) => {
                self.actions.push(Action::Attach(config.clone(), attachment));
                self.phase = Phase::Attaching(config, attachment);
            }
            Err(bad) => self.fail(&bad.to_string()),
        }
    }

    fn attached(&mut self, outcome: Result<(), String>) {
        let Phase::Attaching(config, _) = &self.phase else { return };
        let config = config.clone();
        match outcome {
            Ok(()) => {
                self.phase = Phase::Serving(config);
                if self.reoffer == Reoffer::Always {
                    self.close();
                    return;
                }
                self.reoffer = Reoffer::No;
                self.actions.push(Action::ClearError);
                if self.own != Connected {
                    self.set_state(Connected);
                }
            }
            Err(reason) => {
                self.phase = Phase::Doubting(config, reason);
                self.actions.push(Action::ReadFrontend);
            }
        }
    }

    fn offer_changed(&mut self, queues_max: u16) {
        self.offer.queues_max = queues_max.max(1);
        match self.phase {
            Phase::Closed => self.wait(),
            Phase::Serving(_) => {
                self.reoffer = Reoffer::Always;
                self.actions.push(Action::WriteKeys(self.offer.changes()));
                self.close();
            }
            _ => {
                self.reoffer = Reoffer::Always;
                self.actions.push(Action::WriteKeys(self.offer.changes()));
            }
        }
    }

    /// Writes the offer and waits for an answer.
    fn wait(&mut self) {
        self.reoffer = Reoffer::No;
        self.phase = Phase::Waiting;
        self.actions.push(Action::WriteKeys(self.offer.changes()));
        self.set_state(InitWait);
    }

    fn read(&mut self, attachment: Attachment) {
        if !matches!(self.phase, Phase::Serving(_)) {
            self.phase = Phase::Reading(attachment);
        }
        self.actions.push(Action::ReadFrontend);
    }

    fn fail(&mut self, reason: &str) {
        self.actions.push(Action::ReportError(reason.to_owned()));
        self.close();
    }

    /// Lets go, and waits for the frontend to do the same.
    fn close(&mut self) {
        self.detach();
        self.set_state(Closing);
        self.phase = Phase::Closing;
        if self.peer.is_gone() {
            self.closed();
        }
    }

    /// The frontend has let go too.
    fn closed(&mut self) {
        self.detach();
        self.set_state(Closed);
        self.phase = Phase::Closed;
        if self.reoffer != Reoffer::No {
            self.wait();
        }
    }

    fn detach(&mut self) {
        if matches!(self.phase, Phase::Serving(_) | Phase::Attaching(..)) {
            self.actions.push(Action::Detach);
        }
    }

    fn finish(&mut self) {
        self.actions.push(Action::Finished);
        self.phase = Phase::Finished;
    }

    fn set_state(&mut self, state: XenbusState) {
        self.own = state;
        self.actions.push(Action::SetState(state));
    }
}
