//! docs/first-steps.md, executed as written.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::Command;

use ringway_e2e::host::{ringway, text_of};
use ringway_e2e::shared_turn;

#[test]
fn the_first_steps_work_as_the_page_says() {
    let tools =
        ["awk", "bash", "ip", "mount", "ping", "pkill", "timeout", "unshare", "xenstore-ls"];
    let Some(_turn) = shared_turn(&tools) else { return };
    let tree = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let place = tempfile::tempdir().expect("a directory");
    let page = place.path().join("first-steps.md");
    fs::copy(tree.join("docs/first-steps.md"), &page).expect("there is room");
    let program = ringway();
    let mut path = OsString::from(Path::new(program.get_program()).parent().expect("a folder"));
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap_or_default());
    let mut steps = Command::new("unshare");
    steps.args(["--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]);
    if !rustix::process::geteuid().is_root() {
        steps.args(["--user", "--map-root-user"]);
    }
    steps.arg("bash").arg(tree.join("tests/first-steps.sh")).arg(&page);
    steps.env("PATH", path).env_remove("RINGWAY_DIR").env_remove("RINGWAY_LOG");
    println!("{}", text_of(steps.output().expect("util-linux"), "the first steps"));
}
