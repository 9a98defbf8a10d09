//! The backend's end of a vif.

use std::time::{Duration, Instant};

use ringway_xenbus::backend::{Action, Attachment, Handshake, Input, NotAttached};
use ringway_xenbus::{
    FrontendConfig, Hotplug, KeySet, Keys, Offer, Offered, Reconnects, Vif, XenbusState,
};
use ringway_xenstore::{
    Client, Errno, Lost, RateLimit, Refusal, Transport, XsError, or_refusal, unless_refused,
};

use crate::Note;
use crate::device::{self, unknown_if_refused};
use crate::drive::{OnRefusal, Shell, drive};
use crate::waits::{EndWait, Refusals, Waits};

/// How often a guest's keys may be read in a burst, and the interval after that. Reading them and
/// attaching the queues that they name is most of the work that a guest can cause in a backend, so
/// a guest that reconnects or changes its headroom repeatedly must wait; a guest that is refused a
/// few times does not notice.
const READS_BURST: u32 = 10;
const READ_INTERVAL: Duration = Duration::from_millis(200);
/// How long no read may have been deferred before a guest counts as slow enough again: until it may
/// have a whole burst.
const READS_PAUSE: Duration = Duration::from_secs(2);
/// How long a guest waits that could not be attached because this host lacked a resource.
const RETRY_INTERVAL: Duration = Duration::from_secs(2);

/// What a backend's process does for one vif, apart from XenStore.
pub trait BackendProcess {
    /// Maps the frontend's rings, binds its event channels and begins to serve it.
    ///
    /// # Errors
    /// The reason why it cannot be served; nothing is then attached.
    fn attach(
        &mut self,
        config: &FrontendConfig,
        attachment: Attachment,
    ) -> Result<(), NotAttached>;

    /// Gives the attached frontend only the multicast frames that it orders, or all.
    fn filter_multicast(&mut self, is_requested: bool);

    /// Leaves as many bytes free before each frame for the attached frontend, from now on.
    fn set_headroom(&mut self, headroom: u16);

    /// Stops serving the frontend; unmaps and unbinds everything.
    fn detach(&mut self);

    /// Reports something for the log.
    fn note(&mut self, note: Note<'_>);
}

/// The backend's end of one vif: its handshake, and its state in XenStore.
///
/// The owner takes watch events from the store. Those whose tokens begin with that of the end
/// ([`token`](BackendEnd::token)) go to
/// [`frontend_changed`](BackendEnd::frontend_changed); when the toolstack has changed the backend's
/// directory, the owner reads it ([`KeySet::BackendDevice`]) for
/// [`device_changed`](BackendEnd::device_changed); and when something is
/// [`due`](BackendEnd::due), it calls [`resume`](BackendEnd::resume).
#[derive(Debug)]
pub struct BackendEnd {
    handshake: Handshake,
    offers_multicast_control: bool,
    rest: Rest,
}

/// Everything except the state machine, which drives it.
#[derive(Debug)]
struct Rest {
    vif: Vif,
    error: Option<String>,
    /// The last fault that was [shown](BackendEnd::show_fault), unless it is gone.
    fault: Option<String>,
    /// Whether there are error nodes, including those that a killed backend has left.
    has_error_nodes: bool,
    rate_limit: RateLimit,
    /// When keys of the frontend will be read, if scheduled, and which.
    read: Option<(Instant, KeySet)>,
    /// Whether reading is left to the owner, which may start other ends first.
    is_starting: bool,
    is_finished: bool,
    waits: Waits,
}

impl BackendEnd {
    /// An end that will make this offer, with the present state of the hotplug script.
    pub fn new(vif: Vif, offer: Offer, hotplug: Hotplug, now: Instant) -> BackendEnd {
        let rest = Rest {
            vif,
            error: None,
            fault: None,
            has_error_nodes: true,
            rate_limit: RateLimit::new(READS_BURST, READ_INTERVAL, now),
            read: None,
            is_starting: false,
            is_finished: false,
            waits: Waits::default(),
        };
        let offers_multicast_control = offer.multicast_control;
        BackendEnd { handshake: Handshake::new(offer, hotplug), offers_multicast_control, rest }
    }

    /// The vif.
    pub fn vif(&self) -> Vif {
        self.rest.vif
    }

    /// The token of the watch on the frontend's state, and the beginning of those of others. No
    /// other vif has it.
    pub fn token(&self) -> String {
        self.rest.vif.backend_dir()
    }

    /// The state that this end wrote last.
    pub fn state(&self) -> XenbusState {
        self.handshake.state()
    }

