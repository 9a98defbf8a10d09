//! The words that parameters of a study may have, each list once: studies are checked against the
//! same list that set-ups are built from.

pub use ringway_rig::tools::Tool;

/// A parameter whose values are a few words.
pub trait Word: Copy + 'static {
    /// All values, as studies spell them.
    const ALL: &'static [(&'static str, Self)];

    /// The value of a word; `None` if it is not one of these.
    fn find(word: &str) -> Option<Self> {
        Self::ALL.iter().find(|(name, _)| *name == word).map(|(_, value)| *value)
    }
}

/// The words of a parameter.
pub(crate) fn names<W: Word>() -> Vec<&'static str> {
    W::ALL.iter().map(|(name, _)| *name).collect()
}

macro_rules! words {
    ($(
        $(#[$about:meta])* $name:ident { $($(#[$of:meta])* $value:ident = $word:literal,)* }
    )*) => {$(
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name {
            $($(#[$of])* $value,)*
        }

        impl Word for $name {
            const ALL: &'static [(&'static str, Self)] = &[$(($word, $name::$value),)*];
        }
    )*};
}

words! {
    /// The direction of the data, seen from the guest.
    Direction {
        /// Out of the guest.
        Transmit = "transmit",
        /// Into it.
        Receive = "receive",
    }

    /// Which end sends.
    Sender {
        /// The host itself, without a guest.
        Host = "host",
        /// A guest.
        Guest = "guest",
    }

    /// What the guests on a wire exchange traffic with.
    Peers {
        /// A host behind the uplink.
        Uplink = "uplink",
        /// A guest each, on the same switch, so that the wire carries nothing.
        Guests = "pairs",
    }

    /// Which CPUs of the host a guest and its programs may use.
    GuestCpus {
        /// All of them.
        All = "all",
        /// Half of them, at least one.
        Half = "half",
    }

    /// Which offloads are on.
    Offloads {
        /// All that both ends offer.
        All = "all",
        /// No scatter-gather.
        NoSg = "no-sg",
        /// No segmentation of TCP.
        NoTso = "no-tso",
        /// No segmentation in software.
        NoGso = "no-gso",
        /// No merging of received packets.
        NoGro = "no-gro",
        /// No checksums.
        NoCsum = "no-csum",
        /// None of these.
        None = "none",
        /// All of these and LRO, by which a card merges received packets for good.
        Lro = "lro",
    }

    /// What guests are attached to.
    Attached {
        /// ringway's switch.
        Switch = "ringway",
        /// A Linux bridge, by a TAP device each.
        Bridge = "bridge",
        /// Open vSwitch, by a TAP device each.
        OpenVswitch = "ovs",
    }

    /// What drives the interfaces of a guest that routes.
    Driver {
        /// netfront, in a namespace.
        Netfront = "xen",
        /// ringway's virtio driver, in a namespace: two vhost-user sockets and their queues.
        Virtio = "virtio",
        /// Linux's virtio driver, in a virtual machine of QEMU.
        Machine = "qemu",
    }

    /// The encapsulation of frames to the targets, by the kernels of router and targets.
    Encapsulation {
        /// Nothing.
        None = "none",
        /// VXLAN (RFC 7348).
        Vxlan = "vxlan",
        /// GRE (RFC 2784) with Ethernet inside, a tunnel for each target.
        Gre = "gre",
    }

    /// How source ports are chosen.
    Placement {
        /// At random: every repeat uses others.
        Random = "random",
        /// So that over the repeats every split occurs as often as its probability says.
        Stratified = "stratified",
        /// At random, on a host whose backend moves flows from queues that cannot keep up.
        Balanced = "balanced",
        /// So that streams are spread over queues as evenly as possible.
        Ideal = "ideal",
    }

    /// Where the threads of frontend and backend run.
    Layout {
        /// Where the kernel puts them.
        Free = "free",
        /// All on one CPU.
        OneCpu = "one-cpu",
        /// Thread N of both ends on one CPU, different numbers on different CPUs.
        Paired = "paired",
        /// Every thread on a CPU of its own, as far as CPUs suffice.
        Spread = "spread",
        /// Those of each guest on one CPU, as interrupts fall that no one balances; the backend's
        /// where the kernel puts them.
        GuestOneCpu = "guest-one-cpu",
    }

    /// How the backend places queues on its workers.
    Policy {
        /// By their load.
        Balanced = "balanced",
        /// In turn, once.
        Static = "static",
        /// A worker for each queue.
        PerQueue = "per-queue",
    }
}

impl Word for Tool {
    const ALL: &'static [(&'static str, Self)] = Tool::NAMES;
}

/// The tool that loads a path while another tool measures.
pub(crate) const LOADER: Tool = Tool::Iperf3;

/// As studies and descriptions spell it.
pub(crate) fn name_of<W: Word + PartialEq>(value: W) -> &'static str {
    let found = W::ALL.iter().find(|(_, other)| *other == value);
    found.map(|(name, _)| *name).expect("each value has a word")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_one_of_its_parameter_or_nothing() {
        assert_eq!(Layout::find("paired"), Some(Layout::Paired));
        assert_eq!(Layout::find("pairs"), None);
        assert_eq!(Layout::find(""), None);
        assert_eq!(name_of(Policy::PerQueue), "per-queue");
        assert_eq!(names::<Direction>(), ["transmit", "receive"]);
    }
}
