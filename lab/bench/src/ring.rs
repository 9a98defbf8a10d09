//! Frames per second through one ring pair, with one core per side, compared with DPDK's virtio
//! rings.
//!
//! Both subjects do the same work: one process is the guest, the other the host, each polling on
//! its own core; the sender writes the headers of each frame, and the host copies each frame once.
//!
//! The netfront copies each frame once more, to or from private memory, and testpmd does not. From
//! the guest there is also a testpmd that copies, though it forwards its frames and makes none.

pub(crate) mod guest;
pub(crate) mod pair;
pub(crate) mod testpmd;
pub(crate) mod work;

use anyhow::Result;

use crate::child::is_installed;
use crate::options::Options;
use crate::report::{BARE, Better, Case, NETFRONT, Report};
use pair::GuestKind;
use testpmd::Sending;
use work::Work;

const SECTION: &str = "ring";

/// The direction of frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Direction {
    GuestToHost,
    HostToGuest,
    /// Both directions at the same time: each side sends back what it receives.
    Loop,
}

impl Direction {
    /// What the guest does, and what the host does.
    pub(crate) fn works(self) -> (Work, Work) {
        match self {
            Direction::GuestToHost => (Work::Send, Work::Receive),
            Direction::HostToGuest => (Work::Receive, Work::Send),
            Direction::Loop => (Work::Bounce, Work::Bounce),
        }
    }
}

/// One line of the table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RingCase {
    pub(crate) direction: Direction,
    pub(crate) frame_len: usize,
    pub(crate) queues: usize,
}

impl RingCase {
    pub(crate) fn all() -> impl Iterator<Item = RingCase> {
        let directions = [Direction::GuestToHost, Direction::HostToGuest, Direction::Loop];
        [1, 2].into_iter().flat_map(move |queues| {
            directions.into_iter().flat_map(move |direction| {
                [64, 1500].map(|frame_len| RingCase { direction, frame_len, queues })
            })
        })
    }

    pub(crate) fn case(self, section: &'static str) -> Case {
        let direction = match self.direction {
            Direction::GuestToHost => "guest->host",
            Direction::HostToGuest => "host->guest",
            Direction::Loop => "loop, each way",
        };
        let name = format!("{direction}, {} B, {} queue(s)", self.frame_len, self.queues);
        Case::new(section, name, "Mpps", Better::More)
    }
}

/// One round: every case, every subject.
pub(crate) fn round(options: &Options, report: &mut Report) -> Result<()> {
    let cpus = ringway_sys::process::allowed_cpus()?;
    let [host_cpu, guest_cpu, ..] = cpus[..] else {
        report.skip(SECTION, "all", "two CPUs are needed, one for each side");
        return Ok(());
    };
    let cpus = [host_cpu, guest_cpu];
    let has_testpmd = is_installed(testpmd::PROGRAM);
    if !has_testpmd {
        report.skip(SECTION, "testpmd", &format!("apt-get install {}", testpmd::PACKAGES));
    }
    for ring_case in
        RingCase::all().filter(|ring_case| options.wants(&ring_case.case(SECTION).name))
    {
        let case = ring_case.case(SECTION);
        // The netfront is what users get, so it comes first.
        for (subject, guest) in [(NETFRONT, GuestKind::Netfront), (BARE, GuestKind::Bare)] {
            report.measure(&case, subject, || pair::run(ring_case, guest, cpus, options.spans));
        }
        if has_testpmd {
            let run = |sending| testpmd::run(ring_case, sending, cpus, options);
            report.measure(&case, "testpmd", || run(Sending::Headers));
            if ring_case.direction != Direction::GuestToHost {
                continue;
            }
            if testpmd::has_null_device() {
                report.measure(&case, "testpmd+copy", || run(Sending::Copies));
            } else {
                let remedy = format!("apt-get install {}", testpmd::PACKAGES);
                report.skip(SECTION, "testpmd+copy", &remedy);
            }
        }
    }
    Ok(())
}
