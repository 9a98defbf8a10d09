//! The pages in the Debian packages: those of the tree, whose links lead to pages in packages.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use regex::{Captures, Regex};

use crate::links::resolve;

/// Pages by their places in the tree, and in /usr/share/doc.
const PAGES: [(&str, &str); 13] = [
    ("README.md", "ringway/README.md"),
    ("docs/first-steps.md", "ringway/first-steps.md"),
    ("docs/xen.md", "ringway/xen.md"),
    ("docs/virtio.md", "ringway/virtio.md"),
    ("docs/openstack.md", "ringway/openstack.md"),
    ("docs/qubes.md", "ringway/qubes.md"),
    ("docs/xcp-ng.md", "ringway/xcp-ng.md"),
    ("docs/production.md", "ringway/production.md"),
    ("docs/confinement.md", "ringway/confinement.md"),
    ("docs/threat-model.md", "ringway/threat-model.md"),
    ("docs/measured.md", "ringway/measured.md"),
    ("doctor/README.md", "ringway-doctor/README.md"),
    ("lab/README.md", "ringway-lab/README.md"),
];
/// Pages of the book that have the contents of others.
const SAME: [(&str, &str); 2] =
    [("docs/doctor.md", "doctor/README.md"), ("docs/lab.md", "lab/README.md")];

/// Writes the pages of all packages to `doc` in the folders of these.
pub(crate) fn write(root: &Path, packages: &Path) -> Result<()> {
    for (page, place) in PAGES {
        let text = fs::read_to_string(root.join(page)).context(page)?;
        let (package, name) = place.split_once('/').context(place)?;
        let folder = packages.join(package).join("doc");
        fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        fs::write(folder.join(name), packaged(page, &text)?).context(name)?;
    }
    Ok(())
}

/// The text of a page in its package. A link to what no package has becomes its words, and such an
/// image is left out.
fn packaged(page: &str, text: &str) -> Result<String> {
    let links = Regex::new(r"(!?)\[([^\[\]]*)\]\(([^)]*)\)")?;
    let shown = links.replace_all(text, |found: &Captures<'_>| {
        let (mark, words) = (&found[1], &found[2]);
        match place_of(page, &found[3]) {
            Some(place) => format!("{mark}[{words}]({place})"),
            None if mark.is_empty() => words.to_owned(),
            None => String::new(),
        }
    });
    Ok(shown.into_owned())
}

/// Where a link of a page leads in its package; `None` if no package has that.
fn place_of(page: &str, link: &str) -> Option<String> {
    if link.contains("://") || link.starts_with('#') {
        return Some(link.to_owned());
    }
    let (path, heading) = link.split_at(link.find('#').unwrap_or(link.len()));
    let target = resolve(page, path);
    let target = SAME.iter().find(|(same, _)| *same == target).map_or(&*target, |(_, page)| page);
    let place = |page: &str| PAGES.iter().find(|(known, _)| *known == page)?.1.split_once('/');
    let ((own, _), (package, name)) = (place(page)?, place(target)?);
    let folder = if package == own { String::new() } else { format!("../{package}/") };
    Some(format!("{folder}{name}{heading}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_lead_to_pages_in_packages_or_are_words() {
        for (page, text, expected) in [
            ("README.md", "a [b](docs/xen.md#c) d", "a [b](xen.md#c) d"),
            ("README.md", "[a](doctor/README.md)", "[a](../ringway-doctor/README.md)"),
            ("README.md", "[a](HACKING.md), [b](https://b.example/)", "a, [b](https://b.example/)"),
            ("README.md", "a\n![b](docs/figures/b.svg)\nc", "a\n\nc"),
            ("docs/xen.md", "[a\nb](lab.md) [c](#c)", "[a\nb](../ringway-lab/README.md) [c](#c)"),
            // It has no end.
            ("docs/xen.md", "[a](adr/0009-x.md", "[a](adr/0009-x.md"),
        ] {
            assert_eq!(packaged(page, text).expect("a pattern"), expected);
        }
    }

    /// Installed first, the rule would take Xen's devices from the group of Qubes' programs.
    #[test]
    fn a_template_of_qubes_masks_our_rule_before_it_installs_the_package() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let page = fs::read_to_string(root.join("docs/qubes.md")).expect("it is there");
        let at = |what: &str| page.find(what).expect(what);
        assert!(at("ln -s /dev/null /etc/udev/rules.d/60-ringway.rules") < at("apt install ./"));
    }

    #[test]
    fn no_page_of_a_package_has_a_dead_link() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let folder = tempfile::tempdir().expect("a directory");
        write(&root, folder.path()).expect("written");
        let links = Regex::new(r"\]\(([^):#]+)(?:#[^)]*)?\)").expect("a pattern");
        for (page, place) in PAGES {
            let (package, name) = place.split_once('/').expect("of a package");
            let file = folder.path().join(package).join("doc").join(name);
            let text = fs::read_to_string(file).expect("written");
            for link in links.captures_iter(&text) {
                let (package, name) = match link[1].strip_prefix("../") {
                    Some(other) => other.split_once('/').expect("of a package"),
                    None => (package, &link[1]),
                };
                let file = folder.path().join(package).join("doc").join(name);
                assert!(file.is_file(), "{page}: {}", &link[1]);
            }
        }
    }
}
