//! D30: a limit was set, and traffic is at it.

#[path = "limits/police.rs"]
mod police;
#[path = "limits/ringway.rs"]
mod ringway;

use std::ops::RangeInclusive;

use crate::check::{Check, Group, Judged, Verdicts, rule};
use crate::finding::{Advice, Change, Confidence, Finding, Knob, Severity, shell_word};
use ringway_evidence::fact::{
    Basis, ClassCounters, DefaultQdisc, Disciplines, FilterCounters, Interfaces, Span,
    SwitchLimits, Tried, VifStore, float,
};
use ringway_evidence::facts;
use ringway_evidence::parse::classes::{Class, Sent};
use ringway_evidence::parse::nic::{Moved, NicCounters};
use ringway_evidence::parse::ovs::Policing;
use ringway_evidence::parse::qdisc::Qdisc;
use ringway_evidence::parse::ringway::Vifs;
use ringway_evidence::parse::xenstore::Nodes;
use ringway_evidence::{Gap, Quote};

pub(crate) const CHECK: Check = Check {
    id: "D30",
    slug: "limits",
    title: "a limit is configured",
    group: Group::Links,
    sources: &["throughput-guide:physical-limit"],
    explanation: include_str!("limits.txt"),
    absent: "no interface",
    rule: rule!(Facts, judge),
};

facts! {
    struct Facts {
        moved: Span<NicCounters>,
        disciplines: Tried<Disciplines>,
        classes: ClassCounters,
        filters: FilterCounters,
        default: Tried<DefaultQdisc>,
        store: Tried<VifStore>,
        nics: Interfaces,
        switch: Tried<SwitchLimits>,
        vifs: Tried<Span<Vifs>>,
    }
}

/// Traffic relative to a limit that holds it.
const AT_LIMIT: RangeInclusive<f64> = 0.9..=1.1;
/// Traffic relative to a limit that drops the excess: TCP stays well below it, and traffic without
/// congestion control is counted before it is dropped.
const AT_POLICE: RangeInclusive<f64> = 0.7..=f64::INFINITY;
/// Traffic relative to a limit of which each connection has the whole.
const AT_EACH: RangeInclusive<f64> = 0.9..=f64::INFINITY;
/// Traffic relative to a limit from which waiting or drops are due to the limit: each drop halves
/// TCP's rate, while a burst that is briefly delayed does not show a limit.
const PRESSED_MIN: f64 = 0.3;
const STORE: &str = "/local/domain/0/backend/vif";

/// A limit that was set for one direction of an interface.
struct Limit {
    nic: String,
    bytes_per_second: f64,
    /// Bytes that passed it between the samples; `None` for all of the interface.
    passed: Option<u64>,
    /// From the host's side.
    is_sent: bool,
    quote: Quote,
    /// Traffic relative to the limit that shows that it is in effect.
    held: RangeInclusive<f64>,
    /// Whether more arrived than was allowed: TCP then stays below the limit.
    is_pressed: bool,
    /// The number of parts of the interface that each have the whole rate.
    parts: u64,
    /// What removes it, if one setting of this host does.
    remedy: Remedy,
}

/// What removes a limit.
enum Remedy {
    Change(Change),
    Command(String),
    /// It is somewhere in a toolstack.
    Elsewhere,
}

