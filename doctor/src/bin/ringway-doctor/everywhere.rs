//! `ringway doctor --all-netns`: checks each network namespace of the machine with a process of its
//! own inside it.

use std::fmt::Write;
use std::io::Read;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use ringway_doctor::evidence::namespaces::{Namespace, Namespaces};
use ringway_doctor::evidence::one_line;
use ringway_doctor::fact::Host;
use ringway_doctor::finding::{Severity, shell_word};
use ringway_doctor::report::Report;
use ringway_doctor::report::text::{Detail, mark, render};
use ringway_terminal::output::{print, print_json};
use rustix::process::Uid;
use serde::Serialize;

use super::{Doctor, collected};

/// Namespaces that are checked.
const NAMESPACES_MAX: usize = 64;
/// Namespaces examined at a time: each examination takes CPU time that the others would measure.
const CONCURRENT_MAX: usize = 4;
/// How long all examinations together may take, and a single one beyond its interval.
const ALL_MAX: Duration = Duration::from_secs(300);
const ONE_MAX: Duration = Duration::from_secs(60);
/// How often to check whether an examination is over.
const NAP: Duration = Duration::from_millis(20);

/// The findings of each namespace.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
struct Everywhere {
    /// This one first.
    namespaces: Vec<Place>,
    /// Those that could not be entered.
    #[serde(rename = "not-looked-at")] // as scripts know it
    not_checked: Vec<Missed>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
struct Place {
    netns: String,
    report: Report,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
struct Missed {
    netns: String,
    why: String,
}

pub(super) fn diagnose(args: &Doctor) -> Result<ExitCode> {
    let everywhere = check(args)?;
    if args.json {
        print_json(&everywhere)?;
    } else {
        print(&everywhere.text(args.verbose))?;
    }
    // A warning is worse than no verdict, and no verdict is worse than "all is well".
    let reports = everywhere.namespaces.iter().map(|place| &place.report);
    let worst = reports.max_by_key(|report| (report.worst.max(Severity::Note), report.exit_code()));
    Ok(ExitCode::from(worst.map_or(5, Report::exit_code)))
}

/// Why a user may not see the namespaces of some processes.
fn why_refused(user: Uid) -> &'static str {
    match user.is_root() {
        true => "the kernel refused, although this is root: a container without CAP_SYS_PTRACE",
        false => "only root may see their namespaces",
    }
}

fn check(args: &Doctor) -> Result<Everywhere> {
    let Namespaces { all, hidden, refused } = Namespaces::live();
    let mut everywhere = Everywhere::default();
    let missed = |netns: String, why: String| Missed { netns, why };
    everywhere.not_checked.extend(hidden.into_iter().map(|(name, why)| missed(name, why)));
    if refused > 0 {
        let why = why_refused(rustix::process::geteuid()).to_owned();
        everywhere.not_checked.push(missed(format!("any namespace of {refused} processes"), why));
    }
    let deadline = Instant::now() + ALL_MAX;
    let own = Host::new(collected(args.interval, &[])?);
    let report = Report::of(&own, &args.checks);
    everywhere.namespaces.push(Place { netns: "this one".to_owned(), report });
    let mut next = all.iter().take(NAMESPACES_MAX);
    let queue = Mutex::new(&mut next);
    let checked = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..CONCURRENT_MAX {
            scope.spawn(|| {
                while let Some(one) = queue.lock().ok().and_then(|mut queue| queue.next()) {
                    let found = report_of(one, args, deadline);
                    checked.lock().map(|mut all| all.push((one.clone(), found))).unwrap_or(());
                }
            });
        }
    });
    let mut checked = checked.into_inner().unwrap_or_default();
    checked.sort_by(|one, other| one.0.cmp(&other.0));
    for (namespace, found) in checked {
        let netns = name(&namespace);
        match found {
            Ok(report) => {
                let report = report.within(&netns, |command| enter(&namespace, command));
                everywhere.namespaces.push(Place { netns, report });
            }
            Err(error) => everywhere.not_checked.push(missed(netns, format!("{error:#}"))),
        }
    }
    let left = all.iter().skip(NAMESPACES_MAX);
    let why = || format!("at most {NAMESPACES_MAX} are checked, and there are {}", all.len());
    everywhere.not_checked.extend(left.map(|one| missed(name(one), why())));
    Ok(everywhere)
}

