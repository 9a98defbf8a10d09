//! `ringway top`: what every queue does, live.

use std::cmp::Ordering;
use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use ringway_sys::poll::wait_readable;
use ringway_terminal::options::seconds;
use ringway_terminal::output::{print, print_json};
use ringway_terminal::stop::Stop;

use crate::rates::{self, QueueRate, Reading, rate_table, rate_table_within};
use crate::screen::{Key, Screen};
use crate::target::Target;

const KEYS: &str =
    "sort: v vif, p packets, b bits, d drops, w worker; r reverse; arrows scroll; q quit";

/// Show the rates of every queue, refreshed each second
///
/// Keys: v sorts by vif, p by packets, b by bits, d by drops, w by worker; r reverses the order;
/// the arrows scroll; q quits. k, M and G are powers of 1000.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  ringway top\n  ringway top --sort drops --once")]
pub(crate) struct Top {
    #[command(flatten)]
    target: Target,
    /// Seconds between two readings
    #[arg(long, value_name = "SECONDS", default_value_t = 1,
          value_parser = seconds::<u8>(1..=60))]
    interval: u8,
    /// The column to sort by
    #[arg(long, value_enum, default_value_t = Sort::Vif)]
    sort: Sort,
    /// Print one table after one interval, then exit
    #[arg(long)]
    once: bool,
    /// Print JSON after one interval, then exit
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Sort {
    Vif,
    Packets,
    Bits,
    Drops,
    Worker,
}

/// The state of the screen.
struct View {
    rates: Vec<QueueRate>,
    sort: Sort,
    is_reversed: bool,
    /// Why the last reading failed, if it did.
    trouble: Option<String>,
    summary: String,
    /// Rows scrolled out at the top.
    first_row: usize,
}

pub(crate) fn run(args: &Top) -> Result<()> {
    let stop = Stop::on_signals()?;
    let interval = Duration::from_secs(u64::from(args.interval));
    let before = read(&args.target)?;
    let mut view = View {
        rates: Vec::new(),
        sort: args.sort,
        is_reversed: false,
        trouble: None,
        summary: format!("measuring, {} s", args.interval),
        first_row: 0,
    };
    if args.once || args.json {
        if stop.wait(interval)? {
            return Ok(());
        }
        view.update(&before, &read(&args.target)?);
        return match args.json {
            true => print_json(&view.rates),
            false => print(&format!("{}\n{}", view.summary, rate_table(&view.rates))),
        };
    }
    let screen = Screen::begin().context("use this terminal (try --once)")?;
    show(&screen, args, before, &mut view, &stop, interval)
}

fn read(target: &Target) -> Result<Reading> {
    Ok(Reading { at: Instant::now(), status: target.backend()? })
}

fn show(
    screen: &Screen,
    args: &Top,
    mut before: Reading,
    view: &mut View,
    stop: &Stop,
    interval: Duration,
) -> Result<()> {
    let mut due = Instant::now() + interval;
    loop {
        view.draw(screen)?;
        let stdin = io::stdin();
        let left = due.saturating_duration_since(Instant::now());
        if stop.wait_beside(&[stdin.as_fd()], Some(left))? {
            return Ok(());
        }
        if wait_readable(&stdin, Some(Duration::ZERO))? {
            for key in screen.keys()? {
                if view.on_key(key) == Next::End {
                    return Ok(());
                }
            }
        }
        if due <= Instant::now() {
            // A backend that restarts is briefly unavailable.
            match read(&args.target) {
                Ok(after) => {
                    view.update(&before, &after);
                    before = after;
                }
                Err(error) => view.trouble = Some(format!("{error:#}")),
            }
            due = Instant::now() + interval;
        }
    }
}

#[derive(PartialEq, Eq)]
enum Next {
    Stay,
    End,
}

impl View {
    fn update(&mut self, before: &Reading, after: &Reading) {
        self.rates = rates::between(before, after);
        self.trouble = None;
        let status = &after.status;
        let connected = status.vifs.iter().filter(|vif| vif.state == "Connected").count();
        self.summary = format!(
            "backend {}, policy {}, {} workers{}, {connected} of {} vifs connected, {} addresses",
            status.pid,
            status.policy,
            status.workers.len(),
            busy_workers(before, after),
            status.vifs.len(),
            status.fdb.len(),
        );
        self.sort_rates();
    }

    fn on_key(&mut self, key: Key) -> Next {
        match key {
            Key::Char('q') | Key::Escape => return Next::End,
            Key::Char('v') => self.sort = Sort::Vif,
            Key::Char('p') => self.sort = Sort::Packets,
            Key::Char('b') => self.sort = Sort::Bits,
            Key::Char('d') => self.sort = Sort::Drops,
            Key::Char('w') => self.sort = Sort::Worker,
            Key::Down => self.first_row += 1,
            Key::Up => self.first_row = self.first_row.saturating_sub(1),
            Key::Char('r') => self.is_reversed = !self.is_reversed,
            _ => {}
        }
        self.first_row = self.first_row.min(self.rates.len().saturating_sub(1));
        self.sort_rates();
        Next::Stay
    }

