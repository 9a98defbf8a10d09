//! Which interfaces stand on which: VLANs and tunnels on cards, bridges and bonds on members.

use std::collections::BTreeSet;

use super::Host;

/// Interfaces of one stack; a bridge may have a thousand.
const STACK_MAX: usize = 1024;

impl Host {
    /// The interfaces that this one stands on; of a bridge or a bond, its members.
    pub fn below(&self, nic: &str) -> Vec<String> {
        let names = self.list(&format!("sys/class/net/{nic}"));
        let lower =
            |name: &String| Some(name.strip_prefix("lower_")?.trim_end_matches(".link").to_owned());
        let mut below: Vec<String> = names.iter().filter_map(lower).collect();
        let is_member = |member: &String| self.master(member).as_deref() == Some(nic);
        below.extend(self.nics().into_iter().filter(is_member));
        below.sort_unstable();
        below.dedup();
        below
    }

    /// The interfaces that this one stands on, with those that they stand on, and so forth.
    pub fn all_below(&self, nic: &str) -> BTreeSet<String> {
        let mut all = BTreeSet::new();
        let mut open = vec![nic.to_owned()];
        while let Some(one) = open.pop() {
            for lower in self.below(&one) {
                if all.len() < STACK_MAX && all.insert(lower.clone()) {
                    open.push(lower);
                }
            }
        }
        all
    }

    /// All that frames of an interface can pass on this host: those below it, those above it, and
    /// those that are on a bridge with it.
    pub fn stack_of(&self, nic: &str) -> BTreeSet<String> {
        let links: Vec<(String, String)> = self
            .nics()
            .into_iter()
            .flat_map(|upper| {
                let below = self.below(&upper).into_iter();
                below.map(move |lower| (upper.clone(), lower)).collect::<Vec<_>>()
            })
            .collect();
        let mut stack = BTreeSet::from([nic.to_owned()]);
        let mut open = vec![nic.to_owned()];
        while let Some(one) = open.pop() {
            for (upper, lower) in &links {
                let other = if *upper == one { lower } else { upper };
                if (*upper == one || *lower == one)
                    && stack.len() < STACK_MAX
                    && stack.insert(other.clone())
                {
                    open.push(other.clone());
                }
            }
        }
        stack
    }

    /// What kind of interface the kernel says it is, such as `vlan`, `vxlan`, `bond`; nothing for
    /// a card.
    pub fn device_type(&self, nic: &str) -> Option<String> {
        let uevent = self.file(&format!("sys/class/net/{nic}/uevent")).ok()?;
        let mut lines = uevent.lines();
        lines.find_map(|(_, line)| line.strip_prefix("DEVTYPE=")).map(|kind| kind.trim().to_owned())
    }

    /// The bridge, bond or team that an interface is a member of. Open vSwitch has one for all.
    fn master(&self, nic: &str) -> Option<String> {
        let link = self.file(&format!("sys/class/net/{nic}/master.link")).ok()?;
        let master = link.value().rsplit('/').next()?.to_owned();
        (master != "ovs-system").then_some(master)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::Source;

    #[test]
    fn a_stack_has_what_is_below_above_and_beside() {
        let pieces = [
            ("sys/class/net/br0/mtu", "1500\n"),
            ("sys/class/net/eth0/master.link", "../br0\n"),
            ("sys/class/net/vif1.0/master.link", "../br0\n"),
            ("sys/class/net/eth0.7/lower_eth0.link", "../eth0\n"),
            ("sys/class/net/vx/lower_eth0.link", "../eth0\n"),
            ("sys/class/net/vx/uevent", "DEVTYPE=vxlan\nINTERFACE=vx\n"),
            ("sys/class/net/eth1/mtu", "1500\n"),
        ];
        let own = |(path, text): (&str, &str)| (path.to_owned(), text.to_owned());
        let host = Host::new(Source::Memory(pieces.map(own).into()));
        assert_eq!(host.below("br0"), ["eth0", "vif1.0"]);
        assert_eq!(host.below("vx"), ["eth0"]);
        assert_eq!(host.device_type("vx").as_deref(), Some("vxlan"));
        let stack: Vec<String> = host.stack_of("eth0").into_iter().collect();
        assert_eq!(stack, ["br0", "eth0", "eth0.7", "vif1.0", "vx"]);
    }
}
