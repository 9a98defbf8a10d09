//! The layers of crates: which crate may depend on which.
//!
//! A crate may depend only on crates of layers below its own. Tests are free: `dev-dependencies`
//! may name crates of any layer, because nothing depends on a test. The layers are those of the
//! code map in `ARCHITECTURE.md`. Each crate is in one layer, and each name there, in the lists
//! here and in `run` is a crate, so that no list goes stale.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::Deserialize;

use crate::part::Part;

/// The first line of the code map.
const HEAD: &str = "| layer | crate | what it is | read first |";
/// The layers of the crates of other parts, which the code map does not have.
const OTHERS: [(&str, usize); 6] =
    [("evidence", 4), ("checks", 5), ("changes", 6), ("lab", 8), ("doctor", 8), ("bench", 9)];

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

/// A catch-all error, and the lowest layer that may use it.
const EDGE_ONLY: &str = "anyhow";
const EDGE_LAYER_MIN: usize = 7;

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
    /// The registries that may have it; `null` for all, and an empty list for none.
    pub(crate) publish: Option<Vec<String>>,
    pub(crate) description: Option<String>,
    pub(crate) license: Option<String>,
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
    /// The versions that will do; `*` for all.
    #[serde(default)]
    pub(crate) req: String,
    /// Its folder; set for crates of the workspace.
    pub(crate) path: Option<PathBuf>,
    /// What it enables there.
    #[serde(default)]
    pub(crate) features: Vec<String>,
}

/// The layer of each crate; the bottom is 1.
type Layers<'a> = BTreeMap<&'a str, usize>;

/// All violations, one line each. `page` has the code map; `others` are lists of crates that other
/// files keep, by the place to name for each.
pub(crate) fn check(metadata: &Metadata, page: &str, others: &[(&str, &[&str])]) -> Vec<String> {
    let layers = layers(page);
    let packages = metadata.packages.iter();
    let unlisted = packages.map(|it| short(&it.name)).filter(|name| !layers.contains_key(name));
    let mut findings: Vec<String> =
        unlisted.map(|name| format!("{name} is in no layer: add it to the code map")).collect();
    findings.extend(missing(metadata, &layers, others));
    findings.extend(directions(metadata, &layers));
    findings.extend(canaries(metadata));
    findings
}

fn layers(page: &str) -> Layers<'_> {
    let rows = page.lines().skip_while(|line| *line != HEAD).skip(2);
    let mut layers = Layers::from(OTHERS);
    let mut layer = 0;
    for row in rows.map_while(|line| line.strip_prefix('|')) {
        let mut cells = row.split('|').map(str::trim);
        // A row without a number is in the layer of the row above.
        layer = cells.next().and_then(|number| number.parse().ok()).unwrap_or(layer);
        let names = cells.next().unwrap_or_default().split('`').skip(1).step_by(2);
        layers.extend(names.map(|name| (name, layer)));
    }
    layers
}

/// Names in lists that are not crates.
fn missing(metadata: &Metadata, layers: &Layers<'_>, others: &[(&str, &[&str])]) -> Vec<String> {
    let is_crate =
        |name: &str| metadata.packages.iter().any(|package| short(&package.name) == name);
    let in_layers = layers.keys().map(|name| ("the code map", *name));
    let in_never = NEVER.iter().flat_map(|(subject, never)| never.iter().chain([subject]));
    let in_never = in_never.map(|name| ("layers::NEVER", *name));
    let listed = others.iter();
    let listed = listed.flat_map(|(list, names)| names.iter().map(move |name| (*list, *name)));
    let missing = in_layers.chain(in_never).chain(listed).filter(|(_, name)| !is_crate(name));
    missing.map(|(list, name)| format!("{name} is in `{list}` and is no crate")).collect()
}

