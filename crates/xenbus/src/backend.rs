//! The backend's side of the handshake.
//!
//! When a frontend leaves, it goes through `Closing` and `Closed`, and the backend follows. When it
//! starts over at `Initialising`, the backend offers the vif again. A frontend that was refused
//! must start over by itself; otherwise it would be refused forever.
//!
//! A frontend that does not return by itself, such as Linux's, would lose the vif for good if the
//! backend closed it. So the backend serves it with what it has: after a restart with as many
//! queues as the earlier run offered, and with its queues even if the limit changes while it is
//! connected. The newest limit applies to its next connection. If the host lacks the resources to
//! attach its rings, the backend does not close the vif but tries again after a while; a few times
//! also if rings that were attached before are refused now.
//!
//! If the toolstack has a hotplug script for the vif's network device, the backend serves the
//! frontend at once, and reports it as connected when the script is done.
//!
//! A frontend that is served may ask for other headroom (`headroom.rs`): it keeps its rings.

use alloc::borrow::ToOwned;
use alloc::string::{String, ToString};
use alloc::vec::Vec;

use crate::config::{FrontendConfig, Offer, Offered, Reconnects};
use crate::features::Features;
use crate::hotplug::Hotplug;
use crate::keys::{HOTPLUG_STATUS, KeyChange, Keys};
use crate::state::XenbusState::{
    self, Closed, Closing, Connected, InitWait, Initialising, Reconfigured, Reconfiguring,
};

mod headroom;
mod offer;

use headroom::BadHeadroom;

/// An event for the backend.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// The backend begins to serve the vif, possibly after a restart.
    Start {
        /// The backend's state as found in XenStore.
        own: XenbusState,
        /// The frontend's state as found in XenStore.
        peer: XenbusState,
        /// What an earlier run offered, as found in XenStore.
        offered: Offered,
        /// What the frontend does when it is offered the vif again, according to its keys.
        reconnects: Reconnects,
    },
    /// Instead of `Start`: this host cannot serve the toolstack's vif, for this reason. The vif
    /// stays closed until the toolstack removes it.
    Refused(String),
    /// The frontend's state may have changed.
    FrontendState(XenbusState),
    /// The result of [`Action::ReadFrontend`].
    FrontendKeys(Keys),
    /// The result of [`Action::ReadHeadroom`].
    Headroom(Keys),
    /// The result of [`Action::Attach`]. After an error nothing is attached.
    Attached(Result<(), NotAttached>),
    /// The frontend broke the ring protocol.
    PeerFault(String),
    /// Offer another number of queues from the next connection on.
    OfferChanged {
        /// The most queues that a frontend may request; at least 1.
        queues_max: u16,
        /// When the frontend is to reconnect.
        reconnect: Reconnect,
    },
    /// Offer other offloads from the next connection on. Whatever was offered before, what the
    /// frontend leaves to the backend has to be served.
    FeaturesChanged(Features),
    /// The status of the toolstack's hotplug script may have changed.
    Hotplug(Hotplug),
    /// The toolstack wrote `Closing` to the backend's own state, and still wants the vif. The state
    /// stays until the frontend follows, if it has started.
    AskedToClose,
    /// The toolstack wants to remove the vif (`online` is 0). It waits for `Closed`, so the backend
    /// does not wait for a frontend that may be dead.
    Offline,
    /// The backend's own directory was removed.
    Gone,
}

/// The actions for the shell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Change keys in the backend's directory and then its state, if there is one, in one
    /// transaction: no one sees the one without the other, however slow this end is.
    Write(Vec<KeyChange>, Option<XenbusState>),
    /// Read the frontend's directory ([`KeySet::FrontendKeys`](crate::KeySet::FrontendKeys)) and
    /// respond with [`Input::FrontendKeys`].
    ReadFrontend {
        /// The most queues that the frontend may have.
        queues_max: u16,
    },
    /// Read the frontend's state and headroom ([`KeySet::Headroom`](crate::KeySet::Headroom)) and
    /// respond with [`Input::Headroom`].
    ReadHeadroom,
    /// Leave as many bytes free before each frame for the frontend, which is served, from now on.
    SetHeadroom(u16),
    /// The frontend cannot be served at the moment: write this to the error nodes, and read its
    /// directory again after a while, as by [`ReadFrontend`](Action::ReadFrontend).
    Retry {
        /// Why.
        reason: String,
        /// The most queues that the frontend may have.
        queues_max: u16,
    },
    /// Map the rings, bind the event channels, and respond with [`Input::Attached`].
    Attach(FrontendConfig, Attachment),
    /// Unmap and unbind everything.
    Detach,
    /// The frontend is served; it counts as connected when the hotplug script is done: log that.
    AwaitHotplug,
    /// Write this to the error nodes.
    ReportError(String),
    /// Remove the error nodes.
    ClearError,
    /// Nothing is left to do: drop the handshake.
    Finished,
}

