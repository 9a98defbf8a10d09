//! Checks that tests order events by events.
//!
//! A test that waits a fixed time fails when the machine is busy, or passes because nothing has
//! happened yet. Each place that sleeps, gives up soon, takes silence for proof or bounds an
//! elapsed time gives its reason in a comment `waits: REASON`, at the end of the line or directly
//! above it.
//!
//! A time limit that only ends a test that hangs is named `PATIENCE`, and is long.

use crate::tree::{SourceFile, Tree};

/// What a comment says before its reason. Split here so that this file has none without one.
const MARK: &str = concat!("wai", "ts: ");
/// The least patience: a machine that is busy with other work takes many times as long.
const PATIENCE_SECS_MIN: u32 = 30;
/// What the names of such limits end with.
const PATIENCES: [&str; 2] = ["PATIENCE", "SOON"];
/// A program of a shell's that sleeps for longer stands for one that hangs.
const SLEEP_SECS_MAX: f64 = 60.0;
/// The least time limit of a script's command that does not grow with its `PATIENCE`.
const TIMEOUT_SECS_MIN: f64 = 300.0;
/// Suites that several crates run, besides the files in `tests` folders.
const SUITES: [&str; 2] = ["/conformance.rs", "/interleavings.rs"];
/// What only tests use.
const SUPPORT: &str = "crates/e2e/src/";
/// Parts of programs that tests run for what they find: their patience is the test's.
const RUN_BY_TESTS: [&str; 2] = ["crates/hostile/src/", "crates/rig/src/"];

/// Every place that waits without a reason, one line each.
pub(crate) fn check(tree: &Tree) -> Vec<String> {
    let mut findings = Vec::new();
    for file in &tree.files {
        let find: fn(&str) -> Option<&'static str> = match () {
            () if file.is_rust() => in_rust,
            () if is_shell_of_tests(file) => in_shell,
            () => continue,
        };
        let is_run = RUN_BY_TESTS.iter().any(|folder| file.path.starts_with(folder));
        let lines: Vec<(&str, bool)> = lines(file).collect();
        for (index, (line, is_test)) in lines.iter().enumerate() {
            let is_marked = || is_marked(&lines[..=index]);
            let counts = |what: &&str| *is_test || (is_run && *what == SHORT_PATIENCE);
            if let Some(what) = find(line).filter(counts).filter(|_| !is_marked()) {
                let line = index + 1;
                findings.push(format!("{}:{line}: {what}, without `{MARK}REASON`", file.path));
            }
        }
    }
    findings
}

fn is_shell_of_tests(file: &SourceFile) -> bool {
    let first = file.text.lines().next().unwrap_or_default();
    is_in_tests(&file.path)
        && (file.path.ends_with(".sh") || (first.starts_with("#!") && first.ends_with("sh")))
}

fn is_in_tests(path: &str) -> bool {
    path.starts_with("tests/") || path.contains("/tests/")
}

/// Each line with whether it belongs to a test. A module of tests ends its file.
fn lines(file: &SourceFile) -> impl Iterator<Item = (&str, bool)> {
    let path = file.path.as_str();
    let mut is_test = is_in_tests(path)
        || path.starts_with(SUPPORT)
        || path.ends_with("/tests.rs")
        || SUITES.iter().any(|suite| path.ends_with(suite));
    let mut is_next = false;
    file.text.lines().map(move |line| {
        is_test |= is_next && line.starts_with("mod ") && line.ends_with('{');
        is_next = is_for_tests(line) || (is_next && line.starts_with('#'));
        (line, is_test)
    })
}

/// Whether an attribute leaves out what follows except in tests, maybe not in all of them.
fn is_for_tests(line: &str) -> bool {
    let mut words = line.split(|letter: char| !is_name(letter) && letter != '-');
    line.starts_with("#[cfg(") && !line.contains("not(test)") && words.any(|word| word == "test")
}

