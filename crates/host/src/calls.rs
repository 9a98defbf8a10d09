//! The calls of administrators: what each changes, and the reply to it.

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use ringway_calls::{BackendRequest, BackendStatus, NOT_QUARANTINED, Reconnect, listed};
use ringway_datapath::{Mirrored, PortRules};
use ringway_engine::steps::{self, Command, Engines as _, Stall};
use ringway_engine::{Capture, SlotId};
use ringway_vif_shell::device;
use ringway_xenbus::backend::{self, Input};
use ringway_xenbus::limits::Scope as LimitScope;
use ringway_xenbus::{
    BadKeys, KeyChange, Keys, LIMITS, Limit, MAX_QUEUES_KEY, RULES, Reconnects, Rule, Vif,
    VifLimits,
};
use ringway_xenstore::{Lost, or_refusal};

use crate::host::Host;
use crate::mirrors::{refuse_mirror, refuse_ports};
use crate::pairs::itself;
use crate::scope::Scope;
use crate::session::{Session as _, SessionPlace};
use crate::vif_state::VifState;
use crate::virtio::VirtioVif;
use crate::world::{Parts, QueueOf, World};
use crate::xen::XenVif;

/// The name of a mirror's setting.
const MIRROR: &str = "mirror";
/// The rules that the uplink has as a vif has them.
const RULES_OF_UPLINK: [&str; 3] = ["vlan", "trunk", "multicast-router"];

/// The reply to a call.
#[derive(Debug)]
pub enum CallReply {
    /// It is done.
    Done,
    /// All that this host knows.
    Status(Box<BackendStatus>),
    /// A capture has begun, of the vif with this name, and with the most bytes of each frame.
    Capture(Arc<Capture>, String, u32),
}

/// Why a call has no effect.
#[derive(Debug, thiserror::Error)]
pub enum NotDone {
    /// It was refused, for this reason.
    #[error("{0}")]
    Refused(String),
    /// XenStore is lost, and this process with it.
    #[error(transparent)]
    Lost(#[from] Lost),
}

impl From<String> for NotDone {
    fn from(reason: String) -> NotDone {
        NotDone::Refused(reason)
    }
}

/// A vif that a call names.
enum Named {
    Xen(Vif),
    /// By its index.
    Virtio(usize),
}

/// What the reply to a call is made from.
struct Caller<'a, 'b, W: World> {
    host: &'a mut Host<W>,
    wall: SystemTime,
    now: Instant,
    parts: &'a mut Parts<'b, W>,
}

impl<W: World> Host<W> {
    /// Carries out a call, at this time of the wall clock. Calls of tests, which disturb engines,
    /// are included.
    ///
    /// # Errors
    /// Why it has no effect.
    pub fn call(
        &mut self,
        request: &BackendRequest,
        wall: SystemTime,
        now: Instant,
        parts: &mut Parts<'_, W>,
    ) -> Result<CallReply, NotDone> {
        let mut caller = Caller { host: self, wall, now, parts };
        let done = match request {
            BackendRequest::Status => {
                let status = caller.host.status(now, caller.parts)?;
                return Ok(CallReply::Status(Box::new(status)));
            }
            BackendRequest::Capture { vif, snap_len } => return caller.capture(vif, *snap_len),
            BackendRequest::SetMaxQueues { vif, max_queues, reconnect } => {
                caller.set_max_queues(vif, *max_queues, *reconnect)
            }
            BackendRequest::SetLimit { vif, limit, value } => caller.set_limit(vif, limit, value),
            BackendRequest::Release { vif } => caller.release(vif),
            BackendRequest::Panic { vif } => caller.disturb(vif, |id| Command::Panic { id }),
            BackendRequest::Stall { vif, asleep } => {
                let stall = if *asleep { Stall::Sleep } else { Stall::Loop };
                caller.disturb(vif, |id| Command::Stall { id, stall })
            }
        };
        done.map(|()| CallReply::Done)
    }
}

impl<W: World> Caller<'_, '_, W> {
    /// Also writes the key, so the setting lasts as long as the vif, whichever process serves it.
    fn set_max_queues(
        &mut self,
        name: &str,
        queues_max: u16,
        reconnect: Reconnect,
    ) -> Result<(), NotDone> {
        if queues_max == 0 {
            return Err("max-queues is 0, expected 1 or more".to_owned().into());
        }
        if self.host.uplink_name() == Some(name) {
            return Err(refuse_queues_of_uplink(name).into());
        }
        let vif = match self.find(name)? {
            Named::Xen(vif) => vif,
            Named::Virtio(index) => return Err(self.host.virtio[index].refuse_queues().into()),
        };
        let refusal = self.host.vif(vif).and_then(|it| it.refuse_queues(queues_max, reconnect));
        refusal.map_or(Ok(()), Err)?;
        let key = KeyChange::Set(MAX_QUEUES_KEY.to_owned(), queues_max.to_string());
        self.write_keys(vif, &[key])?;
        if let Some(xen) = self.host.vifs.get_mut(&vif) {
            xen.has_own_queues = true;
            xen.state.offer.queues_max = queues_max;
        }
        let reconnect = match reconnect {
            Reconnect::Now => backend::Reconnect::Now,
            Reconnect::Later => backend::Reconnect::Later,
        };
        let offer = Input::OfferChanged { queues_max, reconnect };
        Ok(self.host.feed(vif, offer, self.now, self.parts)?)
    }