fn judge(facts: &Facts, out: &mut Verdicts) -> Judged {
    let span = &facts.moved;
    let vifs = out.tried(&facts.vifs, "vifs of ringway");
    let mut limits = shaped(facts)?;
    // ringway says what is in force of its own vifs, and counts what passed them.
    let is_own =
        |nic: &str| vifs.is_some_and(|span| span.after.all.iter().any(|it| it.name == nic));
    limits.extend(rates(facts)?.into_iter().filter(|limit| !is_own(&limit.nic)));
    limits.extend(vifs.into_iter().flat_map(ringway::rates));
    let switched = switched(facts)?;
    let known: Vec<String> = switched.iter().map(|limit| limit.nic.clone()).collect();
    limits.extend(switched);
    let policed = police::inspect(facts, &known)?;
    let floods = vifs.map(ringway::drops).unwrap_or_default();
    let count = limits.len() + policed.count + floods.count;
    out.add(policed.findings.into_iter().chain(floods.findings));
    for limit in &limits {
        let moved = span
            .after
            .nics
            .get(&limit.nic)
            .and_then(|after| Some(after.since(&span.past(span.before.nics.get(&limit.nic))?)));
        // A guest of virtio has no interface on this host, but ringway counts its bytes.
        if moved.is_some() || limit.passed.is_some() {
            out.add(reached(limit, moved.as_ref(), span));
        }
    }
    // Where a part is unknown, there may be one. Without their tools, Xen and Open vSwitch are not
    // there.
    for (gap, whose) in [(facts.store.get().err(), "XenStore"), (facts.switch.get().err(), "ovs")] {
        out.add(gap.filter(Gap::is_refusal).map(|gap| Finding::gap(whose, &gap)));
    }
    if count == 0 {
        facts.disciplines.get()?;
        out.well("no limit is configured that the doctor knows of", None);
        return Ok(());
    }
    out.tried(&facts.disciplines, "queueing disciplines");
    let quote = limits.first().map(|limit| limit.quote.clone());
    let quote = quote.or(policed.quote).or(floods.quote);
    let reached = match span.basis {
        Basis::Samples => ", and none is reached",
        Basis::SinceBoot => "; what reaches them is only known since the boot",
    };
    out.well(format!("{count} limits are configured{reached}"), quote);
    Ok(())
}

fn reached(limit: &Limit, moved: Option<&Moved>, span: &Span<NicCounters>) -> Option<Finding> {
    let all = |moved: &Moved| if limit.is_sent { moved.tx_bytes } else { moved.rx_bytes };
    let bytes = limit.passed.or(moved.map(all))?;
    let rate = float(bytes) / span.seconds;
    let share = |parts: u64| rate / (limit.bytes_per_second * float(parts));
    let is_held = |parts: &u64| limit.held.contains(&share(*parts));
    let is_below = limit.is_pressed && (PRESSED_MIN..=1.0).contains(&share(1));
    let parts = [1, limit.parts].into_iter().find(is_held).or(is_below.then_some(1))?;
    if span.basis == Basis::SinceBoot {
        return None;
    }
    let Limit { nic, .. } = limit;
    let most = shown(limit.bytes_per_second);
    let way = if limit.is_sent { "to" } else { "from" };
    let mut summary = format!("traffic {way} {nic} reaches its configured limit of {most}");
    if !is_held(&parts) {
        let moved = shown(rate);
        summary =
            format!("traffic {way} {nic} is held at {moved} by its configured limit of {most}");
    }
    let mut cause =
        "When a limit is reached, throughput stays the same whatever else you change.".to_owned();
    if parts > 1 {
        summary += &format!(", {parts} times");
        cause += &format!(
            " Linux' netback applies it to each queue, so {parts} queues may use {parts} times as \
             much."
        );
    }
    let finding = Finding::new(Severity::Warning, nic.clone(), summary)
        .cause(cause)
        .quote([limit.quote.clone()])
        .quote(moved.map(|moved| span.text.quote(moved.line)))
        .confidence(Confidence::Medium);
    let text = "If it is not intended, remove it where it was set: in the toolstack (the vif's \
                rate, or rate and rate-rx of ringway), in libvirt (<bandwidth>), with tc, or in \
                Open vSwitch.";
    let finding = finding.advise(match &limit.remedy {
        Remedy::Change(change) => Advice::by_change(text, [change.clone()]),
        Remedy::Command(command) => Advice::by_hand(text, &[command]),
        Remedy::Elsewhere => Advice::by_hand(text, &[]),
    });
    Some(finding)
}

/// A rate for people.
fn shown(bytes_per_second: f64) -> String {
    let kbit = bytes_per_second * 8.0 / 1e3;
    if kbit < 1e3 { format!("{kbit:.0} kbit/s") } else { format!("{:.0} Mbit/s", kbit / 1e3) }
}

