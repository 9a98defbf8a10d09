//! The page of a report in a browser: on a phone nothing is wider than the screen, and each text
//! can be read on light and on dark paper.

mod saved;

use ringway_doctor::evidence::Source;
use ringway_doctor::fact::Host;
use ringway_doctor::finding::{Advice, Finding, Severity};
use ringway_doctor::report::{Report, page};
use ringway_e2e::browser::{Browser, Scheme};
use serde_json::json;

#[test]
fn a_page_fits_a_phone_and_can_be_read_on_light_and_on_dark_paper() {
    let Some(browser) = Browser::find() else { return };
    let mut pages: Vec<(String, String)> = saved::hosts()
        .into_iter()
        .filter(|(name, _)| name.ends_with("-sos"))
        .map(|(name, pieces)| (name, page(&Report::of(&Host::new(Source::Memory(pieces)), &[]))))
        .collect();
    pages.push(("a long name".to_owned(), page(&with_a_long_name())));
    for (name, page) in &pages {
        for (width, scheme) in [(390, Scheme::Light), (390, Scheme::Dark)] {
            let dark = scheme == Scheme::Dark;
            let sound =
                json!({ "dark": dark, "missing": 0, "hidden": 0, "overflow": 0, "faint": [] });
            assert_eq!(browser.look(page, width, scheme), Ok(sound), "{name} at {width}");
        }
    }
}

/// A report with a name that no line of a phone holds, wherever a host's names are shown.
fn with_a_long_name() -> Report {
    let name = "/system.slice/".to_owned() + &"a".repeat(200);
    let mut report = Report::of(&Host::new(Source::Memory([].into())), &["D34".to_owned()]);
    let finding = Finding::new(Severity::Problem, name.clone(), format!("{name} is throttled"))
        .cause(name.clone())
        .advise(Advice::by_hand(name.clone(), &[name.as_str()]));
    report.verdict.clone_from(&name);
    report.remarks = vec![name.clone()];
    report.findings = vec![Finding { check: "D34".to_owned(), netns: Some(name), ..finding }];
    report
}
