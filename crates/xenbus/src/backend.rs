//! The backend's side of the handshake.
//!
//! A frontend that leaves goes through `Closing` and `Closed`, and the backend follows it there;
//! one that starts over at `Initialising` is offered the vif again. A frontend that was refused
//! has to start over by itself, or it would be refused without end.
//!
//! Where the toolstack has a hotplug script for the vif's network device, a frontend is served at
//! once and called connected when the script is done.

use crate::config::{FrontendConfig, Offer};
use crate::hotplug::Hotplug;
use crate::keys::{HOTPLUG_STATUS, KeyChange, Keys};
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
    /// Instead of the start: this host cannot serve the vif that the toolstack describes, for this
    /// reason. It stays closed until the toolstack removes it.
    Refused(String),
    /// The frontend's state may have changed.
    FrontendState(XenbusState),
    /// The answer to [`Action::ReadFrontend`].
    FrontendKeys(Keys),
    /// The answer to [`Action::Attach`]. After an error nothing is attached.
    Attached(Result<(), String>),
    /// The frontend broke the ring protocol.
    PeerFault(String),
    /// Another number of queues is offered from now on. A connected frontend is made to connect
    /// anew; one that does not come back by itself stays closed until it starts over.
    OfferChanged {
        /// The most queues a frontend may ask for; at least 1.
        queues_max: u16,
    },
    /// What the toolstack's hotplug script says may have changed.
    Hotplug(Hotplug),
    /// Somebody else has written `Closing` to the backend's own state, and still wants the vif. It
    /// stays there until the frontend follows, if that has begun.
    AskedToClose,
    /// The toolstack wants the vif to go (`online` is 0). It waits for `Closed`, so the backend
    /// does not wait for a frontend that may be dead.
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
    /// The frontend is served, and called connected when the hotplug script is done: say so.
    AwaitHotplug,
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
    hotplug: Hotplug,
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
    Attaching(FrontendConfig),
    /// The rings are attached.
    Serving(FrontendConfig),
    /// Nothing is attached; the frontend has yet to close.
    Closing,
    /// Both have let go.
    Closed,
    /// Whatever the frontend does, nothing can be served.
    Refused,
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
    /// A backend that will offer this, with what the hotplug script has said by now. Feed it
    /// [`Input::Start`].
    pub fn new(offer: Offer, hotplug: Hotplug) -> Handshake {
        Handshake {
            offer: Offer { queues_max: offer.queues_max.max(1), ..offer },
            hotplug,
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
            (Input::Start { own, peer }, Phase::Idle) => self.start(own, peer),
            (Input::Refused(reason), Phase::Idle) => self.refuse(reason),
            (Input::Offline, _) => self.offline(),
            (Input::Gone, _) => {
                // To write anything would make the directory again.
                self.detach();
                self.finish();
            }
            (_, Phase::Idle | Phase::Refused) | (Input::Start { .. } | Input::Refused(_), _) => {}
            (Input::Hotplug(hotplug), _) => self.hotplug_changed(hotplug),
            (Input::AskedToClose, _) => self.close(),
            (Input::FrontendState(state), _) => self.frontend_state(state),
            (Input::FrontendKeys(keys), _) => self.frontend_keys(&keys),
            (Input::Attached(outcome), _) => self.attached(outcome),
            (Input::PeerFault(fault), Phase::Serving(_)) => self.fail(&fault),
            // It is the fault of rings that are no longer attached.
            (Input::PeerFault(_), _) => {}
            (Input::OfferChanged { queues_max }, _) => self.offer_changed(queues_max),
        }
        std::mem::take(&mut self.actions)
    }

    fn refuse(&mut self, reason: String) {
        self.actions.push(Action::ReportError(reason));
        self.set_state(Closing);
        self.set_state(Closed);
        self.phase = Phase::Refused;
    }

    fn offline(&mut self) {
        self.detach();
        if self.hotplug != Hotplug::Absent {
            // The device goes, too, and the script has to be run for the next one.
            let stale = KeyChange::Remove(HOTPLUG_STATUS.to_owned());
            self.actions.push(Action::WriteKeys(vec![stale]));
        }
        if self.own != Closed {
            self.set_state(Closing);
        }
        // In any case: the toolstack, which waits for it, may have written over what we wrote.
        self.set_state(Closed);
        self.finish();
    }

    fn hotplug_changed(&mut self, hotplug: Hotplug) {
        let is_over = self.hotplug == Hotplug::Connected && hotplug == Hotplug::Pending;
        if is_over || self.hotplug == hotplug {
            // A script that is done is not run again, whoever removes its word.
            return;
        }
        self.hotplug = hotplug;
        match (&self.hotplug, &self.phase) {
            (Hotplug::Failed(reason), _) => {
                self.actions.push(Action::ReportError(reason.clone()));
                self.shut();
            }
            (_, Phase::Serving(_)) => self.connect(),
            // It was refused for the script's sake only.
            (_, Phase::Closed) if self.peer == Initialising => self.wait(),
            _ => {}
        }
    }

    fn start(&mut self, own: XenbusState, peer: XenbusState) {
        (self.own, self.peer) = (own, peer);
        if let Hotplug::Failed(reason) = &self.hotplug {
            self.actions.push(Action::ReportError(reason.clone()));
            return self.shut();
        }
        match own {
            _ if peer == Closing => self.close(),
            Connected if peer.has_keys() => self.read(Attachment::Reattach),
            InitWait => {
                self.wait();
                if peer.has_keys() {
                    self.read(Attachment::Fresh);
                }
            }
            // It is connected to a backend that is no longer there.
            _ if peer.has_keys() => self.close(),
            _ => self.wait(),
        }
        // What the frontend answers, or has answered, may be the offer of an earlier run.
        if self.phase != Phase::Waiting || own == InitWait {
            self.reoffer = Reoffer::IfRefused;
        }
    }

    fn frontend_state(&mut self, state: XenbusState) {
        let is_repeated = state == self.peer;
        self.peer = state;
        match (&self.phase, state) {
            _ if is_repeated => {}
            (Phase::Waiting, state) if state.has_keys() => self.read(Attachment::Fresh),
            // One that has gone may come back, and then the offer stands. To withdraw it would
            // cross with the frontend's coming back, again and again.
            (Phase::Waiting, state) if state == Initialising || state.is_gone() => {}
            // The frontend starts over, from whatever it was doing.
            (_, Initialising) => {
                self.detach();
                self.wait();
            }
            // It answers an offer that no longer stands.
            (Phase::Closed, state) if state.has_keys() => {
                self.reoffer = Reoffer::IfRefused;
                self.close();
            }
            (Phase::Closing | Phase::Closed, Closing) => {}
            (_, Closing) => self.close(),
            (Phase::Closed, _) => {}
            (_, state) if state.is_gone() => self.closed(),
            _ => {}
        }
    }

    fn frontend_keys(&mut self, keys: &Keys) {
        let Phase::Reading(attachment) = self.phase else { return };
        let state = keys.state();
        if state.has_keys() {
            self.peer = state;
            match FrontendConfig::read(keys, &self.offer) {
                Ok(config) => self.attach(config, attachment),
                Err(bad) => self.fail(&bad.to_string()),
            }
            return;
        }
        // It changed its mind since it said that it has keys. What counts is where it is now.
        match self.own {
            InitWait => self.phase = Phase::Waiting,
            _ => self.wait(),
        }
        self.frontend_state(state);
    }

    fn attach(&mut self, config: FrontendConfig, attachment: Attachment) {
        self.actions.push(Action::Attach(config.clone(), attachment));
        self.phase = Phase::Attaching(config);
    }

    fn attached(&mut self, outcome: Result<(), String>) {
        let Phase::Attaching(config) = &self.phase else { return };
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
                self.connect();
            }
            Err(reason) => {
                self.phase = Phase::Waiting;
                self.fail(&reason);
            }
        }
    }

    /// Says that the frontend is served, or waits for the script.
    fn connect(&mut self) {
        match self.hotplug {
            _ if self.own == Connected => {}
            Hotplug::Pending => self.actions.push(Action::AwaitHotplug),
            _ => self.set_state(Connected),
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
        if let Hotplug::Failed(_) = self.hotplug {
            // That has been reported, and a guest that tries again is no news.
            self.phase = Phase::Closed;
            if self.own != Closed {
                self.set_state(Closed);
            }
            return;
        }
        self.phase = Phase::Waiting;
        self.actions.push(Action::WriteKeys(self.offer.changes()));
        self.set_state(InitWait);
    }

    fn read(&mut self, attachment: Attachment) {
        self.phase = Phase::Reading(attachment);
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

    /// Lets go for good, as far as it is for us: without waiting for a frontend that may never have
    /// seen an offer.
    fn shut(&mut self) {
        self.detach();
        self.set_state(Closing);
        self.set_state(Closed);
        self.phase = Phase::Closed;
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
        if matches!(self.phase, Phase::Serving(_) | Phase::Attaching(_)) {
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
