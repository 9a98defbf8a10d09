//! Rust source as far as the checks of modules need it: tokens, the modules that a file declares,
//! and the paths that it names.
//!
//! It is not a full parser. It knows comments, strings, `mod`, `use` and paths, leaves out items
//! under `#[cfg(test)]`, and does not interpret anything else. Names from macro expansions are not
//! seen.

/// What a file declares and names, without tests.
#[derive(Debug, Default)]
pub(crate) struct Outline {
    /// The files that it declares with `mod NAME;`.
    pub(crate) children: Vec<String>,
    /// Those of them that are for tests only.
    pub(crate) test_children: Vec<String>,
    /// Its imports.
    pub(crate) imports: Vec<Import>,
    /// Paths of two or more segments in the rest of it, and single names.
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
pub(crate) fn outline(text: &str) -> Outline {
    let tokens = tokens(text);
    let mut reader = Reader { tokens: &tokens, at: 0, outline: Outline::default() };
    reader.read();
    reader.outline
}

struct Reader<'a> {
    tokens: &'a [&'a str],
    at: usize,
    outline: Outline,
}

impl<'a> Reader<'a> {
    fn read(&mut self) {
        let mut reach = Reach::Private;
        let mut is_test = false;
        while let Some(token) = self.next() {
            match token {
                "#" if self.peek() == Some("[") => {
                    is_test |= self.attribute();
                    continue;
                }
                "pub" => {
                    reach = Reach::Shared;
                    if self.peek() == Some("(") {
                        self.skip_group();
                    }
                    continue;
                }
                "mod" if is_test => {
                    if let (Some(name), Some(";")) = (self.peek(), self.peek_at(1)) {
                        self.outline.test_children.push(name.to_owned());
                    }
                    self.skip_item();
                }
                _ if is_test => self.skip_item(),
                "use" => {
                    self.import(&mut Vec::new(), reach);
                }
                "mod" => {
                    if let (Some(name), Some(";")) = (self.peek(), self.peek_at(1)) {
                        self.outline.children.push(name.to_owned());
                        self.at += 2;
                    }
                }
                name if is_name(name) => self.path(name),
                _ => {}
            }
            reach = Reach::Private;
            is_test = false;
        }
    }

    fn next(&mut self) -> Option<&'a str> {
        let token = self.peek()?;
        self.at += 1;
        Some(token)
    }

    fn peek(&self) -> Option<&'a str> {
        self.peek_at(0)
    }

    fn peek_at(&self, ahead: usize) -> Option<&'a str> {
        self.tokens.get(self.at + ahead).copied()
    }

    /// Skips an attribute, and returns whether it is `cfg(test)`.
    fn attribute(&mut self) -> bool {
        let start = self.at;
        self.skip_group();
        self.tokens[start..self.at] == ["[", "cfg", "(", "test", ")", "]"]
    }

    /// Skips everything from the next bracket to its partner, both included.
    fn skip_group(&mut self) {
        let mut depth = 0_usize;
        while let Some(token) = self.next() {
            match token {
                "(" | "[" | "{" => depth += 1,
                ")" | "]" | "}" => depth = depth.saturating_sub(1),
                _ => {}
            }
            if depth == 0 {
                return;
            }
        }
    }

    /// Skips the rest of an item: to its `;`, or to the end of its braces.
    fn skip_item(&mut self) {
        while let Some(token) = self.peek() {
            match token {
                ";" => {
                    self.at += 1;
                    return;
                }
                "{" => return self.skip_group(),
                "(" | "[" => self.skip_group(),
                _ => self.at += 1,
            }
        }
    }

    /// Reads one tree of a `use` with the prefix in `path`; up to `,`, `}` or `;`.
    fn import(&mut self, path: &mut Vec<String>, reach: Reach) {
        let outside = path.len();
        let mut name = None;
        while let Some(token) = self.peek() {
            match token {
                "," | "}" | ";" => break,
                "{" => {
                    self.at += 1;
                    self.imports_in_braces(path, reach);
                    path.truncate(outside);
                    return;
                }
                "as" => {
                    name = self.peek_at(1).map(str::to_owned);
                    self.at += 2;
                }
                "::" => self.at += 1,
                segment => {
                    path.push(segment.to_owned());
                    self.at += 1;
                }
            }
        }
        if path.len() > outside {
            // `a::{self}` is `a`.
            if path.len() > 1 && path.last().is_some_and(|last| last == "self") {
                path.pop();
            }
            let last = path.last().cloned().unwrap_or_default();
            let name = name.unwrap_or(last);
            self.outline.imports.push(Import { path: path.clone(), name, reach });
        }
        path.truncate(outside);
    }

    fn imports_in_braces(&mut self, path: &mut Vec<String>, reach: Reach) {
        loop {
            self.import(path, reach);
            match self.next() {
                Some(",") => {}
                _ => return,
            }
        }
    }

    /// Reads a path or a single name whose first segment has been read.
    fn path(&mut self, first: &str) {
        let mut path = vec![first.to_owned()];
        while self.peek() == Some("::") && self.peek_at(1).is_some_and(is_name) {
            path.push(self.tokens[self.at + 1].to_owned());
            self.at += 2;
        }
        self.outline.paths.push(path);
    }
}

