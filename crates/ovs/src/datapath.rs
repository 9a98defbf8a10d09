//! What of a bridge decides whether its ports may leave work in their frames.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The first version whose userspace datapath cuts frames that leave by a tunnel.
const CUTS_IN_TUNNELS: Version = Version { major: 3, minor: 5 };

/// The datapath of a bridge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Datapath {
    /// The kernel's, which does in software what no device does.
    Kernel,
    /// That of `ovs-vswitchd` (`datapath_type=netdev`), which forwards frames as they are.
    Userspace,
    /// One that runs with `userspace-tso-enable`, of a version that may be unknown.
    UserspaceTso(Option<Version>),
    /// One for which that is set, and which does not show that it runs with it: it takes effect
    /// when `ovs-vswitchd` starts.
    UserspaceTsoSet(Option<Version>),
}

/// The version of an Open vSwitch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Version {
    /// 3 of 3.5.1.
    pub major: u16,
    /// 5 of 3.5.1.
    pub minor: u16,
}

impl Datapath {
    /// Whether it takes frames with blank checksums, and frames to be cut, wherever they leave.
    pub fn takes_offloads(self) -> bool {
        match self {
            Datapath::Kernel => true,
            Datapath::Userspace | Datapath::UserspaceTsoSet(_) => false,
            Datapath::UserspaceTso(version) => version.is_some_and(|it| it >= CUTS_IN_TUNNELS),
        }
    }
}

/// What it is, and why it takes offloads or not.
impl fmt::Display for Datapath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let needed = CUTS_IN_TUNNELS;
        match self {
            Datapath::Kernel => f.write_str("the kernel's datapath"),
            Datapath::Userspace => f.write_str("a userspace datapath without userspace-tso-enable"),
            Datapath::UserspaceTso(Some(found)) | Datapath::UserspaceTsoSet(Some(found))
                if *found < needed =>
            {
                write!(
                    f,
                    "a userspace datapath of version {found}, and {needed} is the first that cuts \
                     frames in tunnels"
                )
            }
            Datapath::UserspaceTso(Some(found)) => {
                write!(f, "a userspace datapath with userspace-tso-enable, version {found}")
            }
            Datapath::UserspaceTsoSet(_) => f.write_str(
                "a userspace datapath that does not show that userspace-tso-enable, which is set, \
                 is in force: start ovs-vswitchd again",
            ),
            Datapath::UserspaceTso(None) => write!(
                f,
                "a userspace datapath of an unknown version, and {needed} is the first that cuts \
                 frames in tunnels"
            ),
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

impl Version {
    /// The first version that a text names, such as the output of `ovs-appctl version`.
    pub(crate) fn find(text: &str) -> Option<Version> {
        let mut words = text.split(|c: char| c.is_whitespace() || c == '"');
        words.find_map(|word| {
            let mut numbers = word.split('.');
            let mut next = || {
                let part = numbers.next()?;
                let digits = part.trim_end_matches(|c: char| !c.is_ascii_digit());
                digits.parse().ok().filter(|_| part.starts_with(|c: char| c.is_ascii_digit()))
            };
            Some(Version { major: next()?, minor: next()? })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_found_in_what_the_programs_write() {
        let found = |text: &str| Version::find(text).map(|version| version.to_string());
        for (text, version) in [
            ("\"3.1.0\"\n", "3.1"),
            ("ovs-vswitchd (Open vSwitch) 3.5.1\n", "3.5"),
            ("ovs-vswitchd (Open vSwitch) 3.5.90-dirty (DPDK 24.11.0)", "3.5"),
            ("4.0", "4.0"),
        ] {
            assert_eq!(found(text).as_deref(), Some(version), "{text}");
        }
        for bad in ["", "[]", "3", "v.1", ".", "-1.2", "70000.1", "three.five"] {
            assert_eq!(found(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_userspace_datapath_takes_offloads_from_the_version_that_cuts_in_tunnels() {
        let with_tso = |major, minor| Datapath::UserspaceTso(Some(Version { major, minor }));
        for (datapath, takes) in [
            (Datapath::Kernel, true),
            (Datapath::Userspace, false),
            (Datapath::UserspaceTso(None), false),
            (Datapath::UserspaceTsoSet(None), false),
            (Datapath::UserspaceTsoSet(Some(Version { major: 3, minor: 5 })), false),
            (with_tso(3, 1), false),
            (with_tso(2, 17), false),
            (with_tso(3, 5), true),
            (with_tso(3, 10), true),
            (with_tso(4, 0), true),
        ] {
            assert_eq!(datapath.takes_offloads(), takes, "{datapath}");
        }
    }

    #[test]
    fn what_is_set_and_not_in_force_is_told_from_a_version_for_which_it_makes_no_difference() {
        let set = |major, minor| Datapath::UserspaceTsoSet(Some(Version { major, minor }));
        for (datapath, part) in [
            (set(3, 1), "of version 3.1, and 3.5 is the first"),
            (set(3, 5), "start ovs-vswitchd again"),
            (Datapath::UserspaceTsoSet(None), "start ovs-vswitchd again"),
        ] {
            let shown = datapath.to_string();
            assert!(shown.contains(part), "{shown}");
        }
    }
}