/// Disciplines and classes that shape what an interface sends.
fn shaped(facts: &Facts) -> Result<Vec<Limit>, Gap> {
    let Disciplines { before, now, text } = match facts.disciplines.get() {
        Err(Gap::Missing { .. }) => return Ok(Vec::new()),
        other => other?,
    };
    // The discipline before the limit is unknown. Every kernel has pfifo_fast.
    let default = facts.default.ok();
    let default = default.map_or_else(|| "pfifo_fast".to_owned(), |text| text.value().to_owned());
    let limit = |qdisc: &Qdisc| {
        let rate = qdisc.rate()?;
        let known = before.same(qdisc);
        let before = known.map_or_else(|| qdisc.sent(), Qdisc::sent);
        let sent = qdisc.sent().since(&before);
        let (kind, nic) = (&qdisc.kind, &qdisc.dev);
        let said = format!(
            "{kind} of {nic}: rate {rate} bytes/s, since the first sample {} drops, {} \
             overlimits; {} bytes wait",
            sent.dropped, sent.overlimits, sent.backlog
        );
        let remedy = match kind.as_str() {
            // One below another discipline is part of a plan, and the root is not it.
            "tbf" if qdisc.parent.is_none() => {
                Remedy::Change(Change::replace(Knob::Qdisc { nic: nic.clone() }, None, &default)?)
            }
            _ => Remedy::Elsewhere,
        };
        Some(Limit {
            nic: nic.clone(),
            bytes_per_second: float(rate),
            passed: Some(sent.bytes).filter(|bytes| *bytes > 0),
            is_sent: true,
            quote: Quote { file: text.origin().to_owned(), line: None, text: said },
            // Each connection has the rate of fq.
            held: if kind == "fq" { AT_EACH } else { AT_LIMIT },
            is_pressed: sent.is_over_limit(),
            parts: 1,
            remedy,
        })
    };
    let mut limits: Vec<Limit> = now.all.iter().filter_map(limit).collect();
    for nic in now.with_classes() {
        let roots = now.all.iter().filter(|one| one.dev == nic && one.has_classes());
        let delays = roots.map(|root| {
            let before = before.same(root).map_or_else(|| root.sent(), Qdisc::sent);
            root.sent().since(&before).overlimits
        });
        limits.extend(of_classes(facts, nic, delays.sum())?);
    }
    Ok(limits)
}

/// The class of an interface that sent the most, of those at their limit if there are any.
///
/// `delays` is how often its discipline delayed a packet: HFSC, and HTB before Linux 5.5, do not
/// count that for each class.
fn of_classes(facts: &Facts, nic: &str, delays: u64) -> Result<Option<Limit>, Gap> {
    let span = match facts.classes.of(nic) {
        Err(Gap::Missing { .. }) => return Ok(None),
        other => other?,
    };
    let is_counted = span.after.all.values().any(|class| class.sent.overlimits > 0);
    let at_work = span.after.all.iter().filter_map(|(handle, class)| {
        let before = span.past(span.before.all.get(handle))?;
        let mut sent = class.sent.since(&before.sent);
        if !is_counted {
            sent.overlimits = delays;
        }
        Some((sent, class))
    });
    let is_held = |(sent, class): &(Sent, &Class)| {
        let share = float(sent.bytes) * 8.0 / span.seconds / class.bits.max(1.0);
        AT_LIMIT.contains(&share) || sent.is_over_limit() && share >= PRESSED_MIN
    };
    let most = at_work.max_by_key(|one| (is_held(one), one.0.bytes));
    Ok(most.map(|(sent, class)| Limit {
        nic: nic.to_owned(),
        bytes_per_second: class.bits / 8.0,
        passed: Some(sent.bytes),
        is_sent: true,
        quote: span.text.quote(class.line),
        held: AT_LIMIT,
        is_pressed: sent.is_over_limit(),
        parts: 1,
        remedy: Remedy::Elsewhere,
    }))
}

/// Limits that a toolstack set for a vif's guest: bytes it may send per interval in microseconds.
fn rates(facts: &Facts) -> Result<Vec<Limit>, Gap> {
    let text = match facts.store.get() {
        Err(Gap::Missing { .. }) => return Ok(Vec::new()),
        other => other?,
    };
    let nodes = Nodes::parse(text)?;
    let mut limits = Vec::new();
    for path in nodes.paths() {
        let Some(vif) = path.strip_prefix(STORE).and_then(|path| path.strip_suffix("/rate")) else {
            continue;
        };
        let line = nodes.line(path);
        let refuse = || text.unreadable(line, "expected \"BYTES,MICROSECONDS\"");
        let (bytes, usec) =
            nodes.get(path).and_then(|rate| rate.split_once(',')).ok_or_else(refuse)?;
        let bytes: u64 = bytes.parse().map_err(|_| refuse())?;
        let usec: u64 = usec.parse().map_err(|_| refuse())?;
        // A 0 in either place is no limit.
        if bytes > 0 && usec > 0 {
            let nic = format!("vif{}", vif.trim_matches('/').replace('/', "."));
            let bytes_per_second = float(bytes) * 1e6 / float(usec);
            let quote = text.quote(line.unwrap_or(1));
            limits.push(Limit {
                bytes_per_second,
                passed: None,
                is_sent: false,
                quote,
                held: AT_LIMIT,
                is_pressed: false,
                parts: credits(facts, &nic),
                remedy: Remedy::Elsewhere,
                nic,
            });
        }
    }
    Ok(limits)
}