/// Why attaching rings failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotAttached {
    /// The frontend named invalid rings or event channels.
    Refused(String),
    /// This host lacks memory, descriptors or event channels, possibly only for now.
    NoResources(String),
}

/// When a frontend connects with another number of queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reconnect {
    /// At once, if it reconnects by itself. Others stay connected.
    Now,
    /// When it reconnects for another reason.
    Later,
}

/// Whether the rings are new.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attachment {
    /// The frontend has just created them.
    Fresh,
    /// They were in use before this backend started; the frontend does not know of the restart.
    Reattach,
}

/// How often rings that were attached before may be refused before the vif is closed.
const REFUSALS_MAX: u8 = 5;

/// The state machine.
#[derive(Debug, Clone)]
pub struct Handshake {
    offer: Offer,
    /// The most queues of all offers that the frontend's next keys may refer to.
    accepted_max: u16,
    /// What an earlier run offered.
    offered: Offered,
    /// Whether the offer that the frontend sees has a control ring, the choice of multicast frames
    /// and headroom. One that an earlier run made stays as it was: the frontend may have read it,
    /// and its keys do not say which it read.
    control_ring: bool,
    multicast_control: bool,
    xdp_headroom: bool,
    hotplug: Hotplug,
    phase: Phase,
    own: XenbusState,
    peer: XenbusState,
    reoffer: Reoffer,
    reconnects: Reconnects,
    /// Whether the frontend, or this end before a restart, has changed headroom since it connected:
    /// it may do so again, and be back in its state, before this end sees that.
    has_reconfigured: bool,
    bad_headroom: BadHeadroom,
    /// How often rings of an earlier run were refused.
    refused_count: u8,
    actions: Vec<Action>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Phase {
    /// Before the start.
    Idle,
    /// The offer is written; the frontend has not responded yet.
    Waiting,
    /// The frontend's keys are being read.
    Reading(Attachment),
    /// The rings are being attached.
    Attaching(FrontendConfig, Attachment),
    /// The rings are attached.
    Serving(FrontendConfig),
    /// Nothing is attached; the frontend has not closed yet.
    Closing,
    /// Both ends are closed.
    Closed,
    /// Nothing can be served, whatever the frontend does.
    Refused,
    Finished,
}

/// Whether a frontend that has closed, and [returns](Returns) by itself, is offered the vif again
/// without a request. A refused one is not: it would be refused endlessly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reoffer {
    No,
    /// Its keys may refer to an older offer, which may be the reason for a refusal.
    IfRefused,
    /// It cannot have seen the newest offer, so it must reconnect in any case.
    Always,
}

impl Handshake {
    /// A backend with this offer, and the current status of the hotplug script. Feed it
    /// [`Input::Start`].
    pub fn new(offer: Offer, hotplug: Hotplug) -> Handshake {
        let queues_max = offer.queues_max.max(1);
        Handshake {
            offer: Offer { queues_max, ..offer },
            accepted_max: queues_max,
            offered: Offered::default(),
            control_ring: offer.control_ring,
            multicast_control: offer.multicast_control,
            xdp_headroom: offer.xdp_headroom,
            hotplug,
            phase: Phase::Idle,
            own: XenbusState::Unknown,
            peer: XenbusState::Unknown,
            reoffer: Reoffer::No,
            reconnects: Reconnects::Never,
            has_reconfigured: false,
            bad_headroom: BadHeadroom::default(),
            refused_count: 0,
            actions: Vec::new(),
        }
    }

    /// The state that this end has written.
    pub fn state(&self) -> XenbusState {
        self.own
    }

    /// What the frontend does when the vif is closed and offered again, as far as it is known.
    pub fn reconnects(&self) -> Reconnects {
        self.reconnects
    }

    /// The configuration of a frontend that is being served.
    pub fn config(&self) -> Option<&FrontendConfig> {
        match &self.phase {
            Phase::Serving(config) => Some(config),
            _ => None,
        }
    }

    /// Whether a frontend is served that may request multicast control, or no more, at any time.
    pub fn may_request_multicast_control(&self) -> bool {
        self.config().is_some() && self.multicast_control
    }

