//! D39: a next hop or a neighbour does not reply.

use crate::check::{Check, Group, Judged, Verdicts, not_here, rule};
use crate::finding::{Advice, Change, Finding, Knob, Severity};
use ringway_evidence::Quote;
use ringway_evidence::fact::{
    Basis, Limited, NeighbourTables, Routing, Span, Switches, Tried, float,
};
use ringway_evidence::facts;
use ringway_evidence::parse::routes::{Hop, Neighbour, Neighbours, Route, Routes};

pub(crate) const CHECK: Check = Check {
    id: "D39",
    slug: "next-hops",
    title: "a next hop does not reply",
    group: Group::Links,
    sources: &["ip-sysctl:fib-multipath-use-neigh", "ip-sysctl:linkdown"],
    explanation: include_str!("next_hops.txt"),
    absent: "there is no data on where packets are sent",
    rule: rule!(Facts, judge),
};

facts! {
    struct Facts {
        routing: Tried<Routing>,
        neighbours: Tried<Span<Neighbours>>,
        switches: Switches,
        tables: NeighbourTables,
    }
}

/// Neighbours that are named.
const NAMED_MAX: usize = 5;
/// Part of the table of neighbours from which it is nearly full.
const NEARLY: f64 = 0.9;

fn judge(facts: &Facts, out: &mut Verdicts) -> Judged {
    out.add(facts.tables.all().iter().filter_map(crowded));
    let (Some(routing), Some(span)) = (facts.routing.ok(), facts.neighbours.ok()) else {
        return not_here(CHECK.absent);
    };
    let mut next = Vec::new();
    for route in &routing.routes.all {
        if route.nexthops.len() > 1 {
            out.add(one_of_several(facts, span, route));
        } else if let Some(gateway) = &route.gateway {
            out.add(only_one(&routing.routes, span, route, gateway));
        }
        next.extend(route.gateway.iter().chain(route.nexthops.iter().flat_map(|hop| &hop.gateway)));
    }
    let is_other = |one: &&Neighbour| is_silent(span, one) && !next.contains(&&one.dst);
    let silent: Vec<&Neighbour> = span.after.all.iter().filter(is_other).collect();
    if !silent.is_empty() {
        let named: Vec<&str> = silent.iter().take(NAMED_MAX).map(|one| one.dst.as_str()).collect();
        let summary = format!("{} neighbours do not reply: {}", silent.len(), named.join(", "));
        let finding = Finding::new(Severity::Note, "neighbours", summary);
        out.add([finding
            .cause(
                "A program on this host tried to reach them recently and got no reply: they are \
                 down, or not in this network. None of them is a next hop.",
            )
            .quote([quoted(span, silent[0])])]);
    }
    out.well("next hops in use reply", None);
    Ok(())
}

/// The table of all neighbours of the machine, which hosts of a large network fill.
fn crowded(table: &Limited) -> Option<Finding> {
    let Limited { setting, max, max_text, span } = table;
    let refused = match span.basis {
        Basis::Samples => span.after.full.wrapping_sub(span.before.full),
        // Those since the boot may be long over.
        Basis::SinceBoot => 0,
    };
    let entries = span.after.entries;
    if *max == 0 || (refused == 0 && float(entries) < NEARLY * float(*max)) {
        return None;
    }
    let (severity, what) = match refused {
        0 => (Severity::Warning, String::new()),
        _ => (Severity::Problem, format!(", and {refused} found no room")),
    };
    let summary = format!("the table of neighbours has {entries} of {max} entries{what}");
    let change = Change::raise(Knob::Sysctl { name: setting.clone() }, *max, max.saturating_mul(4));
    Some(
        Finding::new(severity, setting.clone(), summary)
            .cause(
                "All network namespaces of the machine share it. When it is full, hosts that are \
                 not in it cannot be reached: no buffer space available.",
            )
            .quote([span.text.quote(2), max_text.quote(1)])
            .advise(Advice::by_change(
                "Make it larger than the number of hosts that this one talks to, also those of \
                 guests and containers. An entry has some hundred bytes.",
                change,
            )),
    )
}