/// Every dependency against the direction.
fn directions(metadata: &Metadata, layers: &Layers<'_>) -> Vec<String> {
    let mut findings = Vec::new();
    for package in &metadata.packages {
        let name = short(&package.name);
        for dependency in &package.dependencies {
            let is_test = dependency.kind.as_deref() == Some("dev");
            let other = short(&dependency.name);
            let Some(folder) = &dependency.path else {
                let is_below = layers.get(name).is_some_and(|layer| *layer < EDGE_LAYER_MIN);
                if other == EDGE_ONLY && is_below && !is_test {
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
            let both = layers.get(name).zip(layers.get(other));
            if let Some((own, below)) = both.filter(|(own, below)| below >= own && !is_test) {
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

/// The name of a crate without what all have.
pub(crate) fn short(name: &str) -> &str {
    name.strip_prefix("ringway-").unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "| layer | crate | what it is | read first |\n|---|---|---|---|\n\
                        | 9 | `sim` | a | `b` |\n| 4 | `netback`, `netfront` | a | `b` |\n\
                        | | `emu` | a | `b` |\n| 3 | `ring` | a | `b` |\n\ntext\n";

    /// A crate with one dependency, both in TOML as `cargo metadata` has them in JSON.
    fn metadata(package: &str, dependency: &str) -> Metadata {
        let text = format!(
            "workspace_root = ''\n[[packages]]\nmanifest_path = 'crates/x/Cargo.toml'\n{package}\n\
             [[packages.dependencies]]\n{dependency}\n"
        );
        toml::from_str(&text).expect("it is well formed")
    }

    #[test]
    fn the_code_map_has_the_layers() {
        let layers = layers(PAGE);
        assert_eq!((layers["netfront"], layers["emu"], layers["ring"]), (4, 4, 3));
        assert_eq!(layers.len(), OTHERS.len() + 5);
    }

    #[test]
    fn dependencies_have_their_directions() {
        let ours = "path = 'crates/y'\nname = 'ringway-";
        for (name, dependency, count) in [
            ("netback", format!("{ours}ring'"), 0),
            ("ring", format!("{ours}netback'"), 1),
            ("netback", format!("{ours}netfront'"), 1),
            ("netfront", format!("kind = 'dev'\n{ours}netback'"), 0),
            // Not even in a test.
            ("netback", format!("kind = 'dev'\n{ours}emu'"), 1),
            // Of another part.
            ("sim", "path = 'lab'\nname = 'ringway-stats'".to_owned(), 1),
            ("ring", "name = 'anyhow'".to_owned(), 1),
            ("ring", "kind = 'dev'\nname = 'anyhow'".to_owned(), 0),
            ("sim", "name = 'anyhow'".to_owned(), 0),
        ] {
            let metadata = metadata(&format!("name = 'ringway-{name}'"), &dependency);
            assert_eq!(directions(&metadata, &layers(PAGE)).len(), count, "{name}: {dependency}");
        }
    }

    #[test]
    fn a_crate_in_no_layer_is_found_and_a_name_in_a_list_that_is_no_crate() {
        let metadata = metadata("name = 'ringway-new'", "name = 'anyhow'");
        let found = check(&metadata, PAGE, &[("programs::SLOW", &["gone"])]);
        assert!(found.iter().any(|finding| finding.starts_with("new is in no layer")), "{found:?}");
        for name in ["gone", "sim", "hypervisor"] {
            assert!(found.iter().any(|it| it.starts_with(&format!("{name} is in `"))), "{found:?}");
        }
    }

    #[test]
    fn intended_defects_are_enabled_only_for_one_crates_tests() {
        let canary = "features = ['canary']\npath = 'crates/ring'\nname = 'ringway-ring'";
        let of = |package: &str, kind: &str| {
            canaries(&metadata(package, &format!("{kind}\n{canary}"))).len()
        };
        assert_eq!(of("name = 'ringway-sim'", "kind = 'dev'"), 0);
        assert_eq!(of("name = 'ringway-sim'", ""), 1);
        assert_eq!(of("name = 'ringway-netback'", "kind = 'dev'"), 1);
        let passed_on = "name = 'ringway-sim'\nfeatures = { default = ['ringway-ring/canary'] }";
        assert_eq!(of(passed_on, "kind = 'dev'"), 1);
    }
}