    /// Sets a limit or a rule. Of a vif of Xen it writes the key, which we watch, so the value
    /// lasts as long as the vif, whichever process serves it.
    fn set_limit(&mut self, name: &str, limit: &str, value: &str) -> Result<(), NotDone> {
        if self.host.uplink_name() == Some(name) {
            return Err(refuse_of_uplink(name, limit, "reload that (SIGHUP)").into());
        }
        let named = self.find(name)?;
        let (key, changes) = match (Rule::named(limit), &named) {
            (Some(rule), named) => {
                self.refuse_rule(name, rule, named, value).map_or(Ok(()), Err)?;
                (rule.key, rule.changes(value))
            }
            (None, _) => {
                self.refuse_flood_limit(name, limit).map_or(Ok(()), Err)?;
                let key = limit_key(limit, value)?;
                (key, vec![KeyChange::Set(key.to_owned(), value.to_owned())])
            }
        };
        match named {
            Named::Xen(vif) => self.write_keys(vif, &changes),
            Named::Virtio(index) => {
                let hosting = &mut self.parts.split(&mut self.host.shared, self.now).1;
                Ok(self.host.virtio[index].set(key, value, hosting)?)
            }
        }
    }

    /// Why a rule cannot have this value, or not for this vif.
    fn refuse_rule(&self, name: &str, rule: &Rule, vif: &Named, value: &str) -> Option<String> {
        let keys = Keys::new("", [(rule.key.to_owned(), value.to_owned())]);
        let rules = match keys.rules() {
            Ok(rules) => rules,
            Err(bad) => return Some(refusal_of(rule.name, bad)),
        };
        let is_for_switch = rule.is_of_switch && rules != PortRules::default();
        let bridge = self.state(name).and_then(VifState::bridge).filter(|_| is_for_switch);
        if let Some(bridge) = bridge {
            return Some(format!("{name} is on the bridge {bridge}: expected a vif on the switch"));
        }
        if rule.name == MIRROR {
            return self.refuse_mirror(name, &rules.mirror);
        }
        // Another may follow, as its partner does.
        if rules.link_local_to.as_deref() == Some(name) {
            return Some(itself(name));
        }
        // The switch process has the rules of a tenant from its description, or from XenStore.
        let (Named::Virtio(index), Scope::Only(_)) = (vif, &self.host.scope) else { return None };
        let remedy = match self.host.virtio[*index].is_added() {
            true => "remove it, and add it again with that".to_owned(),
            false => {
                format!("change {} in the description, and have the host read it again", rule.name)
            }
        };
        Some(format!("{name} is served by the process of its tenant: {remedy}"))
    }

