//! What a supervisor passes of a network device to the process of a tenant.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use ringway_control::{MadeDevice, PassedDevice};
use ringway_host::Made;
use ringway_tap::TapFile;

use crate::kernel::HostTap;

/// Of one vif.
pub(crate) type Passed = ringway_host::Passed<HostTap>;

/// A device as it arrives.
pub(crate) fn received(device: Option<PassedDevice>, queues: Vec<OwnedFd>) -> Passed {
    match device {
        None => Passed::Nothing,
        Some(PassedDevice::NotMade { reason }) => Passed::NotMade(reason),
        Some(PassedDevice::Made(MadeDevice { queues: count, mtu, attached_to })) => {
            let files = queues.into_iter().map(|queue| TapFile::from_fd(queue).map(Arc::new));
            match files.collect() {
                Ok(files) => Passed::Made(Made { queues: count, mtu, attached_to }, files),
                // It was deleted meanwhile: its next queues follow.
                Err(error) => Passed::NotMade(std::io::Error::to_string(&error)),
            }
        }
    }
}
