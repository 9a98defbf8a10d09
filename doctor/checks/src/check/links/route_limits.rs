//! D40: a route limits TCP.

use crate::check::{Check, Group, Judged, Verdicts, not_here, rule};
use crate::finding::{Advice, Finding, Severity};
use ringway_evidence::Quote;
use ringway_evidence::fact::{Routing, Tried};
use ringway_evidence::facts;
use ringway_evidence::parse::routes::Route;

pub(crate) const CHECK: Check = Check {
    id: "D40",
    slug: "route-limits",
    title: "a route limits TCP",
    group: Group::Tcp,
    sources: &["man-ip-route:metrics"],
    explanation: include_str!("route_limits.txt"),
    absent: "there is no data on routes",
    rule: rule!(Facts, judge),
};

facts! {
    struct Facts {
        routing: Tried<Routing>,
    }
}

/// Metrics of a route, the range outside which they limit TCP (below the first number, or above the
/// second), and their meaning.
const LIMITS: [(&str, u64, u64, &str); 7] = [
    ("window", u64::MAX, u64::MAX, "bytes of window at most"),
    ("cwnd", u64::MAX, u64::MAX, "packets in flight at most, if it is locked"),
    ("initcwnd", 10, u64::MAX, "packets at the start"),
    ("initrwnd", 10, u64::MAX, "packets of receive window at the start"),
    ("advmss", 1200, u64::MAX, "bytes a segment at most"),
    ("mtu", 1280, u64::MAX, "bytes a packet at most"),
    ("rto_min", 0, 1000, "ms at least before anything is sent again"),
];

fn judge(facts: &Facts, out: &mut Verdicts) -> Judged {
    let Some(routing) = facts.routing.ok() else { return not_here(CHECK.absent) };
    for route in &routing.routes.all {
        out.add(of_route(route));
    }
    out.well(format!("none of {} routes limits TCP", routing.routes.all.len()), None);
    Ok(())
}

fn of_route(route: &Route) -> Option<Finding> {
    let mut set = Vec::new();
    for (name, below, above, what) in LIMITS {
        if let Some(number) = route.metric(name).filter(|one| *one < below || *one > above) {
            set.push((name, number, what));
        }
    }
    if set.is_empty() {
        return None;
    }
    let said: Vec<String> =
        set.iter().map(|(name, number, what)| format!("{number} {what} ({name})")).collect();
    let by = route.gateway.as_ref().map(|gateway| format!(" via {gateway}")).unwrap_or_default();
    let dev = route.dev.as_ref().map(|dev| format!(" dev {dev}")).unwrap_or_default();
    let numbers: Vec<String> =
        set.iter().map(|(name, number, _)| format!("{name} {number}")).collect();
    let quote = Quote {
        file: "ip -d route show table all".to_owned(),
        line: None,
        text: format!("{}{by}{dev} {}", route.dst, numbers.join(" ")),
    };
    let summary = format!("the route to {} limits TCP: {}", route.dst, said.join(", "));
    Some(
        Finding::new(Severity::Warning, route.dst.clone(), summary)
            .cause(
                "The route allows no more, whatever the connection and the path would allow. New \
                 connections have this limit from their start.",
            )
            .quote([quote])
            .advise(Advice::by_hand(
                "If no one knows its purpose, set the route again without it (ip route replace), \
                 and remove it from what sets it at each start.",
                &["ip -d route show table all"],
            )),
    )
}
