//! The Debian packages: what is generated for them, cargo-deb, and a check of the results.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};

use crate::{arm64, packaged, report, reproducible, run};

/// Generated files, where the package's list of assets expects them.
pub(crate) const GENERATED: &str = "target/package";
/// Folders that must stay empty: a file there would change a host that merely installs the package.
const NEVER: [&str; 3] = ["/modprobe.d/", "/modules-load.d/", "/multi-user.target.wants/"];

/// The architecture of a package, by Debian's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Architecture {
    /// The architecture of this machine.
    Ours,
    /// Arm64, from another machine.
    Arm64,
}

impl Architecture {
    /// Debian's name.
    pub(crate) fn name(self) -> &'static str {
        match (self, std::env::consts::ARCH) {
            (Architecture::Arm64, _) | (_, "aarch64") => "arm64",
            (_, "x86_64") => "amd64",
            (_, other) => other,
        }
    }

    /// Parses the value of `--arch`, or an empty text.
    pub(crate) fn parse(text: &str) -> Result<Architecture> {
        let ours = Architecture::Ours.name();
        match text {
            "" => Ok(Architecture::Ours),
            name if name == ours => Ok(Architecture::Ours),
            "arm64" => Ok(Architecture::Arm64),
            other => bail!("nothing for {other:?}: expected {ours} or arm64"),
        }
    }

    fn build(self, root: &Path) -> Result<()> {
        match self {
            Architecture::Ours => run::build(root),
            Architecture::Arm64 => arm64::build(root),
        }
    }

    fn package(self, root: &Path, name: &str) -> Result<PathBuf> {
        match self {
            Architecture::Ours => run::package(root, name, |_| ()),
            Architecture::Arm64 => arm64::package(root, name),
        }
    }

    /// The directory of the programs.
    fn programs(self, root: &Path) -> PathBuf {
        match self {
            Architecture::Ours => root.join("target/release"),
            Architecture::Arm64 => arm64::programs(root),
        }
    }

    /// A command that runs such a program here.
    pub(crate) fn command(self, program: &Path) -> Command {
        match self {
            Architecture::Ours => Command::new(program),
            Architecture::Arm64 => arm64::emulated(program),
        }
    }
}

/// Makes the packages from a release build, checks them, and returns their paths.
pub(crate) fn make(root: &Path, arch: Architecture) -> Result<Vec<PathBuf>> {
    arch.build(root)?;
    generate(root, arch, &arch.programs(root))?;
    let mut made = Vec::new();
    for name in run::PROGRAMS {
        let package = arch.package(root, name)?;
        contents(&package)?;
        fields(&package, arch)?;
        program(root, &package, name, arch)?;
        lint(&package)?;
        println!("deb: {}", package.display());
        made.push(package);
    }
    Ok(made)
}

/// Generates what packages have beside the tree: pages, and manual pages and completions, which the
/// programs in a directory write themselves.
pub(crate) fn generate(root: &Path, arch: Architecture, programs: &Path) -> Result<()> {
    let _ = fs::remove_dir_all(root.join(GENERATED));
    for name in run::PROGRAMS {
        generate_of(root, arch, &programs.join(name), name)?;
    }
    packaged::write(root, &root.join(GENERATED))
}

fn generate_of(root: &Path, arch: Architecture, program: &Path, name: &str) -> Result<()> {
    let dir = root.join(GENERATED).join(name);
    fs::create_dir_all(&dir).with_context(|| dir.display().to_string())?;
    output(arch.command(program).arg("man").arg(&dir))?;
    // The program has verbs of the names of other programs, whose pages are those of these.
    for other in run::PROGRAMS.iter().filter(|other| **other != name) {
        let _ = fs::remove_file(dir.join(format!("{other}.1")));
    }
    for shell in ["bash", "zsh", "fish"] {
        let script = output(arch.command(program).args(["completions", shell]))?;
        fs::write(dir.join(format!("{name}.{shell}")), script)?;
    }
    Ok(())
}

/// Checks what a package must not have. What it must have is in its list of assets, each of which
/// cargo-deb finds or fails.
fn contents(package: &Path) -> Result<()> {
    let listed = output(Command::new("dpkg-deb").arg("--contents").arg(package))?;
    for path in NEVER {
        ensure!(!listed.contains(path), "{} has {path}:\n{listed}", package.display());
    }
    Ok(())
}

/// Checks the fields that dpkg uses to install the package.
fn fields(package: &Path, arch: Architecture) -> Result<()> {
    let field = |name| output(Command::new("dpkg-deb").arg("--field").arg(package).arg(name));
    if arch == Architecture::Arm64 {
        let architecture = field("Architecture")?;
        ensure!(architecture.trim() == "arm64", "{} is for {architecture}", package.display());
    }
    // Cross packages exist only on the machine that built it.
    let depends = field("Depends")?;
    ensure!(depends.contains("libc6") && !depends.contains("-cross"), "it needs {depends}");
    Ok(())
}

/// Checks that the program in the package starts, and names no directory of this machine.
fn program(root: &Path, package: &Path, name: &str, arch: Architecture) -> Result<()> {
    let dir: PathBuf = root.join(GENERATED).join("unpacked");
    let path = dir.join("usr/bin").join(name);
    output(Command::new("dpkg-deb").arg("--extract").arg(package).arg(&dir))?;
    let version = output(arch.command(&path).arg("--version"))?;
    ensure!(version.starts_with(name), "--version says {version:?}");
    names_no_place(root, &fs::read(&path)?)
}

/// Checks that a program names no directory of this machine.
pub(crate) fn names_no_place(root: &Path, bytes: &[u8]) -> Result<()> {
    let places = reproducible::places(root);
    for (directory, _) in &places {
        let place = directory.to_string_lossy().into_owned();
        // A build in a directory such as /usr/src may name it.
        let is_shown = places.iter().any(|(_, shown)| shown.contains(&place));
        let is_there = || bytes.windows(place.len()).any(|bytes| bytes == place.as_bytes());
        ensure!(is_shown || !is_there(), "the program names {place}");
    }
    Ok(())
}

fn lint(package: &Path) -> Result<()> {
    let mut lintian = Command::new("lintian");
    match lintian.args(["--fail-on", "error"]).arg(package).status() {
        Ok(status) => ensure!(status.success(), "lintian has found errors"),
        Err(_) => report::skip("lintian", "it is not installed")?,
    }
    Ok(())
}

/// The output of a command, which must succeed.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    let complaint = String::from_utf8_lossy(&output.stderr);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(output.status.success(), "{command:?}: {}\n{complaint}{text}", output.status);
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_is_for_this_machine_unless_another_is_named() {
        assert_eq!(Architecture::parse("").ok(), Some(Architecture::Ours));
        let arm64 = if cfg!(target_arch = "aarch64") { "Ours" } else { "Arm64" };
        let parsed = Architecture::parse("arm64").expect("it can be built everywhere");
        assert_eq!(format!("{parsed:?}"), arm64);
        let error = Architecture::parse("armhf").expect_err("there is no such package");
        assert!(error.to_string().contains("\"armhf\": expected"), "{error}");
    }
}
