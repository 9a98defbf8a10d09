//! Checks whether the files in `/etc` are those that the machine reads at boot, and whether they
//! apply to what was changed.
//!
//! Such files are read once, at boot, for the initial network namespace. Changes that were
//! confirmed in another namespace, or with another `/etc`, must not be written there: they would
//! affect the machine, and not what was checked.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::settings::Settings;
use ringway_evidence::Netns;

/// The initial PID namespace of every kernel (`PROC_PID_INIT_INO`).
const FIRST_PROCESSES: &str = "pid:[4026531836]";
/// The initial mount namespace of kernels since 6.18 (`MNT_NS_INIT_INO`); older ones give it
/// another number at each boot.
const FIRST_MOUNTS: &str = "mnt:[4026531832]";
/// The folders of the files.
const FOLDERS: [&str; 3] = ["etc", "etc/sysctl.d", "etc/udev/rules.d"];

/// Checks that files of the machine apply to our network namespace.
///
/// # Errors
/// A sentence that says why not, or that it cannot be determined.
pub fn check_machine_netns() -> Result<(), String> {
    check_netns(Path::new("/"))
}

fn check_netns(root: &Path) -> Result<(), String> {
    match Netns::below(root) {
        Some(Netns::Initial) => Ok(()),
        Some(Netns::Other) => {
            Err("this is a network namespace, and files in /etc apply to that of the machine: add \
                 the commands (--emit shell) to what creates this namespace"
                .to_owned())
        }
        None => {
            Err("it is unknown whether this is the network namespace that the machine starts with \
             (/proc/sys/net cannot be read), and files in /etc apply to that one"
                .to_owned())
        }
    }
}

impl Settings {
    /// Checks that changes in a network namespace can be kept in files in `/etc`: that the
    /// namespace and this `/etc` are those of the machine's boot.
    ///
    /// # Errors
    /// A sentence that says why not, or that it cannot be determined.
    pub fn check_home_of(&self, netns: &str) -> Result<(), String> {
        let root = self.root();
        check_netns(root)?;
        if netns.is_empty() || self.netns() != netns {
            return Err(
                "it belongs to another network namespace, and files in /etc apply to that of the \
                 machine"
                    .to_owned(),
            );
        }
        let link = |path: &str| fs::read_link(root.join(path)).ok();
        let processes = link("proc/self/ns/pid");
        if processes.as_deref() != Some(Path::new(FIRST_PROCESSES)) {
            return Err("this is a container, or another process namespace: whether its /etc is \
                        read when the machine starts is unknown"
                .to_owned());
        }
        let mounts = link("proc/self/ns/mnt");
        if mounts.as_deref() == Some(Path::new(FIRST_MOUNTS))
            || mounts.is_some() && mounts == link("proc/1/ns/mnt")
        {
            return Ok(());
        }
        for folder in FOLDERS {
            check_folder(root, folder)?;
        }
        Ok(())
    }
}

/// Checks that a folder is the same for us and for process 1.
fn check_folder(root: &Path, folder: &str) -> Result<(), String> {
    let number = |path: &Path| fs::metadata(path).map(|found| (found.dev(), found.ino()));
    let theirs = root.join("proc/1/root");
    if fs::metadata(&theirs).is_err() {
        return Err(format!(
            "these are not the mounts that the machine started with, and it is unknown whether \
             /{folder} is the same: there is no permission to inspect process 1"
        ));
    }
    match (number(&root.join(folder)), number(&theirs.join(folder))) {
        (Ok(ours), Ok(theirs)) if ours == theirs => Ok(()),
        (Err(_), Err(_)) => Ok(()),
        _ => Err(format!("this /{folder} is not the one that the machine starts with")),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    const OURS: &str = "net:[4026531833]";

    /// A machine whose process 1 has the same `/etc`, and the links of our own namespaces.
    fn machine(links: &[(&str, &str)], files: &[&str]) -> (tempfile::TempDir, Settings) {
        let root = tempfile::tempdir().expect("a directory");
        for folder in ["proc/self/ns", "proc/1/ns", "etc"] {
            fs::create_dir_all(root.path().join(folder)).expect("made");
        }
        for (path, to) in links {
            symlink(to, root.path().join(path)).expect("linked");
        }
        for file in files {
            let path = root.path().join(file);
            fs::create_dir_all(path.parent().expect("one")).expect("made");
            fs::write(path, "1\n").expect("written");
        }
        let settings = Settings::below(root.path());
        (root, settings)
    }

    const MACHINES: &str = "proc/sys/net/core/netdev_max_backlog";
    const EACH: &str = "proc/sys/net/ipv4/tcp_rmem";

    #[test]
    fn only_the_machines_own_namespace_has_files() {
        let own = [("proc/self/ns/net", OURS), ("proc/self/ns/pid", FIRST_PROCESSES)];
        let first = [own[0], own[1], ("proc/self/ns/mnt", FIRST_MOUNTS)];
        let (_root, settings) = machine(&first, &[MACHINES, EACH]);
        assert_eq!(settings.check_home_of(OURS), Ok(()));
        let said = settings.check_home_of("net:[7]").expect_err("another one");
        assert!(said.contains("another network namespace"), "{said}");
        assert!(settings.check_home_of("").is_err());
        // In the initial namespaces the files are the machine's, whatever namespaces process 1
        // appears to be in.
        let (_root, settings) = machine(&[first[0], first[1], first[2]], &[EACH]);
        let said = settings.check_home_of(OURS).expect_err("a namespace");
        assert!(said.starts_with("this is a network namespace"), "{said}");
        let (_root, settings) = machine(&first, &[]);
        assert!(settings.check_home_of(OURS).expect_err("unknown").starts_with("it is unknown"));
    }

    #[test]
    fn another_etc_is_not_written_to() {
        let other = [
            ("proc/self/ns/net", OURS),
            ("proc/self/ns/pid", FIRST_PROCESSES),
            ("proc/self/ns/mnt", "mnt:[7]"),
            ("proc/1/ns/mnt", "mnt:[5]"),
        ];
        let (root, settings) = machine(&other, &[MACHINES]);
        let said = settings.check_home_of(OURS).expect_err("unknown");
        assert!(said.contains("is unknown"), "{said}");
        fs::create_dir_all(root.path().join("proc/1/root/etc")).expect("made");
        let said = settings.check_home_of(OURS).expect_err("another one");
        assert!(said.contains("this /etc is not"), "{said}");
        fs::remove_dir(root.path().join("proc/1/root/etc")).expect("removed");
        fs::remove_dir(root.path().join("proc/1/root")).expect("removed");
        symlink("../..", root.path().join("proc/1/root")).expect("linked");
        assert_eq!(settings.check_home_of(OURS), Ok(()));
        let (_root, settings) =
            machine(&[other[0], ("proc/self/ns/pid", "pid:[7]"), other[2]], &[MACHINES]);
        assert!(settings.check_home_of(OURS).expect_err("a container").contains("container"));
    }
}
