//! Checks for cycles between the files of a crate.
//!
//! # The rule
//!
//! The files of a crate form no cycle. One file *uses* another if it names an item of it: in `use`,
//! or by a path that begins with `crate`, `self`, `super`, a module that the file declares, or an
//! imported name. Re-exports are followed to the file that defines the item, and a re-export does
//! not count as a use: `pub use frame::Frame;` in `lib.rs` makes no arrow.
//!
//! A file may always use the files above it, which declare it: a child file sees the private items
//! of its parent in any case. So an arrow from a child to a file above it does not count; all
//! others do, including those from parent to child. A finding is therefore a pair of files, side by
//! side or in different folders, neither of which can be read first.
//!
//! Method calls name no file, so they are not seen. Tests may name anything.
//!
//! # The way out
//!
//! Move shared code into a separate file below both, or pass it in.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result};

use crate::rust::{Outline, Reach, outline};
use crate::tree::Tree;

/// The root files of a crate. Files of `tests`, `examples` and `benches` are not read.
const ROOTS: [&str; 2] = ["/src/lib.rs", "/src/main.rs"];
/// Depth of re-exports of re-exports: a deeper chain is a cycle of `use`, which does not compile.
const REEXPORTS_MAX: usize = 16;

/// Every cycle, one line each.
pub(crate) fn check(tree: &Tree) -> Result<Vec<String>> {
    let cycles = cycles(tree)?.into_iter().map(|cycle| {
        format!("{} depend on each other: {}", cycle.files.join(" and "), cycle.arrows.join(", "))
    });
    Ok(cycles.collect())
}

/// Files that can all be reached from each other.
struct Cycle {
    files: Vec<String>,
    /// Which file names which item of another.
    arrows: Vec<String>,
}

fn cycles(tree: &Tree) -> Result<Vec<Cycle>> {
    let is_root = |path: &str| ROOTS.iter().any(|root| path.ends_with(root));
    let mut cycles = Vec::new();
    for root in tree.files.iter().filter(|file| is_root(&file.path)) {
        let mut modules = Modules::default();
        modules.add(tree, &root.path, None)?;
        cycles.extend(modules.cycles());
    }
    Ok(cycles)
}

/// The modules of a crate that are files.
#[derive(Default)]
struct Modules {
    /// The root first, each before its children.
    all: Vec<Module>,
}

struct Module {
    path: String,
    parent: Option<usize>,
    children: BTreeMap<String, usize>,
    outline: Outline,
}

impl Modules {
    /// Adds a file, if it is there, and those that it declares.
    fn add(&mut self, tree: &Tree, path: &str, parent: Option<usize>) -> Result<Option<usize>> {
        let Some(file) = tree.file(path) else { return Ok(None) };
        let outline = outline(&file.text).with_context(|| format!("reading {path}"))?;
        let names = outline.children.clone();
        let index = self.all.len();
        let (path, children) = (path.to_owned(), BTreeMap::new());
        let folder = folder_of_children(&path);
        self.all.push(Module { path, parent, children, outline });
        for name in names {
            for place in [format!("{folder}/{name}.rs"), format!("{folder}/{name}/mod.rs")] {
                if let Some(child) = self.add(tree, &place, Some(index))? {
                    self.all[index].children.insert(name.clone(), child);
                }
            }
        }
        Ok(Some(index))
    }

    fn cycles(&self) -> Vec<Cycle> {
        let arrows = self.arrows();
        let reachable: Vec<_> = (0..self.all.len()).map(|from| reachable(from, &arrows)).collect();
        let mut cycles = Vec::new();
        let mut seen = BTreeSet::new();
        for index in 0..self.all.len() {
            let is_partner = |other: &usize| {
                reachable[index].contains(other) && reachable[*other].contains(&index)
            };
            let cycle: Vec<usize> = (0..self.all.len()).filter(is_partner).collect();
            if !cycle.is_empty() && seen.insert(cycle.clone()) {
                cycles.push(self.describe(&cycle, &arrows));
            }
        }
        cycles
    }

    fn describe(&self, cycle: &[usize], arrows: &Arrows) -> Cycle {
        let mut files: Vec<String> =
            cycle.iter().map(|index| self.all[*index].path.clone()).collect();
        files.sort();
        let within =
            arrows.iter().filter(|((from, to), _)| cycle.contains(from) && cycle.contains(to));
        let arrows =
            within.map(|((from, _), path)| format!("{} names {path}", self.all[*from].path));
        Cycle { files, arrows: arrows.collect() }
    }

    /// Which file uses which, except for those above it.
    fn arrows(&self) -> Arrows {
        let mut arrows = Arrows::new();
        for (index, module) in self.all.iter().enumerate() {
            let imports = module.outline.imports.iter();
            let used = imports.filter(|import| import.reach == Reach::Private);
            for path in used.map(|import| &import.path).chain(&module.outline.paths) {
                let Some(to) = self.definer(index, path, 0) else { continue };
                if to != index && !self.is_above(to, index) {
                    arrows.entry((index, to)).or_insert_with(|| path.join("::"));
                }
            }
        }
        arrows
    }

    fn is_above(&self, above: usize, index: usize) -> bool {
        let parent = self.all[index].parent;
        parent.is_some_and(|parent| parent == above || self.is_above(above, parent))
    }

