//! Lists network namespaces: those with a name, and those that only processes hold.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The directory of `ip netns` names.
const NAMED: &str = "/run/netns";
/// Names and processes that are read; a machine may have a hundred thousand processes.
const PROCESSES_MAX: usize = 65_536;

/// A namespace, by a way to enter it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Namespace {
    /// By its name in `/run/netns`.
    Named(String),
    /// By the first process in it, and the name of its program.
    OfProcess(u32, String),
}

/// All namespaces that were found, without our own.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Namespaces {
    /// Each once, those with names first.
    pub all: Vec<Namespace>,
    /// Names and processes whose namespace could not be determined, and why.
    pub hidden: Vec<(String, String)>,
    /// Processes whose namespace the kernel did not let us see.
    pub refused: usize,
}

impl Namespaces {
    /// The namespaces of this machine, as far as we may see them.
    pub fn live() -> Namespaces {
        Namespaces::below(Path::new("/"))
    }

    fn below(root: &Path) -> Namespaces {
        let inode = |path: &Path| fs::metadata(path).map(|metadata| metadata.ino());
        let mut found = Namespaces::default();
        let mut known: BTreeMap<u64, Option<Namespace>> = BTreeMap::new();
        let own = inode(&root.join("proc/self/ns/net")).ok();
        own.map(|own| known.insert(own, None));
        for name in names(&root.join(NAMED.trim_start_matches('/'))) {
            match inode(&root.join(NAMED.trim_start_matches('/')).join(&name)) {
                Ok(inode) => {
                    known.entry(inode).or_insert(Some(Namespace::Named(name)));
                }
                Err(error) => found.hidden.push((name, error.to_string())),
            }
        }
        let mut processes: Vec<u32> =
            names(&root.join("proc")).iter().flat_map(|name| name.parse()).collect();
        processes.sort_unstable();
        for process in processes.into_iter().take(PROCESSES_MAX) {
            let folder = root.join(format!("proc/{process}"));
            match inode(&folder.join("ns/net")) {
                Ok(inode) => {
                    let of_process = || {
                        let name = fs::read_to_string(folder.join("comm")).unwrap_or_default();
                        Some(Namespace::OfProcess(process, name.trim().to_owned()))
                    };
                    known.entry(inode).or_insert_with(of_process);
                }
                Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
                    found.refused += 1;
                }
                // It ended, or has no namespace any more.
                Err(_) => {}
            }
        }
        found.all = known.into_values().flatten().collect();
        found.all.sort_unstable();
        found
    }
}

fn names(folder: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let names = entries.take(PROCESSES_MAX).flatten();
    let mut names: Vec<String> =
        names.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort_unstable();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_namespace_is_found_once_and_our_own_is_not() {
        let root = tempfile::tempdir().expect("a directory");
        let at = |path: &str| root.path().join(path);
        for folder in ["run/netns", "proc/self/ns", "proc/7/ns", "proc/8/ns", "proc/9/ns"] {
            fs::create_dir_all(at(folder)).expect("made");
        }
        for (file, of) in [
            ("proc/self/ns/net", None),
            ("run/netns/router", None),
            ("proc/7/ns/net", Some("proc/self/ns/net")),
            ("proc/8/ns/net", Some("run/netns/router")),
            ("proc/9/ns/net", None),
        ] {
            match of {
                None => fs::write(at(file), "").expect("written"),
                Some(of) => fs::hard_link(at(of), at(file)).expect("linked"),
            }
        }
        fs::write(at("proc/9/comm"), "container\n").expect("written");
        let found = Namespaces::below(root.path());
        let of_process = Namespace::OfProcess(9, "container".to_owned());
        assert_eq!(found.all, [Namespace::Named("router".to_owned()), of_process]);
        assert_eq!((found.hidden.len(), found.refused), (0, 0));
    }
}
