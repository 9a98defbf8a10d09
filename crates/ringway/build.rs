//! Tells the program with which profile it is built, for the demonstration.

use std::env;
use std::path::Path;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-env=RINGWAY_PROFILE={}", profile().unwrap_or("unknown".to_owned()));
}

/// The profile's directory, which has `build` in it. cargo itself names only the one it inherits.
fn profile() -> Option<String> {
    let out = env::var_os("OUT_DIR")?;
    let build = Path::new(&out).ancestors().find(|path| path.ends_with("build"))?;
    Some(build.parent()?.file_name()?.to_str()?.to_owned())
}
