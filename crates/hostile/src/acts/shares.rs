//! Resources that guests share while all their traffic is legal: workers, queues, and room in
//! queues.

use std::time::{Duration, Instant};

use anyhow::Result;
use ringway_wire::netif::{ExtraInfo, GSO_TYPE_TCPV4, NETTXF_CSUM_BLANK, NETTXF_DATA_VALIDATED};

use crate::frame;
use crate::queue::{Prepared, Queue};
use crate::stage::{Peer, Stage};

/// Eight queues of frames of the maximum length, to an honest guest.
pub(crate) fn greedy_queues(stage: &mut Stage) -> Result<()> {
    let route = stage.route_to(stage.victim()?);
    stage.guest.connect(8, 17)?;
    let flags = NETTXF_CSUM_BLANK | NETTXF_DATA_VALIDATED;
    let extra = ExtraInfo::for_gso(1448, GSO_TYPE_TCPV4);
    let frames = (40_000..).zip(&stage.guest.queues).map(|(port, queue)| {
        let bytes = frame::tcp(route, [port, 9], 65_000);
        vec![Prepared::new(queue, 0, &bytes, flags, Some(extra))]
    });
    let frames: Vec<Vec<Prepared>> = frames.collect();
    stage.pump(&frames)
}

/// As many small frames as the backend takes, to an honest guest.
pub(crate) fn small_frames(stage: &mut Stage) -> Result<()> {
    let route = stage.route_to(stage.victim()?);
    stage.guest.connect(8, 4)?;
    let frames = (40_000..).zip(&stage.guest.queues).map(|(port, queue)| {
        vec![Prepared::new(queue, 0, &frame::udp(route, [port, 9], 18), 0, None)]
    });
    let frames: Vec<Vec<Prepared>> = frames.collect();
    stage.pump(&frames)
}

/// Takes a frame every 45 ms, and makes an honest guest send more than that.
pub(crate) fn slow_receiver(stage: &mut Stage) -> Result<()> {
    let victim = stage.victim()?;
    receive_slowly(stage, victim, Duration::from_millis(45), 200)
}

/// Takes a frame every 45 ms, and makes the host send more than that, which all guests share.
pub(crate) fn slow_receiver_of_host(stage: &mut Stage) -> Result<()> {
    let host = stage.host()?;
    receive_slowly(stage, host, Duration::from_millis(45), 1000)
}

/// Receives nothing at all.
pub(crate) fn silent_receiver(stage: &mut Stage) -> Result<()> {
    let victim = stage.victim()?;
    receive_slowly(stage, victim, Duration::MAX, 2000)
}

/// Offers one page at a time, while the frames for it need several: there is always a free slot,
/// and never enough room.
pub(crate) fn one_free_slot(stage: &mut Stage) -> Result<()> {
    let victim = stage.victim()?;
    let route = stage.route_to(victim);
    stage.guest.connect(1, 64)?;
    introduce_surely(stage, victim)?;
    let queue = stage.queue()?;
    // The reply is as long as the request, and takes two slots.
    let request = Prepared::new(queue, 0, &frame::ping(route, 1, 1400), 0, None);
    queue.post(40);
    queue.publish_rx();
    while !stage.is_over() {
        let queue = send_if_room(stage, &request)?;
        if !queue.take_rx().is_empty() {
            queue.post(40);
            queue.publish_rx();
        }
        stage.count("frames", 1);
        // waits: this is the rate of its pings.
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

fn introduce_surely(stage: &mut Stage, to: Peer) -> Result<()> {
    for _ in 0..3 {
        stage.introduce(to)?;
        // waits: the frames are to be apart, as one may be lost in a full queue.
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Sends a request on the first queue, if room for it comes in time.
fn send_if_room<'a>(stage: &'a mut Stage, request: &Prepared) -> Result<&'a mut Queue> {
    let until = stage.until;
    let queue = stage.queue()?;
    if queue.wait_for_room(1, until) {
        request.push(queue);
        queue.publish_tx();
    }
    Ok(queue)
}

/// Pings a peer `per_second` times per second, and occasionally takes a page of the replies.
fn receive_slowly(stage: &mut Stage, from: Peer, every: Duration, per_second: u32) -> Result<()> {
    let route = stage.route_to(from);
    stage.guest.connect(1, 64)?;
    introduce_surely(stage, from)?;
    let queue = stage.queue()?;
    let request = Prepared::new(queue, 0, &frame::ping(route, 1, 500), 0, None);
    let pause = Duration::from_secs(1) / per_second;
    let mut due = Instant::now();
    let mut taken = 0;
    while !stage.is_over() {
        let queue = send_if_room(stage, &request)?;
        if every < Duration::MAX && Instant::now() >= due {
            queue.post(40);
            queue.publish_rx();
            due = Instant::now() + every;
            taken += 1;
        }
        let _ = queue.take_rx();
        stage.count("frames", 1);
        // waits: this is the rate of its pings.
        std::thread::sleep(pause);
    }
    stage.count("pages", taken);
    Ok(())
}
