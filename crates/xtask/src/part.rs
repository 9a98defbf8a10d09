//! The parts of the tree that are built and tested without each other.

use std::path::Path;

use anyhow::{Result, bail};

/// What is built and tested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// All parts.
    All,
    /// What serves vifs: `crates`.
    Vifs,
    /// The crates in a folder: `doctor` or `lab`.
    Folder(&'static str),
}

/// The folders of the other parts, in the root.
const FOLDERS: [&str; 2] = ["doctor", "lab"];

impl Part {
    /// The part that a command line names; all if it names none.
    pub(crate) fn parse(word: Option<&str>) -> Result<Part> {
        match word {
            None => Ok(Part::All),
            Some("vifs") => Ok(Part::Vifs),
            Some(word) => match FOLDERS.iter().find(|folder| **folder == word) {
                Some(folder) => Ok(Part::Folder(folder)),
                None => bail!("no part `{word}`: expected vifs, {}", FOLDERS.join(", ")),
            },
        }
    }

    /// Whether a step belongs to it that only concerns what serves vifs.
    pub(crate) fn serves_vifs(self) -> bool {
        matches!(self, Part::All | Part::Vifs)
    }

    /// The part of a file or folder; both paths are absolute or begin at the same place.
    pub(crate) fn of(root: &Path, path: &Path) -> Part {
        let folder = FOLDERS.iter().find(|folder| path.starts_with(root.join(folder)));
        folder.map_or(Part::Vifs, |folder| Part::Folder(folder))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crate_is_in_the_part_that_its_folder_names() {
        let of = |path: &str| Part::of(Path::new("/tree/lab"), Path::new(path));
        assert_eq!(of("/tree/lab/crates/ring/Cargo.toml"), Part::Vifs);
        assert_eq!(of("/tree/lab/doctor/checks/Cargo.toml"), Part::Folder("doctor"));
        assert_eq!(of("/tree/lab/lab/Cargo.toml"), Part::Folder("lab"));
        assert!(Part::parse(Some("docs")).is_err());
        assert_eq!(Part::parse(Some("lab")).ok(), Some(Part::Folder("lab")));
    }
}