    /// Why a limit of floods would have no effect: it is the switch's, and a bridge has none.
    fn refuse_flood_limit(&self, name: &str, limit: &str) -> Option<String> {
        Limit::named(limit).filter(|limit| limit.is_of(LimitScope::Switch))?;
        let bridge = self.state(name)?.bridge()?;
        Some(format!(
            "{name} is on the bridge {bridge}, which floods its frames itself: expected a vif on \
             the switch, or the limit `rate`"
        ))
    }

    /// Why this vif cannot be the output of a mirror that a user requests.
    fn refuse_mirror(&self, name: &str, mirror: &[Mirrored]) -> Option<String> {
        refuse_ports(self.host.states(), self.host.uplink_name(), mirror)
            .or_else(|| refuse_mirror(self.host.states(), name, mirror))
    }

    fn release(&mut self, name: &str) -> Result<(), NotDone> {
        let was_any = match self.find(name)? {
            Named::Xen(vif) => self.host.release(vif, self.parts.notes),
            Named::Virtio(index) => {
                let (vif, shared) = (&mut self.host.virtio[index], &mut self.host.shared);
                let was_any = shared.quarantine.release(&vif.state.charged, self.parts.notes);
                vif.check_quarantine(shared);
                was_any
            }
        };
        let reason = || format!("{name} {NOT_QUARANTINED}");
        if was_any { Ok(()) } else { Err(reason().into()) }
    }

    /// Disturbs the engine of a vif's first queue: for tests of the consequences of a defect.
    fn disturb(
        &mut self,
        name: &str,
        command: impl FnOnce(SlotId) -> Command<QueueOf<W>>,
    ) -> Result<(), NotDone> {
        let connection = self.state(name).and_then(|state| state.connection.as_ref());
        let port = connection.ok_or_else(|| self.no_such_vif(name))?.port;
        let roster = self.parts.engines.roster().ok();
        let first = roster.and_then(|roster| Some(roster.queue(port, 0)?.address.clone()));
        if let Some(first) = first {
            let _: Result<(), _> = self.parts.engines.command(first.engine, command(first.slot));
        }
        Ok(())
    }

    fn capture(&mut self, name: &str, snap_len: u32) -> Result<CallReply, NotDone> {
        let state = self.state(name).ok_or_else(|| self.no_such_vif(name))?;
        let port = state.connection.as_ref().map(|connection| connection.port);
        let snap = usize::try_from(snap_len).unwrap_or(usize::MAX);
        let capture = Arc::new(Capture::new(snap, (self.now, self.wall)));
        let copy = |id| Command::Capture { id, capture: Arc::clone(&capture) };
        let begin = |port| steps::command_port(self.parts.engines, port, copy).unwrap_or(false);
        if !port.is_some_and(begin) {
            return Err(format!("{name} is not connected, so it has no frames").into());
        }
        Ok(CallReply::Capture(capture, name.to_owned(), snap_len))
    }

    fn find(&self, name: &str) -> Result<Named, String> {
        let virtio = self.host.virtio.iter().position(|vif| vif.state.name == name);
        let xen = || Some(Named::Xen(self.host.vifs().find(|(_, it)| it.state.name == name)?.0));
        virtio.map(Named::Virtio).or_else(xen).ok_or_else(|| self.no_such_vif(name))
    }

    /// A vif of any kind.
    fn state(&self, name: &str) -> Option<&VifState<W>> {
        self.host.states().find(|it| it.name == name)
    }

    fn no_such_vif(&self, name: &str) -> String {
        let known = listed(self.host.states().map(|state| &state.name));
        format!("there is no vif {name:?}; there is {known}")
    }

