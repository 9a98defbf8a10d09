//! The layering of interfaces: VLANs and tunnels over cards, bridges and bonds over members.

use std::collections::BTreeSet;

use super::interfaces::Interfaces;
use super::{Fact, Reader};
use crate::{Gap, Piece};

/// Interfaces of one stack; a bridge may have a thousand.
const STACK_MAX: usize = 1024;

/// All links between upper and lower interfaces.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stack {
    /// The upper and the lower interface; below a bridge or a bond is a member.
    pub links: BTreeSet<(String, String)>,
}

impl Stack {
    /// The interfaces directly below this one.
    pub fn below<'a>(&'a self, nic: &'a str) -> impl Iterator<Item = &'a String> {
        self.links.iter().filter(move |(upper, _)| upper == nic).map(|(_, lower)| lower)
    }

    /// All interfaces below this one, directly or not.
    pub fn all_below(&self, nic: &str) -> BTreeSet<String> {
        self.reached(nic, |one| self.below(one).cloned().collect())
    }

    /// All interfaces that frames of this one can pass on this host: those below it, those above
    /// it, and those on the same bridge; without itself.
    pub fn around(&self, nic: &str) -> BTreeSet<String> {
        let mut around = self.reached(nic, |one| {
            let above = self.links.iter().filter(|(_, lower)| lower == one);
            self.below(one).chain(above.map(|(upper, _)| upper)).cloned().collect()
        });
        around.remove(nic);
        around
    }

    fn reached(&self, nic: &str, next: impl Fn(&str) -> Vec<String>) -> BTreeSet<String> {
        let mut all = BTreeSet::new();
        let mut open = vec![nic.to_owned()];
        while let Some(one) = open.pop() {
            for other in next(&one) {
                if all.len() < STACK_MAX && all.insert(other.clone()) {
                    open.push(other);
                }
            }
        }
        all
    }
}

impl Fact for Stack {
    const PIECES: &'static [Piece] = Interfaces::PIECES;

    fn read(at: &Reader) -> Result<Self, Gap> {
        let nics: Interfaces = at.fact()?;
        let mut links = BTreeSet::new();
        for nic in nics.names() {
            links.extend(nics.lower(&nic).into_iter().map(|lower| (nic.clone(), lower)));
            if let Some(master) = master(&nics, &nic) {
                links.insert((master, nic));
            }
        }
        Ok(Stack { links })
    }
}

/// The bridge, bond or team that an interface is a member of. Open vSwitch has a single master for
/// all.
fn master(nics: &Interfaces, nic: &str) -> Option<String> {
    let link = nics.master(nic)?;
    let master = link.value().rsplit('/').next()?.to_owned();
    (master != "ovs-system").then_some(master)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Source;
    use crate::fact::Host;

    #[test]
    fn a_stack_has_what_is_below_above_and_beside() {
        let pieces = [
            ("sys/class/net/br0/mtu", "1500\n"),
            ("sys/class/net/eth0/master.link", "../br0\n"),
            ("sys/class/net/vif1.0/master.link", "../br0\n"),
            ("sys/class/net/eth0.7/lower_eth0.link", "../eth0\n"),
            ("sys/class/net/vx/lower_eth0.7.link", "../eth0.7\n"),
            ("sys/class/net/vx/uevent", "DEVTYPE=vxlan\nINTERFACE=vx\n"),
            ("sys/class/net/eth1/mtu", "1500\n"),
        ];
        let own = |(path, text): (&str, &str)| (path.to_owned(), text.to_owned());
        let host = Host::new(Source::Memory(pieces.map(own).into()));
        let stack: Stack = host.fact().expect("sound");
        let names = |set: BTreeSet<String>| set.into_iter().collect::<Vec<_>>();
        assert_eq!(stack.below("br0").collect::<Vec<_>>(), ["eth0", "vif1.0"]);
        assert_eq!(names(stack.all_below("vx")), ["eth0", "eth0.7"]);
        assert_eq!(names(stack.around("eth0")), ["br0", "eth0.7", "vif1.0", "vx"]);
        assert!(stack.around("eth1").is_empty());
        let nics: Interfaces = host.fact().expect("sound");
        assert_eq!(nics.device_type("vx").as_deref(), Some("vxlan"));
    }

    #[test]
    fn a_ring_of_interfaces_has_an_end() {
        let pieces = [
            ("sys/class/net/a/lower_b.link", "../b\n"),
            ("sys/class/net/b/lower_a.link", "../a\n"),
        ];
        let own = |(path, text): (&str, &str)| (path.to_owned(), text.to_owned());
        let host = Host::new(Source::Memory(pieces.map(own).into()));
        let stack: Stack = host.fact().expect("sound");
        assert_eq!(stack.all_below("a").len(), 2);
        assert_eq!(stack.around("a").len(), 1);
    }
}
