//! Checks that `docs/confinement.md` says of all that a confined process keeps what an attacker in
//! it could do with that.
//!
//! Each call, argument, capability, device and right to files that `ringway_confine` lists for a
//! role is in one row of the page's tables for that role: `| roles, or all | `entry`, … | the worst
//! use | why it stays |`. Nothing else is in a row.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result};
use ringway_confine::Role;

use crate::tree::Tree;

const PAGE: &str = "docs/confinement.md";
/// The first line of a table.
const HEAD: &str = "| who | keeps | the worst use | why it stays |";
/// In place of all roles.
const ALL: &str = "all";

/// What each role keeps. The page has the names of x86-64, which has more calls than others.
type Kept = BTreeMap<String, BTreeSet<String>>;

/// Every difference between the page and the lists, one line each.
pub(crate) fn check(tree: &Tree) -> Result<Vec<String>> {
    if !cfg!(target_arch = "x86_64") {
        return Ok(Vec::new());
    }
    let of_role = |role: Role| Ok((format!("{role:?}"), ringway_confine::kept(role)?));
    compare(tree, &Role::ALL.into_iter().map(of_role).collect::<Result<Kept>>()?)
}

fn compare(tree: &Tree, kept: &Kept) -> Result<Vec<String>> {
    let page = tree.file(PAGE).with_context(|| format!("{PAGE} is missing"))?;
    let mut findings = Vec::new();
    let mut missing: BTreeSet<(&str, &str)> = kept
        .iter()
        .flat_map(|(role, all)| all.iter().map(|entry| (entry.as_str(), role.as_str())))
        .collect();
    let mut is_table = false;
    for line in page.lines() {
        is_table = line.text == HEAD || is_table && line.text.starts_with('|');
        if !is_table || line.text == HEAD || line.text.starts_with("|---") {
            continue;
        }
        let place = format!("{PAGE}:{}", line.number);
        let cells: Vec<&str> = line.text.trim_matches('|').split('|').map(str::trim).collect();
        let [who, entries, worst, why] = cells[..] else {
            findings.push(format!("{place}: a row has four cells"));
            continue;
        };
        if worst.is_empty() || why.is_empty() {
            findings.push(format!("{place}: a row says what the worst use is, and why it stays"));
        }
        let roles: Vec<&str> = match who {
            ALL => kept.keys().map(String::as_str).collect(),
            who => who.split(", ").collect(),
        };
        for role in roles {
            let Some(keeps) = kept.get(role) else {
                findings.push(format!("{place}: there is no role {role}"));
                continue;
            };
            for entry in entries.split('`').skip(1).step_by(2) {
                if !keeps.contains(entry) {
                    findings.push(format!(
                        "{place}: the role {role} does not keep `{entry}`: remove the entry or the \
                         role from this row"
                    ));
                } else if !missing.remove(&(entry, role)) {
                    findings.push(format!("{place}: `{entry}` of {role} is in another row, too"));
                }
            }
        }
    }
    findings.extend(missing.into_iter().map(|(entry, role)| {
        format!(
            "{PAGE}: the role {role} keeps `{entry}`: add it to a row of that role, which says \
             what an attacker could do with it"
        )
    }));
    Ok(findings)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::file;

    fn findings(rows: &str) -> Vec<String> {
        let kept = [("A", &["read", "ioctl X"][..]), ("B", &["read"])].map(|(role, entries)| {
            (role.to_owned(), entries.iter().map(|entry| (*entry).to_owned()).collect())
        });
        let page =
            format!("# Page\n\n{HEAD}\n|---|---|---|---|\n{rows}\n\n| A | `no` | row | x |\n");
        let tree = Tree { files: vec![file(PAGE, &page)] };
        compare(&tree, &kept.into()).expect("there is a page")
    }

    #[test]
    fn each_entry_of_each_role_is_in_one_row() {
        let all = "| all | `read` | a | b |";
        let of_a = "| A | `ioctl X` | a | b |";
        assert_eq!(findings(&format!("{all}\n{of_a}")), Vec::<String>::new());
        assert_eq!(findings("| A | `read`, `ioctl X` | a | b |\n| B | `read` | a | b |").len(), 0);
        for (rows, expected) in [
            (all.to_owned(), "the role A keeps `ioctl X`: add it to a row"),
            (
                format!("{all}\n| A, B | `ioctl X` | a | b |"),
                ":6: the role B does not keep `ioctl X`",
            ),
            (
                format!("{all}\n| A | `ioctl X`, `write` | a | b |"),
                "A does not keep `write`: remove",
            ),
            (format!("{all}\n{of_a}\n| B | `read` | a | b |"), ":7: `read` of B is in another row"),
            (format!("{all}\n{of_a}\n| C | `read` | a | b |"), ":7: there is no role C"),
            (format!("{all}\n| A | `ioctl X` |  | b |"), ":6: a row says what the worst use is"),
            (format!("{all}\n{of_a}\n| A | `read` |"), ":7: a row has four cells"),
        ] {
            let found = findings(&rows);
            assert!(found.len() == 1 && found[0].contains(expected), "{rows}\n{found:#?}");
        }
    }

    #[test]
    fn the_lists_of_a_role_have_the_names_of_the_page() {
        let kept = ringway_confine::kept(Role::Broker).expect("the filter can be built");
        let socket = "MakeSock where its sockets are";
        for entry in ["read", "ioctl FIONBIO", "fcntl F_ADD_SEALS", socket] {
            assert!(kept.contains(entry), "{entry}: {kept:?}");
        }
        assert!(!kept.iter().any(|entry| entry.starts_with("CAP_")), "{kept:?}");
    }
}