/// Quotes only this neighbour, because the tool prints all of them on one line.
fn quoted(span: &Span<Neighbours>, one: &Neighbour) -> Quote {
    let lladdr = one.lladdr.as_deref().unwrap_or("no address");
    let text = format!("{} dev {} {lladdr} {}", one.dst, one.dev, one.state.join(" "));
    Quote { file: span.text.origin().to_owned(), line: None, text }
}

/// Whether it did not reply, or its resolution has been in progress in both samples.
fn is_silent(span: &Span<Neighbours>, one: &Neighbour) -> bool {
    let was = span.before.same(one).is_some_and(|was| was.is_failed() || was.is_resolving());
    one.is_failed() || (one.is_resolving() && was && span.basis == Basis::Samples)
}

fn failed<'a>(
    span: &'a Span<Neighbours>,
    gateway: &str,
    dev: Option<&String>,
) -> Option<&'a Neighbour> {
    let is_it = |one: &&Neighbour| one.dst == gateway && dev.is_none_or(|dev| *dev == one.dev);
    span.after.all.iter().filter(is_it).find(|one| is_silent(span, one))
}

fn one_of_several(facts: &Facts, span: &Span<Neighbours>, route: &Route) -> Option<Finding> {
    let mut dead: Vec<(String, Quote)> = Vec::new();
    let mut is_down = false;
    for hop in &route.nexthops {
        let Hop { gateway, dev, flags } = hop;
        let dev_name = dev.as_deref().unwrap_or("?");
        let name = gateway.as_deref().unwrap_or(dev_name);
        let down =
            ["linkdown", "dead"].into_iter().find(|flag| flags.iter().any(|one| one == flag));
        if let Some(flag) = down {
            is_down |= flag == "linkdown";
            let text = format!("{} nexthop {name} dev {dev_name} {flag}", route.dst);
            let file = "ip route show table all".to_owned();
            dead.push((name.to_owned(), Quote { file, line: None, text }));
        } else if let Some(one) =
            gateway.as_ref().and_then(|gateway| failed(span, gateway, dev.as_ref()))
        {
            dead.push((name.to_owned(), quoted(span, one)));
        }
    }
    if dead.is_empty() {
        return None;
    }
    let names: Vec<&str> = dead.iter().map(|(name, _)| name.as_str()).collect();
    let summary = format!(
        "{} of {} next hops to {} do not reply: {}",
        dead.len(),
        route.nexthops.len(),
        route.dst,
        names.join(", ")
    );
    let name = match is_down {
        true => "net.ipv4.conf.all.ignore_routes_with_linkdown",
        false => "net.ipv4.fib_multipath_use_neigh",
    };
    let setting = facts.switches.get(name).filter(|_| !route.dst.contains(':'));
    let change = setting.as_ref().and_then(|text| {
        Change::raise(Knob::Sysctl { name: name.to_owned() }, text.number().ok()?, 1)
    });
    let finding = Finding::new(Severity::Problem, route.dst.clone(), summary)
        .cause(
            "A hash chooses the next hop of each flow, even a dead one: these flows are lost, and \
             all others work.",
        )
        .quote(dead.into_iter().map(|(_, quote)| quote))
        .quote(setting.map(|text| text.quote(1)));
    Some(match change {
        Some(change) => finding.advise(Advice::by_change(
            "Remove it from the route, or let the kernel skip next hops like this one.",
            [change],
        )),
        None => finding.advise(Advice::by_hand(
            "Remove it from the route, or fix what is behind it.",
            &["ip route show"],
        )),
    })
}

