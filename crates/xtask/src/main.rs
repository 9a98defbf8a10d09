//! The checks and builds of this repository, as one small program: `cargo xtask VERB`.
//!
//! - `check`: before each push, in two minutes: style, rules, unit tests, 2,500 simulated hosts.
//! - `test`: what CI runs: also the tests of all crates and of the program, and 10,000 hosts.
//! - `nightly`: everything, with bounds on time: packages, Arm64, fuzz targets, real Xen, hosts
//!   with OVN, hostile guests.
//! - `fmt`: formats all code, the doctor's checks included, which no `mod` names.
//! - `tidy`: style that a program can check: the layers of crates, cycles between files, unsafe
//!   code, lengths, words, links between documents, outdated figures, and which target runs what.
//! - `spec`: each rule of the wire has code and a test, each limit in the threat model matches the
//!   code, each right of a confined process has a row in docs/confinement.md, and each citation
//!   resolves in `docs/sources.toml`.
//! - `book`: builds the documents as a book, with the generated pages.
//! - `figures`: draws the figures of the book.
//! - `libraries`: the public crates build without an operating system, and their documentation
//!   without a warning.
//! - `fuzz`: runs the fuzz targets, for a minute each.
//! - `deb`: builds the Debian package, and checks its content.
//! - `static`: builds programs that need no library of their host, and a tarball of each.
//! - `arm64`: builds the program for Arm64 on another machine, and runs tests under emulation.

mod arm64;
mod book;
mod confinement;
mod deb;
mod figures;
mod fuzz;
mod layers;
mod libraries;
mod limits;
mod lines;
mod links;
mod modules;
mod packaged;
mod page;
mod part;
mod plots;
mod programs;
mod report;
mod reproducible;
mod run;
mod rust;
mod sources;
mod spec;
mod tarball;
mod targets;
mod tidy;
mod tree;

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};

use deb::Architecture;
use part::Part;
use programs::Which;
use report::{AfterFailure, Steps};
use run::Formatting;
use tree::Tree;

const HELP: &str = "\
usage: cargo xtask VERB
  check  [PART]: format, lints, tidy, spec, unit tests, 2,500 worlds; run it before each push
  test   [PART]: check, the tests of all crates and programs, 10,000 worlds: what CI runs
  nightly  [PART]: everything, with bounds on time; needs a quiet machine and some hours.
         Without a PART they take all: vifs, doctor, lab
  fmt    formats all code, with the fuzz targets
  tidy   layers of crates, cycles between files, unsafety, lengths, words, links,
         figures, and that tests run the commands of docs/xen.md
  spec   checks that every rule in docs/spec/netif.toml has code and a test, every limit in
         docs/threat-model.md its value in the code, every right of a confined process its
         row in docs/confinement.md, and every citation its source in docs/sources.toml
  book   builds the documents as a book, in target/book; needs mdBook
  figures  draws the figures in docs/figures; needs Graphviz
  libraries  builds the public crates for targets without an operating system, their
         documentation without warnings, and a copy of the example by docs/libraries.md
  fuzz   [--seconds N] [TARGET ...]: builds and runs the fuzz targets; needs cargo-fuzz
  deb    [--arch amd64|arm64]: builds and checks the Debian packages; needs cargo-deb
  static [--arch amd64|arm64]: builds static programs, and a tarball of each, in target/static
  arm64  build | test | check: for Arm64, from another machine: the program, emulated
         tests, or a development build and the tests
";

