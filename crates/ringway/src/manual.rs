//! The manual page `ringway.toml(5)`, made of the example that has every key.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use ringway_host::{Change, KEYS};
use ringway_xenbus::{LIMITS, Limit};
use roff::{Roff, bold, roman};

/// Comments before the keys that they are about, in sections.
const EXAMPLE: &str = include_str!("../examples/full.toml");
/// Lines at its top that are about the file itself.
const HEAD_LINES: usize = 2;
/// The name of the page's file.
const FILE: &str = "ringway.toml.5";

const DESCRIPTION: [&str; 3] = [
    "ringway.toml describes a host: what its switch, its uplink and its vifs are like. `ringway \
     run --config FILE` reads it, and with --check says only whether it is valid, by line and \
     key. /etc/ringway/ringway.toml is that of a Xen host, whose guests and vifs come from its \
     toolstack, and has no [[guest]] and no [[bridge]]; /etc/ringway/host.toml is that of a host \
     of virtual machines behind vhost-user sockets.",
    "The file is TOML. A key that is not listed here is refused. Every key may be left out, except \
     the name of a [[bridge]], a [[guest]], a [[vhost]] or a [[namespace]], and the socket of a \
     [[vhost]].",
    "Each key below has its default, unless a comment says otherwise.",
];

const RELOADED: &str = "SIGHUP to `ringway run`, or `systemctl reload`, has a running host read \
    its description again. One with faults changes nothing. Otherwise every [[vhost]] and \
    [[namespace]] that is gone ends, a new one is served, and one that is as before loses no \
    frame. What `ringway vif set` has changed stays, unless the description has another value of \
    the same key than before. Of [switch], locking-mode, addresses-per-vif and limits apply at \
    once, of [host] max-queues to guests of Xen that connect from then on, and of an [uplink] with \
    the same name vlan, trunk, multicast-router and limits. A new [[bridge]] is made. All else \
    applies at the next start of the host, as does the first [[namespace]] of a host, and with \
    `isolate` all but [[vhost]] and [[namespace]]. The log names what has changed, and what stays \
    as it was.";
const APPLIES: &str = "Of a [[vhost]] or [[namespace]] these apply at once: ";
const STAYS: &str = "These stay as they were until it is removed and added again, or the host is \
    started again; with another bridge, all stay: ";

/// Writes the page into a directory.
///
/// # Errors
/// It cannot be written.
pub(crate) fn write(dir: &Path) -> Result<()> {
    let file = dir.join(FILE);
    fs::write(&file, page()).with_context(|| format!("write {}", file.display()))
}

fn page() -> String {
    let mut page = Roff::new();
    page.control("TH", ["RINGWAY.TOML", "5"]);
    page.control("SH", ["NAME"]);
    page.text([roman("ringway.toml, host.toml - the description of a host of ringway")]);
    page.control("SH", ["DESCRIPTION"]);
    for paragraph in DESCRIPTION {
        page.control("PP", []).text([roman(paragraph)]);
    }
    page.control("SH", ["SECTIONS AND KEYS"]);
    let mut comment: Vec<&str> = Vec::new();
    let mut has_keys = false;
    for line in EXAMPLE.lines().skip(HEAD_LINES).chain([""]) {
        let is_key = !line.is_empty() && !line.starts_with(['#', '[']);
        if has_keys && !is_key {
            page.control("fi", []).control("RE", []);
        }
        match line.strip_prefix('#') {
            Some(text) => comment.push(text.trim()),
            None => {
                if line.starts_with('[') {
                    page.control("SS", [line]);
                }
                if !comment.is_empty() {
                    page.control("PP", []).text([roman(comment.join(" "))]);
                    comment.clear();
                }
                if is_key && !has_keys {
                    page.control("RS", ["4"]).control("nf", []);
                }
            }
        }
        has_keys = is_key;
        if is_key {
            page.text([bold(line)]);
        }
    }
    page.control("SH", ["A CHANGED DESCRIPTION"]);
    page.control("PP", []).text([roman(RELOADED)]);
    for (change, what) in [(Change::Live, APPLIES), (Change::Later, STAYS)] {
        let keys = KEYS.iter().filter(|key| key.change == change).map(|key| key.name);
        let limits = LIMITS.iter().filter(|_| change == Change::Live).map(Limit::name);
        let keys: Vec<&str> = keys.chain(limits).collect();
        page.control("PP", []).text([roman(what), bold(keys.join(", "))]);
    }
    page.control("SH", ["SEE ALSO"]);
    page.text([bold("ringway-run"), roman("(1), /usr/share/doc/ringway")]);
    page.render()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_each_section_and_key_of_the_example() {
        let page = page().replace("\\-", "-");
        for line in EXAMPLE.lines().skip(HEAD_LINES).filter(|line| !line.starts_with('#')) {
            // What follows may have quotation marks, which are written in another way there.
            let key = line.split('"').next().unwrap_or_default();
            assert!(page.contains(key), "{line}");
        }
        for key in KEYS {
            assert!(page.contains(key.name), "{}", key.name);
        }
        let [start, end] = [".RS 4\n.nf\n", ".fi\n.RE\n"].map(|part| page.matches(part).count());
        assert!(start > 20 && start == end, "{start} blocks begin, {end} end");
    }
}
