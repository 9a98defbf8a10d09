//! Definitions of libvirt machines. Only the part that checks read is kept, because the files may
//! have passwords. They are read as they are, and libvirt is not started for that.

use std::path::Path;
use std::{fs, io};

use super::{Taken, names, read};
use crate::manifest::Manifest;
use crate::parse::libvirt::cut;
use crate::piece::{MACHINE, MACHINE_BYTES_MAX, MACHINES_MAX};
use crate::{Gap, Text};

impl Taken {
    /// Takes the machines of each directory below a root.
    pub(super) fn machines(&mut self, manifest: &Manifest, root: &Path) {
        for folder in &manifest.machines {
            let path = root.join(folder);
            if let Err(error) = fs::read_dir(&path) {
                self.refuse((*folder).to_owned(), &error);
                continue;
            }
            let is_machine = |name: &String| name.ends_with(MACHINE) && !name.contains('\n');
            let mut files: Vec<String> = names(&path).into_iter().filter(is_machine).collect();
            if files.len() > MACHINES_MAX {
                let why = format!("only {MACHINES_MAX} of {} machines were read", files.len());
                self.refused.insert((*folder).to_owned(), why);
                files.truncate(MACHINES_MAX);
            }
            if !files.is_empty() {
                self.keep(format!("{folder}.names"), files.join("\n") + "\n");
            }
            for file in files {
                let at = format!("{folder}/{file}");
                match machine(&root.join(&at)) {
                    Ok(xml) => self.keep(at, xml),
                    Err(error) => self.refuse(at, &error),
                }
            }
        }
    }
}

/// The part of a definition that is kept.
fn machine(path: &Path) -> io::Result<String> {
    let about = fs::metadata(path)?;
    if !about.is_file() {
        return Err(io::Error::other("expected a file"));
    }
    if usize::try_from(about.len()).is_ok_and(|len| len > MACHINE_BYTES_MAX) {
        let most = MACHINE_BYTES_MAX >> 20;
        return Err(io::Error::other(format!("expected no more than {most} MiB")));
    }
    let body = read(path)?;
    cut(&Text::new("", body)).map_err(|gap| {
        let (line, why) = match gap {
            Gap::Unreadable { line, why, .. } => (line, why),
            other => (None, other.to_string()),
        };
        let line = line.map(|line| format!("line {line}: ")).unwrap_or_default();
        io::Error::other(format!("{line}{why}"))
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::Piece;
    use crate::Source;

    const FOLDER: &str = "run/libvirt/qemu";
    const SOUND: &str = "<domstatus><domain><name>a</name>\n<devices>\n\
                         <graphics type='vnc' passwd='secret'/></devices></domain></domstatus>\n";

    fn taken(root: &Path) -> Source {
        let mut taken = Taken::default();
        taken.machines(&Manifest::of(&[Piece::Machines(FOLDER)]), root);
        taken.finish()
    }

    #[test]
    fn machines_are_kept_without_passwords_and_others_are_named() {
        let root = tempfile::tempdir().expect("a directory");
        let folder = root.path().join(FOLDER);
        fs::create_dir_all(folder.join("dir.xml")).expect("made");
        let write = |name: &str, text: &str| fs::write(folder.join(name), text).expect("written");
        write("a.xml", SOUND);
        write("torn.xml", "<domstatus>\n<domain>\n");
        write("a.pid", "4711\n");
        fs::File::create(folder.join("huge.xml"))
            .and_then(|file| file.set_len(1 << 40))
            .expect("made");
        symlink("loop.xml", folder.join("loop.xml")).expect("linked");

        let source = taken(root.path());
        let of = |name: &str| source.file(&format!("{FOLDER}/{name}"));
        let kept = of("a.xml").expect("kept");
        assert!(kept.body().contains("<name>a</name>") && !kept.body().contains("secret"));
        for (name, why) in [
            ("torn.xml", "line 2: "),
            ("huge.xml", "no more than 1 MiB"),
            ("dir.xml", "expected a file"),
            ("loop.xml", ""),
        ] {
            let gap = of(name).expect_err(name).to_string();
            assert!(gap.contains(why) && !gap.ends_with("not there"), "{gap}");
        }
        assert!(of("a.pid").is_err());
        let names = source.file(&format!("{FOLDER}.names")).expect("kept");
        assert_eq!(names.body(), "a.xml\ndir.xml\nhuge.xml\nloop.xml\ntorn.xml\n");
    }

    #[test]
    fn a_host_of_too_many_machines_is_read_in_part_and_says_so() {
        let root = tempfile::tempdir().expect("a directory");
        let folder = root.path().join(FOLDER);
        fs::create_dir_all(&folder).expect("made");
        for number in 0..=MACHINES_MAX {
            fs::write(folder.join(format!("{number}.xml")), SOUND).expect("written");
        }
        let source = taken(root.path());
        assert_eq!(source.list(FOLDER).len(), MACHINES_MAX);
        let why = source.refusal(FOLDER).expect("said");
        assert_eq!(why, format!("only {MACHINES_MAX} of {} machines were read", MACHINES_MAX + 1));
    }

    #[test]
    fn a_directory_that_cannot_be_read_is_named_and_one_that_does_not_exist_is_not() {
        let root = tempfile::tempdir().expect("a directory");
        assert_eq!(taken(root.path()).refusal(FOLDER), None);
        fs::create_dir_all(root.path().join("run/libvirt")).expect("made");
        symlink("qemu", root.path().join(FOLDER)).expect("linked");
        assert!(taken(root.path()).refusal(FOLDER).is_some());
    }
}
