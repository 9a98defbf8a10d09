//! Facts that consist of one file, or of the output of one tool, with a name.

use std::ops::Deref;

use super::{Fact, Reader};
use crate::{Gap, NicSettings, Piece, Quote, Text};

/// A fact that is the text of one piece of evidence.
macro_rules! texts {
    ($read:ident, $kind:path; $($(#[$about:meta])* $name:ident = $place:expr;)*) => {$(
        $(#[$about])*
        #[derive(Debug)]
        pub struct $name(Text);

        impl Fact for $name {
            const PIECES: &'static [Piece] = &[$kind($place)];

            fn read(at: &Reader) -> Result<Self, Gap> {
                at.$read($place).map($name)
            }
        }

        impl Deref for $name {
            type Target = Text;

            fn deref(&self) -> &Text {
                &self.0
            }
        }
    )*};
}

texts! { file, Piece::File;
    /// The release of the kernel.
    KernelRelease = "proc/sys/kernel/osrelease";
    /// The name of the host.
    HostName = "proc/sys/kernel/hostname";
    /// The kernel's command line.
    CommandLine = "proc/cmdline";
    /// Frames that may wait in a CPU's backlog.
    BacklogMax = "proc/sys/net/core/netdev_max_backlog";
    /// Frames that a softirq round processes at most.
    BudgetFrames = "proc/sys/net/core/netdev_budget";
    /// Microseconds that a softirq round takes at most, since Linux 4.12.
    BudgetUsecs = "proc/sys/net/core/netdev_budget_usecs";
    /// The default queueing discipline of interfaces.
    DefaultQdisc = "proc/sys/net/core/default_qdisc";
    /// The largest send buffer that a program may ask for.
    SendBufferMax = "proc/sys/net/core/wmem_max";
    /// Sizes of TCP's send buffers.
    TcpSendBuffers = "proc/sys/net/ipv4/tcp_wmem";
    /// Sizes of TCP's receive buffers.
    TcpReceiveBuffers = "proc/sys/net/ipv4/tcp_rmem";
    /// Whether TCP lets receive buffers grow by itself.
    TcpReceiveGrowth = "proc/sys/net/ipv4/tcp_moderate_rcvbuf";
    /// Congestion control of new connections.
    TcpCongestion = "proc/sys/net/ipv4/tcp_congestion_control";
    /// Congestion controls that the kernel has.
    TcpCongestionAvailable = "proc/sys/net/ipv4/tcp_available_congestion_control";
    /// Congestion controls that any program may choose.
    TcpCongestionAllowed = "proc/sys/net/ipv4/tcp_allowed_congestion_control";
    /// Seconds for which connections that one end has closed are kept.
    TcpFinTimeout = "proc/sys/net/ipv4/tcp_fin_timeout";
    /// Whether TCP accepts connections without an entry when too many are half open.
    TcpSynCookies = "proc/sys/net/ipv4/tcp_syncookies";
    /// Connections of one socket that may be half open.
    TcpSynBacklog = "proc/sys/net/ipv4/tcp_max_syn_backlog";
    /// Bytes that TCP lets wait in the layers below it.
    TcpBelow = "proc/sys/net/ipv4/tcp_limit_output_bytes";
    /// Whether TCP probes for the largest packet itself.
    TcpMtuProbing = "proc/sys/net/ipv4/tcp_mtu_probing";
    /// Selective acknowledgements.
    TcpSack = "proc/sys/net/ipv4/tcp_sack";
    /// Timestamps.
    TcpTimestamps = "proc/sys/net/ipv4/tcp_timestamps";
    /// Windows above 64 KiB.
    TcpWindowScaling = "proc/sys/net/ipv4/tcp_window_scaling";
    /// Connections that may be tracked.
    ConntrackMax = "proc/sys/net/netfilter/nf_conntrack_max";
    /// The version of a module of Open vSwitch that is not the kernel's own.
    SwitchModule = "sys/module/openvswitch/version";
    /// Which switch XAPI uses.
    XapiBackend = "etc/xensource/network.conf";
    /// XAPI's description of this host's installation.
    XapiInventory = "etc/xensource-inventory";
    /// How many CPUs a service of old XenServers leaves to domain 0.
    UnplugSetting = "etc/sysconfig/unplug-vcpus";
    /// That service.
    UnplugService = "etc/init.d/unplug-vcpus";
    /// CPUs that are present.
    CpusPresent = "sys/devices/system/cpu/present";
    /// CPUs that are online.
    CpusOnline = "sys/devices/system/cpu/online";
    /// Queues that netfront may ask for.
    NetfrontQueues = "sys/module/xen_netfront/parameters/max_queues";
}

texts! { latest, Piece::Counters;
    /// Connections that are tracked.
    ConntrackCount = "proc/sys/net/netfilter/nf_conntrack_count";
    /// CPU times, with a line for all CPUs together.
    CpuLines = "proc/stat";
}

texts! { command, Piece::Command;
    /// Open vSwitch's ingress limits for each interface. Only these columns, because others contain
    /// keys of tunnels.
    SwitchLimits = &["ovs-vsctl", "--columns=name,ingress_policing_rate", "list", "interface"];
    /// Open vSwitch's bridges with their ports.
    SwitchBridges = &["ovs-appctl", "dpif/show"];
    /// XAPI's guests, with these parameters only, because others hold administrators' free text.
    XapiGuests = &[
        "xe",
        "vm-list",
        "is-control-domain=false",
        "params=uuid,dom-id,name-label,power-state,PV-drivers-version",
    ];
    /// XAPI's networks, with the MTU that their interfaces get when they are plugged.
    XapiNetworks = &["xe", "network-list", "params=uuid,bridge,MTU"];
    /// XAPI's cards of all hosts of the pool.
    XapiCards = &[
        "xe",
        "pif-list",
        "params=uuid,device,currently-attached,MTU,VLAN,management,network-uuid,host-uuid",
    ];
    /// XAPI's interfaces of guests.
    XapiVifs =
        &["xe", "vif-list", "params=uuid,vm-uuid,device,MAC,MTU,currently-attached,network-uuid"];
    /// The hypervisor's description of itself.
    XenInfo = &["xl", "info"];
    /// Domains, with their CPUs.
    XenDomains = &["xl", "list"];
    /// Xen's vifs, from the backends' part of XenStore. Only this part, because others contain
    /// passwords of consoles.
    VifStore = &["xenstore-ls", "-f", "/local/domain/0/backend/vif"];
}

/// The command that lists the vifs of a running ringway.
pub(super) const RINGWAY_VIFS: &[&str] = &["ringway", "vif", "list", "--json"];

texts! { command, Piece::Sampled;
    /// The vifs of a running ringway, from the program that we are part of.
    RingwayVifs = RINGWAY_VIFS;
    /// Virtual CPUs of Xen at the last sample.
    XenVcpus = &["xl", "vcpu-list"];
}

/// The names of loaded modules, or the file that lists them.
#[derive(Debug)]
pub struct Modules(pub Text);

impl Fact for Modules {
    const PIECES: &'static [Piece] = &[Piece::Names("sys/module"), Piece::File("proc/modules")];

    fn read(at: &Reader) -> Result<Self, Gap> {
        at.file("sys/module.names").or_else(|_| at.file("proc/modules")).map(Modules)
    }
}

/// The kernel's release, from the file that has nothing else or from the one that has more.
#[derive(Debug)]
pub struct Release(pub Text);

impl Fact for Release {
    const PIECES: &'static [Piece] =
        &[Piece::File("proc/sys/kernel/osrelease"), Piece::File("proc/version")];

    fn read(at: &Reader) -> Result<Self, Gap> {
        at.file("proc/sys/kernel/osrelease").or_else(|_| at.file("proc/version")).map(Release)
    }
}

impl Release {
    /// Its first two numbers, such as (6, 1); `None` if they are missing.
    pub fn version(&self) -> Option<(u32, u32)> {
        let release = self.0.value().trim_start_matches("Linux version ");
        let mut parts = release.split(|letter: char| !letter.is_ascii_digit());
        Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
    }
}

/// When the evidence was collected, by the clock of the host.
#[derive(Debug)]
pub struct Taken(pub Text);

const DATE: &[&str] = &["date", "-u", "+%Y-%m-%d %H:%M UTC"];

impl Fact for Taken {
    const PIECES: &'static [Piece] = &[Piece::Command(DATE), Piece::SavedCommand(&["date"])];

    fn read(at: &Reader) -> Result<Self, Gap> {
        at.command(DATE).or_else(|_| at.command(&["date"])).map(Taken)
    }
}

/// The groups of the IOMMU, by their names.
#[derive(Debug)]
pub struct IommuGroups(pub Text);

impl Fact for IommuGroups {
    const PIECES: &'static [Piece] = &[Piece::Names("sys/kernel/iommu_groups")];

    fn read(at: &Reader) -> Result<Self, Gap> {
        at.file("sys/kernel/iommu_groups.names").map(IommuGroups)
    }
}

/// The kernel's messages, which only a sos report has.
#[derive(Debug)]
pub struct KernelMessages(pub Text);

impl Fact for KernelMessages {
    const PIECES: &'static [Piece] =
        &[Piece::SavedCommand(&["dmesg"]), Piece::SavedCommand(&["dmesg", "-T"])];

    fn read(at: &Reader) -> Result<Self, Gap> {
        at.command(&["dmesg"]).or_else(|_| at.command(&["dmesg", "-T"])).map(KernelMessages)
    }
}

/// The package of irqbalance, if a package manager knows it.
#[derive(Debug)]
pub struct IrqbalancePackage(pub Text);

impl Fact for IrqbalancePackage {
    const PIECES: &'static [Piece] = &[
        Piece::Command(&["dpkg-query", "-W", "irqbalance"]),
        Piece::Command(&["rpm", "-q", "irqbalance"]),
    ];

    fn read(at: &Reader) -> Result<Self, Gap> {
        let of_debian = at.command(&["dpkg-query", "-W", "irqbalance"]);
        of_debian.or_else(|_| at.command(&["rpm", "-q", "irqbalance"])).map(IrqbalancePackage)
    }
}

/// Where the time of all CPUs goes, on Xen.
#[derive(Debug)]
pub struct CpuProfile(pub Text);

impl Fact for CpuProfile {
    const PIECES: &'static [Piece] = &[Piece::Profile];

    fn read(at: &Reader) -> Result<Self, Gap> {
        at.profile().map(CpuProfile)
    }
}

/// A file of each interface.
macro_rules! of_interfaces {
    ($($(#[$about:meta])* $name:ident = $file:literal;)*) => {$(
        on_demand! {
            $(#[$about])*
            $name = [Piece::File(concat!("sys/class/net/*/", $file))];
        }

        impl $name {
            /// The file of one interface.
            pub fn of(&self, nic: &str) -> Result<Text, Gap> {
                self.0.file(&format!(concat!("sys/class/net/{}/", $file), nic))
            }
        }
    )*};
}

of_interfaces! {
    /// The MTU of each interface.
    Mtus = "mtu";
    /// The speed that each reports, in Mbit/s.
    Speeds = "speed";
    /// Whether each is up.
    LinkStates = "operstate";
    /// The type of each link, as a number of `linux/if_arp.h`.
    LinkTypes = "type";
    /// The duplex mode of each.
    Duplexes = "duplex";
    /// The transmit queue length of each, in packets.
    QueueLengths = "tx_queue_len";
    /// The NUMA node of each card.
    CardNodes = "device/numa_node";
    /// Virtual functions that a card has.
    FunctionsMade = "device/sriov_numvfs";
    /// Virtual functions that it can have.
    FunctionsMax = "device/sriov_totalvfs";
    /// How the IOMMU maps what a card reads and writes.
    IommuTypes = "device/iommu_group/type";
}

/// Settings of each interface, as reported by the kernel or a tool.
macro_rules! settings {
    ($($(#[$about:meta])* $name:ident = $settings:path;)*) => {$(
        on_demand! {
            $(#[$about])*
            $name = [Piece::Settings($settings)];
        }

        impl $name {
            /// Those of one interface.
            pub fn of(&self, nic: &str) -> Result<Text, Gap> {
                self.0.settings(nic, $settings)
            }
        }
    )*};
}

settings! {
    /// Offloads.
    Offloads = NicSettings::Features;
    /// Queues, if the driver lets them be set.
    Channels = NicSettings::Channels;
    /// Ring lengths of cards.
    Rings = NicSettings::Rings;
    /// Interrupt coalescing of cards.
    Coalescence = NicSettings::Coalescing;
}

/// Prints the names of libvirt's guests, one a line.
const GUESTS: &[&str] = &["virsh", "-r", "list", "--name"];

on_demand! {
    /// libvirt's guests.
    // Without --security-info the XML has no passwords.
    Guests = [Piece::Command(GUESTS), Piece::Command(&["virsh", "-r", "dumpxml", "{guest}"])];
}

impl Guests {
    /// Their names, one a line.
    pub fn names(&self) -> Result<Text, Gap> {
        self.0.command(GUESTS)
    }

    /// The XML of one guest.
    pub fn of(&self, name: &str) -> Result<Text, Gap> {
        self.0.command(&["virsh", "-r", "dumpxml", name])
    }
}

on_demand! {
    /// The features and queues that Xen guests request, from the frontends' part of XenStore.
    // Only these parts, because others contain passwords of consoles.
    FrontendStores = [Piece::Command(&["xenstore-ls", "-f", "/local/domain/{domid}/device/vif"])];
}

impl FrontendStores {
    /// That of one domain.
    pub fn of(&self, domain: &str) -> Result<Text, Gap> {
        self.0.command(&["xenstore-ls", "-f", &format!("/local/domain/{domain}/device/vif")])
    }
}

on_demand! {
    /// The most queues of Xen's drivers: the parameters that they were loaded with.
    ModuleQueues = [
        Piece::File("sys/module/xen_netback/parameters/*"),
        Piece::File("sys/module/xen_netfront/parameters/*"),
    ];
}

impl ModuleQueues {
    /// That of one module, such as `xen_netback`.
    pub fn of(&self, module: &str) -> Result<Text, Gap> {
        self.0.file(&format!("sys/module/{module}/parameters/max_queues"))
    }
}

/// The directory of `modprobe`'s configuration.
const MODPROBE: &str = "etc/modprobe.d";

on_demand! {
    /// The administrator's configuration of `modprobe`.
    ModuleOptions = [Piece::File("etc/modprobe.d/*")];
}

impl ModuleOptions {
    /// The files that can be read.
    pub fn all(&self) -> Vec<Text> {
        let names = self.0.list(MODPROBE).into_iter();
        names.filter_map(|name| self.0.file(&format!("{MODPROBE}/{name}")).ok()).collect()
    }
}

on_demand! {
    /// Results of probing the paths to the hosts that `--path` names.
    Paths = [Piece::Saved("probes/*")];
}

impl Paths {
    /// One text for each.
    pub fn all(&self) -> Result<Vec<Text>, Gap> {
        let folder = crate::probe::FOLDER;
        self.0.list(folder).iter().map(|name| self.0.file(&format!("{folder}/{name}"))).collect()
    }
}

on_demand! {
    /// The sysctls of TCP's buffers that exist: a network namespace does not have all of them.
    BufferSettings = [
        Piece::File("proc/sys/net/ipv4/tcp_wmem"),
        Piece::File("proc/sys/net/core/wmem_max"),
    ];
}

impl BufferSettings {
    /// The command that shows those sysctls of `names` that exist; `None` if no such sysctl exists.
    pub fn command(&self, names: &[&str]) -> Option<String> {
        let is_there = |name: &&&str| self.0.has(&format!("proc/sys/{}", name.replace('.', "/")));
        let names: Vec<&str> = names.iter().filter(is_there).copied().collect();
        (!names.is_empty()).then(|| format!("sysctl {}", names.join(" ")))
    }
}

on_demand! {
    /// The version of Xen below this guest or domain.
    XenVersion = [
        Piece::File("sys/hypervisor/version/major"),
        Piece::File("sys/hypervisor/version/minor"),
    ];
}

impl XenVersion {
    /// The major version, and its line.
    pub fn major(&self) -> Result<(u64, Quote), Gap> {
        self.number("major")
    }

    /// The minor version, and its line.
    pub fn minor(&self) -> Result<(u64, Quote), Gap> {
        self.number("minor")
    }

    fn number(&self, name: &str) -> Result<(u64, Quote), Gap> {
        let text = self.0.file(&format!("sys/hypervisor/version/{name}"))?;
        Ok((text.number()?, text.quote(1)))
    }
}

on_demand! {
    /// Bonds, with the status file of each.
    Bonds = [Piece::File("proc/net/bonding/*")];
}

impl Bonds {
    /// Their names.
    pub fn names(&self) -> Vec<String> {
        self.0.list("proc/net/bonding")
    }

    /// The status of one bond.
    pub fn of(&self, bond: &str) -> Result<Text, Gap> {
        self.0.file(&format!("proc/net/bonding/{bond}"))
    }
}

on_demand! {
    /// The CPUs of each NUMA node of this kernel.
    NumaNodes = [Piece::File("sys/devices/system/node/node*/cpulist")];
}

impl NumaNodes {
    /// A list of CPUs for each node.
    pub fn all(&self) -> Result<Vec<(usize, Text)>, Gap> {
        let names = self.0.list("sys/devices/system/node");
        let nodes = names.iter().filter_map(|name| Some((name, name.strip_prefix("node")?)));
        let nodes = nodes.filter_map(|(name, node)| Some((name, node.parse().ok()?)));
        let list = |(name, node): (&String, usize)| {
            Ok((node, self.0.file(&format!("sys/devices/system/node/{name}/cpulist"))?))
        };
        nodes.map(list).collect()
    }
}