fn main() -> ExitCode {
    let verb = std::env::args().nth(1);
    match dispatch(verb.as_deref()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(verb: Option<&str>) -> Result<()> {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = manifest.ancestors().nth(2).context("the workspace is two directories up")?;
    match verb {
        Some("check") => check(root, named_part()?),
        Some("test") => test(root, named_part()?),
        Some("nightly") => nightly(root, named_part()?),
        Some("fmt") => run::formatting(root, Formatting::Write),
        Some("tidy") => tidy(root),
        Some("spec") => spec(root),
        Some("book") => book::build(root),
        Some("figures") => figures::draw(root, &Tree::read(root)?),
        Some("libraries") => libraries::ci(root).and_then(|()| libraries::outside(root)),
        Some("fuzz") => fuzz_targets(root, std::env::args().skip(2).collect()),
        Some("deb") => deb::make(root, named_architecture()?),
        Some("static") => tarball::make(root, named_architecture()?),
        Some("arm64") => arm64::dispatch(root, std::env::args().nth(2).as_deref()),
        Some("help" | "--help" | "-h") => {
            print!("{HELP}");
            Ok(())
        }
        Some(other) => bail!("no verb `{other}`\n{HELP}"),
        None => bail!("no verb\n{HELP}"),
    }
}

/// The part that the command line names after the verb.
fn named_part() -> Result<Part> {
    Part::parse(std::env::args().nth(2).as_deref())
}

fn check(root: &Path, part: Part) -> Result<()> {
    let mut steps = Steps::new("check", AfterFailure::Stop);
    style(root, part, &mut steps);
    steps.run_tests("tests", || programs::run(root, part, Which::Fast));
    if part.serves_vifs() {
        steps.run("interleavings", || run::interleavings(root));
        steps.run("worlds", || run::worlds(root, run::SEEDS_OF_CHECK));
    }
    steps.end()
}

fn test(root: &Path, part: Part) -> Result<()> {
    let mut steps = Steps::new("test", AfterFailure::Stop);
    style(root, part, &mut steps);
    steps.run_tests("tests", || programs::run(root, part, Which::All));
    steps.run("examples in documents", || programs::documents(root, part));
    if part.serves_vifs() {
        steps.run("interleavings", || run::interleavings(root));
        steps.run("worlds", || run::worlds(root, run::SEEDS_OF_TEST));
        steps.run("public crates", || libraries::ci(root));
    }
    steps.end()
}

fn nightly(root: &Path, part: Part) -> Result<()> {
    let mut steps = Steps::new("nightly", AfterFailure::GoOn);
    style(root, part, &mut steps);
    steps.run_tests("tests", || programs::run(root, part, Which::Nightly));
    steps.run("examples in documents", || programs::documents(root, part));
    if !part.serves_vifs() {
        return steps.end();
    }
    steps.run("interleavings", || run::more_interleavings(root));
    steps.run("worlds", || run::worlds(root, run::SEEDS_OF_NIGHTLY));
    steps.run("public crates", || libraries::ci(root));
    steps.run("docs/libraries.md executed", || libraries::outside(root));
    steps.run("release build", || run::build(root));
    steps.run("guests on OVN", || run::guests_on_ovn(root));
    steps.run("hostile guests", || run::hostile(root));
    steps.run("Debian packages", || package(root));
    steps.run("static programs", || tarball::make(root, Architecture::Ours));
    steps.run("docs/virtio.md executed", || run::service_page(root));
    steps.run("OpenStack", || run::openstack(root));
    steps.run("Arm64", || arm64::ci(root));
    steps.run("fuzz targets", || fuzz::run(root, fuzz::SECONDS_DEFAULT, &[]));
    steps.run("real Xen", || run::real_xen(root));
    for (what, command) in LEFT_OUT {
        report::skip(what, command)?;
    }
    steps.end()
}

/// What even `nightly` leaves out, with the command that runs it.
const LEFT_OUT: [(&str, &str); 4] = [
    ("Miri", "an hour of CPU time (make miri)"),
    ("docs/xen.md executed on whole Debians", "an hour for each release (make xen-admin)"),
    ("Xen for Arm64", "an hour under emulation (make xen-arm64)"),
    ("a million worlds", "an hour (make sim-million)"),
];

/// The steps that all targets begin with: cheap ones first.
fn style(root: &Path, part: Part, steps: &mut Steps) {
    steps.run("formatting", || run::formatting(root, Formatting::Check));
    steps.run("tidy", || tidy(root));
    steps.run("spec", || spec(root));
    steps.run("lints", || run::lints(root, part));
    if part.serves_vifs() {
        steps.run("fuzz targets compile", || fuzz::check(root));
    }
    steps.run("build of the tests", || programs::build(root, part));
}

/// Makes the Debian packages if that is possible.
fn package(root: &Path) -> Result<()> {
    if run::has_cargo_deb(root) {
        return deb::make(root, Architecture::Ours);
    }
    report::skip("Debian packages", "cargo deb is not installed (cargo install cargo-deb --locked)")
}

/// `--arch NAME` behind the verb, if given.
fn named_architecture() -> Result<Architecture> {
    let arguments: Vec<String> = std::env::args().skip(2).collect();
    match &arguments[..] {
        [] => Architecture::parse(""),
        [flag, name] if flag == "--arch" => Architecture::parse(name),
        _ => bail!("expected nothing or --arch NAME"),
    }
}

/// `--seconds N`, if given, and names of targets.
fn fuzz_targets(root: &Path, mut arguments: Vec<String>) -> Result<()> {
    let mut seconds = fuzz::SECONDS_DEFAULT;
    if let Some(at) = arguments.iter().position(|argument| argument == "--seconds") {
        let number = arguments.get(at + 1).context("--seconds N: expected a number")?;
        seconds = number.parse().with_context(|| format!("--seconds {number}"))?;
        arguments.drain(at..at + 2);
    }
    fuzz::run(root, seconds, &arguments)
}

fn tidy(root: &Path) -> Result<()> {
    let tree = Tree::read(root)?;
    let mut findings = tidy::check(&tree);
    findings.extend(lines::check(&tree)?);
    findings.extend(modules::check(&tree)?);
    findings.extend(page::check(&tree));
    findings.extend(links::check(&tree));
    findings.extend(figures::check(&tree));
    findings.extend(targets::check(&tree, &LEFT_OUT));
    let lists: [(&str, &[&str]); 3] = [
        ("programs::SLOW", &programs::SLOW),
        ("libraries::CRATES", &libraries::CRATES),
        ("libraries::BARE", &libraries::BARE),
    ];
    let page = tree.text("ARCHITECTURE.md")?;
    findings.extend(layers::check(&run::metadata(root)?, page, &lists));
    report("tidy", &findings)
}

fn spec(root: &Path) -> Result<()> {
    let tree = Tree::read(root)?;
    let mut findings = spec::check(&tree)?;
    findings.extend(sources::check(&tree, &spec::ids(&tree)?)?);
    findings.extend(limits::check(&tree)?);
    findings.extend(confinement::check(&tree)?);
    report("spec", &findings)
}

fn report(what: &str, findings: &[String]) -> Result<()> {
    for finding in findings {
        println!("{what}: {finding}");
    }
    match findings.len() {
        0 => println!("{what}: passed"),
        count => bail!("{what}: {count} findings"),
    }
    Ok(())
}