    /// Handles an input and returns the actions to carry out, in order.
    #[must_use]
    pub fn handle(&mut self, input: Input) -> Vec<Action> {
        match (input, &self.phase) {
            (_, Phase::Finished) => {}
            (Input::Start { own, peer, offered, reconnects }, Phase::Idle) => {
                (self.own, self.peer, self.reconnects) = (own, peer, reconnects);
                self.offered = offered;
                if offered.queues_max.is_some() {
                    self.control_ring = offered.control_ring;
                    self.multicast_control = offered.multicast_control;
                    self.xdp_headroom = offered.xdp_headroom;
                }
                self.has_reconfigured = own == Reconfigured;
                self.start();
            }
            (Input::Refused(reason), Phase::Idle) => self.refuse(reason),
            (Input::Offline, _) => self.offline(),
            (Input::Gone, _) => {
                // A write would create the directory again.
                self.detach();
                self.finish();
            }
            (_, Phase::Idle | Phase::Refused) | (Input::Start { .. } | Input::Refused(_), _) => {}
            (Input::Hotplug(hotplug), _) => self.hotplug_changed(hotplug),
            (Input::AskedToClose, _) => self.close(),
            (Input::FrontendState(state), _) => self.frontend_state(state),
            (Input::FrontendKeys(keys), _) => self.frontend_keys(&keys),
            (Input::Headroom(keys), _) => self.headroom_read(&keys),
            (Input::Attached(outcome), _) => self.attached(outcome),
            (Input::PeerFault(fault), Phase::Serving(_)) => self.fail(&fault),
            // The fault concerns rings that are no longer attached.
            (Input::PeerFault(_), _) => {}
            (Input::OfferChanged { queues_max, reconnect }, _) => {
                self.offer_changed(queues_max, reconnect);
            }
            (Input::FeaturesChanged(features), _) => self.features_changed(features),
        }
        core::mem::take(&mut self.actions)
    }

    fn refuse(&mut self, reason: String) {
        self.actions.push(Action::ReportError(reason));
        self.set_state(Closing);
        self.set_state(Closed);
        self.phase = Phase::Refused;
    }

    fn offline(&mut self) {
        self.detach();
        if self.own != Closed {
            self.set_state(Closing);
        }
        let mut changes = Vec::new();
        if self.hotplug != Hotplug::Absent {
            // The device is removed, too, and the script must run for the next one.
            changes.push(KeyChange::Remove(HOTPLUG_STATUS.to_owned()));
        }
        // In any case: the toolstack, which waits for this state, may have overwritten ours.
        self.set_state_with(changes, Closed);
        self.finish();
    }

    fn hotplug_changed(&mut self, hotplug: Hotplug) {
        let is_over = self.hotplug == Hotplug::Connected && hotplug == Hotplug::Pending;
        if is_over || self.hotplug == hotplug {
            // A script that is done does not run again, even if its status is removed.
            return;
        }
        self.hotplug = hotplug;
        match (&self.hotplug, &self.phase) {
            (Hotplug::Failed(reason), _) => {
                self.actions.push(Action::ReportError(reason.clone()));
                self.detach_for_good();
            }
            (_, Phase::Serving(_)) => self.connect_and_check(),
            // The script was the only reason for the refusal.
            (_, Phase::Closed) if self.peer == Initialising => self.make_offer(),
            _ => {}
        }
    }

    fn has_script_failed(&self) -> bool {
        matches!(self.hotplug, Hotplug::Failed(_))
    }

    fn start(&mut self) {
        let (own, peer) = (self.own, self.peer);
        // The frontend's keys may refer to the offer of an earlier run.
        let accepted_max = self.offer.queues_max.max(self.offered.queues_max.unwrap_or(1));
        self.accepted_max = accepted_max;
        if let Hotplug::Failed(reason) = &self.hotplug {
            self.actions.push(Action::ReportError(reason.clone()));
            return self.detach_for_good();
        }
        match own {
            _ if peer == Closing => self.close(),
            Connected | Reconfigured if peer.has_keys() => self.read(Attachment::Reattach),
            // Mini-OS does not wait for an offer, and gives up when the backend closes.
            Initialising | InitWait => {
                self.offer_up_to(accepted_max);
                if peer.has_keys() {
                    self.read(Attachment::Fresh);
                }
            }
            // It is connected to a backend that no longer exists.
            _ if peer.has_keys() => self.close(),
            // It may wait for this end to close, as Linux's frontend does before it starts over.
            Connected | Reconfigured | Closing | Closed
                if peer == Closed && self.reconnects == Reconnects::Never =>
            {
                self.set_state(Closed);
                self.phase = Phase::Closed;
            }
            _ => self.make_offer(),
        }
        if self.phase != Phase::Waiting || own == InitWait {
            self.reoffer = Reoffer::IfRefused;
        }
    }

