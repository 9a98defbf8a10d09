//! The layers of crates: which crate may depend on which.
//!
//! A crate may depend only on crates of layers below its own. Tests are free: `dev-dependencies`
//! may name crates of any layer, because nothing depends on a test. The drawing is the code map in
//! `ARCHITECTURE.md`. Each crate is in one layer here, and each name in the lists here and in `run`
//! is a crate, so that no list goes stale.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;

use crate::part::Part;

/// The crates of each layer, the bottom first.
const LAYERS: [&[&str]; 9] = [
    &["wire", "sources", "stats", "units"],
    &["sys", "datapath", "confine", "model"],
    &[
        "hypervisor",
        "ring",
        "virtio",
        "steering",
        "calls",
        "net",
        "tap",
        "switch",
        "xenbus",
        "vhost",
        "ovs",
        "watchdog",
    ],
    &[
        "netback",
        "netfront",
        "virtback",
        "virtfront",
        "emu",
        "loopback",
        "trunk",
        "xen",
        "engine",
        "xenstore",
        "control",
        "evidence",
    ],
    &["worker", "vif-shell", "vhost-shell", "checks"],
    &["host", "frontend", "description", "changes", "rig"],
    &["host-shell", "terminal"],
    &["backend", "lab", "doctor"],
    &["ringway", "bench", "e2e", "hostile", "sim", "unikernel", "xtask"],
];

/// Invariants that layers do not express: what a crate must not depend on, not even in a test.
const NEVER: [(&str, &[&str]); 10] = [
    ("netback", &["emu", "xen"]),
    // Others build guests from it, which have processes of their own kind.
    ("netfront", &["emu", "xen", "control", "confine", "watchdog", "net", "tap", "xenstore"]),
    ("virtback", &["hypervisor", "ring"]),
    ("virtfront", &["hypervisor", "ring"]),
    ("ring", &["hypervisor", "datapath"]),
    ("virtio", &["hypervisor", "datapath", "ring"]),
    ("switch", &["ring", "hypervisor", "netback", "netfront"]),
    ("datapath", &["sys"]),
    // A seed drives it.
    ("host", &["sys", "net", "tap", "worker", "emu", "xen", "trunk", "confine", "watchdog"]),
    ("engine", &["sys", "hypervisor", "ring", "netback", "netfront"]),
];

/// Features with intended defects, by crate and feature. Only one other crate may enable each, and
/// only for its tests.
const CANARIES: [(&str, &str, &str); 2] = [("ring", "canary", "sim"), ("host", "canary", "sim")];

/// Only the three topmost layers may use a catch-all error.
const EDGE_ONLY: &[&str] = &["anyhow"];
const EDGE_LAYERS: usize = 3;

/// The part of `cargo metadata` that matters here.
#[derive(Debug, Deserialize)]
pub(crate) struct Metadata {
    pub(crate) packages: Vec<Package>,
    pub(crate) workspace_root: PathBuf,
}

/// A crate of the workspace.
#[derive(Debug, Deserialize)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) manifest_path: PathBuf,
    pub(crate) dependencies: Vec<Dependency>,
    /// Its own features, with what each enables.
    #[serde(default)]
    pub(crate) features: BTreeMap<String, Vec<String>>,
}

/// What it depends on.
#[derive(Debug, Deserialize)]
pub(crate) struct Dependency {
    pub(crate) name: String,
    /// `null`, "dev" or "build".
    pub(crate) kind: Option<String>,
    /// Its folder; set for crates of the workspace.
    pub(crate) path: Option<PathBuf>,
    /// What it enables there.
    pub(crate) features: Vec<String>,
}

/// All violations, one line each. `others` are lists of crates that other files keep, by the place
/// to name for each.
pub(crate) fn check(metadata: &Metadata, others: &[(&str, &[&str])]) -> Vec<String> {
    let mut findings = unlisted(metadata);
    findings.extend(missing(metadata, others));
    findings.extend(directions(metadata));
    findings.extend(canaries(metadata));
    findings
}

/// Crates that are in no layer.
fn unlisted(metadata: &Metadata) -> Vec<String> {
    let names = metadata.packages.iter().map(|package| short(&package.name));
    let unlisted = names.filter(|name| layer(name).is_none());
    unlisted.map(|name| format!("{name} is in no layer: add it to `layers::LAYERS`")).collect()
}