    /// What the frontend does when the vif is closed and offered again, as far as known.
    pub fn reconnects(&self) -> Reconnects {
        self.handshake.reconnects()
    }

    /// Why the vif is closed or its frontend is not served, if so.
    pub fn error(&self) -> Option<&str> {
        self.rest.error.as_deref()
    }

    /// What it waits for at this time besides its frontend, and since when.
    pub fn waits(&self, now: Instant) -> impl Iterator<Item = (EndWait, Instant)> {
        let Rest { waits, read, .. } = &self.rest;
        let waits = [
            (EndWait::Script, waits.script),
            (EndWait::Resources, waits.resources.filter(|_| read.is_some())),
            (EndWait::Keys, waits.keys(READS_PAUSE, now)),
        ];
        waits.into_iter().filter_map(|(wait, since)| Some((wait, since?)))
    }

    /// What XenStore has refused it, if that has happened.
    pub fn refusals(&self) -> Option<&Refusals> {
        self.rest.waits.refusals.as_ref()
    }

    /// Shows, in the nodes that tools read, why the network of a served vif does not work as it
    /// should, or that it does again.
    ///
    /// # Errors
    /// The loss of XenStore.
    pub fn show_fault<T: Transport>(
        &mut self,
        store: &mut Client<T>,
        fault: Option<String>,
    ) -> Result<(), Lost> {
        let rest = &mut self.rest;
        let before = std::mem::replace(&mut rest.fault, fault.clone());
        match fault {
            Some(fault) => unless_refused(rest.report(store, &fault), ()),
            // A later error stays.
            None if before.is_some() && rest.error == before => rest.clear_error(store),
            None => Ok(()),
        }
    }

    /// Whether the end is finished: the vif was removed, and this end can be dropped.
    pub fn is_finished(&self) -> bool {
        self.rest.is_finished
    }

    /// When to call [`resume`](BackendEnd::resume), if something was deferred.
    pub fn due(&self) -> Option<Instant> {
        self.rest.read.map(|(at, _)| at)
    }

    /// Watches the frontend and begins the handshake. `own` are the keys found in the backend's
    /// directory ([`KeySet::BackendDevice`]). If the frontend's keys are to be read, that is
    /// [due](BackendEnd::due) at once: an owner that starts several ends reads the keys of all
    /// together ([`wanted_keys`](BackendEnd::wanted_keys)).
    ///
    /// # Errors
    /// The loss of XenStore.
    pub fn start<T: Transport>(
        &mut self,
        store: &mut Client<T>,
        process: &mut impl BackendProcess,
        own: &Keys,
        now: Instant,
    ) -> Result<(), Lost> {
        let offered = Offered::read(own);
        let mut watches = vec![(self.rest.vif.frontend_state(), self.token())];
        if self.offers_multicast_control || offered.multicast_control {
            watches.push(self.rest.multicast_watch());
        }
        let dir = self.rest.vif.frontend_dir();
        let mut nodes = device::known_paths(&dir, KeySet::FrontendState);
        let of_keys = nodes.len();
        nodes.extend(self.rest.vif.backend_errors());
        let (watched, mut found) = store.watch_and_read(&watches, &nodes)?;
        let errors = found.split_off(of_keys);
        // A node that may not be read may be there.
        self.rest.has_error_nodes = errors.iter().any(|found| !matches!(found, Ok(None)));
        let mut refused = watched.into_iter().map(Result::err);
        if let Some(refusal) = refused.next().flatten() {
            // A driver domain has a quota.
            return self.feed(store, process, Input::Refused(refusal.to_string()), now);
        }
        if let Some(refusal) = refused.next().flatten() {
            // What the frontend requests when it connects counts.
            self.rest.waits.refuse(&refusal, now);
            process.note(Note::Refused(&refusal));
        }
        let read = device::known_keys(&dir, KeySet::FrontendState, found);
        let peer = unless_refused(read, None)?.unwrap_or_else(|| Keys::new(&dir, []));
        let start = Input::Start {
            own: own.state(),
            peer: peer.state(),
            offered,
            reconnects: Reconnects::read(&peer),
        };
        self.rest.is_starting = true;
        let started = self.feed(store, process, start, now);
        self.rest.is_starting = false;
        started
    }

    /// The frontend's keys that are to be read now, if any. The owner reads them at one moment, and
    /// calls [`found_keys`](BackendEnd::found_keys).
    pub fn wanted_keys(&mut self, now: Instant) -> Option<(String, KeySet)> {
        self.rest.wanted_keys(now)
    }

