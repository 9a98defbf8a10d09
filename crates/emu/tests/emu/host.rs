//! A broker on its own directory, for one test.

use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use ringway_emu::{Broker, BrokerHandle, DomainEvent, EmuEvent, EmuHypervisor, NewDomain, Role};
use ringway_hypervisor::EventChannel;
use ringway_sys::poll::wait_readable;
use ringway_wire::DomId;
use tempfile::TempDir;

/// Only a failing test waits this long.
const PATIENCE: Duration = Duration::from_secs(60);

/// Ends with the test.
pub(crate) struct Host {
    dir: TempDir,
    handle: BrokerHandle,
    thread: Option<JoinHandle<std::io::Result<()>>>,
    events: Receiver<DomainEvent>,
}

impl Host {
    pub(crate) fn start() -> Host {
        let dir = tempfile::tempdir().expect("a directory");
        let mut broker = Broker::bind(dir.path()).expect("the directory is free");
        let (sender, events) = channel();
        broker.on_change(move |event| {
            // The test may have ended.
            let _ = sender.send(event);
        });
        let handle = broker.handle();
        let thread = Some(std::thread::spawn(move || broker.run()));
        Host { dir, handle, thread, events }
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn connect(&self, domid: DomId) -> EmuHypervisor {
        EmuHypervisor::connect(self.dir(), domid).expect("the broker listens")
    }

    pub(crate) fn toolstack(&self) -> EmuHypervisor {
        self.connect(DomId(0))
    }

    /// A domain of 64 pages.
    pub(crate) fn create(&self, role: Role) -> DomId {
        let new = NewDomain { domid: None, memory_bytes: 64 * 4096, role };
        let domid = self.toolstack().create_domain(new).expect("there is room");
        assert_eq!(self.next_event(), DomainEvent::Created(domid));
        domid
    }

    /// When this returns, the broker has handled all ends of connections before the call.
    pub(crate) fn settle(&self) {
        self.toolstack().domains().expect("the broker replies");
    }

    pub(crate) fn next_event(&self) -> DomainEvent {
        self.events.recv_timeout(PATIENCE).expect("the broker tells")
    }
}

/// Waits for an event, and takes it.
pub(crate) fn wait_for(event: &EmuEvent) {
    let waker = event.waker().expect("an emulated channel has a descriptor");
    assert!(wait_readable(&waker, Some(PATIENCE)).expect("a descriptor"));
    assert!(event.ack().expect("it can be read"));
}

impl Drop for Host {
    fn drop(&mut self) {
        self.handle.stop();
        let ended = self.thread.take().map(JoinHandle::join);
        if !std::thread::panicking() {
            ended.expect("it ran").expect("it did not panic").expect("it did not fail");
        }
    }
}