    /// Changes keys of a vif in the backend's directory, if XenStore permits it.
    fn write_keys(&mut self, vif: Vif, changes: &[KeyChange]) -> Result<(), NotDone> {
        let written = device::change(self.parts.store, &vif.backend_dir(), changes);
        Ok(or_refusal(written)?.map_err(|refusal| refusal.to_string())?)
    }
}

impl<W: World> XenVif<W> {
    /// Why its guest cannot have so many queues, or not at that time; `None` if it can.
    fn refuse_queues(&self, queues_max: u16, reconnect: Reconnect) -> Option<String> {
        let XenVif { end, state, .. } = self;
        let name = &state.name;
        let device = state.device.as_ref();
        if let Some(device) = device.filter(|device| queues_max > device.queues_made) {
            return Some(format!(
                "max-queues is {queues_max}, expected at most {}: the TAP device of {name} on {} \
                 was created with so many",
                device.queues_made, device.attached_to
            ));
        }
        let stays = state.connection.is_some() && end.reconnects() == Reconnects::Never;
        (reconnect == Reconnect::Now && stays).then(|| {
            format!(
                "the guest of {name} would not reconnect, because Linux's driver does not; \
                 without --reconnect it keeps its queues until it reconnects by itself"
            )
        })
    }
}

impl<W: World> VirtioVif<W> {
    /// Why the number of its queues is not set here, and where it is.
    fn refuse_queues(&self) -> String {
        let name = &self.state.name;
        match self.session.place() {
            SessionPlace::Socket { .. } => format!(
                "{name} is a virtio vif: its guest chooses with `ethtool -L`, and `queues` in its \
                 [[vhost]] is the maximum"
            ),
            SessionPlace::Namespace { .. } => format!(
                "{name} has the queues of its network device: change `queues` in its \
                 [[namespace]], and restart the host"
            ),
        }
    }
}

/// Why the uplink with this name has no such setting, or not by a call: its description has it, to
/// be applied as `applied_by` says.
pub fn refuse_of_uplink(name: &str, setting: &str, applied_by: &str) -> String {
    if setting == MIRROR {
        return format!(
            "{name} carries all other frames to the host, and the output of a mirror carries only \
             copies: expected a vif"
        );
    }
    let limits = LIMITS.iter().filter(|limit| limit.is_of(LimitScope::Uplink));
    let known: Vec<&str> = limits.map(Limit::name).chain(RULES_OF_UPLINK).collect();
    if known.contains(&setting) {
        return format!(
            "{name} is the uplink: change `{setting}` in [uplink] of the description, and \
             {applied_by}"
        );
    }
    format!("{name} is the uplink, which has no {setting}; in [uplink] are {}", listed(known))
}

/// Why the uplink with this name gets no other number of queues by a call.
pub fn refuse_queues_of_uplink(name: &str) -> String {
    format!(
        "{name} is the uplink: change `queues` in [uplink] of the description, and restart the host"
    )
}

/// The key of a limit, if the value is valid.
fn limit_key(name: &str, value: &str) -> Result<&'static str, String> {
    let Some(limit) = Limit::named(name) else {
        let known = LIMITS.iter().map(Limit::name).chain(RULES.iter().map(|rule| rule.name));
        return Err(format!("there is no limit or rule {name:?}; there are {}", listed(known)));
    };
    let keys = Keys::new("", [(limit.key.to_owned(), value.to_owned())]);
    VifLimits::read(&keys).1.pop().map_or(Ok(limit.key), |bad| Err(refusal_of(name, bad)))
}

/// What is wrong with the value that a user has set.
fn refusal_of(name: &str, bad: BadKeys) -> String {
    match bad {
        BadKeys::Unreadable { found, expected, .. } => {
            format!("{name}: expected {expected}, not \"{found}\"")
        }
        bad => format!("{name}: {bad}"),
    }
}
