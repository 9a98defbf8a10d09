//! D20: a datapath of Open vSwitch that does not scale over CPUs.

use super::{Check, Group, Looked, all_well};
use crate::evidence::{Gap, Quote};
use crate::finding::{Advice, Finding, Severity};
use crate::host::Host;

pub(super) const CHECK: Check = Check {
    id: "D20",
    title: "an old datapath",
    group: Group::Datapath,
    sources: &["network-node-blog:three-things", "network-node-blog:datapath"],
    explanation: include_str!("../../explain/D20.md"),
    look: Some(look),
};

/// The first that scaled, as the network node's makers measured it.
const OVS_MIN: (u32, u32) = (2, 5);
const KERNEL_MIN: (u32, u32) = (4, 4);

fn look(host: &Host) -> Looked {
    let modules = host.file("sys/module.names").or_else(|_| host.file("proc/modules"))?;
    let is_ovs = |line: &str| line.split_whitespace().next() == Some("openvswitch");
    let module = modules.quote_where(is_ovs);
    let Some(module) = module else {
        return Err(Gap::NotHere("no Open vSwitch".to_owned()));
    };
    // A module of its own says its version; the kernel's says none, and is as old as the kernel.
    match host.file("sys/module/openvswitch/version") {
        Ok(version) => {
            let Some(number) = first_numbers(version.value()) else {
                return Err(version.unreadable(Some(1), "expected a version"));
            };
            return Ok(vec![judge("Open vSwitch module", number, OVS_MIN, vec![version.quote(1)])]);
        }
        Err(Gap::Missing { .. }) => {}
        Err(gap) => return Err(gap),
    }
    let release = host.file("proc/sys/kernel/osrelease").or_else(|_| host.file("proc/version"))?;
    let Some(kernel) = host.kernel() else {
        return Err(release.unreadable(Some(1), "expected the kernel's version"));
    };
    Ok(vec![judge("Linux", kernel, KERNEL_MIN, vec![module, release.quote(1)])])
}

fn judge(of: &str, found: (u32, u32), least: (u32, u32), quotes: Vec<Quote>) -> Finding {
    let (major, minor) = found;
    if found >= least {
        return all_well(
            format!("{of} {major}.{minor} scales over CPUs"),
            quotes.into_iter().next(),
        );
    }
    let summary =
        format!("{of} {major}.{minor} does not scale over CPUs ({}.{} does)", least.0, least.1);
    Finding::new(Severity::Problem, of, summary)
        .cause("Its tables are locked for each packet, so queues and CPUs take turns.")
        .quote(quotes)
        .advise(Advice::by_hand(
            "Use the module of a kernel of 4.4 or later, without openvswitch-datapath-dkms. Then, \
             on Ubuntu 14.04, and with a restart:",
            &["apt-get install -y --install-recommends linux-generic-lts-xenial"],
        ))
        .gain("with 8 queues 8.42 instead of 3.57 Gbit/s (SWITCH, 2016)")
}

/// The two numbers that a version begins with.
fn first_numbers(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}
