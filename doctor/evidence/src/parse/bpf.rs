//! `bpftool -f -j prog show` and `bpftool -f -j link show`: who has loaded a program into the
//! kernel, and what keeps it there.

use std::fmt;

use serde::Deserialize;

use super::Counters;
use crate::{Gap, Text};

/// All programs, or all links: a link attaches a program to something.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Loaded {
    /// In the order of the tool.
    pub all: Vec<Kept>,
}

/// A program or a link, with what keeps it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Kept {
    /// Its number.
    #[serde(default)]
    pub id: u64,
    /// Of a link: the number of its program.
    #[serde(default)]
    pub prog_id: Option<u64>,
    /// Of a program: the user who has loaded it.
    #[serde(default)]
    pub uid: Option<u32>,
    /// Its names in the file system of such programs.
    #[serde(default)]
    pub pinned: Vec<String>,
    /// Processes that have it open. Older kernels do not say.
    #[serde(default)]
    pub pids: Vec<Holder>,
}

/// A process.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct Holder {
    /// Its number.
    #[serde(default)]
    pub pid: u64,
    /// The name of its program.
    #[serde(default)]
    pub comm: String,
}

impl Loaded {
    /// The command that shows programs.
    pub(crate) const PROGRAMS: &[&str] = &["bpftool", "-f", "-j", "prog", "show"];
    /// The command that shows links.
    pub(crate) const LINKS: &[&str] = &["bpftool", "-f", "-j", "link", "show"];
}

impl Counters for Loaded {
    fn parse(text: &Text) -> Result<Loaded, Gap> {
        let all = serde_json::from_str(text.value())
            .map_err(|error| text.unreadable(Some(error.line()), error.to_string()))?;
        Ok(Loaded { all })
    }
}

/// For people: who has loaded it, who has it open, and where it is pinned, as far as is known.
impl fmt::Display for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let loaded = self.uid.map(|user| format!("loaded by user {user}"));
        let held =
            self.pids.iter().map(|one| format!("held by {} (process {})", one.comm, one.pid));
        let pinned = self.pinned.iter().map(|path| format!("pinned as {path}"));
        let all: Vec<String> = loaded.into_iter().chain(held).chain(pinned).collect();
        f.write_str(&all.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_keeps_a_program_is_read() {
        let text = r#"[{"id":3,"type":"cgroup_device"},
            {"id":9,"type":"xdp","name":"guard","uid":1000,"map_ids":[1],
             "pinned":["/sys/fs/bpf/guard"],"pids":[{"pid":812,"comm":"xdpd"}]}]"#;
        let read = Loaded::parse(&Text::new("bpftool", text)).expect("sound");
        let said: Vec<String> = read.all.iter().map(ToString::to_string).collect();
        let whole = "loaded by user 1000, held by xdpd (process 812), pinned as /sys/fs/bpf/guard";
        assert_eq!(said, ["", whole]);
        assert_eq!(Loaded::parse(&Text::new("bpftool", "[]")).expect("none").all, []);
        for torn in ["", "[", "{\"error\":\"x\"}", "[{\"id\":-1}]"] {
            assert!(Loaded::parse(&Text::new("bpftool", torn)).is_err(), "{torn:?}");
        }
    }
}