impl Everywhere {
    fn text(&self, is_verbose: bool) -> String {
        let detail = if is_verbose { Detail::Full } else { Detail::Terse };
        // First a line for each, as most of a hundred are well.
        let mut text = String::new();
        for Place { netns, report } in &self.namespaces {
            let is_unsure = report.worst <= Severity::Note && !report.is_conclusive;
            let worst = if is_unsure { Severity::Unknown } else { report.worst };
            let _ = writeln!(text, "{} {netns}: {}", mark(worst), report.verdict);
        }
        for Missed { netns, why } in &self.not_checked {
            let _ = writeln!(text, "[?] {netns} was not checked: {why}");
        }
        for Place { netns, report } in &self.namespaces {
            let is_well = report.worst <= Severity::Note && report.is_conclusive;
            if !is_well || is_verbose {
                let _ = write!(text, "\nNetwork namespace {netns}\n\n{}", render(report, detail));
            }
        }
        text
    }
}

fn name(namespace: &Namespace) -> String {
    match namespace {
        Namespace::Named(name) => one_line(name),
        Namespace::OfProcess(process, program) => {
            one_line(&format!("of {program} (process {process})"))
        }
    }
}

/// The prefix that runs a command in a namespace. Mounts that it makes end with the command.
fn enter_command(namespace: &Namespace) -> Vec<String> {
    match namespace {
        Namespace::Named(name) => ["ip", "netns", "exec", name].map(str::to_owned).into(),
        // With the /sys of that namespace, as `ip netns exec` mounts it.
        Namespace::OfProcess(process, _) => {
            let net = format!("--net=/proc/{process}/ns/net");
            let script = "mount -t sysfs sysfs /sys && exec \"$@\"";
            ["nsenter", &net, "unshare", "-m", "sh", "-c", script, "sh"].map(str::to_owned).into()
        }
    }
}

/// A command for a shell that runs in a namespace.
fn enter(namespace: &Namespace, command: &str) -> String {
    let is_plain = command.bytes().all(|byte| !b"|&;<>()$`\\\"'*?[]#~%{}\n".contains(&byte));
    match namespace {
        Namespace::Named(name) if is_plain => {
            format!("ip netns exec {} {command}", shell_word(name))
        }
        Namespace::Named(name) => {
            format!("ip netns exec {} sh -c {}", shell_word(name), shell_word(command))
        }
        Namespace::OfProcess(process, _) if is_plain && !command.contains("/sys/class") => {
            format!("nsenter --net=/proc/{process}/ns/net {command}")
        }
        Namespace::OfProcess(process, _) => {
            let script = format!("mount -t sysfs sysfs /sys && {command}");
            let script = shell_word(&script).into_owned();
            format!("nsenter --net=/proc/{process}/ns/net unshare -m sh -c {script}")
        }
    }
}

/// The doctor's report on a namespace, from a process inside it.
fn report_of(namespace: &Namespace, args: &Doctor, deadline: Instant) -> Result<Report> {
    let own = std::env::current_exe().context("our own program")?;
    let mut command = there(namespace, &own);
    command.args(["--json", "--interval"]).arg(args.interval.to_string());
    command.args(args.checks.iter().flat_map(|check| ["--check", check]));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let one = Instant::now() + Duration::from_secs(args.interval) + ONE_MAX;
    let deadline = deadline.min(one);
    if Instant::now() > deadline {
        bail!("no time was left: all namespaces together took more than {} s", ALL_MAX.as_secs());
    }
    let mut child = command.spawn().with_context(|| format!("run {:?}", command.get_program()))?;
    let (mut out, mut err) = (child.stdout.take(), child.stderr.take());
    let (said, wrong) = thread::scope(|scope| {
        let said = scope.spawn(|| text_of(out.as_mut()));
        let wrong = scope.spawn(|| text_of(err.as_mut()));
        while child.try_wait()?.is_none() {
            if Instant::now() > deadline {
                child.kill()?;
            }
            thread::sleep(NAP);
        }
        Ok::<_, std::io::Error>((said.join().unwrap_or_default(), wrong.join().unwrap_or_default()))
    })?;
    if Instant::now() > deadline {
        bail!("it took too long");
    }
    report_in(&said, &wrong)
}

