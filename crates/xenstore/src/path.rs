//! Names of nodes: what a domain may write, and the one absolute form the tree uses.

use std::borrow::Borrow;
use std::fmt;

use ringway_wire::DomId;
use ringway_wire::xenstore::{Errno, XENSTORE_ABS_PATH_MAX, XENSTORE_REL_PATH_MAX};

/// The home directory of a domain, which its relative paths start from.
pub fn domain_path(domain: DomId) -> String {
    format!("/local/domain/{domain}")
}

/// The most names in a path. The protocol limits only the length of the whole, which has room for a
/// thousand of them, and a change concerns the watches of every directory above it. Toolstacks need
/// a dozen.
const DEPTH_MAX: usize = 64;

/// An absolute path that has passed the protocol's rules: `/`, or components of allowed characters
/// separated by single slashes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct NodePath(String);

impl NodePath {
    pub(crate) fn root() -> NodePath {
        NodePath("/".to_owned())
    }

    /// Checks a path that a domain sent, and makes it absolute.
    ///
    /// # Errors
    /// `EINVAL` for any path that the protocol forbids.
    pub(crate) fn parse(domain: DomId, text: &[u8]) -> Result<NodePath, Errno> {
        let text = std::str::from_utf8(text).map_err(|_| Errno::Inval)?;
        if text.is_empty() || !text.bytes().all(is_path_byte) {
            return Err(Errno::Inval);
        }
        let absolute = if text.starts_with('/') {
            text.to_owned()
        } else if text.len() <= XENSTORE_REL_PATH_MAX && !text.starts_with('@') {
            format!("{}/{text}", domain_path(domain))
        } else {
            return Err(Errno::Inval);
        };
        let is_well_formed =
            absolute == "/" || !(absolute.contains("//") || absolute.ends_with('/'));
        let depth = absolute.bytes().filter(|byte| *byte == b'/').count();
        if !is_well_formed || is_too_long(&absolute) || depth > DEPTH_MAX {
            return Err(Errno::Inval);
        }
        Ok(NodePath(absolute))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    pub(crate) fn is_root(&self) -> bool {
        self.0 == "/"
    }

    /// The names from the root down; none for the root itself.
    pub(crate) fn components(&self) -> impl Iterator<Item = &str> {
        let mut rest = self.0.get(1..).unwrap_or_default();
        // Names are short: a plain loop is faster than `memchr`.
        std::iter::from_fn(move || {
            let end = rest.bytes().position(|byte| byte == b'/').unwrap_or(rest.len());
            let (name, after) = rest.split_at(end);
            rest = after.get(1..).unwrap_or_default();
            (!name.is_empty()).then_some(name)
        })
    }

    /// The directory this node is in, and its name there; `None` for the root.
    pub(crate) fn split_last(&self) -> Option<(NodePath, &str)> {
        if self.is_root() {
            return None;
        }
        let (parent, name) = self.0.rsplit_once('/')?;
        let parent = if parent.is_empty() { "/" } else { parent };
        Some((NodePath(parent.to_owned()), name))
    }

    pub(crate) fn parent(&self) -> Option<NodePath> {
        self.split_last().map(|(parent, _)| parent)
    }

    /// A child of this node. `name` must be a component of a path that was checked.
    pub(crate) fn child(&self, name: &str) -> NodePath {
        if self.is_root() {
            NodePath(format!("/{name}"))
        } else {
            NodePath(format!("{}/{name}", self.0))
        }
    }

    /// This path, its parent and so on up to the root.
    pub(crate) fn lineage(&self) -> impl Iterator<Item = NodePath> {
        self.lineage_text().map(|path| NodePath(path.to_owned()))
    }

    /// This path, its parent and so on up to the root, as text.
    pub(crate) fn lineage_text(&self) -> impl Iterator<Item = &str> {
        std::iter::successors(Some(self.as_str()), |path| match path.rsplit_once('/')? {
            ("", "") => None,
            ("", _) => Some("/"),
            (parent, _) => Some(parent),
        })
    }
}

impl Borrow<str> for NodePath {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for NodePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn is_path_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'/' | b'_' | b'@')
}

/// A path inside a home directory is limited by what follows `/local/domain/N/`, any other by its
/// whole length (`XENSTORE_REL_PATH_MAX`, `XENSTORE_ABS_PATH_MAX`).
fn is_too_long(absolute: &str) -> bool {
    let inside_home = absolute
        .strip_prefix("/local/domain/")
        .and_then(|rest| rest.split_once('/'))
        .filter(|(domain, _)| domain.parse::<u16>().is_ok());
    match inside_home {
        Some((_, relative)) => relative.len() > XENSTORE_REL_PATH_MAX,
        None => absolute.len() > XENSTORE_ABS_PATH_MAX,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<String, Errno> {
        NodePath::parse(DomId(7), text.as_bytes()).map(|path| path.0)
    }

    #[test]
    fn relative_paths_start_from_the_home_of_the_domain() {
        assert_eq!(parse("device/vif/0").as_deref(), Ok("/local/domain/7/device/vif/0"));
        assert_eq!(parse("/device").as_deref(), Ok("/device"));
        assert_eq!(parse("/").as_deref(), Ok("/"));
    }

    #[test]
    fn malformed_paths_are_refused() {
        for bad in ["", "//", "/a/", "/a//b", "a/", "/a b", "/a.b", "/é", "@releaseDomain", "/a\n"]
        {
            assert_eq!(parse(bad), Err(Errno::Inval), "{bad:?}");
        }
        assert_eq!(NodePath::parse(DomId(0), b"/\xff"), Err(Errno::Inval));
    }

    #[test]
    fn both_length_limits_are_exact() {
        let of_len = |prefix: &str, len: usize| format!("{prefix}{}", "x".repeat(len));
        assert!(parse(&of_len("", XENSTORE_REL_PATH_MAX)).is_ok());
        assert!(parse(&of_len("", XENSTORE_REL_PATH_MAX + 1)).is_err());
        assert!(parse(&of_len("/local/domain/3/", XENSTORE_REL_PATH_MAX)).is_ok());
        assert!(parse(&of_len("/local/domain/3/", XENSTORE_REL_PATH_MAX + 1)).is_err());
        assert!(parse(&of_len("/", XENSTORE_ABS_PATH_MAX - 1)).is_ok());
        assert!(parse(&of_len("/", XENSTORE_ABS_PATH_MAX)).is_err());
    }

    #[test]
    fn a_path_has_a_limited_number_of_names() {
        assert!(parse(&"/a".repeat(DEPTH_MAX)).is_ok());
        assert!(parse(&"/a".repeat(DEPTH_MAX + 1)).is_err());
        assert!(parse("a/".repeat(900).trim_end_matches('/')).is_err());
    }

    #[test]
    fn the_lineage_ends_at_the_root() {
        let path = NodePath::parse(DomId(0), b"/a/b").expect("the path is valid");
        let lineage: Vec<String> = path.lineage().map(|p| p.0).collect();
        assert_eq!(lineage, ["/a/b", "/a", "/"]);
        assert_eq!(path.child("c").as_str(), "/a/b/c");
        assert_eq!(NodePath::root().child("c").as_str(), "/c");
    }
}