/// Whether the last line, or the comment directly above it, gives a reason. The comment may also be
/// above the first line of a string.
fn is_marked(lines: &[(&str, bool)]) -> bool {
    let gives_reason = |line: &str| line.split_once(MARK).is_some_and(|(_, why)| !why.is_empty());
    let Some(((last, _), before)) = lines.split_last() else { return false };
    let is_said_above = |before: &[(&str, bool)]| {
        let above = before.iter().rev().map(|(line, _)| line.trim_start());
        let mut comment = above.take_while(|line| line.starts_with("//") || line.starts_with('#'));
        comment.any(gives_reason)
    };
    let continued = before.iter().rev().take_while(|(line, _)| line.ends_with('\\')).count();
    let above_string = &before[..before.len() - continued];
    gives_reason(last) || is_said_above(before) || is_said_above(above_string)
}

const SHORT_PATIENCE: &str = "a PATIENCE is short";

fn in_rust(line: &str) -> Option<&'static str> {
    let code = line.split("//").next().unwrap_or_default();
    let has_any = |calls: &[&str]| calls.iter().any(|call| after_word(code, call).is_some());
    let lasts_otherwise = |calls: &[&str]| {
        let mut arguments = calls.iter().filter_map(|call| after_word(code, call));
        arguments.any(|argument| !is_patience(argument))
    };
    let is_comment = line.trim_start().starts_with("//");
    if has_any(&["sleep(", "nanosleep(", "clock_nanosleep(", "park_timeout("])
        || (!is_comment && (sleeps_in_shell(line) || sleeps_as_program(line)))
    {
        Some("it sleeps")
    } else if lasts_otherwise(&LIMITED)
        || has_short_limit(code)
        || (!is_comment && gives_up_soon(line))
    {
        Some("it waits for less than a PATIENCE")
    } else if has_any(&["try_recv()"]) && !has_any(&["while let Ok("]) && !code.contains("().ok()")
        || has_any(&["poll("]) && has_any(&["Timespec::default()", "NOW"])
        || after_word(code, "DONTWAIT").is_some_and(|rest| rest.contains(".is_err()"))
        || has_any(&["fn quiesce", "fn assert_quiet", "fn assert_silent"])
    {
        Some("it takes silence for proof")
    } else if lasts_otherwise(&["elapsed < ", "elapsed <= ", "took < ", "took <= "])
        || lasts_otherwise(&["Instant::now() + "])
        || is_elapsed_bounded(code)
        || (!code.contains("assert") && lasts_otherwise(&["elapsed() > "]))
    {
        Some("it bounds an elapsed time")
    } else if patience_secs(code).is_some_and(|secs| secs < PATIENCE_SECS_MIN) {
        Some(SHORT_PATIENCE)
    } else {
        None
    }
}

/// Calls with their limit first.
const LIMITED: [&str; 4] =
    ["recv_timeout(", "set_read_timeout(Some(", "set_write_timeout(Some(", "all_respond("];

/// Whether a call that waits for something has a limit behind that which is no patience.
fn has_short_limit(code: &str) -> bool {
    let has_patience = |rest: &str| {
        rest.contains("Duration::MAX") || PATIENCES.iter().any(|patience| rest.contains(patience))
    };
    let of = |call: &str, limit: &str| {
        let rest = after_word(code, call).and_then(|rest| rest.split_once(limit));
        rest.is_some_and(|(_, rest)| !has_patience(rest))
    };
    of("wait_readable(", ", Some(")
        || of("wait_timeout(", ", ")
        || of("wait_timeout_while(", ", ")
        || of("connect_timeout(", ", ")
        || of("wait_for(", ", Duration::from_")
        || of("wait(", ", Duration::from_")
}

/// Whether a time that has passed, in any unit, is to be less than what is no patience.
fn is_elapsed_bounded(code: &str) -> bool {
    let mut bounds = ["elapsed()", "duration_since("].iter().filter_map(|call| {
        let rest = after_word(code, call)?;
        let [less, at_most] = [" < ", " <= "].map(|sign| rest.split_once(sign));
        Some(less.or(at_most)?.1)
    });
    bounds.any(|bound| !is_patience(bound))
}

