//! The direction of dependencies.

use serde::Deserialize;

/// A crate may depend only on crates of rows above its own. A crate that is not listed belongs to
/// the last row but one: it may use everything above, and only the last row may use it.
const ROWS: [&[&str]; 7] = [
    &["wire"],
    &["sys", "datapath", "confine"],
    &["hypervisor", "ring", "steering", "control", "net", "tap", "switch", "xenbus", "xenstore"],
    &["netback", "netfront", "emu", "xen", "worker", "vif-shell"],
    &["backend", "frontend"],
    &["lab", "doctor"],
    &["ringway", "bench", "xtask"],
];

/// Invariants that rows do not express: who must never name whom, not even in a test.
const NEVER: [(&str, &[&str]); 5] = [
    ("netback", &["emu", "xen"]),
    ("netfront", &["emu", "xen"]),
    ("ring", &["hypervisor"]),
    ("switch", &["ring", "hypervisor", "netback", "netfront"]),
    ("datapath", &["sys"]),
];

/// Only the crates at the edge may use a catch-all error.
const EDGE_ONLY: &[&str] = &["anyhow"];

/// The part of `cargo metadata` that matters here.
#[derive(Debug, Deserialize)]
pub(crate) struct Metadata {
    pub(crate) packages: Vec<Package>,
}

/// A crate of the workspace.
#[derive(Debug, Deserialize)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) dependencies: Vec<Dependency>,
}

/// What it depends on.
#[derive(Debug, Deserialize)]
pub(crate) struct Dependency {
    pub(crate) name: String,
    /// `null`, "dev" or "build".
    pub(crate) kind: Option<String>,
    /// Set for crates of the workspace.
    pub(crate) path: Option<String>,
}

/// Every dependency against the direction, one line each.
pub(crate) fn look(metadata: &Metadata) -> Vec<String> {
    let mut findings = Vec::new();
    for package in &metadata.packages {
        let name = short(&package.name);
        for dependency in &package.dependencies {
            let is_test = dependency.kind.as_deref() == Some("dev");
            let other = short(&dependency.name);
            if dependency.path.is_none() {
                if EDGE_ONLY.contains(&other) && row(name) + 2 < ROWS.len() && !is_test {
                    findings.push(format!("{name}: errors of {other} are for the edge only"));
                }
                continue;
            }
            // Tests may reach sideways and down: they are nobody's dependency.
            if !is_test && row(other) >= row(name) {
                findings.push(format!("{name} depends on {other}, which is not above it"));
            }
            if NEVER.iter().any(|(who, never)| *who == name && never.contains(&other)) {
                findings.push(format!("{name} must never name {other}"));
            }
        }
    }
    findings
}

fn short(name: &str) -> &str {
    name.strip_prefix("ringway-").unwrap_or(name)
}

fn row(name: &str) -> usize {
    ROWS.iter().position(|row| row.contains(&name)).unwrap_or(ROWS.len() - 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(name: &str, dependency: &str, kind: Option<&str>, is_ours: bool) -> usize {
        let dependency = Dependency {
            name: dependency.to_owned(),
            kind: kind.map(str::to_owned),
            path: is_ours.then(String::new),
        };
        let package = Package { name: name.to_owned(), dependencies: vec![dependency] };
        look(&Metadata { packages: vec![package] }).len()
    }

    #[test]
    fn dependencies_point_upwards() {
        assert_eq!(findings("ringway-netback", "ringway-ring", None, true), 0);
        assert_eq!(findings("ringway-ring", "ringway-netback", None, true), 1);
        assert_eq!(findings("ringway-sys", "ringway-datapath", None, true), 1);
        assert_eq!(findings("ringway", "ringway-new", None, true), 0);
        assert_eq!(findings("ringway-backend", "ringway-new", None, true), 1);
    }

    #[test]
    fn tests_may_look_sideways_but_not_everywhere() {
        assert_eq!(findings("ringway-netfront", "ringway-netback", Some("dev"), true), 0);
        assert_eq!(findings("ringway-netback", "ringway-emu", Some("dev"), true), 1);
    }

    #[test]
    fn catch_all_errors_stay_at_the_edge() {
        assert_eq!(findings("ringway-ring", "anyhow", None, false), 1);
        assert_eq!(findings("ringway", "anyhow", None, false), 0);
        assert_eq!(findings("ringway-ring", "thiserror", None, false), 0);
    }
}
