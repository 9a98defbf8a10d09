//! A sos report has the output of tools for people: the checks read it, and the verdict says what
//! was not checked.

mod saved;

use ringway_doctor::evidence::Source;
use ringway_doctor::fact::Host;
use ringway_doctor::finding::Severity;
use ringway_doctor::report::{How, Report};

/// A fixture's files, with more of them.
fn report(name: &str, more: &[(&str, &str)]) -> Report {
    let mut pieces = saved::host(name);
    pieces.extend(more.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())));
    Report::of(&Host::new(Source::Memory(pieces)), &[])
}

fn said<'a>(report: &'a Report, check: &str) -> Vec<&'a str> {
    let of = report.findings.iter().filter(|one| one.check == check);
    of.filter(|one| one.severity >= Severity::Warning).map(|one| one.summary.as_str()).collect()
}

#[test]
fn links_routes_and_rules_of_a_sos_report_are_checked() {
    let report = report("d08-sick-sos", &[]);
    let expected = "vx0 needs 1550 bytes with its headers, but ens3 below it takes 1500";
    assert_eq!(said(&report, "D08"), [expected]);
    let report = self::report("d39-sick-sos", &[]);
    assert_eq!(said(&report, "D39"), ["the next hop to default, 10.98.0.1, does not reply"]);
    let report = self::report("d43-sick-sos", &[]);
    assert!(said(&report, "D43")[0].contains("drops 12 packets a second"), "{report:#?}");
}

#[test]
fn a_verdict_says_what_was_not_checked() {
    let report = report("d08-sick-sos", &[]);
    assert!(report.scope.unread > 10, "{:#?}", report.scope);
    let unread: Vec<&str> =
        report.scope.missed(How::Unread).map(|one| one.check.as_str()).collect();
    assert!(unread.contains(&"D18") && !unread.contains(&"D08"), "{unread:?}");
}

#[test]
fn lines_that_cannot_be_read_are_counted_and_state_nothing() {
    let routes = "default via 10.98.0.1 dev ens3\n10.98.7.0/24 v\u{131}a nowhere\n? what\n";
    let path = "sos_commands/networking/ip_route_show_table_all";
    let report = report("d39-sick-sos", &[(path, routes)]);
    assert_eq!(said(&report, "D39").len(), 1);
    let command = "ip route show table all";
    assert_eq!(report.remarks, [format!("1 lines of `{command}` could not be read")]);
    let garbage = self::report("d39-sick-sos", &[(path, "? what\n")]);
    assert_eq!(said(&garbage, "D39"), Vec::<&str>::new());
}

#[test]
fn one_sample_has_no_check_mark_for_what_two_would_show() {
    let dev = "Inter-|   Receive   |  Transmit\n face |bytes    packets|bytes packets\n   \
               br0: 9 9 0 0 0 0 0 0 9 9 0 0 0 0 0 0\n";
    let bridge = ("sys/class/net/br0/bridge/ageing_time", "30000\n");
    let snmp = "Tcp: RetransSegs OutSegs\nTcp: 5 9\n";
    let more = [("proc/net/dev", dev), bridge, ("proc/net/snmp", snmp)];
    let report = report("d43-healthy-sos", &more);
    let marks = report.findings.iter().filter(|one| one.severity == Severity::Ok);
    let marks: Vec<&str> = marks.map(|one| one.check.as_str()).collect();
    assert!(marks.contains(&"D43"), "{marks:?}");
    assert!(!marks.contains(&"D42") && !marks.contains(&"D33"), "{marks:?}");
}
