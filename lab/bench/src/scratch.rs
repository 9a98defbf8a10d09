//! Temporary directories, all below one that is removed even after Ctrl-C. The next run removes it
//! if this one is killed.

use std::path::PathBuf;
use std::sync::OnceLock;

use anyhow::{Context, Result};
use ringway_rig::scratch::Scratch;
use tempfile::TempDir;

/// A global, because the handler of Ctrl-C has no other access to it.
static ROOT: OnceLock<PathBuf> = OnceLock::new();

/// Creates the root, and removes it when we are interrupted. Children need no cleanup: the kernel
/// kills them with us, and their namespaces end with them.
pub(crate) fn prepare() -> Result<Scratch> {
    let root = Scratch::new("ringway-bench-")?;
    ROOT.set(root.path().to_owned()).ok().context("the root is made once")?;
    ctrlc::set_handler(|| {
        if let Some(root) = ROOT.get() {
            // There is no one left to report it to.
            let _ = std::fs::remove_dir_all(root);
        }
        std::process::exit(130);
    })?;
    Ok(root)
}

/// The root.
pub(crate) fn root() -> PathBuf {
    ROOT.get().cloned().unwrap_or_else(std::env::temp_dir)
}

/// A new directory in it.
pub(crate) fn dir() -> Result<TempDir> {
    Ok(TempDir::new_in(root())?)
}