fn is_name(token: &str) -> bool {
    token.starts_with(|letter: char| letter.is_alphabetic() || letter == '_')
}

/// The names, `::` and single characters of a file, without comments, strings and numbers.
fn tokens(text: &str) -> Vec<&str> {
    let mut tokens = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let end = match first {
            _ if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
            _ if rest.starts_with("/*") => rest.find("*/").map_or(rest.len(), |end| end + 2),
            _ if raw_string(rest).is_some() => raw_string(rest).unwrap_or(rest.len()),
            '"' => 1 + quoted(&rest[1..], '"'),
            '\'' => character(rest),
            _ if first.is_alphabetic() || first == '_' => {
                let end = rest.find(|letter: char| !letter.is_alphanumeric() && letter != '_');
                let end = end.unwrap_or(rest.len());
                tokens.push(&rest[..end]);
                end
            }
            // `0x1f` and `1_000u64` are not names.
            _ if first.is_ascii_digit() => rest
                .find(|letter: char| !letter.is_alphanumeric() && letter != '_')
                .unwrap_or(rest.len()),
            _ if rest.starts_with("::") => {
                tokens.push("::");
                2
            }
            _ if first.is_whitespace() => first.len_utf8(),
            _ => {
                tokens.push(&rest[..first.len_utf8()]);
                first.len_utf8()
            }
        };
        rest = &rest[end..];
    }
    tokens
}

/// The length of a raw string, if one begins here.
fn raw_string(text: &str) -> Option<usize> {
    let after = text.strip_prefix("br").or_else(|| text.strip_prefix('r'))?;
    let hashes = after.len() - after.trim_start_matches('#').len();
    let body = after[hashes..].strip_prefix('"')?;
    let end = format!("\"{}", &after[..hashes]);
    let start = text.len() - body.len();
    Some(body.find(&end).map_or(text.len(), |length| start + length + end.len()))
}

/// The length of a quotation up to and including its end.
fn quoted(text: &str, end: char) -> usize {
    let mut is_escaped = false;
    for (index, letter) in text.char_indices() {
        if letter == end && !is_escaped {
            return index + letter.len_utf8();
        }
        is_escaped = letter == '\\' && !is_escaped;
    }
    text.len()
}

/// The length of a character literal such as `'{'`, or of the quote before the name of a lifetime.
fn character(text: &str) -> usize {
    let mut letters = text.chars().skip(1);
    match (letters.next(), letters.next()) {
        (Some('\\'), _) => 1 + quoted(&text[1..], '\''),
        (Some(letter), Some('\'')) => 2 + letter.len_utf8(),
        _ => 1,
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
            outline(text).imports,
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
    fn comments_strings_and_tests_are_ignored() {
        let text = r###"
            // crate::a::b
            /* crate::a::b */
            const X: &str = "crate::a::b \" mod c;";
            const Y: &str = r#"crate::a " ::b"#;
            const Z: char = '"';
            fn f<'a>(x: &'a str) {}
            #[cfg(test)]
            mod tests { use super::*; fn g() { crate::d::e(); } }
            #[cfg(test)]
            mod more;
            mod child;
        "###;
        let outline = outline(text);
        assert_eq!(outline.children, ["child"]);
        assert_eq!(outline.test_children, ["more"]);
        assert_eq!(outline.imports, []);
        assert!(outline.paths.iter().all(|path| path.len() == 1), "{:?}", outline.paths);
    }

    #[test]
    fn paths_in_code_are_found() {
        let outline = outline("fn f() -> crate::a::B { c::d(super::e::F::new()) }");
        let long: Vec<_> = outline.paths.iter().filter(|path| path.len() > 1).cloned().collect();
        assert_eq!(long, [words("crate::a::B"), words("c::d"), words("super::e::F::new")]);
    }
}
