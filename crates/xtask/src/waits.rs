//! Checks that tests order events by events.
//!
//! A test that waits a fixed time fails when the machine is busy, or passes because nothing has
//! happened yet. Each place that sleeps, takes silence for proof or bounds an elapsed time gives
//! its reason in a comment `waits: REASON`, at the end of the line or directly above it.
//!
//! A time limit that only ends a test that hangs is named `PATIENCE`, and is long.

use crate::tree::{SourceFile, Tree};

/// What a comment says before its reason. Split here so that this file has none without one.
const MARK: &str = concat!("wai", "ts: ");
/// The least patience: a machine that is busy with other work takes many times as long.
const PATIENCE_SECS_MIN: u64 = 30;
/// Suites that several crates run, besides the files in `tests` folders.
const SUITES: [&str; 2] = ["/conformance.rs", "/interleavings.rs"];

/// Every place that waits without a reason, one line each.
pub(crate) fn check(tree: &Tree) -> Vec<String> {
    let mut findings = Vec::new();
    for file in &tree.files {
        let find: fn(&str) -> Option<&'static str> = match () {
            () if file.is_rust() => in_rust,
            () if is_shell_of_tests(file) => in_shell,
            () => continue,
        };
        let lines: Vec<(&str, bool)> = lines(file).collect();
        for (index, (line, is_test)) in lines.iter().enumerate() {
            let is_marked = || is_marked(&lines[..=index]);
            if let Some(what) = find(line).filter(|_| *is_test && !is_marked()) {
                let line = index + 1;
                findings.push(format!("{}:{line}: {what}, without `{MARK}REASON`", file.path));
            }
        }
    }
    findings
}

fn is_shell_of_tests(file: &SourceFile) -> bool {
    let first = file.text.lines().next().unwrap_or_default();
    file.path.starts_with("tests/")
        && (file.path.ends_with(".sh") || (first.starts_with("#!") && first.ends_with("sh")))
}

/// Each line with whether it belongs to a test. A module of tests ends its file.
fn lines(file: &SourceFile) -> impl Iterator<Item = (&str, bool)> {
    let path = file.path.as_str();
    let mut is_test = path.starts_with("tests/")
        || path.contains("/tests/")
        || path.ends_with("/tests.rs")
        || SUITES.iter().any(|suite| path.ends_with(suite));
    let mut is_next = false;
    file.text.lines().map(move |line| {
        is_test |= is_next && line.starts_with("mod ") && line.ends_with('{');
        is_next = line == "#[cfg(test)]" || (is_next && line.starts_with('#'));
        (line, is_test)
    })
}

/// Whether the last line, or the comment directly above it, gives a reason.
fn is_marked(lines: &[(&str, bool)]) -> bool {
    let gives_reason = |line: &str| line.split_once(MARK).is_some_and(|(_, why)| !why.is_empty());
    let Some(((last, _), before)) = lines.split_last() else { return false };
    let above = before.iter().rev().map(|(line, _)| line.trim_start());
    let mut comment = above.take_while(|line| line.starts_with("//") || line.starts_with('#'));
    gives_reason(last) || comment.any(gives_reason)
}

fn in_rust(line: &str) -> Option<&'static str> {
    let code = line.split("//").next().unwrap_or_default();
    let has_any = |calls: &[&str]| calls.iter().any(|call| after_word(code, call).is_some());
    let lasts_otherwise = |calls: &[&str]| {
        let mut arguments = calls.iter().filter_map(|call| after_word(code, call));
        arguments.any(|argument| !is_patience(argument))
    };
    let is_script = line.contains('"') && line.contains("sleep 0.");
    if has_any(&["sleep(", "park_timeout("]) || is_script {
        Some("it sleeps")
    } else if lasts_otherwise(&["recv_timeout(", "set_read_timeout(Some("]) {
        Some("it waits for less than a PATIENCE")
    } else if has_any(&["try_recv()"]) && has_any(&["is_err()", "assert_eq!(", "Err("])
        || has_any(&["poll("]) && has_any(&["Timespec::default()", "NOW"])
        || has_any(&["fn quiesce", "fn assert_quiet", "fn assert_silent"])
    {
        Some("it takes silence for proof")
    } else if lasts_otherwise(&["elapsed() < ", "elapsed() <= ", "elapsed < ", "elapsed <= "])
        || lasts_otherwise(&["took < ", "took <= ", "Instant::now() + "])
    {
        Some("it bounds an elapsed time")
    } else if patience_secs(code).is_some_and(|secs| secs < PATIENCE_SECS_MIN) {
        Some("a PATIENCE is short")
    } else {
        None
    }
}

/// What follows a word, if the code contains it outside of a string.
fn after_word<'a>(code: &'a str, word: &str) -> Option<&'a str> {
    let is_name = |letter: char| letter.is_alphanumeric() || letter == '_';
    let mut places = code.match_indices(word).filter(|(start, _)| {
        let before = &code[..*start];
        let is_quoted = before.matches('"').count() % 2 == 1;
        let is_defined = before.ends_with("fn ") && word.ends_with('(');
        !before.ends_with(is_name) && !is_quoted && !is_defined
    });
    places.next().map(|(start, _)| &code[start + word.len()..])
}