    /// The file that defines what a path names, as seen from a module; `None` for a module as a
    /// whole, and for what another crate defines.
    fn definer(&self, module: usize, path: &[String], depth: usize) -> Option<usize> {
        let (first, rest) = path.split_first()?;
        match first.as_str() {
            "crate" => self.definer_below(0, rest, depth),
            "self" => self.definer_below(module, rest, depth),
            "super" => self.definer_above(module, rest, depth),
            _ if self.all[module].children.contains_key(first) => {
                self.definer_below(module, path, depth)
            }
            _ => self.imported(module, path, depth),
        }
    }

    fn definer_above(&self, module: usize, path: &[String], depth: usize) -> Option<usize> {
        let parent = self.all[module].parent?;
        match path.split_first() {
            Some((next, rest)) if next == "super" => self.definer_above(parent, rest, depth),
            _ => self.definer_below(parent, path, depth),
        }
    }

    /// The module that defines what a path names that begins inside a module.
    fn definer_below(&self, module: usize, path: &[String], depth: usize) -> Option<usize> {
        let (first, rest) = path.split_first()?;
        match self.all[module].children.get(first) {
            Some(child) => self.definer_below(*child, rest, depth),
            None if self.has_import(module, first) => self.imported(module, path, depth),
            None => Some(module),
        }
    }

    fn has_import(&self, module: usize, name: &str) -> bool {
        self.all[module].outline.imports.iter().any(|import| import.name == name)
    }

    /// The module that defines what a path names whose first name was imported into the module.
    fn imported(&self, module: usize, path: &[String], depth: usize) -> Option<usize> {
        let (first, rest) = path.split_first()?;
        let mut imports = self.all[module].outline.imports.iter();
        // `use foo;` names another crate.
        let import = imports.find(|import| import.name == *first && import.path.len() > 1)?;
        let whole = [&import.path, rest].concat();
        (depth < REEXPORTS_MAX).then(|| self.definer(module, &whole, depth + 1)).flatten()
    }
}

/// Which file uses which, with the first path that shows it.
type Arrows = BTreeMap<(usize, usize), String>;

/// The folder of the files that a file declares.
fn folder_of_children(path: &str) -> String {
    let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
    match name {
        "lib.rs" | "main.rs" | "mod.rs" => folder.to_owned(),
        _ => path.trim_end_matches(".rs").to_owned(),
    }
}

/// All files that can be reached from here over arrows.
fn reachable(from: usize, arrows: &Arrows) -> BTreeSet<usize> {
    let mut found = BTreeSet::new();
    let mut open = vec![from];
    while let Some(at) = open.pop() {
        let next = arrows.range((at, 0)..=(at, usize::MAX)).map(|((_, to), _)| *to);
        open.extend(next.filter(|to| found.insert(*to)));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::file;

    /// The files of the only cycle, if there is one.
    fn cycle(files: &[(&str, &str)]) -> Vec<String> {
        let path = |name: &str| format!("crates/x/src/{name}");
        let files = files.iter().map(|(name, text)| file(&path(name), text)).collect();
        let mut found = cycles(&Tree { files }).expect("they parse");
        assert!(found.len() < 2);
        let files = found.pop().map(|cycle| cycle.files).unwrap_or_default();
        files.iter().map(|path| path.trim_start_matches("crates/x/src/").to_owned()).collect()
    }

    #[test]
    fn files_side_by_side_may_not_use_each_other() {
        let root = ("lib.rs", "mod a;\nmod b;\n");
        let b = ("b.rs", "use super::a;\nfn f(x: crate::a::A) { a::g(); }");
        for (a, is_cycle) in [
            ("use crate::b::B;", true),
            ("use super::b;\nfn f() { b::g(); }", true),
            ("use super::b::f;", true),
            ("use std::b;", false),
            ("#[cfg(test)]\nmod tests {\n    use crate::b::B;\n}\n", false),
        ] {
            let expected = if is_cycle { &["a.rs", "b.rs"][..] } else { &[] };
            assert_eq!(cycle(&[root, ("a.rs", a), b]), expected, "{a}");
        }
    }

    #[test]
    fn a_cycle_may_be_longer_and_lead_through_folders() {
        let root = ("lib.rs", "mod a;\nmod b;\nmod c;\n");
        let a = ("a.rs", "use crate::b::inner::B;");
        let b = [("b/mod.rs", "pub mod inner;"), ("b/inner.rs", "use crate::c::{self, C};")];
        let c = ("c.rs", "fn f() -> crate::a::A { crate::a::A }");
        assert_eq!(cycle(&[root, a, b[0], b[1], c]), ["a.rs", "b/inner.rs", "c.rs"]);
    }

    #[test]
    fn a_re_export_is_followed_and_does_not_count_as_a_use() {
        let root = ("lib.rs", "mod a;\nmod b;\npub use a::A;\npub use b::*;\n");
        let b = ("b.rs", "use crate::A;");
        assert_eq!(cycle(&[root, ("a.rs", "struct A;"), b]), [""; 0]);
        assert_eq!(cycle(&[root, ("a.rs", "use crate::b::B;"), b]), ["a.rs", "b.rs"]);
    }

    #[test]
    fn a_child_may_use_the_files_above_it() {
        let root = ("lib.rs", "mod a;\nstruct Root;\n");
        let a = ("a.rs", "mod inner;\nstruct A;\nfn f() { inner::g(); }\n");
        let inner = ("a/inner.rs", "use super::A;\nuse crate::Root;\n");
        assert_eq!(cycle(&[root, a, inner]), [""; 0]);
    }
}
