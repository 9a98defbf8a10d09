//! What is collected from a live host. A check can only see what stands here.

/// When something is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// In both samples: counters.
    Sampled,
    /// Once: settings and descriptions.
    Once,
}

/// Files of the host. A `*` stands for any name in its place.
pub const FILES: &[(When, &str)] = &[
    (When::Sampled, "proc/interrupts"),
    (When::Sampled, "proc/softirqs"),
    (When::Sampled, "proc/stat"),
    (When::Sampled, "proc/uptime"),
    (When::Sampled, "proc/net/dev"),
    (When::Sampled, "proc/net/netstat"),
    (When::Sampled, "proc/net/snmp"),
    (When::Sampled, "proc/net/softnet_stat"),
    (When::Sampled, "proc/net/stat/nf_conntrack"),
    (When::Sampled, "proc/sys/net/netfilter/nf_conntrack_count"),
    (When::Sampled, "sys/class/net/*/statistics/rx_missed_errors"),
    (When::Once, "etc/init.d/unplug-vcpus"),
    (When::Once, "etc/modprobe.d/*"),
    (When::Once, "etc/os-release"),
    (When::Once, "etc/sysconfig/unplug-vcpus"),
    (When::Once, "etc/xensource-inventory"),
    (When::Once, "etc/xensource/network.conf"),
    (When::Once, "proc/cmdline"),
    (When::Once, "proc/cpuinfo"),
    (When::Once, "proc/irq/*/smp_affinity_list"),
    (When::Once, "proc/modules"),
    (When::Once, "proc/net/bonding/*"),
    (When::Once, "proc/sys/kernel/osrelease"),
    (When::Once, "proc/sys/net/core/default_qdisc"),
    (When::Once, "proc/sys/net/core/dev_weight"),
    (When::Once, "proc/sys/net/core/netdev_budget"),
    (When::Once, "proc/sys/net/core/netdev_budget_usecs"),
    (When::Once, "proc/sys/net/core/netdev_max_backlog"),
    (When::Once, "proc/sys/net/core/rmem_max"),
    (When::Once, "proc/sys/net/core/wmem_max"),
    (When::Once, "proc/sys/net/ipv4/ip_forward"),
    // By name, because among all of them there is the key of TCP Fast Open.
    (When::Once, "proc/sys/net/ipv4/tcp_allowed_congestion_control"),
    (When::Once, "proc/sys/net/ipv4/tcp_available_congestion_control"),
    (When::Once, "proc/sys/net/ipv4/tcp_congestion_control"),
    (When::Once, "proc/sys/net/ipv4/tcp_dsack"),
    (When::Once, "proc/sys/net/ipv4/tcp_fin_timeout"),
    (When::Once, "proc/sys/net/ipv4/tcp_limit_output_bytes"),
    (When::Once, "proc/sys/net/ipv4/tcp_moderate_rcvbuf"),
    (When::Once, "proc/sys/net/ipv4/tcp_mtu_probing"),
    (When::Once, "proc/sys/net/ipv4/tcp_rmem"),
    (When::Once, "proc/sys/net/ipv4/tcp_sack"),
    (When::Once, "proc/sys/net/ipv4/tcp_timestamps"),
    (When::Once, "proc/sys/net/ipv4/tcp_window_scaling"),
    (When::Once, "proc/sys/net/ipv4/tcp_wmem"),
    (When::Once, "proc/sys/net/netfilter/nf_conntrack_buckets"),
    (When::Once, "proc/sys/net/netfilter/nf_conntrack_max"),
    (When::Once, "proc/version"),
    (When::Once, "proc/xen/capabilities"),
    (When::Once, "sys/class/dmi/id/product_name"),
    (When::Once, "sys/class/dmi/id/sys_vendor"),
    (When::Once, "sys/class/net/*/bridge/bridge_id"),
    (When::Once, "sys/class/net/*/brport/port_id"),
    (When::Once, "sys/class/net/*/device/iommu_group/type"),
    (When::Once, "sys/class/net/*/device/numa_node"),
    (When::Once, "sys/class/net/*/device/sriov_numvfs"),
    (When::Once, "sys/class/net/*/device/sriov_totalvfs"),
    (When::Once, "sys/class/net/*/device/uevent"),
    (When::Once, "sys/class/net/*/mtu"),
    (When::Once, "sys/class/net/*/operstate"),
    (When::Once, "sys/class/net/*/queues/*/rps_cpus"),
    (When::Once, "sys/class/net/*/queues/*/xps_cpus"),
    (When::Once, "sys/class/net/*/speed"),
    (When::Once, "sys/class/net/*/tun_flags"),
    (When::Once, "sys/class/net/*/tx_queue_len"),
    (When::Once, "sys/class/net/*/type"),
    (When::Once, "sys/class/net/*/uevent"),
    (When::Once, "sys/devices/system/cpu/online"),
    (When::Once, "sys/devices/system/cpu/present"),
    (When::Once, "sys/devices/system/node/node*/cpulist"),
    (When::Once, "sys/hypervisor/type"),
    (When::Once, "sys/hypervisor/version/extra"),
    (When::Once, "sys/hypervisor/version/major"),
    (When::Once, "sys/hypervisor/version/minor"),
    (When::Once, "sys/module/openvswitch/version"),
    (When::Once, "sys/module/vhost_net/parameters/*"),
    (When::Once, "sys/module/xen_netback/parameters/*"),
    (When::Once, "sys/module/xen_netfront/parameters/*"),
];