fn is_patience(argument: &str) -> bool {
    let end = argument.find(|letter: char| !letter.is_alphanumeric() && !"_:".contains(letter));
    argument[..end.unwrap_or(argument.len())].ends_with("PATIENCE")
}

/// The whole seconds of a constant named `PATIENCE`.
fn patience_secs(code: &str) -> Option<u64> {
    let (_, value) = code.split_once("PATIENCE: ")?;
    let (_, value) = value.split_once(" = ")?;
    let secs = ["from_secs(", "tv_sec: "].iter().find_map(|unit| value.split_once(unit));
    let digits = secs.map_or("0", |(_, secs)| secs);
    let end = digits.find(|digit: char| !digit.is_ascii_digit()).unwrap_or(digits.len());
    digits[..end].parse().ok()
}

fn in_shell(line: &str) -> Option<&'static str> {
    let code = if line.trim_start().starts_with('#') { "" } else { line };
    let is_call = |word: &str| after_word(code, word).is_some();
    (is_call("sleep ") || is_call("read -t")).then_some("it sleeps")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::file;

    fn findings(path: &str, text: &str) -> usize {
        check(&Tree { files: vec![file(path, text)] }).len()
    }

    /// In a test, in a test with a reason, and in a program.
    fn found(line: &str) -> [usize; 3] {
        let marked = format!("    // {MARK}the other side has no event\n    // for it.\n{line}\n");
        [("a/tests/a.rs", line), ("a/tests/a.rs", &marked), ("a/src/a.rs", line)]
            .map(|(path, text)| findings(path, text))
    }

    #[test]
    fn each_kind_is_found_in_tests_without_a_reason() {
        for line in [
            "    std::thread::sleep(Duration::from_millis(50));",
            "    thread::park_timeout(LONG);",
            concat!("    let script = \"while :; do slee", "p 0.1; done\";"),
            "    assert!(events.recv_timeout(LONG).is_err());",
            "    socket.set_read_timeout(Some(Duration::from_secs(1)))?;",
            "    assert!(events.try_recv().is_err());",
            "    poll(&mut fds, Some(&Timespec::default()))?;",
            "    fn assert_quiet(event: &Event) {",
            "    assert!(start.elapsed() < Duration::from_millis(50));",
            "        elapsed <= LONG,",
            "    let end = Instant::now() + Duration::from_secs(1);",
            concat!("const PATIENC", "E: Duration = Duration::from_secs(5);"),
            concat!("const PATIENC", "E: Duration = Duration::from_millis(90_000);"),
        ] {
            assert_eq!(found(line), [1, 0, 0], "{line}");
        }
    }

    #[test]
    fn a_patience_is_no_wait() {
        for line in [
            "    // It may sleep(here).",
            "fn sleep(a: &Queue) {",
            "    sleep_unless_work(&mut back);",
            "    let event = events.recv_timeout(PATIENCE);",
            "    socket.set_read_timeout(Some(super::PATIENCE))?;",
            "    while let Ok(event) = events.try_recv() {",
            "    assert!(start.elapsed() < PATIENCE);",
            "    assert!(start.elapsed() >= LONG);",
            "    let end = Instant::now() + END_PATIENCE;",
            "const PATIENCE: Duration = Duration::from_secs(30);",
            "const PATIENCE: Timespec = Timespec { tv_sec: 60, tv_nsec: 0 };",
        ] {
            assert_eq!(found(line), [0, 0, 0], "{line}");
        }
    }

    #[test]
    fn modules_of_tests_and_suites_are_tests() {
        let module = "fn f() {\n    sleep(A);\n}\n\n#[cfg(test)]\nmod tests {\n    sleep(B);\n}\n";
        assert_eq!(findings("a/src/a.rs", module), 1);
        let import = "#[cfg(test)]\nuse a::B;\n\nfn f() {\n    sleep(A);\n}\n";
        assert_eq!(findings("a/src/a.rs", import), 0);
        assert_eq!(findings("a/src/a/tests.rs", import), 1);
        assert_eq!(findings("a/src/conformance.rs", import), 1);
    }

    #[test]
    fn scripts_of_tests_give_their_reasons() {
        assert_eq!(findings("tests/xen/lib.sh", "    sleep 1\n"), 1);
        assert_eq!(findings("tests/xen/run", "#!/bin/bash\nread -r -t 5 line\nread -t 1 x\n"), 1);
        let marked = format!("sleep 1 # {MARK}Xen prints for a second\n# {MARK}\nsleep 2\n");
        assert_eq!(findings("tests/xen/lib.sh", &marked), 1, "one has no reason");
        assert_eq!(findings("scripts/release.sh", "sleep 1\n"), 0);
        assert_eq!(findings("tests/xen/README.md", "sleep 1\n"), 0);
    }
}