fn is_name(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_'
}

/// What follows a word, if the code contains it outside of a string.
fn after_word<'a>(code: &'a str, word: &str) -> Option<&'a str> {
    let mut places = code.match_indices(word).filter(|(start, _)| {
        let before = &code[..*start];
        let is_quoted = before.matches('"').count() % 2 == 1;
        let is_defined = before.ends_with("fn ") && word.ends_with('(');
        !before.ends_with(is_name) && !is_quoted && !is_defined
    });
    places.next().map(|(start, _)| &code[start + word.len()..])
}

fn is_patience(argument: &str) -> bool {
    let end = argument.find(|letter: char| !is_name(letter) && letter != ':');
    let name = &argument[..end.unwrap_or(argument.len())];
    PATIENCES.iter().any(|patience| name.ends_with(patience))
}

/// Options of tools with a limit in seconds.
const LIMITS_OF_TOOLS: [&str; 3] = ["--timeout=", "--max-time", "ConnectTimeout="];

/// Whether a tool that a line runs gives up soon: `ping`, unless it is tried in a loop, `socat`, a
/// socket of Python's, or one that has an option for that.
fn gives_up_soon(line: &str) -> bool {
    let is_short = |secs: f64| secs < f64::from(PATIENCE_SECS_MIN);
    let has_short = |word: &str| number_after(line, word).is_some_and(is_short);
    let is_tried = ["until ", "while "].iter().any(|word| line.contains(word));
    let tries = number_after(line, "retry=").zip(number_after(line, "interval="));
    (line.contains("ping") && !is_tried && (has_short("-w") || has_short("-W")))
        || tries.is_some_and(|(tries, pause)| is_short(tries * pause))
        || has_short(".settimeout(")
        || LIMITS_OF_TOOLS.iter().any(|option| has_short(option))
}

/// The number behind a word, of the same argument or of the next.
fn number_after(line: &str, word: &str) -> Option<f64> {
    let (_, rest) = line.split_once(word)?;
    let number = rest.trim_start_matches(['"', ',', ' ']);
    let end = number.find(|letter: char| !letter.is_ascii_digit() && letter != '.');
    number[..end.unwrap_or(number.len())].parse().ok()
}

/// The whole seconds of a constant with such a name, or one that says that something ends then.
fn patience_secs(code: &str) -> Option<u32> {
    let mut names = PATIENCES.iter().chain(&["TIMEOUT"]);
    let value = names.find_map(|name| code.split_once(name)?.1.strip_prefix(": "))?;
    let (kind, value) = value.split_once(" = ")?;
    // An option of a tool has its number in it, and the other patience has its own.
    if kind == "&str" || is_patience(value) {
        return None;
    }
    let secs = ["from_secs(", "tv_sec: "].iter().find_map(|unit| value.split_once(unit));
    let digits = secs.map_or("0", |(_, secs)| secs);
    let end = digits.find(|digit: char| !digit.is_ascii_digit()).unwrap_or(digits.len());
    digits[..end].parse().ok()
}

fn in_shell(line: &str) -> Option<&'static str> {
    let code = if line.trim_start().starts_with('#') { "" } else { line };
    let words = code.split_whitespace().skip_while(|word| *word != "read").skip(1);
    let is_timed = words.take_while(|word| word.starts_with('-')).any(|word| word.contains('t'));
    if sleeps_in_shell(code) || is_timed {
        Some("it sleeps")
    } else if gives_up_soon(code)
        || number_after(code, "timeout ").is_some_and(|secs| secs < TIMEOUT_SECS_MIN)
    {
        Some("it waits for less than its PATIENCE")
    } else if code.contains("! ping ") {
        Some("it takes silence for proof")
    } else {
        None
    }
}

/// Whether a command of several strings sleeps.
fn sleeps_as_program(line: &str) -> bool {
    number_after(line, "\"sleep\"").is_some_and(|secs| secs < SLEEP_SECS_MAX)
}