/// Which network namespace it is: `initial` or `other`.
pub const NETNS: &str = "netns";

/// Links, of which the target is kept: which device an interface belongs to, what it is enslaved
/// to, and what it stands on.
pub const LINKS: &[&str] = &[
    "sys/class/net/*/device",
    "sys/class/net/*/device/driver",
    "sys/class/net/*/lower_*",
    "sys/class/net/*/master",
];

/// Directories, of which the names are kept, one a line: what only exists or not.
pub const DIRECTORIES: &[&str] = &["run/netns", "sys/module", "sys/kernel/iommu_groups", "dev/xen"];

/// Tools, none of which changes anything. `{nic}` stands for each interface,
/// `{guest}` for each guest of libvirt, `{domid}` for each domain of Xen. What the kernel says over
/// netlink is asked without a tool: see [`netlink`](super::netlink).
pub const COMMANDS: &[(When, &[&str])] = &[
    // Netlink has counters of the standards only, and none of queues.
    (When::Sampled, &["ethtool", "-S", "{nic}"]),
    // What filters do as well, where there are any: see [`Hook`](crate::parse::qdisc::Hook).
    (When::Sampled, QDISCS),
    (When::Sampled, &["ovs-appctl", "dpctl/show"]),
    (When::Sampled, &["ovs-dpctl", "show"]),
    (When::Sampled, &["xentop", "-b", "-f", "-i", "1"]),
    (When::Sampled, &["xl", "vcpu-list"]),
    (When::Sampled, RINGWAY_VIFS),
    (When::Once, &["dpkg-query", "-W", "irqbalance"]),
    (When::Once, &["ovs-vsctl", "--version"]),
    (When::Once, OVS_LIMITS),
    (When::Once, &["rpm", "-q", "irqbalance"]),
    // Without --security-info it leaves passwords out.
    (When::Once, &["virsh", "-r", "dumpxml", "{guest}"]),
    (When::Once, &["virsh", "-r", "list", "--name"]),
    (When::Once, XE_NETWORKS),
    (When::Once, XE_PIFS),
    (When::Once, XE_VIFS),
    (When::Once, XE_VMS),
    (When::Once, &["xl", "info"]),
    (When::Once, &["xl", "list"]),
    // Only these parts: elsewhere in the store there are passwords of consoles.
    (When::Once, &["xenstore-ls", "-f", "/local/domain/0/backend/vif"]),
    (When::Once, &["xenstore-ls", "-f", "/local/domain/{domid}/device/vif"]),
    (When::Once, &["xenstore-ls", "-f", "device/vif"]),
];

/// Threads whose CPU time is kept, by the beginning of their names: those that move frames.
pub const THREADS: &[&str] = &[
    "ksoftirqd/",
    "vif",
    "netback/",
    "vhost-",
    "CPU ",
    "ovs-vswitchd",
    "handler",
    "revalidator",
    "irqbalance",
    "qemu",
    "napi/",
    "ringway",
];

/// Queueing disciplines, with what they did.
pub const QDISCS: &[&str] = &["tc", "-s", "-j", "qdisc", "show"];

/// Classes of an interface, with what they did. Not as JSON: not every tc prints them so.
pub fn classes_command(nic: &str) -> [&str; 6] {
    ["tc", "-s", "class", "show", "dev", nic]
}

/// The vifs of a running ringway; asked of the program that we are part of.
pub const RINGWAY_VIFS: &[&str] = &["ringway", "vif", "list", "--json"];

/// What Open vSwitch lets in of each interface. Only these columns: among the others there are keys
/// of tunnels.
pub const OVS_LIMITS: &[&str] =
    &["ovs-vsctl", "--columns=name,ingress_policing_rate", "list", "interface"];

/// Guests by XAPI, of which only these parameters are asked: others hold what administrators wrote.
pub const XE_VMS: &[&str] = &[
    "xe",
    "vm-list",
    "is-control-domain=false",
    "params=uuid,dom-id,name-label,power-state,PV-drivers-version",
];

/// Networks by XAPI, with what their interfaces get when they are plugged.
pub const XE_NETWORKS: &[&str] = &["xe", "network-list", "params=uuid,bridge,MTU"];

/// Cards by XAPI, those of all hosts of the pool.
pub const XE_PIFS: &[&str] = &[
    "xe",
    "pif-list",
    "params=uuid,device,currently-attached,MTU,VLAN,management,network-uuid,host-uuid",
];

/// Interfaces of guests by XAPI.
pub const XE_VIFS: &[&str] =
    &["xe", "vif-list", "params=uuid,vm-uuid,device,MAC,MTU,currently-attached,network-uuid"];

/// Samples all CPUs for a second, where a hypervisor's calls could take the time; the recording
/// goes to the second tool, never to a file. It is only run on Xen, and needs root.
pub const PROFILE: [&[&str]; 2] = [
    &["perf", "record", "-q", "-e", "cpu-clock", "-a", "-F", "199", "-o", "-", "--", "sleep", "1"],
    &["perf", "report", "-q", "-i", "-", "--stdio", "--sort", "comm,sym", "-t", "|"],
];