fn only_one(
    routes: &Routes,
    span: &Span<Neighbours>,
    route: &Route,
    gateway: &str,
) -> Option<Finding> {
    let one = failed(span, gateway, route.dev.as_ref())?;
    let works = |it: &Route| {
        let is_silent = |gateway: &String| failed(span, gateway, it.dev.as_ref()).is_some();
        let is_down = |flag: &String| ["dead", "linkdown"].contains(&flag.as_str());
        !it.gateway.as_ref().is_some_and(is_silent) && !it.flags.iter().any(is_down)
    };
    let is_reserve = routes.all.iter().any(|it| it.comes_before(route) && works(it));
    let summary = format!("the next hop to {}, {gateway}, does not reply", route.dst);
    let (summary, cause) = match is_reserve {
        true => (
            format!("{summary}; another route is used"),
            "If that fails, all packets are lost on this one, which is for then.",
        ),
        false => (summary, "All packets on this route are lost."),
    };
    // Many hosts have an IPv6 route that leads nowhere, and do not need it.
    let is_needed = !gateway.contains(':') && !is_reserve;
    let severity = if is_needed { Severity::Problem } else { Severity::Note };
    Some(
        Finding::new(severity, route.dst.clone(), summary)
            .cause(cause)
            .quote([quoted(span, one)])
            .advise(Advice::by_hand(
                "Check whether it is up and in the network of that interface (cable, VLAN), or \
                 set another route.",
                &["ip route show", "ip neigh show"],
            )),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosts::host;

    #[test]
    fn a_route_in_reserve_is_no_problem_yet() {
        let found = |first: &str, second: &str| {
            let route = |gateway: &str, dev: &str, metric: u32| {
                let way = format!(r#""gateway":"{gateway}","dev":"{dev}","metric":{metric}"#);
                format!(r#"{{"dst":"default",{way}}}"#)
            };
            let near = |dst: &str, dev: &str, state: &str| {
                format!(r#"{{"dst":"{dst}","dev":"{dev}","state":["{state}"]}}"#)
            };
            let [one, other] = ["10.0.0.1", "10.1.0.1"];
            let routes = format!("[{},{}]\n", route(one, "a", 100), route(other, "b", 200));
            let near = format!("[{},{}]\n", near(one, "a", first), near(other, "b", second));
            let pieces = [
                ("sample-1/monotonic", "1.0\n".to_owned()),
                ("sample-2/monotonic", "2.0\n".to_owned()),
                ("commands/ip_-d_-j_route_show_table_all_type_unicast", routes),
                ("commands/ip_-j_addr_show", "[]\n".to_owned()),
                ("sample-1/commands/ip_-s_-j_neigh_show", near.clone()),
                ("sample-2/commands/ip_-s_-j_neigh_show", near),
            ];
            CHECK.run(&host(pieces))
        };
        let reserve = found("REACHABLE", "FAILED");
        assert_eq!((reserve.len(), reserve[0].severity), (1, Severity::Note), "{reserve:#?}");
        assert!(reserve[0].summary.ends_with("does not reply; another route is used"));
        assert_eq!(found("FAILED", "REACHABLE")[0].severity, Severity::Problem);
        let both = found("FAILED", "FAILED");
        assert!(both.iter().all(|one| one.severity == Severity::Problem), "{both:#?}");
    }

    #[test]
    fn a_table_without_room_is_found() {
        let found = |entries: &str, full: &str| {
            let table = |full: &str| format!("entries table_fulls\n{entries} {full}\n");
            let pieces = [
                ("sample-1/monotonic", "1.0\n".to_owned()),
                ("sample-2/monotonic", "2.0\n".to_owned()),
                ("sample-1/proc/net/stat/arp_cache", table("00000000")),
                ("sample-2/proc/net/stat/arp_cache", table(full)),
                ("proc/sys/net/ipv4/neigh/default/gc_thresh3", "1024\n".to_owned()),
                ("commands/ip_-d_-j_route_show_table_all_type_unicast", "[]\n".to_owned()),
                ("commands/ip_-j_addr_show", "[]\n".to_owned()),
                ("sample-1/commands/ip_-s_-j_neigh_show", "[]\n".to_owned()),
                ("sample-2/commands/ip_-s_-j_neigh_show", "[]\n".to_owned()),
            ];
            CHECK.run(&host(pieces)).remove(0)
        };
        let full = found("00000400", "00000009");
        assert_eq!(full.severity, Severity::Problem, "{full:#?}");
        let command = "sysctl -w net.ipv4.neigh.default.gc_thresh3=4096";
        assert_eq!(full.advice[0].commands, [command]);
        assert_eq!(found("000003f0", "00000000").severity, Severity::Warning);
        assert_eq!(found("00000004", "00000000").severity, Severity::Ok);
    }
}
