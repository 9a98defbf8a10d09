//! Ports of vifs on bridges of Open vSwitch.
//!
//! Another process asks `ovs-vsctl`, which may take long or fail. So a vif only says what port it
//! is to have; orders to that process follow, one at a time, whatever a guest does meanwhile, and
//! only where its last reply differs from what is wanted by then. An order that failed is given
//! again later.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use ringway_calls::OvsStatus;
use ringway_ovs::{Ids, PortWanted};

use crate::device::Purpose;

/// The pause before a failed order is given again.
const RETRY: Duration = Duration::from_secs(5);

/// An order to the process that asks `ovs-vsctl`. What has become of it: [`OvsPorts::done`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortOrder {
    /// The vif.
    pub vif: Purpose,
    /// The port that it is to have, or that it is to have none.
    pub wanted: Option<PortWanted>,
}

/// The ports of all vifs.
#[derive(Debug, Default)]
pub struct OvsPorts {
    vifs: BTreeMap<Purpose, Port>,
    /// Vifs that wait for an order, each once.
    turns: VecDeque<Purpose>,
    /// The order that has no reply yet.
    asked: Option<PortOrder>,
}

/// The port of a vif.
#[derive(Debug, Default)]
struct Port {
    /// What it is to be like, if there is to be one.
    wanted: Option<PortWanted>,
    /// What it is like, or that there is no port, if that is known.
    present: Option<Option<PortWanted>>,
    /// The ids that it has joined with.
    ids: Ids,
    /// Why it is not as it should be.
    fault: Option<String>,
    retry: Option<Instant>,
    /// Whether its vif is gone.
    is_gone: bool,
}

impl Port {
    fn is_as_wanted(&self) -> bool {
        self.present.as_ref() == Some(&self.wanted)
    }
}

impl OvsPorts {
    /// A vif is to have this port.
    pub(crate) fn join(&mut self, vif: Purpose, wanted: PortWanted) {
        let port = self.vifs.entry(vif.clone()).or_default();
        port.wanted = Some(wanted);
        port.is_gone = false;
        self.note_turn(vif);
    }

    /// A vif is to have no port for now.
    pub(crate) fn leave(&mut self, vif: Purpose) {
        self.vifs.entry(vif.clone()).or_default().wanted = None;
        self.note_turn(vif);
    }

    /// An earlier process has given a port to a vif, which keeps it until its guest has returned,
    /// or it ends.
    pub(crate) fn found(&mut self, vif: Purpose) {
        self.vifs.entry(vif).or_default();
    }

    /// Whether a vif may have a port.
    pub(crate) fn knows(&self, vif: &Purpose) -> bool {
        self.vifs.contains_key(vif)
    }

    /// A vif has ended: an earlier process may have given it a port.
    pub(crate) fn remove(&mut self, vif: Purpose) {
        self.vifs.entry(vif.clone()).or_default().is_gone = true;
        self.leave(vif);
    }

    /// The next order, if one is due and the last one is done.
    pub fn next_order(&mut self, now: Instant) -> Option<PortOrder> {
        if self.asked.is_some() {
            return None;
        }
        self.turns.retain(|vif| self.vifs.get(vif).is_some_and(|port| !port.is_as_wanted()));
        let is_due = |vif: &Purpose| {
            self.vifs.get(vif).is_some_and(|port| port.retry.is_none_or(|retry| retry <= now))
        };
        let place = self.turns.iter().position(is_due)?;
        let vif = self.turns.remove(place)?;
        let port = self.vifs.get_mut(&vif)?;
        (port.retry, port.present) = (None, None);
        let order = PortOrder { wanted: port.wanted.clone(), vif };
        self.asked = Some(order.clone());
        Some(order)
    }

    /// The last order was carried out, and a port has these ids, or it was not, for this reason.
    /// Returns the vif, and the fault that it has now.
    pub fn done(
        &mut self,
        outcome: Result<Ids, String>,
        now: Instant,
    ) -> Option<(Purpose, Option<String>)> {
        let PortOrder { vif, wanted } = self.asked.take()?;
        let port = self.vifs.get_mut(&vif)?;
        match outcome {
            Ok(ids) => {
                if port.fault.take().is_some() {
                    tracing::info!(
                        vif = vif.to_string(),
                        "Open vSwitch has done what failed before"
                    );
                }
                (port.ids, port.present) = (ids, Some(wanted));
            }
            Err(fault) => {
                if port.fault.as_ref() != Some(&fault) {
                    tracing::warn!(vif = vif.to_string(), "{fault}");
                }
                (port.fault, port.retry) = (Some(fault), Some(now + RETRY));
            }
        }
        let fault = port.fault.clone();
        if port.is_gone && port.is_as_wanted() {
            self.vifs.remove(&vif);
        } else {
            self.note_turn(vif.clone());
        }
        Some((vif, fault))
    }

    /// The process with the last order may have been killed before, while, or after it was carried
    /// out: the order is given again, if it is still wanted by then.
    pub(crate) fn ask_again(&mut self) {
        let Some(order) = self.asked.take() else { return };
        self.note_turn(order.vif);
    }

    /// When an order is due, if it has to wait for time to pass.
    pub fn due(&self) -> Option<Instant> {
        if self.asked.is_some() {
            return None;
        }
        self.turns.iter().filter_map(|vif| self.vifs.get(vif)?.retry).min()
    }

    /// Why the port of a vif is not as it should be, if so.
    pub fn fault(&self, vif: &Purpose) -> Option<String> {
        self.vifs.get(vif)?.fault.clone()
    }

