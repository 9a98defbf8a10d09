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

/// The direction of the data, seen from the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// Out of the guest.
    Transmit,
    /// Into it.
    Receive,
}

impl Word for Direction {
    const ALL: &'static [(&'static str, Self)] =
        &[("transmit", Direction::Transmit), ("receive", Direction::Receive)];
}

/// Which end sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sender {
    /// The host itself, without a guest.
    Host,
    /// A guest.
    Guest,
}

impl Word for Sender {
    const ALL: &'static [(&'static str, Self)] =
        &[("host", Sender::Host), ("guest", Sender::Guest)];
}

impl Word for Tool {
    const ALL: &'static [(&'static str, Self)] = Tool::NAMES;
}

/// The tool that loads a path while another tool measures.
pub(crate) const LOADER: Tool = Tool::Iperf3;

/// Which CPUs of the host a guest and its programs may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GuestCpus {
    /// All of them.
    All,
    /// Half of them, at least one.
    Half,
}

impl Word for GuestCpus {
    const ALL: &'static [(&'static str, Self)] =
        &[("all", GuestCpus::All), ("half", GuestCpus::Half)];
}

/// Which offloads are on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Offloads {
    /// All that both ends offer.
    All,
    /// No scatter-gather.
    NoSg,
    /// No segmentation of TCP.
    NoTso,
    /// No segmentation in software.
    NoGso,
    /// No merging of received packets.
    NoGro,
    /// No checksums.
    NoCsum,
    /// None of these.
    None,
    /// All of these and LRO, by which a card merges received packets for good.
    Lro,
}

impl Word for Offloads {
    const ALL: &'static [(&'static str, Self)] = &[
        ("all", Offloads::All),
        ("no-sg", Offloads::NoSg),
        ("no-tso", Offloads::NoTso),
        ("no-gso", Offloads::NoGso),
        ("no-gro", Offloads::NoGro),
        ("no-csum", Offloads::NoCsum),
        ("none", Offloads::None),
        ("lro", Offloads::Lro),
    ];
}

/// What guests are attached to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attached {
    /// ringway's switch.
    Switch,
    /// A Linux bridge, by a TAP device each.
    Bridge,
    /// Open vSwitch, by a TAP device each.
    OpenVswitch,
}

impl Word for Attached {
    const ALL: &'static [(&'static str, Self)] = &[
        ("ringway", Attached::Switch),
        ("bridge", Attached::Bridge),
        ("ovs", Attached::OpenVswitch),
    ];
}

/// What drives the interfaces of a guest that routes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Driver {
    /// netfront, in a namespace.
    Netfront,
    /// ringway's virtio driver, in a namespace: two vhost-user sockets and their queues.
    Virtio,
    /// Linux's virtio driver, in a virtual machine of QEMU.
    Machine,
}

impl Word for Driver {
    const ALL: &'static [(&'static str, Self)] =
        &[("xen", Driver::Netfront), ("virtio", Driver::Virtio), ("qemu", Driver::Machine)];
}

/// The encapsulation of frames to the targets, by the kernels of router and targets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encapsulation {
    /// Nothing.
    None,
    /// VXLAN (RFC 7348).
    Vxlan,
    /// GRE (RFC 2784) with Ethernet inside, a tunnel for each target.
    Gre,
}

impl Word for Encapsulation {
    const ALL: &'static [(&'static str, Self)] = &[
        ("none", Encapsulation::None),
        ("vxlan", Encapsulation::Vxlan),
        ("gre", Encapsulation::Gre),
    ];
}

/// How source ports are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// At random: every repeat uses others.
    Random,
    /// So that over the repeats every split occurs as often as its probability says.
    Stratified,
    /// So that streams are spread over queues as evenly as possible.
    Ideal,
}

impl Word for Placement {
    const ALL: &'static [(&'static str, Self)] = &[
        ("random", Placement::Random),
        ("stratified", Placement::Stratified),
        ("ideal", Placement::Ideal),
    ];
}

/// Where the threads of frontend and backend run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// Where the kernel puts them.
    Free,
    /// All on one CPU.
    OneCpu,
    /// Thread N of both ends on one CPU, different numbers on different CPUs.
    Paired,
    /// Every thread on a CPU of its own, as far as CPUs suffice.
    Spread,
    /// Those of each guest on one CPU, as interrupts fall that no one balances; the backend's where
    /// the kernel puts them.
    GuestOneCpu,
}

impl Word for Layout {
    const ALL: &'static [(&'static str, Self)] = &[
        ("free", Layout::Free),
        ("one-cpu", Layout::OneCpu),
        ("paired", Layout::Paired),
        ("spread", Layout::Spread),
        ("guest-one-cpu", Layout::GuestOneCpu),
    ];
}

/// How the backend places queues on its workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// By their load.
    Balanced,
    /// In turn, once.
    Static,
    /// A worker for each queue.
    PerQueue,
}

impl Word for Policy {
    const ALL: &'static [(&'static str, Self)] = &[
        ("balanced", Policy::Balanced),
        ("static", Policy::Static),
        ("per-queue", Policy::PerQueue),
    ];
}

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
