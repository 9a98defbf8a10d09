//! Rust source as far as the check of cycles needs it: the modules that a file declares, and the
//! paths that it names. What is under `#[cfg(test)]` is left out; of macros, all names count that
//! are written in their calls.

use anyhow::Result;
use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Attribute, ImplItemFn, Item, ItemMod, ItemUse, Macro, Path, UseTree, Visibility};

/// What a file declares and names, without tests.
#[derive(Debug, Default)]
pub(crate) struct Outline {
    /// The files that it declares with `mod NAME;`.
    pub(crate) children: Vec<String>,
    /// Its imports.
    pub(crate) imports: Vec<Import>,
    /// Paths in the rest of it, and single names.
    pub(crate) paths: Vec<Vec<String>>,
}

/// One imported name.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Import {
    /// The path that it comes from. A glob ends in `*`.
    pub(crate) path: Vec<String>,
    /// The name in this file: the last segment, or the name after `as`.
    pub(crate) name: String,
    /// Whether other files may import it from here.
    pub(crate) reach: Reach,
}

/// Who may use an import.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// This file, and those that it declares.
    Private,
    /// Other files: a re-export.
    Shared,
}

/// Reads a file.
pub(crate) fn outline(text: &str) -> Result<Outline> {
    let mut outline = Outline::default();
    outline.visit_file(&syn::parse_file(text)?);
    Ok(outline)
}

impl<'ast> Visit<'ast> for Outline {
    fn visit_item(&mut self, item: &'ast Item) {
        if !is_for_tests(attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, function: &'ast ImplItemFn) {
        if !is_for_tests(&function.attrs) {
            visit::visit_impl_item_fn(self, function);
        }
    }

    fn visit_item_mod(&mut self, module: &'ast ItemMod) {
        match module.content {
            None => self.children.push(module.ident.to_string()),
            Some(_) => visit::visit_item_mod(self, module),
        }
    }

    fn visit_item_use(&mut self, import: &'ast ItemUse) {
        let is_private = matches!(import.vis, Visibility::Inherited);
        self.import(&[], &import.tree, if is_private { Reach::Private } else { Reach::Shared });
    }

    fn visit_path(&mut self, path: &'ast Path) {
        self.paths.push(path.segments.iter().map(|it| it.ident.to_string()).collect());
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast Macro) {
        visit::visit_macro(self, call);
        self.names(call.tokens.clone());
    }
}

impl Outline {
    fn import(&mut self, above: &[String], tree: &UseTree, reach: Reach) {
        let with = |name: String| [above, &[name]].concat();
        let (path, name) = match tree {
            UseTree::Path(path) => {
                return self.import(&with(path.ident.to_string()), &path.tree, reach);
            }
            UseTree::Group(group) => {
                return group.items.iter().for_each(|tree| self.import(above, tree, reach));
            }
            // `a::{self}` is `a`.
            UseTree::Name(name) if name.ident == "self" => (above.to_vec(), above.last().cloned()),
            UseTree::Name(name) => (with(name.ident.to_string()), Some(name.ident.to_string())),
            UseTree::Rename(name) if name.ident == "self" => {
                (above.to_vec(), Some(name.rename.to_string()))
            }
            UseTree::Rename(name) => (with(name.ident.to_string()), Some(name.rename.to_string())),
            UseTree::Glob(_) => (with("*".to_owned()), Some("*".to_owned())),
        };
        self.imports.push(Import { path, name: name.unwrap_or_default(), reach });
    }

    /// Notes the names and paths among tokens.
    fn names(&mut self, tokens: TokenStream) {
        let mut path = Vec::new();
        let mut colons = 0;
        for token in tokens {
            match token {
                TokenTree::Ident(name) => {
                    if colons != 2 {
                        self.paths.push(std::mem::take(&mut path));
                    }
                    path.push(name.to_string());
                    colons = 0;
                }
                TokenTree::Punct(mark) if mark.as_char() == ':' => colons += 1,
                TokenTree::Group(group) => {
                    self.names(group.stream());
                    colons = 0;
                }
                _ => colons = 0,
            }
        }
        self.paths.push(path);
    }
}

fn is_for_tests(attributes: &[Attribute]) -> bool {
    let is_test = |it: &Attribute| {
        it.path().is_ident("cfg") && it.parse_args::<Path>().is_ok_and(|of| of.is_ident("test"))
    };
    attributes.iter().any(is_test)
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(path: &str) -> Vec<String> {
        path.split("::").map(str::to_owned).collect()
    }

    fn import(path: &str, name: &str, reach: Reach) -> Import {
        Import { path: words(path), name: name.to_owned(), reach }
    }

    #[test]
    fn imports_in_nested_braces_are_found() {
        let text = "use crate::a::{self, B as C, d::{E, f::*}};\npub(crate) use super::G;\n";
        assert_eq!(
            outline(text).expect("it parses").imports,
            [
                import("crate::a", "a", Reach::Private),
                import("crate::a::B", "C", Reach::Private),
                import("crate::a::d::E", "E", Reach::Private),
                import("crate::a::d::f::*", "*", Reach::Private),
                import("super::G", "G", Reach::Shared),
            ]
        );
    }

    #[test]
    fn names_in_code_and_calls_of_macros_are_found_but_not_in_tests() {
        let text = "fn f() -> crate::a::B { c::d(super::e::F::new()); g!(x: crate::h::i, [j]) }\n\
                    mod child;\n\
                    #[cfg(test)]\nmod tests { fn g() { crate::k::l(); } }\n";
        let outline = outline(text).expect("it parses");
        let long: Vec<_> = outline.paths.iter().filter(|path| path.len() > 1).cloned().collect();
        assert_eq!(long, ["crate::a::B", "c::d", "super::e::F::new", "crate::h::i"].map(words));
        assert_eq!(outline.children, ["child"]);
    }
}