/// The number of queues that each have a vif's rate: all of them with Linux' netback, whose
/// `connect` sets `credit_bytes` of every queue; with another backend the whole vif shares it.
fn credits(facts: &Facts, vif: &str) -> u64 {
    let is_linux = facts.nics.driver(vif).as_deref() == Some("vif");
    if is_linux { facts.nics.tx_queues(vif).map_or(1, |(queues, _)| queues) } else { 1 }
}

/// Ingress limits of Open vSwitch; it drops the excess.
fn switched(facts: &Facts) -> Result<Vec<Limit>, Gap> {
    let text = match facts.switch.get() {
        Err(Gap::Missing { .. }) => return Ok(Vec::new()),
        other => other?,
    };
    let limits = Policing::parse(text)?.limits.into_iter().map(|(nic, kbit, line)| Limit {
        bytes_per_second: float(kbit) * 1000.0 / 8.0,
        passed: None,
        is_sent: false,
        quote: text.quote(line),
        held: AT_POLICE,
        is_pressed: false,
        parts: 1,
        remedy: Remedy::Command(format!(
            "ovs-vsctl set interface {} ingress_policing_rate=0",
            shell_word(&nic)
        )),
        nic,
    });
    Ok(limits.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosts::{host, net_dev, sampled};

    /// The findings for a host whose eth0 sent this many bytes in a second, with tc's output at
    /// both samples.
    fn found(bytes: u64, tc: [(&str, &str); 2]) -> Vec<Finding> {
        CHECK.run(&host(sampled(|sample| {
            let (bytes, (qdiscs, classes)) = if sample == 1 { (0, tc[0]) } else { (bytes, tc[1]) };
            let dev = net_dev(&format!("  eth0: 0 0 0 0 0 0 0 0 {bytes} 1 0 0 0 0 0 0\n"));
            [
                ("proc/net/dev", dev),
                ("commands/tc_-s_-j_qdisc_show", format!("{qdiscs}\n")),
                ("commands/tc_-s_class_show_dev_eth0", classes.to_owned()),
                ("commands/tc_-s_filter_show_dev_eth0", String::new()),
            ]
        })))
    }

    fn qdisc(kind: &str, options: &str, drops: u64) -> String {
        format!(
            r#"[{{"kind":"{kind}","dev":"eth0","options":{options},
                "drops":{drops},"overlimits":{drops}}}]"#
        )
    }

    #[test]
    fn what_drops_before_a_limit_is_held_below_it() {
        let options = r#"{"rate":1250000}"#;
        let (before, after) = (qdisc("tbf", options, 0), qdisc("tbf", options, 90));
        let held = found(600_000, [(&before, ""), (&after, "")]);
        assert_eq!(held[0].severity, Severity::Warning, "{held:#?}");
        assert!(
            held[0].summary.contains("held at 5 Mbit/s by its configured limit of 10 Mbit/s"),
            "{held:#?}"
        );
        // Nothing waits or is dropped, so the limit is not in effect.
        let free = found(600_000, [(&before, ""), (&before, "")]);
        assert_eq!(free[0].severity, Severity::Ok, "{free:#?}");
    }

    #[test]
    fn a_small_limit_is_shown_in_small_units() {
        let text = qdisc("tbf", r#"{"rate":12500}"#, 0);
        let held = found(12_400, [(&text, ""), (&text, "")]);
        assert!(held[0].summary.ends_with("its configured limit of 100 kbit/s"), "{held:#?}");
    }

    #[test]
    fn every_discipline_with_a_rate_is_a_limit() {
        let kinds = [
            ("cake", r#"{"bandwidth":1250000}"#),
            ("fq", r#"{"maxrate":1250000}"#),
            ("netem", r#"{"rate":{"rate":1250000}}"#),
            ("tbf", r#"{"rate":1250000}"#),
        ];
        for (kind, options) in kinds {
            let text = qdisc(kind, options, 0);
            let held = found(1_240_000, [(&text, ""), (&text, "")]);
            assert!(
                held[0].summary.contains("reaches its configured limit of 10 Mbit/s"),
                "{kind}: {held:#?}"
            );
        }
        let text = qdisc("cake", r#"{"bandwidth":"unlimited"}"#, 0);
        assert_eq!(found(1_240_000, [(&text, ""), (&text, "")])[0].severity, Severity::Ok);
    }

    #[test]
    fn classes_of_htb_and_hfsc_are_limits() {
        for (kind, words) in [("htb", "ceil 10Mbit"), ("hfsc", "ul m1 0bit d 0us m2 10Mbit")] {
            let class = |bytes: u64, lost: u64| {
                format!(
                    "class {kind} 1:1 root {words} \n Sent {bytes} bytes 1 pkt (dropped {lost}, \
                     overlimits {lost} requeues 0) \n backlog 0b 0p requeues 0\n"
                )
            };
            let root = qdisc(kind, "{}", 0);
            let held = found(700_000, [(&root, &class(0, 0)), (&root, &class(700_000, 60))]);
            assert!(
                held[0].summary.contains("held at 6 Mbit/s by its configured limit of 10"),
                "{kind}: {held:#?}"
            );
            let free = found(700_000, [(&root, &class(0, 0)), (&root, &class(700_000, 0))]);
            assert_eq!(free[0].severity, Severity::Ok, "{kind}: {free:#?}");
        }
    }

    #[test]
    fn a_class_of_hfsc_is_held_if_its_discipline_delays() {
        let class = |bytes: u64, lost: u64| {
            format!(
                "class hfsc 1:1 root ul m1 0bit d 0us m2 10Mbit \n Sent {bytes} bytes 1 pkt \
                 (dropped {lost}, overlimits 0 requeues 0) \n backlog 0b 0p requeues 0\n"
            )
        };
        let (before, after) = (qdisc("hfsc", "{}", 0), qdisc("hfsc", "{}", 60));
        let held = found(700_000, [(&before, &class(0, 0)), (&after, &class(700_000, 60))]);
        assert!(held[0].summary.contains("held at 6 Mbit/s by its configured"), "{held:#?}");
        let free = found(700_000, [(&before, &class(0, 0)), (&before, &class(700_000, 60))]);
        assert_eq!(free[0].severity, Severity::Ok, "{free:#?}");
    }

    #[test]
    fn limits_that_could_not_be_read_are_no_free_way() {
        let found = |refused: &str| {
            let mut files = sampled(|_| {
                let none = ("commands/tc_-s_-j_qdisc_show", "[]\n".to_owned());
                [("proc/net/dev", net_dev("")), none]
            });
            files.push(("refused".to_owned(), refused.to_owned()));
            CHECK.run(&host(files)).remove(0)
        };
        let path =
            "commands/ovs-vsctl_--columns_name_ingress_policing_rate_list_interface".to_owned();
        let locked = found(&format!("{path}\tdatabase connection failed (Permission denied)\n"));
        assert_eq!(locked.severity, Severity::Unknown, "{locked:#?}");
        let absent = found(&format!("{path}\tovs-vsctl is not installed\n"));
        assert_eq!(absent.severity, Severity::Ok, "{absent:#?}");
    }

    #[test]
    fn a_bucket_below_other_disciplines_is_judged_by_what_passes_it() {
        let two = |bytes: u64| {
            let tbf = r#""kind":"tbf","dev":"eth0","options":{"rate":1250000}"#;
            format!(
                r#"[{{"kind":"prio","dev":"eth0"}},{{{tbf},"parent":"1:1","bytes":{}}},
                    {{{tbf},"parent":"1:3","bytes":{bytes}}}]"#,
                bytes / 9
            )
        };
        let held = found(90_000_000, [(&two(0), ""), (&two(1_240_000), "")]);
        assert!(held[0].summary.contains("reaches its configured limit of 10 Mbit/s"), "{held:#?}");
        // To replace the root would take the rest away as well.
        assert!(held[0].advice.iter().all(|advice| advice.commands.is_empty()), "{held:#?}");
    }

    /// The findings for a guest of ringway which sends a thousand frames a second, receives so
    /// many bytes and has a rate of 1 Mbit/s for these; as many frames are dropped for a reason.
    fn of_ringway(bytes: u64, reason: &str, drops: u64) -> Vec<Finding> {
        CHECK.run(&host(sampled(|sample| {
            let (bytes, drops, frames) = (bytes * sample, drops * sample, 1000 * sample);
            let vifs = format!(
                r#"[{{"name":"vm1","kind":"virtio","max_queues":1,"limits":{{"weight":1,"rate":null,
                "flood_frames_per_second":1000,"rate_rx":{{"bytes":6250,"interval_us":50000}}}},
                "queues":[{{"index":0,"tx_packets":{frames},"tx_bytes":0,"rx_packets":9,
                "rx_bytes":{bytes},"dropped":{{"{reason}":{drops}}}}}]}}]"#
            );
            [
                ("proc/net/dev", net_dev("")),
                ("commands/ringway_vif_list_--json", vifs + "\n"),
                ("commands/tc_-s_-j_qdisc_show", "[]\n".to_owned()),
            ]
        })))
    }

    #[test]
    fn what_a_vif_may_not_flood_is_a_limit_of_it() {
        let held = of_ringway(0, "flood_limit", 300);
        assert_eq!((held.len(), held[0].severity), (1, Severity::Warning), "{held:#?}");
        let said = "a limit of vm1 drops 300.0 frames a second: flood_limit 300";
        assert_eq!(held[0].summary, said);
        // A few of many, and a rate that is not reached.
        for (reason, drops) in [("unknown_limit", 3), ("rate_limit", 9)] {
            let few = of_ringway(9, reason, drops);
            assert_eq!(few.len(), 1, "{few:#?}");
            assert!(few[0].summary.contains(reason), "{few:#?}");
        }
        let few = of_ringway(0, "unknown_limit", 3);
        let loss = Some("3.0 frames a second of vm1 die by its limit: unknown_limit 3");
        assert_eq!((few[0].severity, few[0].loss.as_deref()), (Severity::Note, loss), "{few:#?}");
        let none = of_ringway(0, "queue_full", 300);
        assert_eq!(none[0].summary, "2 limits are configured, and none is reached", "{none:#?}");
    }

    #[test]
    fn a_limit_of_a_virtio_guest_without_an_interface_is_seen() {
        let found = of_ringway(125_000, "rate_limit", 9000);
        assert_eq!((found.len(), found[0].severity), (1, Severity::Warning), "{found:#?}");
        assert!(found[0].summary.starts_with("traffic to vm1 reaches"), "{found:#?}");
        assert!(found[0].evidence[0].text.contains("9000 frames dropped"), "{found:#?}");
    }

    #[test]
    fn a_rate_that_both_xenstore_and_ringway_name_is_one_limit() {
        let store = "commands/xenstore-ls_-f_.local.domain.0.backend.vif".to_owned();
        let rate = "/local/domain/0/backend/vif/1/0/rate = \"6250,50000\"\n".to_owned();
        let mut files = sampled(|sample| {
            let bytes = 125_000 * sample;
            let vifs = format!(
                r#"[{{"name":"vif1.0","kind":"xen","max_queues":1,"limits":{{"weight":1,
                "rate":{{"bytes":6250,"interval_us":50000}}}},"queues":[{{"index":0,
                "tx_packets":9,"tx_bytes":{bytes},"rx_packets":9,"rx_bytes":0}}]}}]"#
            );
            let row = format!("vif1.0: {bytes} 9 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n");
            [
                ("proc/net/dev", net_dev(&row)),
                ("commands/ringway_vif_list_--json", vifs + "\n"),
                ("commands/tc_-s_-j_qdisc_show", "[]\n".to_owned()),
            ]
        });
        files.push((store, rate));
        let found = CHECK.run(&host(files));
        assert_eq!(found.len(), 1, "{found:#?}");
        assert!(found[0].summary.starts_with("traffic from vif1.0 reaches"), "{found:#?}");
        assert!(found[0].evidence[0].text.starts_with("vif1.0: rate 6250 bytes"), "{found:#?}");
    }
}
