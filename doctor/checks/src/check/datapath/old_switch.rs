//! D20: a datapath of Open vSwitch that does not scale over CPUs.

use crate::check::{Check, Group, Judged, Verdicts, all_well, not_here, rule};
use crate::finding::{Advice, Finding, Severity};
use ringway_evidence::fact::{Modules, Release, SwitchModule, Tried};
use ringway_evidence::facts;
use ringway_evidence::{Gap, Quote};

pub(crate) const CHECK: Check = Check {
    id: "D20",
    slug: "old-switch",
    title: "an old datapath",
    group: Group::Datapath,
    sources: &["network-node-blog:three-things", "network-node-blog:datapath"],
    explanation: include_str!("old_switch.txt"),
    absent: "no Open vSwitch",
    rule: rule!(Facts, judge),
};

facts! {
    struct Facts {
        modules: Modules,
        version: Tried<SwitchModule>,
        release: Tried<Release>,
    }
}

/// The first version that scaled, according to the network node's makers.
const OVS_MIN: (u32, u32) = (2, 5);
const KERNEL_MIN: (u32, u32) = (4, 4);

fn judge(facts: &Facts, out: &mut Verdicts) -> Judged {
    let is_ovs = |line: &str| line.split_whitespace().next() == Some("openvswitch");
    let module = facts.modules.0.quote_where(is_ovs);
    let Some(module) = module else { return not_here(CHECK.absent) };
    // An external module reports its version; the kernel's own reports none, and is as old as the
    // kernel.
    match facts.version.get() {
        Ok(version) => {
            let Some(number) = first_numbers(version.value()) else {
                return Err(version.unreadable(Some(1), "expected a version"));
            };
            out.add([compare("Open vSwitch module", number, OVS_MIN, vec![version.quote(1)])]);
            return Ok(());
        }
        Err(Gap::Missing { .. }) => {}
        Err(gap) => return Err(gap),
    }
    let release = facts.release.get()?;
    let Some(kernel) = release.version() else {
        return Err(release.0.unreadable(Some(1), "expected the kernel's version"));
    };
    out.add([compare("Linux", kernel, KERNEL_MIN, vec![module, release.0.quote(1)])]);
    Ok(())
}

fn compare(of: &str, found: (u32, u32), least: (u32, u32), quotes: Vec<Quote>) -> Finding {
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
        .cause("It locks its tables for each packet, so queues and CPUs wait for each other.")
        .quote(quotes)
        .advise(Advice::by_hand(
            "Use the module of a kernel of 4.4 or later, without openvswitch-datapath-dkms. On \
             Ubuntu 14.04, with a restart:",
            &["apt-get install -y --install-recommends linux-generic-lts-xenial"],
        ))
        .gain("with 8 queues 8.42 instead of 3.57 Gbit/s (SWITCH, 2016)")
}

/// The two numbers that a version begins with.
fn first_numbers(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}