    /// Handles what was read of the keys that were [wanted](BackendEnd::wanted_keys).
    ///
    /// # Errors
    /// The loss of XenStore.
    pub fn found_keys<T: Transport>(
        &mut self,
        store: &mut Client<T>,
        process: &mut impl BackendProcess,
        read: Result<Option<Keys>, XsError>,
        now: Instant,
    ) -> Result<(), Lost> {
        match self.rest.found_keys(read, now)? {
            Some(keys) => self.feed(store, process, keys, now),
            None => Ok(()),
        }
    }

    /// Handles an event of a watch on the frontend: on its state, or on its request of multicast
    /// frames.
    ///
    /// # Errors
    /// The loss of XenStore.
    pub fn frontend_changed<T: Transport>(
        &mut self,
        store: &mut Client<T>,
        process: &mut impl BackendProcess,
        now: Instant,
    ) -> Result<(), Lost> {
        // The keys of a removed guest may not be readable: the guest counts as absent.
        let peer = unknown_if_refused(device::state(store, &self.rest.vif.frontend_state()))?;
        self.feed(store, process, Input::FrontendState(peer), now)?;
        if !self.handshake.may_request_multicast_control() {
            return Ok(());
        }
        //= netif.h:multicast-request
        let dir = self.rest.vif.frontend_dir();
        let read = device::read_keys_apart(store, &dir, KeySet::MulticastRequest);
        let keys = unless_refused(read, None)?;
        let is_requested = keys.and_then(|keys| keys.requests_multicast_control().ok());
        process.filter_multicast(is_requested.unwrap_or(false));
        Ok(())
    }

    /// Handles a change: the backend's directory has these keys now, or was removed.
    ///
    /// # Errors
    /// The loss of XenStore.
    pub fn device_changed<T: Transport>(
        &mut self,
        store: &mut Client<T>,
        process: &mut impl BackendProcess,
        keys: Option<&Keys>,
        now: Instant,
    ) -> Result<(), Lost> {
        let Some(keys) = keys else { return self.feed(store, process, Input::Gone, now) };
        if !keys.is_online() {
            return self.feed(store, process, Input::Offline, now);
        }
        let is_asked = keys.state() == XenbusState::Closing && self.state() != XenbusState::Closing;
        self.feed(store, process, Input::Hotplug(Hotplug::read(keys)), now)?;
        if is_asked {
            self.feed(store, process, Input::AskedToClose, now)?;
        }
        Ok(())
    }

    /// Does what was deferred, if its time has come.
    ///
    /// # Errors
    /// The loss of XenStore.
    pub fn resume<T: Transport>(
        &mut self,
        store: &mut Client<T>,
        process: &mut impl BackendProcess,
        now: Instant,
    ) -> Result<(), Lost> {
        match self.rest.read_frontend(store, now)? {
            Some(keys) => self.feed(store, process, keys, now),
            None => Ok(()),
        }
    }

    /// Runs the handshake until it waits for an external event.
    ///
    /// # Errors
    /// The loss of XenStore.
    pub fn feed<T: Transport>(
        &mut self,
        store: &mut Client<T>,
        process: &mut impl BackendProcess,
        input: Input,
        now: Instant,
    ) -> Result<(), Lost> {
        let BackendEnd { handshake, rest, .. } = self;
        drive(handshake, &mut Acting { rest, store, process, now }, input)
    }
}

impl Rest {
    /// Reads the frontend's keys, if that is due.
    fn read_frontend<T: Transport>(
        &mut self,
        store: &mut Client<T>,
        now: Instant,
    ) -> Result<Option<Input>, Lost> {
        let Some((dir, set)) = self.wanted_keys(now) else { return Ok(None) };
        let read = device::read_keys_once(store, &dir, set);
        self.found_keys(read, now)
    }

    /// What is to be read now, unless it has been read too often; then the read is deferred.
    fn wanted_keys(&mut self, now: Instant) -> Option<(String, KeySet)> {
        let (_, set) = self.read.filter(|(at, _)| *at <= now)?;
        if let Err(later) = self.rate_limit.take(now) {
            self.waits.defer(READS_PAUSE, now);
            self.read = Some((later, set));
            return None;
        }
        Some((self.vif.frontend_dir(), set))
    }

    /// What follows from keys that were read. If the guest was changing them, they are read again
    /// later.
    fn found_keys(
        &mut self,
        read: Result<Option<Keys>, XsError>,
        now: Instant,
    ) -> Result<Option<Input>, Lost> {
        let Some((_, set)) = self.read.take() else { return Ok(None) };
        match or_refusal(read)? {
            Err(refusal) if refusal.is(Errno::Again) => {
                self.read = Some((now + READ_INTERVAL, set));
                Ok(None)
            }
            // Keys that may not be read count as absent.
            read => {
                let dir = self.vif.frontend_dir();
                let keys = read.unwrap_or(None).unwrap_or_else(|| Keys::new(&dir, []));
                Ok(Some(match set {
                    KeySet::Headroom => Input::Headroom(keys),
                    _ => Input::FrontendKeys(keys),
                }))
            }
        }
    }

