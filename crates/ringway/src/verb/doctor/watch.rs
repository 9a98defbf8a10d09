//! `ringway doctor serve`: what is found, for Prometheus.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Args;
use ringway_doctor::collect;
use ringway_doctor::fact::Host;
use ringway_doctor::report::Report;
use ringway_doctor::watch::{Cost, metrics};
use tiny_http::{Header, Method, Request, Response, Server};

use crate::options::number;
use crate::output::print;
use crate::stop::Stop;

/// How soon a signal ends it.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
const CONTENT_TYPE: &str = "Content-Type: text/plain; version=0.0.4; charset=utf-8";

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  ringway doctor serve --listen 0.0.0.0:9819 --every 60")]
pub(super) struct Watch {
    /// Where to serve /metrics; anyone who can connect may read them
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9819")]
    listen: SocketAddr,
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
    let server = Server::http(args.listen)
        .map_err(|error| anyhow::anyhow!("{error}"))
        .with_context(|| format!("--listen {}", args.listen))?;
    let page = Arc::new(Mutex::new(String::new()));
    let shared = Arc::clone(&page);
    let (every, interval) = (Duration::from_secs(args.every), Duration::from_secs(args.interval));
    // Never joined: it may wait for a tool, and holds nothing that needs an end.
    thread::Builder::new().name("look".to_owned()).spawn(move || {
        loop {
            let begun = Instant::now();
            let text = check(interval);
            *shared.lock().unwrap_or_else(PoisonError::into_inner) = text;
            thread::sleep(every.saturating_sub(begun.elapsed()));
        }
    })?;
    print(&format!("Serving http://{}/metrics\n", server.server_addr()))?;
    while !stop.wait(Duration::ZERO)? {
        if let Some(request) = server.recv_timeout(POLL_INTERVAL)? {
            let text = page.lock().unwrap_or_else(PoisonError::into_inner).clone();
            // A reader that left is no failure of ours.
            let _ = respond(request, text);
        }
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

/// Ticks of a second in `/proc`: `USER_HZ`, the same on all that Linux runs on today.
const TICKS_PER_SECOND: f64 = 100.0;

/// CPU time of this process and of those that it ran and that have ended.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // Behind the name: the state is the third field, and times are the 14th to the 17th.
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace();
    let ticks = fields.skip(14 - 3).take(4).filter_map(|field| field.parse::<f64>().ok());
    ticks.sum::<f64>() / TICKS_PER_SECOND
}

fn respond(request: Request, page: String) -> std::io::Result<()> {
    let is_get = *request.method() == Method::Get;
    match request.url() {
        "/metrics" if is_get && page.is_empty() => request.respond(
            Response::from_string("the first check has not ended yet\n").with_status_code(503),
        ),
        "/metrics" if is_get => {
            let header: Header = CONTENT_TYPE.parse().expect("a header as tiny_http wants it");
            request.respond(Response::from_string(page).with_header(header))
        }
        _ => request.respond(Response::from_string("try /metrics\n").with_status_code(404)),
    }
}
