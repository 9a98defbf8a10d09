//! The fixtures, as they are on the disk.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// The files of a host by their paths.
pub(crate) type Pieces = BTreeMap<String, Vec<u8>>;

/// All fixtures with their names, sorted by name.
pub(crate) fn hosts() -> Vec<(String, Pieces)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures");
    let mut hosts = Vec::new();
    for entry in fs::read_dir(root).expect("there are fixtures") {
        let path = entry.expect("readable").path();
        let mut pieces = Pieces::new();
        collect(&path, &path, &mut pieces);
        hosts.push((path.file_name().expect("a name").to_string_lossy().into_owned(), pieces));
    }
    hosts.sort();
    hosts
}

fn collect(root: &Path, folder: &Path, into: &mut Pieces) {
    for entry in fs::read_dir(folder).expect("readable") {
        let path = entry.expect("readable").path();
        if path.is_dir() {
            collect(root, &path, into);
        } else {
            let name = path.strip_prefix(root).expect("below it").to_str().expect("text");
            into.insert(name.to_owned(), fs::read(&path).expect("readable"));
        }
    }
}
