//! `perf report` by thread and symbol: where the CPUs spent their time.

use crate::{Gap, Text};

/// The least sum of shares in a complete report.
const TOTAL_MIN: f64 = 0.9;

/// Rows of the report.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Profile {
    /// In the order that the tool prints.
    pub rows: Vec<Sampled>,
}

/// A symbol in a thread.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Sampled {
    /// Share of all samples, from 0 to 1.
    pub share: f64,
    /// The thread's name.
    pub thread: String,
    /// The function.
    pub symbol: String,
    /// Its line in the output.
    pub line: usize,
}

impl Profile {
    /// Parses `12.3%|thread|[k] symbol`, one per line.
    pub fn parse(text: &Text) -> Result<Profile, Gap> {
        let is_row = |row: &str| !row.trim().is_empty() && !row.starts_with('#');
        let mut rows = Vec::new();
        for (line, row) in text.lines().filter(|(_, row)| is_row(row)) {
            let refuse = || text.unreadable(Some(line), "expected a share, a thread and a symbol");
            let mut parts = row.splitn(3, '|').map(str::trim);
            let (Some(share), Some(thread), Some(symbol)) =
                (parts.next(), parts.next(), parts.next())
            else {
                return Err(refuse());
            };
            let percent: f64 = share.trim_end_matches('%').parse().map_err(|_| refuse())?;
            if !(0.0..=100.0).contains(&percent) {
                return Err(refuse());
            }
            // "[k]" and "[.]" distinguish symbols of the kernel and of programs.
            let symbol = symbol.split_once("] ").map_or(symbol, |(_, symbol)| symbol);
            let (thread, symbol) = (thread.to_owned(), symbol.trim().to_owned());
            rows.push(Sampled { share: percent / 100.0, thread, symbol, line });
        }
        // The rarest symbols are printed as 0.00 %.
        let total: f64 = rows.iter().map(|row: &Sampled| row.share).sum();
        if total < TOTAL_MIN {
            let why = format!("shares of {:.0} % in all: some are missing", total * 100.0);
            return Err(text.unreadable(None, why));
        }
        Ok(Profile { rows })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_threads_and_symbols_are_read() {
        let text = " 74.34% |swapper        |[k] pv_native_safe_halt\n\
                     21.77%  |qemu-system-x86|[.] operator()(int | long)\n";
        let read = Profile::parse(&Text::new("perf", text)).expect("sound");
        assert_eq!(read.rows[0].symbol, "pv_native_safe_halt");
        assert_eq!(read.rows[1].thread, "qemu-system-x86");
        assert!((read.rows[1].share - 0.2177).abs() < 1e-9);
        assert!(Profile::parse(&Text::new("perf", "5%|x\n")).is_err());
    }
}