    fn sort_rates(&mut self) {
        // Rates are sorted largest first.
        let by =
            |of: fn(&QueueRate) -> f64| move |a: &QueueRate, b: &QueueRate| of(b).total_cmp(&of(a));
        let packets = by(|rate| rate.tx_packets_per_second + rate.rx_packets_per_second);
        let bits = by(|rate| rate.tx_bits_per_second + rate.rx_bits_per_second);
        let drops = by(|rate| rate.drops_per_second);
        let (sort, is_reversed) = (self.sort, self.is_reversed);
        self.rates.sort_by(|a, b| {
            let order = match sort {
                Sort::Vif => Ordering::Equal,
                Sort::Packets => packets(a, b),
                Sort::Bits => bits(a, b),
                Sort::Drops => drops(a, b),
                Sort::Worker => a.worker.cmp(&b.worker),
            };
            let order =
                order.then_with(|| (vif_order(&a.vif), a.queue).cmp(&(vif_order(&b.vif), b.queue)));
            if is_reversed { order.reverse() } else { order }
        });
    }

    fn draw(&self, screen: &Screen) -> io::Result<()> {
        let title = self.trouble.as_deref().unwrap_or(&self.summary);
        let table = rate_table_within(&self.rates, screen.size().1);
        screen.draw(title, &table, self.first_row, KEYS)
    }
}

/// For each worker, the percentage of the time in which it had work. The CPU time does not show
/// this, because a worker that polls uses all of its CPU.
fn busy_workers(before: &Reading, after: &Reading) -> String {
    let elapsed = after.at.saturating_duration_since(before.at);
    let workers = before.status.workers.iter().zip(&after.status.workers);
    let busy = workers.map(|(before, after)| {
        let busy = Duration::from_nanos(after.busy_ns.saturating_sub(before.busy_ns));
        let percent = 100.0 * busy.as_secs_f64() / elapsed.as_secs_f64().max(f64::MIN_POSITIVE);
        format!("{percent:.0} %")
    });
    let busy: Vec<String> = busy.collect();
    if busy.is_empty() { String::new() } else { format!(" busy {}", busy.join(", ")) }
}

/// By guest and handle as numbers, vif2.0 before vif10.0; the uplink is last.
fn vif_order(name: &str) -> (u32, u32, &str) {
    let numbers = name.strip_prefix("vif").and_then(|rest| rest.split_once('.'));
    let number = |text: &str| text.parse().ok();
    let numbers = numbers.and_then(|(guest, handle)| number(guest).zip(number(handle)));
    let (guest, handle) = numbers.unwrap_or((u32::MAX, u32::MAX));
    (guest, handle, name)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn rate(vif: &str, packets: f64, worker: usize) -> QueueRate {
        QueueRate {
            vif: vif.to_owned(),
            kind: "xen".to_owned(),
            guest: "-".to_owned(),
            queue: 0,
            worker,
            tx_packets_per_second: packets,
            tx_bits_per_second: 0.0,
            rx_packets_per_second: 0.0,
            rx_bits_per_second: 0.0,
            drops_per_second: 0.0,
            dropped_per_second: BTreeMap::new(),
        }
    }

    #[test]
    fn vifs_are_in_the_order_of_their_numbers_and_the_uplink_is_last() {
        let mut names = ["ringway0", "vif10.0", "vif2.1", "vif2.0"];
        names.sort_by_key(|name| vif_order(name));
        assert_eq!(names, ["vif2.0", "vif2.1", "vif10.0", "ringway0"]);
    }

    #[test]
    fn keys_change_the_order_and_q_ends() {
        let mut view = View {
            rates: vec![rate("vif2.0", 5.0, 0), rate("vif1.0", 1.0, 1), rate("vif3.0", 9.0, 1)],
            sort: Sort::Vif,
            is_reversed: false,
            trouble: None,
            summary: String::new(),
            first_row: 0,
        };
        let mut on_key = |key| {
            assert!(view.on_key(Key::Char(key)) == Next::Stay);
            view.rates.iter().map(|rate| rate.vif.clone()).collect::<Vec<_>>()
        };
        assert_eq!(on_key('v'), ["vif1.0", "vif2.0", "vif3.0"]);
        assert_eq!(on_key('p'), ["vif3.0", "vif2.0", "vif1.0"]);
        assert_eq!(on_key('r'), ["vif1.0", "vif2.0", "vif3.0"]);
        assert_eq!(on_key('w'), ["vif3.0", "vif1.0", "vif2.0"]);
        assert!(view.on_key(Key::Char('q')) == Next::End);
    }
}
