//! `ringway doctor serve`: the findings as metrics for Prometheus.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use ringway_doctor::collect;
use ringway_doctor::fact::Host;
use ringway_doctor::report::Report;
use ringway_doctor::watch::{Cost, metrics};

use crate::options::number;
use crate::output::print;
use crate::stop::Stop;
use crate::verb::doctor::web::{Page, Server};

/// How long a signal may wait before it ends the server.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
const MEDIA: &str = "text/plain; version=0.0.4; charset=utf-8";

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  ringway doctor serve --listen 0.0.0.0:9819 --every 60")]
pub(super) struct Watch {
    /// Where to serve /metrics; without --web-config anyone who can connect may read them
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9819")]
    listen: SocketAddr,
    /// A web configuration file of Prometheus' exporters: tls_server_config with cert_file and
    /// key_file, basic_auth_users with bcrypt's hashes of their passwords. It is read once
    #[arg(long, value_name = "FILE", visible_alias = "web.config.file")]
    web_config: Option<PathBuf>,
    /// Seconds between two examinations
    #[arg(long, value_name = "SECONDS", default_value = "60")]
    #[arg(value_parser = number(1..=86_400_u64))]
    every: u64,
    /// Seconds between the two samples of an examination
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = number(1..=3600_u64))]
    interval: u64,
}

pub(super) fn run(args: &Watch) -> Result<()> {
    let stop = Stop::on_signals()?;
    let server = Server::start(args.listen, args.web_config.as_deref())?;
    let page = Arc::new(Mutex::new(String::new()));
    let shared = Arc::clone(&page);
    let (every, interval) = (Duration::from_secs(args.every), Duration::from_secs(args.interval));
    // Never joined: it may wait for a tool, and holds nothing that needs cleaning up.
    thread::Builder::new().name("examine".to_owned()).spawn(move || {
        loop {
            let begun = Instant::now();
            let text = check(interval);
            *shared.lock().unwrap_or_else(PoisonError::into_inner) = text;
            thread::sleep(every.saturating_sub(begun.elapsed()));
        }
    })?;
    print(&format!("Serving {}/metrics\n", server.address()?))?;
    while !stop.wait(Duration::ZERO)? {
        let page = Arc::clone(&page);
        server.serve(POLL_INTERVAL, move |path| respond(path, &page))?;
    }
    Ok(())
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