    /// Writes why the vif is closed to the nodes that tools read.
    fn report<T: Transport>(&mut self, store: &mut Client<T>, reason: &str) -> Result<(), XsError> {
        self.error = Some(reason.to_owned());
        self.has_error_nodes = true;
        let [for_tools, beside_keys] = self.vif.backend_errors();
        let state = self.vif.backend_state();
        store.transaction(|tx| {
            tx.write(&for_tools, reason)?;
            match tx.read_bytes(&state)? {
                Some(_) => tx.write(&beside_keys, reason),
                None => Ok(()),
            }
        })
    }

    fn clear_error<T: Transport>(&mut self, store: &mut Client<T>) -> Result<(), Lost> {
        (self.error, self.waits.resources) = (None, None);
        if std::mem::replace(&mut self.has_error_nodes, false) {
            for node in self.vif.backend_errors() {
                unless_refused(store.remove(&node), ())?;
            }
        }
        Ok(())
    }

    /// The node by which the frontend requests multicast control, and the token of its watch: a
    /// token has one node.
    fn multicast_watch(&self) -> (String, String) {
        let dir = self.vif.backend_dir();
        (self.vif.multicast_request(), format!("{dir}/frontend-multicast"))
    }

    /// This backend no longer serves the vif.
    fn finish<T: Transport>(&mut self, store: &mut Client<T>) -> Result<(), Lost> {
        self.is_finished = true;
        self.read = None;
        let (node, token) = (self.vif.frontend_state(), self.vif.backend_dir());
        for (node, token) in [(node, token), self.multicast_watch()] {
            unless_refused(store.unwatch(&node, &token), ())?;
        }
        // A driver domain has no such node and no right to create one.
        device::remove_error(store, self.vif)
    }
}

/// Carries out a handshake's actions.
struct Acting<'a, T, P> {
    rest: &'a mut Rest,
    store: &'a mut Client<T>,
    process: &'a mut P,
    now: Instant,
}

impl<T: Transport, P: BackendProcess> Shell<Handshake> for Acting<'_, T, P> {
    fn act(&mut self, action: Action) -> Result<Option<Input>, XsError> {
        let Acting { rest, store, process, now } = self;
        match action {
            Action::Write(changes, state) => {
                if let Some(state) = state {
                    rest.waits.script = None;
                    process.note(Note::State(state));
                }
                device::write(store, &rest.vif.backend_dir(), &changes, state)?;
            }
            Action::ReadFrontend { queues_max } => {
                rest.read = Some((*now, KeySet::FrontendKeys { queues_max }));
                if !rest.is_starting {
                    return Ok(rest.read_frontend(store, *now)?);
                }
            }
            Action::ReadHeadroom => {
                rest.read = Some((*now, KeySet::Headroom));
                return Ok(rest.read_frontend(store, *now)?);
            }
            Action::SetHeadroom(headroom) => process.set_headroom(headroom),
            Action::Retry { reason, queues_max } => {
                // Report it once, however often it is retried.
                if rest.error.as_deref() != Some(reason.as_str()) {
                    rest.waits.resources = Some(*now);
                    process.note(Note::Waits(&reason));
                    rest.report(store, &reason)?;
                }
                rest.read = Some((*now + RETRY_INTERVAL, KeySet::FrontendKeys { queues_max }));
            }
            Action::Attach(config, attachment) => {
                return Ok(Some(Input::Attached(process.attach(&config, attachment))));
            }
            Action::Detach => process.detach(),
            Action::AwaitHotplug => {
                rest.waits.script = Some(*now);
                process.note(Note::AwaitsHotplug);
            }
            Action::ReportError(reason) => {
                rest.waits.resources = None;
                process.note(Note::Closed(&reason));
                rest.report(store, &reason)?;
            }
            Action::ClearError => rest.clear_error(store)?,
            Action::Finished => rest.finish(store)?,
        }
        Ok(None)
    }

    /// A driver domain may lack rights or quota. Its guests are served as far as possible.
    fn refused(&mut self, refusal: &Refusal) -> OnRefusal<Input> {
        self.rest.waits.refuse(refusal, self.now);
        self.process.note(Note::Refused(refusal));
        OnRefusal::GoOn
    }

    fn is_local(_action: &Action) -> bool {
        true
    }
}
