//! D40: a route limits TCP, or drops.

use core::net::IpAddr;

use crate::check::{Check, Group, Judged, Verdicts, not_here, rule};
use crate::finding::{Advice, Finding, Severity};
use ringway_evidence::Quote;
use ringway_evidence::fact::{Blackholes, Routing, Tried};
use ringway_evidence::facts;
use ringway_evidence::parse::routes::{Route, Routes};

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
        blackholes: Tried<Blackholes>,
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
        out.add(with_control(route));
    }
    if let Some(Blackholes(dropping)) = out.tried(&facts.blackholes, "routes that drop") {
        out.add(dropping.all.iter().map(|route| blackhole(route, &routing.routes)));
    }
    out.well(format!("none of {} routes limits TCP", routing.routes.all.len()), None);
    Ok(())
}

/// A congestion control that new connections on a route have, whatever the host's setting is.
fn with_control(route: &Route) -> Option<Finding> {
    let control = route.metrics.iter().find_map(|all| all.get("congctl")?.as_str())?;
    let summary =
        format!("the route to {} sets the congestion control of connections: {control}", route.dst);
    let quote = quoted(route, &format!("congctl {control}"));
    Some(
        Finding::new(Severity::Note, route.dst.clone(), summary)
            .cause("New connections on this route have it, whatever the host's setting is.")
            .quote([quote]),
    )
}

/// A route that drops silently. One with narrower routes inside is what is left of a network whose
/// parts are elsewhere, as networks of containers make. One behind another route to the same
/// network is for when that has gone, as with a tunnel.
fn blackhole(route: &Route, others: &Routes) -> Finding {
    let mut others = others.all.iter();
    let is_rest = others.any(|it| is_inside(&it.dst, &route.dst) || it.comes_before(route));
    let summary = format!("what is sent to {} is dropped without a reply: blackhole", route.dst);
    let finding = Finding::new(Severity::Note, route.dst.clone(), summary)
        .cause(
            "A route of this type drops packets silently, and the kernel counts them nowhere: a \
             program that sends gets an error, one whose packets pass this host does not.",
        )
        .quote([quoted(route, "blackhole")]);
    match is_rest {
        true => finding,
        false => finding.loses(format!("what is sent to {} dies in a blackhole route", route.dst)),
    }
}

/// Whether a network is a part of another one, as IPv4 or IPv6 prefixes.
fn is_inside(part: &str, whole: &str) -> bool {
    let network = |text: &str| -> Option<(IpAddr, u32)> {
        let (address, bits) = text.split_once('/').unwrap_or((text, ""));
        let address: IpAddr = address.parse().ok()?;
        let all = if address.is_ipv4() { 32 } else { 128 };
        Some((address, if bits.is_empty() { all } else { bits.parse().ok()? }))
    };
    let (Some((part, part_bits)), Some((whole, bits))) = (network(part), network(whole)) else {
        return false;
    };
    // The first bits of both, as of an address of 128 bits.
    let first = |address: IpAddr, bits: u32| -> u128 {
        let (number, all) = match address {
            IpAddr::V4(address) => (u128::from(u32::from(address)), 32),
            IpAddr::V6(address) => (u128::from(address), 128),
        };
        number.checked_shr(all - bits.min(all)).unwrap_or(0)
    };
    part.is_ipv4() == whole.is_ipv4() && part_bits > bits && first(part, bits) == first(whole, bits)
}

fn quoted(route: &Route, what: &str) -> Quote {
    let by = route.gateway.as_ref().map(|gateway| format!(" via {gateway}")).unwrap_or_default();
    let dev = route.dev.as_ref().map(|dev| format!(" dev {dev}")).unwrap_or_default();
    Quote {
        file: "ip -d route show table all".to_owned(),
        line: None,
        text: format!("{}{by}{dev} {what}", route.dst),
    }
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
    let numbers: Vec<String> =
        set.iter().map(|(name, number, _)| format!("{name} {number}")).collect();
    let quote = quoted(route, &numbers.join(" "));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosts::host;

    /// What is found where these routes exist, of which some drop.
    fn found(routes: &str, blackholes: &str) -> Vec<Finding> {
        let pieces = [
            ("commands/ip_-d_-j_route_show_table_all_type_unicast", routes),
            ("commands/ip_-j_addr_show", "[]"),
            ("commands/ip_-j_route_show_table_all_type_blackhole", blackholes),
        ];
        CHECK.run(&host(pieces.map(|(path, text)| (path, format!("{text}\n")))))
    }

    #[test]
    fn a_route_that_drops_is_said_unless_it_is_the_rest_of_a_network() {
        let hole = r#"[{"type":"blackhole","dst":"10.9.0.0/16","flags":[]}]"#;
        let alone = found(r#"[{"dst":"default","dev":"a"}]"#, hole);
        assert_eq!(alone[0].severity, Severity::Note, "{alone:#?}");
        let loss = alone[0].loss.as_deref();
        assert_eq!(loss, Some("what is sent to 10.9.0.0/16 dies in a blackhole route"));
        let rest = found(r#"[{"dst":"10.9.7.1","dev":"cali7"}]"#, hole);
        assert_eq!((rest[0].severity, rest[0].loss.clone()), (Severity::Note, None), "{rest:#?}");
    }

    #[test]
    fn a_route_that_drops_behind_another_one_drops_nothing_yet() {
        let hole = r#"[{"type":"blackhole","dst":"default","metric":200,"flags":[]}]"#;
        let loses = |other: &str| {
            let other = format!(r#"[{{"dst":"default","dev":"wg0","flags":[],{other}}}]"#);
            found(&other, hole)[0].loss.is_some()
        };
        assert!(!loses(r#""metric":100,"table":"main""#));
        for other in [
            r#""metric":300,"table":"main""#,
            r#""metric":100,"table":"51820""#,
            r#""metric":100,"table":"main","pref":"medium""#,
        ] {
            assert!(loses(other), "{other}");
        }
    }

    #[test]
    fn routes_that_drop_and_cannot_be_read_are_said() {
        assert_eq!(found("[]", "[1")[0].severity, Severity::Unknown);
    }

    #[test]
    fn networks_inside_others_are_known() {
        for (part, whole) in [("10.9.7.1", "10.9.0.0/16"), ("2001:db8:9::/64", "2001:db8::/32")] {
            assert!(is_inside(part, whole), "{part} {whole}");
        }
        for (part, whole) in [
            ("10.8.7.1", "10.9.0.0/16"),
            ("10.9.0.0/16", "10.9.0.0/16"),
            ("default", "10.9.0.0/16"),
            ("::a09:701", "10.9.0.0/16"),
        ] {
            assert!(!is_inside(part, whole), "{part} {whole}");
        }
        assert!(is_inside("10.0.0.0/8", "0.0.0.0/0") && is_inside("::/1", "::/0"));
    }

    #[test]
    fn a_congestion_control_of_a_route_is_noted() {
        let found = found(r#"[{"dst":"10.8.0.0/16","metrics":[{"congctl":"reno"}]}]"#, "[]");
        assert_eq!(found[0].severity, Severity::Note, "{found:#?}");
        assert!(found[0].summary.ends_with("connections: reno"), "{found:#?}");
    }
}
