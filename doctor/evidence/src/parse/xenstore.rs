//! `xenstore-ls -f`: what both ends of a vif negotiated.

use std::collections::BTreeMap;

use crate::{Gap, Text};

/// Nodes by their full path.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Nodes {
    nodes: BTreeMap<String, (String, usize)>,
}

impl Nodes {
    /// Parses `PATH = "VALUE"`, one per line; permissions after it are ignored.
    pub fn parse(text: &Text) -> Result<Nodes, Gap> {
        let mut nodes = BTreeMap::new();
        for (line, row) in text.lines().filter(|(_, row)| !row.trim().is_empty()) {
            let refuse = || text.unreadable(Some(line), "expected PATH = \"VALUE\"");
            let (path, value) = row.split_once(" = \"").ok_or_else(refuse)?;
            let (value, _) = value.rsplit_once('"').ok_or_else(refuse)?;
            nodes.insert(path.trim().to_owned(), (value.to_owned(), line));
        }
        Ok(Nodes { nodes })
    }

    /// The value of a node.
    pub fn get(&self, path: &str) -> Option<&str> {
        self.nodes.get(path).map(|(value, _)| value.as_str())
    }

    /// The line of a node.
    pub fn line(&self, path: &str) -> Option<usize> {
        self.nodes.get(path).map(|(_, line)| *line)
    }

    /// All paths, in order.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.nodes.keys().map(String::as_str)
    }
}
