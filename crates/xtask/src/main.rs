//! The checks and builds of this repository, as one small program: `cargo xtask VERB`.

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
mod release;
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
use clap::{Args, Parser, Subcommand};

use deb::Architecture;
use part::Part;
use programs::Which;
use report::{AfterFailure, Steps};
use run::Formatting;
use tree::Tree;

/// The checks and builds of this repository
#[derive(Parser)]
#[command(bin_name = "cargo xtask")]
struct CommandLine {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Before each push: format, lints, tidy, spec, unit tests, 2,500 worlds
    Check(Selected),
    /// What CI runs: check, the tests of all crates and programs, 10,000 worlds
    Test(Selected),
    /// Everything, with bounds on time; needs a quiet machine and some hours
    Nightly(Selected),
    /// Format all code, with the fuzz targets
    Fmt,
    /// Layers of crates, cycles between files, unsafety, lengths, words, links, figures, and that
    /// tests run the commands of documents
    Tidy,
    /// That every rule in docs/spec/netif.toml has code and a test, every limit in
    /// docs/threat-model.md its value in the code, every right of a confined process its row in
    /// docs/confinement.md, and every citation its source in docs/sources.toml
    Spec,
    /// Build the documents as a book, in target/book; needs mdBook
    Book,
    /// Draw the figures in docs/figures; needs Graphviz
    Figures,
    /// Build the public crates for targets without an operating system, their documentation
    /// without warnings, and a copy of the example by docs/libraries.md
    Libraries,
    /// Build and run the fuzz targets; needs cargo-fuzz
    Fuzz {
        /// Seconds for each
        #[arg(long, default_value_t = fuzz::SECONDS_DEFAULT)]
        seconds: u32,
        /// All of them, unless some are named
        targets: Vec<String>,
    },
    /// Build and check the Debian packages; needs cargo-deb
    Deb(Machine),
    /// Build static programs, and a tarball of each, in target/static
    Static(Machine),
    /// Build all that users download, for both architectures, in target/dist; needs a clean tree
    Release {
        /// Build it in two copies of the tree, and compare them byte for byte
        #[arg(long)]
        twice: bool,
    },
    /// For Arm64, from another machine: the program, emulated tests, or a development build and
    /// the tests
    Arm64 {
        #[arg(value_parser = ["build", "test", "check"])]
        what: String,
    },
}

#[derive(Args)]
struct Selected {
    #[arg(default_value = "all")]
    part: Part,
}

#[derive(Args)]
struct Machine {
    /// amd64 or arm64; that of this machine, unless it is named
    #[arg(long, value_parser = Architecture::parse, default_value = "")]
    arch: Architecture,
}

fn main() -> ExitCode {
    match dispatch(CommandLine::parse().verb) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(verb: Verb) -> Result<()> {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = manifest.ancestors().nth(2).context("the workspace is two directories up")?;
    match verb {
        Verb::Check(of) => check(root, of.part),
        Verb::Test(of) => test(root, of.part),
        Verb::Nightly(of) => nightly(root, of.part),
        Verb::Fmt => run::formatting(root, Formatting::Write),
        Verb::Tidy => tidy(root),
        Verb::Spec => spec(root),
        Verb::Book => book::build(root),
        Verb::Figures => figures::draw(root, &Tree::read(root)?),
        Verb::Libraries => libraries::ci(root).and_then(|()| libraries::outside(root)),
        Verb::Fuzz { seconds, targets } => fuzz::run(root, seconds, &targets),
        Verb::Deb(on) => deb::make(root, on.arch).map(drop),
        Verb::Static(on) => tarball::make(root, on.arch).map(drop),
        Verb::Release { twice: false } => release::make(root),
        Verb::Release { twice: true } => release::twice(root),
        Verb::Arm64 { what } => arm64::dispatch(root, &what),
    }
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
    steps.run("documents of all crates", || libraries::all_documents(root));
    steps.run("docs/libraries.md executed", || libraries::outside(root));
    steps.run("release build", || run::build(root));
    steps.run("guests on OVN", || run::guests_on_ovn(root));
    steps.run("hostile guests", || run::hostile(root));
    steps.run("Debian packages", || package(root));
    steps.run("static programs", || static_programs(root));
    steps.run("docs/virtio.md executed", || run::service_page(root));
    steps.run("empty Debian", || run::empty_debian(root));
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
const LEFT_OUT: [(&str, &str); 6] = [
    ("Miri", "an hour of CPU time (make miri)"),
    ("docs/xen.md executed on whole Debians", "an hour for each release (make xen-admin)"),
    ("upgrades on Xen", "an hour (make upgrades)"),
    ("Xen for Arm64", "an hour under emulation (make xen-arm64)"),
    ("a million worlds", "an hour (make sim-million)"),
    ("two builds of a release", "some hours (make release TWICE=--twice)"),
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
        return deb::make(root, Architecture::Ours).map(drop);
    }
    report::skip("Debian packages", "cargo deb is not installed (cargo install cargo-deb --locked)")
}

/// Makes the tarballs of static programs.
fn static_programs(root: &Path) -> Result<()> {
    tarball::make(root, Architecture::Ours).map(drop)
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
    let metadata = run::metadata(root)?;
    findings.extend(layers::check(&metadata, page, &lists));
    findings.extend(libraries::check(&metadata, &tree));
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