    fn frontend_state(&mut self, state: XenbusState) {
        let is_repeated = state == self.peer;
        self.peer = state;
        self.has_reconfigured |= state == Reconfiguring;
        match (&self.phase, state) {
            (Phase::Serving(_), Connected) if self.has_reconfigured => self.read_headroom(),
            _ if is_repeated => {}
            (Phase::Serving(_), Reconfiguring) => self.read_headroom(),
            (Phase::Waiting, state) if state.has_keys() => self.read(Attachment::Fresh),
            // A frontend that has closed may return, and then the offer is still valid. Withdrawing
            // it would race with the frontend's return, again and again.
            (Phase::Waiting, state) if state == Initialising || state.is_gone() => {}
            // The frontend starts over, whatever its state was.
            (_, Initialising) => {
                self.detach();
                self.make_offer();
            }
            // Its keys refer to an offer that is no longer valid. If the script has failed, no
            // offer follows, so there is nothing to wait for: it sees that this end has closed.
            (Phase::Closed, state) if state.has_keys() && !self.has_script_failed() => {
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
            self.has_reconfigured |= state == Reconfiguring;
            self.reconnects = Reconnects::read(keys);
            match FrontendConfig::read(keys, &self.accepted_offer(attachment)) {
                Ok(config) => {
                    let headroom = self.headroom_of(keys, 0);
                    self.attach(FrontendConfig { headroom, ..config }, attachment);
                }
                Err(bad) => self.fail(&bad.to_string()),
            }
            return;
        }
        // It has changed its state since it announced its keys. Only the current state counts.
        match self.own {
            InitWait => self.phase = Phase::Waiting,
            // It may wait for this end to close, as at the start.
            _ if state.is_gone() => {
                self.peer = state;
                return self.closed();
            }
            _ => self.make_offer(),
        }
        self.frontend_state(state);
    }

    fn attach(&mut self, config: FrontendConfig, attachment: Attachment) {
        self.actions.push(Action::Attach(config.clone(), attachment));
        self.phase = Phase::Attaching(config, attachment);
    }

    fn attached(&mut self, outcome: Result<(), NotAttached>) {
        let Phase::Attaching(config, attachment) = &self.phase else { return };
        let (config, attachment) = (config.clone(), *attachment);
        match outcome {
            Ok(()) => {
                self.phase = Phase::Serving(config);
                let must_reconnect = self.reoffer == Reoffer::Always;
                if must_reconnect && self.reconnects == Reconnects::Automatically {
                    self.close();
                    return;
                }
                self.reoffer = Reoffer::No;
                self.actions.push(Action::ClearError);
                self.report_bad_headroom();
                self.connect_and_check();
            }
            Err(NotAttached::NoResources(reason)) => self.retry(reason, attachment),
            // The hypervisor does not report which side is at fault. The rings worked before, and a
            // frontend that does not return would be lost.
            Err(NotAttached::Refused(reason))
                if attachment == Attachment::Reattach
                    && self.reconnects == Reconnects::Never
                    && self.refused_count < REFUSALS_MAX =>
            {
                self.refused_count += 1;
                self.retry(reason, attachment);
            }
            Err(NotAttached::Refused(reason)) => {
                self.phase = Phase::Waiting;
                self.fail(&reason);
            }
        }
    }

    fn retry(&mut self, reason: String, attachment: Attachment) {
        self.phase = Phase::Reading(attachment);
        self.actions.push(Action::Retry { reason, queues_max: self.accepted_max });
    }

    /// Connects, and reads what headroom the frontend wants then if that may be changing.
    fn connect_and_check(&mut self) {
        self.connect();
        if self.has_reconfigured {
            self.read_headroom();
        }
    }

    /// Reports that the frontend is served, or waits for the script.
    fn connect(&mut self) {
        match self.hotplug {
            // A frontend that changes something waits for the state that it has, or is to have.
            _ if self.own == Connected || self.peer == Reconfiguring => {}
            Hotplug::Pending => self.actions.push(Action::AwaitHotplug),
            _ => self.set_state(Connected),
        }
    }

    fn read(&mut self, attachment: Attachment) {
        self.phase = Phase::Reading(attachment);
        self.actions.push(Action::ReadFrontend { queues_max: self.accepted_max });
    }

    fn fail(&mut self, reason: &str) {
        self.actions.push(Action::ReportError(reason.to_owned()));
        self.close();
    }

    /// Detaches, and waits for the frontend to close as well.
    fn close(&mut self) {
        self.detach();
        self.set_state(Closing);
        self.phase = Phase::Closing;
        if self.peer.is_gone() {
            self.closed();
        }
    }

    /// Detaches for good, without waiting for a frontend that may never have seen an offer.
    fn detach_for_good(&mut self) {
        self.detach();
        self.set_state(Closing);
        self.set_state(Closed);
        self.phase = Phase::Closed;
    }

    /// The frontend has closed as well.
    fn closed(&mut self) {
        self.detach();
        self.set_state(Closed);
        self.phase = Phase::Closed;
        if self.reoffer != Reoffer::No && self.reconnects == Reconnects::Automatically {
            self.make_offer();
        }
    }

    fn detach(&mut self) {
        (self.has_reconfigured, self.bad_headroom) = (false, BadHeadroom::default());
        if matches!(self.phase, Phase::Serving(_) | Phase::Attaching(..)) {
            self.actions.push(Action::Detach);
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
