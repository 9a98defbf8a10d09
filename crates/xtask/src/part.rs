//! The parts of the tree that are built and tested without each other.

use std::path::Path;

use clap::ValueEnum;

/// What is built and tested.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Part {
    All,
    /// What serves vifs: `crates`.
    Vifs,
    Doctor,
    Lab,
}

impl Part {
    /// Whether a step belongs to it that only concerns what serves vifs.
    pub(crate) fn serves_vifs(self) -> bool {
        matches!(self, Part::All | Part::Vifs)
    }

    /// The part of a file or folder; both paths are absolute or begin at the same place.
    pub(crate) fn of(root: &Path, path: &Path) -> Part {
        match path.strip_prefix(root).ok().and_then(|below| below.iter().next()?.to_str()) {
            Some("doctor") => Part::Doctor,
            Some("lab") => Part::Lab,
            _ => Part::Vifs,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crate_is_in_the_part_that_its_folder_names() {
        let of = |path: &str| Part::of(Path::new("/tree/lab"), Path::new(path));
        assert_eq!(of("/tree/lab/crates/ring/Cargo.toml"), Part::Vifs);
        assert_eq!(of("/tree/lab/doctor/checks/Cargo.toml"), Part::Doctor);
        assert_eq!(of("/tree/lab/lab/Cargo.toml"), Part::Lab);
    }
}