/// Whether a command of a shell sleeps, be it part of a string.
fn sleeps_in_shell(code: &str) -> bool {
    let mut places = code.match_indices("sleep ").filter(|(start, _)| {
        let before = &code[..*start];
        // `usleep` does so, too, and a string may have the end of a line before it.
        let is_part = before.ends_with(|letter: char| is_name(letter) || letter == '-');
        !is_part || before.ends_with('u') || before.ends_with("\\n")
    });
    places.any(|(start, word)| {
        let time = &code[start + word.len()..];
        let end = time.find(|letter: char| !letter.is_ascii_digit() && letter != '.');
        let number = &time[..end.unwrap_or(time.len())];
        let is_short = number.parse().is_ok_and(|secs: f64| secs < SLEEP_SECS_MAX);
        is_short || time.starts_with(['$', '{', '"'])
    })
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
            "    rustix::thread::nanosleep(&LONG);",
            concat!("    let script = \"while :; do slee", "p 0.1; done\";"),
            concat!("        slee", "p 2; done\";"),
            "    assert!(events.recv_timeout(LONG).is_err());",
            "    socket.set_read_timeout(Some(Duration::from_secs(1)))?;",
            "    socket.set_write_timeout(Some(LONG))?;",
            "    assert!(!wait_readable(&bell, Some(LONG))?);",
            "    let (far, over) = changed.wait_timeout_while(far, LONG, is_so)?;",
            "    host.wait(\"its end\", Duration::from_secs(2), |host| host.vif(\"a\"));",
            "    assert!(events.try_recv().is_err());",
            "        events.try_recv(),",
            "    assert!(socket.receive(RecvFlags::DONTWAIT).is_err());",
            "    poll(&mut fds, Some(&Timespec::default()))?;",
            "    fn assert_quiet(event: &Event) {",
            "    assert!(start.elapsed() < Duration::from_millis(50));",
            "        elapsed <= LONG,",
            "    assert!(start.elapsed().as_millis() < 50);",
            "    assert!(now.duration_since(start) < LONG);",
            "    let end = Instant::now() + Duration::from_secs(1);",
            concat!("const PATIENC", "E: Duration = Duration::from_secs(5);"),
            concat!("const PATIENC", "E: Duration = Duration::from_millis(90_000);"),
            concat!("const SOO", "N: Duration = Duration::from_secs(2);"),
            "        since.elapsed() > LONG",
            concat!("    f(&[\"pi", "ng\", \"-c\", \"1\", \"-W\", \"1\", address]);"),
            concat!("    tool(pid, \"pi", "ng -c1 -w2 a\");"),
            concat!("    f(\"TCP:a:7,ret", "ry=100,interval=0.05\");"),
            concat!("s.set", "timeout(0.5)"),
            concat!("    f(&[\"sle", "ep\", \"5\"]);"),
            concat!("    f(&[\"curl\", \"--max", "-time\", \"5\", url]);"),
            concat!("    f(\"ovs-vsctl --time", "out=20 init\");"),
            concat!("const END_TIME", "OUT: Duration = Duration::from_secs(10);"),
            "    while workers.all_respond(LONG) {",
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
            "    socket.set_read_timeout(Some(SOON))?;",
            "    while let Ok(event) = events.try_recv() {",
            "    let complaint = complaints.try_recv().ok();",
            "    assert!(wait_readable(&bell, Some(PATIENCE))?);",
            "    assert!(wait_readable(&bell, None)?);",
            "    let (far, _) = changed.wait_timeout_while(far, PATIENCE, is_so)?;",
            "    host.wait(\"its end\", 2 * SOON, |host| host.vif(\"a\"));",
            "    assert!(start.elapsed() < PATIENCE);",
            "    assert!(start.elapsed() >= LONG);",
            "    let end = Instant::now() + END_PATIENCE;",
            "    if start.elapsed() > PATIENCE {",
            "    let reach = \"ping -n -c 1 -W 30 a; until ping -c1 -W1 a; do :; done\";",
            "    let connect = \"TCP:a:7,retry=3000,interval=0.1\";",
            "const PATIENCE: Duration = Duration::from_secs(30);",
            "const PATIENCE: Timespec = Timespec { tv_sec: 60, tv_nsec: 0 };",
            "const END_TIMEOUT: Duration = Duration::from_secs(60);",
            "const TIMEOUT: &str = \"--timeout=50\";",
            "const TIMEOUT: Duration = SOON;",
            "    assert!(workers.all_respond(PATIENCE));",
        ] {
            assert_eq!(found(line), [0, 0, 0], "{line}");
        }
    }

    #[test]
    fn a_string_over_lines_has_its_reason_above() {
        let of = |reason: &str| {
            let string = concat!("const A: &str = \"a; \\\n    slee", "p 0.5; b\";\n");
            findings("a/tests/a.rs", &format!("// {reason}\n{string}"))
        };
        assert_eq!((of(&format!("{MARK}it is late")), of("It is late.")), (0, 1));
    }

    #[test]
    fn modules_of_tests_and_suites_are_tests() {
        let module = "fn f() {\n    sleep(A);\n}\n\n#[cfg(test)]\nmod tests {\n    sleep(B);\n}\n";
        assert_eq!(findings("a/src/a.rs", module), 1);
        let import = "#[cfg(test)]\nuse a::B;\n\nfn f() {\n    sleep(A);\n}\n";
        assert_eq!(findings("a/src/a.rs", import), 0);
        assert_eq!(findings("a/src/a/tests.rs", import), 1);
        assert_eq!(findings("a/src/conformance.rs", import), 1);
        assert_eq!(findings("crates/e2e/src/host.rs", import), 1);
        let some = module.replace("cfg(test)", "cfg(all(test, not(feature = \"loom\")))");
        assert_eq!(findings("a/src/a.rs", &some), 1);
        let never = module.replace("cfg(test)", "cfg(not(test))");
        assert_eq!(findings("a/src/a.rs", &never), 0);
    }

    /// Not in one piece, because this file is searched, too.
    const SLEEP: &str = concat!("slee", "p ");

    #[test]
    fn the_patience_of_programs_that_tests_run_is_theirs() {
        let short = concat!("const PATIENC", "E: Duration = Duration::from_secs(20);\n");
        let pause = "    sleep(PAUSE);\n";
        let of = |path: &str| findings(path, &format!("{short}{pause}"));
        assert_eq!((of("crates/rig/src/a.rs"), of("crates/engine/src/a.rs")), (1, 0));
    }

    #[test]
    fn scripts_of_tests_give_their_reasons() {
        let sleep = format!("    {SLEEP}1\n");
        assert_eq!(findings("tests/xen/lib.sh", &sleep), 1);
        assert_eq!(findings("tests/xen/run", "#!/bin/bash\nread -r -t 5 line\nread -t 1 x\n"), 2);
        let micro = format!("#!/bin/sh\nu{SLEEP}5\nread -r line\n");
        assert_eq!(findings("a/tests/it/script", &micro), 1);
        let quoted = format!("guest a \"true && {SLEEP}$1\"\n! ping -c 1 a\n");
        assert_eq!(findings("tests/a.sh", &quoted), 2);
        let in_rust = format!("    let script = \"x\\n{SLEEP}1\";\n    f(\"exec {SLEEP}1000\");\n");
        assert_eq!(findings("a/tests/a.rs", &in_rust), 1);
        let marked = format!("{SLEEP}1 # {MARK}Xen prints for a second\n# {MARK}\n{SLEEP}2\n");
        assert_eq!(findings("tests/xen/lib.sh", &marked), 1, "one has no reason");
        let limits = "timeout 60 a\ntimeout 600 a\ntimeout $((PATIENCE * 60)) a\n";
        assert_eq!(findings("tests/a.sh", limits), 1, "one is fixed, and short");
        assert_eq!(findings("scripts/release.sh", &sleep), 0);
        assert_eq!(findings("tests/xen/README.md", &sleep), 0);
    }
}
