//! What may be set on the host that the evidence is of.

use super::Host;
use crate::evidence::Netns;
use crate::evidence::manifest::NETNS;
use crate::finding::Knob;

impl Host {
    /// Which network namespace the evidence is of; none if it does not say.
    pub fn netns(&self) -> Option<Netns> {
        Netns::of_word(self.file(NETNS).ok()?.value())
    }

    /// Why a setting cannot be changed there; none if it can, or if nothing says that it cannot.
    pub fn refuses(&self, knob: &Knob) -> Option<String> {
        let path = match knob.path() {
            Ok(path) => path?,
            Err(_) => return Some("its name cannot be written in a command".to_owned()),
        };
        self.source.read_only(&path)
    }

    /// Whether new connections may be given this congestion control. A network namespace may
    /// choose from those only that the machine allows to everybody.
    pub fn may_use(&self, congestion: &str) -> bool {
        let lists = |name: &str| {
            let text = self.file(&format!("proc/sys/net/ipv4/tcp_{name}_congestion_control"));
            text.ok().map(|text| text.value().split_whitespace().any(|one| one == congestion))
        };
        let is_everybodys = lists("allowed").unwrap_or(true);
        lists("available").unwrap_or(false) && (is_everybodys || self.netns() != Some(Netns::Other))
    }

    /// The command that shows those of some sysctls that are there; none if none is.
    pub fn sysctls(&self, names: &[&str]) -> Option<String> {
        let is_there = |name: &&&str| self.has(&format!("proc/sys/{}", name.replace('.', "/")));
        let names: Vec<&str> = names.iter().filter(is_there).copied().collect();
        (!names.is_empty()).then(|| format!("sysctl {}", names.join(" ")))
    }
}
