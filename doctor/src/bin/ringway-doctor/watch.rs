//! `ringway doctor serve`: the findings as metrics for Prometheus, on a page and in a file.

use std::fs::Permissions;
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;
use ringway_doctor::collect;
use ringway_doctor::fact::Host;
use ringway_doctor::report::Report;
use ringway_doctor::watch::{Cost, metrics};
use ringway_terminal::options::seconds;
use ringway_terminal::output::print;
use ringway_terminal::stop::Stop;
use tempfile::{Builder, NamedTempFile};

use crate::web::{Page, Place, Server};

/// How long a signal may wait before it ends the server.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Where it listens without an option.
const DEFAULT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 9819);
const MEDIA: &str = "text/plain; version=0.0.4; charset=utf-8";

#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  ringway doctor serve --every 60\n  ringway doctor serve --textfile \
                  /var/lib/prometheus/node-exporter/ringway-doctor.prom"
)]
pub(super) struct Watch {
    /// Where to serve /metrics: an address of this host alone, or the path of a Unix socket
    /// [default: 127.0.0.1:9819, or nowhere with --textfile]
    ///
    /// Every user of this host may read them. For other hosts, put a proxy with TLS and passwords
    /// in front, or use --textfile.
    #[arg(long, value_name = "ADDRESS:PORT|PATH")]
    listen: Option<Place>,
    /// Write the metrics to this file after each examination, for node_exporter's textfile
    /// collector, which reads files *.prom
    #[arg(long, value_name = "FILE", value_parser = textfile)]
    textfile: Option<PathBuf>,
    /// Removed: says what to use instead
    #[arg(long, value_name = "FILE", hide = true, alias = "web.config.file")]
    web_config: Option<PathBuf>,
    /// Seconds between two examinations
    #[arg(long, value_name = "SECONDS", default_value = "60")]
    #[arg(value_parser = seconds(1..=86_400_u64))]
    every: u64,
    /// Seconds between the two samples of an examination
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = seconds(1..=3600_u64))]
    interval: u64,
}

pub(super) fn run(args: &Watch) -> Result<()> {
    if args.web_config.is_some() {
        bail!(
            "--web-config: doctor serve has neither TLS nor passwords. Let it listen on 127.0.0.1 \
             or a Unix socket, and put a proxy with both in front; or let node_exporter serve \
             --textfile"
        );
    }
    let stop = Stop::on_signals()?;
    let listen = match (&args.listen, &args.textfile) {
        (None, None) => Some(Place::Loopback(DEFAULT)),
        (listen, _) => listen.clone(),
    };
    let server = listen.as_ref().map(Server::start).transpose()?;
    if let Some(path) = &args.textfile {
        // Before the first examination, so that an error is reported at once.
        beside(path).with_context(|| format!("--textfile {}", path.display()))?;
    }
    let page = Arc::new(Mutex::new(String::new()));
    let shared = Arc::clone(&page);
    let (every, interval) = (Duration::from_secs(args.every), Duration::from_secs(args.interval));
    let textfile = args.textfile.clone();
    // Never joined: it may wait for a tool, and holds nothing that needs cleaning up.
    thread::Builder::new().name("examine".to_owned()).spawn(move || {
        loop {
            let begun = Instant::now();
            let text = check(interval);
            if let Some(Err(error)) = textfile.as_deref().map(|path| write(path, &text)) {
                // The next one may succeed. Meanwhile the file's time is old, which node_exporter
                // reports.
                eprintln!("{error:#}");
            }
            *shared.lock().unwrap_or_else(PoisonError::into_inner) = text;
            thread::sleep(every.saturating_sub(begun.elapsed()));
        }
    })?;
    if let Some(path) = &args.textfile {
        print(&format!("Writing {}\n", path.display()))?;
    }
    let Some(server) = server else {
        while !stop.wait(POLL_INTERVAL)? {}
        return Ok(());
    };
    print(&format!("Serving {}/metrics\n", server.name()))?;
    while !stop.wait(Duration::ZERO)? {
        let page = Arc::clone(&page);
        server.serve(POLL_INTERVAL, move |path| respond(path, &page))?;
    }
    Ok(())
}

/// node_exporter reads no file with another ending.
fn textfile(path: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(path);
    let is_read = path.extension().is_some_and(|ending| ending == "prom");
    if is_read { Ok(path) } else { Err("expected a file that ends in .prom".to_owned()) }
}

/// Replaces a file. A reader finds the old metrics or the new ones. The directory may be another
/// user's, who must not have us write through a link.
fn write(path: &Path, text: &str) -> Result<()> {
    let written = beside(path)
        .and_then(|mut file| file.write_all(text.as_bytes()).map(|()| file))
        .and_then(|file| file.persist(path).map_err(io::Error::from));
    written.map(drop).with_context(|| format!("--textfile {}", path.display()))
}

/// A file of a new name in the directory of another, which goes when it is dropped.
fn beside(path: &Path) -> io::Result<NamedTempFile> {
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Builder::new().permissions(Permissions::from_mode(0o644)).tempfile_in(dir)
}

fn check(interval: Duration) -> String {
    let begun = Instant::now();
    let host = Host::new(collect(interval));
    let report = Report::of(&host, &[]);
    let cost = Cost { seconds: begun.elapsed().as_secs_f64(), cpu_seconds: cpu_seconds() };
    metrics(&host, &report, cost)
}

/// Ticks per second in `/proc`: `USER_HZ`, the same on every architecture that Linux supports
/// today.
const TICKS_PER_SECOND: f64 = 100.0;

/// CPU time of this process and of its children that have ended.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // After the name: the state is the third field, and the times are the 14th to the 17th.
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace();
    let ticks = fields.skip(14 - 3).take(4).filter_map(|field| field.parse::<f64>().ok());
    ticks.sum::<f64>() / TICKS_PER_SECOND
}

/// The page for a path.
fn respond(path: &str, metrics: &Mutex<String>) -> Page {
    if path != "/metrics" {
        return Page::plain("404 Not Found", "try /metrics\n");
    }
    let text = metrics.lock().unwrap_or_else(PoisonError::into_inner).clone();
    match text.is_empty() {
        true => {
            Page::plain("503 Service Unavailable", "the first examination has not finished yet\n")
        }
        false => Page { status: "200 OK", media: MEDIA, text },
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_file_is_replaced_whole_and_an_error_names_it() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("doctor.prom");
        // The names that a program would choose for a file beside it.
        for name in ["doctor.new", "doctor.prom.tmp"] {
            symlink("victim", dir.path().join(name)).expect("linked");
        }
        write(&path, "a 1\n").expect("it has room");
        assert!(!dir.path().join("victim").exists(), "nothing is written through a link");
        assert_eq!(fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o644);
        let reader = fs::File::open(&path).expect("there");
        write(&path, "a 2\n").expect("it has room");
        assert_eq!(fs::read_to_string(&path).expect("there"), "a 2\n");
        assert_eq!(io::read_to_string(reader).expect("open"), "a 1\n");
        assert_eq!(fs::read_dir(dir.path()).expect("there").count(), 3);
        let lost = dir.path().join("none/doctor.prom");
        let error = write(&lost, "").expect_err("no directory");
        assert!(format!("{error:#}").contains("none/doctor.prom: No such file"), "{error:#}");
    }

    #[test]
    fn node_exporter_reads_the_file() {
        assert!(textfile("/var/lib/d.prom").is_ok());
        assert!(textfile("/var/lib/d.txt").is_err());
    }
}