/// Names in lists that are not crates.
fn missing(metadata: &Metadata, others: &[(&str, &[&str])]) -> Vec<String> {
    let is_crate =
        |name: &str| metadata.packages.iter().any(|package| short(&package.name) == name);
    let in_layers = LAYERS.iter().map(|names| ("layers::LAYERS", *names));
    let in_never = NEVER.iter().map(|(_, never)| ("layers::NEVER", *never));
    let lists = in_layers.chain(in_never).chain(others.iter().copied());
    let listed = lists.flat_map(|(list, names)| names.iter().map(move |name| (list, *name)));
    let subjects = NEVER.iter().map(|(name, _)| ("layers::NEVER", *name));
    let missing = listed.chain(subjects).filter(|(_, name)| !is_crate(name));
    missing.map(|(list, name)| format!("{name} is in `{list}` and is no crate")).collect()
}

/// Every dependency against the direction.
fn directions(metadata: &Metadata) -> Vec<String> {
    let mut findings = Vec::new();
    for package in &metadata.packages {
        let name = short(&package.name);
        for dependency in &package.dependencies {
            let is_test = dependency.kind.as_deref() == Some("dev");
            let other = short(&dependency.name);
            let Some(folder) = &dependency.path else {
                if EDGE_ONLY.contains(&other) && !is_at_edge(name) && !is_test {
                    findings.push(format!("{name}: errors of {other} are for the edge only"));
                }
                continue;
            };
            let root = &metadata.workspace_root;
            let (ours, theirs) = (Part::of(root, &package.manifest_path), Part::of(root, folder));
            if theirs != Part::Vifs && theirs != ours {
                findings.push(format!("{name} depends on {other}, which is of another part"));
            }
            // A crate that is in no layer is a finding already.
            let layers = layer(name).zip(layer(other));
            if let Some((own, below)) = layers.filter(|(own, below)| below >= own && !is_test) {
                findings.push(format!(
                    "{name} (layer {own}) depends on {other} (layer {below}): a crate may depend \
                     only on crates of layers below its own"
                ));
            }
            if NEVER.iter().any(|(subject, never)| *subject == name && never.contains(&other)) {
                findings.push(format!("{name} must not depend on {other}, not even in a test"));
            }
        }
    }
    findings
}

/// Intended defects that more than the tests of one crate would enable.
fn canaries(metadata: &Metadata) -> Vec<String> {
    let mut findings = Vec::new();
    for (owner, feature, user) in CANARIES {
        for package in &metadata.packages {
            let name = short(&package.name);
            let enabled = package.dependencies.iter().filter(|dependency| {
                let is_it = short(&dependency.name) == owner;
                let is_test = name == user && dependency.kind.as_deref() == Some("dev");
                is_it && !is_test && dependency.features.iter().any(|other| other == feature)
            });
            findings.extend(enabled.map(|_| {
                format!("{name} enables `{feature}` of {owner}: only the tests of {user} may")
            }));
            let paths = [format!("ringway-{owner}/{feature}"), feature.to_owned()];
            let passed_on = package.features.iter().filter(|(own, enables)| {
                let is_own = name == owner && own.as_str() != feature;
                let is_named = |path: &String| enables.iter().any(|it| it == path);
                is_named(&paths[0]) || (is_own && is_named(&paths[1]))
            });
            findings.extend(passed_on.map(|(own, _)| {
                format!("{name} enables `{feature}` of {owner} by its feature `{own}`")
            }));
        }
    }
    findings
}

fn short(name: &str) -> &str {
    name.strip_prefix("ringway-").unwrap_or(name)
}

/// The number of a crate's layer; the bottom is 1.
fn layer(name: &str) -> Option<usize> {
    LAYERS.iter().position(|names| names.contains(&name)).map(|index| index + 1)
}

