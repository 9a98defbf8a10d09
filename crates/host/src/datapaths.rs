//! The datapaths of bridges of Open vSwitch.
//!
//! The process that asks `ovs-vsctl` is asked for one after the other: before a guest connects, and
//! when a vif has got its port, because by then the bridge may be another one of that name.

use std::collections::BTreeMap;

use ringway_ovs::{Datapath, OvsBridge};

/// What is known of all bridges on which vifs are, or have just been.
#[derive(Debug, Default)]
pub struct Datapaths {
    known: BTreeMap<String, Datapath>,
    /// Bridges of which it is still to be asked, by their names.
    unasked: BTreeMap<String, OvsBridge>,
    /// The bridge of the question that has no reply yet.
    asked: Option<OvsBridge>,
}

impl Datapaths {
    /// The datapath of a bridge, if it is known.
    pub(crate) fn of(&self, bridge: &OvsBridge) -> Option<Datapath> {
        self.known.get(&bridge.name).copied()
    }

    /// Has it asked for that of a bridge.
    pub(crate) fn ask(&mut self, bridge: &OvsBridge) {
        self.unasked.insert(bridge.name.clone(), bridge.clone());
    }

    /// The bridge to ask for next, if the last question has its reply.
    pub fn next_question(&mut self) -> Option<OvsBridge> {
        if self.asked.is_some() {
            return None;
        }
        let (_, bridge) = self.unasked.pop_first()?;
        self.asked = Some(bridge.clone());
        Some(bridge)
    }

    /// The last question has this reply, which is kept if it is one. Returns the bridge if its
    /// datapath is another one than before.
    pub(crate) fn found(&mut self, found: Result<Datapath, String>) -> Option<OvsBridge> {
        let bridge = self.asked.take()?;
        match found {
            Ok(datapath) => {
                let before = self.known.insert(bridge.name.clone(), datapath);
                (before != Some(datapath)).then_some(bridge)
            }
            Err(reason) => {
                tracing::debug!(bridge = bridge.name, "its datapath is not known: {reason}");
                None
            }
        }
    }

    /// Forgets bridges on which no vif is any more.
    pub(crate) fn keep(&mut self, is_used: impl Fn(&str) -> bool) {
        self.known.retain(|bridge, _| is_used(bridge));
        self.unasked.retain(|bridge, _| is_used(bridge));
    }

    /// The process with the last question may have been killed before it replied.
    pub(crate) fn ask_again(&mut self) {
        if let Some(bridge) = self.asked.take() {
            self.ask(&bridge);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bridges_are_asked_for_one_at_a_time_and_again_after_a_kill() {
        let bridge = |name: &str| name.parse::<OvsBridge>().expect("good");
        let (one, two) = (bridge("br1.7"), bridge("br2"));
        let mut datapaths = Datapaths::default();
        datapaths.ask_again();
        assert_eq!(datapaths.next_question(), None);
        for bridge in [&one, &two, &two, &one] {
            datapaths.ask(bridge);
        }
        assert_eq!(datapaths.next_question(), Some(one.clone()));
        assert_eq!(datapaths.next_question(), None, "one at a time");
        datapaths.ask_again();
        assert_eq!(datapaths.next_question(), Some(one.clone()));
        assert_eq!(datapaths.found(Ok(Datapath::Userspace)), Some(one.clone()));
        assert_eq!(datapaths.of(&bridge("br1")), Some(Datapath::Userspace), "whatever its VLANs");
        assert_eq!(datapaths.next_question(), Some(two.clone()));
        assert_eq!(datapaths.found(Err("no bridge".to_owned())), None);
        assert_eq!((datapaths.of(&two), datapaths.next_question()), (None, None));
        for (found, differs) in [(Datapath::Userspace, false), (Datapath::Kernel, true)] {
            datapaths.ask(&one);
            assert_eq!(datapaths.next_question(), Some(one.clone()));
            assert_eq!(datapaths.found(Ok(found)).is_some(), differs);
        }
        assert_eq!(datapaths.found(Ok(Datapath::Userspace)), None, "nothing was asked");
    }
}