    /// What users are shown of the port of a vif, if it has one.
    pub(crate) fn status(&self, vif: &Purpose) -> Option<OvsStatus> {
        let port = self.vifs.get(vif)?;
        let PortWanted { device, bridge, .. } = port.present.as_ref()?.as_ref()?;
        let Ids { iface_id, attached_mac, vm_uuid } = port.ids.clone();
        let (port, bridge) = (device.clone(), bridge.name.clone());
        Some(OvsStatus { port, bridge, iface_id, attached_mac, vm_uuid })
    }

    fn note_turn(&mut self, vif: Purpose) {
        if !self.turns.contains(&vif) {
            self.turns.push_back(vif);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vif(name: &str) -> Purpose {
        Purpose::Virtio(name.to_owned())
    }

    fn wanted(name: &str) -> PortWanted {
        let bridge = "br-int.7".parse().expect("good");
        PortWanted { device: name.to_owned(), index: 7, bridge, facts: Default::default() }
    }

    fn join(name: &str) -> Option<PortOrder> {
        Some(PortOrder { vif: vif(name), wanted: Some(wanted(name)) })
    }

    fn leave(name: &str) -> Option<PortOrder> {
        Some(PortOrder { vif: vif(name), wanted: None })
    }

    fn joined() -> Result<Ids, String> {
        Ok(Ids { iface_id: Some("lsp1".to_owned()), ..Ids::default() })
    }

    #[test]
    fn orders_come_one_at_a_time_and_only_for_what_differs_by_then() {
        let (mut ports, now) = (OvsPorts::default(), Instant::now());
        assert_eq!(ports.next_order(now), None);
        ports.join(vif("a"), wanted("a"));
        ports.join(vif("b"), wanted("b"));
        assert_eq!(ports.next_order(now), join("a"));
        assert_eq!(ports.next_order(now), None, "one at a time");
        // Whatever guests do meanwhile.
        for _ in 0..1000 {
            ports.leave(vif("a"));
            ports.join(vif("a"), wanted("a"));
        }
        assert_eq!(ports.turns.len(), 2);
        assert_eq!(ports.status(&vif("a")), None);
        assert_eq!(ports.done(joined(), now), Some((vif("a"), None)));
        assert_eq!(ports.status(&vif("a")).and_then(|it| it.iface_id).as_deref(), Some("lsp1"));
        assert_eq!(ports.next_order(now), join("b"));
        ports.leave(vif("b"));
        ports.done(joined(), now);
        assert_eq!(ports.next_order(now), leave("b"), "it was joined meanwhile");
        ports.done(Ok(Ids::default()), now);
        assert_eq!(ports.next_order(now), None, "nothing differs");
        assert_eq!(ports.status(&vif("b")), None);

        // A device that was made again is another port.
        let again = PortWanted { index: 8, ..wanted("a") };
        ports.join(vif("a"), again.clone());
        let expected = PortOrder { vif: vif("a"), wanted: Some(again) };
        assert_eq!(ports.next_order(now), Some(expected));
        ports.done(joined(), now);
        ports.remove(vif("a"));
        assert_eq!(ports.next_order(now), leave("a"));
        ports.done(Ok(Ids::default()), now);
        assert!(!ports.vifs.contains_key(&vif("a")), "it is forgotten");
    }

    #[test]
    fn a_failed_order_is_given_again_later_and_holds_up_no_other() {
        let (mut ports, now) = (OvsPorts::default(), Instant::now());
        ports.join(vif("a"), wanted("a"));
        assert_eq!(ports.next_order(now), join("a"));
        let why = "no bridge".to_owned();
        assert_eq!(ports.done(Err(why.clone()), now), Some((vif("a"), Some(why.clone()))));
        assert_eq!((ports.next_order(now), ports.due()), (None, Some(now + RETRY)));
        assert_eq!((ports.fault(&vif("a")), ports.status(&vif("a"))), (Some(why), None));
        ports.join(vif("b"), wanted("b"));
        assert_eq!(ports.next_order(now), join("b"));
        ports.done(joined(), now);
        let later = now + RETRY;
        assert_eq!(ports.next_order(later), join("a"));
        ports.done(joined(), later);
        assert_eq!((ports.fault(&vif("a")), ports.due()), (None, None));
        assert_eq!(ports.next_order(later), None);
    }

    #[test]
    fn an_order_to_a_process_that_was_killed_is_given_again_unless_the_opposite_is_wanted() {
        let (mut ports, now) = (OvsPorts::default(), Instant::now());
        ports.ask_again();
        assert_eq!(ports.next_order(now), None);
        ports.join(vif("a"), wanted("a"));
        assert_eq!(ports.next_order(now), join("a"));
        ports.ask_again();
        assert_eq!(ports.next_order(now), join("a"));
        ports.leave(vif("a"));
        ports.ask_again();
        assert_eq!(ports.next_order(now), leave("a"));
        ports.ask_again();
        assert_eq!(ports.next_order(now), leave("a"), "there may be a port");
        ports.done(Ok(Ids::default()), now);
        ports.ask_again();
        assert_eq!(ports.next_order(now), None, "it was done");
    }

    #[test]
    fn a_vif_that_ends_without_a_connection_has_its_port_removed() {
        let (mut ports, now) = (OvsPorts::default(), Instant::now());
        ports.remove(vif("a"));
        assert_eq!(ports.next_order(now), leave("a"), "an earlier process may have joined it");
        // One that is made again meanwhile is not forgotten.
        ports.join(vif("a"), wanted("a"));
        ports.done(Ok(Ids::default()), now);
        assert_eq!(ports.next_order(now), join("a"));
    }
}