fn is_at_edge(name: &str) -> bool {
    layer(name).is_some_and(|layer| layer + EDGE_LAYERS > LAYERS.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata(name: &str, dependency: &str, kind: Option<&str>, is_ours: bool) -> Metadata {
        let dependency = Dependency {
            name: dependency.to_owned(),
            kind: kind.map(str::to_owned),
            path: is_ours.then(PathBuf::new),
            features: Vec::new(),
        };
        Metadata { packages: vec![package(name, vec![dependency])], workspace_root: PathBuf::new() }
    }

    fn package(name: &str, dependencies: Vec<Dependency>) -> Package {
        let manifest_path = PathBuf::from(name);
        Package { name: name.to_owned(), manifest_path, dependencies, features: BTreeMap::new() }
    }

    fn findings(name: &str, dependency: &str, kind: Option<&str>, is_ours: bool) -> usize {
        directions(&metadata(name, dependency, kind, is_ours)).len()
    }

    #[test]
    fn dependencies_point_downwards() {
        assert_eq!(findings("ringway-netback", "ringway-ring", None, true), 0);
        assert_eq!(findings("ringway-ring", "ringway-netback", None, true), 1);
        assert_eq!(findings("ringway-sys", "ringway-datapath", None, true), 1);
    }

    #[test]
    fn a_crate_in_no_layer_is_found() {
        let known = metadata("ringway-netback", "ringway-ring", None, true);
        assert_eq!(unlisted(&known), Vec::<String>::new());
        assert_eq!(unlisted(&metadata("ringway-new", "ringway-ring", None, true)).len(), 1);
    }

    #[test]
    fn a_name_in_a_list_that_is_no_crate_is_found() {
        let listed = LAYERS.concat();
        let packages = listed.iter().map(|name| package(name, Vec::new())).collect();
        let mut metadata = Metadata { packages, workspace_root: PathBuf::new() };
        assert_eq!(missing(&metadata, &[("programs::SLOW", &["bench"])]), Vec::<String>::new());
        assert_eq!(missing(&metadata, &[("programs::SLOW", &["gone"])]).len(), 1);
        metadata.packages.retain(|package| package.name != "steering");
        assert_eq!(missing(&metadata, &[]).len(), 1);
    }

    #[test]
    fn tests_may_depend_on_any_layer_but_not_on_all_crates() {
        assert_eq!(findings("ringway-netfront", "ringway-netback", Some("dev"), true), 0);
        assert_eq!(findings("ringway-netback", "ringway-emu", Some("dev"), true), 1);
    }

    #[test]
    fn no_part_depends_on_another_but_on_what_serves_vifs() {
        let of = |folder: &str, other: &str| {
            let mut metadata = metadata("ringway-sim", "ringway-ring", Some("dev"), true);
            metadata.packages[0].manifest_path = format!("{folder}/Cargo.toml").into();
            metadata.packages[0].dependencies[0].path = Some(other.into());
            directions(&metadata).len()
        };
        assert_eq!(of("crates/sim", "crates/ring") + of("lab", "crates/ring"), 0);
        assert_eq!(of("doctor/checks", "doctor/evidence"), 0);
        assert_eq!(of("crates/sim", "doctor") + of("doctor", "lab") + of("lab", "doctor"), 3);
    }

    #[test]
    fn catch_all_errors_stay_at_the_edge() {
        assert_eq!(findings("ringway-ring", "anyhow", None, false), 1);
        assert_eq!(findings("ringway", "anyhow", None, false), 0);
        assert_eq!(findings("ringway-ring", "thiserror", None, false), 0);
    }

    #[test]
    fn intended_defects_are_enabled_only_for_one_crates_tests() {
        let enabled = |name, kind| {
            let mut metadata = metadata(name, "ringway-ring", kind, true);
            metadata.packages[0].dependencies[0].features = vec!["canary".to_owned()];
            canaries(&metadata).len()
        };
        assert_eq!(enabled("ringway-sim", Some("dev")), 0);
        assert_eq!(enabled("ringway-sim", None), 1);
        assert_eq!(enabled("ringway-netback", Some("dev")), 1);
        let mut passed_on = metadata("ringway-sim", "ringway-ring", None, true);
        let enables = vec!["ringway-ring/canary".to_owned()];
        passed_on.packages[0].features.insert("default".to_owned(), enables);
        assert_eq!(canaries(&passed_on).len(), 1);
    }
}