/// The report in what an examination printed. A tool that cannot enter a namespace prints only why.
fn report_in(said: &str, wrong: &str) -> Result<Report> {
    let last = wrong.lines().last().unwrap_or("it printed nothing");
    if said.is_empty() {
        bail!("{last}");
    }
    serde_json::from_str(said).with_context(|| last.to_owned())
}

fn there(namespace: &Namespace, program: &Path) -> Command {
    let words = enter_command(namespace);
    let mut words = words.iter();
    let mut command = Command::new(words.next().map_or("", String::as_str));
    command.args(words).arg(program);
    command
}

/// Largest output of an examination, in bytes.
const OUTPUT_MAX: u64 = 64 << 20;

fn text_of(from: Option<&mut impl Read>) -> String {
    let mut text = Vec::new();
    let _ = from.map(|from| from.take(OUTPUT_MAX).read_to_end(&mut text));
    String::from_utf8_lossy(&text).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringway_doctor::evidence::Source;

    #[test]
    fn each_namespace_has_a_line_and_only_a_sick_one_has_more() {
        let place = |netns: &str, worst: Severity, verdict: &str| {
            let of_nothing = Report::of(&Host::new(Source::Memory([].into())), &["D19".to_owned()]);
            let verdict = verdict.to_owned();
            let report = Report { worst, verdict, is_conclusive: true, ..of_nothing };
            Place { netns: netns.to_owned(), report }
        };
        let why = "only root may".to_owned();
        let everywhere = Everywhere {
            namespaces: vec![
                place("this one", Severity::Ok, "No problems found"),
                place("router", Severity::Problem, "it drops"),
                place("of redis", Severity::Note, "nothing set wrong"),
            ],
            not_checked: vec![Missed { netns: "hidden".to_owned(), why }],
        };
        let text = everywhere.text(false);
        let lines: Vec<&str> = text.lines().collect();
        let lines_of = [
            "[✓] this one: No problems found",
            "[✗] router: it drops",
            "[i] of redis: nothing set wrong",
            "[?] hidden was not checked: only root may",
        ];
        assert_eq!(lines[..4], lines_of, "{text}");
        let more: Vec<&&str> = lines.iter().filter(|line| line.starts_with("Network")).collect();
        assert_eq!(more, [&"Network namespace router"], "{text}");
        assert_eq!(everywhere.text(true).matches("\nNetwork namespace ").count(), 3);
    }

    #[test]
    fn a_namespace_that_cannot_be_entered_has_the_reason_of_the_tool() {
        let refusal = "setting the network namespace \"a\" failed: Operation not permitted";
        let why = |said: &str, wrong: &str| {
            let error = report_in(said, wrong).expect_err("there is no report");
            format!("{error:#}")
        };
        assert_eq!(why("", &format!("{refusal}\n")), refusal);
        assert_eq!(why("", ""), "it printed nothing");
        assert!(why("{\"findings\":", "killed\n").starts_with("killed: EOF"));
    }

    #[test]
    fn root_gets_another_reason_than_others() {
        assert!(why_refused(Uid::ROOT).contains("although this is root"));
        assert!(why_refused(Uid::from_raw(1000)).starts_with("only root may"));
    }

    #[test]
    fn commands_run_in_the_namespace_of_the_finding() {
        let named = Namespace::Named("qrouter-1".to_owned());
        let of_process = Namespace::OfProcess(7, "redis".to_owned());
        let plain = "sysctl -w net.ipv4.tcp_sack=1";
        assert_eq!(enter(&named, plain), format!("ip netns exec qrouter-1 {plain}"));
        assert_eq!(enter(&of_process, plain), format!("nsenter --net=/proc/7/ns/net {plain}"));
        let write = "echo f > /sys/class/net/eth0/queues/rx-0/rps_cpus";
        assert_eq!(
            enter(&of_process, write),
            format!(
                "nsenter --net=/proc/7/ns/net unshare -m sh -c 'mount -t sysfs sysfs /sys && \
                 {write}'"
            )
        );
        assert_eq!(enter(&named, write), format!("ip netns exec qrouter-1 sh -c '{write}'"));
    }
}
