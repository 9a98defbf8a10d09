//! The stock tools against our server: the proof that it speaks the real protocol.

use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread::JoinHandle;

use ringway_xenstore::{Client, DomId, Quota, Server, ServerHandle};

/// A server on its own socket; ends when dropped.
struct Running {
    socket: PathBuf,
    handle: ServerHandle,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    fn start(name: &str) -> Running {
        let socket =
            std::env::temp_dir().join(format!("ringway-{name}-{}.sock", std::process::id()));
        let _ = std::fs::remove_file(&socket);
        let server = Server::new(Quota::default()).expect("a server can be made");
        let handle = server.handle();
        let listener = UnixListener::bind(&socket).expect("the socket can be bound");
        handle.listen(listener, DomId(0)).expect("the server is there");
        let thread = std::thread::spawn(move || server.run().expect("the loop does not fail"));
        Running { socket, handle, thread: Some(thread) }
    }

    fn tool(&self, name: &str) -> Command {
        let mut command = Command::new(name);
        command.env("XENSTORED_PATH", &self.socket);
        command
    }

    fn run(&self, name: &str, arguments: &[&str]) -> Output {
        self.tool(name).args(arguments).output().expect("the tool can be run")
    }

    /// The output of a tool, which must succeed.
    fn text(&self, name: &str, arguments: &[&str]) -> String {
        let output = self.run(name, arguments);
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{name} {arguments:?}: {complaint}");
        String::from_utf8(output.stdout).expect("tools print text")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.handle.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let _ = std::fs::remove_file(&self.socket);
    }
}

fn tools_are_missing() -> bool {
    let is_missing = !Path::new("/usr/bin/xenstore-ls").exists();
    if is_missing {
        eprintln!("SKIPPED: xenstore-utils is not installed");
    }
    is_missing
}

#[test]
fn the_stock_tools_write_read_list_and_remove() {
    if tools_are_missing() {
        return;
    }
    let running = Running::start("tools");
    running.text("xenstore-write", &["/local/domain/1/name", "guest one", "/tool/x", "1"]);
    assert_eq!(running.text("xenstore-read", &["/local/domain/1/name"]), "guest one\n");
    assert_eq!(running.text("xenstore-list", &["/"]), "local\ntool\n");
    running.text("xenstore-exists", &["/tool/x"]);
    assert!(!running.run("xenstore-exists", &["/tool/y"]).status.success());
    assert_eq!(
        running.text("xenstore-ls", &["-f"]),
        "/local = \"\"\n/local/domain = \"\"\n/local/domain/1 = \"\"\n\
         /local/domain/1/name = \"guest one\"\n/tool = \"\"\n/tool/x = \"1\"\n"
    );
    running.text("xenstore-rm", &["/local"]);
    let missing = running.run("xenstore-read", &["/local/domain/1/name"]);
    assert!(!missing.status.success());
    assert_eq!(running.text("xenstore-ls", &[]), "tool = \"\"\n x = \"1\"\n");
    let refused = running.run("xenstore-write", &["/no spaces", "1"]);
    assert!(!refused.status.success());
}

#[test]
fn the_stock_tools_set_and_show_permissions() {
    if tools_are_missing() {
        return;
    }
    let running = Running::start("chmod");
    running.text("xenstore-write", &["/device/vif/0/state", "1"]);
    running.text("xenstore-chmod", &["-r", "/device/vif", "n7", "r3"]);
    let shown = running.text("xenstore-ls", &["-f", "-p"]);
    let line = shown.lines().find(|line| line.starts_with("/device/vif/0/state"));
    let line = line.expect("the node is listed");
    assert!(line.contains("= \"1\"") && line.ends_with("(n7,r3)"), "{line:?}");
}

#[test]
fn xenstore_watch_prints_each_change() {
    if tools_are_missing() {
        return;
    }
    let running = Running::start("watch");
    let mut watcher = running
        .tool("xenstore-watch")
        .args(["-n", "3", "/vif"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("the tool can be run");
    let mut lines = BufReader::new(watcher.stdout.take().expect("stdout is piped")).lines();
    let mut next = || lines.next().expect("a line comes").expect("it is text");
    assert_eq!(next(), "/vif");
    running.text("xenstore-write", &["/vif/0/state", "4"]);
    assert_eq!(next(), "/vif/0/state");
    running.text("xenstore-rm", &["/vif"]);
    assert_eq!(next(), "/vif");
    assert!(watcher.wait().expect("it can be waited for").success());
}

#[test]
fn a_directory_longer_than_a_message_is_listed_in_parts() {
    let running = Running::start("parts");
    let mut client = Client::connect(&running.socket).expect("the server listens");
    let names: Vec<String> = (0..400).map(|n| format!("a-rather-long-name-{n:03}")).collect();
    client
        .transaction(|t| names.iter().try_for_each(|name| t.write(&format!("/long/{name}"), "")))
        .expect("the transaction commits");
    assert_eq!(client.directory("/long").expect("it can be listed"), names);
    if tools_are_missing() {
        return;
    }
    assert_eq!(running.text("xenstore-list", &["/long"]), names.join("\n") + "\n");
}
